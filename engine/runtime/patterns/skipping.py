"""Applies the skip strategy after a match: decides which matches are emitted now, held back, and discarded. Pure.

A strategy that discards looks at the matches in the order of their first records. So a match is held back while a
partial match that began before it may still become one. Matches that begin with the same record and end together are
in the order of their records, compared one by one: that whose records are earlier comes first.
"""

from __future__ import annotations

from engine.core.patterns import Skip
from engine.runtime.patterns.compile import Program
from engine.state.partial_matches import PartialMatch

_Lists = tuple[list[PartialMatch], list[PartialMatch], list[PartialMatch]]


def in_order(program: Program, matches: list[PartialMatch]) -> list[PartialMatch]:
    """Returns matches in the order in which they are emitted, each once: a loop in a loop finds some twice."""
    if len(matches) < 2:
        return matches
    rank = {name: place for place, name in enumerate(program.names)}
    each: dict[tuple[tuple[int, int], ...], PartialMatch] = {}
    for match in matches:
        chain = ((link.event.number, rank[program.places[link.place].name]) for link in match.taken.chain())
        each.setdefault(tuple(chain), match)
    return [each[chain] for chain in sorted(each)]


def emitted(program: Program, partial: list[PartialMatch], held: list[PartialMatch], new: list[PartialMatch]) -> _Lists:
    """Returns the partial matches that are left, those that are held back, and the matches to emit."""
    if program.skip.skip is Skip.NO_SKIP:
        return partial, held, in_order(program, new)
    waiting, complete = [*held, *in_order(program, new)], []
    waiting.sort(key=lambda match: match.first.number)
    while waiting:
        match = waiting[0]
        if any(other.first.number < match.first.number for other in partial):
            break
        complete.append(match)
        begins = _first_kept(program, match)
        partial = [other for other in partial if other.first.number >= begins]
        waiting = [other for other in waiting[1:] if other.first.number >= begins]
    return partial, waiting, complete


def _first_kept(program: Program, match: PartialMatch) -> int:
    """Returns the number of the first record with which another match may begin."""
    skip, chain = program.skip, match.taken.chain()
    match skip.skip:
        case Skip.TO_NEXT:
            return chain[0].event.number + 1
        case Skip.PAST_LAST_EVENT:
            return chain[-1].event.number + 1
    named = [link.event.number for link in chain if program.places[link.place].name == skip.name]
    if not named:
        if skip.throws:
            raise ValueError(f"{skip.described()}: a match has no record of the pattern {skip.name!r} to skip to")
        return chain[0].event.number
    to = named[0] if skip.skip is Skip.TO_FIRST else named[-1]
    if skip.throws and to == chain[0].event.number:
        raise ValueError(f"{skip.described()}: a match begins with the record of {skip.name!r} that it has to skip to")
    return to
