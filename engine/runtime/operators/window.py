"""Tumbling event-time windows over built-in aggregates, in two steps around the keyed exchange.

`WindowCombine` groups each batch before the exchange, so that one row per key and window travels; it has no state. If
most rows are left after grouping (many keys, small batches), grouping costs more than it saves, and rows travel
ungrouped. `WindowMerge` keeps the partial aggregates per window and fires a window when the watermark reaches its
end - 1 ms. Whether a row is late is decided per key group, so a window stays closed also after a restore.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from engine.protocol import ledger
from engine.runtime.operators.base import (
    EVENT_TIME,
    WATERMARKS,
    Operator,
    OperatorContext,
    OperatorSnapshot,
    Output,
    RestoredState,
    StatePart,
)
from engine.state.key_hash import hash_columns
from engine.state.windows.aggregates import ROWS, WINDOW, AggregatePlan
from engine.state.windows.panes import Panes

FIRE_ROWS = 65_536
"""Maximum rows of one emitted batch: the result of a large window is emitted in pieces."""

WORTH = 0.5
"""Grouping stops when it leaves more than this share of the rows (measured: it breaks even at about 0.4)."""

AGAIN = 16
"""After this many batches grouping is tried again, because keys change."""


class WindowCombine(Operator):
    """`uid`: the window's uid, under which records without an event time are counted. They are in no window."""

    def __init__(self, plan: AggregatePlan, size_ms: int, uid: str) -> None:
        self._plan = plan
        self._uid = uid
        self._size_ms = size_ms
        self._as_they_are = 0  # batches until grouping is tried again

    def process(self, batch: pa.RecordBatch, out: Output) -> None:
        times = batch.column(EVENT_TIME)
        if times.null_count:
            self.context.count(ledger.untimed_rows(self._uid), times.null_count)
            batch = batch.filter(times.is_valid())
            times = batch.column(EVENT_TIME)
        if not batch.num_rows:
            return
        starts = times.to_numpy()
        low, high = int(starts.min()), int(starts.max())
        first = low - low % self._size_ms
        one = high < first + self._size_ms
        windows = first if one else pa.array(starts - np.mod(starts, self._size_ms))
        if self._as_they_are:
            self._as_they_are -= 1
            out.emit(self._plan.ungrouped(batch, windows))
            return
        partial = self._plan.partial(batch, windows)
        if partial.num_rows > WORTH * batch.num_rows:
            self._as_they_are = AGAIN - 1
        for piece in partial.to_batches():
            out.emit(piece)


class WindowMerge(Operator):
    def __init__(self, plan: AggregatePlan, size_ms: int, schema: pa.Schema) -> None:
        self._plan = plan
        self._size_ms = size_ms
        self._schema = schema
        self._panes = Panes(plan.merge)

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        super().open(context, restored)
        self._clock = context.group_clock(restored)
        for _, table in restored.tables if restored else []:
            self._add(table.select(self._plan.partial_schema.names).cast(self._plan.partial_schema))
        assert ledger.late_rows(context.uid) not in context.counters, (
            "a snapshot holds no row of a window that has fired"
        )

    def process(self, batch: pa.RecordBatch, out: Output) -> None:
        self._add(pa.Table.from_batches([batch]))

    def _add(self, table: pa.Table) -> None:
        if not table.num_rows:
            return
        windows = table.column(WINDOW)
        bounds = pc.min_max(windows)
        low, high = bounds["min"].as_py(), bounds["max"].as_py()
        if low == high:
            self._add_pane(low, table)
            return
        for start in pc.unique(windows).to_pylist():
            self._add_pane(start, table.filter(pc.equal(windows, start)))

    def _add_pane(self, start_ms: int, table: pa.Table) -> None:
        due_ms = start_ms + self._size_ms - 1
        if due_ms <= self._clock.now_ms:
            self._count_late(table)
            return
        if self._clock.ahead(due_ms):
            # The window has fired for some key groups before the restore. It stays fired for them.
            keys = [table.column(key).combine_chunks() for key in self._plan.keys]
            late = pa.array(self._clock.of_rows(hash_columns(keys)) >= due_ms)
            self._count_late(table.filter(late))
            table = table.filter(pc.invert(late))
        if table.num_rows:
            self._panes.append(start_ms, table)

    def _count_late(self, table: pa.Table) -> None:
        if table.num_rows:
            self.context.count(ledger.late_rows(self.context.uid), pc.sum(table.column(ROWS)).as_py())

    def on_watermark(self, timestamp_ms: int, out: Output) -> None:
        if self._clock.advance(timestamp_ms):
            for start in self._panes.due(timestamp_ms + 1 - self._size_ms):
                self._fire(start, out)
        out.watermark(timestamp_ms)

    def _fire(self, start_ms: int, out: Output) -> None:
        result = self._plan.finish(self._panes.pop(start_ms))
        end_ms = start_ms + self._size_ms
        stamp = pa.timestamp("us", tz="UTC")
        rows = result.num_rows
        columns = dict(zip(result.column_names, result.columns, strict=True))
        columns["window_start"] = pa.repeat(pa.scalar(start_ms * 1000, stamp), rows)
        columns["window_end"] = pa.repeat(pa.scalar(end_ms * 1000, stamp), rows)
        columns[EVENT_TIME] = pa.repeat(pa.scalar(end_ms - 1, pa.int64()), rows)
        table = pa.table([columns[name] for name in self._schema.names], schema=self._schema)
        for piece in table.to_batches(max_chunksize=FIRE_ROWS):
            out.emit(piece)

    def snapshot(self, checkpoint: int) -> OperatorSnapshot:
        frozen, empty = self._panes.freeze(), self._plan.partial_schema.empty_table()

        def panes() -> pa.Table:
            return pa.concat_tables([empty, *(pane.compact() for pane in frozen)])

        part = StatePart("panes", panes, tuple(self._plan.keys))
        return OperatorSnapshot(inline={WATERMARKS: self._clock.snapshot()}, parts=(part,))
