"""Goal: joins of two streams give exactly the rows of two nested loops, whatever happens on the way.

Topology: two sources whose records are out of order within the bound of their watermarks, with nulls in keys and times;
an interval join, a window join or a co-group, as columns and with a function. Faults: run undisturbed, wider with
checkpoints, and crashed and restored at another parallelism. Checks: every row; no state is left at the end.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from engine.api import (
    CoGroupFunction,
    DataStream,
    EventTimeSessionWindows,
    JoinContext,
    JoinFunction,
    ListStateDescriptor,
    ProcessJoinFunction,
    RuntimeContext,
    SlidingEventTimeWindows,
    StreamEnvironment,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from engine.connectors.table import TableSink
from engine.core.sources import Source
from engine.testing import Checkpoint, ListSource, run
from tests.three_ways import three_ways

Row = dict[str, Any]


def rows(seed: int, key: str, value: str) -> list[Row]:
    """Returns records that are at most 3 s out of order; some have no key, some no event time."""
    choice = random.Random(seed)
    return [
        {
            key: choice.choice(["a", "b", "c", None]),
            value: n,
            "at": None if choice.random() < 0.1 else n * 150 + choice.randrange(3000),
        }
        for n in range(36)
    ]


ORDERS, PAYMENTS = rows(1, "id", "n"), rows(2, "order", "cents")


def timed(env: StreamEnvironment, orders: Source, payments: Source) -> tuple[DataStream, DataStream]:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("3 s").with_timestamps("at")
    one = env.from_source(orders, "id string, n long, at long", uid="orders")
    other = env.from_source(payments, "order string, cents long, at long", uid="payments")
    return one.assign_timestamps_and_watermarks(strategy), other.assign_timestamps_and_watermarks(strategy)


def written(joined: DataStream) -> None:
    joined.sink_to(TableSink("out"), uid="out")


def interval_columns(env: StreamEnvironment, orders: Source, payments: Source) -> None:
    one, other = timed(env, orders, payments)
    joined = one.key_by("id").interval_join(other.key_by("order")).between("-1 s", "2 s")
    written(joined.select("n", "cents", "at", "at_right", uid="joined"))


class Pair(ProcessJoinFunction):
    def process_element(self, left: Row, right: Row, context: JoinContext) -> Any:
        assert context.get_timestamp() == max(left["at"], right["at"])
        yield {"n": left["n"], "cents": right["cents"], "at": left["at"], "at_right": right["at"]}


def interval_function(env: StreamEnvironment, orders: Source, payments: Source) -> None:
    one, other = timed(env, orders, payments)
    joined = one.key_by("id").interval_join(other.key_by("order")).between("-1 s", "2 s")
    written(joined.process(Pair(), uid="joined", schema="n long, cents long, at long, at_right long"))


def matching(one: Row, other: Row) -> bool:
    return one["id"] is not None and one["id"] == other["order"] and None not in (one["at"], other["at"])


@pytest.mark.promise("A8", "B1", "B3", "C3", "D7")
@pytest.mark.parametrize("define", [interval_columns, interval_function])
def test_an_interval_join_is_exact_undisturbed_crashed_and_rescaled(define: Any) -> None:
    got = three_ways(define, ORDERS, PAYMENTS)["out"]
    wanted = [
        {"n": one["n"], "cents": other["cents"], "at": one["at"], "at_right": other["at"]}
        for one in ORDERS
        for other in PAYMENTS
        if matching(one, other) and -1000 <= other["at"] - one["at"] <= 2000
    ]
    assert len(wanted) > 40 and got == sorted(wanted, key=repr)


def window_columns(env: StreamEnvironment, orders: Source, payments: Source) -> None:
    one, other = timed(env, orders, payments)
    joined = one.join(other).where("id").equal_to("order").window(SlidingEventTimeWindows.of("2 s", "1 s"))
    written(joined.select("n", "cents", uid="joined"))


class Both(JoinFunction):
    def join(self, first: Row, second: Row) -> Row:
        return {"n": first["n"], "cents": second["cents"]}


def window_function(env: StreamEnvironment, orders: Source, payments: Source) -> None:
    one, other = timed(env, orders, payments)
    joined = one.join(other).where("id").equal_to("order").window(SlidingEventTimeWindows.of("2 s", "1 s"))
    written(joined.apply(Both(), uid="joined", schema="n long, cents long"))


@pytest.mark.promise("A8", "B3", "B4", "D7")
@pytest.mark.parametrize("define", [window_columns, window_function])
def test_a_window_join_is_exact_undisturbed_crashed_and_rescaled(define: Any) -> None:
    got = three_ways(define, ORDERS, PAYMENTS)["out"]
    wanted = [
        {"n": one["n"], "cents": other["cents"]}
        for one in ORDERS
        for other in PAYMENTS
        if matching(one, other)
        for start in {one["at"] // 1000 * 1000, one["at"] // 1000 * 1000 - 1000}
        if start <= other["at"] < start + 2000
    ]
    assert len(wanted) > 40 and got == sorted(wanted, key=repr)


GAP_MS = 600


def session_columns(env: StreamEnvironment, orders: Source, payments: Source) -> None:
    one, other = timed(env, orders, payments)
    joined = one.join(other).where("id").equal_to("order").window(EventTimeSessionWindows.with_gap(GAP_MS))
    written(joined.select("n", "cents", uid="joined"))


def session_function(env: StreamEnvironment, orders: Source, payments: Source) -> None:
    one, other = timed(env, orders, payments)
    joined = one.join(other).where("id").equal_to("order").window(EventTimeSessionWindows.with_gap(GAP_MS))
    written(joined.apply(Both(), uid="joined", schema="n long, cents long"))


def session_outer(env: StreamEnvironment, orders: Source, payments: Source) -> None:
    one, other = timed(env, orders, payments)
    grouped = one.co_group(other).where("id").equal_to("order").window(EventTimeSessionWindows.with_gap(GAP_MS))
    written(grouped.apply(Outer(), uid="joined", schema="n long, cents long"))


def sessions() -> list[tuple[list[Row], list[Row]]]:
    """Returns the orders and the payments of each session; rows without a key are in sessions of their stream."""
    both = [("id", "n", row) for row in ORDERS] + [("order", "cents", row) for row in PAYMENTS]
    found: list[tuple[list[Row], list[Row]]] = []
    for key in ("a", "b", "c", None):
        for columns in (("id", "order"),) if key else (("id",), ("order",)):
            of_key = [(row["at"], name, row) for name, _, row in both if name in columns and row[name] == key]
            last_ms = None
            for at, name, row in sorted((one for one in of_key if one[0] is not None), key=lambda one: one[0]):
                if last_ms is None or at - last_ms > GAP_MS:
                    found.append(([], []))
                found[-1][name == "order"].append(row)
                last_ms = at
    return found


@pytest.mark.promise("A8", "B3", "B4", "D7")
@pytest.mark.parametrize("define", [session_columns, session_function])
def test_a_join_in_sessions_is_exact_undisturbed_crashed_and_rescaled(define: Any) -> None:
    got = three_ways(define, ORDERS, PAYMENTS)["out"]
    wanted = [
        {"n": one["n"], "cents": other["cents"]}
        for orders, payments in sessions()
        for one in orders
        for other in payments
    ]
    assert len(wanted) > 30 and got == sorted(wanted, key=repr)
    assert len([both for both in sessions() if all(both)]) > 5


@pytest.mark.promise("A8", "B3", "B4", "D7")
def test_an_outer_join_in_sessions_is_exact_undisturbed_crashed_and_rescaled() -> None:
    got = three_ways(session_outer, ORDERS, PAYMENTS)["out"]
    wanted = [
        {"n": one and one["n"], "cents": other and other["cents"]}
        for orders, payments in sessions()
        for one in orders or [None]  # type: ignore[list-item]
        for other in payments or [None]  # type: ignore[list-item]
    ]
    assert got == sorted(wanted, key=repr)
    assert {(row["n"] is None, row["cents"] is None) for row in got} == {(False, False), (False, True), (True, False)}


class Outer(CoGroupFunction):
    """A full outer join."""

    def co_group(self, first: Sequence[Row], second: Sequence[Row]) -> list[Row]:
        return [
            {"n": one and one["n"], "cents": other and other["cents"]}
            for one in first or [None]  # type: ignore[list-item]
            for other in second or [None]  # type: ignore[list-item]
        ]


def outer(env: StreamEnvironment, orders: Source, payments: Source) -> None:
    one, other = timed(env, orders, payments)
    grouped = one.co_group(other).where("id").equal_to("order").window(TumblingEventTimeWindows.of("1 s"))
    written(grouped.apply(Outer(), uid="joined", schema="n long, cents long"))


@pytest.mark.promise("A8", "B3", "B4", "D7")
def test_an_outer_join_by_co_group_is_exact_undisturbed_crashed_and_rescaled() -> None:
    got = three_ways(outer, ORDERS, PAYMENTS)["out"]
    pairs = [
        (one["n"], other["cents"])
        for one in ORDERS
        for other in PAYMENTS
        if matching(one, other) and one["at"] // 1000 == other["at"] // 1000
    ]
    alone = [(row["n"], None) for row in ORDERS if row["at"] is not None and row["n"] not in {n for n, _ in pairs}]
    cents = {cents for _, cents in pairs}
    alone += [(None, row["cents"]) for row in PAYMENTS if row["at"] is not None and row["cents"] not in cents]
    assert got == sorted([{"n": n, "cents": cents} for n, cents in pairs + alone], key=repr)
    assert {(row["n"] is None, row["cents"] is None) for row in got} == {(False, False), (False, True), (True, False)}


@pytest.mark.promise("A8", "B2")
@pytest.mark.parametrize("define", [interval_columns, window_columns])
def test_state_is_there_while_rows_may_match_and_gone_when_the_watermark_has_passed_them(define: Any) -> None:
    orders = [{"id": "a", "n": n, "at": 1000 * n} for n in range(10)]
    payments = [{"order": "a", "cents": n, "at": 1000 * n} for n in range(10)]

    def job(env: StreamEnvironment) -> None:
        define(env, ListSource([*orders, Checkpoint()]), ListSource([*payments, Checkpoint()]))

    middle = run(job, parallelism=2, until=lambda so_far: so_far.epochs == 1)
    held = {side: sorted(row["at"] for row in middle.state("joined", side)) for side in ("left", "right")}
    # The watermark is 9 s - 3 s - 1 ms. The last window of what is before 5 s has fired; rows of the left side are
    # joined for 2 s after their time, those of the right side for 1 s.
    first = {interval_columns: (4, 5), window_columns: (5, 5)}[define]
    assert held == {"left": [1000 * n for n in range(first[0], 10)], "right": [1000 * n for n in range(first[1], 10)]}
    end = run(job, parallelism=3, after=middle)
    assert end.state("joined", "left") == end.state("joined", "right") == []


def test_a_stream_may_be_joined_with_itself() -> None:
    def job(env: StreamEnvironment) -> None:
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("at")
        source = ListSource([{"id": "a", "n": n, "at": 1000 * n} for n in range(4)])
        orders = env.from_source(source, "id string, n long, at long", uid="orders")
        one = orders.assign_timestamps_and_watermarks(strategy)
        written(one.key_by("id").interval_join(one.key_by("id")).between(0, "1 s").select("n", "n_right", uid="joined"))

    for parallelism in (1, 2):
        pairs = sorted((row["n"], row["n_right"]) for row in run(job, parallelism=parallelism).rows("out"))
        assert pairs == [(0, 0), (0, 1), (1, 1), (1, 2), (2, 2), (2, 3), (3, 3)]


class Numbered(ProcessJoinFunction):
    """Numbers the pairs that it gets. The number is in operator state."""

    def open(self, context: RuntimeContext) -> None:
        self._state = context.get_operator_state_store().get_list_state(ListStateDescriptor("pairs", "long"))
        self._pairs = sum(self._state.get())

    def process_element(self, left: Row, right: Row, context: JoinContext) -> Any:
        self._pairs += 1
        yield {"pair": self._pairs, "n": left["n"]}

    def snapshot_state(self, checkpoint: int) -> None:
        self._state.update([self._pairs])


@pytest.mark.promise("A8", "C1")
def test_the_operator_state_of_a_join_s_function_goes_on_after_a_restore() -> None:
    orders: list[Any] = [{"id": "a", "n": n, "at": 1000 * n} for n in range(5)]
    payments: list[Any] = [{"order": "a", "cents": n, "at": 1000 * n} for n in range(5)]

    def job(env: StreamEnvironment) -> None:
        sources = (ListSource([*of[:3], Checkpoint(), *of[3:]]) for of in (orders, payments))
        one, other = timed(env, *sources)
        both = one.key_by("id").interval_join(other.key_by("order")).between(0, 0)
        written(both.process(Numbered(), uid="joined", schema="pair long, n long"))

    stopped = run(job, until=lambda so_far: so_far.epochs == 1)
    assert stopped.state("joined", "pairs") == [{"value": 3}], "three pairs are in the snapshot"
    rows = run(job, after=stopped).rows("out")
    assert sorted((row["pair"], row["n"]) for row in rows) == [(1, 0), (2, 1), (3, 2), (4, 3), (5, 4)]
