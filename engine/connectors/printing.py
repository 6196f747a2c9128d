"""The sink of `print()`: prints records at once. A restart prints the records since the last epoch again."""

from __future__ import annotations

import pyarrow as pa

from engine.core.paths import JobPaths
from engine.core.ports import Store
from engine.core.sinks import Committer, Guarantee, NothingToCommit, Piece, Sink, SinkWriter, WriterContext


class PrintSink(Sink):
    """Prints each record, with the number of the subtask. `weir run` shows it, and `weir logs` after `weir submit`."""

    guarantee = Guarantee.AT_LEAST_ONCE

    def writer(self, context: WriterContext) -> SinkWriter:
        return _PrintWriter(context.subtask)

    def committer(self, store: Store, paths: JobPaths) -> Committer:
        return NothingToCommit()


class _PrintWriter(SinkWriter):
    buffered_bytes = 0

    def __init__(self, subtask: int) -> None:
        self._subtask = subtask

    def begin(self) -> None:
        pass

    def write(self, batch: pa.RecordBatch) -> None:
        for row in batch.to_pylist():
            print(f"{self._subtask}> {row}", flush=True)

    def pre_commit(self) -> Piece | None:
        return None
