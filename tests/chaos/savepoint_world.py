"""The world of the savepoints' vandal: a job that `weir submit` starts, in a directory or in a bucket of MinIO."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from checks.processes import JobProcesses, Process, Role, command_of, process
from engine.connectors.table import read_table
from engine.core.errors import WeirError
from engine.core.paths import JobPaths
from engine.host.run_folder import MasterExit
from engine.observe.client import JobClient
from engine.snapshot.epoch_log import EpochLog
from engine.store.opening import open_store
from tests.chaos.gate import BucketGate, DirectoryGate, Gate
from tests.chaos.world import JOB, can_mount, reap
from tests.servers import minio
from tests.servers.faulty import FaultyProxy

STORE_MB = 512
AT_ONCE = 1_000_000
"""The rate of a job that shall read all that is left as fast as it can."""
INTERVAL = "1 s"
BALLAST_KB = 200
"""Each of the 50 keys keeps so much: a savepoint has 10 MB."""
RATE = 150
WEIR = (str(Path(sys.executable).parent / "weir"),)
PATIENCE_S = 240.0


@dataclass(frozen=True)
class Said:
    code: int
    text: str

    @property
    def short(self) -> str:
        return " ".join(self.text.split())[-300:]


class SavepointWorld:
    """`uri` is the store's address. The server of a bucket is reached through a proxy."""

    def __init__(self, folder: Path, rows: int, bucket: bool) -> None:
        self.folder = folder
        self.rows = rows
        self.bucket = bucket
        self.kind = "bucket" if bucket else "directory"
        self.store = folder / "store"
        self.uri = f"s3://weir/{folder.name}" if bucket else str(self.store)
        self.gate: Gate
        self._processes = JobProcesses()
        self._open = contextlib.ExitStack()
        self._environ: dict[str, str] = {}
        self._last_start = 0.0

    def __enter__(self) -> SavepointWorld:
        self.store.mkdir(parents=True, mode=0o700)
        standing = str(Path(__file__).parent / "standing")
        self._set("PYTHONPATH", os.pathsep.join(filter(None, [standing, os.environ.get("PYTHONPATH", "")])))
        self._set("WEIR_STATE", str(self.folder / "state"))
        gate_file = self.folder / "gate"
        gate_file.mkdir()
        if self.bucket:
            server = self._open.enter_context(minio.running(self.folder))
            for name, value in server.environ.items():
                self._set(name, value)
            proxy = FaultyProxy(server.endpoint)
            self._set("AWS_ENDPOINT_URL", self._open.enter_context(proxy.running()))
            self.gate = BucketGate(proxy)
            self.server = ServerProcess(server.endpoint)
            self._open.callback(self.server.end)
        else:
            if can_mount():
                options = f"size={STORE_MB}m,mode=0700"
                subprocess.run(["mount", "-t", "tmpfs", "-o", options, "weir-test", str(self.store)], check=True)
            (self.store / JOB).mkdir(mode=0o700)
            self.gate = DirectoryGate(gate_file / "call", self.store / JOB)
            self._environ["WEIR_CHAOS_GATE"] = str(self.gate.file)
        self._open.enter_context(self._processes.marking())
        return self

    def _set(self, name: str, value: str) -> None:
        before = os.environ.get(name)
        os.environ[name] = value
        self._open.callback(os.environ.pop if before is None else os.environ.__setitem__, name, before or "")

    def __exit__(self, *error: object) -> None:
        self.gate.lift()
        for one in self.processes():
            one.send(signal.SIGKILL)
        self._open.close()
        for folder in (self.store / JOB, self.store):
            while os.path.ismount(folder):
                subprocess.run(["umount", "-l", str(folder)], check=True)
        reap()

    # --- processes ---

    def processes(self) -> list[Process]:
        """Returns the processes of the job, and the commands about it that run."""
        return self._processes.all()

    def of(self, role: Role) -> list[Process]:
        return self._processes.of(role)

    def wait_until_empty(self, patience_s: float) -> list[str]:
        deadline = time.monotonic() + patience_s
        while (left := self.processes()) and time.monotonic() < deadline:
            reap()
            time.sleep(0.2)
        return [f"{one.pid} {' '.join(command_of(one.pid))[:150]}" for one in left]

    # --- the commands ---

    def begin(self, *words: str) -> subprocess.Popen[str]:
        """Starts a command of `weir`. Its output goes to a file, so that it never waits for a reader."""
        out = (self.folder / f"said-{time.monotonic_ns()}").open("w+")
        environ = os.environ | self._environ | {"COLUMNS": "300"}
        command = [*WEIR, *words, "--store", self.uri]
        begun = subprocess.Popen(
            command,
            stdout=out,
            stderr=subprocess.STDOUT,
            text=True,
            env=environ,
            cwd=Path.cwd(),
            stdin=subprocess.DEVNULL,
        )
        begun.stdout = out
        return begun

    @staticmethod
    def said(begun: subprocess.Popen[str], patience_s: float = PATIENCE_S) -> Said:
        """Waits for the end of a command. One that does not end is killed, and has the code 999."""
        try:
            code = begun.wait(patience_s)
        except subprocess.TimeoutExpired:
            begun.kill()
            begun.wait()
            code = 999
        assert begun.stdout is not None
        begun.stdout.seek(0)
        with begun.stdout as out:
            return Said(code, out.read())

    def weir(self, *words: str, patience_s: float = PATIENCE_S) -> Said:
        return self.said(self.begin(*words), patience_s)

    def submitting(self, name: str = JOB, *more: str, rate: int = RATE) -> tuple[str, ...]:
        """Returns the command that submits the job under this name."""
        params = {"rows": self.rows, "rate": rate, "ballast_kb": BALLAST_KB, "interval": INTERVAL}
        flags = [word for key, value in params.items() for word in ("--param", f"{key}={value}")]
        size = ["--parallelism", "3", "--max-slots", "4", "--heartbeat-timeout", "3"]
        return ("submit", "tests.chaos.job:chaos", "--name", name, *flags, *size, *more)

    def submit(self, rate: int = RATE) -> Said:
        return self.weir(*self.submitting(rate=rate))

    # --- the job ---

    def client(self, name: str = JOB) -> JobClient:
        return JobClient(self.uri, name)

    def ended(self, name: str = JOB) -> MasterExit | None:
        return self.client(name).ended()

    def epoch(self) -> int:
        try:
            last = EpochLog(open_store(self.uri), JobPaths(JOB)).last()
        except WeirError:
            return 0
        return 0 if last is None or last.newest is None else last.newest.epoch

    def keep_started(self, say: Callable[[str], None]) -> None:
        """Submits the job again if its supervisor is gone and it has not ended by itself, as a person would."""
        reap()
        if self.of(Role.SUPERVISOR) or self.ended() is not None or time.monotonic() < self._last_start + 5:
            return
        self._last_start = time.monotonic()
        said = self.submit()
        say(f"      submitted again: {said.short[-160:]}")

    def table(self, name: str, job: str = JOB) -> pa.Table | None:
        try:
            return read_table(open_store(self.uri), JobPaths(job).table(name))
        except FileNotFoundError:
            return None

    def log(self) -> str:
        return self.client().folder.log_file.read_text(errors="replace")

    # --- savepoints ---

    def savepoint_files(self, name: str = "") -> list[str]:
        """Returns all files in the folder of a savepoint, or of all, hidden ones included, relative to that folder."""
        below = JobPaths(JOB).savepoint(name) if name else JobPaths(JOB).savepoints()
        if self.bucket:
            return [path.removeprefix(f"{below}/") for path in open_store(self.uri).list(below)]
        base = self.store / below
        return sorted(str(file.relative_to(base)) for file in base.rglob("*") if file.is_file())

    def made(self) -> list[str]:
        """Returns the names of the savepoints that exist."""
        files = self.savepoint_files()
        return [file.removesuffix("/savepoint.json") for file in files if file.endswith("/savepoint.json")]

    def gc(self, *flags: str) -> dict[str, Any]:
        said = self.weir("gc", JOB, "--json", *flags)
        lines = [line for line in said.text.splitlines() if line.startswith("[")]
        assert lines, f"weir gc said: {said.short}"
        found: dict[str, Any] = json.loads(lines[-1])[0]
        return found


class ServerProcess:
    """MinIO's process, which can be killed and started again with the same address and data."""

    def __init__(self, endpoint: str) -> None:
        address = endpoint.removeprefix("http://")
        pids = [int(folder.name) for folder in Path("/proc").glob("[0-9]*") if address in command_of(int(folder.name))]
        self._pid = pids[0]
        self._command = [word for word in command_of(self._pid) if word]
        entries = Path(f"/proc/{self._pid}/environ").read_text().split("\0")
        self._environ = dict(entry.split("=", 1) for entry in entries if "=" in entry)
        self._mine: subprocess.Popen[bytes] | None = None

    def send(self, number: signal.Signals) -> None:
        found = process(self._pid)
        if found is not None:
            found.send(number)

    def restart(self) -> None:
        self._mine = subprocess.Popen(
            self._command, env=self._environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._pid = self._mine.pid

    def end(self) -> None:
        if self._mine is not None:
            self._mine.kill()
            self._mine.wait()
