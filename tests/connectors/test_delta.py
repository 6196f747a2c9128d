"""Delta tables: what is in their log, and who can read them. `test_lakes.py` shows that each row is there once."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import sys
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from engine.api import StreamEnvironment
from engine.connectors.delta import DeltaSink
from engine.connectors.delta.statistics import statistics
from engine.core.errors import JobError
from engine.testing import Checkpoint, JobFailed, ListSource, run

UTC = dt.UTC
SCHEMA = "n long, city string, price decimal(10,2), at timestamp, tags array<string>"
ITEMS = [
    {
        "n": n,
        "city": f"city {n % 3}",
        "price": decimal.Decimal(n) / 4,
        "at": dt.datetime(2026, 1, 1, tzinfo=UTC) + dt.timedelta(microseconds=n),
        "tags": ["a"] * (n % 2),
    }
    for n in range(10)
]


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    """A table with two epochs of rows."""

    def job(env: StreamEnvironment) -> None:
        env.enable_checkpointing("1 min")
        source = ListSource([*ITEMS[:6], Checkpoint(), *ITEMS[6:]])
        env.from_source(source, SCHEMA, uid="orders").sink_to(DeltaSink(str(tmp_path / "orders")), uid="out")

    run(job)
    return DeltaTable(str(tmp_path / "orders"))


def log_of(table: DeltaTable) -> list[dict[str, Any]]:
    """All actions of the log, oldest first."""
    files = sorted(Path(table.table_uri.removeprefix("file://"), "_delta_log").glob("*.json"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def test_the_library_reads_the_rows_with_their_types(table: DeltaTable) -> None:
    rows = sorted(table.to_pyarrow_table().to_pylist(), key=lambda row: row["n"])
    assert [{**row, "at": row["at"].astimezone(UTC)} for row in rows] == ITEMS


def test_duckdb_reads_the_files_that_the_log_names(table: DeltaTable) -> None:
    """Its own extension for Delta has to be downloaded, so it is given the list of files."""
    files = [uri.removeprefix("file://") for uri in table.file_uris()]
    found = duckdb.sql(f"select count(*), sum(n), sum(price), max(len(tags)) from read_parquet({files})").fetchall()
    assert found == [(10, 45, decimal.Decimal("11.25"), 1)]


@pytest.mark.promise("D11")
def test_the_number_of_an_epoch_is_in_the_same_commit_as_its_files(table: DeltaTable) -> None:
    commits = [
        [json.loads(line) for line in file.read_text().splitlines()]
        for file in sorted(Path(table.table_uri.removeprefix("file://"), "_delta_log").glob("*.json"))
    ]
    with_files = [commit for commit in commits if any("add" in action for action in commit)]
    assert len(with_files) == 2
    for commit in with_files:
        (txn,) = (action["txn"] for action in commit if "txn" in action)
        (info,) = (action["commitInfo"] for action in commit if "commitInfo" in action)
        assert txn["appId"].startswith("weir-") and str(txn["version"]) == info["weir.epoch"]


def test_readers_skip_files_by_the_statistics_of_the_log(table: DeltaTable) -> None:
    stats = [json.loads(action["add"]["stats"]) for action in log_of(table) if "add" in action]
    assert [(one["numRecords"], one["minValues"]["n"], one["maxValues"]["n"]) for one in stats] == [
        (6, 0, 5),
        (4, 6, 9),
    ]
    assert table.to_pyarrow_table(filters=[("n", ">=", 6)]).num_rows == 4


def test_bounds_hold_all_rows_and_are_left_out_where_they_can_not_be_told() -> None:
    moments = [dt.datetime(2026, 1, 1, 0, 0, 0, 1500), dt.datetime(1969, 12, 31, 23, 59, 59, 999_500)]
    rows = pa.table(
        {
            "word": ["b" * 40, "a" * 40],
            "nan": [1.0, float("nan")],
            "real": [1.5, None],
            "at": pa.array(moments, pa.timestamp("us", "UTC")),
            "local": pa.array(moments, pa.timestamp("us")),
            "day": [dt.date(2026, 1, 2), dt.date(2026, 1, 1)],
            "price": [decimal.Decimal("1.10"), decimal.Decimal("-2.25")],
            "none": pa.nulls(2, pa.int64()),
            "yes": [True, False],
            "raw": [b"a", b"b"],
            "deep": [[1], [2]],
        }
    )
    found = json.loads(statistics(rows))
    assert found["numRecords"] == 2
    assert found["minValues"] == {
        "word": "a" * 32,
        "real": 1.5,
        "at": "1969-12-31T23:59:59.999Z",
        "local": "1969-12-31T23:59:59.999",
        "day": "2026-01-01",
        "price": -2.25,
    }
    assert found["maxValues"] == {
        "word": "b" * 32 + "\U0010ffff",
        "real": 1.5,
        "at": "2026-01-01T00:00:00.002Z",
        "local": "2026-01-01T00:00:00.002",
        "day": "2026-01-02",
        "price": 1.1,
    }
    assert found["nullCount"] == {name: 0 for name in rows.column_names if name != "deep"} | {"none": 2, "real": 1}


def test_only_the_first_columns_have_statistics() -> None:
    found = json.loads(statistics(pa.table({f"c{n}": [n] for n in range(40)})))
    assert len(found["minValues"]) == len(found["nullCount"]) == 32


def test_years_that_python_does_not_know_have_no_bounds() -> None:
    far = pa.array([-(10**18)], pa.int64()).cast(pa.timestamp("us"))
    assert json.loads(statistics(pa.table({"at": far})))["minValues"] == {}


def test_after_the_table_is_compacted_and_vacuumed_by_its_users_the_job_goes_on(tmp_path: Path) -> None:
    source = ListSource([{"n": 1}, Checkpoint(), {"n": 2}, Checkpoint(), {"n": 3}])
    path = str(tmp_path / "orders")

    def job(env: StreamEnvironment) -> None:
        env.enable_checkpointing("1 min")
        env.from_source(source, "n long", uid="orders").sink_to(DeltaSink(path), uid="out")

    first = run(job, until=lambda run: run.epochs >= 2)
    DeltaTable(path).optimize.compact()
    DeltaTable(path).create_checkpoint()
    DeltaTable(path).vacuum(0, dry_run=False, enforce_retention_duration=False)
    run(job, after=first)
    assert sorted(DeltaTable(path).to_pyarrow_table()["n"].to_pylist()) == [1, 2, 3]


@pytest.mark.parametrize(
    ("configuration", "constraint", "said"),
    [
        ({}, {"small": "n < 10"}, "has constraints, which files are not checked against"),
        ({"delta.columnMapping.mode": "name"}, {}, "maps the names of its columns"),
        ({"delta.enableChangeDataFeed": "true", "delta.appendOnly": "true"}, {}, ""),
    ],
)
def test_tables_whose_rows_can_not_be_plain_files_are_refused(
    tmp_path: Path, configuration: dict[str, str], constraint: dict[str, str], said: str
) -> None:
    path = str(tmp_path / "orders")
    table = DeltaTable.create(path, pa.schema([("n", pa.int64())]), configuration=configuration)
    if constraint:
        table.alter.add_constraint(constraint)

    def job(env: StreamEnvironment) -> None:
        env.from_source(ListSource([{"n": 1}]), "n long", uid="orders").sink_to(DeltaSink(path), uid="out")

    if said:
        with pytest.raises(JobFailed, match=said):
            run(job)
    else:
        run(job)
        assert DeltaTable(path).to_pyarrow_table()["n"].to_pylist() == [1]


@pytest.mark.parametrize("path", ["orders", "", "gs://bucket/orders", None])
def test_a_path_that_is_no_place_is_refused_with_an_example(path: Any) -> None:
    with pytest.raises(ValueError, match=r"as in DeltaSink\('/lake/orders'\)"):
        DeltaSink(path)


def test_a_missing_library_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(JobError, match=r"DeltaSink needs the library deltalake, .*pip install 'weir\[delta\]'"):
        DeltaSink("/lake/orders")
