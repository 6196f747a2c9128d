"""Watermark strategies as an author writes them."""

import pytest

from engine.api import JobError, WatermarkStrategy
from engine.core.event_time import EventTimeStrategy


def test_a_strategy_is_a_column_and_a_bound() -> None:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("2 s").with_timestamps("ts")
    assert strategy.compiled() == EventTimeStrategy("ts", 2000)
    assert WatermarkStrategy.for_monotonous_timestamps().with_timestamps("ts").compiled() == EventTimeStrategy("ts", 0)


def test_a_strategy_without_a_column_is_told_what_it_needs() -> None:
    with pytest.raises(JobError, match=r"names no event time column: add with_timestamps\(COLUMN\)"):
        WatermarkStrategy.for_monotonous_timestamps().compiled()


def test_a_bound_is_not_negative() -> None:
    with pytest.raises(JobError, match="-1 is negative"):
        WatermarkStrategy.for_bounded_out_of_orderness(-1)
