"""`Nfa`: moves the partial matches of one key with each record and with time. Pure but for the author's conditions.

A partial match is one chain of records, with the edges by which it may still grow. A record that fits an edge makes a
new, longer partial match; what becomes of the old one is a matter of contiguity:

    strict    every edge closes with the next record
    relaxed   an edge closes with the first record that fits it
    any       an edge stays open

A partial match without open edges is dropped. No two partial matches hold the same chain, unless a group that repeats
holds what repeats itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from engine.core.nearest import nearest
from engine.core.patterns import Condition, ConditionContext, Contiguity, Row
from engine.runtime.patterns.compile import Edge, Place, Program
from engine.runtime.patterns.skipping import emitted, in_order
from engine.state.partial_matches import Event, PartialMatch, Taken


@dataclass
class Step:
    """What one record or one moment led to. `complete`: matches to emit; `timed_out`: partial matches to report."""

    partial: list[PartialMatch]
    held: list[PartialMatch]
    complete: list[PartialMatch] = field(default_factory=list)
    timed_out: list[PartialMatch] = field(default_factory=list)


class Nfa:
    """`wall_ms`: the clock, for conditions that ask for it."""

    def __init__(self, program: Program, wall_ms: Callable[[], int]) -> None:
        self._program = program
        self._places = program.places
        self._context = _Context(program, wall_ms)

    def advance(self, partial: list[PartialMatch], held: list[PartialMatch], time_ms: int) -> Step:
        """Ends the partial matches whose time is over at `time_ms`: they are matches if only that was missing."""
        within_ms = self._program.within_ms
        if within_ms is None:
            return Step(partial, held)
        over = [match for match in partial if time_ms - match.first.time_ms >= within_ms]
        if not over:
            return Step(partial, held)
        left = [match for match in partial if time_ms - match.first.time_ms < within_ms]
        complete = [match for match in over if self._places[match.taken.place].pending]
        timed_out = [match for match in over if not self._places[match.taken.place].pending]
        step = self._ended(left, held, complete)
        step.timed_out = in_order(self._program, timed_out)
        return step

    def process(self, partial: list[PartialMatch], held: list[PartialMatch], event: Event) -> Step:
        """Moves the partial matches with a record, and begins new ones with it. `advance` to its time comes first."""
        grown: list[PartialMatch] = []
        complete: list[PartialMatch] = []
        self._context.begin(event)
        for match in partial:
            self._move(match, event, grown, complete)
        self._context.match = None
        for edge in self._program.starts:
            if self._begins(edge):
                self._take(edge.target, event, None, grown, complete)
        return self._ended(grown, held, complete)

    def finish(self, held: list[PartialMatch]) -> Step:
        """Emits the matches that were held back: no partial match can become one any more."""
        return self._ended([], held, [])

    def _ended(self, partial: list[PartialMatch], held: list[PartialMatch], complete: list[PartialMatch]) -> Step:
        if not complete and not held:
            return Step(partial, held)
        partial, held, complete = emitted(self._program, partial, held, complete)
        return Step(partial, held, complete)

    def _move(self, match: PartialMatch, event: Event, grown: list[PartialMatch], complete: list[PartialMatch]) -> None:
        place, context = self._places[match.taken.place], self._context
        context.match = match
        if any(map(context.holds, place.stops_any)):
            return
        if match.fresh:
            if any(map(context.holds, place.stops_next)):
                return
            if place.ends_next:
                complete.append(match)
        left = self._left(match, place, event, grown, complete)
        if left or place.pending:
            same = left == match.open and not match.fresh
            grown.append(match if same else PartialMatch(match.taken, match.first, left, False))

    def _left(
        self,
        match: PartialMatch,
        place: Place,
        event: Event,
        grown: list[PartialMatch],
        complete: list[PartialMatch],
    ) -> tuple[int, ...]:
        """Takes the record by each open edge that it fits; returns the edges that stay open."""
        context, left = self._context, []
        for number in match.open:
            edge = place.edges[number]
            if edge.released is not None and any(context.met(guard.until) for guard in edge.guards):
                number = edge.released
                edge = place.edges[number]
            if any(context.holds(guard.condition) for guard in edge.guards) or context.met(edge.until):
                continue
            target = self._places[edge.target]
            fits = context.holds(target.condition) and not context.met(target.refuses)
            if fits:
                self._take(edge.target, event, match, grown, complete)
            if edge.contiguity is Contiguity.ANY or (edge.contiguity is Contiguity.RELAXED and not fits):
                left.append(number)
        return tuple(left)

    def _begins(self, edge: Edge) -> bool:
        context, target = self._context, self._places[edge.target]
        if any(context.holds(guard.condition) and not context.met(guard.until) for guard in edge.guards):
            return False
        return context.holds(target.condition) and not context.met(target.refuses)

    def _take(
        self,
        number: int,
        event: Event,
        match: PartialMatch | None,
        grown: list[PartialMatch],
        complete: list[PartialMatch],
    ) -> None:
        place = self._places[number]
        taken = Taken(number, event, match.taken if match is not None else None)
        longer = PartialMatch(taken, match.first if match is not None else event, place.opens, True)
        if place.accepts:
            complete.append(longer)
        if place.opens or place.pending or place.ends_next:
            grown.append(longer)


class _Context(ConditionContext):
    """Asks conditions about one record. One that does not look at the partial match is asked once per record."""

    def __init__(self, program: Program, wall_ms: Callable[[], int]) -> None:
        self._places = program.places
        self._names = program.names
        self._wall_ms = wall_ms
        self.match: PartialMatch | None = None

    def begin(self, event: Event) -> None:
        self._event = event
        self._known: dict[int, bool] = {}

    def holds(self, condition: Condition | None) -> bool:
        """Says whether the record meets a condition; a pattern without one takes every record."""
        if condition is None:
            return True
        if condition.iterative:
            return bool(condition.test(self._event.record, self))
        known = self._known.get(id(condition))
        if known is None:
            known = self._known[id(condition)] = bool(condition.test(self._event.record, self))
        return known

    def met(self, condition: Condition | None) -> bool:
        """Says whether there is such a condition and the record meets it."""
        return condition is not None and self.holds(condition)

    def timestamp(self) -> int:
        return self._event.time_ms

    def current_processing_time(self) -> int:
        return self._wall_ms()

    def events_for_pattern(self, name: str) -> list[Row]:
        if name not in self._names:
            raise ValueError(f"there is no pattern {name!r}{nearest(name, self._names)}; there are: {self._names}")
        chain = self.match.taken.chain() if self.match is not None else []
        return [link.event.record for link in chain if self._places[link.place].name == name]
