"""Plain Spark reads a table in a loop while its files are folded and the folder is killed.

Goal: every read sees a whole number of epochs, each row once, and never fewer than the read before it.
Topology: a process that commits, folds and deletes as a JobMaster does, and Spark in this one.
Faults: the process is killed with SIGKILL at random moments, and the next one goes on.
Checks: each read; at the end the audit's view of the table has every epoch whole, and folded files are among them.
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from checks.tablelog import epoch_rows
from engine.connectors.table import published
from engine.connectors.table.folds import level_of
from engine.connectors.table.log import TableLog
from engine.store.directory import DirectoryStore
from tests.checks.folding_writer import PARTS, PATHS
from tests.checks.test_table_logs import Table, read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

READS = 25
TABLE = PATHS.table("t")


class Writer:
    """Keeps a writer running, and kills it at random moments."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._chance = random.Random(1)
        self._stop = threading.Event()
        self.kills = 0
        self.errors: list[bytes] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            command = [sys.executable, "-m", "tests.checks.folding_writer", str(self._store), str(self.kills + 1)]
            process = subprocess.Popen(command, stderr=subprocess.PIPE)
            newest = _newest(self._store)
            while process.poll() is None and _newest(self._store) < newest + 20 and not self._stop.is_set():
                time.sleep(0.02)
            time.sleep(0.3 * self._chance.random())
            if process.poll() is not None:
                self.errors.append(process.communicate()[1])
            process.kill()
            process.communicate()
            self.kills += 1


def _newest(store: Path) -> int:
    names = [path.name.removesuffix(".compact") for path in (store / TABLE / "_spark_metadata").glob("*")]
    return max((int(name) for name in names if name.isdecimal()), default=-1)


@pytest.mark.promise("C4", "G1")
def test_spark_needs_no_record_before_the_last_two_compact_ones(spark: SparkSession, tmp_path: Path) -> None:
    table = Table(tmp_path)
    log = TableLog(DirectoryStore(tmp_path), PATHS.table("t"))
    for epoch in range(1, 46):
        table.commit(epoch)
    for kept in (29, 39):
        for number in log.numbers():
            if number < kept:
                log.delete(number)
        assert read(spark, table) == list(range(1, 46))
    for epoch in range(46, 62):
        table.commit(epoch)
        if epoch in (46, 49, 50, 51, 60, 61):
            assert read(spark, table) == list(range(1, epoch + 1))


@pytest.mark.promise("C4", "G1")
def test_plain_spark_sees_whole_epochs_while_folds_happen_and_are_killed(spark: SparkSession, tmp_path: Path) -> None:
    folder = str(tmp_path / TABLE)
    with Writer(tmp_path) as writer:
        while _newest(tmp_path) < 0:
            time.sleep(0.05)
        least, reads, folded = 0, 0, 0
        while reads < READS or writer.kills < 4 or not folded:
            rows = [(row.epoch, row.part) for row in spark.read.parquet(folder).collect()]
            epochs = max((epoch for epoch, _ in rows), default=0)
            assert Counter(rows) == Counter((n, part) for n in range(1, epochs + 1) for part in range(PARTS))
            assert epochs >= least
            least, reads = epochs, reads + 1
            folded = sum(level_of(name) > 0 for name in published(DirectoryStore(tmp_path), TABLE) or ())
    assert not writer.errors, writer.errors[0].decode()
    names = published(DirectoryStore(tmp_path), TABLE) or []
    assert len(names) < PARTS * least
    found: Counter[int] = Counter()
    for part in epoch_rows(tmp_path / TABLE):
        if part.file in names:
            rows_there = pq.read_table(tmp_path / TABLE / part.file).slice(part.first, part.rows).column("epoch")
            assert set(rows_there.to_pylist()) == {part.epoch}
            found[part.epoch] += len(rows_there)
    assert found == dict.fromkeys(range(1, max(found) + 1), PARTS)
