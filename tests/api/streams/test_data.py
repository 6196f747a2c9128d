"""Streams as an author writes them: schemas of `select`, `where`, `map_batches`, windows; what each mistake is told."""

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from engine.api import (
    DataStream,
    JobError,
    KeyedProcessFunction,
    StreamEnvironment,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    count,
    maximum,
    mean,
    minimum,
    total,
)
from engine.core.errors import SchemaMismatch, UserFunctionError
from engine.runtime.operators.base import Operator
from tests.fakes import Collected, context

VIEWS = "app_id string, user_id long, bytes long, ts timestamp"
STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness("2 s").with_timestamps("ts")
TEN_SECONDS = TumblingEventTimeWindows.of("10 s")


def views(schema: pa.Schema | str = VIEWS, env: StreamEnvironment | None = None) -> DataStream:
    return (env or StreamEnvironment()).from_elements([], schema, uid="views")


def timed(schema: pa.Schema | str = VIEWS) -> DataStream:
    return views(schema).assign_timestamps_and_watermarks(STRATEGY)


def operator(stream: DataStream) -> Operator:
    """The last operator of a stream, opened."""
    spec = stream._env.graph.nodes[stream._node].operator
    assert spec is not None
    built = spec.build()
    built.open(context(spec.uid), None)
    return built


def run(stream: DataStream, batch: pa.RecordBatch) -> pa.Table:
    out = Collected()
    operator(stream).process(batch, out)
    return pa.Table.from_batches(out.events, stream.schema)


# --- select ---


def test_select_takes_columns_and_expressions_and_keeps_event_time() -> None:
    stream = timed().select("app_id", pl.col("user_id").alias("user"), kib=pl.col("bytes") / 1024)
    assert stream.schema == pa.schema(
        [("app_id", pa.string()), ("user", pa.int64()), ("kib", pa.float64()), ("_event_time", pa.int64())]
    )
    assert views().select("app_id").schema.names == ["app_id"]


def test_selected_columns_are_passed_on_as_they_are_whatever_their_type() -> None:
    """Among them types that polars does not have: seconds, maps, dictionaries, 32-bit lists."""
    schema = pa.schema(
        [
            pa.field("n", pa.int64(), nullable=False),
            ("m", pa.map_(pa.string(), pa.int32())),
            ("l", pa.list_(pa.string())),
            ("s", pa.struct([("a", pa.string())])),
            ("t_s", pa.timestamp("s")),
            ("t_ns", pa.timestamp("ns", tz="UTC")),
            ("time", pa.time32("s")),
            ("date", pa.date32()),
            ("dec", pa.decimal128(10, 2)),
            ("dict", pa.dictionary(pa.int8(), pa.string())),
            ("fixed", pa.binary(2)),
            ("null", pa.null()),
            ("text", pa.large_string()),
        ]
    )
    row = {
        "n": 1,
        "m": [("a", 1)],
        "l": ["x", None],
        "s": {"a": "y"},
        "t_s": dt.datetime(2024, 1, 1),
        "t_ns": dt.datetime(2024, 1, 1, tzinfo=dt.UTC),
        "time": dt.time(1, 2, 3),
        "date": dt.date(2024, 1, 1),
        "dec": Decimal("1.10"),
        "dict": "d",
        "fixed": b"ab",
        "null": None,
        "text": "t",
    }
    nothing = {name: None for name in row} | {"n": 2}
    batch = pa.RecordBatch.from_pylist([row, nothing], schema=schema)
    selected = views(schema).select(*schema.names, twice=pl.col("n") * 2)
    assert selected.schema == schema.append(pa.field("twice", pa.int64()))
    assert run(selected, batch).drop_columns("twice").equals(pa.Table.from_batches([batch]))
    kept = views(schema).where(pl.col("n") == 1)
    assert kept.schema == schema
    assert run(kept, batch).equals(pa.Table.from_batches([batch.slice(0, 1)]))


def test_what_expressions_make_has_the_types_of_spark() -> None:
    schema = pa.schema([("a", pa.string()), ("l", pa.list_(pa.string())), ("ts", pa.timestamp("us", tz="UTC"))])
    stream = views(schema).select(
        upper=pl.col("a").str.to_uppercase(),
        raw=pl.col("a").cast(pl.Binary),
        tags=pl.col("l").list.reverse(),
        pair=pl.struct("a", "l"),
        hour=pl.col("ts").dt.truncate("1h"),
        day=pl.col("ts").dt.date(),
        kind=pl.col("a").cast(pl.Categorical),
    )
    tags = pa.list_(pa.field("element", pa.string()))
    assert stream.schema == pa.schema(
        [
            ("upper", pa.string()),
            ("raw", pa.binary()),
            ("tags", tags),
            ("pair", pa.struct([("a", pa.string()), ("l", tags)])),
            ("hour", pa.timestamp("us", tz="UTC")),
            ("day", pa.date32()),
            ("kind", pa.string()),
        ]
    )
    row = {"a": "é", "l": ["x", None, "y"], "ts": dt.datetime(2024, 1, 1, 5, 30, tzinfo=dt.UTC)}
    batch = pa.RecordBatch.from_pylist([row, dict.fromkeys(row)], schema=schema)
    first, second = run(stream, batch).to_pylist()
    assert first == {
        "upper": "É",
        "raw": "é".encode(),
        "tags": ["y", None, "x"],
        "pair": {"a": "é", "l": ["x", None, "y"]},
        "hour": dt.datetime(2024, 1, 1, 5, tzinfo=dt.UTC),
        "day": dt.date(2024, 1, 1),
        "kind": "é",
    }
    assert second["upper"] is None and second["hour"] is None


def test_a_constant_is_given_to_every_record() -> None:
    batch = pa.record_batch({"a": [1, 2, 3]})
    assert run(views("a long").select(one=pl.lit(1)), batch).to_pylist() == [{"one": 1}] * 3


def test_select_works_on_slices_and_keeps_their_event_times() -> None:
    stream = timed("ts long, x long").select(y=pl.col("x") + 1)
    batch = pa.record_batch({"ts": [1, 2, 3, 4], "x": [10, 20, 30, 40], "_event_time": [1, 2, 3, 4]}).slice(1, 2)
    assert run(stream, batch).to_pylist() == [{"y": 21, "_event_time": 2}, {"y": 31, "_event_time": 3}]


# --- where ---


def test_where_keeps_the_records_for_which_the_condition_is_true_and_not_null() -> None:
    batch = pa.record_batch({"a": [1, None, 3]})
    assert run(views("a long").where(pl.col("a") > 0), batch).to_pylist() == [{"a": 1}, {"a": 3}]
    assert run(views("a long").where(pl.lit(True)), batch).num_rows == 3


def test_a_batch_of_which_nothing_is_kept_is_not_passed_on() -> None:
    out = Collected()
    operator(views("a long").where(pl.col("a") > 9)).process(pa.record_batch({"a": [1, 2]}), out)
    assert out.events == []


def test_an_empty_batch_is_no_problem() -> None:
    batch = pa.record_batch({"a": pa.array([], pa.int64())})
    assert run(views("a long").where(pl.col("a") > 9), batch).num_rows == 0
    assert run(views("a long").select(b=pl.col("a") + 1), batch).num_rows == 0


# --- map_batches and the row lane ---


def test_map_batches_has_the_schema_that_it_declares_and_event_time_goes_along() -> None:
    stream = timed("ts long, x long").map_batches(lambda b: pa.record_batch({"y": b["x"]}), "y long")
    assert stream.schema.names == ["y", "_event_time"]
    batch = pa.record_batch({"ts": [1, 2], "x": [5, 6], "_event_time": [1, 2]})
    assert run(stream, batch).to_pylist() == [{"y": 5, "_event_time": 1}, {"y": 6, "_event_time": 2}]


def test_map_batches_that_drops_records_has_to_keep_event_time_itself() -> None:
    batch = pa.record_batch({"ts": [1, 2], "x": [5, 6], "_event_time": [1, 2]})
    keeping = timed("ts long, x long").map_batches(lambda b: b.slice(1))
    assert run(keeping, batch).to_pylist() == [{"ts": 2, "x": 6, "_event_time": 2}]
    losing = timed("ts long, x long").map_batches(lambda b: b.select(["ts", "x"]).slice(1))
    with pytest.raises(SchemaMismatch, match="returned 1 records for 2, so it has to keep the column '_event_time'"):
        run(losing, batch)


def test_map_batches_that_returns_something_else_is_told_both_schemas() -> None:
    stream = views("x long").map_batches(lambda b: pa.record_batch({"z": b["x"]}), "y long")
    with pytest.raises(SchemaMismatch, match=r"declares the schema \(y int64\), but its function returned \(z int64\)"):
        run(stream, pa.record_batch({"x": [1]}))


def test_a_function_that_raises_is_named_with_its_batch() -> None:
    def boom(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise ZeroDivisionError("no")

    with pytest.raises(UserFunctionError, match=r"operator 'map_batches-1', subtask 0, batch 1 \(2 records\): ZeroDiv"):
        run(views("x long").map_batches(boom), pa.record_batch({"x": [1, 2]}))


@pytest.mark.promise("A2")
def test_running_sum_min_and_max_emit_per_record_and_keep_the_schema() -> None:
    batch = pa.record_batch({"k": ["a", "b", "a", "a"], "x": [5, 7, 1, 3]})
    for method, expected in (("sum", [5, 7, 6, 9]), ("min", [5, 7, 1, 1]), ("max", [5, 7, 5, 5])):
        stream = getattr(views("k string, x long").key_by("k"), method)("x", uid="running")
        assert run(stream, batch).column("x").to_pylist() == expected


# --- windows ---


def test_window_results_have_the_keys_the_window_the_named_aggregates_and_event_time() -> None:
    stream = timed().key_by("app_id", "user_id").window(TEN_SECONDS)
    result = stream.aggregate(pv=count(), bytes=total("bytes"), last=maximum("ts"), avg=mean("bytes"), uid="pv")
    stamp = pa.timestamp("us", tz="UTC")
    assert result.schema == pa.schema(
        [
            ("app_id", pa.string()),
            ("user_id", pa.int64()),
            ("window_start", stamp),
            ("window_end", stamp),
            ("pv", pa.int64()),
            ("bytes", pa.int64()),
            ("last", stamp),
            ("avg", pa.float64()),
            ("_event_time", pa.int64()),
        ]
    )


def test_dictionary_keys_come_out_of_windows_as_their_values() -> None:
    schema = pa.schema([("k", pa.dictionary(pa.int32(), pa.string())), ("ts", pa.int64())])
    stream = timed(schema).key_by("k").window(TEN_SECONDS).aggregate(n=count(), low=minimum("k"), uid="w")
    assert stream.schema.field("k").type == pa.string()


def test_window_results_can_be_windowed_again() -> None:
    first = timed().key_by("app_id").window(TEN_SECONDS).aggregate(pv=count(), uid="pv")
    again = first.key_by("app_id").window(TumblingEventTimeWindows.of("1 min")).aggregate(pv=total("pv"), uid="pv1")
    assert again.schema.names == ["app_id", "window_start", "window_end", "pv", "_event_time"]


# --- event time ---


def test_right_behind_a_source_watermarks_are_made_per_split() -> None:
    env = StreamEnvironment()
    stream = views(env=env).assign_timestamps_and_watermarks(STRATEGY)
    (node,) = env.graph.nodes
    assert node.source is not None and node.source.strategy is not None
    assert (node.source.strategy.column, node.source.strategy.bound_ms) == ("ts", 2000)
    assert node.schema == stream.schema


def test_anywhere_else_they_are_made_by_an_operator() -> None:
    stream = views().where(pl.col("bytes") > 0).assign_timestamps_and_watermarks(STRATEGY)
    spec = stream._env.graph.nodes[stream._node].operator
    assert spec is not None and spec.kind == "assign_timestamps"


def test_a_second_assignment_to_one_source_does_not_change_the_first() -> None:
    env = StreamEnvironment()
    source = views("a timestamp, b timestamp", env)
    source.assign_timestamps_and_watermarks(WatermarkStrategy.for_monotonous_timestamps().with_timestamps("a"))
    second = source.assign_timestamps_and_watermarks(WatermarkStrategy.for_monotonous_timestamps().with_timestamps("b"))
    assert env.graph.nodes[0].source is not None and env.graph.nodes[0].source.strategy is not None
    assert env.graph.nodes[0].source.strategy.column == "a"
    assert second._node == 1


# --- mistakes ---


class Identity(KeyedProcessFunction):
    def process_element(self, value: Any, context: Any) -> Any:
        return [value]


MISTAKES: list[tuple[Callable[[], object], str]] = [
    (
        lambda: views().key_by("appid"),
        "key_by: there is no column 'appid'; the stream has (app_id string, user_id int64, bytes int64, ts timestamp",
    ),
    (lambda: views().key_by(), "key_by needs at least one column"),
    (lambda: views().key_by("app_id", "app_id"), "a column is named twice"),
    (lambda: timed().key_by("_event_time"), "key_by: there is no column '_event_time'"),
    (lambda: views("tags array<string>").key_by("tags"), "key_by('tags'): a column of type list<element: string>"),
    (
        lambda: views().key_by("app_id").window(TEN_SECONDS),
        "window needs event time: call assign_timestamps_and_watermarks(...) before key_by(...)",
    ),
    (lambda: timed().key_by("app_id").window(TEN_SECONDS).aggregate(uid="w"), "window 'w' aggregates nothing"),
    (
        lambda: timed().key_by("app_id").window(TEN_SECONDS).aggregate(b=total("byte"), uid="w"),
        "b=total(byte): there is no column 'byte'; the stream has (app_id string",
    ),
    (
        lambda: timed().key_by("app_id").window(TEN_SECONDS).aggregate(b=total("app_id"), uid="w"),
        "window 'w', b=total(app_id) of (app_id string",
    ),
    (
        lambda: timed().key_by("app_id").window(TEN_SECONDS).aggregate(app_id=count(), uid="w"),
        "the aggregate 'app_id' has the name of another result column",
    ),
    (
        lambda: timed().key_by("app_id").window(TEN_SECONDS).aggregate(window_end=count(), uid="w"),
        "the aggregate 'window_end' has the name of another result column",
    ),
    (
        lambda: timed().key_by("app_id").window(TEN_SECONDS).aggregate(_event_time=count(), uid="w"),
        "the aggregate '_event_time' has the name of another result column",
    ),
    (
        lambda: timed().key_by("app_id").window(TEN_SECONDS).aggregate(n=count, uid="w"),
        "is no aggregate: write one such as count()",
    ),
    (
        lambda: (
            timed("window_start long, ts long").key_by("window_start").window(TEN_SECONDS).aggregate(n=count(), uid="w")
        ),
        "the key 'window_start' has the name of another column of windows: rename it with select(...)",
    ),
    (
        lambda: timed("_rows string, ts long").key_by("_rows").window(TEN_SECONDS).aggregate(n=count(), uid="w"),
        "the key '_rows' has the name of another column of windows",
    ),
    (lambda: TumblingEventTimeWindows.of("0 s"), "a window of '0 s' has no length"),
    (lambda: views().select(), "select needs at least one column or expression"),
    (lambda: views().select("nothing"), "select: there is no column 'nothing'; the stream has (app_id string"),
    (lambda: views().select(pl.col("nothing")), "select on a stream of (app_id string"),
    (lambda: views().select(x=5), "select takes polars expressions such as pl.col('a') > 1, not 5"),
    (lambda: timed().select(_event_time=pl.lit(0)), "select: the name '_event_time' is the engine's own"),
    (lambda: views().select(pl.col("bytes").sum()), "is not an expression of one record"),
    (lambda: views().select(pl.col("bytes") - pl.col("bytes").mean()), "is not an expression of one record"),
    (lambda: views().select(pl.col("bytes").shift()), "is not an expression of one record"),
    (lambda: views("l array<long>").select(pl.col("l").explode()), "is not an expression of one record"),
    (lambda: views().where(pl.col("bytes") > pl.col("bytes").max()), "is not an expression of one record"),
    (lambda: views().where(pl.col("nothing") > 1), "where on a stream of (app_id string"),
    (lambda: views().where(pl.col("bytes")), "where needs one condition that is true or false; this one gives (bytes"),
    (lambda: views().where(True), "where takes polars expressions such as pl.col('a') > 1, not True"),
    (lambda: views().where(pl.col("bytes") > "text"), "where on a stream of"),
    (
        lambda: views().assign_timestamps_and_watermarks(STRATEGY.with_timestamps("when")),
        "assign_timestamps_and_watermarks: there is no column 'when'",
    ),
    (
        lambda: views().assign_timestamps_and_watermarks(STRATEGY.with_timestamps("app_id")),
        "the event time 'app_id' is a string: it has to be a timestamp, or integers in milliseconds",
    ),
    (
        lambda: views().assign_timestamps_and_watermarks(WatermarkStrategy.for_monotonous_timestamps()),
        "the watermark strategy needs with_timestamps(COLUMN)",
    ),
    (lambda: WatermarkStrategy.for_bounded_out_of_orderness(-1), "-1 is negative"),
    (lambda: views().key_by("app_id").sum("byte", uid="s"), "there is no column 'byte'"),
    (lambda: views().key_by("app_id").process(Identity(), uid=""), "process needs a uid: state is found by it"),
    (lambda: views().map_batches(lambda b: b, "y strng"), "unknown type 'strng'"),
]


@pytest.mark.parametrize(("mistake", "text"), MISTAKES, ids=[text[:50] for _, text in MISTAKES])
def test_a_mistake_is_told_when_the_job_is_written(mistake: Callable[[], object], text: str) -> None:
    with pytest.raises(JobError) as caught:
        mistake()
    assert text in str(caught.value)


def test_selectors_are_expressions_of_one_record() -> None:
    assert views().select(pl.all()).schema.names == ["app_id", "user_id", "bytes", "ts"]
    assert views().select(pl.selectors.integer()).schema.names == ["user_id", "bytes"]


def test_elements_that_do_not_fit_the_schema_are_told_by_position() -> None:
    env = StreamEnvironment()
    with pytest.raises(SchemaMismatch, match=r"element 1 has the fields \['b'\], the schema \['a'\]"):
        env.from_elements([{"a": 1}, {"b": 1}], "a long")
    for wrong in ("text", 2**70, 1.5):
        with pytest.raises(SchemaMismatch, match="the elements do not fit the schema"):
            env.from_elements([{"a": wrong}], "a long")
