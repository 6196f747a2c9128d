"""`DetectPattern`: looks for a pattern in the records of each key, in the order of event time (A11).

A record waits until the watermark reaches its time. An event-time timer then hands the records of that time to the NFA,
in the order in which they arrived, or as the comparator says. Other timers end partial matches whose time is over. A
record that comes after the watermark is late: it is counted, or goes to a side output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cmp_to_key
from typing import Any, TypeAlias

import pyarrow as pa

from engine.core.authors import defined_at
from engine.core.errors import SchemaMismatch
from engine.core.functions import OnTimerContext, Row
from engine.core.pattern_functions import Match, MatchContext, PatternProcessFunction
from engine.core.tags import OutputTag
from engine.protocol import ledger
from engine.protocol.signals import MAX_WATERMARK
from engine.runtime.operators.base import EVENT_TIME, OperatorContext, RestoredState, StatePart
from engine.runtime.operators.records import short
from engine.runtime.operators.rows import KeyedRowOperator, several_of, stamps_of
from engine.runtime.patterns.compile import Program
from engine.runtime.patterns.nfa import Nfa, Step
from engine.state.copies import copier
from engine.state.keyed.backend import Key
from engine.state.partial_matches import PATTERN_PARTS, Event, OfKey, PartialMatch, PatternState

Comparator: TypeAlias = Callable[[Row, Row], int]
"""Says which of two records with the same event time comes first: less than 0 if it is the left one."""


class DetectPattern(KeyedRowOperator):
    emits_aside = True
    _timer_call = "the pattern at"

    def __init__(
        self,
        function: PatternProcessFunction,
        program: Program,
        keys: Sequence[str],
        input_schema: pa.Schema,
        schema: pa.Schema,
        late: OutputTag | None = None,
        comparator: Comparator | None = None,
    ) -> None:
        super().__init__(function, keys, input_schema, schema)
        self._function = function
        self._line = defined_at(getattr(function, "written", function.process_match))
        self._program = program
        self._record_type = pa.struct([field for field in input_schema if field.name != EVENT_TIME])
        self._copy = copier(self._record_type)
        self._late = late
        self._comparator = comparator

    @property
    def _has_timers(self) -> bool:
        return True

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        labels = [place.label for place in self._program.places]
        self._state = PatternState(self._fields, self._record_type, labels)
        self._nfa = Nfa(self._program, context.clock.wall_ms)
        self._match_context = _MatchContext(context.clock.wall_ms)
        super().open(context, restored)

    def _restore_part(self, context: OperatorContext, name: str, table: pa.Table) -> None:
        if name in PATTERN_PARTS:
            self._state.restore(name, table)
        else:
            super()._restore_part(context, name, table)

    def _open_states(self) -> None:
        self._state.load(self._keyed.canonical)

    def _keyed_parts(self) -> Iterable[StatePart]:
        own = [StatePart(name, table, self._keys) for name, table in self._state.snapshot()]
        return [*super()._keyed_parts(), *own]

    # --- records ---

    def _apply(self, batch: pa.RecordBatch, records: Sequence[Row], done: list[Any]) -> pa.RecordBatch | None:
        keys, watermarks = self._keys_of(batch, self._keys), self._watermarks_of(batch, self._keys)
        late: list[Any] = []
        times: list[int] = []
        untimed = 0
        for key, record, stamp, watermark in zip(keys, records, stamps_of(batch), watermarks, strict=True):
            if stamp is None:
                untimed += 1
            elif stamp <= watermark:
                late.append((self._late, record))
                times.append(stamp)
            else:
                self._wait(key, stamp, record)
            done.append(None)
        if untimed:
            self.context.count(ledger.untimed_rows(self.context.uid), untimed)
        if late and self._late is None:
            self.context.count(ledger.late_rows(self.context.uid), len(late))
            return None
        return self._batch(late, pa.array(times, pa.int64())) if late else None

    def _wait(self, key: Key, stamp: int, record: Row) -> None:
        of = self._state.keys.get(key)
        if of is None:
            of = self._state.keys[key] = OfKey()
        rows = of.waiting.get(stamp)
        if rows is None:
            of.waiting[stamp] = [record]
            self._keyed.key = key
            self._timers.register_event_time_timer(stamp)
        else:
            rows.append(record)

    # --- time ---

    def _on_timer(self, timestamp_ms: int, context: OnTimerContext) -> Iterable[Any]:
        key = context.current_key
        of = self._state.keys.get(key)
        if of is None:
            return []  # the partial matches for which it was registered are gone
        self._match_context.begin(context, timestamp_ms)
        held = bool(of.held)
        results: list[Any] = []
        self._done_with(self._nfa.advance(of.partial, of.held, timestamp_ms), of, results)
        for event in self._events(of, timestamp_ms):
            self._done_with(self._nfa.process(of.partial, of.held, event), of, results)
        if timestamp_ms == MAX_WATERMARK:
            self._done_with(self._nfa.finish(of.held), of, results)
        self._register(of, timestamp_ms, held)
        if of.empty:
            del self._state.keys[key]
        return results

    def _events(self, of: OfKey, timestamp_ms: int) -> list[Event]:
        rows = of.waiting.pop(timestamp_ms, [])
        if self._comparator is not None and len(rows) > 1:
            rows = sorted(rows, key=cmp_to_key(self._comparator))
        first, of.seen = of.seen, of.seen + len(rows)
        return [Event(number, timestamp_ms, row) for number, row in enumerate(rows, first)]

    def _register(self, of: OfKey, now_ms: int, held: bool) -> None:
        """Registers the moment at which partial matches that have just begun are over, and the end of all time."""
        within_ms = self._program.within_ms
        if within_ms is not None and any(match.first.time_ms == now_ms for match in of.partial):
            self._timers.register_event_time_timer(now_ms + within_ms)
        if of.held and not held:
            self._timers.register_event_time_timer(MAX_WATERMARK)
        elif held and not of.held:
            self._timers.delete_event_time_timer(MAX_WATERMARK)

    def _done_with(self, step: Step, of: OfKey, results: list[Any]) -> None:
        of.partial, of.held = step.partial, step.held
        function, context = self._function, self._match_context
        if function.has_time_out:
            for match in step.timed_out:
                found = several_of(function.process_timed_out_match(self._of_match(match), context) or ())
                results.extend(map(self._only_aside, found))
        for match in step.complete:
            results.extend(several_of(function.process_match(self._of_match(match), context) or ()))

    def _of_match(self, match: PartialMatch) -> Match:
        """Returns copies of the records of a match: other matches share them."""
        named: Match = _Named((name, []) for name in self._program.names)
        for link in match.taken.chain():
            named[self._program.places[link.place].name].append(self._copy(link.event.record))
        return named

    def _only_aside(self, emitted: Any) -> Any:
        if type(emitted) is not tuple:
            raise SchemaMismatch(
                f"{self._named}: process_timed_out_match emitted {short(emitted)}: what timed out goes to side outputs "
                "only: write yield TAG, record"
            )
        return emitted


class _Named(dict[str, list[Row]]):
    def __missing__(self, name: str) -> list[Row]:
        raise KeyError(f"the match has no pattern {name!r}: it has {', '.join(map(repr, self))}")


class _MatchContext(MatchContext):
    def __init__(self, wall_ms: Callable[[], int]) -> None:
        self._wall_ms = wall_ms

    def begin(self, context: OnTimerContext, timestamp_ms: int) -> None:
        self._timer, self._timestamp_ms = context, timestamp_ms

    def timestamp(self) -> int:
        return self._timestamp_ms

    def current_processing_time(self) -> int:
        return self._wall_ms()

    def get_current_key(self) -> Any:
        return self._timer.get_current_key()
