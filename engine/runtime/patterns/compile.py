"""Compiles a pattern into places. Pure.

A place is where a partial match stands after a record was taken: one for each stage and, if the stage repeats, for each
time. Its edges are what the next record of the match may be. Repetition is unrolled up to the least number of times,
or to the most if there is a limit; without one the last place has an edge to itself.

`not_next` and `not_followed_by` are no places: they are stops of the places before them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise

from engine.core.patterns import AfterMatchSkipStrategy, Condition, Contiguity, PatternSequence, Stage


@dataclass(frozen=True)
class Guard:
    """Closes an edge: no record after a greedy stage may be one that the stage would take, until `until` holds."""

    condition: Condition | None
    until: Condition | None


@dataclass(frozen=True)
class Edge:
    """The record that may be taken next, at `target`. `until` closes the edge; `guards` are of greedy stages.

    `released`: the number of the same edge without guards, to which a partial match changes when their `until` holds.
    """

    target: int
    contiguity: Contiguity
    until: Condition | None = None
    guards: tuple[Guard, ...] = ()
    released: int | None = None


@dataclass
class Place:
    """`condition` takes a record here, unless `refuses` holds.

    A record for which one of `stops_any` holds discards the partial match, and the record directly after the last one
    does if one of `stops_next` holds. `accepts`: a match ends here. `ends_next`: it ends with the next record, which is
    not part of it. `pending`: it ends when its time is over.
    """

    label: str
    name: str
    condition: Condition | None
    refuses: Condition | None
    edges: list[Edge] = field(default_factory=list)
    stops_next: list[Condition] = field(default_factory=list)
    stops_any: list[Condition] = field(default_factory=list)
    accepts: bool = False
    ends_next: bool = False
    pending: bool = False
    opens: tuple[int, ...] = ()
    """The numbers of the edges that are open when a record was taken."""


@dataclass(frozen=True)
class Program:
    """A compiled pattern. `starts`: the edges by which each record may begin a match."""

    places: tuple[Place, ...]
    starts: tuple[Edge, ...]
    names: tuple[str, ...]
    skip: AfterMatchSkipStrategy
    within_ms: int | None


@dataclass(frozen=True)
class _First:
    """A place that may be the first of a fragment; `contiguity` is None if it is that of the whole fragment."""

    place: int
    contiguity: Contiguity | None = None
    guards: tuple[Guard, ...] = ()


@dataclass(frozen=True)
class _Last:
    place: int
    guards: tuple[Guard, ...] = ()


@dataclass(frozen=True)
class _Fragment:
    firsts: tuple[_First, ...]
    lasts: tuple[_Last, ...]
    inside: tuple[int, ...] = ()
    """The places of a single stage: `not_followed_by` behind it counts from its first record on."""


def compiled(pattern: PatternSequence) -> Program:
    return _Compiler().program(pattern)


class _Compiler:
    def __init__(self) -> None:
        self._places: list[Place] = []
        self._copies: dict[str, int] = {}

    def program(self, pattern: PatternSequence) -> Program:
        whole = self._sequence(pattern.stages)
        trailing = [stage for stage in _trailing(pattern.stages) if stage.negated]
        for last in whole.lasts:
            place = self._places[last.place]
            place.pending = any(stage.contiguity is Contiguity.RELAXED for stage in trailing)
            place.ends_next = bool(trailing) and not place.pending
            place.accepts = not trailing
        for place in self._places:
            place.opens = tuple(range(len(place.edges)))
            self._add_released(place)
        starts = tuple(Edge(first.place, Contiguity.ANY, guards=first.guards) for first in whole.firsts)
        return Program(tuple(self._places), starts, tuple(pattern.names), pattern.skip, pattern.within_ms)

    def _sequence(self, stages: tuple[Stage, ...]) -> _Fragment:
        firsts: list[_First] = []
        lasts: list[_Last] = []
        skipped: tuple[Guard, ...] = ()
        before: _Fragment | None = None
        only_optional = True
        for number, stage in enumerate(stages):
            if stage.negated:
                assert before is not None and stage.condition is not None
                self._add_stop(stage.contiguity, stage.condition, before)
                continue
            fragment = self._fragment(stage)
            self._join(lasts, fragment.firsts, stage.contiguity)
            if only_optional:
                own = stage.contiguity if number else None
                for first in fragment.firsts:
                    firsts.append(replace(first, contiguity=first.contiguity or own, guards=skipped + first.guards))
            if stage.skippable:
                skipped += _guards(stage)
                lasts = [*fragment.lasts, *(replace(last, guards=last.guards + _guards(stage)) for last in lasts)]
            else:
                lasts, only_optional = list(fragment.lasts), False
            before = fragment
        return _Fragment(tuple(firsts), tuple(lasts))

    def _fragment(self, stage: Stage) -> _Fragment:
        """Returns the places of one stage, as often as it repeats."""
        rounds = [self._round(stage) for _ in range(stage.most or stage.least)]
        for one, following in pairwise(rounds):
            self._join(one.lasts, following.firsts, stage.inner, stage.until)
        if stage.most is None:
            self._join(rounds[-1].lasts, rounds[-1].firsts, stage.inner, stage.until)
        ends = (last for number, one in enumerate(rounds, 1) if number >= stage.least for last in one.lasts)
        lasts = tuple(replace(last, guards=last.guards + _guards(stage)) for last in ends)
        inside = () if stage.group else tuple(last.place for one in rounds for last in one.lasts)
        return _Fragment(rounds[0].firsts, lasts, inside)

    def _round(self, stage: Stage) -> _Fragment:
        if stage.group:
            return self._sequence(stage.group)
        copy = self._copies[stage.name] = self._copies.get(stage.name, 0) + 1
        label = stage.name if copy == 1 else f"{stage.name}:{copy}"
        self._places.append(Place(label, stage.name, stage.condition, stage.until))
        number = len(self._places) - 1
        return _Fragment((_First(number),), (_Last(number),))

    def _join(
        self,
        lasts: Iterable[_Last],
        firsts: Iterable[_First],
        contiguity: Contiguity,
        until: Condition | None = None,
    ) -> None:
        firsts = list(firsts)
        for last in lasts:
            for first in firsts:
                edge = Edge(first.place, first.contiguity or contiguity, until, last.guards + first.guards)
                self._places[last.place].edges.append(edge)

    def _add_stop(self, contiguity: Contiguity, condition: Condition, before: _Fragment) -> None:
        lasts = {last.place for last in before.lasts}
        for number in lasts | set(before.inside):
            if contiguity is Contiguity.RELAXED:
                self._places[number].stops_any.append(condition)
            elif number in lasts:
                self._places[number].stops_next.append(condition)

    def _add_released(self, place: Place) -> None:
        for number, edge in enumerate(list(place.edges)):
            if any(guard.until is not None for guard in edge.guards):
                place.edges[number] = replace(edge, released=len(place.edges))
                place.edges.append(replace(edge, guards=()))


def _guards(stage: Stage) -> tuple[Guard, ...]:
    return (Guard(stage.condition, stage.until),) if stage.greedy else ()


def _trailing(stages: tuple[Stage, ...]) -> Iterable[Stage]:
    """Returns the stages after the last one that takes records."""
    for number in range(len(stages), 0, -1):
        if not stages[number - 1].negated:
            return stages[number:]
    return ()
