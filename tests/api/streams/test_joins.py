"""Joins of two streams as they are written: the columns of the result, and mistakes with what to write instead."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from engine.api import (
    CoGroupFunction,
    DataStream,
    EventTimeSessionWindows,
    JobError,
    JoinFunction,
    OutputTag,
    ProcessJoinFunction,
    SlidingEventTimeWindows,
    StreamEnvironment,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WatermarkStrategy,
)
from engine.core.event_time import described

STRATEGY = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("at")
WINDOWS = TumblingEventTimeWindows.of("10 s")
BY_CLOCK: Any = TumblingProcessingTimeWindows.of("10 s")
DYNAMIC = EventTimeSessionWindows.with_dynamic_gap(lambda row: row["n"])


def streams(left: str = "id long, n long, at long", right: str = "id long, n long, at long") -> list[Any]:
    env = StreamEnvironment()
    made = [env.from_elements([], schema, uid=uid) for uid, schema in (("orders", left), ("payments", right))]
    return [stream.assign_timestamps_and_watermarks(STRATEGY) for stream in made]


def interval(*sides: str, left: str = "id", right: str = "id") -> Any:
    one, other = streams(*sides)
    return one.key_by(left).interval_join(other.key_by(right)).between("-5 s", "10 s")


def windowed(*sides: str) -> Any:
    one, other = streams(*sides)
    return one.join(other).where("id").equal_to("id").window(WINDOWS)


@pytest.mark.promise("A8")
def test_the_columns_of_both_streams_are_joined_and_equal_names_get_a_suffix() -> None:
    joined: DataStream = interval().select(uid="j")
    assert described(joined.schema) == "id int64, n int64, at int64, n_right int64, at_right int64"
    assert joined.schema.names[-1] == "_event_time"
    chosen = interval().select("n_paid", "id", uid="j", suffix="_paid")
    assert described(chosen.schema) == "n_paid int64, id int64"
    other = interval("id long, at long", "order long, at long", right="order").select(uid="j")
    assert described(other.schema) == "id int64, at int64, order int64, at_right int64"


@pytest.mark.promise("A8")
def test_a_key_column_under_the_name_of_another_column_is_not_taken_for_it() -> None:
    joined = interval("id long, order long, at long", "order long, at long", right="order").select(uid="j")
    assert described(joined.schema) == "id int64, order int64, at int64, order_right int64, at_right int64"


@pytest.mark.promise("A8")
def test_a_window_join_can_have_the_bounds_of_its_windows() -> None:
    assert described(windowed().select(uid="j").schema) == "id int64, n int64, at int64, n_right int64, at_right int64"
    named = windowed().select("id", "window_start", "window_end", uid="j")
    assert described(named.schema) == "id int64, window_start timestamp[us, tz=UTC], window_end timestamp[us, tz=UTC]"


def test_joined_columns_are_decoded_because_two_dictionaries_may_differ() -> None:
    env = StreamEnvironment()
    schema = pa.schema([("id", pa.int64()), ("name", pa.dictionary(pa.int32(), pa.string())), ("at", pa.int64())])
    sides = [env.from_elements([], schema, uid=uid) for uid in ("a", "b")]
    one, other = (side.assign_timestamps_and_watermarks(STRATEGY).key_by("id") for side in sides)
    joined = one.interval_join(other).between(0, 1).select("name", uid="j")
    assert described(joined.schema) == "name string"


class Wrong(ProcessJoinFunction):
    def process_element(self, left: Any, right: Any) -> Any:  # type: ignore[override]
        return []


class Group(CoGroupFunction):
    def co_group(self, first: Any, second: Any) -> Any:
        return []


def untimed() -> Any:
    env = StreamEnvironment()
    one, other = (env.from_elements([], "id long, at long", uid=uid) for uid in ("orders", "payments"))
    return one.assign_timestamps_and_watermarks(STRATEGY).key_by("id"), other.key_by("id")


MISTAKES: list[tuple[Callable[[], object], str]] = [
    (
        lambda: interval("id long, at long", "id string, at long"),
        "interval_join needs keys of the same types, but it joins 'orders' (test_joins.py, line N) by (id int64) with "
        "'payments' (test_joins.py, line N) by (id string): cast one of them before, as in "
        "select(..., id=pl.col('id').cast(...)) to int64",
    ),
    (
        lambda: (lambda one, other: one.interval_join(other))(*untimed()),
        "interval_join needs event time on both sides, and 'payments' (test_joins.py, line N) has none: call "
        "assign_timestamps_and_watermarks(...) on it, and join the stream that this returns",
    ),
    (
        lambda: (lambda one, other: one.key_by("id").interval_join(other))(*streams()),
        "interval_join: the other stream has no keys: call key_by(...) on it, too",
    ),
    (
        lambda: (lambda one, other: one.interval_join(other))(*streams()),
        "a DataStream has no interval_join(...): interval_join needs key_by first, on both streams",
    ),
    (
        lambda: (lambda one, other: one.key_by("id").join(other))(*streams()),
        "a KeyedStream has no join(...): call join before key_by, as in left.join(right).where(COLUMN)",
    ),
    (
        lambda: (lambda one, other: one.join(other.key_by("id")))(*streams()),
        "join takes a stream without keys, as in join(other).where(COLUMN).equal_to(COLUMN)",
    ),
    (
        lambda: (lambda one, _: one.join(streams()[1]))(*streams()),
        "join: the two streams belong to different environments",
    ),
    (
        lambda: (lambda one, other: one.key_by("id").interval_join(other.key_by("id")).between("10 s", "-5 s"))(
            *streams()
        ),
        "between('10 s', '-5 s'): the lower bound is above the upper one, so nothing is between: write "
        "between('-5 s', '10 s')",
    ),
    (
        lambda: (
            (lambda one, other: one.key_by("id").interval_join(other.key_by("id")).between(0, "1 ms"))(*streams())
            .lower_bound_exclusive()
            .upper_bound_exclusive()
            .select(uid="j")
        ),
        "interval_join 'j': between 0 ms and 1 ms, without the bounds themselves, there is no time",
    ),
    (
        lambda: (lambda one, other: one.key_by("id").interval_join(other.key_by("id")).select(uid="j"))(*streams()),
        "an IntervalJoin has no select(...): say first how far apart rows may be",
    ),
    (
        lambda: interval().select("cents", uid="j"),
        "interval_join 'j': there is no column 'cents'; it has (id, n, at, n_right, at_right)",
    ),
    (lambda: interval().select("n_rigth", uid="j"), "did you mean 'n_right'?"),
    (
        lambda: interval().select("id", "id", uid="j"),
        "interval_join 'j': the column 'id' is there twice: leave one out",
    ),
    (
        lambda: interval().select(uid="j", suffix=""),
        "interval_join 'j': both streams have a column 'n', and with suffix='' that of the right one is 'n', which is "
        "there already: choose another suffix, or rename one with select(...) before",
    ),
    (
        lambda: interval("id long, n long, n_right long, at long", "id long, n long, at long").select(uid="j"),
        "with suffix='_right' that of the right one is 'n_right', which is there already",
    ),
    (
        lambda: interval().select(lambda row: row, uid="j"),
        "interval_join 'j': select takes the names of columns, not a lambda: compute others behind the join",
    ),
    (lambda: interval().process(Wrong(), uid="j", schema="n long"), "must take (left, right, context): def process_"),
    (lambda: interval().process(Wrong, uid="j"), "takes an object of Wrong, not the class: write Wrong()"),
    (lambda: interval().process(Group(), uid="j"), "extends ProcessJoinFunction, not an object of Group"),
    (
        lambda: interval().process(ProcessJoinFunction(), uid="j"),
        "interval_join 'j': declare the fields of the results, as in schema=\"id long, name string\"",
    ),
    (
        lambda: interval().side_output_left_late_data(OutputTag("late", "n long")),
        "side_output_left_late_data: the tag 'late' declares (n int64), but the records of the stream are (id int64, n "
        "int64, at int64): declare the same",
    ),
    (lambda: interval().print(), "an IntervalJoined has no print(...): end the join with select(uid=...)"),
    (lambda: interval().apply(Group(), uid="j"), "an interval join has process(ProcessJoinFunction(), uid=...)"),
    (
        lambda: (lambda one, other: one.join(other).where(lambda row: row["id"]))(*streams()),
        'join(...).where takes the names of columns, as in ("id"), not a lambda',
    ),
    (
        lambda: (lambda one, other: one.join(other).where("id").equal_to("order"))(*streams()),
        "there is no column 'order'",
    ),
    (
        lambda: (lambda one, other: one.join(other).where("id").equal_to("id", "n"))(*streams()),
        "cast one of them before, as in key_by(...) with as many columns on both sides",
    ),
    (
        lambda: (lambda one, other: one.join(other).where("id").window(WINDOWS))(*streams()),
        "a JoinedWhere has no window(...): the next call is equal_to(COLUMN): write join(other).where(COLUMN)",
    ),
    (
        lambda: (lambda one, other: one.join(other).where("id").equal_to("id").window("10 s"))(*streams()),
        'join, window takes windows of event time such as TumblingEventTimeWindows.of("10 s") or '
        "EventTimeSessionWindows.with_gap(\"5 s\"), not '10 s'",
    ),
    (
        lambda: (lambda one, other: one.join(other).where("id").equal_to("id").window(BY_CLOCK))(*streams()),
        "join, window takes windows of event time such as",
    ),
    (
        lambda: (lambda one, other: one.join(other).where("id").equal_to("id").window(DYNAMIC))(*streams()),
        "sessions of a join have one gap, because a function can't tell the records of the two streams apart: write "
        'EventTimeSessionWindows.with_gap("5 s") in place of with_dynamic_gap(...)',
    ),
    (lambda: windowed().apply(Group(), uid="j"), "extends JoinFunction or FlatJoinFunction, not an object of Group"),
    (lambda: windowed().process(Group(), uid="j"), "a join in windows has apply(function, uid=..., schema=...)"),
    (lambda: windowed().apply(JoinFunction(), uid="j"), "join 'j': declare the fields of the results"),
    (
        lambda: (lambda one, other: one.co_group(other).where("id").equal_to("id").window(WINDOWS).select(uid="j"))(
            *streams()
        ),
        "a co-group has apply(CoGroupFunction(), uid=..., schema=...) only; join(...) has select",
    ),
]


@pytest.mark.parametrize(("mistake", "told"), MISTAKES)
def test_a_mistake_is_told_with_what_to_write(mistake: Callable[[], object], told: str) -> None:
    with pytest.raises(JobError) as raised:
        mistake()
    assert told in re.sub(r"line \d+", "line N", str(raised.value))


def test_sliding_windows_can_be_joined() -> None:
    one, other = streams()
    joined = one.join(other).where("id").equal_to("id").window(SlidingEventTimeWindows.of("2 s", "1 s"))
    assert "n_right" in joined.select(uid="j").schema.names
