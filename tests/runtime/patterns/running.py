"""Runs a pattern over a few records of one key without a job: what it emits, and when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine.api.patterns import Pattern, checked_pattern
from engine.core.patterns import PatternSequence
from engine.runtime.patterns.compile import compiled
from engine.runtime.patterns.nfa import Nfa, Step
from engine.state.partial_matches import Event, PartialMatch

MATCH, TIMED_OUT = "match", "timed out"


@dataclass(frozen=True)
class Record:
    """The record of a test: its name, such as b2, its letter, its event time and a number."""

    name: str
    at: int
    n: int = 0

    @property
    def row(self) -> dict[str, Any]:
        return {"name": self.name, "letter": self.name[0], "n": self.n}


Found = tuple[int, str, tuple[tuple[str, int], ...]]
"""The event time, what it is, and its records: the name of the pattern and the number of the record."""


def records(text: str) -> list[Record]:
    """Returns the records of a text such as "a b1 b2", one second apart."""
    return [Record(name, 1000 * (place + 1)) for place, name in enumerate(text.split())]


def found(sequence: PatternSequence, given: Sequence[Record]) -> list[Found]:
    """Returns all that the pattern emits, in order, until the end of event time."""
    program = compiled(sequence)
    nfa = Nfa(program, lambda: 0)
    partial: list[PartialMatch] = []
    held: list[PartialMatch] = []
    results: list[Found] = []

    def done(step: Step, at: int) -> None:
        nonlocal partial, held
        partial, held = step.partial, step.held
        for what, matches in ((TIMED_OUT, step.timed_out), (MATCH, step.complete)):
            results.extend((at, what, chain(match)) for match in matches)

    def chain(match: PartialMatch) -> tuple[tuple[str, int], ...]:
        return tuple((program.places[link.place].name, link.event.number) for link in match.taken.chain())

    def advance(until: float) -> None:
        """Advances to each moment at which a partial match is over, as timers do."""
        while sequence.within_ms is not None and partial:
            at = min(match.first.time_ms for match in partial) + sequence.within_ms
            if at > until:
                break
            done(nfa.advance(partial, held, at), at)

    for number, record in enumerate(given):
        advance(record.at)
        done(nfa.process(partial, held, Event(number, record.at, record.row)), record.at)
    advance(float("inf"))
    done(nfa.finish(held), -1)
    return results


def matches(pattern: Pattern, text: str) -> list[str]:
    """Returns the matches of a pattern as texts such as "a b1 c", sorted."""
    given = records(text)
    all_found = found(checked_pattern(pattern), given)
    return sorted(" ".join(given[n].name for _, n in chain) for _, what, chain in all_found if what == MATCH)
