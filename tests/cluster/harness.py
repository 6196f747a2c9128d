"""Runs a job on real local Spark, through the real supervisor, so that tests can break it on the way."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from engine.connectors.table import read_table
from engine.core.errors import WeirError
from engine.core.paths import JobPaths
from engine.host.launch import LaunchOptions, MasterLaunch
from engine.host.run_folder import MasterExit, RunFolder
from engine.jobmaster.status import JobStatus
from engine.observe.client import JobClient
from engine.process.supervisor import Supervisor
from engine.store.opening import open_store

PATIENCE_S = 300


class RunningJob:
    """A running job as a context manager, which checks at its end that no process of the job is left.

    Keywords that are fields of `LaunchOptions`, and `id`, are options of the start; all others are job parameters.
    """

    def __init__(self, store: Path | str, function: str, *, parallelism: int = 2, **params: Any) -> None:
        options = {name: params.pop(name) for name in (*LaunchOptions.__struct_fields__, "id") if name in params}
        self.launch = MasterLaunch(
            path=f"tests.cluster.jobs:{function}",
            name=function,
            params={name: str(value) for name, value in params.items()},
            parallelism=parallelism,
            store=str(store),
            max_slots=4,
            **options,
        )
        self.client = JobClient(str(store), function)
        self.crashes: list[str] = []
        self.supervisor = Supervisor(self.launch, self.crashes.append)
        self.ended: MasterExit | None = None
        self._sessions: set[int] = set()

    def __enter__(self) -> RunningJob:
        self.supervisor.start()
        self._remember_session()
        return self

    def __exit__(self, *error: object) -> None:
        self.supervisor.stop()
        left = self.processes()
        deadline = time.monotonic() + 120
        while left and time.monotonic() < deadline:
            time.sleep(0.1)
            left = self.processes()
        if error[0] is not None:
            print(self.log()[-6000:])
        assert not left, f"processes outlived the job: {left}"

    def processes(self) -> list[str]:
        """Returns every process of the JobMasters' sessions: JVM, worker daemon, slots."""
        return [line for session in self._sessions for line in session_processes(session)]

    def _remember_session(self) -> None:
        for pid in (self.supervisor.master_pid, self.supervisor.standby_pid):
            if pid is not None:
                self._sessions.add(pid)

    def wait_for(self, what: str, condition: Callable[[JobStatus], Any]) -> JobStatus:
        """Polls the job's status until the condition holds; fails if the job ends or it takes too long."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            self._poll()
            assert self.ended is None, f"waiting for {what}, but the job ended: {self.ended}"
            try:
                status = self.client.status()
            except WeirError:
                time.sleep(0.05)
                continue
            if condition(status):
                return status
            time.sleep(0.03)
        raise AssertionError(f"{what} did not happen in {PATIENCE_S} s\n{self.log()[-4000:]}")

    def wait_until_ended(self) -> MasterExit:
        deadline = time.monotonic() + PATIENCE_S
        while self.ended is None:
            assert time.monotonic() < deadline, f"the job did not end in {PATIENCE_S} s\n{self.log()[-4000:]}"
            self._poll()
            time.sleep(0.05)
        return self.ended

    def _poll(self) -> None:
        if self.ended is None:
            self.ended = self.supervisor.poll()
            self._remember_session()

    def completed(self, count: int) -> JobStatus:
        return self.wait_for(f"{count} checkpoints", lambda s: s.checkpoints.completed >= count)

    def table(self, name: str) -> pa.Table:
        return read_table(open_store(self.launch.store), JobPaths(self.launch.name).table(name))

    def log(self) -> str:
        return RunFolder(self.launch.store, self.launch.name).log_file.read_text(errors="replace")


def session_processes(session: int) -> list[str]:
    """Returns the processes whose session leader is or was this pid, without zombies."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:120]
        except OSError:
            continue
        state, its_session = fields[0], int(fields[3])
        if its_session == session and state != "Z" and int(folder.name) != os.getpid():
            found.append(f"{folder.name} {command}")
    return found
