"""Goal: gold runs on its job's Spark, and is made again for the days of event time that got rows, and for no other."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from engine.connectors.table.log import Entries, TableLog, is_compact
from engine.core.errors import WeirError
from engine.host.launch import LaunchOptions
from engine.store.directory import DirectoryStore
from orchestration.gold import days_between, touched_days
from orchestration.resources import batch_conf
from orchestration.spark_config import SparkConfig
from orchestration.spec import GoldSpec
from tests.orchestration.jobs import NUMBERS, FakeJob, Ticker, definitions

GOLD = GoldSpec("sums", "SELECT count(*) AS n FROM {table}", event_time="window_start", cron="*/5 * * * *")
SPEC = dataclasses.replace(NUMBERS, gold=GOLD)


class Table:
    """Publishes epochs of the table `sums`, as the job's committer does."""

    def __init__(self, store: Path) -> None:
        self._folder = store / "numbers" / "tables" / "sums"
        self._folder.mkdir(parents=True)
        self._log = TableLog(DirectoryStore(store), "numbers/tables/sums")

    def publish(self, epoch: int, *times: datetime) -> None:
        lines = []
        if times:
            file = self._folder / f"part-{epoch}.parquet"
            pq.write_table(pa.table({"window_start": pa.array(times, pa.timestamp("us", "UTC"))}), file)
            lines = [self._log.line(str(file), file.stat().st_size)]
        number = epoch - 1
        before = self._log.below(number).lines if is_compact(number) else []
        self._log.create(number, Entries([*before, *lines], True))

    def fold(self, epoch: int, replaced: Sequence[int], *times: datetime) -> None:
        """Publishes an epoch whose record names one file in the place of those of older epochs, and deletes these."""
        file, gone = self._folder / f"folded-{epoch}.parquet", [f"part-{number}.parquet" for number in replaced]
        pq.write_table(pa.table({"window_start": pa.array(times, pa.timestamp("us", "UTC"))}), file)
        before = [line for line in self._log.below(epoch - 1).lines if not any(name in line for name in gone)]
        self._log.create(epoch - 1, Entries([*before, self._log.line(str(file), file.stat().st_size)], True))
        for name in gone:
            (self._folder / name).unlink()

    def trim(self, number: int) -> None:
        """Deletes the records before this one."""
        for old in range(number):
            self._log.delete(old)


def day(number: int) -> datetime:
    return datetime(2026, 1, number, 12)


def test_the_days_of_epochs_are_those_of_their_own_rows_only(tmp_path: Path) -> None:
    table = Table(tmp_path)
    for epoch in range(1, 13):  # the tenth record of the log repeats all before it
        table.publish(epoch, day(epoch))
    table.publish(13)
    table.publish(14, day(14), day(16))
    assert touched_days(GOLD, str(tmp_path), "numbers", 3, 4) == ["2026-01-03", "2026-01-04"]
    assert touched_days(GOLD, str(tmp_path), "numbers", 10, 11) == ["2026-01-10", "2026-01-11"]
    assert touched_days(GOLD, str(tmp_path), "numbers", 13, 14) == ["2026-01-14", "2026-01-15", "2026-01-16"]
    assert touched_days(GOLD, str(tmp_path), "numbers", 13, 13) == []


def test_rows_far_apart_name_their_first_and_last_day() -> None:
    assert days_between(day(1), day(1) + timedelta(days=4000)) == ("2026-01-01", "2036-12-14")
    assert days_between(3, 4) == (), "a column that is no time: the SQL will say so"


def test_each_day_that_got_rows_is_a_partition_of_the_table_that_the_sensor_materializes(tmp_path: Path) -> None:
    table, job = Table(tmp_path), FakeJob(tmp_path)
    job.wanted()
    job.beats()
    (home := tmp_path / "home").mkdir()
    with dg.DagsterInstance.local_temp(str(home)) as instance:
        ticker = Ticker(tmp_path, instance, spec=SPEC)
        key = SPEC.table_key("sums")
        for epoch, days in ((1, [day(3), day(4)]), (2, [day(4)])):
            table.publish(epoch, *days)
            job.completes(epoch, read=epoch, committed=2 * epoch)
            ticker.tick()
        assert sorted(instance.get_dynamic_partitions(SPEC.partitions_name)) == ["2026-01-03", "2026-01-04"]
        found = instance.fetch_materializations(key, limit=9).records
        assert [record.partition_key for record in found] == ["2026-01-04", "2026-01-04", "2026-01-03"]


def test_epochs_whose_files_were_folded_and_deleted_name_the_days_of_the_folded_file(tmp_path: Path) -> None:
    table = Table(tmp_path)
    for epoch in range(1, 30):
        table.publish(epoch, day(epoch))
    table.fold(30, [24, 25, 26], day(24), day(26))
    table.publish(31, day(31))
    assert touched_days(GOLD, str(tmp_path), "numbers", 29, 29) == ["2026-01-29"]
    assert {"2026-01-24", "2026-01-25"} <= set(touched_days(GOLD, str(tmp_path), "numbers", 24, 25))


def test_epochs_whose_records_are_deleted_name_the_days_of_all_later_rows(tmp_path: Path) -> None:
    """The daemon was off for long, or its cursor was lost. Its sensor must not fail for ever: it restarts the job."""
    table = Table(tmp_path)
    for epoch in range(1, 33):
        table.publish(epoch, day(1 + epoch % 3))
    table.trim(19)
    for first, last in ((2, 5), (2, 25)):
        days = ["2026-01-01", "2026-01-02", "2026-01-03"]
        assert touched_days(GOLD, str(tmp_path), "numbers", first, last) == days
    assert touched_days(GOLD, str(tmp_path), "numbers", 31, 31) == ["2026-01-02"]


def test_a_day_is_reported_although_the_sensor_died_after_another_day_of_the_same_minute(tmp_path: Path) -> None:
    table, job = Table(tmp_path), FakeJob(tmp_path)
    job.wanted()
    job.beats()
    (home := tmp_path / "home").mkdir()
    with dg.DagsterInstance.local_temp(str(home)) as instance:
        ticker = Ticker(tmp_path, instance, spec=SPEC)
        key = SPEC.table_key("sums")
        table.publish(1, day(3), day(4))
        job.completes(1, read=1, committed=2)
        ticker.tick()
        (first,) = instance.fetch_materializations(
            dg.AssetRecordsFilter(key, asset_partitions=["2026-01-03"]), 9
        ).records
        instance.wipe_assets([key])
        assert first.asset_materialization is not None
        instance.report_runless_asset_event(first.asset_materialization)
        Ticker(tmp_path, instance, spec=SPEC).tick()
        found = instance.fetch_materializations(key, limit=9).records
        assert [record.partition_key for record in found] == ["2026-01-04", "2026-01-03"]


def test_a_table_without_known_days_is_materialized_as_a_whole(tmp_path: Path) -> None:
    """Or else its freshness would be red for ever."""
    table, job = Table(tmp_path), FakeJob(tmp_path)
    job.wanted()
    job.beats()
    (home := tmp_path / "home").mkdir()
    spec = dataclasses.replace(SPEC, gold=dataclasses.replace(GOLD, event_time="another_column"))
    with dg.DagsterInstance.local_temp(str(home)) as instance:
        table.publish(1, day(3))
        job.completes(1, read=1, committed=2)
        Ticker(tmp_path, instance, spec=spec).tick()
        found = instance.fetch_materializations(spec.table_key("sums"), limit=9).records
        assert [record.partition_key for record in found] == [None]


def test_the_automation_asks_for_a_day_that_got_rows_since_its_time_and_for_no_other(tmp_path: Path) -> None:
    """Dagster's own evaluation, as its daemon makes it each minute."""
    defs = definitions(tmp_path, SPEC)
    at = datetime(2026, 1, 5, 10, 0, 30, tzinfo=UTC)
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions(SPEC.partitions_name, ["2026-01-03", "2026-01-04"])
        cursor = None

        def asked(minute: int) -> set[str]:
            nonlocal cursor
            result = dg.evaluate_automation_conditions(
                defs,
                instance,
                asset_selection=dg.AssetSelection.assets(SPEC.gold_key),
                evaluation_time=at + timedelta(minutes=minute),
                cursor=cursor,
            )
            cursor = result.cursor
            return set(result.get_requested_partitions(SPEC.gold_key))

        rows = dg.AssetMaterialization(SPEC.table_key("sums"), partition="2026-01-04")
        assert asked(0) == set() and asked(5) == set(), "its table got no rows"
        instance.report_runless_asset_event(rows)
        assert asked(6) == {"2026-01-04"}
        instance.report_runless_asset_event(rows)
        assert asked(7) == set(), "it was made a minute ago: a day is made once in five minutes"
        assert asked(10) == {"2026-01-04"}, "also if no row came since: these may have been the last of the day"
        assert asked(15) == set()


def test_a_batch_runs_on_the_spark_of_its_job_unless_the_run_says_otherwise() -> None:
    spec = LaunchOptions(path="a:b", spark_master="spark://far:7077", conf={"spark.x": "1"}, slot_memory_mb=700)
    there = batch_conf(spec)
    assert there["spark.master"] == "spark://far:7077" and there["spark.executor.memory"] == "700m"
    assert there["spark.x"] == "1" and "spark.driver.host" not in there, "its executors could not call back"
    here = batch_conf(SparkConfig(master="local[3]", max_slots=3, conf={"spark.x": "2"}).spark_over(spec))
    assert (here["spark.master"], here["spark.driver.memory"]) == ("local[3]", "2100m")
    assert here["spark.x"] == "2" and here["spark.driver.host"] == "127.0.0.1"
    assert batch_conf(LaunchOptions(path="a:b", max_slots=4))["spark.master"] == "local[4]"
    with pytest.raises(WeirError, match="is no Spark master"):
        batch_conf(LaunchOptions(path="a:b", spark_master="elsewhere"))
