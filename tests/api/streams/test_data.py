"""`DataStream` as an author writes it: the schemas of its results, event time, and what each mistake is told."""

import datetime as dt
from collections.abc import Callable
from decimal import Decimal

import polars as pl
import pyarrow as pa
import pytest

from engine.api import JobError, StreamEnvironment
from engine.connectors.generator import GeneratorSource
from engine.core.errors import SchemaMismatch, UserFunctionError
from engine.testing import ListSource
from tests.api.streams.building import STRATEGY, operator, run, timed, views
from tests.fakes import Collected

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


def test_sql_texts_are_expressions_too() -> None:
    stream = views("app string, n long, ts timestamp").select(
        "app",
        "n * 2 AS twice",
        "CASE WHEN n > 1 THEN 'many' ELSE 'one' END AS how",
        half="n / 2",
        upper="upper(app)",
        kept=pl.col("n"),
        text="CAST(n AS string)",
    )
    types = [pa.string(), pa.int64(), pa.string(), pa.float64(), pa.string(), pa.int64(), pa.string()]
    names = ["app", "twice", "how", "half", "upper", "kept", "text"]
    assert stream.schema == pa.schema(list(zip(names, types, strict=True)))
    rows = [{"app": "a", "n": 3, "ts": None}, {"app": None, "n": 1, "ts": None}]
    batch = pa.RecordBatch.from_pylist(rows, schema=views("app string, n long, ts timestamp").schema)
    first, second = run(stream, batch).to_pylist()
    assert first == dict(zip(names, ["a", 6, "many", 1.5, "A", 3, "3"], strict=True))
    assert second == dict(zip(names, [None, 2, "one", 0.5, None, 1, "1"], strict=True))


def test_a_column_with_the_name_of_an_expression_is_that_column() -> None:
    schema = pa.schema([("n", pa.int64()), ("n + 1", pa.int64())])
    batch = pa.RecordBatch.from_pylist([{"n": 1, "n + 1": 7}], schema=schema)
    assert run(views(schema).select("n + 1"), batch).to_pylist() == [{"n + 1": 7}]


def test_selectors_are_expressions_of_one_record() -> None:
    assert views().select(pl.all()).schema.names == ["app_id", "user_id", "bytes", "ts"]
    assert views().select(pl.selectors.integer()).schema.names == ["user_id", "bytes"]


# --- where ---


def test_where_keeps_the_records_for_which_the_condition_is_true_and_not_null() -> None:
    batch = pa.record_batch({"a": [1, None, 3]})
    assert run(views("a long").where(pl.col("a") > 0), batch).to_pylist() == [{"a": 1}, {"a": 3}]
    assert run(views("a long").where(pl.lit(True)), batch).num_rows == 3
    assert run(views("a long").where("a BETWEEN 0 AND 2 OR a IS NULL"), batch).to_pylist() == [{"a": 1}, {"a": None}]
    assert run(views("a long").where("a > 0"), batch).to_pylist() == [{"a": 1}, {"a": 3}]


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


def test_a_uid_must_not_be_empty() -> None:
    with pytest.raises(JobError, match="map needs a uid: state is found by it"):
        StreamEnvironment().from_source(ListSource([]), "app string", uid="rules").map(lambda row: row, uid="")


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


def test_the_uid_of_assigned_timestamps_does_not_depend_on_other_streams() -> None:
    def uids(*sources: str) -> set[str]:
        env = StreamEnvironment()
        for uid in sources:
            stream = env.from_source(GeneratorSource(lambda n: {}, 1), "bytes long, ts timestamp", uid=uid)
            for _ in range(2):
                stream.where(pl.col("bytes") > 0).assign_timestamps_and_watermarks(STRATEGY)
        return {node.uid for node in env.graph.nodes if node.operator and node.operator.kind == "assign_timestamps"}

    assert uids("a", "b") == uids("b", "a") == {"a.timestamps", "a.timestamps-2", "b.timestamps", "b.timestamps-2"}


@pytest.mark.promise("B1")
def test_a_source_with_other_consumers_still_makes_the_watermarks() -> None:
    env = StreamEnvironment()
    source = views(env=env)
    source.print(uid="print")
    first = source.assign_timestamps_and_watermarks(STRATEGY)
    again = source.assign_timestamps_and_watermarks(STRATEGY)
    assert [node.uid for node in env.graph.nodes] == ["views", "print"]
    assert first._node == again._node == 0 and env.graph.nodes[0].schema == first.schema


# --- mistakes ---


MISTAKES: list[tuple[Callable[[], object], str]] = [
    (
        lambda: views().key_by("appid"),
        "key_by: there is no column 'appid'; the stream has (app_id string, user_id int64, bytes int64, ts timestamp",
    ),
    (lambda: views().key_by(), "key_by needs at least one column"),
    (lambda: views().key_by("app_id", "app_id"), "a column is named twice"),
    (lambda: timed().key_by("_event_time"), "key_by: there is no column '_event_time'"),
    (lambda: views("tags array<string>").key_by("tags"), "key_by('tags'): a column of type list<element: string>"),
    (lambda: views().select(), "select needs at least one column or expression"),
    (lambda: views().select("nothing"), "select: there is no column 'nothing'; the stream has (app_id string"),
    (lambda: views().select(pl.col("nothing")), "select on a stream of (app_id string"),
    (
        lambda: views().select(x=5),
        "select takes polars expressions such as pl.col('a') > 1, or SQL such as 'a > 1', not 5",
    ),
    (lambda: timed().select(_event_time=pl.lit(0)), "select: the name '_event_time' is reserved"),
    (lambda: views().select(pl.col("bytes").sum()), "is not an expression of one record"),
    (lambda: views().select(pl.col("bytes") - pl.col("bytes").mean()), "is not an expression of one record"),
    (lambda: views().select(pl.col("bytes").shift()), "is not an expression of one record"),
    (lambda: views("l array<long>").select(pl.col("l").explode()), "is not an expression of one record"),
    (lambda: views().where(pl.col("bytes") > pl.col("bytes").max()), "is not an expression of one record"),
    (lambda: views().where(pl.col("nothing") > 1), "where on a stream of (app_id string"),
    (lambda: views().where("nothing > 1"), "where on a stream of (app_id string"),
    (lambda: views().where("bytes >"), "where: 'bytes >' is not a SQL expression, such as 'bytes > 1024': unable to"),
    (lambda: views().where("SELECT 1"), "where: 'SELECT 1' is not a SQL expression"),
    (lambda: views().select("byts"), "select: there is no column 'byts'; the stream has (app_id string"),
    (
        lambda: views().select("bytes * 2"),
        "'bytes * 2' gives a column without a name: write select(name='bytes * 2'), o",
    ),
    (lambda: views().select(n="SUM(bytes)"), "is not an expression of one record"),
    (lambda: views().select(n="COUNT(*)"), "is not an expression of one record"),
    (lambda: views().select(n="ROW_NUMBER() OVER ()"), "is not an expression of one record"),
    (
        lambda: views().where(pl.col("bytes")),
        "where needs one condition that is true or false; this expression gives (b",
    ),
    (
        lambda: views().where(True),
        "where takes polars expressions such as pl.col('a') > 1, or SQL such as 'a > 1', not True",
    ),
    (lambda: views().where(pl.col("bytes") > "text"), "where on a stream of"),
    (
        lambda: views().assign_timestamps_and_watermarks(STRATEGY.with_timestamps("when")),
        "assign_timestamps_and_watermarks: there is no column 'when'",
    ),
    (
        lambda: views().assign_timestamps_and_watermarks(STRATEGY.with_timestamps("app_id")),
        "the event time column 'app_id' is a string; it must be a timestamp, or integers that are milliseconds",
    ),
    (
        lambda: timed("a long, ts long").assign_timestamps_and_watermarks(STRATEGY.with_timestamps("a")),
        "source 'views' has event time already, from 'ts' with a bound of 2000 ms, so it can't also have from 'a' with "
        "a bound of 2000 ms: use the stream that the first call returned, or read the source a second time",
    ),
    (lambda: views().map_batches(lambda b: b, "y strng"), "unknown type 'strng'"),
]


@pytest.mark.parametrize(("mistake", "text"), MISTAKES, ids=[text[:50] for _, text in MISTAKES])
def test_a_mistake_is_told_when_the_job_is_written(mistake: Callable[[], object], text: str) -> None:
    with pytest.raises(JobError) as caught:
        mistake()
    assert text in str(caught.value)
