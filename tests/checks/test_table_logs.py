"""Plain Spark reads tables whose log begins with a later epoch, or whose sink was gone for some epochs (D8)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from engine.connectors.table import TableSink
from engine.core.paths import JobPaths
from engine.core.sinks import WriterContext
from engine.protocol.checkpoint import CommitPermit
from engine.protocol.ids import AttemptId
from engine.protocol.manifest import Committable, ManifestRef
from engine.store.directory import DirectoryStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = pa.schema([("epoch", pa.int64())])
PATHS = JobPaths("job")


class Table:
    """A table with one row per epoch, the number of the epoch, as its sink writes and commits it."""

    def __init__(self, store: Path) -> None:
        self._store = DirectoryStore(store)
        self._sink = TableSink("t")
        self.folder = store / PATHS.table("t")

    def begin(self, first_epoch: int) -> None:
        for _ in range(2):  # a JobMaster that dies does it again
            self._sink.committer(self._store, PATHS).begin(first_epoch)

    def commit(self, epoch: int) -> None:
        attempt = AttemptId(1, epoch)
        writer = self._sink.writer(WriterContext(0, attempt, self._store, PATHS, SCHEMA, "00ff"))
        writer.begin()
        writer.write(pa.record_batch({"epoch": pa.array([epoch], pa.int64())}))
        piece = writer.pre_commit()
        assert piece is not None
        committable = Committable("out", 0, attempt, epoch, 1, piece.persist())
        permit = CommitPermit.issue(ManifestRef("m", "00", epoch, epoch))
        self._sink.committer(self._store, PATHS).commit(permit, [committable])


def read(spark: SparkSession, table: Table) -> list[int]:
    return sorted(row.epoch for row in spark.read.parquet(str(table.folder)).collect())


@pytest.mark.promise("D8", "G1")
@pytest.mark.parametrize("first", [2, 10, 11, 20, 25])
def test_a_table_may_begin_with_any_epoch(first: int, spark: SparkSession, tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.begin(first)
    for epoch in range(first, first + 12):
        table.commit(epoch)
        if epoch - first in (0, 1, 9, 10, 11):
            assert read(spark, table) == list(range(first, epoch + 1))


@pytest.mark.promise("D8", "G1")
@pytest.mark.parametrize(("last", "again"), [(5, 8), (17, 21), (17, 45)])
def test_a_table_whose_sink_was_gone_goes_on(last: int, again: int, spark: SparkSession, tmp_path: Path) -> None:
    table = Table(tmp_path)
    for epoch in range(1, last + 1):
        table.commit(epoch)
    table.begin(again)
    assert read(spark, table) == list(range(1, last + 1))
    for epoch in range(again, again + 12):
        table.commit(epoch)
        if epoch - again in (0, 9, 10, 11):
            assert read(spark, table) == [*range(1, last + 1), *range(again, epoch + 1)]
