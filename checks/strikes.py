"""Strikes: sends the signals of a fault, makes sure that they hit, and lets go of what it holds.

A victim that had ended by itself, or that does not stop, gives no verdict (`NotStruck`).
"""

from __future__ import annotations

import random
import signal
import time
from dataclasses import dataclass

from checks.catalogue import Blow, Fault, How
from checks.orders import Orders
from checks.processes import JobProcesses, Process, Role, process
from checks.results import Struck
from engine.core.errors import WeirError
from engine.jobmaster.status import JobStatus
from engine.store.failpoints import Point

SEEN_WITHIN_S = 5.0
MET_WITHIN_S = 60.0
"""A failpoint of checkpoints is reached by the next one."""
_POLL_S = 0.005


class NotStruck(WeirError):
    """The blow did not hit: there is no verdict."""


def written_down(
    fault: Fault, number: int, status: JobStatus, pid: int, slot: int | None = None, at_ms: int = 0, point: str = ""
) -> Struck:
    """Returns the record of a blow that strikes a process now, or has struck it at `at_ms`, at a failpoint."""
    return Struck(
        slot,
        pid,
        at_ms or time.time_ns() // 1_000_000,
        status.epoch,
        f"{status.generation}.{status.attempt}",
        fault.name,
        number,
        fault.blows[number].victim.value,
        point=point,
    )


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

    def let_go(self) -> str:
        """Lets the process go on. It may have been replaced meanwhile. Returns why that is no verdict, if so."""
        state = self.process.state
        if self.how is not How.STOP:
            self.process.limit_files(False)
            return ""
        self.process.send(signal.SIGCONT)
        return "" if state in ("T", "") else f"process {self.process.pid} went on before it was let go"


@dataclass(frozen=True)
class HeldOrder:
    """An order that lasts until it is taken back."""

    orders: Orders
    point: Point
    how: How
    role: Role
    until_s: float
    gone: bool = False

    def let_go(self) -> str:
        self.orders.take_back(self.point)
        return ""


class Striker:
    """Strikes the processes of one job. `chance` decides which of several slots is struck."""

    def __init__(self, processes: JobProcesses, chance: random.Random, orders: Orders) -> None:
        self._processes = processes
        self._chance = chance
        self._orders = orders
        self.held: list[Held | HeldOrder] = []

    def strike(self, fault: Fault, number: int, status: JobStatus) -> Struck:
        """Strikes a blow of the fault. `status` is the newest. Raises NotStruck."""
        blow = fault.blows[number]
        if blow.at is not None:
            return self._order(fault, number, blow.at, status)
        slot, victims = self._victims(blow, status)
        struck = written_down(fault, number, status, victims[0].pid, slot)
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
            why = one.let_go()
            self.held.remove(one)
            if due_only and why:
                raise NotStruck(f"no verdict: {why}")
        return bool(due)

    def _order(self, fault: Fault, number: int, point: Point, status: JobStatus) -> Struck:
        """Gives an order to whoever reaches a failpoint first, and waits until somebody has met it."""
        blow = fault.blows[number]
        assert blow.how.does is not None
        self._orders.give(point, blow.how.does)
        met = self._orders.wait(point, MET_WITHIN_S)
        if met is None:
            self._orders.take_back(point)
            raise NotStruck(f"no verdict: nobody reached {point.value} within {MET_WITHIN_S:.0f} s")
        slot = (
            next((one.slot for one in status.slots if one.pid == met.pid), None) if blow.victim is Role.SLOT else None
        )
        struck = written_down(fault, number, status, met.pid, slot, met.at_ms, point.value)
        if blow.lasts_s:
            until_s = time.monotonic() + blow.lasts_s
            self.held.append(HeldOrder(self._orders, point, blow.how, blow.victim, until_s))
        elif (victim := process(met.pid)) is not None:
            _see(victim, How.KILL, str(struck))
        return struck

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
            return None, [self._alive(number, pid) for number, pid in slots]
        number, pid = self._chance.choice(slots)
        return number, [self._alive(number, pid)]

    def _alive(self, slot: int, pid: int) -> Process:
        found = self._processes.slot(pid)
        if found is None:
            raise NotStruck(
                f"no verdict: slot {slot} (process {pid}) had ended by itself before it was struck, or is elsewhere"
            )
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
