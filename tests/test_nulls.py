"""NULL in every aggregate and operator: the results that Spark SQL 4.3 gives for the same rows.

Topology: one source, windows and running aggregates per key, conditions. Fault: a crash behind a checkpoint, in the
middle of the rows, so that nulls also pass through snapshots. Checks: the expected rows below were computed by Spark.
"""

from typing import Any

import polars as pl
import pytest

from engine.api import (
    FixedDelay,
    KeyedProcessFunction,
    ProcessContext,
    StreamEnvironment,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    count,
    maximum,
    mean,
    minimum,
    total,
)
from engine.connectors.table import TableSink
from engine.testing import Checkpoint, Crash, ListSource, run

ROWS = [
    ("a", 1, 1000),
    ("a", None, 2000),
    ("b", None, 3000),
    (None, 4, 4000),
    (None, 5, 5000),
    ("b", None, 11000),
    ("a", 7, None),
    ("a", 3, 12000),
]
WINDOWS = [  # groupBy("k", window("ts", "10 seconds")): k, start in s, count(*), count(x), sum, min, max, avg
    (None, 0, 2, 2, 9, 4, 5, 4.5),
    ("a", 0, 2, 1, 1, 1, 1, 1.0),
    ("a", 10, 1, 1, 3, 3, 3, 3.0),
    ("b", 0, 1, 0, None, None, None, None),
    ("b", 10, 1, 0, None, None, None, None),
]
RUNNING = {  # over (partition by k rows between unbounded preceding and current row)
    "sum": [("a", 1), ("a", 1), ("b", None), (None, 4), (None, 9), ("b", None), ("a", 8), ("a", 11)],
    "min": [("a", 1), ("a", 1), ("b", None), (None, 4), (None, 4), ("b", None), ("a", 1), ("a", 1)],
    "max": [("a", 1), ("a", 1), ("b", None), (None, 4), (None, 5), ("b", None), ("a", 7), ("a", 7)],
}


def source(crash_at: int | None) -> ListSource:
    items: list[Any] = [{"k": k, "x": x, "ts": t} for k, x, t in ROWS]
    if crash_at is not None:
        items[crash_at:crash_at] = [Checkpoint(), Crash()]
    return ListSource(items)


def results(define: Any, crash_at: int | None, parallelism: int) -> list[dict[str, Any]]:
    def job(env: StreamEnvironment) -> None:
        env.set_restart_strategy(FixedDelay(attempts=5, delay_ms=10))
        define(env.from_source(source(crash_at), "k string, x long, ts long", uid="src")).sink_to(
            TableSink("out"), uid="out"
        )

    return run(job, parallelism=parallelism).rows("out")


CRASHES = pytest.mark.parametrize(("crash_at", "parallelism"), [(None, 1), (2, 1), (5, 2), (7, 2)])


@CRASHES
@pytest.mark.promise("A2", "B4")
def test_window_aggregates_skip_nulls_and_null_is_a_key_of_its_own(crash_at: int | None, parallelism: int) -> None:
    def define(stream: Any) -> Any:
        strategy = WatermarkStrategy.for_bounded_out_of_orderness("20 s").with_timestamps("ts")
        windows = stream.assign_timestamps_and_watermarks(strategy).key_by("k")
        return windows.window(TumblingEventTimeWindows.of("10 s")).aggregate(
            n=count(), nx=count("x"), s=total("x"), lo=minimum("x"), hi=maximum("x"), m=mean("x"), uid="w"
        )

    found = [
        (r["k"], int(r["window_start"].timestamp()), r["n"], r["nx"], r["s"], r["lo"], r["hi"], r["m"])
        for r in results(define, crash_at, parallelism)
    ]
    assert sorted(found, key=repr) == sorted(WINDOWS, key=repr)


@CRASHES
@pytest.mark.parametrize("kind", RUNNING)
@pytest.mark.promise("A2")
def test_running_aggregates_skip_nulls(kind: str, crash_at: int | None, parallelism: int) -> None:
    found = results(lambda stream: getattr(stream.key_by("k"), kind)("x", uid="r"), crash_at, parallelism)
    for key in ("a", "b", None):
        assert [r["x"] for r in found if r["k"] == key] == [x for k, x in RUNNING[kind] if k == key]


@pytest.mark.promise("A1")
@pytest.mark.parametrize(
    ("condition", "kept"),
    [
        (pl.col("x") > 2, [4, 5, 7, 3]),
        (~(pl.col("x") > 2), [1]),  # unknown is not true, neither is its opposite
    ],
)
def test_a_condition_that_is_null_is_not_true(condition: pl.Expr, kept: list[int]) -> None:
    assert [r["x"] for r in results(lambda stream: stream.where(condition), None, 1)] == kept
    by_rows = results(lambda s: s.filter(lambda r: None if r["x"] is None else r["x"] > 2), None, 1)
    assert [r["x"] for r in by_rows] == [4, 5, 7, 3]


class Seen(KeyedProcessFunction):
    def process_element(self, value: dict[str, Any], context: ProcessContext) -> list[dict[str, Any]]:
        assert context.current_key == (value["k"],)
        assert context.timestamp_ms == value["ts"]
        return [value]


@pytest.mark.promise("A2", "A6")
def test_functions_get_null_as_none_also_as_key_and_as_event_time() -> None:
    def define(stream: Any) -> Any:
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("ts")
        return stream.assign_timestamps_and_watermarks(strategy).key_by("k").process(Seen(), uid="p")

    found = [(r["k"], r["x"], r["ts"]) for r in results(define, 3, 2)]
    assert sorted(found, key=repr) == sorted(ROWS, key=repr)
    firsts = results(lambda s: s.key_by("k").reduce(lambda left, right: left, uid="r"), None, 1)
    assert [r["x"] for r in firsts if r["k"] == "b"] == [None, None]
