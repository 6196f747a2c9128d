"""The faults of a drill, one after the other: each strikes, is seen to be over, and the job to have recovered from it.

Whose job it is, a copy's or the live one, does not matter here. Causes are told by the job's history at the end.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from checks.catalogue import Ends, Fault, How
from checks.faults import cause_of, happened
from checks.processes import Role
from checks.results import Struck
from checks.strikes import NotStruck, Striker, written_down
from engine.core.errors import WeirError
from engine.jobmaster.status import JobStatus
from engine.observe.client import JobClient

STRIKE_WITHIN_S = 2.0

Say = Callable[[str], None]


@dataclass
class _UnderWay:
    """A fault that has struck, until the job has recovered from it."""

    fault: Fault
    since_s: float
    attempt: tuple[int, int]
    struck: list[Struck] = field(default_factory=list)
    progress: int | None = None

    @property
    def complete(self) -> bool:
        """Says whether all blows have struck."""
        return len(self.struck) == len(self.fault.blows)


class FaultsInTurn:
    """Its `struck` blows are in the order of their moments. The first fault strikes after the epoch `after`."""

    def __init__(
        self,
        store: str | Path,
        client: JobClient,
        striker: Striker,
        faults: Sequence[Fault],
        chance: random.Random,
        say: Say,
        after: int,
        parallelism: int = 1,
    ) -> None:
        self.struck: list[Struck] = []
        self._store = store
        self._client = client
        self._striker = striker
        self._to_come = list(faults)
        self._chance = chance
        self._say = say
        self._parallelism = parallelism
        self._now: _UnderWay | None = None
        self._strike_after = after  # the newest epoch
        self._strike_at_s: float | None = None

    @property
    def names_left(self) -> list[str]:
        """The faults that have not struck, or from which the job has not recovered."""
        now = [self._now.fault.name] if self._now is not None else []
        return now + [fault.name for fault in self._to_come]

    @property
    def upgrading(self) -> bool:
        """True while the job is replaced by another version: between the two of them none runs."""
        return self._now is not None and any(blow.how is How.UPGRADE for blow in self._now.fault.blows)

    @property
    def unsupervised(self) -> bool:
        """True while the fault is one after which nobody supervises the job."""
        return self._now is not None and any(blow.cause.ends is Ends.START for blow in self._now.fault.blows)

    def look(self) -> JobStatus | None:
        """Looks at the job once: strikes, lets go, or sees that it has recovered. None if the job gives no answer."""
        if self._striker.let_go(due_only=True):
            self._let_go()
        if any(one.role is Role.MASTER for one in self._striker.held):
            return None  # it would not answer
        try:
            status = self._client.status()
        except WeirError:
            return None  # while a JobMaster is replaced there is no answer
        now_s = time.monotonic()
        if self._now is None:
            self._begin(status, now_s)
        elif not self._now.complete:
            self._go_on(self._now, status)
        elif self._has_recovered(self._now, status):
            self._recovered(self._now, status, now_s)
        return status

    def with_causes(self) -> list[Struck]:
        """Returns the blows with the causes that the history tells by now."""
        events = happened(self._store, self._client.name)
        return [msgspec.structs.replace(one, cause=cause_of(one, events)) for one in self.struck]

    def _begin(self, status: JobStatus, now_s: float) -> None:
        """Strikes the next fault when it is time."""
        if not self._to_come or not status.running or status.epoch < self._strike_after:
            return
        if self._strike_at_s is None:
            self._strike_at_s = now_s + self._chance.uniform(0, STRIKE_WITHIN_S)
        if now_s < self._strike_at_s:
            return
        fault, self._strike_at_s = self._to_come.pop(0), None
        self._now = _UnderWay(fault, time.monotonic(), _attempt(status))
        self._strike(self._now, status)
        if not fault.in_recovery:
            for _ in fault.blows[1:]:
                self._strike(self._now, status)

    def _go_on(self, now: _UnderWay, status: JobStatus) -> None:
        """Strikes the next blow of a fault in the recovery from the one before, once that is in the history."""
        if cause_of(now.struck[-1], happened(self._store, self._client.name)):
            now.attempt = _attempt(status)
            self._strike(now, status)

    def _strike(self, now: _UnderWay, status: JobStatus) -> None:
        number = len(now.struck)
        blow = now.fault.blows[number]
        asked = blow.how.asks
        struck = self._ask(now.fault, number, status) if asked else self._striker.strike(now.fault, number, status)
        if not now.struck:  # a failpoint is reached some time after the order
            now.since_s = time.monotonic() - max(0.0, time.time() - struck.at_ms / 1000)
        now.struck.append(struck)
        self._say(f"{now.fault.blows[number].how.value}: {struck}")

    def _ask(self, fault: Fault, number: int, status: JobStatus) -> Struck:
        """Asks the JobMaster for what a user asks for."""
        blow, address = fault.blows[number], self._client.folder.read_address()
        struck = written_down(fault, number, status, address.pid if address is not None else 0)
        try:
            if blow.how is How.SAVEPOINT:
                self._client.savepoint()
            elif blow.how is How.UPGRADE:
                self._client.request_upgrade()
            else:
                widest = max(vertex.parallelism for vertex in status.vertices)
                self._client.rescale(1 if widest > 1 else max(2, self._parallelism))
        except WeirError as error:
            raise NotStruck(f"no verdict: {struck} was {blow.how.value}, and refused: {error}") from error
        return struck

    def _let_go(self) -> None:
        if self._now is not None and not self._striker.held:
            until_ms = time.time_ns() // 1_000_000
            self._now.struck = [msgspec.structs.replace(one, until_ms=until_ms) for one in self._now.struck]
            self._say("the fault is over: its victim is gone, or goes on")

    def _has_recovered(self, now: _UnderWay, status: JobStatus) -> bool:
        """Says whether records are processed again; after a blow to the store, whether a checkpoint has completed."""
        if all(blow.how.asks for blow in now.fault.blows) and not now.fault.restarts:
            done = cause_of(now.struck[-1], happened(self._store, self._client.name)) != ""
            return done and status.running and _rows(status) > 0
        of_store = any(blow.how.of_store for blow in now.fault.blows)
        if not of_store and _attempt(status) > now.attempt:
            if any(one.how is How.CUT for one in self._striker.held) and self._striker.let_go():
                self._let_go()  # the job has restarted for it, and would again as long as nothing comes through
                return False
            again = status.running and _rows(status) > 0
            if again and self._striker.let_go():
                self._let_go()
            return again
        if now.fault.restarts or self._striker.held:
            return False
        progress = status.epoch if of_store else _rows(status)
        if now.progress is None:
            now.progress = progress
        return progress > now.progress

    def _recovered(self, now: _UnderWay, status: JobStatus, now_s: float) -> None:
        recovery_s, after = round(now_s - now.since_s, 3), f"{status.generation}.{status.attempt}"
        self.struck += [msgspec.structs.replace(one, after=after, recovery_s=recovery_s) for one in now.struck]
        self._now, self._strike_after = None, status.epoch + 1
        self._say(f"records flow again {recovery_s:.1f} s after {now.fault.name}")


def _attempt(status: JobStatus) -> tuple[int, int]:
    """Returns generation and attempt: if the JobMaster died too, the next generation counts attempts from 1 again."""
    return status.generation, status.attempt


def _rows(status: JobStatus) -> int:
    return sum(vertex.rows_in for vertex in status.vertices)
