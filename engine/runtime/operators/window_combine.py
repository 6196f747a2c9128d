"""`WindowCombine`: groups rows by key and window before the keyed exchange, so that one row per key and window travels.

Many keys make small groups: of 262,144 rows with 100,000 keys, grouping leaves 40 %, and these are hashed, sent and
merged one by one. So rows are held until there are many per key, and are grouped at once. How many that takes is known
from the last grouping. If even the most that are held have hardly a key twice, grouping costs more than it saves, and
rows travel ungrouped for a while.

Invariant: nothing overtakes held rows that must not. A watermark is passed on only when no window that a held row is
in, and no session that it may prolong, is due at it, so holding makes no row late and delays no result. Before a
barrier, before the input is idle and at its end, all are released. So there is nothing to put into a snapshot.
"""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from engine.protocol.signals import MAX_WATERMARK, MIN_WATERMARK
from engine.runtime.operators.base import EVENT_TIME, Operator, OperatorContext, Output
from engine.runtime.operators.window import timed_rows, window_rows
from engine.state.windows.plan import AggregatePlan
from engine.state.windows.session_plan import SessionPlan
from engine.state.windows.spans import Spans

ROWS_PER_KEY = 50
"""So many rows are held for each key that the last grouping found."""

HELD_ROWS = 1 << 20
HELD_BYTES = 64 << 20
"""Held rows are grouped when they are so many, or their batches so large.

All columns of a batch count: one that came through a channel is one piece of memory, kept as long as one column is.
"""

WORTH = 0.5
"""Grouping stops when it leaves more than this share of the rows (measured: it breaks even at about 0.4)."""

AGAIN = 16
"""Grouping is tried again after so many times the rows for which it was not worth it, because keys change."""

PANES_APART = 8
"""Held rows of so many panes are grouped a pane at a time, by their keys alone."""


class Partials(Protocol):
    """Makes partials before the exchange.

    `columns`: those of a row that are needed. `dictionaries`: the ones that may come as dictionaries.
    """

    @property
    def columns(self) -> list[str]: ...

    @property
    def dictionaries(self) -> frozenset[str]: ...

    def rows(self, batch: pa.RecordBatch, context: OperatorContext, uid: str) -> pa.RecordBatch:
        """Returns the rows that are in a window, with these columns and the event time."""

    def due_ms(self, rows: pa.RecordBatch) -> int:
        """Returns the watermark at which the first window fires that these rows are in, or that they join."""

    def grouped(self, rows: pa.Table) -> pa.Table: ...

    def ungrouped(self, batch: pa.RecordBatch) -> pa.RecordBatch: ...


class InPanes:
    """Makes partials per key and pane."""

    def __init__(self, plan: AggregatePlan, spans: Spans) -> None:
        self._plan = plan
        self._spans = spans
        self.columns = plan.columns

    @property
    def dictionaries(self) -> frozenset[str]:
        return self._plan.only_keys

    def rows(self, batch: pa.RecordBatch, context: OperatorContext, uid: str) -> pa.RecordBatch:
        needed = window_rows(timed_rows(batch, context, uid), self._spans)
        return needed.select([*self.columns, EVENT_TIME])

    def due_ms(self, rows: pa.RecordBatch) -> int:
        pane_ms = self._spans.pane(pc.min(rows.column(EVENT_TIME)).as_py())
        return self._spans.due_ms(self._spans.first_window(pane_ms))

    def grouped(self, rows: pa.Table) -> pa.Table:
        """Rows that were held came in batches, most of which are in one pane each, as their files are in order."""
        of_pane: dict[int, list[pa.RecordBatch]] = {}
        for batch in rows.to_batches():
            pane = self._panes(batch)
            if not isinstance(pane, int) or len(of_pane) == PANES_APART:
                return self._plan.partial(rows, self._panes(rows))
            of_pane.setdefault(pane, []).append(batch)
        return pa.concat_tables([self._plan.partial(pa.Table.from_batches(of), pane) for pane, of in of_pane.items()])

    def ungrouped(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return self._plan.ungrouped(batch, self._panes(batch))

    def _panes(self, rows: pa.RecordBatch | pa.Table) -> pa.Array | int:
        times = rows.column(EVENT_TIME)
        bounds = pc.min_max(times)
        first = self._spans.pane(bounds["min"].as_py())
        one = bounds["max"].as_py() < first + self._spans.pane_ms
        return first if one else pa.array(self._spans.panes(times.to_numpy()))


class InSessions:
    """Makes partials per key and session."""

    dictionaries: frozenset[str] = frozenset()

    def __init__(self, plan: SessionPlan) -> None:
        self._plan = plan
        self.columns = plan.columns

    def rows(self, batch: pa.RecordBatch, context: OperatorContext, uid: str) -> pa.RecordBatch:
        return timed_rows(batch, context, uid).select([*self.columns, EVENT_TIME])

    def due_ms(self, rows: pa.RecordBatch) -> int:
        """A row joins any session that has not ended before its time. The first of them may fire 1 ms before it."""
        return int(pc.min(rows.column(EVENT_TIME)).as_py()) - 1

    def grouped(self, rows: pa.Table) -> pa.Table:
        return self._plan.partial(rows)[0]

    def ungrouped(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return self._plan.ungrouped(batch)


class WindowCombine(Operator):
    """`uid`: the window's uid, under which records without an event time are counted. They are in no window."""

    def __init__(self, partials: Partials, uid: str) -> None:
        self._partials = partials
        self._uid = uid
        self._held: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0
        self._due_ms = MAX_WATERMARK
        self._watermark = MIN_WATERMARK
        self._enough = 0  # so many held rows are grouped
        self._early = False  # the last ones were released before they were enough
        self._as_they_are = 0  # rows until grouping is tried again

    @property
    def dictionaries(self) -> frozenset[str]:
        return self._partials.dictionaries

    def reads(self, behind: frozenset[str] | None) -> frozenset[str] | None:
        return frozenset(self._partials.columns)

    def process(self, batch: pa.RecordBatch, out: Output) -> None:
        rows = self._partials.rows(batch, self.context, self._uid)
        if not rows.num_rows:
            return
        if self._as_they_are > 0:
            self._as_they_are -= rows.num_rows
            out.emit(self._partials.ungrouped(rows))
            return
        if self._held and self._held[0].schema != rows.schema:  # a file may have dictionaries where others have none
            self.release(out)
        self._hold(rows, batch.nbytes)
        if self._rows >= self._enough or self._bytes >= HELD_BYTES:
            most = self._enough >= HELD_ROWS or self._bytes >= HELD_BYTES
            self._early = False
            self._enough = min(ROWS_PER_KEY * self._group(out, most), HELD_ROWS)
        elif self._due_ms <= self._watermark:
            self.release(out)

    def _hold(self, rows: pa.RecordBatch, nbytes: int) -> None:
        self._held.append(rows)
        self._rows += rows.num_rows
        self._bytes += nbytes
        self._due_ms = min(self._due_ms, self._partials.due_ms(rows))

    def on_watermark(self, timestamp_ms: int, out: Output) -> None:
        if self._due_ms <= timestamp_ms:
            self.release(out)
        self._watermark = timestamp_ms
        out.watermark(timestamp_ms)

    def release(self, out: Output) -> None:
        """Groups and emits what is held, before there is enough. After two such times in a row, no more is expected."""
        if self._held:
            self._group(out, most=self._early)
            self._early = True

    def _group(self, out: Output, most: bool) -> int:
        """Groups the held rows and emits the partials; returns how many these are.

        `most`: no more rows can be held. If even these leave most rows, the next ones travel as they are.
        """
        held, rows = pa.Table.from_batches(self._held).unify_dictionaries(), self._rows
        self._held, self._rows, self._bytes, self._due_ms = [], 0, 0, MAX_WATERMARK
        partials = self._partials.grouped(held)
        for piece in partials.to_batches():
            out.emit(piece)
        left: int = partials.num_rows
        if most and left > WORTH * rows:
            self._as_they_are = AGAIN * rows
        return left
