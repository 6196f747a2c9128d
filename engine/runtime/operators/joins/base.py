"""`JoinOperator`: the common part of operators that join two streams by key.

Invariants: results go out before the watermark that follows them (B3), and a part at a time: while some are left, the
operator takes neither input nor a snapshot, so a few rows that match very many others fill no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa

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
from engine.runtime.operators.joins.outputs import ColumnOutput, FunctionOutput
from engine.state.joins.rows import JoinInput


@dataclass(frozen=True)
class Step:
    """A part of the results. `rows`: of how many pairs or rows it is made."""

    rows: int
    emit: Callable[[Output], None]


class JoinOperator(Operator):
    """`output` says what becomes of the results, and keeps the state of the job's function, if there is one."""

    def __init__(self, left: JoinInput, right: JoinInput, output: ColumnOutput | FunctionOutput) -> None:
        self._inputs = (left, right)
        self._output = output
        self._steps: Iterator[Step] = iter(())
        self._next: Step | None = None
        self._most = output.at_once
        self._waiting_ms: int | None = None

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        super().open(context, restored)
        self._clock = context.group_clock(restored)
        self._output.open(context, restored)
        names = [of.name for of in self._inputs]
        for name, table in restored.tables if restored else []:
            side = names.index(name)
            self._restore(side, self._inputs[side].adopted(table))

    def _restore(self, side: int, rows: pa.RecordBatch) -> None:
        raise NotImplementedError

    # --- input ---

    def process(self, batch: pa.RecordBatch, out: Output) -> None:
        self._take(0, batch, out)

    def process_second(self, batch: pa.RecordBatch, out: Output) -> None:
        self._take(1, batch, out)

    def _take(self, side: int, batch: pa.RecordBatch, out: Output) -> None:
        rows = self._inputs[side].kept(batch)
        untimed = rows.column(EVENT_TIME).null_count
        if untimed:
            self.context.count(ledger.untimed_rows(self.context.uid), untimed)
            rows = rows.filter(rows.column(EVENT_TIME).is_valid())
        if rows.num_rows:
            self._add(side, rows, out)

    def _add(self, side: int, rows: pa.RecordBatch, out: Output) -> None:
        """Takes rows of one side; all of them have event time."""
        raise NotImplementedError

    # --- results ---

    def on_watermark(self, timestamp_ms: int, out: Output) -> None:
        before_ms = self._clock.now_ms
        self._waiting_ms = timestamp_ms
        advanced = self._clock.advance(timestamp_ms)
        self._begin(self._due(before_ms) if advanced else iter(()), out)

    def _due(self, before_ms: int) -> Iterator[Step]:
        """Returns the results that became due since a watermark, in parts."""
        return iter(())

    def _begin(self, steps: Iterator[Step], out: Output) -> None:
        """Emits the first results; the others follow from `work`."""
        assert self._next is None, "results are left of what came before"
        self._most = self._output.at_once
        self._steps = steps
        self._next = next(steps, None)
        self._go_on(out)

    def _go_on(self, out: Output) -> None:
        """Emits results of about `_most` rows, and the watermark behind the last of them."""
        done = 0
        while self._next is not None and done < self._most:
            self._next.emit(out)
            done += self._next.rows
            self._next = next(self._steps, None)
        self._output.flush(out)
        if self._next is None and self._waiting_ms is not None:
            waiting_ms, self._waiting_ms = self._waiting_ms, None
            out.watermark(waiting_ms)

    def work(self, max_rows: int, out: Output) -> bool:
        if self._next is None:
            return False
        self._most = min(max_rows, self._output.at_once)
        self._go_on(out)
        return True

    @property
    def firing(self) -> bool:
        return self._next is not None

    @property
    def records_done(self) -> int:
        return self._output.records_done

    # --- state ---

    def snapshot(self, checkpoint: int) -> OperatorSnapshot:
        assert self._next is None, "a snapshot while results are left"
        of_function = self._output.snapshot(checkpoint)
        parts = [StatePart(of.name, self._frozen(side), of.keys) for side, of in enumerate(self._inputs)]
        return OperatorSnapshot(
            inline={WATERMARKS: self._clock.snapshot()},
            parts=tuple(chain(parts, of_function.parts if of_function else ())),
        )

    def _frozen(self, side: int) -> Callable[[], pa.Table]:
        """Returns a function that makes the table of one side's rows as they are now."""
        raise NotImplementedError

    def close(self) -> None:
        self._output.close()
