"""The subtask's side of the two-phase commit: rows wait in an open transaction, and barriers turn it into committables.

Invariants: a row is in exactly one piece. Every piece is persisted and becomes a committable in barrier order, even if
a checkpoint in between fails or is aborted. Every snapshot carries a committable until an epoch that contains it is
known to be complete.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import pyarrow as pa

from engine.core.connectors import calling
from engine.core.errors import fault_of
from engine.core.sinks import Piece, Sink, WriterContext
from engine.protocol import ledger
from engine.protocol.failures import Fault
from engine.protocol.manifest import Committable
from engine.runtime.operators.base import EVENT_TIME, Operator, OperatorContext, OperatorSnapshot, Output, RestoredState
from engine.state.digests import as_stored, digest, digested

ROLL_BYTES = 32 << 20
"""A transaction of this size is written before its barrier, so that memory does not grow with the interval."""

RETRY_MS = 1000.0
"""The pause before a blocked sink writes again after a failure: encoding a transaction costs a core."""

DIGEST_ROWS = 512
"""Rows that are digested together. Hashing a few rows at a time costs more than all other work of a sink on them;
larger groups delay the rows behind them (4096 rows: by five milliseconds)."""


class SinkOperator(Operator):
    def __init__(self, sink: Sink, schema: pa.Schema) -> None:
        self._sink = sink
        self._schema = pa.schema([field for field in schema if field.name != EVENT_TIME])
        self._hashed = digested(self._schema)
        self._queue: deque[Piece | int] = deque()  # pieces to persist; an int is the barrier of that checkpoint
        self._unborn: list[dict[str, Any]] = []  # payloads that are persisted and wait for the next barrier
        self._pending: dict[int, list[Committable]] = {}  # by the checkpoint whose barrier made them
        self._detached = 0  # bytes of all pieces so far; only the task thread adds to it
        self._persisted = 0  # bytes of those that are persisted; only the upload queue adds to it
        self._retry_ms: float | None = None  # when a blocked sink writes again
        self._sequence = 0
        self._closed = False
        self._failed: BaseException | None = None  # an error of the job's own code in a write ahead
        self._undigested: list[pa.RecordBatch] = []
        self._undigested_rows = 0

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        super().open(context, restored)
        # Nothing is restored: the JobMaster committed the pending output of the snapshot before this deployment.
        writer_context = WriterContext(
            context.subtask.index, context.attempt, context.store, context.paths, self._schema, context.job_id
        )
        with calling(context.uid, context.subtask.index, self._sink, "open"):
            self._writer = self._sink.writer(writer_context)
            self._writer.begin()

    def process(self, batch: pa.RecordBatch, out: Output) -> None:
        rows = batch.select(self._schema.names)
        with calling(self.context.uid, self.context.subtask.index, self._sink, f"write() of {rows.num_rows} records"):
            self._writer.write(rows)
        self.context.count(ledger.sink_rows(self.context.uid), rows.num_rows)
        self._undigested.append(rows)
        self._undigested_rows += rows.num_rows
        if self._undigested_rows >= DIGEST_ROWS:
            self._digest()
        if self._writer.buffered_bytes >= ROLL_BYTES:
            self._detach()
            self._write_ahead()

    def _digest(self) -> None:
        """Adds the rows written since the last call to the digest, which is a sum and so independent of grouping."""
        rows, self._undigested, self._undigested_rows = self._undigested, [], 0
        if rows and self._hashed:
            whole = [as_stored(_concatenated([batch.column(name) for batch in rows])) for name in self._hashed]
            ledger.add(self.context.counters, {ledger.sink_digest(self.context.uid): digest(whole)})

    @property
    def blocked(self) -> bool:
        """True while writes are behind. Raises the error of the job's own code that a write ahead met.

        The subtask asks before each step. It asks nothing else of a blocked sink: neither rows nor barriers reach it.
        So this is also where a write that failed is tried again, after a pause.
        """
        if self._failed is not None:
            raise self._failed
        if self._retry_ms is not None and self.context.clock.now_ms() >= self._retry_ms:
            self._retry_ms = None
            self._write_ahead()
        return self._is_behind

    @property
    def _is_behind(self) -> bool:
        return self._detached - self._persisted >= 2 * ROLL_BYTES

    @property
    def wakeup_ms(self) -> float | None:
        return self._retry_ms

    def _write_ahead(self) -> None:
        self.context.offload.submit(self.context.queue, self._persist_all, self._written)

    def _written(self, result: Any, error: BaseException | None) -> None:
        """Keeps an error of the job's own code for `blocked`, and ignores any other: the next write, or the barrier
        (where a failure counts), tries again.

        A blocked sink gets no rows and so has no next write; it waits for a moment.
        """
        if error is None or self._closed or self._failed is not None:
            return
        if fault_of(error) is Fault.JOB:
            self._failed = error
        elif self._is_behind:
            self._retry_ms = self.context.clock.now_ms() + RETRY_MS

    def _detach(self) -> None:
        with calling(self.context.uid, self.context.subtask.index, self._sink, "pre_commit()"):
            piece = self._writer.pre_commit()
            self._writer.begin()
        if piece is not None:
            self._detached += piece.size
            self._queue.append(piece)

    def snapshot(self, checkpoint: int) -> OperatorSnapshot:
        self._digest()
        self._detach()
        self._queue.append(checkpoint)
        return OperatorSnapshot(pre_commit=lambda: self._pre_commit(checkpoint))

    def close(self) -> None:
        self._closed = True

    def on_complete(self, checkpoint: int) -> None:
        for born in [c for c in list(self._pending) if c <= checkpoint]:  # a copy: the upload may add to it meanwhile
            del self._pending[born]

    # The methods below run in the subtask's upload queue: one after the other, off the task thread.

    def _pre_commit(self, checkpoint: int) -> list[Committable]:
        self._persist_all(until=checkpoint)
        return [c for born in sorted(self._pending) if born <= checkpoint for c in self._pending.get(born, [])]

    def _persist_all(self, until: int | None = None) -> None:
        """Persists the queue in order. A piece that fails stays first in the queue for the next try."""
        while self._queue:
            item = self._queue[0]
            if isinstance(item, int):
                self._pending[item] = [self._committable(item, payload) for payload in self._unborn]
                self._unborn = []
                self._queue.popleft()
                if item == until:
                    return
            else:
                with calling(self.context.uid, self.context.subtask.index, self._sink, "persist()"):
                    self._unborn.append(item.persist())
                self._queue.popleft()
                self._persisted += item.size

    def _committable(self, checkpoint: int, payload: dict[str, Any]) -> Committable:
        self._sequence += 1
        context = self.context
        return Committable(context.uid, context.subtask.index, context.attempt, checkpoint, self._sequence, payload)


def _concatenated(columns: list[pa.Array]) -> pa.Array:
    """Joins arrays; returns a single array as it is, because Arrow would copy it."""
    return columns[0] if len(columns) == 1 else pa.concat_arrays(columns)
