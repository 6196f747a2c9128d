"""Sinks that only benchmarks use: one records latencies, one is stuck, one discards its rows."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from engine.core.paths import JobPaths
from engine.core.ports import Store
from engine.core.sinks import Committer, Guarantee, NothingToCommit, Piece, Sink, SinkWriter, WriterContext


class BenchSink(Sink):
    """A sink that publishes nothing."""

    guarantee = Guarantee.AT_LEAST_ONCE

    def committer(self, store: Store, paths: JobPaths) -> Committer:
        return NothingToCommit()


class LatencySink(BenchSink):
    """Writes to `folder` how long ago the time in `column` (wall clock, microseconds) was, for each row."""

    def __init__(self, folder: str, column: str) -> None:
        self._folder = folder
        self._column = column

    def writer(self, context: WriterContext) -> SinkWriter:
        return _LatencyWriter(Path(self._folder), self._column, context.subtask)


class _LatencyWriter(SinkWriter):
    buffered_bytes = 0

    def __init__(self, folder: Path, column: str, subtask: int) -> None:
        self._folder = folder
        self._column = column
        self._subtask = subtask
        self._files = 0
        self._seen: list[np.ndarray] = []

    def begin(self) -> None:
        self._seen = []

    def write(self, batch: pa.RecordBatch) -> None:
        now_us = time.time_ns() // 1000
        values = batch.column(self._column)
        self._seen.append(now_us - values.view(pa.int64()).to_numpy())

    def pre_commit(self) -> Piece | None:
        if not self._seen:
            return None
        self._files += 1
        return _Latencies(self._folder / f"{self._subtask:04d}-{self._files:06d}.npy", self._seen)


class _Latencies(Piece):
    size = 0

    def __init__(self, path: Path, seen: list[np.ndarray]) -> None:
        self._path = path
        self._seen = seen

    def persist(self) -> dict[str, Any]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        np.save(self._path, np.concatenate(self._seen))
        return {}


class StuckSink(BenchSink):
    """Buffers rows as the table does, but does not persist them until the file `release` exists."""

    def __init__(self, release: str) -> None:
        self._release = release

    def writer(self, context: WriterContext) -> SinkWriter:
        return _StuckWriter(Path(self._release))


class _StuckWriter(SinkWriter):
    def __init__(self, release: Path) -> None:
        self._release = release
        self.begin()

    def begin(self) -> None:
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._bytes += batch.nbytes

    def pre_commit(self) -> Piece | None:
        return _StuckPiece(self._release, self._batches, self._bytes) if self._batches else None

    @property
    def buffered_bytes(self) -> int:
        return self._bytes


class _StuckPiece(Piece):
    def __init__(self, release: Path, batches: list[pa.RecordBatch], size: int) -> None:
        self._release = release
        self._batches = batches
        self.size = size

    def persist(self) -> dict[str, Any]:
        parent = os.getppid()
        while not self._release.exists() and os.getppid() == parent:  # ends when the parent has died
            time.sleep(0.1)
        return {}


class DiscardSink(BenchSink):
    def writer(self, context: WriterContext) -> SinkWriter:
        return _DiscardWriter()


class _DiscardWriter(SinkWriter):
    buffered_bytes = 0

    def begin(self) -> None:
        pass

    def write(self, batch: pa.RecordBatch) -> None:
        pass

    def pre_commit(self) -> Piece | None:
        return None
