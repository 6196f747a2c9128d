"""Built-in aggregates: partial, merge and finish equal plain Python, however rows are batched and merged."""

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.state.windows.aggregates import count, maximum, mean, minimum, total
from engine.state.windows.plan import ROWS, WINDOW, AggregatePlan

SCHEMA = pa.schema([("k", pa.string()), ("g", pa.int32()), ("x", pa.int64()), ("f", pa.float64()), ("s", pa.string())])
AGGREGATES = {
    "rows": count(),
    "sum": total("x"),
    "low": minimum("x"),
    "high": maximum("x"),
    "avg": mean("x"),
    "last": maximum("s"),
    "f_sum": total("f"),
}
# Halves, so that sums of floats are exact in any order.
HALVES = st.integers(-1000, 1000).map(lambda n: n / 2)
ROW = st.fixed_dictionaries(
    {
        "k": st.sampled_from(["a", "b", None]),
        "g": st.sampled_from([1, 2, None]),
        "x": st.none() | st.integers(-(10**9), 10**9),
        "f": st.none() | HALVES,
        "s": st.none() | st.text(max_size=2),
    }
)


def expected(rows: list[dict[str, Any]], keys: list[str]) -> list[dict[str, Any]]:
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    result = []
    for key, members in groups.items():
        x, f, s = ([m[c] for m in members if m[c] is not None] for c in ("x", "f", "s"))
        result.append(
            dict(zip(keys, key, strict=True))
            | {
                "rows": len(members),
                "sum": sum(x) if x else None,
                "low": min(x, default=None),
                "high": max(x, default=None),
                "avg": sum(x) / len(x) if x else None,
                "last": max(s, key=lambda text: text.encode(), default=None),
                "f_sum": sum(f) if f else None,
            }
        )
    return sorted(result, key=repr)


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=repr)


def merged_somehow(plan: AggregatePlan, tables: list[pa.Table], random: Any) -> pa.Table:
    """Merge in a random tree, in a random order."""
    tables = list(tables)
    while len(tables) > 1:
        random.shuffle(tables)
        some = random.randint(2, len(tables))
        tables = [plan.merge(tables[:some]), *tables[some:]]
    return plan.merge(tables)


def partial_of(plan: AggregatePlan, batch: pa.RecordBatch, random: Any) -> pa.Table:
    """Grouped or not."""
    return plan.partial(batch, 0) if random.random() < 0.5 else pa.Table.from_batches([plan.ungrouped(batch, 0)])


@pytest.mark.promise("B5")
@given(st.lists(st.lists(ROW, max_size=12), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_any_batching_and_any_grouping_of_merges_gives_what_plain_python_gives(batches, random) -> None:
    plan = AggregatePlan(["k", "g"], AGGREGATES, SCHEMA)
    partials = [partial_of(plan, pa.RecordBatch.from_pylist(rows, schema=SCHEMA), random) for rows in batches]
    assert all(partial.schema == plan.partial_schema for partial in partials)
    merged = merged_somehow(plan, partials, random)
    assert merged.schema == plan.partial_schema
    finished = plan.finish(merged)
    assert finished.schema == plan.result_schema
    assert rows_of(finished) == expected([row for rows in batches for row in rows], ["k", "g"])


@pytest.mark.promise("B5")
@given(st.lists(st.tuples(ROW, st.sampled_from([-20, -10, 0, 10])), min_size=1, max_size=30))
def test_one_batch_over_several_windows_gives_a_row_per_key_and_window(stamped) -> None:
    plan = AggregatePlan(["k"], AGGREGATES, SCHEMA)
    batch = pa.RecordBatch.from_pylist([row for row, _ in stamped], schema=SCHEMA)
    partial = plan.partial(batch, pa.array([window for _, window in stamped], pa.int64()))
    assert partial.schema == plan.partial_schema
    for window in {window for _, window in stamped}:
        of_window = partial.filter(pc.equal(partial.column(WINDOW), window))
        assert rows_of(plan.finish(of_window)) == expected([row for row, w in stamped if w == window], ["k"])


def test_an_empty_batch_gives_an_empty_partial_of_the_same_schema() -> None:
    plan = AggregatePlan(["k"], AGGREGATES, SCHEMA)
    partial = plan.partial(pa.RecordBatch.from_pylist([], schema=SCHEMA), 10)
    assert partial.num_rows == 0
    assert partial.schema == plan.partial_schema
    assert plan.merge([partial, partial]).num_rows == 0


def test_a_sliced_batch_counts_its_own_rows_only() -> None:
    plan = AggregatePlan(["k"], {"n": count(), "x": total("x")}, SCHEMA)
    rows = [{"k": "a", "g": 1, "x": x, "f": None, "s": None} for x in range(10)]
    partial = plan.partial(pa.RecordBatch.from_pylist(rows, schema=SCHEMA).slice(3, 4), 0)
    assert plan.finish(partial).to_pylist() == [{"k": "a", "n": 4, "x": 3 + 4 + 5 + 6}]


@pytest.mark.parametrize("key", ["count_all", "x_sum", "x_count", "x$sum", "x_min", "_rows_sum", "k0", "v0_sum"])
def test_a_key_may_have_the_name_of_an_internal_column(key: str) -> None:
    schema = pa.schema([(key, pa.string()), ("x", pa.int64()), ("_window", pa.int64()), ("_rows", pa.int64())])
    plan = AggregatePlan([key], {"n": count(), "sum": total("x"), "avg": mean("x"), "w": total("_window")}, schema)
    batch = pa.RecordBatch.from_pylist([{key: "a", "x": 2, "_window": 5, "_rows": 9}] * 3, schema=schema)
    for windows in (0, pa.array([0] * 3, pa.int64())):
        merged = plan.merge([plan.partial(batch, windows), plan.partial(batch, windows)])
        assert plan.finish(merged).to_pylist() == [{key: "a", "n": 6, "sum": 12, "avg": 2.0, "w": 30}]
        assert merged.column(ROWS).to_pylist() == [6]


def test_aggregated_columns_may_have_names_that_meet() -> None:
    schema = pa.schema([("k", pa.string()), ("x", pa.int64()), ("x_sum", pa.int64()), ("x$sum", pa.int64())])
    plan = AggregatePlan(["k"], {"a": total("x"), "b": total("x_sum"), "x_sum": total("x$sum")}, schema)
    batch = pa.RecordBatch.from_pylist([{"k": "a", "x": 1, "x_sum": 10, "x$sum": 100}] * 2, schema=schema)
    finished = plan.finish(plan.merge([plan.partial(batch, 0)] * 2))
    assert finished.to_pylist() == [{"k": "a", "a": 4, "b": 40, "x_sum": 400}]


def test_the_key_itself_can_be_aggregated() -> None:
    plan = AggregatePlan(["x"], {"low": minimum("x"), "n": count()}, SCHEMA)
    batch = pa.RecordBatch.from_pylist([{"k": "", "g": 1, "x": 7, "f": 0.0, "s": ""}], schema=SCHEMA)
    assert plan.finish(plan.merge([plan.partial(batch, 0)])).to_pylist() == [{"x": 7, "low": 7, "n": 1}]


def test_batches_with_different_dictionaries_are_grouped_by_value() -> None:
    schema = pa.schema([("k", pa.dictionary(pa.int32(), pa.string())), ("v", pa.dictionary(pa.int8(), pa.string()))])
    plan = AggregatePlan(["k"], {"n": count(), "low": minimum("v")}, schema)
    batches = [
        pa.record_batch(
            [pa.array(keys).dictionary_encode(), pa.array(values).dictionary_encode().cast(schema.field("v").type)],
            schema=schema,
        )
        for keys, values in ((["a", "b", "b"], ["x", "y", "z"]), (["b", "c", None], ["w", "v", "u"]))
    ]
    merged = plan.merge([plan.partial(batch, 0) for batch in batches])
    assert {row["k"]: (row["n"], row["low"]) for row in plan.finish(merged).to_pylist()} == {
        "a": (1, "x"),
        "b": (3, "w"),
        "c": (1, "v"),
        None: (1, "u"),
    }


@pytest.mark.parametrize(
    "dictionary",
    [
        pa.array(["a", "b", "a", None]),
        pa.array([b"a", b"b", b"a", None]),
        pa.array([0.0, float("nan"), -0.0, None]),
    ],
)
def test_a_dictionary_that_holds_a_value_twice_or_a_null_is_one_group_per_value(dictionary: pa.Array) -> None:
    keys = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, 3, None, 2], pa.int8()), dictionary)
    batch = pa.record_batch({"k": keys})
    plan = AggregatePlan(["k"], {"n": count()}, batch.schema)
    starts = pa.array([0] * len(keys))
    merged = [
        plan.merge([plan.partial(rows, at)]) for rows in (batch, pa.Table.from_batches([batch])) for at in (0, starts)
    ]
    for result in merged:
        assert plan.finish(result).column("n").to_pylist() == [3, 1, 2]
        assert plan.finish(result).schema == plan.result_schema


@pytest.mark.promise("A3")
@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_float_keys_that_hash_alike_are_one_key(kind: pa.DataType) -> None:
    schema = pa.schema([("k", kind)])
    plan = AggregatePlan(["k"], {"n": count()}, schema)
    keys = pa.array([0.0, -0.0, float("nan"), -float("nan"), None], kind)
    finished = plan.finish(plan.partial(pa.record_batch([keys], schema=schema), 0))
    assert [(str(row["k"]), row["n"]) for row in finished.to_pylist()] == [("0.0", 2), ("nan", 2), ("None", 1)]


@pytest.mark.parametrize(
    ("kind", "values", "sum_", "low", "high"),
    [
        (pa.int8(), [100, 100, None], 200, 100, 100),
        (pa.uint64(), [2**63, 1], 2**63 + 1, 1, 2**63),
        (pa.bool_(), [True, True, False], 2, False, True),
        (
            pa.decimal128(5, 2),
            [Decimal("999.99"), Decimal("0.02")],
            Decimal("1000.01"),
            Decimal("0.02"),
            Decimal("999.99"),
        ),
        (pa.float32(), [1.5, 2.5], 4.0, 1.5, 2.5),
    ],
)
def test_sums_are_wide_enough_for_narrow_columns(kind, values, sum_, low, high) -> None:
    schema = pa.schema([("k", pa.int64()), ("x", kind)])
    plan = AggregatePlan(["k"], {"sum": total("x"), "low": minimum("x"), "high": maximum("x")}, schema)
    batch = pa.record_batch([pa.array([1] * len(values), pa.int64()), pa.array(values, kind)], schema=schema)
    for partial in (plan.partial(batch, 0), pa.Table.from_batches([plan.ungrouped(batch, 0)])):
        finished = plan.finish(plan.merge([partial]))
        assert finished.to_pylist() == [{"k": 1, "sum": sum_, "low": low, "high": high}]


def test_a_sum_of_64_bit_integers_wraps_round_as_in_java() -> None:
    plan = AggregatePlan(["k"], {"sum": total("x")}, SCHEMA)
    rows = [{"k": "a", "g": 1, "x": x, "f": None, "s": None} for x in (2**63 - 1, 1)]
    partial = plan.partial(pa.RecordBatch.from_pylist(rows, schema=SCHEMA), 0)
    assert plan.finish(partial).to_pylist() == [{"k": "a", "sum": -(2**63)}]


def test_minimum_and_maximum_of_times_and_dates_keep_their_type() -> None:
    stamp = pa.timestamp("ms", tz="UTC")
    schema = pa.schema([("k", pa.int64()), ("t", stamp), ("d", pa.date32())])
    plan = AggregatePlan(["k"], {"first": minimum("t"), "last": maximum("d")}, schema)
    assert plan.result_schema.field("first").type == stamp
    rows = [{"k": 1, "t": dt.datetime(2024, 1, day, tzinfo=dt.UTC), "d": dt.date(2024, 1, day)} for day in (3, 1, 2)]
    finished = plan.finish(plan.partial(pa.RecordBatch.from_pylist(rows, schema=schema), 0))
    assert finished.to_pylist() == [
        {"k": 1, "first": dt.datetime(2024, 1, 1, tzinfo=dt.UTC), "last": dt.date(2024, 1, 3)}
    ]


def test_what_has_no_sum_is_an_error_when_the_plan_is_made() -> None:
    with pytest.raises(pa.ArrowNotImplementedError, match="hash_sum"):
        AggregatePlan(["k"], {"sum": total("s")}, SCHEMA)


def test_an_aggregate_reads_like_its_call() -> None:
    assert (str(count()), str(mean("x"))) == ("count(*)", "mean(x)")


@pytest.mark.promise("D8")
def test_what_snapshots_hold_of_the_first_aggregates_does_not_change() -> None:
    """The names and types of columns in state files, and their description in manifests: older ones have to restore."""
    plan = AggregatePlan(["k"], AGGREGATES, SCHEMA)
    assert str(plan.partial_schema).split("\n") == [
        *("k: string", "_window: int64", "_rows: int64"),
        *("x$sum: int64", "x$min: int64", "x$max: int64", "x$count: int64", "s$max: string", "f$sum: double"),
    ]
    assert plan.described() == (
        "count(*) int64, count(x) int64, max(s) string, max(x) int64, min(x) int64, sum(f) double, sum(x) int64"
    )
