"""Tumbling and sliding event-time windows over built-in aggregates, in two steps around the keyed exchange.

`WindowCombine` (engine/runtime/operators/window_combine.py) groups rows before the exchange, so that one row per key
and pane travels. `WindowMerge` keeps the partial aggregates per pane and fires a window when the watermark reaches its
end - 1 ms. Windows that overlap share their panes.

Two clocks per key group (`WindowClocks`) decide about late rows, so that a window stays closed also after a restore. A
row whose windows are all forgotten is late. A row of a window that has fired and is kept fires it again for its key.

Only `WindowMerge` knows which rows are late: an input may be idle, and a restored key group may be ahead. So with a
side output for late records there is no `WindowCombine`; whole records travel, and are grouped behind the exchange.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from engine.core.event_time import side_schema
from engine.core.tags import OutputTag
from engine.protocol import ledger
from engine.runtime.operators.base import (
    EVENT_TIME,
    Operator,
    OperatorContext,
    OperatorSnapshot,
    Output,
    RestoredState,
    StatePart,
)
from engine.runtime.operators.window_clocks import WindowClocks
from engine.state.group_order import in_group_order
from engine.state.key_hash import hash_columns
from engine.state.windows.panes import Panes
from engine.state.windows.plan import ROWS, WINDOW, AggregatePlan
from engine.state.windows.spans import Spans

FIRE_ROWS = 65_536
"""Maximum rows of one emitted batch: the result of a large window is emitted in pieces."""


def timed_rows(batch: pa.RecordBatch, context: OperatorContext, uid: str) -> pa.RecordBatch:
    """Returns the rows with an event time. The others are in no window, and are counted under the window's uid."""
    times = batch.column(EVENT_TIME)
    if not times.null_count:
        return batch
    context.count(ledger.untimed_rows(uid), times.null_count)
    return batch.filter(times.is_valid())


def window_rows(batch: pa.RecordBatch, spans: Spans) -> pa.RecordBatch:
    """Returns the rows that are in a window: all, unless there are gaps between windows."""
    if not spans.has_gaps:
        return batch
    return batch.filter(pa.array(spans.in_a_window(batch.column(EVENT_TIME).to_numpy())))


class WindowMerge(Operator):
    """`late`: the side output of late records. With it the operator takes whole records, without it partials."""

    _timed = True
    """Results have an event time."""

    def __init__(
        self,
        plan: AggregatePlan,
        spans: Spans,
        schema: pa.Schema,
        lateness_ms: int = 0,
        late: OutputTag | None = None,
    ) -> None:
        self._plan = plan
        self._spans = spans
        self._schema = schema
        self._lateness_ms = lateness_ms
        self._late = late
        self._panes = Panes(plan)

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        super().open(context, restored)
        self._clocks = WindowClocks(context, restored, self._lateness_ms)
        self._clock, self._forgotten = self._clocks.fired, self._clocks.forgotten
        for _, table in restored.tables if restored else []:
            for start_ms, rows in _by_pane(self._plan.adopted(table)):
                if self._due_ms(start_ms) > self._forgotten.now_ms:
                    self._panes.restore(start_ms, rows)
                else:
                    assert restored and self._clocks.kept_longer(restored), "a snapshot holds no forgotten window"

    def process(self, batch: pa.RecordBatch, out: Output) -> None:
        table = pa.Table.from_batches([batch]) if self._late is None else self._grouped(batch, self._late, out)
        kept = [(start_ms, self._add(start_ms, rows)) for start_ms, rows in _by_pane(table)]
        if self._lateness_ms:
            self._fire_again(kept, out)

    def _grouped(self, batch: pa.RecordBatch, late: OutputTag, out: Output) -> pa.Table:
        """Emits the late rows of a batch of whole records, and groups the others."""
        batch = window_rows(timed_rows(batch, self.context, self.context.uid), self._spans)
        panes = self._spans.panes(batch.column(EVENT_TIME).to_numpy())
        due = self._spans.last_windows(panes) + self._spans.size_ms - 1
        clocks: npt.NDArray[np.int64] | int = self._forgotten.now_ms
        if self._forgotten.uneven:
            clocks = self._forgotten.of_rows(hash_columns([batch.column(key) for key in self._plan.keys]))
        is_late = due <= clocks
        if is_late.any():
            aside = batch.filter(pa.array(is_late)).select([*late.schema.names, EVENT_TIME])
            out.emit_side(self.context.uid, late, aside.cast(side_schema(late.schema, timed=True)))
            batch, panes = batch.filter(pa.array(~is_late)), panes[~is_late]
        return self._plan.partial(batch, pa.array(panes))

    def _add(self, start_ms: int, table: pa.Table) -> pa.Table:
        """Adds rows to a pane, and returns them. They are late if the last window that has the pane is forgotten."""
        due_ms = self._due_ms(start_ms)
        if due_ms <= self._forgotten.now_ms:
            self._count_late(table)
            return table.slice(0, 0)
        if self._forgotten.ahead(due_ms):
            # The window was forgotten for some key groups before the restore. It stays so for them.
            late = pa.array(self._forgotten.of_rows(self._hashes(table)) >= due_ms)
            self._count_late(table.filter(late))
            table = table.filter(pc.invert(late))
        if table.num_rows:
            self._panes.append(start_ms, table)
        return table

    def _fire_again(self, added: list[tuple[int, pa.Table]], out: Output) -> None:
        """Fires each window of these panes that has fired and is not forgotten, for the keys of the rows added."""
        again: dict[int, list[pa.Table]] = {}
        for pane_ms, table in added:
            for start_ms in self._spans.windows(pane_ms):
                due_ms = self._spans.due_ms(start_ms)
                if table.num_rows and self._clock.passed(due_ms):
                    again.setdefault(start_ms, []).append(self._fired_and_kept(table, due_ms))
        for start_ms, tables in sorted(again.items()):
            if any(table.num_rows for table in tables):
                held = self._panes.between(start_ms, start_ms + self._spans.size_ms)
                self._emit(start_ms, self._plan.of_keys(held, pa.concat_tables(tables)), out)

    def _fired_and_kept(self, table: pa.Table, due_ms: int) -> pa.Table:
        """Returns the rows of those keys for which the window that is due at this watermark has fired and is kept."""
        if not self._clocks.uneven:
            return table if self._forgotten.now_ms < due_ms else table.slice(0, 0)
        hashes = self._hashes(table)
        fired, forgotten = self._clock.of_rows(hashes) >= due_ms, self._forgotten.of_rows(hashes) >= due_ms
        return table.filter(pa.array(fired & ~forgotten))

    def _due_ms(self, pane_ms: int) -> int:
        """Returns the watermark at which the last window that has this pane fires."""
        return self._spans.due_ms(self._spans.last_window(pane_ms))

    def _hashes(self, table: pa.Table) -> npt.NDArray[np.uint64]:
        return hash_columns([table.column(key).combine_chunks() for key in self._plan.keys])

    def _count_late(self, table: pa.Table) -> None:
        if table.num_rows:
            self.context.count(ledger.late_rows(self.context.uid), pc.sum(table.column(ROWS)).as_py())

    def on_watermark(self, timestamp_ms: int, out: Output) -> None:
        self._advance(timestamp_ms, out)
        out.watermark(timestamp_ms)

    def _advance(self, timestamp_ms: int, out: Output) -> None:
        """Moves the clock, and fires the windows that are due then."""
        before_ms = self._clock.now_ms
        if self._clock.advance(timestamp_ms):
            self._fire_due(before_ms, out)
            self._clocks.forget()
            self._forget()

    def _fire_due(self, before_ms: int, out: Output) -> None:
        """Fires the windows that became due since this watermark, oldest first."""
        start_ms = self._spans.first_open(before_ms)
        for pane in self._panes.starts():
            start_ms = max(start_ms, self._spans.first_window(pane))
            while start_ms <= self._spans.last_window(pane):
                if self._spans.due_ms(start_ms) > self._clock.now_ms:
                    return
                self._fire(start_ms, out)
                start_ms += self._spans.slide_ms

    def _forget(self) -> None:
        """Drops the panes that no window needs any more."""
        for pane in self._panes.starts():
            if self._due_ms(pane) > self._forgotten.now_ms:
                return
            self._panes.drop(pane)

    def _fire(self, start_ms: int, out: Output) -> None:
        end_ms = start_ms + self._spans.size_ms
        merged = self._panes.between(start_ms, end_ms)
        if self._clock.passed_before_restore(end_ms - 1):
            # Rows of a pane that is kept after it fired may be of key groups for which this window has fired.
            merged = merged.filter(pa.array(self._clock.restored_of_rows(self._hashes(merged)) < end_ms - 1))
        self._emit(start_ms, merged, out)

    def _emit(self, start_ms: int, merged: pa.Table, out: Output) -> None:
        rows, end_ms = merged.num_rows, start_ms + self._spans.size_ms
        bounds = repeated(start_ms, rows), repeated(end_ms, rows)
        emit_results(self._plan.finish(merged), *bounds, self._schema, out, timed=self._timed)

    def snapshot(self, checkpoint: int) -> OperatorSnapshot:
        frozen, empty = self._panes.freeze(), self._plan.partial_schema.empty_table()
        keys, max_parallelism = tuple(self._plan.keys), self.context.max_parallelism

        def panes() -> pa.Table:
            order = partial(in_group_order, keys=keys, max_parallelism=max_parallelism)
            return pa.concat_tables([empty, *(pane.compact(order) for pane in frozen)])

        part = StatePart("panes", panes, keys)
        return OperatorSnapshot(inline=self._clocks.snapshot(), parts=(part,))


def _by_pane(table: pa.Table) -> list[tuple[int, pa.Table]]:
    """Divides partials by the start of their pane."""
    if not table.num_rows:
        return []
    windows = table.column(WINDOW)
    bounds = pc.min_max(windows)
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    if low == high:
        return [(low, table)]
    return [(start, table.filter(pc.equal(windows, start))) for start in pc.unique(windows).to_pylist()]


def repeated(value: int, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, pa.int64()), rows)


def emit_results(
    result: pa.Table,
    start_ms: pa.Array,
    end_ms: pa.Array,
    schema: pa.Schema,
    out: Output,
    *,
    timed: bool = True,
) -> None:
    """Emits the results of windows with their bounds, in pieces. If `timed`, their event time is the end - 1 ms."""
    stamp = pa.timestamp("us", tz="UTC")
    columns = dict(zip(result.column_names, result.columns, strict=True))
    columns["window_start"] = pc.multiply(start_ms, 1000).cast(stamp)
    columns["window_end"] = pc.multiply(end_ms, 1000).cast(stamp)
    columns[EVENT_TIME] = pc.subtract(end_ms, 1) if timed else pa.nulls(len(end_ms), pa.int64())
    table = pa.table([columns[name] for name in schema.names], schema=schema)
    for piece in table.to_batches(max_chunksize=FIRE_ROWS):
        out.emit(piece)
