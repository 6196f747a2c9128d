"""Joins and co-groups in session windows (A8, B4): records of both sides share the merging sessions of a key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api import CoGroupFunction, DataStream, EventTimeSessionWindows
from engine.protocol.signals import MAX_WATERMARK
from engine.runtime.operators.joins.outputs import ColumnOutput, FunctionOutput
from engine.state.joins import keyed_rows
from engine.state.windows import session_runs
from tests.runtime.operators.joining import Model, Row, Subtasks
from tests.runtime.operators.test_interval_join import STEPS, left_row, numbered, right_row
from tests.runtime.operators.test_window_join import Numbers, ms

GAPS = st.integers(1, 4)


@dataclass
class Sessions(Model):
    """Knows all rows that are kept, divides those of a key again whenever it is asked, and notes what has fired."""

    gap_ms: int = 1
    inner: bool = True
    kept: dict[Any, list[tuple[int, Row]]] = field(default_factory=dict)
    fired: list[tuple[int, int, list[int], list[int]]] = field(default_factory=list)
    too_late: int = 0

    def add_rows(self, side: int, rows: Sequence[Row]) -> None:
        new: dict[Any, list[tuple[int, Row]]] = {}
        for row in rows:
            number, text = row[("k", "id")[side]], row["s"]
            alone = side if None in (number, text) else None
            if row["_event_time"] is None:
                self.untimed += 1
            elif alone is None or not self.inner:
                new.setdefault((repr(0.0 if number == 0 else number), text, alone), []).append((side, row))
        for key, of in new.items():
            clock = self.clock(*of[0])
            together = self.sessions([*self.kept.get(key, []), *of])
            self.too_late += sum(len(session) for session in together if self.end(session) - 1 <= clock)
            self.kept[key] = [one for session in together if self.end(session) - 1 > clock for one in session]

    def fire(self) -> None:
        for key, rows in self.kept.items():
            over = [session for session in self.sessions(rows) if self.end(session) - 1 <= self.clock(*session[0])]
            for session in over:
                sides = [sorted(row["n"] for side, row in session if side == wanted) for wanted in (0, 1)]
                self.fired.append((session[0][1]["_event_time"], self.end(session), *sides))  # type: ignore[arg-type]
            gone = [one[1]["n"] for session in over for one in session]
            self.kept[key] = [one for one in rows if one[1]["n"] not in gone]

    def sessions(self, rows: Sequence[tuple[int, Row]]) -> list[list[tuple[int, Row]]]:
        divided: list[list[tuple[int, Row]]] = []
        for one in sorted(rows, key=lambda of: of[1]["_event_time"]):
            if divided and one[1]["_event_time"] <= self.end(divided[-1]):
                divided[-1].append(one)
            else:
                divided.append([one])
        return divided

    def end(self, session: Sequence[tuple[int, Row]]) -> int:
        last: int = session[-1][1]["_event_time"]
        return last + self.gap_ms


def inner(gap_ms: int) -> Any:
    def joined(left: DataStream, right: DataStream) -> DataStream:
        windows = EventTimeSessionWindows.with_gap(gap_ms)
        both = left.join(right).where("k", "s").equal_to("id", "s").window(windows)
        return both.select("n", "n_right", "window_start", "window_end", uid="join")

    return joined


def co_grouped(gap_ms: int, function: CoGroupFunction | None = None) -> Any:
    def joined(left: DataStream, right: DataStream) -> DataStream:
        windows = EventTimeSessionWindows.with_gap(gap_ms)
        both = left.co_group(right).where("k", "s").equal_to("id", "s").window(windows)
        return both.apply(function or Numbers(), uid="join", schema="first array<long>, second array<long>")

    return joined


def run(steps: list[tuple[Any, Any]], define: Any, model: Sessions) -> Subtasks:
    join, so_far = Subtasks(define(model.gap_ms)), 0
    join.restore(1)
    for what, given_ in [*steps, ("watermark", [MAX_WATERMARK] * 3)]:
        if what == "restore":
            join.restore(given_)
            model.parallelism = given_
        elif what == "watermark":
            for subtask in range(model.parallelism):
                join.watermark(subtask, given_[subtask])
                model.watermark(subtask, given_[subtask])
            model.fire()
            held = [row["n"] for rows in join.held().values() for row in rows]
            assert sorted(held) == sorted(row["n"] for rows in model.kept.values() for _, row in rows)
        else:
            rows = numbered(given_, what, so_far)
            so_far += len(rows)
            join.rows(what, rows)
            model.add_rows(what, rows)
    assert join.counted.get("late:join", 0) == model.too_late
    assert join.counted.get("untimed:join", 0) == model.untimed
    assert join.held() == {"left": [], "right": []}, "the last watermark leaves no state"
    return join


@pytest.mark.promise("A8", "B2", "B3", "B4", "B7", "C3", "D7")
@given(STEPS, GAPS)
def test_every_pair_of_a_session_is_joined_once_over_any_order_lateness_and_rescaling(
    steps: list[tuple[Any, Any]], gap_ms: int
) -> None:
    model = Sessions(gap_ms=gap_ms)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ColumnOutput, "at_once", 3)
        patch.setattr(keyed_rows, "FANOUT", 2)
        patch.setattr(session_runs, "FANOUT", 2)
        join = run(steps, inner, model)
    got = [
        (row["n"], row["n_right"], ms(row["window_start"]), ms(row["window_end"]), row["_event_time"])
        for row in join.emitted
    ]
    assert sorted(got) == sorted(
        (one, other, start, end, end - 1)
        for start, end, first, second in model.fired
        for one in first
        for other in second
    )


@pytest.mark.promise("A8", "B2", "B3", "B4", "B7", "D7")
@given(STEPS, GAPS)
def test_a_co_group_gets_all_rows_of_each_session_and_null_keys_of_one_side_alone(
    steps: list[tuple[Any, Any]], gap_ms: int
) -> None:
    model = Sessions(gap_ms=gap_ms, inner=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FunctionOutput, "at_once", 3)
        patch.setattr(keyed_rows, "FANOUT", 2)
        patch.setattr(session_runs, "FANOUT", 2)
        join = run(steps, co_grouped, model)
    got = [(row["_event_time"], row["first"], row["second"]) for row in join.emitted]
    assert sorted(got) == sorted((end - 1, first, second) for _, end, first, second in model.fired)


def joined(gap_ms: int = 10) -> Subtasks:
    join = Subtasks(inner(gap_ms))
    join.restore(1)
    return join


def pairs(join: Subtasks) -> list[tuple[int, int, int]]:
    return sorted((row["n"], row["n_right"], row["_event_time"]) for row in join.emitted)


@pytest.mark.promise("A8", "B4")
def test_a_row_of_either_side_extends_the_session_of_both() -> None:
    join = joined()
    join.rows(0, [left_row(1, 0)])
    join.rows(1, [right_row(2, 10)])
    join.watermark(0, 9)  # the left row alone would be over
    join.rows(0, [left_row(3, 20)])
    join.watermark(0, 28)
    assert pairs(join) == []
    join.watermark(0, 29)
    assert pairs(join) == [(1, 2, 29), (3, 2, 29)]
    assert join.held() == {"left": [], "right": []}


@pytest.mark.promise("A8", "B4", "D7")
@pytest.mark.parametrize("restores", [[], [1], [3, 2]])
def test_a_row_between_two_sessions_merges_them_also_after_a_restore(restores: list[int]) -> None:
    join = joined()
    join.rows(0, [left_row(1, 0)])
    join.rows(1, [right_row(2, 15)])
    for parallelism in restores:
        join.restore(parallelism)
    join.rows(0, [left_row(3, 8)])
    for subtask in range(len(join.operators)):
        join.watermark(subtask, 24)
    assert pairs(join) == [(1, 2, 24), (3, 2, 24)]


@pytest.mark.promise("A8", "B7")
def test_a_row_that_is_late_by_itself_counts_if_its_session_is_open_and_is_dropped_and_counted_if_not() -> None:
    join = joined()
    join.rows(0, [left_row(1, 0)])
    join.rows(1, [right_row(2, 10)])
    join.watermark(0, 15)
    join.rows(0, [left_row(3, 2)])
    assert join.counted == {}
    join.watermark(0, 19)
    join.rows(0, [left_row(4, 2)])
    join.rows(1, [right_row(5, 9)])
    join.watermark(0, MAX_WATERMARK)
    assert pairs(join) == [(1, 2, 19), (3, 2, 19)]
    assert join.counted == {"late:join": 2}


@pytest.mark.promise("A8", "B7", "D7")
def test_a_row_that_is_kept_only_by_rows_of_the_other_side_survives_a_restore() -> None:
    join = joined()
    join.rows(0, [left_row(1, 0)])
    join.rows(1, [right_row(2, 10), right_row(3, 20)])
    join.watermark(0, 25)  # the left row is over by itself, and open by its session
    join.restore(2)
    for subtask in (0, 1):
        join.watermark(subtask, 29)
    assert pairs(join) == [(1, 2, 29), (1, 3, 29)]
    assert join.counted == {}


@pytest.mark.promise("A8", "B4")
def test_sessions_of_a_key_that_go_on_are_kept_when_an_earlier_one_fires() -> None:
    join = joined()
    join.rows(0, [left_row(1, 0), left_row(2, 50)])
    join.rows(1, [right_row(3, 5), right_row(4, 55)])
    join.watermark(0, 20)
    assert pairs(join) == [(1, 3, 14)]
    assert {side: [row["n"] for row in rows] for side, rows in join.held().items()} == {"left": [2], "right": [4]}
    join.watermark(0, 70)
    assert pairs(join) == [(1, 3, 14), (2, 4, 64)]


class InOrder(CoGroupFunction):
    def co_group(self, first: Sequence[Row], second: Sequence[Row]) -> list[Row]:
        return [{"first": [row["n"] for row in first], "second": [row["n"] for row in second]}]


@pytest.mark.promise("A8", "D7")
@pytest.mark.parametrize("restores", [[], [29], [20, 29]])
def test_the_rows_of_a_group_come_in_the_order_in_which_they_arrived_also_after_a_restore(restores: list[int]) -> None:
    """The first restore comes when the first 8 rows of each side are merged into one run, and others came later."""
    join = Subtasks(co_grouped(100, InOrder()))
    join.restore(1)
    for n in range(30):
        if n in restores:
            join.restore(1)
        join.rows(n % 2, [(left_row, right_row)[n % 2](n, 30 - n)])
    join.watermark(0, 200)
    ((first, second),) = [(row["first"], row["second"]) for row in join.emitted]
    assert (first, second) == (list(range(0, 30, 2)), list(range(1, 30, 2)))
