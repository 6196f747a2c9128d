"""Strikes: sends the signals of a fault, makes sure that they hit, and lets go of what it holds.

A victim that had ended by itself, or that does not stop, gives no verdict (`NotStruck`).
"""

from __future__ import annotations

import random
import signal
import time
from dataclasses import dataclass

from checks.catalogue import Blow, Fault, How
from checks.processes import JobProcesses, Process, Role, process
from checks.results import Struck
from engine.core.errors import WeirError
from engine.jobmaster.status import JobStatus

SEEN_WITHIN_S = 5.0
_POLL_S = 0.005


class NotStruck(WeirError):
    """The blow did not hit: there is no verdict."""


@dataclass(frozen=True)
class Held:
    """A process that is stopped, or that can't write, until it is let go."""

    process: Process
    how: How
    role: Role
    until_s: float

    @property
    def gone(self) -> bool:
        return not self.process.state

    def let_go(self) -> None:
        """Lets the process go on. It may have been replaced meanwhile."""
        if self.how is How.STOP:
            self.process.send(signal.SIGCONT)
        else:
            self.process.limit_files(False)


class Striker:
    """Strikes the processes of one job. `chance` decides which of several slots is struck."""

    def __init__(self, processes: JobProcesses, chance: random.Random) -> None:
        self._processes = processes
        self._chance = chance
        self.held: list[Held] = []

    def strike(self, fault: Fault, number: int, status: JobStatus) -> Struck:
        """Strikes a blow of the fault. `status` is the newest. Raises NotStruck."""
        blow = fault.blows[number]
        slot, victims = self._victims(blow, status)
        struck = Struck(
            slot,
            victims[0].pid,
            time.time_ns() // 1_000_000,
            status.epoch,
            f"{status.generation}.{status.attempt}",
            fault.name,
            number,
            blow.victim.value,
        )
        for victim in victims:
            if not _hit(victim, blow.how):
                raise NotStruck(f"no verdict: {struck} had ended by itself before it was struck")
            if blow.lasts_s:
                self.held.append(Held(victim, blow.how, blow.victim, time.monotonic() + blow.lasts_s))
        for victim in victims:
            _see(victim, blow.how, str(struck))
        return struck

    def let_go(self, *, due_only: bool = False) -> bool:
        """Lets go of what is held, or of what is due or gone. Says whether anything was. Raises NotStruck."""
        now_s = time.monotonic()
        due = [one for one in self.held if not due_only or one.gone or now_s >= one.until_s]
        for one in due:
            state = one.process.state
            one.let_go()
            self.held.remove(one)
            if due_only and one.how is How.STOP and state not in ("T", ""):
                raise NotStruck(f"no verdict: process {one.process.pid} went on before it was let go")
        return bool(due)

    def _victims(self, blow: Blow, status: JobStatus) -> tuple[int | None, list[Process]]:
        """Returns the slot, if it is one, and its processes. A slot is struck as the JobMaster knows it."""
        if blow.victim is not Role.SLOT:
            found = self._processes.of(blow.victim)
            if not found:
                raise NotStruck(f"no verdict: the job has no {blow.victim.value} on this machine that could be struck")
            return None, [self._chance.choice(found)]
        slots = sorted((slot.slot, slot.pid) for slot in status.slots if slot.slot is not None)
        if not slots:
            raise NotStruck("no verdict: the job has no slot that could be struck")
        if blow.how is How.FULL:
            return None, [_alive(number, pid) for number, pid in slots]
        number, pid = self._chance.choice(slots)
        return number, [_alive(number, pid)]


def _alive(slot: int, pid: int) -> Process:
    found = process(pid)
    if found is None:
        raise NotStruck(f"no verdict: slot {slot} (process {pid}) had ended by itself before it was struck")
    return found


def _hit(victim: Process, how: How) -> bool:
    if how is How.FULL:
        return victim.limit_files(True)
    return victim.send(signal.SIGKILL if how is How.KILL else signal.SIGSTOP)


def _see(victim: Process, how: How, who: str) -> None:
    """Waits until the victim is seen dead or stopped."""
    deadline_s = time.monotonic() + SEEN_WITHIN_S
    while not {How.KILL: victim.state == "", How.STOP: victim.state in ("T", ""), How.FULL: True}[how]:
        if time.monotonic() > deadline_s:
            raise NotStruck(f"no verdict: {who} was struck, and is in state {victim.state} all the same")
        time.sleep(_POLL_S)
