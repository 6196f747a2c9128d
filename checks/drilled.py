"""The job of a drill: it runs to its end under a supervisor of its own, and faults strike it on the way.

After two checkpoints the first fault strikes, and each next one after another checkpoint behind the recovery. If the
fault was the death of the supervisor, the job is resumed as `weir resume` and Dagster's sensor do. The job ends, too,
if the drill is killed: it has the drill's leash.
"""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from checks.catalogue import Ends, Fault, How
from checks.faults import cause_of, happened
from checks.history import keep_newest
from checks.orders import Orders
from checks.processes import JobProcesses, Role
from checks.results import Struck
from checks.spec import DrillSpec
from checks.strikes import Striker
from engine.core.errors import WeirError
from engine.host.launch import MasterLaunch
from engine.host.locks import held
from engine.host.run_folder import MasterExit
from engine.jobmaster.actions import Outcome
from engine.jobmaster.status import JobStatus
from engine.observe.client import JobClient
from engine.process.resume import Wanted, look, resume
from engine.process.submit import start_detached
from engine.store.failpoints import VARIABLE

CHECKPOINTS_FIRST = 2
"""Completed before the first fault, so that there is state to lose. One more completes between two faults."""
STRIKE_WITHIN_S = 2.0
PATIENCE_S = 180.0
FAULT_PATIENCE_S = 90.0
END_PATIENCE_S = 45.0
LEASH = "leash"
FAILPOINTS = "failpoints"
_POLL_S = 0.03

Say = Callable[[str], None]
Share = Callable[[float], None]


class DrillFailed(WeirError):
    """The drill could not run to its end, because of the job or the machine. It says nothing about the data."""


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


class DrilledJob:
    """Its `struck` blows are in the order of their moments. Their causes are filled in when the job has ended."""

    def __init__(
        self,
        launch: MasterLaunch,
        spec: DrillSpec,
        records: int,
        faults: Sequence[Fault],
        chance: random.Random,
        say: Say,
        share: Share,
    ) -> None:
        self.struck: list[Struck] = []
        self.restarts = 0
        self._leash = Path(launch.store) / LEASH
        self._launch = msgspec.structs.replace(launch, leash=str(self._leash))
        self._spec = spec
        self._records = records
        self._to_come = list(faults)
        self._patience_s = PATIENCE_S + sum(FAULT_PATIENCE_S + fault.lasts_s for fault in faults)
        self._chance = chance
        self._say = say
        self._share = share
        self._client = JobClient(launch.store, launch.name)
        orders = Orders(Path(launch.store) / FAILPOINTS)
        needed = any(blow.at is not None for fault in faults for blow in fault.blows)
        self._processes = JobProcesses(**({VARIABLE: str(orders.folder)} if needed else {}))
        self._striker = Striker(self._processes, chance, orders)
        self._now: _UnderWay | None = None
        self._strike_after = CHECKPOINTS_FIRST  # the newest epoch
        self._strike_at_s: float | None = None
        self._deaths = 0
        self._ended = False

    def to_the_end(self, check_reader: Callable[[], None]) -> None:
        deadline_s = time.monotonic() + self._patience_s + 2 * self._records / self._spec.records_per_s
        log = self._client.folder.log_file
        with held(self._leash):
            with self._processes.marking():
                start_detached(self._launch, "drill")
            self._say("the job starts: Spark, then its slots")
            while (ended := self._end()) is None:
                check_reader()
                if time.monotonic() > deadline_s:
                    raise DrillFailed(f"job {self._spec.job!r} did not finish in time; its log is {log}")
                self._look()
                time.sleep(_POLL_S)
        self._ended = True
        if ended.outcome is not Outcome.FINISHED:
            raise DrillFailed(f"the job {ended.outcome}: {ended.reason}; its log is {log}")
        if self._to_come or self._now is not None:
            names = ", ".join([self._now.fault.name] if self._now else [fault.name for fault in self._to_come])
            raise DrillFailed(
                f"no verdict: the job ended before it had recovered from every fault ({names}): drill it with more "
                "records"
            )
        events = happened(self._launch.store, self._spec.job)
        self.struck = [msgspec.structs.replace(one, cause=cause_of(one, events)) for one in self.struck]
        self._share(1.0)

    def stop(self) -> None:
        """Ends the job if it runs, and whatever is left of it."""
        self._striker.let_go()
        if not self._ended:
            for supervisor in self._processes.of(Role.SUPERVISOR):
                supervisor.send(signal.SIGTERM)
        left = self._processes.end(END_PATIENCE_S)
        if left:
            self._say(f"processes {left} of the job did not end by themselves and were killed")
        self._leash.unlink(missing_ok=True)

    # --- the job ---

    def _end(self) -> MasterExit | None:
        """Returns how the job ended. Resumes one that ended because its supervisor was killed."""
        folder = self._client.folder
        deaths = folder.read_deaths()
        if deaths is not None and deaths.total > self._deaths:
            self._deaths = deaths.total
            self._keep_newest()
            self._say(f"the JobMaster died ({deaths.reason}); the supervisor starts another")
        ended = folder.read_exit()
        if ended is None or ended.outcome is not Outcome.CANCELLED or not self._unsupervised():
            return ended
        found = look(self._client)
        if found.verdict is Wanted.RESUMED and found.launch is not None:
            self._keep_newest()
            with self._processes.marking():
                resume(self._client, found.launch, "drill")
            self._deaths = 0
            self._say("nobody supervises the job any more: resumed, as `weir resume` and Dagster's sensor do")
        return None

    def _keep_newest(self) -> None:
        """Keeps what the JobMaster may not have written down any more. Without it a gap shows at the end."""
        with contextlib.suppress(WeirError, OSError):
            keep_newest(Path(self._launch.store), self._spec.job)

    def _unsupervised(self) -> bool:
        return self._now is not None and any(blow.cause.ends is Ends.START for blow in self._now.fault.blows)

    def _look(self) -> None:
        """Looks at the job once: strikes, lets go, or sees that it has recovered."""
        if self._striker.let_go(due_only=True):
            self._let_go()
        if any(one.role is Role.MASTER for one in self._striker.held):
            return  # it would not answer
        try:
            status = self._client.status()
        except WeirError:
            return  # while a JobMaster is replaced there is no answer
        now_s = time.monotonic()
        self.restarts = max(self.restarts, status.restarts)
        self._share(min(1.0, status.read_rows.get(self._spec.source_uid, 0) / self._records))
        if self._now is None:
            self._begin(status, now_s)
        elif not self._now.complete:
            self._go_on(self._now, status)
        elif self._has_recovered(self._now, status):
            self._recovered(self._now, status, now_s)

    # --- its faults ---

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
        if cause_of(now.struck[-1], happened(self._launch.store, self._spec.job)):
            now.attempt = _attempt(status)
            self._strike(now, status)

    def _strike(self, now: _UnderWay, status: JobStatus) -> None:
        number = len(now.struck)
        struck = self._striker.strike(now.fault, number, status)
        if not now.struck:  # a failpoint is reached some time after the order
            now.since_s = time.monotonic() - max(0.0, time.time() - struck.at_ms / 1000)
        now.struck.append(struck)
        self._say(f"{now.fault.blows[number].how.value}: {struck}")

    def _let_go(self) -> None:
        if self._now is not None and not self._striker.held:
            until_ms = time.time_ns() // 1_000_000
            self._now.struck = [msgspec.structs.replace(one, until_ms=until_ms) for one in self._now.struck]
            self._say("the fault is over: its victim is gone, or goes on")

    def _has_recovered(self, now: _UnderWay, status: JobStatus) -> bool:
        """Says whether records are processed again; after a blow to the store, whether a checkpoint has completed."""
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
