"""Joins and co-groups of two streams by key and event-time window, tumbling or sliding.

Rows of both sides are kept until the watermark reaches the end of their last window - 1 ms. A window then hands out its
pairs, or all of its rows by key; their event time is the end of the window - 1 ms. Whether a row is late is decided per
key group, so a window stays closed also after a restore.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from engine.protocol import ledger
from engine.runtime.operators.base import EVENT_TIME, Output
from engine.runtime.operators.joins.base import JoinOperator, Step
from engine.runtime.operators.joins.outputs import ColumnOutput, Found, FunctionOutput, GroupOutput, PairOutput
from engine.state.joins.matches import Pairs
from engine.state.joins.rows import JoinInput
from engine.state.joins.windows import Groups, WindowRows, WindowSides, grouped, paired
from engine.state.windows.spans import Spans


class WindowedJoin(JoinOperator):
    """Keeps the rows, and finds the windows that are due."""

    def __init__(self, left: JoinInput, right: JoinInput, spans: Spans, output: ColumnOutput | FunctionOutput) -> None:
        super().__init__(left, right, output)
        self._spans = spans
        self._rows = WindowRows(left, right, spans)

    def _restore(self, side: int, rows: pa.RecordBatch) -> None:
        self._add_panes(side, rows)
        assert ledger.late_rows(self.context.uid) not in self.context.counters, (
            "a snapshot holds no row whose windows have all fired"
        )

    def _add(self, side: int, rows: pa.RecordBatch, out: Output) -> None:
        if self._spans.has_gaps:
            rows = rows.filter(pa.array(self._spans.in_a_window(rows.column(EVENT_TIME).to_numpy())))
        self._add_panes(side, rows)

    def _add_panes(self, side: int, rows: pa.RecordBatch) -> None:
        panes = pa.array(self._spans.panes(rows.column(EVENT_TIME).to_numpy()))
        starts = pc.unique(panes).to_pylist()
        for start in starts:
            self._add_pane(side, start, rows if len(starts) == 1 else rows.filter(pc.equal(panes, start)))

    def _add_pane(self, side: int, pane_ms: int, rows: pa.RecordBatch) -> None:
        """Rows are late if the last window that has their pane has fired."""
        due_ms = self._spans.due_ms(self._spans.last_window(pane_ms))
        if due_ms <= self._clock.now_ms:
            self._count_late(rows.num_rows)
            return
        if self._clock.ahead(due_ms):
            # The window has fired for some key groups before the restore. It stays fired for them.
            open_ = self._clock.of_rows(self._inputs[side].hashes(rows)) < due_ms
            self._count_late(rows.num_rows - int(open_.sum()))
            rows = rows.filter(pa.array(open_))
        rows = self._wanted(side, rows)
        if rows.num_rows:
            self._rows.add(side, pane_ms, pa.Table.from_batches([rows]))

    def _count_late(self, rows: int) -> None:
        if rows:
            self.context.count(ledger.late_rows(self.context.uid), rows)

    def _wanted(self, side: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the rows that have to be kept."""
        return rows

    def _due(self, before_ms: int) -> Iterator[Step]:
        for window in self._rows.due(before_ms, self._clock.now_ms):
            yield from self._results(self._still_open(window))

    def _still_open(self, window: WindowSides) -> WindowSides:
        """Leaves out rows of key groups for which the window fired before the restore: a later one needs them, too."""
        due_ms = window.end_ms - 1
        if not self._clock.passed_before_restore(due_ms):
            return window
        left, right = (
            rows.filter(pa.array(self._clock.restored_of_rows(of.hashes(rows)) < due_ms)) if rows.num_rows else rows
            for of, rows in zip(self._inputs, (window.left, window.right), strict=True)
        )
        return replace(window, left=left, right=right)

    def _results(self, window: WindowSides) -> Iterator[Step]:
        raise NotImplementedError

    def _frozen(self, side: int) -> Callable[[], pa.Table]:
        return self._rows.freeze(side)


class WindowJoin(WindowedJoin):
    """Hands out each pair of rows that have the same key and are in the same window."""

    def __init__(self, left: JoinInput, right: JoinInput, spans: Spans, output: ColumnOutput | PairOutput) -> None:
        super().__init__(left, right, spans, output)
        self._emitting = output

    def _wanted(self, side: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        complete = self._inputs[side].complete(rows)
        return rows if complete.all() else rows.filter(pa.array(complete))

    def _results(self, window: WindowSides) -> Iterator[Step]:
        left, right = self._inputs
        if window.left.num_rows and window.right.num_rows:
            keys = left.keys_of(window.left), right.keys_of(window.right)
            pairs = paired(window.left, keys[0], window.right, keys[1])
            yield from (self._emitted(some, window) for some in pairs(lambda: self._most))

    def _emitted(self, pairs: Pairs, window: WindowSides) -> Step:
        times = pa.repeat(pa.scalar(window.end_ms - 1, pa.int64()), len(pairs))
        found = Found(pairs, times, (window.start_ms, window.end_ms))
        return Step(len(pairs), lambda out: self._emitting.emit(found, out))


class CoGroup(WindowedJoin):
    """Hands out all rows of both sides by key and window. Rows with a null in their key are groups of one side."""

    def __init__(self, left: JoinInput, right: JoinInput, spans: Spans, output: GroupOutput) -> None:
        super().__init__(left, right, spans, output)
        self._emitting = output

    def _results(self, window: WindowSides) -> Iterator[Step]:
        left, right = self._inputs
        return (self._emitted(groups, window) for groups in grouped(window, left, right, lambda: self._most))

    def _emitted(self, groups: Groups, window: WindowSides) -> Step:
        rows = groups.left.num_rows + groups.right.num_rows
        times_ms = [window.end_ms - 1] * len(groups.codes)
        return Step(rows, lambda out: self._emitting.emit(groups, times_ms, out))
