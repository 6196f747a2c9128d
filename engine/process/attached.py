"""Runs a job inside a user's own Spark application (script, notebook, `spark-submit`). Its driver is the JobMaster.

The graph travels inside Spark's task closure, functions of a notebook included. The driver has no supervisor: when it
ends the job does, and the next run of the script goes on from the last epoch.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import secrets
import sys
import threading
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from engine.connectors.table import TableSink
from engine.core.authors import short_line
from engine.core.errors import JobFailed, RaisedInSlot, SparkLost, WeirError, raised_by
from engine.core.paths import JobPaths
from engine.graph.execution_graph import ExecutionGraph
from engine.graph.scalable import ScalableJob
from engine.host.descriptors import raise_descriptor_limit
from engine.host.folders import check_store
from engine.host.launch import MasterLaunch
from engine.host.run_folder import MasterExit, RunFolder
from engine.jobmaster.actions import Outcome
from engine.jobmaster.events import AnyEvent, AttemptFailed
from engine.observe.client import JobClient
from engine.process.master_process import MasterProcess
from engine.process.sending import check_sendable
from engine.process.upgrade import check_inputs, check_places, check_upgrade, for_this_start, has_begun
from engine.protocol.scaling import Scaling
from engine.snapshot.epoch_log import EpochLog
from engine.spark.session import is_local, spark_master_of
from engine.store.opening import address_of, open_store, shown

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("weir.master")


@dataclass(frozen=True)
class JobResult:
    """How a job ended: its outcome and why, its newest epoch, and the folder of each table by its sink's uid."""

    outcome: Outcome
    reason: str
    epoch: int
    tables: dict[str, str]


class AttachedJob:
    """A job that runs beside the code that started it. `client` watches and manages it, as `weir` does."""

    def __init__(
        self,
        session: SparkSession,
        job: ScalableJob,
        store: str | Path,
        *,
        allow_non_restored_state: bool = False,
        allow_shared_store: bool = False,
    ) -> None:
        graph = job.at(Scaling())
        self.client = JobClient(address_of(store), graph.name)
        if self.client.alive() or self.client.looked_after() is not None:
            raise WeirError(f"job {graph.name!r} is running already: cancel it, or execute under another name")
        check_store(self.client.store, graph.name, allow_shared=allow_shared_store)
        epoch_log = EpochLog(open_store(self.client.store), JobPaths(graph.name))
        begun = has_begun(epoch_log)
        if dropped := check_upgrade(graph, epoch_log, allow_non_restored_state):
            print(dropped)
        check_sendable(graph)
        if graph.no_checkpoints:
            print(f"weir: {graph.no_checkpoints}", file=sys.stderr)
        check_places(graph)
        check_inputs(graph, self.client.store)
        raise_descriptor_limit()
        slots = ExecutionGraph(graph).slots
        check_room(session, slots)
        launch = MasterLaunch(
            path="",
            name=graph.name,
            store=self.client.store,
            max_slots=session.sparkContext.defaultParallelism,
            spark_master=spark_master_of(session),
            id=secrets.token_hex(8),
            allow_non_restored_state=allow_non_restored_state,
            allow_shared_store=allow_shared_store,
        )
        self._launch = launch = for_this_start(launch)
        self._graph = graph
        self._folder = RunFolder(launch.store, launch.name)
        self._folder.prepare(private=not allow_shared_store)
        self._folder.begin(launch)
        module_path = tuple(sys.path) if is_local(launch.spark_master) else ()
        self._process = MasterProcess(
            launch, job, lambda: job, session, module_path=module_path, begun=begun, on_event=self._show_failure
        )
        self._end: MasterExit | None = None
        self._thread = threading.Thread(target=self._run, name=f"weir {graph.name}", daemon=True)
        self._thread.start()
        atexit.register(self._stop)

    def _run(self) -> None:
        try:
            self._end = self._process.run()
        except Exception as error:
            logger.exception("the JobMaster of %s can't go on", self.client.name)
            reason = str(error) if isinstance(error, WeirError) else f"{type(error).__name__}: {error}"
            if isinstance(error, SparkLost):
                reason += ". Start the script again: the job goes on from its last epoch"
            self._end = MasterExit(Outcome.FAILED, reason, raised_by(error))
            with contextlib.suppress(OSError):  # the store may be what fails
                self._folder.write_exit(self._end, self._launch)

    def _show_failure(self, event: AnyEvent) -> None:
        """Prints each failure of an attempt: a job that restarts again and again should not look as if it ran."""
        if isinstance(event, AttemptFailed):
            print(f"weir: attempt {event.attempt} of {self.client.name} failed: {event.detail}", file=sys.stderr)

    def wait(self) -> MasterExit:
        """Waits until the job has ended; raises `JobFailed` if it failed. Ctrl-C cancels it."""
        try:
            while self._thread.is_alive():
                self._thread.join(0.2)
        except KeyboardInterrupt:
            self.cancel()
            raise
        assert self._end is not None
        if self._end.outcome in (Outcome.FAILED, Outcome.FENCED):
            raised = self._end.raised
            at = f" ({short_line(raised.line)})" if raised is not None and raised.line else ""
            failed = JobFailed(f"job {self.client.name!r} {self._end.outcome}: {self._end.reason}{at}")
            raise failed from (RaisedInSlot(raised) if raised is not None else None)
        return self._end

    def result(self) -> JobResult:
        """Waits as `wait` does, and returns what came of the job."""
        end = self.wait()
        paths = JobPaths(self.client.name)
        store = open_store(self.client.store)
        last = EpochLog(store, paths).last()
        tables = {
            uid: shown(*sink.place(store, paths)) for uid, sink in self._graph.sinks if isinstance(sink, TableSink)
        }
        return JobResult(end.outcome, end.reason, last.newest.epoch if last and last.newest else 0, tables)

    def cancel(self) -> None:
        """Ends the job. Its last epoch stays; the next run goes on from there."""
        self._stop()

    def _stop(self) -> None:
        atexit.unregister(self._stop)
        self._process.stop()
        self._thread.join()


def check_room(session: SparkSession, slots: int) -> None:
    """Raises an error if Spark has too few cores, since the job would wait for ever; warns if it takes all of them."""
    room, spark_master = session.sparkContext.defaultParallelism, spark_master_of(session)
    more = f"local[{slots + 1}]" if is_local(spark_master) else f"{slots + 1} cores"
    if slots > room:
        raise WeirError(
            f"the job needs {slots} slots, but this Spark session ({spark_master}) runs {room} tasks at a time: "
            f"start it with {more}, or lower the job's parallelism"
        )
    if slots == room:
        warnings.warn(
            f"the job's {slots} slots take all of this Spark session ({spark_master}): other queries wait until it "
            f"ends; {more} would leave room for them",
            stacklevel=4,
        )
