"""Interval joins (A8): every pair of rows that are in time, once; state goes when the watermark has passed it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api import DataStream, JoinContext, OutputTag, ProcessJoinFunction
from engine.core.errors import UserFunctionError
from engine.protocol.signals import MAX_WATERMARK
from engine.runtime.operators.joins.outputs import ColumnOutput
from engine.state.joins import interval, runs
from engine.state.joins.rows import JoinInput
from tests.fakes import Collected
from tests.runtime.operators.joining import RIGHT, Model, Row, Subtasks, same_key

ROWS = st.fixed_dictionaries(
    {
        "k": st.sampled_from([1.0, 1.0, 1.0, 0.0, -0.0, float("nan"), None]),
        "s": st.sampled_from(["a", "a", "a", "b", None]),
        "_event_time": st.sampled_from([*range(-4, 5), None]),
    }
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from([0, 1]), st.lists(ROWS, min_size=1, max_size=12)),
        st.tuples(st.sampled_from([0, 1]), st.lists(ROWS, min_size=4, max_size=12)),
        st.tuples(st.just("watermark"), st.lists(st.integers(-7, 5), min_size=3, max_size=3)),
        st.tuples(st.just("restore"), st.integers(1, 3)),
    ),
    min_size=3,
    max_size=14,
)
ALL = [{"k": float(k), "s": "a", "_event_time": time_ms} for k in range(4) for time_ms in range(-4, 5)]
DENSE = st.lists(
    st.tuples(st.integers(1, 3), st.lists(st.integers(-6, 3), min_size=3, max_size=3)), min_size=1, max_size=4
).map(lambda steps: [one for step in steps for one in dense(*step)])
"""Restores at some parallelism, gives each subtask a clock of its own, and each key a row at every time, on each side
before and after."""


def dense(parallelism: int, clocks: list[int]) -> list[tuple[Any, Any]]:
    return [("restore", parallelism), (0, ALL), ("watermark", clocks), (1, ALL)]


BOUNDS = st.tuples(st.integers(-3, 3), st.integers(-3, 3)).map(lambda pair: (min(pair), max(pair)))


def columnar(lower_ms: int, upper_ms: int) -> Any:
    def joined(left: DataStream, right: DataStream) -> DataStream:
        both = left.key_by("k", "s").interval_join(right.key_by("id", "s"))
        return both.between(lower_ms, upper_ms).select(uid="join")

    return joined


def is_late(time_ms: int, watermark_ms: int) -> bool:
    return time_ms <= watermark_ms


def numbered(rows: list[Row], side: int, first: int) -> list[Row]:
    """Gives each row a number of its own, and its key the name that it has on this side."""
    return [
        {("k", "id")[side]: row["k"], "s": row["s"], "n": first + place, "_event_time": row["_event_time"]}
        for place, row in enumerate(rows)
    ]


def pairs(model: Model, lower_ms: int, upper_ms: int) -> list[tuple[int, int, int]]:
    return sorted(
        (one["n"], other["n"], max(one["_event_time"], other["_event_time"]))
        for one in model.rows[0]
        for other in model.rows[1]
        if same_key(one, other) and lower_ms <= other["_event_time"] - one["_event_time"] <= upper_ms
    )


@pytest.mark.promise("A8", "B2", "B3", "C3", "D7")
@given(STEPS, BOUNDS, st.sampled_from([32, 2, 1, 0]))
def test_every_pair_in_time_is_joined_once_over_any_order_lateness_and_rescaling(
    steps: list[tuple[Any, Any]], bounds: tuple[int, int], time_bits: int
) -> None:
    """With fewer bits a run tells times apart less exactly, as one does whose rows span more than 2³² ms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "_TIME_BITS", time_bits)
        patch.setattr(interval, "FANOUT", 2)
        patch.setattr(ColumnOutput, "at_once", 3)
        check(steps, bounds)


@pytest.mark.promise("A8", "B7", "D7")
@settings(max_examples=15)
@given(DENSE, BOUNDS)
def test_rows_at_every_bound_and_watermark_are_joined_over_any_rescaling(
    steps: list[tuple[Any, Any]], bounds: tuple[int, int]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interval, "FANOUT", 2)
        check(steps, bounds)


def check(steps: list[tuple[Any, Any]], bounds: tuple[int, int]) -> None:
    lower_ms, upper_ms = bounds
    model, join, rows_so_far = Model(), Subtasks(columnar(lower_ms, upper_ms)), 0
    join.restore(1)
    for what, given_ in [*steps, ("watermark", [MAX_WATERMARK] * 3)]:
        if what == "restore":
            join.restore(given_)
            model.parallelism = given_
        elif what == "watermark":
            for subtask in range(model.parallelism):
                join.watermark(subtask, given_[subtask])
                model.watermark(subtask, given_[subtask])
            slowest_ms = min(model.clocks.values())
            assert all(row["_event_time"] + upper_ms > slowest_ms for row in join.held()["left"])
            assert all(row["_event_time"] - lower_ms > slowest_ms for row in join.held()["right"])
        else:
            rows = numbered(given_, what, rows_so_far)
            rows_so_far += len(rows)
            join.rows(what, rows)
            model.add(what, rows, is_late)
    got = sorted((row["n"], row["n_right"], row["_event_time"]) for row in join.emitted)
    assert got == pairs(model, lower_ms, upper_ms)
    assert join.counted.get("late:join", 0) == sum(map(len, model.late))
    assert join.counted.get("untimed:join", 0) == model.untimed
    assert join.held() == {"left": [], "right": []}, "the last watermark leaves no state"


def left_row(n: int, time_ms: int, k: float = 1.0) -> Row:
    return {"k": k, "s": "a", "n": n, "_event_time": time_ms}


def right_row(n: int, time_ms: int, k: float = 1.0) -> Row:
    return {"id": k, "s": "a", "n": n, "_event_time": time_ms}


@pytest.mark.promise("A8")
def test_rows_are_kept_exactly_as_long_as_a_row_in_time_may_match_them() -> None:
    join = Subtasks(columnar(-5, 10))
    join.restore(1)
    join.rows(0, [left_row(1, 100)])
    join.rows(1, [right_row(2, 100)])
    for watermark_ms, left, right in ((104, 1, 1), (105, 1, 0), (109, 1, 0), (110, 0, 0)):
        join.watermark(0, watermark_ms)
        assert {name: len(rows) for name, rows in join.held().items()} == {"left": left, "right": right}


@pytest.mark.promise("A8")
def test_half_of_what_is_held_is_needed_however_far_the_watermark_is() -> None:
    join = Subtasks(columnar(0, 1000))
    join.restore(1)
    join.rows(0, [left_row(n, n) for n in range(1000)])
    (operator,) = join.operators
    for watermark_ms in range(1000, 2001, 100):
        join.watermark(0, watermark_ms)
        needed, held = len(join.held()["left"]), len(operator._state.left)
        assert needed == 1999 - watermark_ms if watermark_ms < 2000 else needed == 0
        assert held <= 2 * needed


@pytest.mark.promise("A8", "C3")
def test_a_snapshot_has_the_rows_of_its_barrier_though_a_later_watermark_needs_none_of_them() -> None:
    join = Subtasks(columnar(-5, 10))
    join.restore(1)
    join.rows(0, [left_row(1, 100)])
    join.rows(1, [right_row(2, 100)])
    parts = join.operators[0].snapshot(1).parts
    join.watermark(0, 200)
    assert join.held() == {"left": [], "right": []}
    assert {part.name: [row["n"] for row in part.table().to_pylist()] for part in parts} == {"left": [1], "right": [2]}


@pytest.mark.promise("A8")
def test_different_keys_with_the_same_hash_are_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JoinInput, "hashes", lambda self, rows: np.zeros(rows.num_rows, np.uint64))
    join = Subtasks(columnar(-5, 5))
    join.restore(1)
    join.rows(0, [left_row(1, 100, 1.0), left_row(2, 100, 2.0), {**left_row(3, 100, 2.0), "s": "b"}])
    join.rows(1, [right_row(4, 100, 2.0), right_row(5, 100, 3.0)])
    assert [(row["n"], row["n_right"]) for row in join.emitted] == [(2, 4)]
    join.rows(0, [left_row(6, 100, 3.0)])
    assert [(row["n"], row["n_right"]) for row in join.emitted] == [(2, 4), (6, 5)]


@pytest.mark.promise("A8")
@pytest.mark.parametrize("times", [(0, 1000), (1000, 0)])
def test_rows_of_batches_that_were_put_together_are_found(monkeypatch: pytest.MonkeyPatch, times: list[int]) -> None:
    monkeypatch.setattr(interval, "FANOUT", 2)
    join = Subtasks(columnar(-1, 1))
    join.restore(1)
    for time_ms in times:
        join.rows(0, [left_row(time_ms, time_ms)])
    assert len(join.operators[0]._state.left.runs) == 1
    join.rows(1, [right_row(2, 0), right_row(3, 999), right_row(4, 1001), right_row(5, 1002)])
    assert sorted((row["n"], row["n_right"]) for row in join.emitted) == [(0, 2), (1000, 3), (1000, 4)]


@pytest.mark.promise("A8")
@pytest.mark.parametrize("first_ms", [0, -(2**62)])
def test_rows_that_are_years_apart_are_told_apart_by_the_millisecond(first_ms: int) -> None:
    """And so are rows at the two ends of what event time can be."""
    far = 2**62 if first_ms else 1 << 40
    join = Subtasks(columnar(-far, 1))
    join.restore(1)
    join.rows(0, [left_row(1, first_ms), left_row(2, first_ms + far), left_row(3, first_ms + far + 1)])
    join.rows(1, [right_row(4, first_ms), right_row(5, first_ms + far), right_row(6, first_ms - 1), right_row(7, 5)])
    got = sorted((row["n"], row["n_right"]) for row in join.emitted)
    times = {
        1: first_ms,
        2: first_ms + far,
        3: first_ms + far + 1,
        4: first_ms,
        5: first_ms + far,
        6: first_ms - 1,
        7: 5,
    }
    assert got == [(n, m) for n in (1, 2, 3) for m in (4, 5, 6, 7) if -far <= times[m] - times[n] <= 1]


@pytest.mark.promise("A8")
def test_the_bounds_are_included_unless_the_author_says_otherwise() -> None:
    def joined(lower: bool, upper: bool) -> list[int]:
        def define(left: DataStream, right: DataStream) -> DataStream:
            both = left.key_by("k").interval_join(right.key_by("id")).between("-5 ms", "5 ms")
            both = both.lower_bound_exclusive() if lower else both
            both = both.upper_bound_exclusive() if upper else both
            return both.select("n", "n_right", uid="join")

        join = Subtasks(define)
        join.restore(1)
        join.rows(0, [left_row(0, 100)])
        join.rows(1, [right_row(time_ms, time_ms) for time_ms in (94, 95, 96, 104, 105, 106)])
        return [row["n_right"] for row in join.emitted]

    assert joined(False, False) == [95, 96, 104, 105]
    assert joined(True, False) == [96, 104, 105]
    assert joined(False, True) == [95, 96, 104]
    assert joined(True, True) == [96, 104]


@pytest.mark.promise("A8", "B7")
def test_late_rows_of_each_side_go_to_the_side_outputs_that_are_asked_for() -> None:
    early, tardy = OutputTag("early", "k double, s string, n long"), OutputTag("tardy", "s string, id double, n long")

    def define(left: DataStream, right: DataStream) -> DataStream:
        both = left.key_by("k").interval_join(right.key_by("id")).between(-5, 5)
        return both.side_output_left_late_data(early).side_output_right_late_data(tardy).select(uid="join")

    join = Subtasks(define)
    join.restore(1)
    join.watermark(0, 100)
    join.rows(0, [left_row(1, 100), left_row(2, 101)])
    join.rows(1, [right_row(3, 99), right_row(4, 103)])
    assert [(name, row["n"], row["_event_time"]) for name, row in join.aside] == [("early", 1, 100), ("tardy", 3, 99)]
    assert [(row["n"], row["n_right"]) for row in join.emitted] == [(2, 4)]
    assert join.counted == {"late:join": 2}


TWICE = OutputTag("twice", "n long")


class Distance(ProcessJoinFunction):
    def process_element(self, left: Row, right: Row, context: JoinContext) -> Any:
        assert context.get_timestamp() == max(context.get_left_timestamp(), context.get_right_timestamp())
        if left["n"] < 0:
            raise ValueError("below zero")
        yield {"n": left["n"], "apart": context.get_right_timestamp() - context.get_left_timestamp()}
        yield TWICE, {"n": right["n"]}


def with_function(left: DataStream, right: DataStream) -> DataStream:
    both = left.key_by("k").interval_join(right.key_by("id")).between(-5, 5)
    return both.process(Distance(), uid="join", schema="n long, apart long")


@pytest.mark.promise("A8")
def test_a_function_gets_each_pair_with_its_times_and_may_emit_aside() -> None:
    join = Subtasks(with_function)
    join.restore(1)
    join.rows(1, [right_row(7, 103), right_row(8, 98)])
    join.rows(0, [left_row(1, 100)])
    assert sorted((row["n"], row["apart"], row["_event_time"]) for row in join.emitted) == [(1, -2, 100), (1, 3, 103)]
    assert sorted((name, row["n"], row["_event_time"]) for name, row in join.aside) == [
        ("twice", 7, 103),
        ("twice", 8, 100),
    ]
    assert join.operators[0].records_done == 2


class Closing(Distance):
    """Notes that it is closed. The operator works with a copy, which notes it in the same list."""

    def __init__(self, closed: list[str]) -> None:
        self._closed = closed

    def __deepcopy__(self, memo: object) -> Closing:
        return Closing(self._closed)

    def close(self) -> None:
        self._closed.append("closed")


@pytest.mark.promise("A5", "A8")
def test_a_join_that_is_closed_closes_its_function() -> None:
    closed: list[str] = []

    def define(left: DataStream, right: DataStream) -> DataStream:
        both = left.key_by("k").interval_join(right.key_by("id")).between(-5, 5)
        return both.process(Closing(closed), uid="join", schema="n long, apart long")

    join = Subtasks(define)
    join.restore(1)
    assert closed == []
    join.operators[0].close()
    assert closed == ["closed"]


def test_an_error_of_a_function_names_the_pair() -> None:
    join = Subtasks(with_function)
    join.restore(1)
    join.rows(1, [right_row(7, 103)])
    with pytest.raises(UserFunctionError, match="below zero") as failed:
        join.rows(0, [left_row(-1, 100)])
    assert "pair 1" in failed.value.raised.position and "'n': -1" in failed.value.raised.record
    assert "test_interval_join.py" in failed.value.raised.line


def test_dictionaries_of_different_batches_are_joined_by_their_values() -> None:
    join = Subtasks(columnar(-5, 5))
    join.restore(1)
    (operator,) = join.operators
    out = Collected()
    for n, text in enumerate(["a", "b", "a"]):
        row = pa.table(
            {
                "k": [1.0],
                "s": pa.array([text]).dictionary_encode(),
                "n": [n],
                "_event_time": pa.array([100 + n], pa.int64()),
            }
        )
        operator.process(row.to_batches()[0], out)
    operator.process_second(pa.RecordBatch.from_pylist([right_row(9, 100)], schema=RIGHT), out)
    assert sorted(row["n"] for row in out.rows) == [0, 2]
