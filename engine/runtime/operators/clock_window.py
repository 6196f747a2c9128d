"""Tumbling and sliding windows by the clock of the slot, over built-in aggregates.

They are event-time windows whose event time is the clock behind the exchange: a record is in the windows of the moment
at which it arrives there, and a window fires when the clock has reached its end. So no record is late. Windows that
have not ended when the input does are dropped, as processing-time timers are.

Invariant: the clock of a window operator never goes back, also if that of the machine does, or after a restore on a
machine whose clock is behind. So a window that has fired gets no more records.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from engine.core.event_time import EVENT_TIME_FIELD
from engine.core.ports import Clock
from engine.protocol.signals import MIN_WATERMARK
from engine.runtime.operators.base import EVENT_TIME, OperatorContext, Output
from engine.runtime.operators.window import WindowMerge, repeated
from engine.state.windows.plan import WINDOW, AggregatePlan


def stamped(batch: pa.RecordBatch, clock: Clock) -> pa.RecordBatch:
    """Returns the batch with the time of the clock as event time: aggregates such as `first` order records by it."""
    now = pa.repeat(pa.scalar(clock.wall_ms(), EVENT_TIME_FIELD.type), batch.num_rows)
    place = batch.schema.get_field_index(EVENT_TIME)
    if place < 0:
        return batch.append_column(EVENT_TIME_FIELD, now)
    return batch.set_column(place, EVENT_TIME_FIELD, now)


class OnArrival:
    """Makes partials per key. Their windows are those in which they arrive behind the exchange."""

    def __init__(self, plan: AggregatePlan) -> None:
        self._plan = plan
        self.columns = plan.columns

    @property
    def dictionaries(self) -> frozenset[str]:
        return self._plan.only_keys

    def rows(self, batch: pa.RecordBatch, context: OperatorContext, uid: str) -> pa.RecordBatch:
        return stamped(batch, context.clock).select(list(dict.fromkeys([*self.columns, EVENT_TIME])))

    def due_ms(self, rows: pa.RecordBatch) -> int:
        """Rows are never held: their windows are those of the moment."""
        return MIN_WATERMARK

    def grouped(self, rows: pa.Table) -> pa.Table:
        return self._plan.partial(rows, 0)

    def ungrouped(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return self._plan.ungrouped(batch, 0)


class ClockMerge(WindowMerge):
    """Takes partials without a window, and puts them into the pane of the moment.

    Its results have no event time: they are in no window of event time.
    """

    _timed = False

    def process(self, batch: pa.RecordBatch, out: Output) -> None:
        now_ms = max(self.context.clock.wall_ms(), self._clock.latest_ms + 1)
        if not self._spans.in_a_window(np.array([now_ms])).all():
            return
        pane_ms = self._spans.pane(now_ms)
        place = batch.schema.get_field_index(WINDOW)
        arrived = batch.set_column(place, WINDOW, repeated(pane_ms, batch.num_rows))
        self._panes.append(pane_ms, pa.Table.from_batches([arrived]))

    def on_watermark(self, timestamp_ms: int, out: Output) -> None:
        out.watermark(timestamp_ms)

    def work(self, max_rows: int, out: Output) -> bool:
        first_ms = self._first_due_ms
        if first_ms is None or first_ms > self._reached_ms:
            return False
        self._advance(self._reached_ms, out)
        return True

    @property
    def due_ms(self) -> float | None:
        first_ms, clock = self._first_due_ms, self.context.clock
        return None if first_ms is None else clock.now_ms() + max(0, first_ms + 1 - clock.wall_ms())

    @property
    def _reached_ms(self) -> int:
        """The last millisecond of which no further record comes."""
        return self.context.clock.wall_ms() - 1

    @property
    def _first_due_ms(self) -> int | None:
        """The time at which the first window fires; None: there is none."""
        starts = self._panes.starts()
        if not starts:
            return None
        first = max(self._spans.first_window(starts[0]), self._spans.first_open(self._clock.now_ms))
        return self._spans.due_ms(first)
