"""Aggregates that keep a state of their own: equal to plain Python, however rows are batched and merged (B5)."""

import datetime as dt
import math
import statistics
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.errors import JobError
from engine.graph.state_types import read_state_type
from engine.state.windows.aggregates import (
    Aggregate,
    approx_count_distinct,
    approx_quantile,
    approx_quantiles,
    count,
    count_distinct,
    first,
    last,
    mean,
    quantile,
    quantiles,
    stddev,
    top_n,
    variance,
)
from engine.state.windows.plan import AggregatePlan
from tests.state.windows.test_aggregates import merged_somehow, partial_of

SCHEMA = pa.schema([("k", pa.string()), ("x", pa.int64()), ("s", pa.string()), ("_event_time", pa.int64())])
AGGREGATES = {
    "first": first("s"),
    "last": last("x"),
    "distinct": count_distinct("s"),
    "about": approx_count_distinct("x"),
    "top": top_n("x", 2),
    "best": top_n("s", 2, by="x"),
    "median": quantile("x", 0.5),
    "spread": quantiles("x", [0, 0.25, 1]),
    "roughly": approx_quantile("x", 0.5),
    "variance": variance("x"),
    "stddev": stddev("x"),
}
ROW = st.fixed_dictionaries(
    {
        "k": st.sampled_from(["a", "b", None]),
        "x": st.none() | st.integers(-9, 9),
        "s": st.none() | st.sampled_from(["", "p", "q", "é"]),
        "_event_time": st.integers(0, 4),
    }
)


def interpolated(values: list[int], q: float) -> float | None:
    if not values:
        return None
    place = q * (len(values) - 1)
    low, high = values[math.floor(place)], values[min(math.floor(place) + 1, len(values) - 1)]
    return low + (high - low) * (place - math.floor(place))


def expected(rows: list[dict[str, Any]]) -> dict[str, Any]:
    x, s = sorted(row["x"] for row in rows if row["x"] is not None), [row for row in rows if row["s"] is not None]
    pairs = sorted([(row["x"], row["s"]) for row in s if row["x"] is not None], reverse=True)[:2]
    spread = statistics.variance(x) if len(x) > 1 else None
    return {
        "first": min(((row["_event_time"], row["s"]) for row in s), default=(0, None))[1],
        "last": max(((row["_event_time"], row["x"]) for row in rows if row["x"] is not None), default=(0, None))[1],
        "distinct": len({row["s"] for row in s}),
        "about": len(set(x)),
        "top": x[::-1][:2],
        "best": [{"x": by, "s": value} for by, value in pairs],
        "median": interpolated(x, 0.5),
        "spread": [interpolated(x, q) for q in (0, 0.25, 1)] if x else None,
        "roughly": pytest.approx(x[(len(x) - 1) // 2], rel=0.01) if x else None,
        "variance": pytest.approx(spread) if spread is not None else None,
        "stddev": pytest.approx(math.sqrt(spread)) if spread is not None else None,
    }


@pytest.mark.promise("B5")
@given(st.lists(st.lists(ROW, max_size=10), min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_any_batching_and_any_grouping_of_merges_gives_what_plain_python_gives(batches, random) -> None:
    plan = AggregatePlan(["k"], AGGREGATES, SCHEMA)
    partials = [partial_of(plan, pa.RecordBatch.from_pylist(rows, schema=SCHEMA), random) for rows in batches]
    merged = merged_somehow(plan, partials, random)
    assert merged.schema == plan.partial_schema
    finished = plan.finish(merged)
    assert finished.schema == plan.result_schema
    rows = [row for batch in batches for row in batch]
    assert {row["k"] for row in rows} == set(finished.column("k").to_pylist())
    for result in finished.to_pylist():
        assert result == {"k": result["k"], **expected([row for row in rows if row["k"] == result["k"]])}


TYPES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [False, True]),
    (pa.int8(), [1, 2]),
    (pa.float32(), [0.5, 1.5]),
    (pa.decimal128(9, 2), [Decimal("1.10"), Decimal("2.20")]),
    (pa.string(), ["a", "b"]),
    (pa.binary(), [b"a", b"b"]),
    (pa.date32(), [dt.date(2024, 1, 1), dt.date(2024, 1, 2)]),
    (pa.timestamp("us", tz="UTC"), [dt.datetime(2024, 1, 1, tzinfo=dt.UTC), dt.datetime(2024, 1, 2, tzinfo=dt.UTC)]),
    (pa.dictionary(pa.int32(), pa.string()), ["a", "b"]),
]


@pytest.mark.parametrize(("kind", "values"), TYPES, ids=[str(kind) for kind, _ in TYPES])
def test_values_of_every_type_that_has_an_order_are_kept(kind: pa.DataType, values: list[Any]) -> None:
    schema = pa.schema([("k", pa.string()), ("v", kind), ("n", pa.int64()), ("_event_time", pa.int64())])
    low, high = values
    columns = [["a"] * 4, [high, low, None, high], [1, 2, 3, 3], [1, 2, 3, 4]]
    batch = pa.record_batch([pa.array(c, t) for c, t in zip(columns, schema.types, strict=True)], schema=schema)
    aggregates = {
        "first": first("v"),
        "last": last("v"),
        "n": count_distinct("v"),
        "about": approx_count_distinct("v"),
        "top": top_n("v", 3),
        "by": top_n("n", 1, by="v"),
    }
    plan = AggregatePlan(["k"], aggregates, schema)
    (row,) = plan.finish(
        plan.merge([plan.partial(batch, 0), pa.table(plan.ungrouped(batch, 0).slice(1, 1))])
    ).to_pylist()
    assert row == {
        "k": "a",
        "first": high,
        "last": high,
        "n": 2,
        "about": 2,
        "top": [high, high, low],
        "by": [{"v": high, "n": 3}],
    }
    assert read_state_type(plan.described()) is not None, "an upgrade compares the described types"


def test_zeros_are_one_value_and_nan_is_the_greatest() -> None:
    schema = pa.schema([("k", pa.string()), ("f", pa.float64()), ("_event_time", pa.int64())])
    values = [0.0, -0.0, float("nan"), -float("nan"), 2.0]
    batch = pa.record_batch([["a"] * 5, values, [1] * 5], schema=schema)
    aggregates = {
        "n": count_distinct("f"),
        "about": approx_count_distinct("f"),
        "top": top_n("f", 3),
        "q": quantile("f", 1),
    }
    plan = AggregatePlan(["k"], aggregates, schema)
    (row,) = plan.finish(plan.merge([plan.partial(batch, 0)] * 2)).to_pylist()
    assert (row["n"], row["about"]) == (3, 3)
    assert all(math.isnan(value) for value in (*row["top"], row["q"]))


def of_values(aggregate: Aggregate, values: Any) -> Any:
    schema = pa.schema([("k", pa.int64()), ("x", pa.array(values).type), ("_event_time", pa.int64())])
    zeros = np.zeros(len(values), np.int64)
    plan = AggregatePlan(["k"], {"y": aggregate}, schema)
    parts = [slice(0, len(values) // 3), slice(len(values) // 4, None)]  # they overlap
    batch = pa.record_batch([pa.array(zeros), pa.array(values), pa.array(zeros)], schema=schema)
    tables = [plan.partial(batch.slice(part.start, part.stop), 0) for part in parts]
    return plan.finish(plan.merge(tables)).column("y")[0].as_py()


@pytest.mark.promise("B5")
@pytest.mark.parametrize("size", [10, 1_000, 5_000, 20_000, 300_000])
@pytest.mark.parametrize("step", [1, 1_000_003])
def test_the_estimated_number_of_distinct_values_is_within_four_standard_errors(size: int, step: int) -> None:
    estimate = of_values(approx_count_distinct("x"), np.arange(size) * step)
    assert estimate == pytest.approx(size, rel=4 * 1.04 / math.sqrt(4096))


@pytest.mark.promise("B5")
@given(
    st.lists(st.floats(allow_nan=False, width=64) | st.sampled_from([0.0, 1e-320, math.inf]), min_size=4, max_size=30),
    st.sampled_from([0, 0.1, 0.5, 0.99, 1]),
)
def test_an_estimated_quantile_is_within_one_percent_of_the_value_at_its_rank(values, q) -> None:
    all_values = sorted([*values[: len(values) // 3], *values[len(values) // 4 :]])
    exact = all_values[math.floor(q * (len(all_values) - 1))]
    (got,) = of_values(approx_quantiles("x", [q]), np.array(values))
    assert got == pytest.approx(exact, rel=0.01000001, abs=5e-324) or abs(exact) > 1.78e308


def test_a_variance_of_large_values_that_lie_close_is_not_lost_in_rounding() -> None:
    plain = [1e9, 1e9 + 1, 1e9 + 2, 1e9 + 3] * 3
    seen = [*plain[:4], *plain[3:]]
    assert of_values(variance("x"), np.array(plain)) == pytest.approx(statistics.variance(seen), rel=1e-6)


@pytest.mark.promise("D8")
def test_an_aggregate_that_is_new_sees_the_later_records_of_open_windows() -> None:
    old, new = AggregatePlan(["k"], {"n": count()}, SCHEMA), AggregatePlan(["k"], {"n": count(), **AGGREGATES}, SCHEMA)
    row = {"k": "a", "x": 4, "s": "p", "_event_time": 1}
    batch = pa.RecordBatch.from_pylist([row], schema=SCHEMA)
    adopted = new.adopted(old.partial(batch, 0))
    (result,) = new.finish(new.merge([adopted, new.partial(batch, 0)])).to_pylist()
    assert result == {"k": "a", "n": 2, **expected([row])}
    (unseen,) = new.finish(new.merge([adopted, adopted])).to_pylist()
    assert unseen == {"k": "a", "n": 2, **expected([])}
    assert new.finish(adopted).to_pylist()[0]["distinct"] == 0


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: top_n("x", 0), "top_n(x, 0): n is a whole number from 1 on"),
        (lambda: top_n("x", 3, by="x"), "leave out by='x'"),
        (lambda: quantile("x", 1.5), "quantile(x, 1.5): 1.5 is not a number from 0 to 1"),
        (lambda: approx_quantiles("x", [0.5, -1]), "approx_quantiles(x, [0.5, -1]): -1 is not a number from 0 to 1"),
        (lambda: quantiles("x", []), "quantiles(x, []): write which"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(make: Any, told: str) -> None:
    with pytest.raises(JobError) as error:
        make()
    assert told in str(error.value)


@pytest.mark.promise("B5")
def test_integers_that_no_double_holds_exactly_are_rounded() -> None:
    schema = pa.schema([("k", pa.string()), ("x", pa.int64()), ("_event_time", pa.int64())])
    aggregates = {
        "mean": mean("x"),
        "median": quantile("x", 0.5),
        "roughly": approx_quantile("x", 0),
        "deviation": stddev("x"),
    }
    plan = AggregatePlan(["k"], aggregates, schema)
    values = [2**53 + 1, 2**53 + 3, 2**55]
    rows = pa.table({"k": ["a"] * 3, "x": values, "_event_time": [0] * 3}, schema=schema)
    (row,) = plan.finish(plan.merge([plan.partial(rows, 0)])).to_pylist()
    assert row["mean"] == pytest.approx(sum(values) / 3, rel=1e-15)
    assert row["median"] == pytest.approx(2**53 + 3, rel=1e-15)
    assert row["roughly"] == pytest.approx(2**53, rel=0.01)
    assert row["deviation"] == pytest.approx(statistics.stdev(values), rel=1e-12)
