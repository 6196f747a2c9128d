"""Window joins and co-groups (A8): every pair, or every row, of each key and window, once the window has ended."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api import (
    CoGroupFunction,
    DataStream,
    FlatJoinFunction,
    JoinFunction,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from engine.api.windows import EventTimeWindows
from engine.core.errors import UserFunctionError
from engine.protocol.signals import MAX_WATERMARK
from engine.runtime.operators.joins.outputs import ColumnOutput, FunctionOutput
from engine.state.joins.rows import JoinInput
from engine.state.joins.windows import WindowRows
from engine.state.windows.spans import Spans
from tests.runtime.operators.joining import Model, Row, Subtasks, same_key
from tests.runtime.operators.test_interval_join import DENSE, STEPS, left_row, numbered, right_row

SHAPES = st.sampled_from(
    [
        TumblingEventTimeWindows.of(3),
        TumblingEventTimeWindows.of(3, 1),
        SlidingEventTimeWindows.of(5, 2),
        SlidingEventTimeWindows.of(2, 4),
    ]
)


class Numbers(CoGroupFunction):
    def co_group(self, first: Sequence[Row], second: Sequence[Row]) -> list[Row]:
        return [{"first": sorted(row["n"] for row in first), "second": sorted(row["n"] for row in second)}]


def inner(windows: EventTimeWindows) -> Any:
    def joined(left: DataStream, right: DataStream) -> DataStream:
        both = left.join(right).where("k", "s").equal_to("id", "s").window(windows)
        return both.select("n", "n_right", "window_start", "window_end", uid="join")

    return joined


def co_grouped(windows: EventTimeWindows) -> Any:
    def joined(left: DataStream, right: DataStream) -> DataStream:
        both = left.co_group(right).where("k", "s").equal_to("id", "s").window(windows)
        return both.apply(Numbers(), uid="join", schema="first array<long>, second array<long>")

    return joined


def run(steps: list[tuple[Any, Any]], windows: EventTimeWindows, define: Any) -> tuple[Model, Subtasks]:
    spans = windows.spans

    def is_late(time_ms: int, watermark_ms: int) -> bool:
        starts = starts_of(windows, time_ms)
        return bool(starts) and starts[-1] + spans.size_ms - 1 <= watermark_ms

    model, join, so_far = Model(), Subtasks(define(windows)), 0
    join.restore(1)
    for what, given_ in [*steps, ("watermark", [MAX_WATERMARK] * 3)]:
        if what == "restore":
            join.restore(given_)
            model.parallelism = given_
        elif what == "watermark":
            for subtask in range(model.parallelism):
                join.watermark(subtask, given_[subtask])
                model.watermark(subtask, given_[subtask])
        else:
            rows = numbered(given_, what, so_far)
            so_far += len(rows)
            join.rows(what, rows)
            model.add(what, rows, is_late)
    assert join.counted.get("late:join", 0) == sum(map(len, model.late))
    assert join.counted.get("untimed:join", 0) == model.untimed
    assert join.held() == {"left": [], "right": []}, "the last watermark leaves no state"
    return model, join


def starts_of(windows: EventTimeWindows, time_ms: int) -> list[int]:
    """Returns the starts of all windows that contain a time, oldest first."""
    spans = windows.spans
    first = time_ms - spans.size_ms + 1
    return [start for start in range(first, time_ms + 1) if (start - spans.offset_ms) % spans.slide_ms == 0]


def windows_of(row: Row, windows: EventTimeWindows) -> list[int]:
    """Returns the windows of a row that had not fired when it came."""
    spans = windows.spans
    return [start for start in starts_of(windows, row["_event_time"]) if start + spans.size_ms - 1 > row["clock"]]


@pytest.mark.promise("A8", "B2", "B3", "B4", "C3", "D7")
@given(STEPS, SHAPES)
def test_every_pair_of_a_key_and_window_is_joined_once_over_any_order_lateness_and_rescaling(
    steps: list[tuple[Any, Any]], windows: EventTimeWindows
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ColumnOutput, "at_once", 3)
        check_pairs(steps, windows)


def check_pairs(steps: list[tuple[Any, Any]], windows: EventTimeWindows) -> None:
    model, join = run(steps, windows, inner)
    got = [
        (row["n"], row["n_right"], ms(row["window_start"]), ms(row["window_end"]), row["_event_time"])
        for row in join.emitted
    ]
    size_ms = windows.spans.size_ms
    assert sorted(got) == sorted(
        (one["n"], other["n"], start, start + size_ms, start + size_ms - 1)
        for one in model.rows[0]
        for other in model.rows[1]
        if same_key(one, other)
        for start in windows_of(one, windows)
        if start in windows_of(other, windows)
    )


@pytest.mark.promise("A8", "B7", "D7")
@settings(max_examples=15)
@given(DENSE, SHAPES)
def test_each_window_of_a_key_is_joined_once_whatever_its_clock_was_over_any_rescaling(
    steps: list[tuple[Any, Any]], windows: EventTimeWindows
) -> None:
    check_pairs(steps, windows)


@pytest.mark.promise("A8", "B2", "B3", "B4", "D7")
@given(STEPS, SHAPES)
def test_a_co_group_gets_all_rows_of_each_key_and_window_and_null_keys_of_one_side_alone(
    steps: list[tuple[Any, Any]], windows: EventTimeWindows
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FunctionOutput, "at_once", 3)
        model, join = run(steps, windows, co_grouped)
    groups: dict[Any, tuple[list[int], list[int]]] = {}
    for side in (0, 1):
        for row in model.rows[side]:
            number, text = row[("k", "id")[side]], row["s"]
            alone = side if None in (number, text) else None
            for start in windows_of(row, windows):
                key = (start, repr(0.0 if number == 0 else number), text, alone)
                groups.setdefault(key, ([], []))[side].append(row["n"])
    wanted = [(*map(sorted, both), start + windows.spans.size_ms - 1) for (start, *_), both in groups.items()]
    assert sorted((row["first"], row["second"], row["_event_time"]) for row in join.emitted) == sorted(wanted)


def ms(moment: dt.datetime) -> int:
    return round((moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) / dt.timedelta(milliseconds=1))


class Both(JoinFunction):
    def join(self, first: Row, second: Row) -> Row:
        if second["n"] < 0:
            return None  # type: ignore[return-value]
        return {"both": first["n"] * 100 + second["n"]}


class Odd(FlatJoinFunction):
    def join(self, first: Row, second: Row) -> list[Row]:
        return [{"both": first["n"] * 100 + second["n"]}] * (second["n"] % 2)


def applied(function: JoinFunction | FlatJoinFunction, *right: Row) -> list[int]:
    def define(left: DataStream, second: DataStream) -> DataStream:
        windows = TumblingEventTimeWindows.of("10 ms")
        return (
            left.join(second).where("k").equal_to("id").window(windows).apply(function, uid="join", schema="both long")
        )

    join = Subtasks(define)
    join.restore(1)
    join.rows(0, [left_row(1, 5), left_row(2, 15)])
    join.rows(1, right)
    join.watermark(0, 19)
    return sorted(row["both"] for row in join.emitted)


@pytest.mark.promise("A8")
def test_a_join_function_gets_each_pair_and_returns_one_record_or_any_number() -> None:
    rows = [right_row(1, 0), right_row(2, 9), right_row(3, 10), right_row(4, 20)]
    assert applied(Both(), *rows) == [101, 102, 203]
    assert applied(Odd(), *rows) == [101, 203]


def test_a_join_function_that_returns_nothing_is_told_so_with_its_line() -> None:
    with pytest.raises(UserFunctionError, match="a FlatJoinFunction may return none") as failed:
        applied(Both(), right_row(-1, 0))
    assert "test_window_join.py" in failed.value.raised.line


@pytest.mark.promise("A8", "B4")
def test_a_pane_is_forgotten_when_its_last_window_has_fired() -> None:
    join = Subtasks(inner(SlidingEventTimeWindows.of(10, 5)))
    join.restore(1)
    join.rows(0, [left_row(1, 7)])
    join.rows(1, [right_row(2, 3)])
    for watermark_ms, left, right in ((8, 1, 1), (9, 1, 0), (13, 1, 0), (14, 0, 0)):
        join.watermark(0, watermark_ms)
        assert {name: len(rows) for name, rows in join.held().items()} == {"left": left, "right": right}
    assert [(row["n"], row["n_right"], row["_event_time"]) for row in join.emitted] == [(1, 2, 9)]


@pytest.mark.promise("C3")
def test_a_snapshot_of_a_window_join_does_not_change_with_what_comes_or_goes_later() -> None:
    schema = pa.schema([("k", pa.int64()), ("_event_time", pa.int64())])
    side = JoinInput.of("left", schema, ("k",))
    rows = WindowRows(side, side, Spans(10, 10))
    rows.add(0, 0, pa.table({"k": [1], "_event_time": [3]}, schema=schema))
    first = rows.freeze(0)
    rows.add(0, 0, pa.table({"k": [2], "_event_time": [4]}, schema=schema))
    second = rows.freeze(0)
    assert len(list(rows.due(0, 100))) == 1 and len(rows) == 0, "the window has fired, and its rows are gone"
    assert first().column("k").to_pylist() == [1]
    assert sorted(second().column("k").to_pylist()) == [1, 2]
