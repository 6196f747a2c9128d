"""Sliding windows (B4, B5): each record is kept once, and counts in every window that contains its time."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api import SlidingEventTimeWindows, TumblingEventTimeWindows
from engine.api.windows import EventTimeWindows
from engine.protocol.signals import MAX_WATERMARK, MIN_WATERMARK
from engine.runtime.operators.base import RestoredState
from engine.runtime.operators.window import WindowMerge
from engine.state.key_groups import range_of
from tests.runtime.operators.test_window import GROUP, KEYS, ROWS, Window, brief

SHAPES = st.tuples(st.integers(1, 25), st.integers(1, 25), st.integers(0, 24)).map(
    lambda shape: SlidingEventTimeWindows.of(shape[0], shape[1], shape[2] % shape[1])
)
STEPS = st.tuples(st.integers(1, 4), st.lists(st.integers(0, 60), min_size=4, max_size=4))
"""A parallelism, and a watermark for each subtask."""


def starts_of(windows: EventTimeWindows, time_ms: int) -> list[int]:
    """The windows of a time, found by trying all."""
    spans = windows.spans
    return [
        start
        for start in range(time_ms - spans.size_ms - 50, time_ms + 1)
        if (start - spans.offset_ms) % spans.slide_ms == 0 and start <= time_ms < start + spans.size_ms
    ]


@pytest.mark.promise("B4")
def test_a_record_counts_in_every_window_that_contains_it_and_windows_fire_in_order() -> None:
    window = Window(SlidingEventTimeWindows.of(30, 10))
    window.rows(("a", 1, 5), ("a", 2, 15), ("a", 4, 29))
    assert brief(window.watermark(9)) == [("a", -20, 1, 1)]
    assert brief(window.watermark(28)) == [("a", -10, 2, 3)]
    assert brief(window.watermark(29)) == [("a", 0, 3, 7)]
    assert [row["_event_time"] for row in window.watermark(MAX_WATERMARK)] == [39, 49]


@pytest.mark.promise("B7")
def test_a_late_record_counts_in_the_windows_that_are_still_open_and_is_late_after_the_last() -> None:
    window = Window(SlidingEventTimeWindows.of(30, 10))
    window.rows(("a", 1, 5))
    assert brief(window.watermark(20)) == [("a", -10, 1, 1), ("a", -20, 1, 1)]
    window.rows(("a", 2, 6))
    assert window.late == 0
    assert brief(window.watermark(29)) == [("a", 0, 2, 3)]
    window.rows(("a", 4, 7))
    assert window.late == 1
    assert window.watermark(MAX_WATERMARK) == []


@pytest.mark.promise("B4")
def test_a_record_between_windows_is_in_none_and_is_not_late() -> None:
    window = Window(SlidingEventTimeWindows.of(5, 20, 3))
    window.rows(("a", 1, 3), ("a", 2, 7), ("a", 4, 8), ("a", 8, 22), ("a", 16, 23))
    assert brief(window.watermark(MAX_WATERMARK)) == [("a", 23, 1, 16), ("a", 3, 2, 3)]
    assert window.late == 0


@pytest.mark.promise("B5")
def test_a_record_is_kept_once_however_many_windows_it_is_in() -> None:
    window = Window(SlidingEventTimeWindows.of(3_600_000, 300_000))
    window.rows(*(("a", 1, t) for t in range(0, 300_000, 1000)))
    (part,) = window.merge.snapshot(1).parts
    assert part.table().num_rows == 1
    assert sum(row["n"] for row in window.watermark(MAX_WATERMARK)) == 12 * 300


@pytest.mark.promise("B4")
def test_days_may_begin_at_another_hour() -> None:
    window = Window(TumblingEventTimeWindows.of(24, 16))
    window.rows(("a", 1, 15), ("a", 2, 16), ("a", 4, 39), ("a", 8, 40))
    assert brief(window.watermark(MAX_WATERMARK)) == [("a", -8, 1, 1), ("a", 16, 2, 6), ("a", 40, 1, 8)]


@pytest.mark.promise("B4", "B7")
@given(st.lists(st.lists(ROWS, max_size=8), max_size=6), SHAPES)
def test_windows_equal_a_plain_computation_with_a_watermark_behind_each_batch(batches, windows) -> None:
    window = Window(windows)
    expected: dict[tuple[Any, int], list[int | None]] = {}
    clock, late, fired = MIN_WATERMARK, 0, []
    for rows in batches:
        window.rows(*rows)
        for k, x, t in rows:
            starts = starts_of(windows, t)
            open_ones = [start for start in starts if start + windows.spans.size_ms - 1 > clock]
            late += bool(starts) and not open_ones
            for start in open_ones:
                expected.setdefault((k, start), []).append(x)
        if rows:
            clock = max(clock, max(t for _, _, t in rows) - 5)
            fired += window.watermark(clock)
    fired += window.watermark(MAX_WATERMARK)
    sums = {key: [x for x in xs if x is not None] for key, xs in expected.items()}
    assert brief(fired) == sorted(
        ((k, start, len(xs), sum(sums[k, start]) if sums[k, start] else None) for (k, start), xs in expected.items()),
        key=repr,
    )
    assert window.late == late


def state_of(before: Sequence[WindowMerge], subtask: int, parallelism: int) -> RestoredState:
    """Returns what a subtask is restored from: the panes of its key groups, from the snapshots of all subtasks."""
    snapshots = [merge.snapshot(1) for merge in before]
    groups = range_of(subtask, parallelism, 128)
    tables = [part.table() for taken in snapshots for part in taken.parts]
    kept = [pa.array([GROUP[k] in groups for k in table["k"].to_pylist()], pa.bool_()) for table in tables]
    mine = [("panes", table.filter(mask)) for table, mask in zip(tables, kept, strict=True)]
    return RestoredState([taken.inline for taken in snapshots], mine)


def restored(windows: EventTimeWindows, before: list[Window], subtask: int, parallelism: int) -> Window:
    state = state_of([window.merge for window in before], subtask, parallelism)
    return Window(windows, state, subtask, parallelism)


@pytest.mark.promise("B7", "D7")
@given(st.lists(STEPS, min_size=1, max_size=5), SHAPES)
def test_each_window_of_a_key_is_published_once_with_all_that_came_before_over_any_rescaling(steps, windows) -> None:
    """Each step restores at some parallelism, gives each key a row every 7 ms, and each subtask a watermark."""
    before: list[Window] = []
    published: list[tuple[str, int, int, int]] = []
    closed = dict.fromkeys(KEYS, MIN_WATERMARK)
    expected: dict[tuple[str, int], int] = {}
    for parallelism, clocks in [*steps, (1, [MAX_WATERMARK])]:
        now = [restored(windows, before, subtask, parallelism) for subtask in range(parallelism)]
        for subtask, window in enumerate(now):
            mine = [key for key in KEYS if GROUP[key] in range_of(subtask, parallelism, 128)]
            window.rows(*((key, 1, t) for key in mine for t in range(0, 70, 7)))
            for key in mine:
                for start in (start for t in range(0, 70, 7) for start in starts_of(windows, t)):
                    if start + windows.spans.size_ms - 1 > closed[key]:
                        expected[key, start] = expected.get((key, start), 0) + 1
            published += brief(window.watermark(clocks[subtask]))
            for key in mine:
                closed[key] = max(closed[key], clocks[subtask])
        before = now
    assert sorted(published) == sorted((key, start, n, n) for (key, start), n in expected.items())
