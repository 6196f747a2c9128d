"""Patterns that can't be, told where they are written: with the name of the pattern, the author's line, and the fix."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

from engine.api import (
    CEP,
    AfterMatchSkipStrategy,
    JobError,
    Match,
    MatchContext,
    OutputTag,
    Pattern,
    PatternProcessFunction,
    PatternStream,
)
from engine.api.patterns import checked_pattern
from tests.api.streams.building import timed, views

pytestmark = pytest.mark.promise("A11")


def yes(record: dict[str, Any]) -> bool:
    return True


A = Pattern.begin("a").where(yes)
GROUP = A.next("b").where(yes)

MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "no name": (lambda: Pattern.begin(""), "begin takes the name of a pattern"),
    "a colon": (lambda: A.next("b:c"), "a text without ':'"),
    "the same name twice": (lambda: A.next("b").next("a"), "another pattern of this name .*give each its own name"),
    "a name again in a group": (lambda: Pattern.begin("b").next(GROUP), "another pattern of this name"),
    "no function": (lambda: Pattern.begin("a").where(3), "where takes a function"),  # type: ignore[arg-type]
    "three arguments": (lambda: Pattern.begin("a").where(lambda a, b, c: True), "not 3 arguments"),
    "or without where": (lambda: Pattern.begin("a").or_where(yes), r"write where\(...\) first"),
    "a condition of a group": (lambda: Pattern.begin(GROUP).where(yes), "a group has no condition of its own"),
    "times 0": (lambda: A.times(0), r"times\(0\): the numbers must be 1 or more"),
    "times from 0": (lambda: A.times(0, 2), r"write times\(1, 2\).optional\(\)"),
    "times of a text": (lambda: A.times("3", 5), r"times\(3, 5\): the numbers must be 1 or more"),  # type: ignore[arg-type]
    "times the wrong way": (lambda: A.times(3, 2), "must not be smaller than the first"),
    "two quantifiers": (lambda: A.times(3).one_or_more(), "it was said already how often"),
    "optional twice": (lambda: A.optional().optional(), r"write optional\(\) once"),
    "optional behind greedy": (
        lambda: A.one_or_more().greedy().next("b").where(yes).optional(),
        "an optional pattern can't follow a greedy one, which 'a' is",
    ),
    "a single greedy": (lambda: A.greedy(), "greedy needs a pattern that repeats"),
    "a greedy group": (lambda: Pattern.begin(GROUP).one_or_more().greedy(), "a group can't be greedy"),
    "greedy combinations": (lambda: A.times(2, 3).allow_combinations().greedy(), "exclude each other"),
    "combinations of greedy": (lambda: A.times(2, 3).greedy().allow_combinations(), "exclude each other"),
    "consecutive combinations": (lambda: A.times(3).consecutive().allow_combinations(), "exclude each other"),
    "a single consecutive": (lambda: A.consecutive(), "consecutive needs a pattern that repeats"),
    "until of one": (lambda: A.times(3).until(yes), "until ends a pattern without a limit"),
    "until twice": (lambda: A.one_or_more().until(yes).until(yes), "write one condition that says both"),
    "not behind optional": (lambda: A.optional().not_next("b"), "not_next can't follow an optional pattern"),
    "an optional not": (
        lambda: A.not_next("b").where(yes).optional(),
        "does not go with a pattern that must not occur",
    ),
    "a repeated not": (lambda: A.not_followed_by("b").one_or_more(), "does not go with a pattern that must not occur"),
    "no time": (lambda: A.within(0), "no match is that short"),
    "no duration": (lambda: A.within("soon"), "is not a duration"),
    "not at the end": (
        lambda: checked_pattern(A.not_followed_by("b").where(yes)),
        r"pattern 'b' \(test_pattern_mistakes.py, line \d+\).*waits for ever.*write within",
    ),
    "not without a condition": (
        lambda: checked_pattern(A.not_next("b").next("c").where(yes)),
        r"pattern 'b' .*it can never match: write where",
    ),
    "a group that ends with not": (
        lambda: Pattern.begin(A.not_next("b").where(yes)),
        "a group can't end with 'b', which must not occur",
    ),
    "a group that repeats nothing": (lambda: Pattern.begin(A.optional()).times(2), "it could repeat nothing"),
    "a group that skips": (
        lambda: Pattern.begin(Pattern.begin("a", AfterMatchSkipStrategy.skip_to_next())),
        "a group has no skip strategy",
    ),
    "an unknown name to skip to": (
        lambda: checked_pattern(Pattern.begin("fail", AfterMatchSkipStrategy.skip_to_last("fial")).where(yes)),
        "no pattern 'fial' takes records.*did you mean 'fail'",
    ),
    "no strategy": (lambda: Pattern.begin("a", "skip_to_next"), "skip_strategy takes"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_with_what_to_write(mistake: str) -> None:
    make, told = MISTAKES[mistake]
    with pytest.raises(JobError, match=told):
        make()


def test_a_pattern_does_not_change_when_another_is_made_of_it() -> None:
    pattern = Pattern.begin("a").where(yes)
    longer = pattern.next("b").where(yes).times(2)
    assert checked_pattern(pattern).described() == "begin('a'), no_skip()"
    assert checked_pattern(longer).described() == "begin('a') next('b').times(2, 2), no_skip()"


@pytest.mark.parametrize(
    ("pattern", "warned"),
    [
        (A.one_or_more(), True),
        (A.next("b").times_or_more(2).allow_combinations(), True),
        (A.one_or_more().until(yes), False),
        (A.one_or_more().within("1 s"), False),
        (A.one_or_more().consecutive(), False),
        (A.times(2, 5), False),
    ],
)
def test_a_pattern_that_keeps_its_partial_matches_for_ever_gives_a_warning(pattern: Pattern, warned: bool) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        checked_pattern(pattern)
    assert [("has no limit" in str(one.message)) for one in seen] == [True] * warned


class OnlyMatches(PatternProcessFunction):
    def process_match(self, match: Match, context: MatchContext) -> list[Any]:
        return []


class TimesOut(OnlyMatches):
    def process_timed_out_match(self, match: Match, context: MatchContext) -> list[Any]:
        return []


class WithoutContext(PatternProcessFunction):
    def process_match(self, match: Match) -> list[Any]:  # type: ignore[override]
        return []


def stream() -> PatternStream:
    return CEP.pattern(timed().key_by("app_id"), A)


WITH_STREAMS: dict[str, tuple[Callable[[], object], str]] = {
    "no keys": (lambda: CEP.pattern(views(), A), "a stream with keys"),  # type: ignore[arg-type]
    "no event time": (lambda: CEP.pattern(views().key_by("app_id"), A), "call assign_timestamps_and_watermarks"),
    "no pattern": (lambda: CEP.pattern(timed().key_by("app_id"), "a"), "a pattern such as"),  # type: ignore[arg-type]
    "a class": (lambda: stream().process(OnlyMatches, "p", "n long"), r"write OnlyMatches\(\)"),  # type: ignore[arg-type]
    "a function": (lambda: stream().process(print, "p", "n long"), "a class that extends"),  # type: ignore[arg-type]
    "no process_match": (lambda: stream().process(PatternProcessFunction(), "p", "n long"), "has no process_match"),
    "no context": (lambda: stream().process(WithoutContext(), "p", "n long"), r"process_match\(self, match, context\)"),
    "a time-out without a time": (lambda: stream().process(TimesOut(), "p", "n long"), r"write within\(...\)"),
    "late records of another schema": (
        lambda: stream().side_output_late_data(OutputTag("late", "n long")),
        r"declare \(app_id string, user_id long",
    ),
}


@pytest.mark.parametrize("mistake", WITH_STREAMS)
def test_a_mistake_with_a_stream_is_told(mistake: str) -> None:
    make, told = WITH_STREAMS[mistake]
    with pytest.raises(JobError, match=told):
        make()
