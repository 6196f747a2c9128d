"""The sink's end of the two-phase commit: rows wait in an open transaction, barriers turn it into committables.

Invariants: a row is in exactly one piece, and every piece is persisted and becomes a committable in barrier order, also
when a checkpoint in between fails or is aborted; a committable is carried by every snapshot until an epoch that has it
is known to be complete.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pyarrow as pa

from engine.core.errors import SyncFailed
from engine.core.sinks import Piece, Sink, WriterContext
from engine.protocol import ledger
from engine.protocol.manifest import Committable
from engine.runtime.operators.base import EVENT_TIME, Operator, OperatorContext, OperatorSnapshot, Output, RestoredState
from engine.state.key_hash import hash_columns

ROLL_BYTES = 32 << 20
"""Rows of an epoch that are written ahead of its barrier, so that memory does not grow with the interval."""


DIGEST_ROWS = 512
"""Rows that are digested together: hashing a few at a time costs more than all else that a sink does with them. More at
a time would hold up those behind them (at 4096, for five milliseconds)."""


class SinkOperator(Operator):
    def __init__(self, sink: Sink, schema: pa.Schema) -> None:
        self._sink = sink
        self._schema = pa.schema([field for field in schema if field.name != EVENT_TIME])
        self._hashed = [field.name for field in self._schema if not pa.types.is_nested(field.type)]
        self._queue: deque[Piece | int] = deque()  # pieces to persist; an int is the barrier of that checkpoint
        self._unborn: list[dict[str, Any]] = []  # persisted, before the next barrier
        self._pending: dict[int, list[Committable]] = {}  # by the checkpoint of birth
        self._behind = 0  # bytes handed to the upload and not persisted yet
        self._sequence = 0
        self._closed = False
        self._undigested: list[pa.RecordBatch] = []
        self._undigested_rows = 0

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        super().open(context, restored)
        # What the restored snapshot had pending, the JobMaster committed before it deployed this attempt.
        writer_context = WriterContext(
            context.subtask.index, context.attempt, context.store, context.paths, self._schema
        )
        self._writer = self._sink.writer(writer_context)
        self._writer.begin()

    def process(self, batch: pa.RecordBatch, out: Output) -> None:
        rows = batch.select(self._schema.names)
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
        """Add to the digest what was written since: a sum over rows, so they can be taken in any grouping."""
        rows, self._undigested, self._undigested_rows = self._undigested, [], 0
        if rows and self._hashed:
            whole = [_concatenated([batch.column(name) for batch in rows]) for name in self._hashed]
            digest = int(np.add.reduce(hash_columns(whole)))
            ledger.add(self.context.counters, {ledger.sink_digest(self.context.uid): digest})

    @property
    def blocked(self) -> bool:
        return self._behind >= 2 * ROLL_BYTES

    def _write_ahead(self) -> None:
        self.context.offload.submit(self.context.lane, self._persist_all, self._written)

    def _written(self, result: Any, error: BaseException | None) -> None:
        """A write ahead that failed is tried again with the next one, or at the barrier, where failure counts.

        A blocked sink gets no rows that would bring a next one, so it tries again by itself.
        """
        if isinstance(error, SyncFailed):
            raise error
        if error is not None and self.blocked and not self._closed:
            self._write_ahead()

    def _detach(self) -> None:
        piece = self._writer.pre_commit()
        self._writer.begin()
        if piece is not None:
            self._behind += piece.size
            self._queue.append(piece)

    def snapshot(self, checkpoint: int) -> OperatorSnapshot:
        self._digest()
        self._detach()
        self._queue.append(checkpoint)
        return OperatorSnapshot(pre_commit=lambda: self._pre_commit(checkpoint))

    def close(self) -> None:
        self._closed = True

    def on_complete(self, checkpoint: int) -> None:
        for born in [c for c in self._pending if c <= checkpoint]:
            del self._pending[born]

    # The rest runs with the uploads: one after the other, off the task thread.

    def _pre_commit(self, checkpoint: int) -> list[Committable]:
        self._persist_all(until=checkpoint)
        return [c for born in sorted(self._pending) if born <= checkpoint for c in self._pending.get(born, [])]

    def _persist_all(self, until: int | None = None) -> None:
        """Persist in order. What fails stays first in the queue, for the next try."""
        while self._queue:
            item = self._queue[0]
            if isinstance(item, int):
                self._pending[item] = [self._committable(item, payload) for payload in self._unborn]
                self._unborn = []
                self._queue.popleft()
                if item == until:
                    return
            else:
                self._unborn.append(item.persist())
                self._queue.popleft()
                self._behind -= item.size

    def _committable(self, checkpoint: int, payload: dict[str, Any]) -> Committable:
        self._sequence += 1
        context = self.context
        return Committable(context.uid, context.subtask.index, context.attempt, checkpoint, self._sequence, payload)


def _concatenated(columns: list[pa.Array]) -> pa.Array:
    """A large batch is mostly alone; Arrow would copy it."""
    return columns[0] if len(columns) == 1 else pa.concat_arrays(columns)
