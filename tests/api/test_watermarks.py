"""Watermark strategies as an author writes them."""

from typing import Any

import pytest

from engine.api import DataStream, JobError, StreamEnvironment, WatermarkStrategy
from engine.core.event_time import EventTimeStrategy
from engine.protocol.watermark_alignment import WatermarkAlignment

MONOTONOUS = WatermarkStrategy.for_monotonous_timestamps()
TIMED = MONOTONOUS.with_timestamps("ts")


def test_a_strategy_is_a_column_and_a_bound() -> None:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("2 s").with_timestamps("ts")
    assert strategy.compiled("'views'") == EventTimeStrategy("ts", 2000)
    assert TIMED.compiled("'views'") == EventTimeStrategy("ts", 0)


def test_a_strategy_without_a_column_is_told_what_it_needs() -> None:
    with pytest.raises(JobError, match=r"'views': .* names no event time column: add with_timestamps\(COLUMN\)"):
        MONOTONOUS.compiled("'views'")


def test_a_bound_is_not_negative() -> None:
    with pytest.raises(JobError, match="-1 is negative"):
        WatermarkStrategy.for_bounded_out_of_orderness(-1)


# --- alignment ---


def views(env: StreamEnvironment, uid: str = "views") -> DataStream:
    return env.from_elements([{"ts": 1}], "ts long", uid=uid)


@pytest.mark.promise("B9")
def test_an_alignment_is_a_group_a_drift_and_an_interval() -> None:
    assert TIMED.with_watermark_alignment("all", "1 min").compiled("'views'") == EventTimeStrategy(
        "ts", 0, WatermarkAlignment("all", 60_000, 1000)
    )
    assert MONOTONOUS.with_watermark_alignment("all", 5, 7).with_timestamps("ts").compiled("'views'").alignment == (
        WatermarkAlignment("all", 5, 7)
    )


@pytest.mark.promise("B9")
@pytest.mark.parametrize(
    ("drift", "interval", "says"),
    [
        (
            0,
            "1 s",
            "max_drift 0 ms; it must be above 0: give how far splits may be apart in event time, such as '1 min'",
        ),
        ("-5 s", "1 s", "max_drift -5000 ms; it must be above 0"),
        ("1 s", 0, "update_interval 0 ms; it must be above 0: give how often they hear of each other, such as '1 s'"),
        ("1 s", -1, "update_interval -1 ms; it must be above 0"),
    ],
)
def test_a_drift_or_interval_that_is_not_positive_names_the_source_and_the_fix(
    drift: Any, interval: Any, says: str
) -> None:
    with pytest.raises(JobError) as caught:
        views(StreamEnvironment()).assign_timestamps_and_watermarks(
            TIMED.with_watermark_alignment("all", drift, interval)
        )
    assert str(caught.value).startswith("'views' (")
    assert "with_watermark_alignment('all', …) has " + says in str(caught.value)


@pytest.mark.promise("B9")
def test_alignment_without_watermarks_says_that_the_event_time_is_missing() -> None:
    with pytest.raises(JobError, match=r"'views' .* aligns watermarks, but names no event time column: add with_times"):
        views(StreamEnvironment()).assign_timestamps_and_watermarks(MONOTONOUS.with_watermark_alignment("all", "1 min"))


@pytest.mark.promise("B9")
@pytest.mark.parametrize("group", ["", None, 3])
def test_a_group_has_a_name(group: Any) -> None:
    with pytest.raises(JobError, match="takes the name of a group, a text, not "):
        TIMED.with_watermark_alignment(group, "1 min")


@pytest.mark.promise("B9")
@pytest.mark.parametrize("other", [("2 min", "1 s"), ("1 min", "2 s")])
def test_one_group_with_different_bounds_names_both_sources(other: tuple[str, str]) -> None:
    env = StreamEnvironment()
    views(env).assign_timestamps_and_watermarks(TIMED.with_watermark_alignment("all", "1 min"))
    with pytest.raises(JobError) as caught:
        views(env, "clicks").assign_timestamps_and_watermarks(TIMED.with_watermark_alignment("all", *other))
    text = str(caught.value)
    assert text.startswith("'clicks' (") and "and source 'views' (" in text
    assert "are in the alignment group 'all' with different bounds (" in text
    assert "give both the same max_drift and update_interval, or another group" in text
    views(env, "orders").assign_timestamps_and_watermarks(TIMED.with_watermark_alignment("others", *other))
    views(env, "payments").assign_timestamps_and_watermarks(TIMED.with_watermark_alignment("all", "60 s", "1 s"))


@pytest.mark.promise("B9")
def test_alignment_behind_an_operator_says_that_only_a_source_can_wait() -> None:
    with pytest.raises(
        JobError, match=r"'all', …\) behind 'select-1' .*: only a source can wait, so call assign_times"
    ):
        views(StreamEnvironment()).select("ts").assign_timestamps_and_watermarks(
            TIMED.with_watermark_alignment("all", "1 min")
        )


@pytest.mark.promise("B9")
def test_a_source_has_one_strategy_and_its_alignment_is_part_of_it() -> None:
    stream = views(StreamEnvironment())
    stream.assign_timestamps_and_watermarks(TIMED)
    with pytest.raises(JobError, match=r"bound of 0 ms, aligned \(60000 ms in group 'all', every 1000 ms\)"):
        stream.assign_timestamps_and_watermarks(TIMED.with_watermark_alignment("all", "1 min"))
