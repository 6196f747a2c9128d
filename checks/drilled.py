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
from pathlib import Path

import msgspec

from checks.catalogue import Fault
from checks.history import keep_newest
from checks.orders import Orders
from checks.processes import JobProcesses, Role
from checks.results import Struck
from checks.spec import DrillSpec
from checks.strikes import Striker
from checks.striking import FaultsInTurn, Say
from engine.core.errors import WeirError
from engine.host.launch import MasterLaunch
from engine.host.locks import held
from engine.host.run_folder import MasterExit
from engine.jobmaster.actions import Outcome
from engine.observe.client import JobClient
from engine.process.resume import Wanted, look, resume
from engine.process.submit import start_detached
from engine.store.failpoints import VARIABLE

CHECKPOINTS_FIRST = 2
"""Completed before the first fault, so that there is state to lose. One more completes between two faults."""
PATIENCE_S = 180.0
FAULT_PATIENCE_S = 90.0
END_PATIENCE_S = 45.0
LEASH = "leash"
FAILPOINTS = "failpoints"
_POLL_S = 0.03

Share = Callable[[float], None]


class DrillFailed(WeirError):
    """The drill could not run to its end, because of the job or the machine. It says nothing about the data."""


class DrilledJob:
    """Its `struck` blows are in the order of their moments. They are complete when the job has ended."""

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
        self._patience_s = PATIENCE_S + sum(FAULT_PATIENCE_S + fault.lasts_s for fault in faults)
        self._say = say
        self._share = share
        self._client = JobClient(launch.store, launch.name)
        orders = Orders(Path(launch.store) / FAILPOINTS)
        needed = any(blow.at is not None for fault in faults for blow in fault.blows)
        self._processes = JobProcesses(**({VARIABLE: str(orders.folder)} if needed else {}))
        self._striker = Striker(self._processes, chance, orders)
        self._faults = FaultsInTurn(
            launch.store, self._client, self._striker, faults, chance, say, CHECKPOINTS_FIRST, spec.parallelism
        )
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
        if left := ", ".join(self._faults.names_left):
            raise DrillFailed(
                f"no verdict: the job ended before it had recovered from every fault ({left}): drill it with more "
                "records"
            )
        self.struck = self._faults.with_causes()
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
        if ended is not None and ended.outcome is Outcome.STOPPED and self._faults.upgrading:
            return None
        if ended is None or ended.outcome is not Outcome.CANCELLED or not self._faults.unsupervised:
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

    def _look(self) -> None:
        status = self._faults.look()
        if status is not None:
            self.restarts = max(self.restarts, status.restarts)
            self._share(min(1.0, status.read_rows.get(self._spec.source_uid, 0) / self._records))
