"""`IntervalJoin`: joins rows of two keyed streams whose event times differ by no less and no more than two bounds.

A row that is not after the watermark of its key group is late: it is counted, and joined with nothing. Pairs go out as
soon as the second of their rows is there; their event time is the larger of the two, so no pair is late itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from engine.core.event_time import side_schema
from engine.core.tags import OutputTag
from engine.protocol import ledger
from engine.runtime.operators.base import EVENT_TIME, OperatorContext, Output, RestoredState
from engine.runtime.operators.joins.base import JoinOperator, Step
from engine.runtime.operators.joins.outputs import ColumnOutput, Found, PairOutput
from engine.state.joins.interval import Bounds, IntervalState
from engine.state.joins.matches import Pairs
from engine.state.joins.rows import JoinInput, Mask
from engine.state.joins.runs import SortedRun


class IntervalJoin(JoinOperator):
    """`late`: the side output for late rows of the left and of the right stream; None: they are only counted."""

    def __init__(
        self,
        left: JoinInput,
        right: JoinInput,
        bounds: Bounds,
        output: ColumnOutput | PairOutput,
        late: tuple[OutputTag | None, OutputTag | None] = (None, None),
    ) -> None:
        super().__init__(left, right, output)
        self._emitting = output
        self._late = late
        self._state = IntervalState(left, right, bounds)

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        super().open(context, restored)
        self._state.advance(self._clock.now_ms)

    def _restore(self, side: int, rows: pa.RecordBatch) -> None:
        if rows.num_rows:
            of_side = (self._state.left, self._state.right)[side]
            of_side.add(SortedRun.of(rows, self._inputs[side].hashes(rows), rows.column(EVENT_TIME).to_numpy()))

    def _add(self, side: int, rows: pa.RecordBatch, out: Output) -> None:
        hashes, times = self._inputs[side].hashes(rows), rows.column(EVENT_TIME).to_numpy()
        late = times <= (self._clock.of_rows(hashes) if self._clock.uneven else self._clock.now_ms)
        if late.any():
            self._on_late(side, rows, late, out)
        wanted = self._inputs[side].complete(rows) & ~late
        if not wanted.all():
            rows, hashes, times = rows.filter(pa.array(wanted)), hashes[wanted], times[wanted]
        if rows.num_rows:
            run = SortedRun.of(rows, hashes, times)
            pairs = (self._state.add_left, self._state.add_right)[side](run)
            self._begin(map(self._emitted, pairs(lambda: self._most)), out)

    def _on_late(self, side: int, rows: pa.RecordBatch, late: Mask, out: Output) -> None:
        self.context.count(ledger.late_rows(self.context.uid), int(late.sum()))
        tag = self._late[side]
        if tag is not None:
            schema = side_schema(tag.schema, timed=True)
            aside = rows.filter(pa.array(late)).select(schema.names)
            out.emit_side(self.context.uid, tag, pa.RecordBatch.from_arrays(aside.columns, schema=schema))

    def _emitted(self, pairs: Pairs) -> Step:
        times = pc.max_element_wise(
            pairs.left.column(EVENT_TIME).take(pairs.left_rows), pairs.right.column(EVENT_TIME).take(pairs.right_rows)
        )
        return Step(len(pairs), lambda out: self._emitting.emit(Found(pairs, times), out))

    def _due(self, before_ms: int) -> Iterator[Step]:
        self._state.advance(self._clock.now_ms)
        return iter(())

    def _frozen(self, side: int) -> Callable[[], pa.Table]:
        return (self._state.left, self._state.right)[side].freeze(self._inputs[side].schema)
