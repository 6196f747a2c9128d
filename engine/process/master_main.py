"""`python -m engine.process.master_main LAUNCH ID [standby]` runs a JobMaster in its own process, the Spark driver.

A standby waits for the order on its standard input before it claims the job.

`ID` names the start that this JobMaster belongs to. If the file LAUNCH is of a later start, the JobMaster ends at once.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import NoReturn

from engine.core.errors import SparkLost, fault_of, raised_by
from engine.core.paths import JobPaths
from engine.graph.execution_graph import ExecutionGraph
from engine.host.descriptors import raise_descriptor_limit
from engine.host.launch import LaunchOptions, MasterLaunch, read_launch
from engine.host.lifeline import Lifeline
from engine.host.run_folder import MasterExit, RunFolder
from engine.host.takeover import Order
from engine.jobmaster.actions import Outcome
from engine.process.child import STANDBY
from engine.process.kept import load_kept
from engine.process.master_process import MasterProcess
from engine.process.rehearsal_request import request_rehearsal
from engine.process.upgrade import check_start, has_begun
from engine.process.upgrade_request import request_upgrade
from engine.protocol.failures import Fault
from engine.protocol.remedy import FENCED_EXIT_CODE, Remedy, Stage, Where, remedy
from engine.snapshot.epoch_log import EpochLog
from engine.spark.code import check_code, keep_code, kept_code
from engine.spark.inputs import runs_queries
from engine.spark.packaging import package
from engine.spark.scratch import private_scratch
from engine.spark.session import is_local, kill_java, start_session
from engine.store.opening import open_store

logger = logging.getLogger("weir.master")

CRASHED_EXIT_CODE = 70
"""A JobMaster ends with it if another one may do better: it leaves no `MasterExit`, so it is replaced."""

ORPHANED_EVERY_S = 0.5

_EXIT_CODES = {Outcome.FINISHED: 0, Outcome.STOPPED: 0, Outcome.CANCELLED: 0, Outcome.FENCED: FENCED_EXIT_CODE}


def main() -> None:
    lifeline = Lifeline.inherited()
    order = Order.inherited() if sys.argv[3:] == [STANDBY] else None
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    raise_descriptor_limit()
    try:
        launch = read_launch(sys.argv[1])
        folder = RunFolder(launch.store, launch.name)
        with private_scratch() as scratch:
            end = run(launch, lifeline, scratch, order) if launch.id == sys.argv[2] else _LATER_START
    except BaseException as error:
        stands_by = order is not None and not order.given  # the job goes on without it
        if stands_by or remedy(Where.JOBMASTER, fault_of(error)) is not Remedy.END:
            crash(lifeline, error)
        logger.exception("the job can't run")
        end = MasterExit(Outcome.FAILED, str(error), raised_by(error))
        lifeline.last_words(fault_of(error), end.reason)
        folder.write_exit(end, launch)
    if order is not None and not order.given:
        lifeline.last_words(Fault.OUTSIDE, end.reason)
    if end.outcome is Outcome.FENCED:
        logger.warning("this JobMaster ends: %s; it can publish and commit nothing any more", end.reason)
    else:
        logger.info("the job is %s: %s", end.outcome, end.reason)
    sys.stdout.flush()
    # Flight servers and Spark's gateway have threads that hang at interpreter exit; the JVM ends with its pipe.
    os._exit(_EXIT_CODES.get(end.outcome, 1))


_LATER_START = MasterExit(Outcome.FENCED, "the run folder belongs to a later start of the job")


def crash(lifeline: Lifeline, error: BaseException) -> NoReturn:
    """Ends this process at once, from any thread, so that its supervisor starts another."""
    try:
        logger.error("the JobMaster can't go on; its supervisor starts another", exc_info=error)
        lifeline.last_words(fault_of(error), f"{type(error).__name__}: {error}")
        if isinstance(error, SparkLost):
            kill_java()
        sys.stdout.flush()
    finally:
        os._exit(CRASHED_EXIT_CODE)


def run(launch: MasterLaunch, lifeline: Lifeline, scratch: Path, order: Order | None = None) -> MasterExit:
    started_s, parent = time.monotonic(), os.getppid()
    environ = dict(os.environ)  # as it is before Spark: an upgrade's process must not find the paths of this version
    lifeline.show(Stage.LOADING)
    threading.Thread(target=_end_if_orphaned, args=(lifeline, parent), daemon=True).start()
    folder = RunFolder(launch.store, launch.name)
    folder.hear_elsewhere(launch)
    if not folder.belongs_to(launch):
        return _LATER_START
    check_code(launch)
    kept = kept_code(launch) if is_local(launch.spark_master) else ""
    job = load_kept(launch, kept)
    keep_code(launch)
    graph = job.at(launch.scaling)
    # Before Spark starts: a job that has changed since its supervisor was started is refused at once.
    epoch_log = EpochLog(open_store(launch.store), JobPaths(launch.name))
    begun = has_begun(epoch_log) or folder.has_begun(launch)
    if dropped := check_start(graph, epoch_log, launch):
        logger.info("%s", dropped)
    lifeline.show(Stage.STARTING)
    session = start_session(
        launch.name,
        launch.max_slots,
        ExecutionGraph(graph).slots,
        scratch=scratch,
        spark_master=launch.spark_master,
        conf=launch.conf,
        py_files=_shipped(launch),
        queries=runs_queries(graph),
    )
    logger.info("Spark is up after %.1f s", time.monotonic() - started_s)
    process = MasterProcess(
        launch,
        job,
        partial(load_kept, _of_graph(launch), kept_code(launch) if is_local(launch.spark_master) else ""),
        session,
        module_path=tuple(sys.path) if is_local(launch.spark_master) else (),
        orphaned=lambda: lifeline.broken or os.getppid() != parent,
        lifeline=lifeline,
        begun=begun,
        spark_lost=lambda error: crash(lifeline, error),
        told_to_take_over=None if order is None else lambda: order.given,
        start_upgrade=partial(request_upgrade, launch, environ),
        start_rehearsal=partial(request_rehearsal, launch, environ),
    )
    signal.signal(signal.SIGTERM, lambda *_: process.stop())
    return process.run()


def _end_if_orphaned(lifeline: Lifeline, parent: int) -> None:
    """Ends this process if its supervisor dies before the job runs; afterwards the deciding thread cancels the job."""
    while lifeline.stage in (Stage.LOADING, Stage.STARTING, Stage.PREPARING):
        if os.getppid() != parent:
            kill_java()
            os._exit(CRASHED_EXIT_CODE)
        time.sleep(ORPHANED_EVERY_S)


def _of_graph(launch: MasterLaunch) -> LaunchOptions:
    """Returns the options that decide the graph. Slots get these only: Spark's configuration may hold secrets."""
    return LaunchOptions(
        path=launch.path,
        name=launch.name,
        params=launch.params,
        parallelism=launch.parallelism,
        code=launch.code,
        own_tables=launch.own_tables,
    )


def _shipped(launch: MasterLaunch) -> list[str]:
    """Returns the archives for workers. Those on other machines can't see this checkout, so they get a copy."""
    if launch.py_files or is_local(launch.spark_master):
        return launch.py_files
    return [str(package(launch.path, RunFolder(launch.store, launch.name).folder))]


if __name__ == "__main__":
    main()
