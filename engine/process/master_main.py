"""`python -m engine.process.master_main LAUNCH` runs a JobMaster in a process of its own, which is the Spark driver."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from functools import partial

from engine.core.errors import WeirError
from engine.core.paths import JobPaths
from engine.graph.execution_graph import ExecutionGraph
from engine.host.launch import LaunchOptions, MasterLaunch, read_launch
from engine.host.run_folder import FENCED_EXIT_CODE, MasterExit, RunFolder
from engine.jobmaster.actions import Outcome
from engine.process.loading import load
from engine.process.master_process import MasterProcess
from engine.process.upgrade import check_upgrade
from engine.snapshot.epoch_log import EpochLog
from engine.spark.packaging import package
from engine.spark.session import is_local, start_session
from engine.store.directory import DirectoryStore

logger = logging.getLogger("weir.master")

CRASHED_EXIT_CODE = 70
"""A JobMaster ends with it after an unexpected error: it leaves no `MasterExit`, so it is replaced."""

_EXIT_CODES = {Outcome.FINISHED: 0, Outcome.CANCELLED: 0, Outcome.FENCED: FENCED_EXIT_CODE}


def main() -> None:
    launch = read_launch(sys.argv[1])
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    folder = RunFolder(launch.store, launch.name)
    try:
        end = run(launch)
    except (WeirError, ValueError, OSError) as error:
        logger.exception("the JobMaster can't start")
        end = MasterExit(Outcome.FAILED, str(error))
        folder.write_exit(end, launch)
    logger.info("the job is %s: %s", end.outcome, end.reason)
    sys.stdout.flush()
    # Flight servers and Spark's gateway have threads that hang at interpreter exit; the JVM ends with its pipe.
    os._exit(_EXIT_CODES.get(end.outcome, 1))


def run(launch: MasterLaunch) -> MasterExit:
    started_s, parent = time.monotonic(), os.getppid()
    graph = load(launch)
    # Before Spark starts: a job that has changed since its supervisor was started is refused at once.
    epoch_log = EpochLog(DirectoryStore(launch.store), JobPaths(launch.name))
    if dropped := check_upgrade(graph, epoch_log, launch.allow_non_restored_state):
        logger.info("%s", dropped)
    session = start_session(
        launch.name,
        launch.max_slots,
        ExecutionGraph(graph).slots,
        spark_master=launch.spark_master,
        conf=launch.conf,
        py_files=_shipped(launch),
    )
    logger.info("Spark is up after %.1f s", time.monotonic() - started_s)
    process = MasterProcess(
        launch,
        graph,
        partial(load, _of_graph(launch)),
        session,
        module_path=tuple(sys.path) if is_local(launch.spark_master) else (),
        orphaned=lambda: os.getppid() != parent,
    )
    signal.signal(signal.SIGTERM, lambda *_: process.stop())
    try:
        return process.run()
    except WeirError:
        raise
    except Exception:
        logger.exception("the JobMaster can't go on; its supervisor starts another")
        sys.stdout.flush()
        os._exit(CRASHED_EXIT_CODE)


def _of_graph(launch: MasterLaunch) -> LaunchOptions:
    """Returns the options that decide the graph. Slots get these only: Spark's configuration may hold secrets."""
    return LaunchOptions(path=launch.path, name=launch.name, params=launch.params, parallelism=launch.parallelism)


def _shipped(launch: MasterLaunch) -> list[str]:
    """Returns the archives for workers. Those on other machines can't see this checkout, so they get a copy."""
    if launch.py_files or is_local(launch.spark_master):
        return launch.py_files
    return [str(package(launch.path, RunFolder(launch.store, launch.name).folder))]


if __name__ == "__main__":
    main()
