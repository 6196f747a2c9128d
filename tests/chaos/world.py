"""The job's world: its processes by role, its store, on a small file system of its own if possible, and its starts.

Every process of the job inherits an environment variable, so none can hide: not even one whose parents are dead.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

from checks.processes import JobProcesses, Process, Role, command_of
from engine.core.errors import WeirError
from engine.core.paths import JobPaths
from engine.host.launch import LaunchOptions
from engine.host.run_folder import MasterExit, RunFolder
from engine.jobmaster.actions import Outcome
from engine.process.submit import plan_launch, start_detached
from engine.snapshot.epoch_log import EpochLog
from engine.store.directory import DirectoryStore

JOB = "chaos"
STORE_MB = 96
HEARTBEAT_TIMEOUT_S = 3.0


class World:
    """Starts the job again whenever nobody supervises it any more, as Dagster's sensor or a person would."""

    def __init__(self, folder: Path, rows: int, rate: int) -> None:
        self.store = folder / "store"
        self.slow = folder / "slow"
        self._options = LaunchOptions(
            path="tests.chaos.job:chaos",
            params={"rows": str(rows), "rate": str(rate)},
            parallelism=3,
            max_slots=4,
            heartbeat_timeout_s=HEARTBEAT_TIMEOUT_S,
        )
        self._processes = JobProcesses()
        self._marking = contextlib.ExitStack()
        self._run_folder = RunFolder(self.store, JOB)
        self.starts = 0

    def __enter__(self) -> World:
        self.store.mkdir(parents=True, mode=0o700)
        if can_mount():
            _run("mount", "-t", "tmpfs", "-o", f"size={STORE_MB}m,mode=0700", "weir-test", str(self.store))
        (self.store / JOB).mkdir(mode=0o700)
        self._marking.enter_context(self._processes.marking())
        os.environ["WEIR_CHAOS_SLOW"] = str(self.slow)
        slow = str(Path(__file__).parent / "slow")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [slow, os.environ.get("PYTHONPATH", "")]))
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.processes():
            process.send(signal.SIGKILL)
        self._marking.close()
        for folder in (self.store / JOB, self.store):
            if os.path.ismount(folder):
                _run("umount", "-l", str(folder))

    # --- processes ---

    def processes(self) -> list[Process]:
        return self._processes.all()

    def of(self, role: Role) -> list[Process]:
        return self._processes.of(role)

    # --- the job ---

    def keep_started(self) -> None:
        """Starts the job if it should run and nobody supervises it."""
        reap()
        end = self.ended()
        if self.of(Role.SUPERVISOR) or (end is not None and end.outcome is not Outcome.CANCELLED):
            return
        try:
            start_detached(plan_launch(self._options, self.store), "chaos")
        except (WeirError, OSError) as error:  # the old JobMaster still answers, or the store is broken: try again
            print(f"      can't be started yet: {error}", flush=True)
            return
        self.starts += 1

    def ended(self) -> MasterExit | None:
        return self._run_folder.read_exit()

    def epoch(self) -> int:
        """Returns the newest published epoch, 0 if there is none."""
        try:
            last = EpochLog(DirectoryStore(self.store), JobPaths(JOB)).last()
        except WeirError:
            return 0
        return 0 if last is None or last.newest is None else last.newest.epoch

    def table(self, name: str) -> Path:
        return self.store / JobPaths(JOB).table(name)

    def log(self) -> str:
        return self._run_folder.log_file.read_text(errors="replace")

    def wait_until_empty(self, patience_s: float) -> list[str]:
        """Returns the processes that are left after this time."""
        deadline = time.monotonic() + patience_s
        while (left := self.processes()) and time.monotonic() < deadline:
            reap()
            time.sleep(0.2)
        return [f"{process.pid} {' '.join(command_of(process.pid))[:150]}" for process in left]


def can_mount() -> bool:
    """True if the store can be a file system of its own, which can then be full or read-only."""
    return os.geteuid() == 0


def reap() -> None:
    """Buries children of this process that have ended: supervisors are started detached, and nobody waits for them."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _run(*command: str) -> None:
    subprocess.run(command, check=True)
