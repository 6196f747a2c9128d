"""What a pattern must emit, by the rules of docs/patterns.md, found by trying everything.

It spells a pattern out as words: sequences of elements, one for each record that a match may hold. Each word is laid on
each choice of records, and each gap between two records is checked by the rules of contiguity. It shares only the
values of `engine/core/patterns.py` with the engine, which keeps partial matches instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine.core.patterns import Condition, Contiguity, PatternSequence, Skip, Stage
from tests.runtime.patterns.running import MATCH, TIMED_OUT, Found, Record


@dataclass(frozen=True)
class Element:
    """One record of a match. `again`: it repeats its stage, so `until` holds in the gap before it as well.

    `over`: the greedy stages that end or are left out directly before it. `enough`: its stage may end with it.
    """

    stage: Stage
    contiguity: Contiguity | None
    again: bool = False
    over: tuple[Stage, ...] = ()
    enough: bool = True
    nots: tuple[Stage, ...] = ()


Word = tuple[Element, ...]
Spelled = tuple[Word, tuple[Stage, ...]]
"""A word, and the greedy stages that end with it."""
Chain = tuple[int, ...]


class BruteForce:
    def __init__(self, pattern: PatternSequence, given: Sequence[Record]) -> None:
        self._pattern = pattern
        self._given = given
        self._rows = [record.row for record in given]
        size = len(given) + 1 + _least(pattern.stages)
        self._words = [word for word, _ in _spelled(pattern.stages, size) if word]
        self._last_nots = _nots_at(pattern.stages, _last_positive(pattern.stages))
        self._prefixes = {word[:length] for word in self._words for length in range(1, len(word) + 1)}
        self._next: dict[Word, list[Element]] = {}
        for prefix in self._prefixes:
            self._next.setdefault(prefix[:-1], []).append(prefix[-1])
        self._whole = set(self._words)
        self._laid = list(self._lay((), ()))

    # --- laying words on records ---

    def _lay(self, word: Word, chain: Chain) -> Iterator[tuple[Word, Chain]]:
        if word:
            yield word, chain
        for element in self._next.get(word, []):
            for at in range(chain[-1] + 1 if chain else 0, len(self._given)):
                if self._takes(word, chain, element, at):
                    yield from self._lay((*word, element), (*chain, at))

    def _takes(self, word: Word, chain: Chain, element: Element, at: int) -> bool:
        """Says whether a match may go on with this record."""
        if chain and not self._waits(word, chain, element, at - 1):
            return False
        if chain and self._stopped(word, chain, at):
            return False
        if self._too_long(chain, self._given[at].at):
            return False
        if self._kept_by_greedy(word, chain, element, at, at):
            return False
        stage = element.stage
        return self._holds(stage.condition, word, chain, at) and not (
            stage.until is not None and self._holds(stage.until, word, chain, at)
        )

    def _waits(self, word: Word, chain: Chain, element: Element, until: int) -> bool:
        """Says whether the match may still wait for this element after the record `until`."""
        gap = range(chain[-1] + 1, until + 1)
        stage = element.stage
        if element.contiguity is Contiguity.STRICT and gap:
            return False
        if element.again and stage.until and any(self._holds(stage.until, word, chain, at) for at in gap):
            return False
        if self._kept_by_greedy(word, chain, element, chain[-1] + 1, until):
            return False
        if element.contiguity is Contiguity.RELAXED:
            for at in gap:
                refused = stage.until is not None and self._holds(stage.until, word, chain, at)
                if self._holds(stage.condition, word, chain, at) and not refused:
                    return False
        return not self._stopped(word, chain, until)

    def _kept_by_greedy(self, word: Word, chain: Chain, element: Element, first: int, last: int) -> bool:
        """Says whether a record belongs to a greedy stage that ends before this element."""
        since = chain[-1] + 1 if chain else last
        for stage in element.over:
            for at in range(first, last + 1):
                before = range(since, at + 1)
                ended = stage.until is not None and any(self._holds(stage.until, word, chain, n) for n in before)
                if not ended and self._holds(stage.condition, word, chain, at):
                    return True
        return False

    def _stopped(self, word: Word, chain: Chain, until: int) -> bool:
        """Says whether a record up to `until` is one that must not occur."""
        gap = range(chain[-1] + 1, until + 1)
        for stage in word[-1].nots:
            if stage.contiguity is Contiguity.STRICT:
                if word[-1].enough and gap and self._holds(stage.condition, word, chain, gap[0]):
                    return True
            elif any(self._holds(stage.condition, word, chain, at) for at in gap):
                return True
        return False

    def _too_long(self, chain: Chain, at_ms: int) -> bool:
        within = self._pattern.within_ms
        return bool(chain) and within is not None and at_ms - self._given[chain[0]].at >= within

    def _holds(self, condition: Condition | None, word: Word, chain: Chain, at: int) -> bool:
        return condition is None or bool(condition.test(self._rows[at], _Seen(self._rows, word, chain)))

    # --- what is emitted, and when ---

    def results(self) -> list[Found]:
        """Goes through the moments in order: the time-outs before each record, the record, and the end."""
        self._begins, self._held = 0, list[tuple[Word, Chain]]()
        out: list[Found] = []
        for at in range(len(self._given)):
            for moment in self._time_outs(at):
                out += self._timed_out(at, moment)
            out += self._emitted([one for one in self._laid if self._completes(*one) == at], at, self._given[at].at)
        for moment in self._time_outs(len(self._given)):
            out += self._timed_out(len(self._given), moment)
        return out + self._released(set(), -1)

    def _completes(self, word: Word, chain: Chain) -> int | None:
        """Returns the number of the record at which a match is complete."""
        if word not in self._whole or any(stage.contiguity is Contiguity.RELAXED for stage in self._last_nots):
            return None
        if not self._last_nots:
            return chain[-1]
        at = chain[-1] + 1
        late = at >= len(self._given) or self._too_long(chain, self._given[at].at)
        return None if late or self._stopped(word, chain, at) else at

    def _time_outs(self, at: int) -> list[int]:
        """Returns the moments, in order, at which matches are over before the record of this number."""
        within = self._pattern.within_ms
        if within is None:
            return []
        before = self._given[at - 1].at if at else -1
        now = self._given[at].at if at < len(self._given) else 10**9
        over = sorted({record.at + within for record in self._given[:at]})
        return [moment for moment in over if before < moment <= now]

    def _timed_out(self, at: int, moment: int) -> list[Found]:
        """`at`: the number of the first record that is not seen yet."""
        within = self._pattern.within_ms
        assert within is not None
        over = [
            (word, chain)
            for word, chain in self._alive(at - 1)
            if self._given[chain[0]].at + within == moment and chain[0] >= self._begins
        ]
        pending = [one for one in over if self._is_pending(one[0])]
        late = [one for one in over if not self._is_pending(one[0])]
        told = [(moment, TIMED_OUT, _named(*one)) for one in _once(self._pattern, late)]
        return [*told, *self._emitted(pending, at - 1, moment, moment)]

    def _is_pending(self, word: Word) -> bool:
        return word in self._whole and any(stage.contiguity is Contiguity.RELAXED for stage in self._last_nots)

    def _alive(self, until: int) -> list[tuple[Word, Chain]]:
        """Returns the partial matches that can still grow after the record `until`."""
        alive = []
        for word, chain in self._laid:
            if chain[-1] > until or self._stopped(word, chain, until):
                continue
            waits = any(self._waits(word, chain, element, until) for element in self._next.get(word, []))
            ends_next = word in self._whole and bool(self._last_nots) and chain[-1] == until
            if waits or ends_next or self._is_pending(word):
                alive.append((word, chain))
        return alive

    def _emitted(self, new: list[tuple[Word, Chain]], at: int, time: int, over: int | None = None) -> list[Found]:
        new = _once(self._pattern, [one for one in new if one[1][0] >= self._begins])
        if self._pattern.skip.skip is Skip.NO_SKIP:
            return [(time, MATCH, _named(*one)) for one in new]
        self._held += new
        within = self._pattern.within_ms
        begun = {
            chain[0]
            for _, chain in self._alive(at)
            if within is None or self._given[chain[0]].at + within > (time if over is None else over)
        }
        return self._released(begun, time)

    def _released(self, begun: set[int], time: int) -> list[Found]:
        """Emits the matches before which no other one can begin any more. Sorting keeps the order of completion."""
        out: list[Found] = []
        while True:
            self._held = sorted((o for o in self._held if o[1][0] >= self._begins), key=lambda one: one[1][0])
            begun = {first for first in begun if first >= self._begins}
            if not self._held or any(first < self._held[0][1][0] for first in begun):
                return out
            word, chain = self._held.pop(0)
            out.append((time, MATCH, _named(word, chain)))
            self._begins = max(self._begins, self._kept(word, chain))

    def _kept(self, word: Word, chain: Chain) -> int:
        skip = self._pattern.skip
        if skip.skip is Skip.TO_NEXT:
            return chain[0] + 1
        if skip.skip is Skip.PAST_LAST_EVENT:
            return chain[-1] + 1
        named = [at for element, at in zip(word, chain, strict=True) if element.stage.name == skip.name]
        return (named[0] if skip.skip is Skip.TO_FIRST else named[-1]) if named else 0


class _Seen:
    """The context of a condition."""

    def __init__(self, rows: Sequence[dict[str, Any]], word: Word, chain: Chain) -> None:
        self._rows, self._word, self._chain = rows, word, chain

    def events_for_pattern(self, name: str) -> list[dict[str, Any]]:
        taken = zip(self._word, self._chain, strict=True)
        return [self._rows[at] for element, at in taken if element.stage.name == name]


def _named(word: Word, chain: Chain) -> tuple[tuple[str, int], ...]:
    return tuple((element.stage.name, at) for element, at in zip(word, chain, strict=True))


def _once(pattern: PatternSequence, laid: list[tuple[Word, Chain]]) -> list[tuple[Word, Chain]]:
    """Returns what was found in the order of its records, each once: two words may be the same match."""
    places = {name: place for place, name in enumerate(pattern.names)}
    each = {_named(*one): one for one in laid}
    return [each[named] for named in sorted(each, key=lambda named: [(at, places[name]) for name, at in named])]


# --- spelling ---


def _spelled(stages: tuple[Stage, ...], size: int) -> list[Spelled]:
    """Returns all words of a sequence of at most `size` elements; the empty one, too, if all is optional.

    The first element has no contiguity if it belongs to the first stage: that of the group counts for it.
    """
    words: list[Spelled] = [((), ())]
    for place, stage in enumerate(stages):
        if stage.negated:
            continue
        longer = []
        for word, over in words:
            if stage.optional:
                longer.append((word, (*over, stage) if stage.greedy else over))
            for more, ended in _times(stage, _nots_at(stages, place), size - len(word)):
                if not more:
                    longer.append((word, over))
                    continue
                own = more[0].contiguity or (stage.contiguity if place else None)
                joined = replace(more[0], contiguity=own, over=(*over, *more[0].over))
                longer.append(((*word, joined, *more[1:]), ended))
        words = longer
    return words


def _times(stage: Stage, nots: tuple[Stage, ...], size: int) -> list[Spelled]:
    most = size if stage.most is None else min(stage.most, size)
    if not stage.group:
        ended = (stage,) if stage.greedy else ()
        return [
            (tuple(_element(stage, number, nots) for number in range(count)), ended)
            for count in range(stage.least, most + 1)
        ]
    one = _spelled(stage.group, size)
    words: list[Spelled] = []
    rounds: list[Spelled] = [((), ())]
    for count in range(1, most + 1):
        longer: list[Spelled] = []
        for word, over in rounds:
            for more, ended in one:
                if more and word:
                    again = more[0].contiguity or stage.inner
                    more = (replace(more[0], contiguity=again, over=(*over, *more[0].over)), *more[1:])
                if len(word) + len(more) <= size:
                    longer.append(((*word, *more), ended))
        rounds = longer
        if count >= stage.least:
            words += rounds
    return words


def _element(stage: Stage, number: int, nots: tuple[Stage, ...]) -> Element:
    enough = number + 1 >= stage.least
    return Element(stage, stage.inner if number else None, again=number > 0, enough=enough, nots=nots)


def _least(stages: tuple[Stage, ...]) -> int:
    """Returns how many records a match holds if nothing optional is left out and nothing repeats more than it must."""
    return sum(stage.least * (_least(stage.group) if stage.group else 1) for stage in stages if not stage.negated)


def _nots_at(stages: tuple[Stage, ...], place: int) -> tuple[Stage, ...]:
    """Returns what must not occur directly behind the stage of this number."""
    behind = []
    for stage in stages[place + 1 :]:
        if not stage.negated:
            break
        behind.append(stage)
    return tuple(behind)


def _last_positive(stages: tuple[Stage, ...]) -> int:
    return max(place for place, stage in enumerate(stages) if not stage.negated)
