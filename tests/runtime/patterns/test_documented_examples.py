"""The examples in the documentation of Flink's CEP, with the matches that it gives for them, and skips that miss."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.api import AfterMatchSkipStrategy, Pattern
from tests.runtime.patterns.running import matches

pytestmark = [pytest.mark.promise("A11"), pytest.mark.filterwarnings("ignore:pattern .* has no limit")]


def letter(*letters: str) -> Callable[[dict[str, str]], bool]:
    return lambda record: record["letter"] in letters


def one(name: str) -> Pattern:
    return Pattern.begin(name).where(letter(name))


def several(*texts: str) -> list[str]:
    return sorted(texts)


@pytest.mark.parametrize(
    ("follow", "expected"),
    [
        (Pattern.next, []),
        (Pattern.followed_by, ["a b1"]),
        (Pattern.followed_by_any, ["a b1", "a b2"]),
    ],
)
def test_contiguity_between_two_patterns(follow: Callable[[Pattern, str], Pattern], expected: list[str]) -> None:
    assert matches(follow(one("a"), "b").where(letter("b")), "a c b1 b2") == expected


def test_contiguity_within_a_pattern_that_repeats() -> None:
    """The documentation means the same contiguity between b and c, except with a strict one between a and b."""
    text = "a b1 d1 b2 d2 b3 c"
    repeated = one("a").followed_by_any("b").where(letter("b")).one_or_more()
    strict = repeated.consecutive().next("c").where(letter("c"))
    relaxed = repeated.followed_by("c").where(letter("c"))
    free = repeated.allow_combinations().followed_by("c").where(letter("c"))
    in_a_row = ["a b1 c", "a b1 b2 c", "a b1 b2 b3 c", "a b2 c", "a b2 b3 c", "a b3 c"]
    assert matches(strict, text) == ["a b3 c"]
    assert matches(relaxed, text) == several(*in_a_row)
    assert matches(free, text) == several(*in_a_row, "a b1 b3 c")


def test_consecutive_and_allow_combinations() -> None:
    """The list of 15 needs followed_by_any before a; with followed_by, as printed there, Flink itself finds 8."""
    text = "c d a1 a2 a3 d a4 b"

    def of(quantified: Callable[[Pattern], Pattern], follow: Callable[[Pattern, str], Pattern]) -> list[str]:
        repeated = quantified(follow(one("c"), "a").where(letter("a")).one_or_more())
        return matches(repeated.followed_by("b").where(letter("b")), text)

    in_a_row = ["c a1 b", "c a1 a2 b", "c a1 a2 a3 b"]
    first = [*in_a_row, "c a1 a3 b", "c a1 a4 b", "c a1 a2 a4 b", "c a1 a3 a4 b", "c a1 a2 a3 a4 b"]
    later = ["c a2 b", "c a2 a3 b", "c a2 a4 b", "c a2 a3 a4 b", "c a3 b", "c a3 a4 b", "c a4 b"]
    assert of(Pattern.consecutive, Pattern.followed_by) == several(*in_a_row)
    assert of(lambda pattern: pattern, Pattern.followed_by) == several(*in_a_row, "c a1 a2 a3 a4 b")
    assert of(Pattern.allow_combinations, Pattern.followed_by) == several(*first)
    assert of(Pattern.allow_combinations, Pattern.followed_by_any) == several(*first, *later)


def test_until_ends_a_pattern_that_repeats() -> None:
    pattern = one("a").one_or_more().until(letter("b"))
    assert matches(pattern, "a1 c a2 b a3") == several("a1 a2", "a1", "a2", "a3")


SKIPPING = {
    "no_skip": (AfterMatchSkipStrategy.no_skip(), ["b1 b2 b3 c", "b2 b3 c", "b3 c"]),
    "skip_to_next": (AfterMatchSkipStrategy.skip_to_next(), ["b1 b2 b3 c", "b2 b3 c", "b3 c"]),
    "skip_past_last_event": (AfterMatchSkipStrategy.skip_past_last_event(), ["b1 b2 b3 c"]),
    "skip_to_first": (AfterMatchSkipStrategy.skip_to_first("b"), ["b1 b2 b3 c", "b2 b3 c", "b3 c"]),
    "skip_to_last": (AfterMatchSkipStrategy.skip_to_last("b"), ["b1 b2 b3 c", "b3 c"]),
}


@pytest.mark.parametrize("name", SKIPPING)
def test_what_a_match_discards(name: str) -> None:
    skip, expected = SKIPPING[name]
    pattern = Pattern.begin("b", skip).where(letter("b")).one_or_more().next("c").where(letter("c"))
    assert matches(pattern, "b1 b2 b3 c") == expected


@pytest.mark.parametrize(
    ("skip", "expected"),
    [
        (AfterMatchSkipStrategy.no_skip(), ["a b c1 c2 c3 d", "b c1 c2 c3 d", "c1 c2 c3 d"]),
        (AfterMatchSkipStrategy.skip_to_first("c"), ["a b c1 c2 c3 d", "c1 c2 c3 d"]),
    ],
)
def test_skipping_to_the_first_record_of_a_greedy_pattern(skip: AfterMatchSkipStrategy, expected: list[str]) -> None:
    pattern = Pattern.begin("first", skip).where(letter("a", "b", "c")).next("second").where(letter("b", "c"))
    pattern = pattern.next("c").where(letter("c")).one_or_more().greedy().next("d").where(letter("d"))
    assert matches(pattern, "a b c1 c2 c3 d") == expected


@pytest.mark.parametrize(
    ("skip", "expected"),
    [
        (AfterMatchSkipStrategy.no_skip(), ["a b1", "a b1 b2", "a b1 b2 b3"]),
        (AfterMatchSkipStrategy.skip_to_next(), ["a b1"]),
    ],
)
def test_skipping_to_the_next_record(skip: AfterMatchSkipStrategy, expected: list[str]) -> None:
    pattern = Pattern.begin("a", skip).where(letter("a")).next("b").where(letter("b")).one_or_more()
    assert matches(pattern, "a b1 b2 b3") == expected


@pytest.mark.parametrize(
    ("quantified", "expected"),
    [
        (lambda p: p.times(4), [4]),
        (lambda p: p.times(4).optional(), [0, 4]),
        (lambda p: p.times(2, 4), [2, 3, 4]),
        (lambda p: p.times(2, 4).greedy(), [4]),
        (lambda p: p.times(2, 4).optional(), [0, 2, 3, 4]),
        (lambda p: p.times(2, 4).optional().greedy(), [4]),
        (lambda p: p.one_or_more(), [1, 2, 3, 4]),
        (lambda p: p.one_or_more().greedy(), [4]),
        (lambda p: p.one_or_more().optional(), [0, 1, 2, 3, 4]),
        (lambda p: p.one_or_more().optional().greedy(), [4]),
        (lambda p: p.times_or_more(2), [2, 3, 4]),
        (lambda p: p.times_or_more(2).greedy(), [4]),
        (lambda p: p.times_or_more(2).optional(), [0, 2, 3, 4]),
        (lambda p: p.times_or_more(2).optional().greedy(), [4]),
    ],
)
def test_how_many_records_each_quantifier_takes(quantified: Callable[[Pattern], Pattern], expected: list[int]) -> None:
    pattern = quantified(one("a").followed_by("b").where(letter("b"))).followed_by("c").where(letter("c"))
    found = matches(pattern, "a b1 b2 b3 b4 c")
    assert sorted(text.count("b") for text in found) == expected


def test_not_followed_by_discards_and_an_optional_pattern_behind_it_ends_that() -> None:
    pattern = one("a").not_followed_by("b").where(letter("b"))
    pattern = pattern.followed_by_any("c").where(letter("c")).optional().followed_by_any("d").where(letter("d"))
    assert matches(pattern, "a c b d") == ["a c d"]
    assert matches(pattern, "a b d") == []


def test_not_next_looks_at_the_next_record_only() -> None:
    pattern = one("a").not_next("b").where(letter("b")).followed_by("c").where(letter("c"))
    assert matches(pattern, "a1 b a2 x b c") == ["a2 c"]


def test_not_followed_by_as_the_last_pattern_matches_when_its_time_is_over() -> None:
    pattern = one("a").not_followed_by("b").where(letter("b")).within("3 s")
    assert matches(pattern, "a1 x b a2 x x a3") == ["a2", "a3"]
    assert matches(pattern, "a1 x x b") == ["a1"], "b comes when the three seconds are over"


def test_groups_repeat_as_one_and_follow_as_one() -> None:
    pair = one("a").followed_by("b").where(letter("b"))
    assert matches(Pattern.begin("c").where(letter("c")).next(pair.within("9 s")), "c a x b c x a b") == ["c a b"]
    twice = Pattern.begin(pair).times(2).followed_by("c").where(letter("c"))
    assert matches(twice, "a1 b1 x a2 x b2 c") == ["a1 b1 a2 b2 c"]
    assert matches(Pattern.begin(pair).times(2).consecutive(), "a1 b1 x a2 b2 a3 b3") == ["a2 b2 a3 b3"]
    more = Pattern.begin("c").where(letter("c")).followed_by(pair).one_or_more().optional().next("d")
    assert matches(more.where(letter("d")), "c a1 b1 a2 b2 d") == ["c a1 b1 a2 b2 d"]
    assert matches(more.where(letter("d")), "c d") == ["c d"]


def test_an_iterative_condition_sees_what_was_taken() -> None:
    """Flink's: names that begin with "b", as long as the sum of their numbers with this one stays below a limit."""

    def small(record: dict[str, str], context: object) -> bool:
        taken = context.events_for_pattern("b")  # type: ignore[attr-defined]
        return record["letter"] == "b" and sum(int(one["name"][1:]) for one in [*taken, record]) < 5

    pattern = one("a").followed_by("b").where(small).one_or_more().until(letter("c"))
    assert matches(pattern, "a b1 b3 b2 c b1") == several("a b1", "a b1 b3")


MISSES = {
    "no record to skip to": (
        AfterMatchSkipStrategy.skip_to_first("b"),
        r"skip_to_first\('b'\): a match has no record of the pattern 'b' to skip to",
    ),
    "its own first record": (
        AfterMatchSkipStrategy.skip_to_last("a"),
        r"skip_to_last\('a'\): a match begins with the record of 'a' that it has to skip to",
    ),
}


@pytest.mark.parametrize("name", MISSES)
def test_a_match_that_can_not_skip_as_it_should_is_an_error_if_the_author_wants_one(name: str) -> None:
    skip, message = MISSES[name]

    def found(strategy: AfterMatchSkipStrategy, text: str) -> list[str]:
        pattern = Pattern.begin("a", strategy).where(letter("a")).next("b").where(letter("b")).optional()
        return matches(pattern.next("c").where(letter("c")), text)

    assert found(skip, "a c") == ["a c"]
    with pytest.raises(ValueError, match=message):
        found(skip.throw_exception_on_miss(), "a c")


def test_a_match_that_skips_as_it_should_is_no_error() -> None:
    skip = AfterMatchSkipStrategy.skip_to_first("b").throw_exception_on_miss()
    pattern = Pattern.begin("a", skip).where(letter("a")).next("b").where(letter("b"))
    assert matches(pattern, "a1 b1 a2 b2") == ["a1 b1", "a2 b2"]


def test_what_ends_a_greedy_pattern_that_may_be_left_out_may_begin_the_next_one() -> None:
    """u fits a, but ends it, so it is free to be the first record of a match that has no a."""
    pattern = Pattern.begin("a").where(letter("a", "u")).one_or_more().greedy().until(letter("u")).optional()
    pattern = pattern.next("b").where(letter("b", "u"))
    assert matches(pattern, "u") == ["u"]
    assert matches(pattern, "a b") == ["a b", "b"]


def test_what_must_not_follow_counts_from_the_first_record_of_a_repeated_pattern_on() -> None:
    pattern = Pattern.begin("a").where(letter("a")).times(2).not_followed_by("n").where(letter("n"))
    pattern = pattern.followed_by("c").where(letter("c"))
    assert matches(pattern, "a1 n a2 c") == []
    assert matches(pattern, "a1 a2 n c") == []
    assert matches(pattern, "a1 x a2 c") == ["a1 a2 c"]
    assert matches(pattern, "n a1 a2 c n") == ["a1 a2 c"]
