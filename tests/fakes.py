"""Fakes of the ports in `engine/core/ports.py`: the test sets the clock by hand and runs offloaded work on demand."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from engine.core.errors import StoreError
from engine.core.paths import JobPaths
from engine.core.ports import Frame, Store
from engine.core.sources import SourceContext
from engine.core.tags import OutputTag
from engine.host import run_folder
from engine.protocol.epoch_records import Created
from engine.protocol.ids import AttemptId, ChannelId, SubtaskId
from engine.runtime.operators.base import OperatorContext
from engine.state.key_groups import range_of
from engine.store import memory
from engine.store.directory import DirectoryStore

ATTEMPT = AttemptId(1, 1)
JOB_ID = "1d"


class FakeClock:
    def __init__(self, now_ms: float = 0.0, wall_ms: int = 1_000_000) -> None:
        self.now = now_ms
        self.wall = wall_ms

    def now_ms(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return self.wall

    def pass_ms(self, duration_ms: float) -> None:
        self.now += duration_ms
        self.wall += int(duration_ms)


@dataclass
class FakeTransport:
    sent: list[tuple[ChannelId, Frame]] = field(default_factory=list)
    grants: list[tuple[ChannelId, int]] = field(default_factory=list)
    closed: list[AttemptId] = field(default_factory=list)

    def open(self, attempt: AttemptId, channel: ChannelId, address: str, schema: pa.Schema) -> None: ...

    def send(self, attempt: AttemptId, channel: ChannelId, frame: Frame) -> None:
        self.sent.append((channel, frame))

    def grant(self, attempt: AttemptId, channel: ChannelId, granted_total: int) -> None:
        self.grants.append((channel, granted_total))

    def close(self, attempt: AttemptId) -> None:
        self.closed.append(attempt)


class FakeOffload:
    """Keeps offloaded work until the test calls `run`, which does it in order."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]] = []
        self.queues: list[str] = []

    def submit(self, queue: str, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        self.waiting.append((work, done))
        self.queues.append(queue)

    def run(self) -> None:
        waiting, self.waiting = self.waiting, []
        for work, done in waiting:
            try:
                result = work()
            except Exception as error:
                done(None, error)
            else:
                done(result, None)


class MemoryStore(memory.MemoryStore):
    """A store in a dict. `fail_writes`: how many next writes fail. `answers`: the answers of the next creates."""

    def __init__(self) -> None:
        super().__init__()
        self.synced: list[str] = []
        self.fail_writes = 0
        self.answers: list[tuple[Created, bool]] = []  # (the answer, whether the file is created)

    def write(self, path: str, data: bytes) -> None:
        if self.fail_writes:
            self.fail_writes -= 1
            raise StoreError(f"can't write {path}: no space left")
        super().write(path, data)

    def sync(self, paths: list[str]) -> None:
        super().sync(paths)
        self.synced += paths

    def create(self, path: str, data: bytes) -> Created:
        if self.answers:
            answer, made = self.answers.pop(0)
            if made:
                self.files.setdefault(path, data)
            return answer
        return super().create(path, data)


class Collected:
    """Collects the output of an operator: batches and watermarks, in order, and what goes to side outputs."""

    def __init__(self) -> None:
        self.events: list[pa.RecordBatch | int] = []
        self.aside: list[tuple[str, pa.RecordBatch]] = []

    def emit(self, batch: pa.RecordBatch) -> None:
        self.events.append(batch)

    def emit_side(self, uid: str, tag: OutputTag, batch: pa.RecordBatch) -> None:
        self.aside.append((tag.name, batch))

    def watermark(self, timestamp_ms: int) -> None:
        self.events.append(timestamp_ms)

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for event in self.events if isinstance(event, pa.RecordBatch) for row in event.to_pylist()]

    @property
    def watermarks(self) -> list[int]:
        return [event for event in self.events if isinstance(event, int)]


def context(
    uid: str = "op",
    subtask: int = 0,
    parallelism: int = 1,
    *,
    store: Store | None = None,
    clock: FakeClock | None = None,
    offload: FakeOffload | None = None,
    attempt: AttemptId = ATTEMPT,
) -> OperatorContext:
    return OperatorContext(
        uid,
        SubtaskId(uid, subtask),
        parallelism,
        128,
        range_of(subtask, parallelism, 128),
        attempt,
        JOB_ID,
        clock or FakeClock(),
        offload or FakeOffload(),
        store or MemoryStore(),
        JobPaths("job"),
        {},
    )


def source_context(
    schema: pa.Schema,
    clock: FakeClock | None = None,
    *,
    offload: FakeOffload | None = None,
    store: Store | None = None,
    subtask: int = 0,
    parallelism: int = 1,
) -> SourceContext:
    return SourceContext(
        "src",
        subtask,
        parallelism,
        clock or FakeClock(),
        offload or FakeOffload(),
        store or MemoryStore(),
        JobPaths("job"),
        schema,
        ATTEMPT,
    )


def directory_store(path: Path) -> DirectoryStore:
    return DirectoryStore(path / "store")


def batch(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=schema)


def while_it_sleeps(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """Makes `engine.host.run_folder` do this instead of sleeping; threads of other modules go on sleeping."""

    class Clock:
        monotonic, time_ns = time.monotonic, time.time_ns

        @staticmethod
        def sleep(_: float) -> None:
            action()

    monkeypatch.setattr(run_folder, "time", Clock)
