"""Goal: a reader of a table may see only whole epochs, never an older one again, and all of them at the end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from checks.history import EpochTotals
from checks.reader import Read, digest_of, judge_reads, visible_states
from checks.spark import read_published
from checks.spec import AuditedTable
from engine.api import StreamEnvironment
from engine.api.schema import parse_schema
from engine.connectors.table import TableCommitter, TableSink, read_table
from engine.core.sinks import WriterContext
from engine.snapshot.epoch_log import EpochLog
from engine.state.digests import digested
from engine.store.directory import DirectoryStore
from engine.testing import run
from tests.checks.small import ATTEMPT, JOB_ID, PATHS, SPEC, windowed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE = AuditedTable("t", "out", "a long", ("a",))
EPOCHS = [
    EpochTotals(1, 1000, {"sink:out": 0, "digest:out": 0}),
    EpochTotals(2, 2000, {"sink:out": 10, "digest:out": 111}),
    EpochTotals(3, 3000, {"sink:out": 10, "digest:out": 111}),
    EpochTotals(4, 4000, {"sink:out": 25, "digest:out": 222}),
]


def read(rows: int, digest: int, *, last: bool = False, error: str = "") -> Read:
    return Read("t", 1_700_000_000_000, 5, rows, digest, error, last)


def judged(*reads: Read) -> list[str]:
    return judge_reads(reads, [TABLE], EPOCHS)


END = read(25, 222, last=True)


def test_whole_epochs_in_order_are_fine() -> None:
    assert judged(read(0, 0), read(0, 0), read(10, 111), read(10, 111), read(25, 222), END) == []


def test_epochs_may_be_missed_between_two_reads() -> None:
    assert judged(END) == []


@pytest.mark.promise("H1", "H3")
def test_the_digest_of_a_sink_covers_nested_columns() -> None:
    """What a sink counts is what a reader of its table finds; one element of one list makes another digest."""
    schema = "a long, tags array<string>, at struct<x: long, y: long>, m map<string, long>"
    rows = [
        {"a": n, "tags": ["x", str(n)] if n % 3 else None, "at": {"x": n, "y": None}, "m": [("k", n)]}
        for n in range(50)
    ]

    def job(env: StreamEnvironment) -> None:
        env.enable_checkpointing(interval="5 ms")
        env.from_elements(rows, schema, uid="rows").sink_to(TableSink("t"), uid="out")

    done = run(job, parallelism=2)
    log = EpochLog(done.store, done.paths)
    last = log.last()
    assert last is not None and last.newest is not None
    counted = log.read_manifest(last.newest).ledger["digest:out"]
    there = read_table(done.store, done.paths.table("t"))
    declared = parse_schema(schema)
    assert there.num_rows == 50 and digest_of(there, declared) == counted
    for change in ({"tags": ["x", "other"]}, {"at": {"x": 7, "y": 1}}, {"m": [("k", 8)]}):
        changed = [row | change if row["a"] == 7 else row for row in there.to_pylist()]
        assert digest_of(pa.Table.from_pylist(changed, schema=declared), declared) != counted, change


def test_a_nested_column_that_can_not_be_hashed_is_left_out_and_fails_no_job() -> None:
    wide = pa.list_(pa.decimal256(60, 2))
    schema = pa.schema(
        [("a", pa.int64()), ("wide", wide), ("deep", pa.list_(pa.struct([("w", pa.decimal256(60, 2))])))]
    )
    assert digested(schema) == ["a"]


@pytest.mark.promise("H3")
def test_part_of_an_epoch_is_a_violation_that_names_its_neighbours() -> None:
    (found,) = judged(read(12, 5), END)
    assert found == "t at 22:13:20.000: 12 rows are not a whole number of epochs; epoch 3 ends at 10, epoch 4 at 25"


@pytest.mark.promise("H3")
def test_as_many_rows_but_other_ones_are_a_violation() -> None:
    (found,) = judged(read(10, 112), END)
    assert "10 rows are not a whole number of epochs; epoch 2 has the same number of rows, but other ones" in found


@pytest.mark.promise("H3")
def test_more_rows_than_were_ever_published_are_a_violation() -> None:
    assert "there is no later one" in judged(read(26, 7), END)[0]


@pytest.mark.promise("H3")
def test_going_back_is_a_violation() -> None:
    (found,) = judged(read(25, 222), read(10, 111), END)
    assert "the read saw epoch 3 after an earlier one had seen 4" in found


def test_a_read_that_fails_is_a_violation() -> None:
    assert "could not be read: no such file" in judged(read(0, 0, error="no such file"), END)[0]


@pytest.mark.promise("H3")
def test_the_last_read_must_show_everything() -> None:
    (found,) = judged(read(10, 111, last=True))
    assert "saw only 10 rows of 25, epoch 3" in found


def test_nobody_who_reads_at_the_end_is_a_violation() -> None:
    assert judged(read(25, 222)) == ["t: there is no read of the table after the job's end"]


def test_the_states_of_a_table_begin_with_an_empty_one() -> None:
    assert visible_states("out", EPOCHS) == [(0, 0), (0, 0), (10, 111), (10, 111), (25, 222)]


@pytest.mark.promise("H1")
def test_a_digest_does_not_depend_on_the_order_of_rows_and_changes_with_any_value() -> None:
    rows, schema = windowed(), SPEC.aggregates.arrow_schema
    assert digest_of(rows, schema) == digest_of(rows.sort_by([("pv", "descending")]), schema)
    assert digest_of(rows, schema) != digest_of(rows.slice(1), schema)


@pytest.mark.promise("G1")
def test_spark_sees_no_row_of_a_table_whose_first_epoch_is_not_published_yet(
    tmp_path: Path, spark: SparkSession
) -> None:
    store, table = DirectoryStore(tmp_path), SPEC.aggregates
    TableCommitter(store, PATHS.table(table.name)).claim(JOB_ID, 1)  # before the first deployment
    writer = TableSink(table.name).writer(WriterContext(0, ATTEMPT, store, PATHS, table.arrow_schema, JOB_ID))
    writer.begin()
    for batch in windowed().to_batches():
        writer.write(batch)
    piece = writer.pre_commit()
    assert piece is not None and piece.persist()["rows"] == 66
    assert read_published(spark, str(tmp_path / PATHS.table(table.name)), table).count() == 0
