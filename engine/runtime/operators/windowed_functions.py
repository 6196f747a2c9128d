"""`WindowOperator`: windows with any assigner, trigger, evictor and function, one record at a time (B4 to B7).

Contents, trigger state and timers belong to a key and a window. They are keyed state and timers whose keys have two
more columns, the start and the end of the window; the key group depends on the key alone.

Invariants: a window that was forgotten stays so, also if the lateness becomes longer, or if the clock of the machine is
set back. Whether a record is late is decided by the clocks of its key group (`WindowClocks`). Windows by the clock have
the time of a clock that never goes back.

Sliding windows whose contents combine keep them per pane instead (`Panes`), and per window only what a snapshot has of
a version that kept them so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from engine.core.authors import defined_at
from engine.core.errors import SchemaMismatch, UserFunctionError
from engine.core.evictors import Evictor, TimestampedValue
from engine.core.functions import Function, Row, RuntimeContext
from engine.core.state_types import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from engine.core.tags import OutputTag
from engine.core.timers import TimeDomain
from engine.core.triggers import Trigger, TriggerResult
from engine.core.window_functions import ProcessAllWindowFunction, ProcessWindowFunction
from engine.core.windows import Window
from engine.protocol import ledger
from engine.protocol.signals import MAX_WATERMARK, MIN_WATERMARK
from engine.runtime.operators.base import OperatorContext, Output, RestoredState, StatePart
from engine.runtime.operators.records import short
from engine.runtime.operators.rows import KeyedRowOperator, several_of, stamps_of
from engine.runtime.operators.window_clocks import WindowClocks
from engine.runtime.operators.window_contents import Contents, Folding, Timestamped
from engine.runtime.operators.window_contexts import (
    CurrentWindow,
    RuntimeEvictorContext,
    RuntimeTriggerContext,
    RuntimeWindowContext,
    window_fields,
)
from engine.runtime.operators.window_panes import Panes, default_trigger
from engine.runtime.timers import OF_WINDOWS, TIMERS, KeyTimers
from engine.state.group_clock import GroupClock
from engine.state.keyed.backend import Key, KeyedBackend
from engine.state.keyed.heap import HeapBackend
from engine.state.windows.assigners import Assigner, Span, SpanAssigner
from engine.state.windows.sessions import Merge, Sessions

LATEST = "latest"
"""The inline value of windows by the clock: the latest time of a record, or of a window that has fired."""
CONTENTS, PANES, SESSIONS = f"{OF_WINDOWS}contents", f"{OF_WINDOWS}panes", f"{OF_WINDOWS}sessions"
FIRE_ROWS = 65_536
"""Results are emitted when they are so many, while more windows fire."""

AnyWindowFunction = ProcessWindowFunction | ProcessAllWindowFunction


@dataclass(frozen=True)
class WindowPlan:
    """What a window operator does. Each subtask has its own copies of the trigger, the evictor and the functions.

    `late` is the side output of late records; without one they are dropped and counted. Without a `function` the
    elements are the results. `rich` are the functions that are opened and closed. `hidden` is a key column that
    functions do not see. `panes`: the windows share panes, see `share_panes`.
    """

    assigner: Assigner
    trigger: Trigger
    contents: Contents
    function: AnyWindowFunction | None = None
    evictor: Evictor | None = None
    lateness_ms: int = 0
    late: OutputTag | None = None
    rich: tuple[Any, ...] = ()
    hidden: str | None = None
    panes: bool = False


class _Lifecycles(Function):
    """Opens and closes several functions as one."""

    def __init__(self, functions: Sequence[Function]) -> None:
        self._functions = functions

    def open(self, context: RuntimeContext) -> None:
        for function in self._functions:
            function.open(context)

    def snapshot_state(self, checkpoint: int) -> None:
        for function in self._functions:
            function.snapshot_state(checkpoint)

    def close(self) -> None:
        for function in self._functions:
            function.close()


class WindowOperator(KeyedRowOperator):
    def __init__(self, plan: WindowPlan, keys: Sequence[str], input_schema: pa.Schema, schema: pa.Schema) -> None:
        super().__init__(_Lifecycles([f for f in plan.rich if isinstance(f, Function)]), keys, input_schema, schema)
        self._plan = plan
        self._assigner = plan.assigner
        self._trigger = plan.trigger
        self._contents = plan.contents
        self._usual = not plan.assigner.merging and default_trigger(plan.assigner, plan.trigger)
        self._window_fields = [*self._fields, *window_fields(keys)]
        self.emits_aside = plan.function is not None or plan.late is not None
        self._line = defined_at(plan.function.process if plan.function is not None else next(iter(plan.rich), None))
        self._rows: list[Any] = []
        self._times: list[int | None] = []

    # --- opening and snapshots ---

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        self._windowed: KeyedBackend = HeapBackend(self._window_fields, context.clock.wall_ms, self._failed is not None)
        saved = [inline.get(LATEST, MIN_WATERMARK) for inline in (restored.inline if restored else [])]
        self._latest_ms = max(saved, default=MIN_WATERMARK)
        super().open(context, restored)

    def _make_clock(self, context: OperatorContext, restored: RestoredState | None) -> GroupClock:
        self._clocks = WindowClocks(context, restored, self._plan.lateness_ms)
        return self._clocks.fired

    def _make_timers(self, context: OperatorContext) -> KeyTimers:
        hashed = len(self._fields)
        return KeyTimers(self._windowed, self._window_fields, context.clock, self._clock, True, hashed, after_ms=1)

    def _restore_part(self, context: OperatorContext, name: str, table: pa.Table) -> None:
        if name in TIMERS:
            self._timers.load(name, table)
        elif name.startswith(OF_WINDOWS) and name not in (PANES, SESSIONS):
            self._windowed.restore(name, table)
        else:
            self._keyed.restore(name, table)

    def _open_states(self) -> None:
        self._state = self._windowed.state(ListStateDescriptor(CONTENTS, self._contents.type))
        self._panes = self._open_panes() if self._plan.panes else None
        if self._assigner.merging:
            self._saved = self._keyed.state(ValueStateDescriptor(SESSIONS, pa.list_(pa.list_(pa.int64()))))
        self._current = CurrentWindow(self._keyed, self._windowed, self._timers, self.context.clock)
        self._trigger_context = RuntimeTriggerContext(self._current)
        self._window_context = RuntimeWindowContext(self._current, self._assigner.merging)
        self._evictor_context = RuntimeEvictorContext(self._current)
        self._compute = _call(self._plan.function, self._current, self._window_context)

    def _open_panes(self) -> Panes:
        assert isinstance(self._assigner, SpanAssigner) and isinstance(self._contents, Folding)
        state = self._keyed.state(MapStateDescriptor(PANES, pa.int64(), self._contents.type))
        return Panes(self._assigner.spans, self._contents, state)

    def _unclaimed_keyed(self) -> list[str]:
        return []  # triggers and window functions ask for their states when they are called first

    def _keyed_parts(self) -> Iterable[StatePart]:
        parts = [StatePart(name, table, self._keys) for name, table in self._windowed.snapshot()]
        return [*super()._keyed_parts(), *parts]

    def _inline(self) -> dict[str, Any]:
        return self._clocks.snapshot() | ({} if self._assigner.event_time else {LATEST: self._latest_ms})

    def on_watermark(self, timestamp_ms: int, out: Output) -> None:
        super().on_watermark(timestamp_ms, out)
        self._clocks.forget()

    # --- records ---

    def _apply(self, batch: pa.RecordBatch, records: Sequence[Row], done: list[Any]) -> pa.RecordBatch | None:
        hidden = self._plan.hidden
        keys, watermarks = self._keys_of(batch, self._keys), self._watermarks_of(batch, self._keys)
        forgotten = self._watermarks_of(batch, self._keys, self._clocks.forgotten)
        times = zip(stamps_of(batch), watermarks, forgotten, strict=True)
        element = self._element if self._failed is None else self._element_or_letter
        for key, record, (stamp, watermark, forgotten_ms) in zip(keys, records, times, strict=True):
            if hidden is not None:
                del record[hidden]
            self._keyed.key = key
            self._current.watermark_ms = watermark
            self._forgotten_ms = forgotten_ms
            element(record, stamp)
            done.append(None)
        return self._taken()

    def _element_or_letter(self, record: Row, stamp: int | None) -> None:
        """Puts a record into its windows; if that fails, it has left nothing there, and may become a dead letter."""
        letters = self._tried(self._put_element, record, stamp)
        self._rows.extend(letters)
        self._times.extend([stamp] * (len(self._rows) - len(self._times)))

    def _put_element(self, record: Row, stamp: int | None) -> tuple[()]:
        self._element(record, stamp)
        self._check_results(self._rows[self._rows_before :])
        return ()

    def _check_results(self, rows: list[Any]) -> None:
        """Refuses results that do not fit the schema while the record that has fired them can be left out."""
        self._check(rows, self._own_asides)

    def _record_now(self) -> Row:
        record = super()._record_now()
        if self._plan.hidden is not None:
            del record[self._plan.hidden]
        return record

    def _begin_record(self) -> None:
        super()._begin_record()
        self._windowed.begin_record()
        self._rows_before = len(self._rows)

    def _end_record(self) -> None:
        super()._end_record()
        self._windowed.end_record()

    def _undo_record(self) -> None:
        super()._undo_record()
        self._windowed.undo_record()
        del self._rows[self._rows_before :]
        del self._times[self._rows_before :]

    def _element(self, record: Row, stamp: int | None) -> None:
        at_ms = stamp if self._assigner.event_time else self._reached(self.context.clock.wall_ms())
        if at_ms is None:
            self.context.count(ledger.untimed_rows(self.context.uid), 1)
            return
        if self._panes is not None:
            if not self._into_pane(self._panes, record, stamp, at_ms):
                self._put_late(record, stamp)
            return
        spans = self._assigner.assign(record, at_ms)
        late = bool(spans)
        for span in spans:
            if self._assigner.merging:
                late = not self._into_session(span, record, stamp) and late
            elif not self._forgotten(self._assigner.window(span)):
                late = False
                self._into_window(span, span, record, stamp)
        if late:
            self._put_late(record, stamp)

    def _reached(self, wall_ms: int) -> int:
        """Returns this time, or the latest before it if the clock was set back: those windows may be forgotten."""
        self._latest_ms = max(self._latest_ms, wall_ms)
        return self._latest_ms

    def _put_late(self, record: Row, stamp: int | None) -> None:
        if self._plan.late is not None:
            self._rows.append((self._plan.late, record))
            self._times.append(stamp)
        else:
            self.context.count(ledger.late_rows(self.context.uid), 1)

    def _into_window(self, span: Span, held: Span, record: Row, stamp: int | None) -> None:
        """Adds a record to a window; `held` is the place of the window's contents."""
        window = self._assigner.window(span)
        self._current.enter(held, window)
        at_ms = self.context.clock.wall_ms() if self._contents.by_clock else stamp
        if self._contents.add(self._state, record, at_ms) and self._waits(window.max_timestamp()):
            return
        self._current.enter(span, window)
        self._act(self._trigger.on_element(record, stamp, window, self._trigger_context), span, held)
        self._register_end(window)

    def _waits(self, last_ms: int) -> bool:
        """Says whether an open window has nothing to do before this, its last time: its first record set the timers."""
        return self._usual and (not self._assigner.event_time or last_ms > self._current.watermark_ms)

    # --- panes ---

    def _into_pane(self, panes: Panes, record: Row, stamp: int | None, at_ms: int) -> bool:
        """Adds a record to its pane; returns False if all windows of the pane are forgotten.

        The first record of a pane opens its windows. A later one concerns single windows only if some have fired.
        """
        assert isinstance(self._assigner, SpanAssigner)
        spans = self._assigner.spans
        if self._assigner.event_time and spans.due_ms(spans.last_window(at_ms)) <= self._forgotten_ms:
            return False
        opened = panes.add(at_ms, record)
        if not opened and self._waits(spans.first_end(at_ms) - 1):
            return True
        for span in self._assigner.assign(record, at_ms):
            window = self._assigner.window(span)
            if not opened and self._waits(window.max_timestamp()):
                break
            if not self._forgotten(window):
                self._current.enter(span, window)
                self._act(self._trigger.on_element(record, stamp, window, self._trigger_context), span, span)
                self._register_end(window)
        return True

    # --- sessions ---

    def _into_session(self, span: Span, record: Row, stamp: int | None) -> bool:
        """Adds a record to the session that it belongs to; returns False if that session would be forgotten."""
        sessions = Sessions(self._saved.value())
        merge = sessions.add(span)
        if self._forgotten(self._assigner.window(merge.window)):
            return False
        if merge.merged:
            self._merge(merge)
        self._save(sessions)
        self._into_window(merge.window, merge.held, record, stamp)
        return True

    def _merge(self, merge: Merge) -> None:
        """Merges trigger state and timers of the windows that are gone, and the contents of all into one place."""
        key, context = self._keyed.key, self._trigger_context
        self._current.enter(merge.window, self._assigner.window(merge.window))
        context.merged = [(*key, *span) for span in merge.merged]
        self._trigger.on_merge(self._current.window, context)
        for span in merge.merged:
            self._current.enter(span, self._assigner.window(span))
            self._trigger.clear(self._current.window, context)
            self._delete_end(self._current.window)
        if merge.moved:
            parts = []
            for span in (merge.held, *merge.moved):
                self._windowed.key = (*key, *span)
                parts.append(self._state.get())
                self._state.clear()
            self._windowed.key = (*key, *merge.held)
            self._state.update(self._contents.merged(parts))

    def _save(self, sessions: Sessions) -> None:
        saved = sessions.saved()
        if saved:
            self._saved.update(saved)
        else:
            self._saved.clear()

    # --- the end of windows ---

    def _end_ms(self, window: Window) -> int:
        """Returns the time at which a window is forgotten; the end of time if it never is."""
        last_ms = window.max_timestamp()
        return min(last_ms + self._plan.lateness_ms, MAX_WATERMARK) if self._assigner.event_time else last_ms

    def _forgotten(self, window: Window) -> bool:
        """Says whether a window of the current record's key is over, lateness included."""
        return self._assigner.event_time and window.max_timestamp() <= self._forgotten_ms

    def _register_end(self, window: Window) -> None:
        end_ms = self._end_ms(window)
        if end_ms == MAX_WATERMARK:
            return
        if self._assigner.event_time:
            self._timers.register_event_time_timer(end_ms)
        else:
            self._timers.register_processing_time_timer(end_ms)

    def _delete_end(self, window: Window) -> None:
        if self._assigner.event_time:
            self._timers.delete_event_time_timer(self._end_ms(window))
        else:
            self._timers.delete_processing_time_timer(self._end_ms(window))

    def _forget(self, span: Span, held: Span) -> None:
        """Removes everything that belongs to a window."""
        window = self._current.window
        self._current.enter(held, window)
        self._state.clear()
        if self._panes is not None:
            self._panes.forget(span)
        self._current.enter(span, window)
        self._trigger.clear(window, self._trigger_context)
        if self._plan.function is not None:
            self._plan.function.clear(self._window_context)
        if self._assigner.merging:
            sessions = Sessions(self._saved.value())
            sessions.remove(span)
            self._save(sessions)

    # --- firing ---

    def _fire(self, domain: TimeDomain, most: int, out: Output) -> int:
        fired = 0
        while fired < most and (due := self._timers.pop(domain)) is not None:
            timestamp_ms, key = due
            try:
                self._on_window_timer(timestamp_ms, key, domain)
            except SchemaMismatch:
                raise
            except Exception as error:
                where = f"a window that fires at {timestamp_ms} of {domain.value}, for the key {short(key[:-2])}"
                raise UserFunctionError(self.context.uid, self.context.subtask.index, where, error) from error
            fired += 1
            self._fired += 1
            if len(self._rows) >= FIRE_ROWS:
                self._emit(self._taken(), out)
        self._emit(self._taken(), out)
        return fired

    def _on_window_timer(self, timestamp_ms: int, windowed_key: Key, domain: TimeDomain) -> None:
        span: Span = windowed_key[-2:]
        self._keyed.key = windowed_key[:-2]
        held = Sessions(self._saved.value()).held(span) if self._assigner.merging else span
        if held is None:
            return  # a timer that a custom trigger left behind when the window was merged
        window = self._assigner.window(span)
        self._current.enter(span, window)
        self._current.watermark_ms = self._timers.current_watermark()
        of_event_time = domain is TimeDomain.EVENT_TIME
        if not of_event_time:
            self._reached(timestamp_ms + 1)
        call = self._trigger.on_event_time if of_event_time else self._trigger.on_processing_time
        of_window = of_event_time is self._assigner.event_time
        ends = of_window and timestamp_ms >= self._end_ms(window)
        self._act(call(timestamp_ms, window, self._trigger_context), span, held, ends)
        if ends:
            self._forget(span, held)
        elif of_window:
            self._register_end(window)  # the lateness may be longer than it was when the window was opened

    def _act(self, result: TriggerResult, span: Span, held: Span, ends: bool = False) -> None:
        """Does what the trigger decided for the current window. `ends`: it is forgotten then."""
        if not isinstance(result, TriggerResult):
            raise TypeError(f"the trigger returned {short(result)}: return a TriggerResult, as TriggerResult.CONTINUE")
        if result is TriggerResult.CONTINUE:
            return
        window = self._current.window
        self._current.enter(held, window)
        items, kept = self._state.get(), not (ends or result.is_purge())
        if self._panes is not None:
            assert not result.is_purge(), "a trigger that drops the contents of one window can't share panes"
            assert isinstance(self._contents, Folding)
            before = [self._contents.copied(item) for item in items]
            items, kept = self._contents.merged([before, self._panes.of_window(span)]), False
        if result.is_purge():
            self._state.clear()
        if items and result.is_fire():
            self._compute_window(items, span, held, kept)
        self._current.enter(span, window)

    def _compute_window(self, items: list[Any], span: Span, held: Span, kept: bool) -> None:
        evictor, window = self._plan.evictor, self._current.window
        if evictor is None:
            self._put(self._contents.elements(items, kept), span)
            return
        assert isinstance(self._contents, Timestamped)
        elements = self._contents.stamped(items)
        _evict(evictor.evict_before, elements, window, self._evictor_context)
        self._put(self._contents.left(elements), span)
        _evict(evictor.evict_after, elements, window, self._evictor_context)
        if kept:
            self._current.enter(held, window)
            self._state.update(self._contents.items(elements))

    def _put(self, elements: list[Any], span: Span) -> None:
        """Computes the results of the current window. They have its last time as event time."""
        self._current.enter(span, self._current.window)
        self._rows.extend(self._compute(elements))
        time = self._current.window.max_timestamp() if self._assigner.event_time else None
        self._times.extend([time] * (len(self._rows) - len(self._times)))

    def _taken(self) -> pa.RecordBatch | None:
        """Returns the results so far as a batch, each once."""
        rows, times = self._rows, self._times
        if not rows:
            return None
        self._rows, self._times = [], []
        return self._batch(rows, pa.array(times, pa.int64()))


def _evict(call: Callable[..., Any], elements: list[TimestampedValue], window: Window, context: Any) -> None:
    returned = call(elements, len(elements), window, context)
    if returned is not None:
        raise TypeError(
            f"the evictor returned {short(returned)}, which nobody looks at: remove records from the list that it is "
            "given, as in del elements[0], and return nothing"
        )


def _call(
    function: AnyWindowFunction | None, current: CurrentWindow, context: RuntimeWindowContext
) -> Callable[[list[Any]], Iterable[Any]]:
    """Returns how the results of a window are made of its elements."""
    if function is None:
        return lambda elements: elements
    if isinstance(function, ProcessAllWindowFunction):
        of_all = function.process
        return lambda elements: several_of(of_all(context, elements) or ())
    of_key = function.process
    return lambda elements: several_of(of_key(current.key_value, context, elements) or ())
