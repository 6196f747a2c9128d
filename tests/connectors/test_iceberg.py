"""Iceberg tables: what is in their metadata, and who reads them. `test_lakes.py` shows that each row is there once."""

from __future__ import annotations

import datetime as dt
import decimal
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyiceberg.table import Table

from engine.api import StreamEnvironment
from engine.connectors.iceberg import IcebergSink
from engine.core.errors import JobError
from engine.testing import Checkpoint, ListSource, LocalRun, run
from tests.connectors.lakes import IcebergLake

UTC = dt.UTC
SCHEMA = "n long, small short, city string, price decimal(10,2), at timestamp, tags array<string>, m map<string,int>"
ITEMS = [
    {
        "n": n,
        "small": n,
        "city": f"city {n % 3}",
        "price": decimal.Decimal(n) / 4,
        "at": dt.datetime(2026, 1, 1, tzinfo=UTC) + dt.timedelta(microseconds=n),
        "tags": ["a"] * (n % 2),
        "m": [("k", n)],
    }
    for n in range(10)
]


@pytest.fixture
def lake(tmp_path: Path) -> IcebergLake:
    """A table with two epochs of rows."""
    lake = IcebergLake(tmp_path)

    def job(env: StreamEnvironment) -> None:
        env.enable_checkpointing("1 min")
        source = ListSource([*ITEMS[:6], Checkpoint(), *ITEMS[6:]])
        env.from_source(source, SCHEMA, uid="orders").sink_to(lake.sink(), uid="out")

    run(job)
    return lake


def table_of(lake: IcebergLake) -> Table:
    return lake.catalog.load_table("shop.orders")


def test_the_library_reads_the_rows_with_their_types(lake: IcebergLake) -> None:
    assert [{**row, "at": row["at"].astimezone(UTC)} for row in lake.rows()] == ITEMS


def test_duckdb_reads_the_files_that_the_metadata_names(lake: IcebergLake) -> None:
    """Its own extension for Iceberg has to be downloaded, so it is given the list of files."""
    files = [task.file.file_path.removeprefix("file://") for task in table_of(lake).scan().plan_files()]
    found = duckdb.sql(f"select count(*), sum(n), sum(price), max(len(tags)) from read_parquet({files})").fetchall()
    assert found == [(10, 45, decimal.Decimal("11.25"), 1)]


@pytest.mark.promise("D11")
def test_the_number_of_an_epoch_is_in_the_summary_of_its_snapshot_and_in_a_property(lake: IcebergLake) -> None:
    table = table_of(lake)
    first, second = (snapshot.summary for snapshot in table.snapshots())
    assert first is not None and second is not None
    assert first["weir.job"] == second["weir.job"] and first["added-records"] == "6"
    assert table.properties[f"{second['weir.job']}.epoch"] == second["weir.epoch"]


def test_readers_skip_files_by_the_bounds_of_the_metadata(lake: IcebergLake) -> None:
    assert len(list(table_of(lake).scan(row_filter="n >= 6").plan_files())) == 1


def numbers(lake: IcebergLake, source: ListSource) -> Any:
    def job(env: StreamEnvironment) -> None:
        env.enable_checkpointing("1 min")
        env.from_source(source, "n long", uid="orders").sink_to(lake.sink(), uid="out")

    return job


@pytest.mark.promise("D11")
def test_an_epoch_is_known_after_its_snapshot_has_expired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job stops between a commit and its answer. Others write, and expire all older snapshots."""
    lake = IcebergLake(tmp_path)
    source = ListSource([{"n": 1}, Checkpoint(), {"n": 2}])
    first = LocalRun(numbers(lake, source), 1, {})

    class Died(BaseException):
        pass

    def dying(*_: Any) -> None:
        raise Died

    with monkeypatch.context() as patch, pytest.raises(Died):
        patch.setattr(lake.committer, "_make_durable", dying)
        first.run()
    table = table_of(lake)
    table.append(lake.read().slice(0, 0))
    table.maintenance.expire_snapshots().by_ids(
        [one.snapshot_id for one in table.snapshots() if one != table.current_snapshot()]
    ).commit()
    assert lake.epochs() == []
    run(numbers(lake, source), after=first)
    assert lake.numbers() == [1, 2]


@pytest.mark.parametrize("table", ["orders", "", "shop.", None])
def test_what_is_no_name_of_a_table_is_refused_with_an_example(table: Any) -> None:
    with pytest.raises(ValueError, match=r"write one such as 'shop\.orders'"):
        IcebergSink(table)


def test_a_missing_library_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyiceberg", None)
    with pytest.raises(JobError, match=r"IcebergSink needs the library pyiceberg, .*pip install 'weir\[iceberg\]'"):
        IcebergSink("shop.orders")
