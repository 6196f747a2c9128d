"""Event-time session windows over built-in aggregates.

`WindowCombine` makes sessions of each batch before the exchange; `SessionMerge` keeps them and merges those that touch.
A session fires when the watermark reaches its end - 1 ms, which later records may have moved. A row that is late by
itself counts if it joins a session that is kept. The clocks and the side output of late records are those of
`engine/runtime/operators/window.py`.
"""

from __future__ import annotations

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
from engine.runtime.operators.window import emit_results, timed_rows
from engine.runtime.operators.window_clocks import WindowClocks
from engine.state.group_clock import GroupClock
from engine.state.key_hash import Hashes, hash_columns
from engine.state.windows.grouping import Ints
from engine.state.windows.plan import ROWS, WINDOW
from engine.state.windows.session_plan import END, SessionPlan
from engine.state.windows.session_runs import Flags, SessionRuns


class SessionMerge(Operator):
    """`late`: the side output of late records. With it the operator takes whole records, without it partials."""

    def __init__(
        self, plan: SessionPlan, schema: pa.Schema, lateness_ms: int = 0, late: OutputTag | None = None
    ) -> None:
        self._plan = plan
        self._schema = schema
        self._lateness_ms = lateness_ms
        self._late = late
        self._runs = SessionRuns(plan)

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        super().open(context, restored)
        self._clocks = WindowClocks(context, restored, self._lateness_ms)
        for _, saved in restored.tables if restored else []:
            self._keep(self._plan.adopted(saved))

    def process(self, batch: pa.RecordBatch, out: Output) -> None:
        if self._late is None:
            self._add(pa.table(batch), out)
            return
        batch = timed_rows(batch, self.context, self.context.uid)
        sessions, divided = self._plan.partial(batch)
        late = self._add(sessions, out)
        if late.any():
            aside = batch.filter(pa.array(late[divided.of])).select([*self._late.schema.names, EVENT_TIME])
            out.emit_side(self.context.uid, self._late, aside.cast(side_schema(self._late.schema, timed=True)))

    def _add(self, table: pa.Table, out: Output) -> Flags:
        """Adds sessions; returns which of them are late. Only those that are late by themselves may be."""
        hashes = self._hashes(table)
        over = _due(table) <= self._of_rows(self._clocks.fired, hashes)
        late = np.zeros(len(over), np.bool_)
        if over.any():
            asked = np.isin(hashes, hashes[over])
            late[asked] = self._join(table.filter(pa.array(asked)), np.unique(hashes[asked]), out)
            table = table.filter(pa.array(~asked))
        self._runs.append(table, np.zeros(table.num_rows, np.bool_))
        return late

    def _join(self, table: pa.Table, hashes: Hashes, out: Output) -> Flags:
        """Merges these sessions with those of their keys at once, as some of them are over; returns which are late.

        A session that is forgotten consists of late rows only. One that is over and kept fires again.
        """
        held, _ = self._runs.take(hashes)
        merged, divided = self._plan.merge(pa.concat_tables([table, held]))
        of = divided.of[: table.num_rows]
        merged_hashes, due = self._hashes(merged), _due(merged)
        late = due <= self._of_rows(self._clocks.forgotten, merged_hashes)
        if late.any() and self._late is None:
            rows = pc.sum(merged.filter(pa.array(late)).column(ROWS)).as_py()
            self.context.count(ledger.late_rows(self.context.uid), rows)
        touched = np.zeros(merged.num_rows, np.bool_)
        touched[of] = True
        self._emit(
            merged.filter(pa.array(touched & ~late & (due <= self._of_rows(self._clocks.fired, merged_hashes)))), out
        )
        self._keep(merged)
        is_late: Flags = late[of]
        return is_late

    def on_watermark(self, timestamp_ms: int, out: Output) -> None:
        if self._clocks.fired.advance(timestamp_ms):
            self._clocks.forget()
            hashes = self._runs.due(timestamp_ms, self._clocks.forgotten.now_ms)
            if len(hashes):
                self._fire(hashes, out)
        out.watermark(timestamp_ms)

    def _fire(self, hashes: Hashes, out: Output) -> None:
        """Merges the sessions of these keys, fires those that are due, and forgets those whose lateness is over."""
        held, fired = self._runs.take(hashes)
        merged, divided = self._plan.merge(held)
        new = np.bincount(divided.of[~fired], minlength=merged.num_rows) > 0
        self._emit(merged.filter(pa.array(new & (_due(merged) <= self._clocks.fired.now_ms))), out)
        self._keep(merged)

    def _keep(self, merged: pa.Table) -> None:
        """Keeps the sessions that are not forgotten."""
        hashes, due = self._hashes(merged), _due(merged)
        kept = due > self._of_rows(self._clocks.forgotten, hashes)
        fired = due <= self._of_rows(self._clocks.fired, hashes)
        self._runs.append(merged.filter(pa.array(kept)), fired[kept])

    def _emit(self, merged: pa.Table, out: Output) -> None:
        if merged.num_rows:
            merged = merged.sort_by([(END, "ascending"), (WINDOW, "ascending")])
            emit_results(self._plan.finish(merged), merged.column(WINDOW), merged.column(END), self._schema, out)

    def _hashes(self, table: pa.Table) -> Hashes:
        return hash_columns([table.column(key).combine_chunks() for key in self._plan.keys])

    def _of_rows(self, clock: GroupClock, hashes: Hashes) -> npt.NDArray[np.int64] | int:
        return clock.of_rows(hashes) if clock.uneven else clock.now_ms

    def snapshot(self, checkpoint: int) -> OperatorSnapshot:
        frozen, runs = self._runs.freeze(), self._runs
        part = StatePart("sessions", lambda: runs.compact(frozen), tuple(self._plan.keys))
        return OperatorSnapshot(inline=self._clocks.snapshot(), parts=(part,))


def _due(sessions: pa.Table) -> Ints:
    """Returns the watermark at which each session fires."""
    ends: Ints = sessions.column(END).to_numpy() - 1
    return ends
