"""Any pattern, over any few records, emits what the rules say: compared with a search that tries everything.

Patterns have up to four parts, with all ways to follow, repeat, stop and end; half of the tests have a skip strategy.
Records have four letters, and event times in order with ties.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api import AfterMatchSkipStrategy, Pattern
from engine.api.patterns import checked_pattern
from engine.core.errors import JobError
from engine.core.patterns import PatternSequence
from tests.runtime.patterns.brute_force import BruteForce
from tests.runtime.patterns.running import Record, found

LETTERS = "abcx"
NAMES = ("p", "q", "r", "s")

Condition = Callable[..., bool]


def is_one_of(letters: str) -> Condition:
    return lambda record: record["letter"] in letters


def is_larger(letters: str, name: str) -> Condition:
    """An iterative condition: also larger than all that the pattern of this name has taken."""

    def condition(record: dict[str, Any], context: Any) -> bool:
        taken = context.events_for_pattern(name)
        return record["letter"] in letters and all(record["n"] > one["n"] for one in taken)

    return condition


some_letters = st.sampled_from(["a", "b", "c", "ab", "bc", "abc"])


@st.composite
def conditions(draw: st.DrawFn, name: str) -> Condition:
    letters = draw(some_letters)
    return is_larger(letters, name) if draw(st.integers(0, 4)) == 0 else is_one_of(letters)


@st.composite
def quantified(draw: st.DrawFn, pattern: Pattern, group: bool = False) -> Pattern:
    """Adds what may be added, and leaves out what the pattern refuses."""
    calls: list[Callable[[Pattern], Pattern]] = []
    times = draw(st.sampled_from(["", "", "times", "range", "or_more", "more"]))
    least = draw(st.integers(1, 2))
    match times:
        case "times":
            calls.append(lambda p: p.times(least))
        case "range":
            calls.append(lambda p: p.times(least, least + 1))
        case "or_more":
            calls.append(lambda p: p.times_or_more(least))
        case "more":
            calls.append(Pattern.one_or_more)
    extra = [Pattern.consecutive, Pattern.allow_combinations, Pattern.greedy, Pattern.optional]
    calls += draw(st.lists(st.sampled_from(extra), max_size=2, unique=True))
    if not group and draw(st.integers(0, 3)) == 0:
        stop = is_one_of(draw(st.sampled_from(["b", "x"])))
        calls.append(lambda p: p.until(stop))
    for call in calls:
        try:
            pattern = call(pattern)
        except JobError:
            continue
    return pattern


@st.composite
def sequences(draw: st.DrawFn, names: tuple[str, ...], first: Pattern | None = None) -> Pattern:
    pattern = first
    for name in names:
        following = ["next", "followed_by", "followed_by_any"]
        if pattern is not None and pattern._last.group == () and name != "p":
            following += ["not_next", "not_followed_by"]
        how = draw(st.sampled_from(following))
        condition = draw(conditions("p"))
        if pattern is None:
            pattern = draw(quantified(Pattern.begin(name).where(condition)))
            continue
        try:
            pattern = getattr(pattern, how)(name).where(condition)
        except JobError:
            pattern = pattern.followed_by(name).where(condition)
        pattern = draw(quantified(pattern))
    assert pattern is not None
    return pattern


@st.composite
def patterns(draw: st.DrawFn, skips: bool) -> PatternSequence:
    skip = AfterMatchSkipStrategy.no_skip()
    if skips:
        skip = draw(
            st.sampled_from(
                [
                    AfterMatchSkipStrategy.skip_to_next(),
                    AfterMatchSkipStrategy.skip_past_last_event(),
                    AfterMatchSkipStrategy.skip_to_first("q"),
                    AfterMatchSkipStrategy.skip_to_last("q"),
                ]
            )
        )
    parts = draw(st.integers(1, 4))
    if draw(st.integers(0, 3)) == 0:
        inner = draw(sequences(NAMES[: draw(st.integers(1, 2))]))
        while inner._last.negated:
            inner = Pattern(inner._stages[:-1], inner._skip, inner._within_ms)
        pattern = draw(quantified(Pattern.begin(inner), group=True))
        pattern = draw(sequences(NAMES[2:parts], pattern))
    else:
        pattern = draw(sequences(NAMES[:parts]))
    within = draw(st.sampled_from([None, 2, 3, 5]))
    if within is None and pattern._last.negated:
        within = 3
    if within is not None:
        pattern = pattern.within(within)
    pattern = Pattern(pattern._stages, skip, pattern._within_ms)
    try:
        return checked_pattern(pattern)
    except JobError:  # there is no pattern q to skip to
        skip = AfterMatchSkipStrategy.skip_past_last_event()
        return checked_pattern(Pattern(pattern._stages, skip, pattern._within_ms))


@st.composite
def inputs(draw: st.DrawFn) -> list[Record]:
    letters = draw(st.text(LETTERS, min_size=1, max_size=7))
    at, records = 0, []
    for letter in letters:
        at += draw(st.sampled_from([0, 1, 1, 2]))
        records.append(Record(letter, at, draw(st.integers(0, 3))))
    return records


def check(pattern: PatternSequence, records: list[Record]) -> None:
    expected = BruteForce(pattern, records).results()
    assert found(pattern, records) == expected, pattern.described()


@pytest.mark.promise("A11")
@pytest.mark.filterwarnings("ignore:pattern .* has no limit")
@settings(max_examples=120)
@given(pattern=patterns(skips=False), records=inputs())
def test_every_match_is_emitted_and_no_other(pattern: PatternSequence, records: list[Record]) -> None:
    check(pattern, records)


@pytest.mark.promise("A11")
@pytest.mark.filterwarnings("ignore:pattern .* has no limit")
@settings(max_examples=120)
@given(pattern=patterns(skips=True), records=inputs())
def test_a_skip_strategy_discards_what_it_says(pattern: PatternSequence, records: list[Record]) -> None:
    check(pattern, records)
