"""Built-in aggregates in windows by the clock (B1, B4): a record counts in the windows of the moment it arrives in."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api import (
    SlidingProcessingTimeWindows,
    StreamEnvironment,
    TumblingProcessingTimeWindows,
    WatermarkStrategy,
    count,
    last,
    total,
)
from engine.api.window_assigners import ProcessingTimeWindows
from engine.protocol.signals import MAX_WATERMARK
from engine.runtime.operators.base import RestoredState
from engine.runtime.operators.clock_window import ClockMerge
from engine.runtime.operators.window_combine import WindowCombine
from engine.state.key_groups import range_of
from tests.fakes import Collected, FakeClock, context
from tests.runtime.operators.test_sliding_window import state_of
from tests.runtime.operators.test_window import GROUP, KEYS, brief

FIELDS = "k string, x long"
SCHEMA = pa.schema([("k", pa.string()), ("x", pa.int64())])


class ClockWindow:
    """Combine and merge of windows by the clock, as the API builds them, on a clock that several subtasks share."""

    def __init__(
        self,
        windows: ProcessingTimeWindows,
        clock: FakeClock,
        restored: RestoredState | None = None,
        subtask: int = 0,
        parallelism: int = 1,
    ) -> None:
        env = StreamEnvironment()
        windowed = env.from_elements([], FIELDS).key_by("k").window(windows)
        self.schema = windowed.aggregate(n=count(), sum=total("x"), newest=last("x"), uid="w").schema
        combine, merge = (node.operator.build() for node in env.graph.nodes[1:] if node.operator)
        assert isinstance(combine, WindowCombine) and isinstance(merge, ClockMerge)
        self.combine, self.merge, self.clock, self.out = combine, merge, clock, Collected()
        combine.open(context("w.combine", clock=clock), None)
        merge.open(context("w", subtask, parallelism, clock=clock), restored)

    def rows(self, *rows: tuple[str | None, int]) -> None:
        records = pa.RecordBatch.from_pylist([{"k": k, "x": x} for k, x in rows], schema=SCHEMA)
        partials = Collected()
        self.combine.process(records, partials)
        for partial in partials.events:
            assert isinstance(partial, pa.RecordBatch)
            self.merge.process(partial, self.out)

    def fired(self) -> list[dict[str, Any]]:
        """Returns what fires now."""
        before = len(self.out.rows)
        due_ms = self.merge.due_ms
        worked = self.merge.work(64, self.out)
        assert worked == (due_ms is not None and due_ms <= self.clock.now_ms()), "it says when it has something to do"
        assert not self.merge.work(64, self.out)
        return self.out.rows[before:]

    def at(self, wall_ms: int) -> list[dict[str, Any]]:
        self.clock.pass_ms(wall_ms - self.clock.wall)
        return self.fired()


def restored(windows: ProcessingTimeWindows, before: list[ClockWindow], subtask: int, parallelism: int) -> ClockWindow:
    state = state_of([window.merge for window in before], subtask, parallelism)
    return ClockWindow(windows, before[0].clock, state, subtask, parallelism)


@pytest.mark.promise("B1", "B4")
def test_a_window_fires_when_the_clock_has_reached_its_end_and_its_results_have_no_event_time() -> None:
    window = ClockWindow(TumblingProcessingTimeWindows.of(10), FakeClock(wall_ms=3))
    assert window.merge.due_ms is None
    window.rows(("a", 1), ("b", 2), ("a", 4))
    assert window.at(9) == []
    window.rows(("a", 8))
    assert brief(window.at(10)) == [("a", 0, 3, 13), ("b", 0, 1, 2)]
    assert {row["k"]: row["newest"] for row in window.out.rows} == {"a": 8, "b": 2}
    assert "_event_time" not in window.schema.names
    window.rows(("a", 16))
    assert window.merge.due_ms == window.clock.now_ms() + 10
    window.merge.on_watermark(MAX_WATERMARK, window.out)
    assert window.out.watermarks[-1] == MAX_WATERMARK and len(window.out.rows) == 2, (
        "the end of the input fires nothing"
    )


def test_results_of_a_stream_with_event_time_have_none_of_it() -> None:
    env = StreamEnvironment()
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("x")
    timed = env.from_elements([], FIELDS).assign_timestamps_and_watermarks(strategy)
    windowed = timed.key_by("k").window(TumblingProcessingTimeWindows.of(10))
    windowed.aggregate(n=count(), uid="w")
    combine, merge = (node.operator.build() for node in env.graph.nodes[-2:] if node.operator)
    clock, partials, out = FakeClock(wall_ms=3), Collected(), Collected()
    combine.open(context("w.combine", clock=clock), None)
    merge.open(context("w", clock=clock), None)
    rows = [{"k": "a", "x": 77, "_event_time": 77}, {"k": "a", "x": None, "_event_time": None}]
    combine.process(pa.RecordBatch.from_pylist(rows, pa.schema([*SCHEMA, ("_event_time", pa.int64())])), partials)
    merge.process(partials.events[0], out)
    clock.pass_ms(100)
    assert merge.work(64, out)
    (row,) = out.rows
    assert (row["n"], row["_event_time"]) == (2, None), "a record without event time counts, too"


@pytest.mark.promise("B4")
def test_a_clock_that_is_set_back_opens_no_window_again() -> None:
    window = ClockWindow(TumblingProcessingTimeWindows.of(10), FakeClock(wall_ms=5))
    window.rows((KEYS[0], 1))
    assert brief(window.at(12)) == [(KEYS[0], 0, 1, 1)]
    window.clock.wall = 4
    window.rows((KEYS[0], 2))
    window = restored(TumblingProcessingTimeWindows.of(10), [window], 0, 1)
    window.rows((KEYS[0], 4))
    assert brief(window.at(30)) == [(KEYS[0], 10, 2, 6)]


@pytest.mark.promise("B4", "D7")
def test_a_clock_that_is_behind_one_of_two_subtasks_after_a_restore_loses_no_record() -> None:
    windows, clock = TumblingProcessingTimeWindows.of(10), FakeClock(wall_ms=5)
    two = [ClockWindow(windows, clock, None, subtask, 2) for subtask in (0, 1)]
    mine = [[key for key in KEYS if GROUP[key] in range_of(subtask, 2, 128)] for subtask in (0, 1)]
    assert all(mine)
    two[0].rows(*((key, 1) for key in mine[0]))
    assert len(two[0].at(12)) == len(mine[0]), "its clock is at 11, that of the other subtask nowhere"
    clock.wall = 7
    one = restored(windows, two, 0, 1)
    one.rows(*((key, 2) for key in KEYS))
    assert sorted(brief(one.at(30))) == sorted((key, 10, 1, 2) for key in KEYS)


@pytest.mark.promise("B4")
def test_a_record_between_windows_is_in_none() -> None:
    window = ClockWindow(SlidingProcessingTimeWindows.of(5, 20, 3), FakeClock(wall_ms=2))
    window.rows(("a", 1))
    assert window.at(3) == []
    window.rows(("a", 2))
    assert window.at(7) == []
    window.rows(("a", 4))
    assert brief(window.at(8)) == [("a", 3, 2, 6)]
    window.rows(("a", 8))
    assert window.at(100) == []


SHAPES = st.tuples(st.integers(1, 25), st.integers(1, 25), st.integers(0, 24)).map(
    lambda shape: SlidingProcessingTimeWindows.of(shape[0], shape[1], shape[2] % shape[1])
)
STEPS = st.tuples(st.integers(1, 4), st.integers(0, 15), st.integers(0, 15), st.integers(0, 15))
"""A parallelism, time that passes before records come, time until subtask 0 works, and until all of them do."""


@pytest.mark.promise("B4", "D7")
@given(st.lists(STEPS, min_size=1, max_size=6), SHAPES)
def test_each_window_of_a_key_fires_once_with_all_that_came_in_it_over_any_rescaling(steps, windows) -> None:
    clock, spans = FakeClock(wall_ms=0), windows.spans
    before: list[ClockWindow] = []
    published: list[tuple[str, int, int, int]] = []
    came: list[tuple[str, int]] = []
    for parallelism, first, second, third in [*steps, (1, 0, 60, 0)]:
        if before:
            now = [restored(windows, before, subtask, parallelism) for subtask in range(parallelism)]
        else:
            now = [ClockWindow(windows, clock, None, subtask, parallelism) for subtask in range(parallelism)]
        clock.pass_ms(first)
        for subtask, window in enumerate(now):
            mine = [key for key in KEYS if GROUP[key] in range_of(subtask, parallelism, 128)]
            # A key group whose subtask was ahead at the barrier puts the records of its new subtask behind that time.
            moment = max(clock.wall, window.merge._clock.latest_ms + 1)
            window.rows(*((key, 1) for key in mine))
            came += [(key, moment) for key in mine]
        clock.pass_ms(second)
        published += brief(now[0].fired())
        clock.pass_ms(third)
        for window in now:
            published += brief(window.fired())
        before = now
    expected: dict[tuple[str, int], int] = {}
    for key, time in came:
        for start in range(time - spans.size_ms + 1, time + 1):
            if (start - spans.offset_ms) % spans.slide_ms == 0:
                expected[key, start] = expected.get((key, start), 0) + 1
    assert sorted(published) == sorted((key, start, n, n) for (key, start), n in expected.items())
