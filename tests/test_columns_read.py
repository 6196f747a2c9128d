"""Goal: files are read without the columns that a job does not need, and its results are the same.

Topology: Parquet files → one kind of operator behind another → table. Faults: a slot dies in the middle of a file.
Checks: which columns the source was asked for and its readers gave; the same rows as with whole records.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from engine.api import (
    FAILED,
    DataStream,
    EventTimeSessionWindows,
    FixedDelay,
    OutputTag,
    StreamEnvironment,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WatermarkGenerator,
    WatermarkOutput,
    WatermarkStrategy,
    count,
    total,
)
from engine.connectors.files import ParquetSource, parquet
from engine.connectors.generator import GeneratorSource
from engine.connectors.table import TableSink
from engine.core.sources import SourceContext
from engine.runtime.chain import OperatorChain
from engine.runtime.operators.columnar import Select
from engine.runtime.operators.window_combine import WindowCombine
from engine.testing import LocalRun, _Killed, run

SCHEMA = "n long, key string, text string, at timestamp, place struct<x long, y long>, wide string"
ROWS = 400
STRATEGY = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("at")
LATE = OutputTag("late", SCHEMA)
Job = Callable[[DataStream], DataStream]
ALL = None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("wide")
    rows = {
        "n": list(range(ROWS)),
        "key": ["alpha", "beta", "gamma", "delta"] * (ROWS // 4),
        "text": [str(n % 7) for n in range(ROWS)],
        "at": pa.array([n * 10_000 for n in range(ROWS)], pa.timestamp("us", "UTC")),
        "place": [{"x": n % 3, "y": n} for n in range(ROWS)],
        "wide": [f"{n:0200d}" for n in range(ROWS)],
    }
    pq.write_table(pa.table(rows), made / "a.parquet", row_group_size=90)
    return made


def _timed(stream: DataStream) -> DataStream:
    return stream.assign_timestamps_and_watermarks(STRATEGY)


def _windowed(stream: DataStream) -> DataStream:
    by_key = _timed(stream).key_by("key").window(TumblingEventTimeWindows.of("1 s"))
    return by_key.aggregate(rows=count(), sum=total("n"), uid="pv")


def _behind_where(stream: DataStream) -> DataStream:
    return _windowed(stream.where(pl.col("text") != "3"))


def _behind_two(stream: DataStream) -> DataStream:
    """The second reads what the first has made, and the window reads a column that neither of them reads."""
    return _windowed(
        stream.select("n", "key", "at", twice=pl.col("text").cast(pl.Int64) * 2).where(pl.col("twice") > 4)
    )


def _sessions(stream: DataStream) -> DataStream:
    by_text = _timed(stream).key_by("text").window(EventTimeSessionWindows.with_gap("50 ms"))
    return by_text.aggregate(rows=count(), uid="pv")


def _by_the_clock(stream: DataStream) -> DataStream:
    windows = stream.key_by("key").window(TumblingProcessingTimeWindows.of("2 ms"))
    return windows.aggregate(rows=count(), uid="pv").select("key", "rows")


def _late(stream: DataStream) -> DataStream:
    """What is late goes to a table whole."""
    by_key = _timed(stream).key_by("key").window(TumblingEventTimeWindows.of("1 s"))
    made = by_key.side_output_late_data(LATE).aggregate(rows=count(), uid="pv")
    made.get_side_output(LATE).sink_to(TableSink("late"), uid="late")
    return made


def _dead_letters(stream: DataStream) -> DataStream:
    made = stream.select("n", number=pl.col("text").cast(pl.Int64)).on_error("dead_letter")
    made.get_side_output(FAILED).sink_to(TableSink("failed"), uid="failed")
    return made


def _forked(stream: DataStream) -> DataStream:
    stream.select("text").sink_to(TableSink("other"), uid="other")
    return stream.select("n")


class Highest(WatermarkGenerator):
    """Looks at a column that nothing behind it reads."""

    def on_event(self, event: dict[str, Any], timestamp: int, output: WatermarkOutput) -> None:
        assert event["wide"].endswith(str(event["n"]))
        output.emit_watermark(timestamp)


def _generated(stream: DataStream) -> DataStream:
    strategy = WatermarkStrategy.for_generator(lambda _: Highest()).with_timestamps("at")
    by_key = stream.assign_timestamps_and_watermarks(strategy).key_by("key")
    return by_key.window(TumblingEventTimeWindows.of("1 s")).aggregate(rows=count(), uid="pv")


def _generated_behind(stream: DataStream) -> DataStream:
    return _generated(stream.where(pl.col("n") > 5))


SHAPES: list[tuple[Job, set[str] | None]] = [
    (lambda s: s.select("n"), {"n"}),
    (lambda s: s.select("n", text=pl.col("wide").str.slice(190)), {"n", "wide"}),
    (lambda s: s.select("n", kind=pl.lit("view")), {"n"}),
    (lambda s: s.select(kind=pl.lit("view")), {"n"}),  # no column; the first says how many rows there are
    (lambda s: s.select(sum=pl.col("place").struct.field("x") + pl.col("n")), {"place", "n"}),
    (lambda s: s.select("n", "upper(key) AS key", long="length(wide)"), {"n", "key", "wide"}),
    (lambda s: s.where("text = '3' AND place.x > 0").select("n"), {"n", "text", "place"}),
    (lambda s: s.select(pl.col("n", "key").name.suffix("_")), ALL),  # a selector
    (lambda s: s.select(pl.all().exclude("wide")), ALL),
    (lambda s: s.select(pl.struct(pl.all()).alias("whole")), ALL),
    (lambda s: s.where(pl.col("text") == "3"), ALL),
    (lambda s: s.where(pl.col("text") == "3").select("n"), {"n", "text"}),
    (lambda s: s.select("n", "text").where(pl.col("text") == "3").select("n"), {"n", "text"}),
    (lambda s: s.select("n", "text", "key").select("n"), {"n", "text", "key"}),  # select computes all that it has
    (lambda s: s.map_batches(lambda batch: batch), ALL),
    (lambda s: s.select("n", "text").map_batches(lambda batch: batch), {"n", "text"}),
    (lambda s: s.map(lambda r: {"n": r["n"], "w": r["wide"]}, schema="n long, w string"), ALL),
    (lambda s: s.where(pl.col("n") > 5).filter(lambda r: r["wide"].endswith("7")), ALL),
    (_windowed, {"n", "key", "at"}),
    (_behind_where, {"n", "key", "at", "text"}),
    (_behind_two, {"n", "key", "at", "text"}),
    (_sessions, {"text", "at"}),
    (_by_the_clock, {"key"}),
    (_late, ALL),
    (_dead_letters, ALL),
    (_forked, ALL),
    (_generated, ALL),
    (_generated_behind, ALL),
]
ASIDE = {_late: ["late"], _dead_letters: ["failed"], _forked: ["other"]}


@pytest.mark.promise("G1")
@pytest.mark.parametrize(("shape", "columns"), SHAPES)
def test_only_the_columns_that_a_job_needs_are_read_and_its_results_are_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch, shape: Job, columns: set[str] | None
) -> None:
    read = _columns_read(monkeypatch)
    narrow = _run(folder, shape)
    every = set(pl.read_parquet(folder / "a.parquet").columns)
    assert read == {frozenset(columns or every)}
    read.clear()
    with monkeypatch.context() as patch:
        patch.setattr(OperatorChain, "reads", None)
        whole = _run(folder, shape)
    assert read == {frozenset(every)}
    for table in ("out", *ASIDE.get(shape, ())):
        assert sorted(narrow.rows(table), key=repr) == sorted(whole.rows(table), key=repr)
    assert narrow.rows("out")


@pytest.mark.promise("G1", "D7")
@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_job_that_crashes_in_the_middle_of_a_file_goes_on_with_the_same_columns(
    folder: Path, monkeypatch: pytest.MonkeyPatch, parallelism: int
) -> None:
    read = _columns_read(monkeypatch)
    monkeypatch.setattr(parquet, "CHUNK_ROWS", 20)
    whole = _run(folder, _behind_where)
    process = WindowCombine.process
    batches = itertools.count(1)

    def dying(self: WindowCombine, batch: pa.RecordBatch, out: Any) -> None:
        if next(batches) in (9, 24):
            raise _Killed
        process(self, batch, out)

    monkeypatch.setattr(WindowCombine, "process", dying)
    crashed = _run(folder, _behind_where, parallelism)
    assert crashed.restarts == 2
    assert next(batches) > 24
    assert sorted(crashed.rows("out"), key=repr) == sorted(whole.rows("out"), key=repr)
    assert read == {frozenset({"n", "key", "at", "text"})}


def test_columns_that_must_not_be_null_are_read_to_be_checked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = _columns_read(monkeypatch)
    _run(folder, lambda stream: stream.select("n"), schema=SCHEMA.replace("wide string", "wide string not null"))
    assert read == {frozenset({"n", "wide"})}


def test_a_digest_of_the_source_covers_whole_records(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = _columns_read(monkeypatch)
    _run(folder, lambda stream: stream.select("n"), digest=True)
    assert len(read.pop()) == 6


def test_a_source_that_gives_whole_records_is_cut_to_the_columns_that_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source of an author's own need not look at `SourceContext.columns`."""
    asked: list[frozenset[str] | None] = []
    made = GeneratorSource.reader

    def reader(self: GeneratorSource, split: str, position: Any, context: SourceContext) -> Any:
        asked.append(context.columns)
        return made(self, split, position, context)

    def job(env: StreamEnvironment) -> None:
        source = GeneratorSource(lambda n: {"n": n, "twice": 2 * n}, rows=50)
        env.from_source(source, "n long, twice long", uid="numbers").select("twice").sink_to(
            TableSink("out"), uid="out"
        )

    taken: set[str] = set()
    process = Select.process

    def spied(self: Select, batch: pa.RecordBatch, out: Any) -> None:
        taken.update(batch.schema.names)
        process(self, batch, out)

    monkeypatch.setattr(GeneratorSource, "reader", reader)
    monkeypatch.setattr(Select, "process", spied)
    assert sorted(row["twice"] for row in run(job).rows("out")) == [2 * n for n in range(50)]
    assert set(asked) == {frozenset({"twice"})}
    assert taken == {"twice"}


def _run(folder: Path, shape: Job, parallelism: int = 1, schema: str = SCHEMA, digest: bool = False) -> LocalRun:
    def job(env: StreamEnvironment) -> None:
        env.enable_checkpointing("5 ms")
        env.set_restart_strategy(FixedDelay(attempts=5, delay_ms=5))
        source = env.from_source(ParquetSource(str(folder)), schema, uid="views", digest=digest)
        shape(source).sink_to(TableSink("out"), uid="out")

    return run(job, parallelism=parallelism)


def _columns_read(monkeypatch: pytest.MonkeyPatch) -> set[frozenset[str]]:
    """Returns a set to which each Parquet reader adds the columns of what it has read from its file."""
    seen: set[frozenset[str]] = set()
    conform = parquet._RowGroups._conform

    def spied(self: Any, batch: pa.RecordBatch) -> pa.RecordBatch:
        seen.add(frozenset(batch.schema.names))
        return conform(self, batch)

    monkeypatch.setattr(parquet._RowGroups, "_conform", spied)
    return seen
