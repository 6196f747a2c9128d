"""Durations as authors write them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from engine.core.durations import to_ms
from engine.core.errors import JobError


@pytest.mark.parametrize(
    ("duration", "milliseconds"),
    [
        ("10 s", 10_000),
        ("10s", 10_000),
        (" 250 ms ", 250),
        ("5 min", 300_000),
        ("1.5 h", 5_400_000),
        ("2 d", 172_800_000),
        ("0 ms", 0),
        ("1 minute", 60_000),
        ("5 seconds", 5_000),
        ("2 hours", 7_200_000),
        ("1 day", 86_400_000),
        ("100 milliseconds", 100),
        (42, 42),
        (timedelta(seconds=1.5), 1500),
    ],
)
def test_durations_are_strings_milliseconds_or_timedeltas(duration: str | int | timedelta, milliseconds: int) -> None:
    assert to_ms(duration) == milliseconds


@pytest.mark.parametrize("wrong", ["", "10", "s", "ten s", "10 parsecs", "--5 s", "1 s 5 ms", "1e3 s", True, 1.5, None])
def test_what_is_no_duration_is_told_how_to_write_one(wrong: object) -> None:
    with pytest.raises(JobError, match="is not a duration: write a number and one of ms, s, min, h, d, as in"):
        to_ms(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [-1, timedelta(seconds=-1), "-5 s"])
def test_a_duration_is_not_negative(wrong: int | timedelta | str) -> None:
    with pytest.raises(JobError, match="is negative"):
        to_ms(wrong)
