"""What is asked for over HTTP and takes longer than the JobMaster may: upgrades and rehearsals of a new version.

A detached process carries it out: `python -m MODULE STORE JOB DESCRIPTOR`. Only it loads the new version, whose code
may be broken or slow. DESCRIPTOR holds a lock: the JobMaster takes it and the process inherits it, so there is one such
process at a time, and whoever finds the lock free knows that it has ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from engine.core.errors import WeirError
from engine.graph.upgrade_plan import UpgradePlan
from engine.host import locks
from engine.host.asked_version import AskedVersion
from engine.host.launch import MasterLaunch
from engine.host.run_folder import RunFolder
from engine.jobmaster.savepoints import Refusal
from engine.observe.client import JobClient
from engine.process import upgrading
from engine.process.upgrading import NewVersion

BY = "http"
CHECK_S = 300
"""A process that has not loaded and checked the new version by then is ended: nobody waits in front of it."""


# --- in the JobMaster ---


def start_asked(
    module: str,
    launch: MasterLaunch,
    environ: Mapping[str, str],
    lock: Path,
    busy: str,
    note: Callable[[], str | Refusal],
    forget: Callable[[], None],
) -> str | Refusal:
    """Starts the process and returns the id that `note` returns, which writes the request; `forget` takes it back.

    Refuses what was asked for if `note` does, with `busy` if somebody holds the lock, or if no process can be started.
    """
    descriptor = locks.take(lock)
    if descriptor is None:
        return Refusal(busy)
    try:
        noted = note()
        if not isinstance(noted, Refusal):
            _start_process(module, launch, descriptor, environ)
        return noted
    except OSError as error:
        forget()
        return Refusal(f"its process could not be started: {error}")
    finally:
        os.close(descriptor)  # the process has a copy, and with it the lock


def _start_process(module: str, launch: MasterLaunch, lock: int, environ: Mapping[str, str]) -> None:
    """Runs the module, detached. It inherits the lock, and writes to the job's log."""
    folder = RunFolder(launch.store, launch.name)
    with folder.log_file.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", module, launch.store, launch.name, str(lock)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environ),
            pass_fds=[lock],
            start_new_session=True,  # a JobMaster that ends takes its process group along
        )
    threading.Thread(target=process.wait, name=module, daemon=True).start()  # leaves no zombie behind


# --- in the process ---


def client_of_process() -> JobClient:
    """Returns a client of the job that this process was started for."""
    os.set_inheritable(int(sys.argv[3]), False)  # a supervisor that is started here must not hold the lock
    return JobClient(sys.argv[1], sys.argv[2])


@contextmanager
def limited() -> Iterator[None]:
    """Ends the process if the new version's code takes longer than `CHECK_S`, whatever it does."""
    signal.alarm(CHECK_S)
    try:
        yield
    finally:
        signal.alarm(0)


def planned(client: JobClient, asked: AskedVersion) -> tuple[MasterLaunch, UpgradePlan]:
    """Loads the new version. Returns its start, and what would become of the state."""
    version = NewVersion(asked.to, asked.params, asked.parallelism, asked.allow_non_restored_state)
    launch = upgrading.new_launch(client, version)
    return launch, upgrading.plan(client, launch)


def in_words(error: Exception) -> str:
    """Says why it ended. What nobody expects is printed with its traceback, too."""
    if isinstance(error, WeirError):
        return str(error)
    traceback.print_exception(error)
    return f"{type(error).__name__}: {error}"
