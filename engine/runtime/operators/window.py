"""Tumbling and sliding event-time windows over built-in aggregates, in two steps around the keyed exchange.

`WindowCombine` groups each batch before the exchange, so that one row per key and pane travels; it has no state. If
most rows are left after grouping (many keys, small batches), grouping costs more than it saves, and rows travel
ungrouped. `WindowMerge` keeps the partial aggregates per pane and fires a window when the watermark reaches its
end - 1 ms. Windows that overlap share their panes. Whether a row is late is decided per key group, so a window stays
closed also after a restore.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
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
from engine.state.windows.spans import Spans

FIRE_ROWS = 65_536
"""Maximum rows of one emitted batch: the result of a large window is emitted in pieces."""

WORTH = 0.5
"""Grouping stops when it leaves more than this share of the rows (measured: it breaks even at about 0.4)."""

AGAIN = 16
"""After this many batches grouping is tried again, because keys change."""


class WindowCombine(Operator):
    """`uid`: the window's uid, under which records without an event time are counted. They are in no window."""

    def __init__(self, plan: AggregatePlan, spans: Spans, uid: str) -> None:
        self._plan = plan
        self._uid = uid
        self._spans = spans
        self._as_they_are = 0  # batches until grouping is tried again

    def process(self, batch: pa.RecordBatch, out: Output) -> None:
        times = batch.column(EVENT_TIME)
        if times.null_count:
            self.context.count(ledger.untimed_rows(self._uid), times.null_count)
            batch = batch.filter(times.is_valid())
            times = batch.column(EVENT_TIME)
        if self._spans.has_gaps:
            batch = batch.filter(pa.array(self._spans.in_a_window(times.to_numpy())))
            times = batch.column(EVENT_TIME)
        if not batch.num_rows:
            return
        at = times.to_numpy()
        first = self._spans.pane(int(at.min()))
        one = int(at.max()) < first + self._spans.pane_ms
        panes = first if one else pa.array(self._spans.panes(at))
        if self._as_they_are:
            self._as_they_are -= 1
            out.emit(self._plan.ungrouped(batch, panes))
            return
        partial = self._plan.partial(batch, panes)
        if partial.num_rows > WORTH * batch.num_rows:
            self._as_they_are = AGAIN - 1
        for piece in partial.to_batches():
            out.emit(piece)


class WindowMerge(Operator):
    def __init__(self, plan: AggregatePlan, spans: Spans, schema: pa.Schema) -> None:
        self._plan = plan
        self._spans = spans
        self._schema = schema
        self._panes = Panes(plan.merge)

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        super().open(context, restored)
        self._clock = context.group_clock(restored)
        for _, table in restored.tables if restored else []:
            self._add(self._plan.adopted(table))
        assert ledger.late_rows(context.uid) not in context.counters, (
            "a snapshot holds no row whose windows have all fired"
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
        """Rows are late if the last window that has their pane has fired."""
        due_ms = self._spans.due_ms(self._spans.last_window(start_ms))
        if due_ms <= self._clock.now_ms:
            self._count_late(table)
            return
        if self._clock.ahead(due_ms):
            # The window has fired for some key groups before the restore. It stays fired for them.
            late = pa.array(self._clock.of_rows(self._hashes(table)) >= due_ms)
            self._count_late(table.filter(late))
            table = table.filter(pc.invert(late))
        if table.num_rows:
            self._panes.append(start_ms, table)

    def _hashes(self, table: pa.Table) -> npt.NDArray[np.uint64]:
        return hash_columns([table.column(key).combine_chunks() for key in self._plan.keys])

    def _count_late(self, table: pa.Table) -> None:
        if table.num_rows:
            self.context.count(ledger.late_rows(self.context.uid), pc.sum(table.column(ROWS)).as_py())

    def on_watermark(self, timestamp_ms: int, out: Output) -> None:
        before_ms = self._clock.now_ms
        if self._clock.advance(timestamp_ms):
            self._fire_due(before_ms, out)
        out.watermark(timestamp_ms)

    def _fire_due(self, before_ms: int, out: Output) -> None:
        """Fires the windows that became due since this watermark, oldest first, and drops panes no window needs."""
        spans, panes = self._spans, self._panes
        start_ms = spans.first_open(before_ms)
        while (oldest := panes.oldest) is not None:
            start_ms = max(start_ms, spans.first_window(oldest))
            if spans.due_ms(start_ms) > self._clock.now_ms:
                return
            self._fire(start_ms, out)
            for pane in panes.starts():
                if spans.last_window(pane) > start_ms:
                    break
                panes.drop(pane)
            start_ms += spans.slide_ms

    def _fire(self, start_ms: int, out: Output) -> None:
        end_ms = start_ms + self._spans.size_ms
        merged = self._panes.between(start_ms, end_ms)
        if self._clock.passed_before_restore(end_ms - 1):
            # Rows of a pane that a later window needs, too, may be of key groups for which this one has fired.
            merged = merged.filter(pa.array(self._clock.restored_of_rows(self._hashes(merged)) < end_ms - 1))
        result = self._plan.finish(merged)
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
