"""The limits of alignment groups: the minimum of all members that have something to read, plus the drift."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.protocol.signals import MAX_WATERMARK, MIN_WATERMARK
from engine.protocol.watermark_alignment import AlignmentGroups, WatermarkAlignment, drift_of, limit_of, urgent

ALL = WatermarkAlignment("all", max_drift_ms=100, update_interval_ms=50)


def groups(*subtasks: str) -> AlignmentGroups:
    return AlignmentGroups({ALL: list(subtasks)})


NUMBERS = count(1)


def report(made: AlignmentGroups, watermarks: dict[str, int | None]) -> None:
    made.on_report(next(NUMBERS), watermarks)


@pytest.mark.promise("B9")
def test_there_is_no_limit_before_every_member_has_reported() -> None:
    made = groups("a[0]", "a[1]")
    report(made, {"a[0]": 1000})
    assert made.announce(0) == {} and made.wakeup_ms is None
    report(made, {"a[1]": 400})
    assert made.announce(0) == {"all": 500}


@pytest.mark.promise("B9")
def test_a_limit_that_advances_is_announced_once_per_interval() -> None:
    made = groups("a", "b")
    report(made, {"a": 1000, "b": 400})
    assert made.announce(10) == {"all": 500}
    report(made, {"b": 450})
    assert made.announce(20) == {} and made.wakeup_ms == 10 + 50
    report(made, {"b": 470})
    assert made.announce(60) == {"all": 570}
    assert made.announce(200) == {} and made.wakeup_ms is None, "it is announced once"


@pytest.mark.promise("B9")
def test_a_member_with_nothing_to_read_is_left_out_and_one_that_is_active_again_counts_at_once() -> None:
    made = groups("a", "b")
    report(made, {"a": 1000, "b": 400})
    made.announce(0)
    report(made, {"b": None})
    assert made.announce(50) == {"all": 1100}
    report(made, {"b": MIN_WATERMARK})
    assert made.announce(51) == {"all": MIN_WATERMARK + 100}
    report(made, {"b": 420})
    assert made.announce(52) == {"all": 520}
    report(made, {"a": None, "b": None})
    assert made.announce(53) == {"all": MAX_WATERMARK}


@pytest.mark.promise("B9")
def test_groups_do_not_wait_for_each_other_and_others_are_not_members() -> None:
    made = AlignmentGroups({ALL: ["a"], WatermarkAlignment("other", 7, 50): ["b"]})
    report(made, {"a": 5, "c": 1})
    assert made.announce(0) == {"all": 105}
    report(made, {"b": 10})
    assert made.announce(0) == {"other": 17}


@pytest.mark.promise("B9")
def test_a_report_that_comes_again_after_a_newer_one_does_not_count() -> None:
    """A bug: it held the group back for ever, since a slot reports only what changes (seed 988 of the simulator)."""
    made = groups("a", "b")
    made.on_report(1, {"a": 1000, "b": 400})
    made.on_report(2, {"b": 900})
    made.on_report(1, {"a": 1000, "b": 400})
    assert made.announce(0) == {"all": 1000}
    made.on_report(3, {"b": None})
    made.on_report(2, {"b": 900})
    assert made.announce(60) == {"all": 1100}


@pytest.mark.promise("B9")
def test_announcements_are_numbered() -> None:
    made = groups("a")
    assert made.announcements == 0 and made.announce(0) == {}
    made.on_report(1, {"a": 5})
    assert made.announcements == 0 and made.announce(0) and made.announcements == 1
    assert made.announce(0) == {} and made.announcements == 1


def test_a_limit_ends_at_the_end_of_time() -> None:
    assert limit_of(MAX_WATERMARK - 3, 100) == MAX_WATERMARK == limit_of(None, 100)


def test_the_drift_is_unknown_while_a_member_has_no_watermark() -> None:
    assert drift_of(700, limit_of(500, 100), 100) == 200
    assert drift_of(700, limit_of(MIN_WATERMARK, 100), 100) is None
    assert drift_of(700, MIN_WATERMARK, 100) is None


MARKS = st.none() | st.just(MIN_WATERMARK) | st.integers(0, 500)


@pytest.mark.promise("B9")
@given(st.lists(st.tuples(st.sampled_from("abc"), MARKS, st.integers(0, 60)), max_size=30))
def test_every_limit_is_that_of_the_reports_and_none_is_kept_back_longer_than_an_interval(
    reports: list[tuple[str, int | None, int]],
) -> None:
    """The model holds the reports; the limit that was announced last may be older than the interval only if it is
    right, and may be too high at no moment."""
    made, model, now_ms, announced_at_ms, limit = groups("a", "b", "c"), dict[str, int | None](), 0.0, 0.0, None
    for member, mark, waited_ms in reports:
        now_ms += waited_ms
        for moment in (now_ms, *([made.wakeup_ms] if made.wakeup_ms is not None else [])):
            if moment > now_ms:
                continue
            if told := made.announce(moment):
                limit, announced_at_ms = told["all"], moment
        report(made, {member: mark})
        model[member] = mark
        if told := made.announce(now_ms):
            limit, announced_at_ms = told["all"], now_ms
        if len(model) < 3:
            assert limit is None
            continue
        right = limit_of(min((m for m in model.values() if m is not None), default=None), 100)
        assert limit is not None and limit <= right
        assert limit == right or now_ms < announced_at_ms + 50


@given(MARKS, MARKS)
def test_only_an_advance_can_wait(before_ms: int | None, now_ms: int | None) -> None:
    advances = before_ms is not None and before_ms != MIN_WATERMARK and now_ms is not None and now_ms >= before_ms
    assert urgent(before_ms, now_ms) == (not advances)
