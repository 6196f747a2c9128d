"""`python -m engine.process.master_main LAUNCH`: a JobMaster in a process of its own, which is the Spark driver."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

import msgspec

from engine.core.errors import WeirError
from engine.graph.execution_graph import ExecutionGraph
from engine.host.run_folder import FENCED_EXIT_CODE, MasterExit, MasterLaunch, RunFolder
from engine.jobmaster.actions import Outcome
from engine.process.loading import JobSpec, load
from engine.process.master_process import MasterProcess
from engine.spark.packaging import package
from engine.spark.session import is_local, start_session

log = logging.getLogger("weir.master")

_EXIT_CODES = {Outcome.FINISHED.value: 0, Outcome.CANCELLED.value: 0, Outcome.FENCED.value: FENCED_EXIT_CODE}


def main() -> None:
    launch = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=MasterLaunch)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    folder = RunFolder(launch.store, launch.name)
    try:
        end = run(launch)
    except (WeirError, ValueError, OSError) as error:
        log.exception("the JobMaster can't start")
        end = MasterExit(Outcome.FAILED.value, str(error))
        folder.write_exit(end, launch)
    log.info("the job is %s: %s", end.outcome, end.reason)
    sys.stdout.flush()
    # Flight servers and Spark's gateway have threads that hang at interpreter exit; the JVM ends with our pipe.
    os._exit(_EXIT_CODES.get(end.outcome, 1))


def run(launch: MasterLaunch) -> MasterExit:
    started_s, parent = time.monotonic(), os.getppid()
    spec = JobSpec.of(launch)
    graph = load(spec)
    local = is_local(launch.master)
    session = start_session(
        launch.name,
        launch.max_slots,
        ExecutionGraph(graph).slots,
        master=launch.master,
        conf=launch.conf,
        py_files=_shipped(launch),
    )
    log.info("Spark is up after %.1f s", time.monotonic() - started_s)
    process = MasterProcess(
        launch,
        graph,
        partial(load, spec),
        session,
        path=tuple(sys.path) if local else (),
        orphaned=lambda: os.getppid() != parent,
    )
    signal.signal(signal.SIGTERM, lambda *_: process.stop())
    return process.run()


def _shipped(launch: MasterLaunch) -> list[str]:
    """Workers elsewhere can't see this checkout: unless they are given something, they get the job as it is here."""
    if launch.py_files or is_local(launch.master):
        return launch.py_files
    return [str(package(launch.path, RunFolder(launch.store, launch.name).folder))]


if __name__ == "__main__":
    main()
