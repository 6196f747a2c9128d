"""Runs a Weir job for one measurement: its JobMaster process, its REST interface, its history."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import msgspec

from benchmarks.processes import alive, tree
from engine.host.launch import MasterLaunch
from engine.host.run_folder import RunFolder
from engine.jobmaster.events import AnyEvent, AttemptFailed, Completed, Running, Triggered
from engine.jobmaster.status import JobStatus
from engine.observe.client import JobClient
from engine.observe.history import History
from engine.observe.rescales import RescaleRecord

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "benchmarks" / "work" / str(os.getpid())
"""The folder of all files of a run, on the same disk for every peer. It is removed at the end."""

PARALLELISM = 2


def fresh_folder(name: str) -> Path:
    folder = WORK / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


class WeirJob:
    """Runs a job within `with WeirJob("benchmarks.jobs:window") as job:`; the end of the block cancels the job."""

    def __init__(
        self,
        path: str,
        parallelism: int = PARALLELISM,
        max_slots: int | None = None,
        store: str | None = None,
        **params: Any,
    ) -> None:
        self.name = path.partition(":")[2]
        self.store = store or str(fresh_folder(f"weir-{self.name}"))
        self._launch = MasterLaunch(
            path=path,
            name=self.name,
            params={name: str(value) for name, value in params.items()},
            parallelism=parallelism,
            store=self.store,
            max_slots=max_slots or parallelism,
        )
        self._run = RunFolder(self.store, self.name)
        self._seen_pids: set[int] = set()

    def __enter__(self) -> Self:
        self._run.prepare()
        launch = str(self._run.write_launch(self._launch))
        command = [sys.executable, "-m", "engine.process.master_main", launch, self._launch.id]
        with self._run.log_file.open("wb") as output:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        try:
            self.wait_for("its JobMaster answers", lambda: self._run.read_address() is not None)
            address = self._run.read_address()
            assert address is not None
            headers = {"authorization": f"Bearer {address.token}"}
            self._client = httpx.Client(base_url=address.url, headers=headers, timeout=15)
            self.wait_for("it runs", lambda: self.status().running)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # --- REST ---

    def status(self) -> JobStatus:
        return msgspec.json.decode(self._client.get("/job").raise_for_status().content, type=JobStatus)

    def trigger(self) -> None:
        self._client.post("/checkpoints").raise_for_status()

    def rescale(self, parallelism: int) -> RescaleRecord:
        """Gives the job another parallelism, and returns what came of it."""
        client = JobClient(self.store, self.name)
        started = client.rescale(parallelism)
        if started is None:
            raise RuntimeError(f"the job {self.name} runs at parallelism {parallelism} already")
        return client.wait_for_rescale(started, 120)

    def slot_pids(self) -> list[int]:
        return [slot.pid for slot in sorted(self.status().slots, key=lambda slot: slot.slot or 0)]

    # --- history ---

    def events(self) -> list[AnyEvent]:
        """Returns all events so far, without a line that is still being written."""
        return list(History(self.store, self.name).events())

    def checkpoints(self) -> list[Checkpoint]:
        """Returns the completed checkpoints: when each was triggered, and the rows that the source had read by then."""
        triggered: dict[int, int] = {}
        found = []
        for event in self.events():
            if isinstance(event, Triggered):
                triggered[event.checkpoint] = event.at_ms
            elif isinstance(event, Completed):
                found.append(Checkpoint(triggered[event.checkpoint], event))
        return found

    def wait_for(self, what: str, happened: Callable[[], bool], patience_s: float = 120, poll_s: float = 0.05) -> None:
        deadline = time.monotonic() + patience_s
        while not happened():
            if self._process.poll() is not None:
                raise RuntimeError(f"the job {self.name} ended before {what}:\n{self._tail()}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"the job {self.name}: waited {patience_s:.0f} s until {what}:\n{self._tail()}")
            time.sleep(poll_s)
        self._seen_pids |= set(self.pids())

    def steady_rate(self, seconds: float) -> float:
        """Measures from the newest checkpoint on: returns the rows per second until one that is complete by then."""
        first = self.checkpoints()[-1]
        time.sleep(seconds)
        self.wait_for("another checkpoint", lambda: self.checkpoints()[-1].number > first.number)
        last = self.checkpoints()[-1]
        self.check()
        return rate_between(first, last)

    def seconds_to_its_end(self, patience_s: float = 240) -> float:
        """Waits for the end of a bounded job, and returns how long it ran, without its start."""
        self.wait_until_ended(patience_s)
        self.check()
        happened = self.events()
        began = next(event.at_ms for event in happened if isinstance(event, Running))
        return (happened[-1].at_ms - began) / 1000

    def wait_until_ended(self, patience_s: float = 120) -> None:
        """Waits for the end of a bounded job."""
        try:
            code = self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"the job {self.name} did not end in {patience_s:.0f} s:\n{self._tail()}") from None
        if code:
            raise RuntimeError(f"the job {self.name} failed:\n{self._tail()}")

    def failures(self) -> list[str]:
        return [event.detail for event in self.events() if isinstance(event, AttemptFailed)]

    def check(self) -> None:
        """Raises an error if the job has failed: a benchmark of a job that restarts measures something else."""
        if self.failures():
            raise RuntimeError(f"the job {self.name} failed while it was measured: {self.failures()[0]}")

    def pids(self) -> list[int]:
        """Returns all processes of the job: JobMaster, JVM, Python daemon, slots."""
        return tree(self._process.pid)

    def _tail(self) -> str:
        return "\n".join(self._run.log_file.read_text(errors="replace").splitlines()[-15:])

    def table(self, name: str) -> Path:
        return Path(self.store, self.name, "tables", name)

    # --- the end ---

    def close(self) -> None:
        self._seen_pids |= set(self.pids())
        with contextlib.suppress(AttributeError, httpx.HTTPError):
            self._client.post("/cancel")
            self._client.close()
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        deadline = time.monotonic() + 10
        while (left := [pid for pid in self._seen_pids if alive(pid)]) and time.monotonic() < deadline:
            time.sleep(0.05)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class Checkpoint:
    def __init__(self, triggered_at_ms: int, completed: Completed) -> None:
        self.number = completed.checkpoint
        self.triggered_at_ms = triggered_at_ms
        self.duration_ms = completed.duration_ms
        self.sync_ms = completed.sync_ms
        self.state_bytes = completed.state_bytes
        self.rows = sum(rows for name, rows in completed.ledger.items() if name.startswith("source:"))


def rate_between(first: Checkpoint, last: Checkpoint) -> float:
    """Returns the rows per second between two barriers: rows that were read, processed and checkpointed."""
    return (last.rows - first.rows) * 1000 / (last.triggered_at_ms - first.triggered_at_ms)


def committed_files(table: Path) -> Iterator[Path]:
    """Yields what `spark.read.parquet` reads: the files in the `_spark_metadata` log, or all if there is no log."""
    log = table / "_spark_metadata"
    if not log.exists():
        yield from sorted(path for path in table.iterdir() if path.name[0] not in "._")
        return
    numbers = {int(path.name.removesuffix(".compact")): path for path in log.iterdir() if path.name[0].isdigit()}
    compact = max((number for number, path in numbers.items() if path.suffix == ".compact"), default=0)
    for number in sorted(number for number in numbers if number >= compact):
        for line in numbers[number].read_text().split("\n")[1:]:
            yield Path(json.loads(line)["path"].removeprefix("file://"))
