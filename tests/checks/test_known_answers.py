"""Goal: every job in assets/ writes exactly what a plain Spark batch computes from the same records.

Topology: each job as it is, with its generator, in this process. Faults: none, at parallelism 1; checkpoints, at 2; an
epoch at 2, then restored at 3, where a slot dies behind another epoch. Checks: each row of the results and each record
of the raw table. One Spark session computes the answers of all jobs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from checks.ledger import expected_records, open_ledger, write_ledger
from checks.spec import LEDGER, AuditedTable, DrillSpec
from engine.connectors.table import read_table
from engine.process.loading import find_job
from engine.testing import Checkpoint, Crash, LocalRun, run
from orchestration.discovery import find_streams
from tests.interrupted import Fault, Marks, interrupted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DRILLS = {stream.job: stream.drill for stream in find_streams() if stream.drill is not None}
RECORDS = 3_000
MORE_RECORDS = {"hot_items": 15_000}
"""Its windows of an hour have 7,200 records."""
LEAST_ANSWERS = 20


def records_of(spec: DrillSpec) -> int:
    return MORE_RECORDS.get(spec.job, RECORDS)


@pytest.fixture(scope="module")
def answer(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Callable[[DrillSpec], pa.Table]:
    """Computes the known answer of a job with Spark, from a ledger as a drill writes it."""

    def compute(spec: DrillSpec) -> pa.Table:
        folder: Path = tmp_path_factory.mktemp(spec.job)
        write_ledger(spec, folder, records_of(spec))
        _, files = open_ledger(folder)
        spark.read.schema(spec.rows.schema).parquet(*map(str, files)).createOrReplaceTempView(LEDGER)
        return in_order(spark.sql(spec.recomputation_sql()).toArrow(), spec.aggregates)

    return compute


def in_order(table: pa.Table, of: AuditedTable) -> pa.Table:
    columns = table.select(of.arrow_schema.names).cast(of.arrow_schema)
    return columns.sort_by([(name, "ascending") for name in of.arrow_schema.names])


def finished(spec: DrillSpec, parallelism: int, marks: Marks, interval: str = "1 h", **more: object) -> LocalRun:
    params = {**spec.launch_params(records_of(spec)), "rate": "0", "interval": interval}
    return run(interrupted(find_job(spec.path), marks), parallelism=parallelism, params=params, **more)  # type: ignore[arg-type]


@pytest.mark.promise("A2", "A6", "A11", "B4", "B5", "B8", "C1", "D7")
@pytest.mark.parametrize("job", DRILLS)
def test_a_job_gives_the_answer_of_a_spark_batch_three_ways(job: str, answer: Callable[[DrillSpec], pa.Table]) -> None:
    spec = DRILLS[job]
    wanted = answer(spec)
    assert wanted.num_rows >= LEAST_ANSWERS, "so few answers show little"
    records = in_order(expected_records(spec, 0, records_of(spec)), spec.rows)
    third = records_of(spec) // 6  # of a split, of which there are two

    plain = finished(spec, 1, {})
    checked = finished(spec, 2, {}, interval="5 ms")
    assert checked.epochs > 3
    marks: dict[str, list[tuple[int, Fault]]] = {
        split: [(third, Checkpoint()), (2 * third, Checkpoint())] for split in ("0", "1")
    }
    marks["1"].append((2 * third + 50, Crash()))
    first = finished(spec, 2, marks, until=lambda so_far: so_far.epochs == 1)
    last = finished(spec, 3, marks, after=first)
    assert last.restarts >= 1 and last.epochs > 3, "no crash happened behind the restore"
    for how, result in (("plain", plain), ("with checkpoints", checked), ("restored and crashed", last)):
        for table, want in ((spec.rows, records), (spec.aggregates, wanted)):
            got = in_order(read_table(result.store, result.paths.table(table.name)), table)
            assert got.equals(want), f"{how}, {table.name}: {difference(got, want)}"


def difference(got: pa.Table, want: pa.Table) -> str:
    ours, theirs = ({repr(row) for row in table.to_pylist()} for table in (got, want))
    return (
        f"{got.num_rows} rows instead of {want.num_rows}; "
        f"missing {sorted(theirs - ours)[:3]}, unexpected {sorted(ours - theirs)[:3]}"
    )
