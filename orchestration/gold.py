"""The asset `gold/<job>`: batch Spark SQL over the committed epochs of a table, by days of event time.

Plain `spark.read.parquet` of a Weir table sees only whole epochs, so each result belongs to one epoch and is written to
a folder with its number. The previous result is kept, so that its readers are not disturbed.
"""

import shutil
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import pyarrow.parquet as pq
from dagster_pyspark import LazyPySparkResource

from engine.connectors.table.log import DamagedTable, TableLog
from engine.core.errors import StoreError, WeirError
from engine.core.paths import JobPaths
from engine.store.bucket import is_bucket
from engine.store.directory import DirectoryStore
from orchestration.lineage import partitions_of
from orchestration.resources import WeirStore, readable_errors, session_of
from orchestration.spark_config import SparkConfig
from orchestration.spec import GoldSpec, StreamSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEPT = 2
PREVIEW_ROWS = 20
TRIES = 10
MOST_DAYS = 366
"""Rows whose event times are further apart, in one minute, are named by their first and their last days."""
LOOK_EVERY_S = 60


def gold_asset(spec: StreamSpec) -> dg.AssetsDefinition:
    gold = spec.gold
    assert gold is not None
    table_key = spec.table_key(gold.table)

    @dg.asset(
        key=spec.gold_key,
        deps=[table_key],
        description=f"A Spark batch over the committed epochs of {spec.job}, one result for each day of "
        f"`{gold.event_time}`:\n\n```sql\n{gold.sql.strip()}\n```",
        group_name="gold",
        tags=spec.tags,
        owners=list(spec.owners),
        kinds={"pyspark", "parquet"},
        partitions_def=partitions_of(spec, table_key),
        automation_condition=made_again(gold),
        pool=f"weir_gold_{spec.job}",
    )
    def compute(
        context: dg.AssetExecutionContext, config: SparkConfig, weir: WeirStore, pyspark: LazyPySparkResource
    ) -> dg.MaterializeResult[None]:
        store = weir.of(context.instance, spec)
        with readable_errors():
            if is_bucket(store):
                raise WeirError(
                    f"{spec.gold_key.to_user_string()} can't read the bucket {store}: it is built for jobs whose store "
                    "is a directory. Read the table with a Spark that has hadoop-aws, as docs/s3.md shows"
                )
            table = Path(store) / JobPaths(spec.job).table(gold.table)
            if newest_epoch(table) == 0:
                raise WeirError(
                    f"{spec.job} has committed nothing to the table {table} yet: start it, and wait for a checkpoint"
                )
            session = session_of(pyspark, config.spark_over(spec.options))
            day = context.partition_key
            epoch, target = write_gold(session, gold, table, Path(store, spec.job, "gold"), day)
            context.log.info(f"the result of {day} at epoch {epoch} is {target}")
            result = session.read.parquet(str(target))
            return dg.MaterializeResult(
                metadata={
                    "dagster/row_count": result.count(),
                    "epoch": epoch,
                    "path": dg.MetadataValue.path(str(target)),
                    "preview": preview(result),
                }
            )

    return compute


def made_again(gold: GoldSpec) -> dg.AutomationCondition[Any]:
    """A day is made again if it got rows, and a time of `cron` has passed, since it was last made.

    Dagster's own `on_cron` waits for rows after that time: the last rows of a day would never be in its result. Rows
    that come while a day is made may be in the result or not, so they count as rows since: it is made once more.
    """
    rows: dg.AutomationCondition[Any] = dg.AutomationCondition.any_deps_updated()
    time: dg.AutomationCondition[Any] = dg.AutomationCondition.cron_tick_passed(gold.cron)
    made: dg.AutomationCondition[Any] = (
        dg.AutomationCondition.newly_requested() | dg.AutomationCondition.newly_updated()
    )
    due = rows.since(made & ~rows) & time.since(made) & ~dg.AutomationCondition.in_progress()
    return due.with_label(f"new rows, at {gold.cron}")


def gold_job(spec: StreamSpec) -> Any:
    return dg.define_asset_job(
        f"{spec.job}_gold",
        selection=[spec.gold_key],
        description=f"Compute a day of gold/{spec.job} from the epochs that are committed now.",
    )


def gold_automation(spec: StreamSpec) -> dg.AutomationConditionSensorDefinition:
    assert spec.gold is not None
    return dg.AutomationConditionSensorDefinition(
        f"{spec.job}_gold_again",
        target=dg.AssetSelection.assets(spec.gold_key),
        description=f"Makes the days of gold/{spec.job} again that got rows, at the times of {spec.gold.cron!r}.",
        minimum_interval_seconds=LOOK_EVERY_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
    )


def newest_epoch(table: Path) -> int:
    """Returns the newest epoch that readers of the table see; 0 if there is none."""
    names = [path.name.removesuffix(".compact") for path in (table / "_spark_metadata").glob("[0-9]*")]
    return max((int(name) + 1 for name in names), default=0)


def touched_days(gold: GoldSpec, store: str, job: str, first: int, last: int) -> list[str]:
    """Returns the days of event time of the rows that these epochs published, from the statistics of their files.

    A file that was folded meanwhile also names the days of the older rows in it: these are made again in vain. So are
    days of later epochs, if the records or the files of these epochs are deleted by now.
    """
    if is_bucket(store):
        return []
    table = JobPaths(job).table(gold.table)
    log, folder = TableLog(DirectoryStore(Path(store)), table), Path(store) / table
    before = _names(log, first - 1) or set()
    for number in range(TRIES):
        until = last if number == 0 else max(log.numbers(), default=-1) + 1
        names = _names(log, until)
        days = _days_in(folder, names - before, gold.event_time) if names is not None else None
        if days is not None:
            return sorted(days)
    return []


def _names(log: TableLog, epoch: int) -> set[str] | None:
    """Returns the files that readers saw after this epoch; None if its record is deleted, or the table began later."""
    try:
        return set(log.until(epoch).names) if epoch and log.has(epoch - 1) else None
    except (StoreError, DamagedTable):  # records may be deleted while they are read
        return None


def _days_in(folder: Path, names: set[str], column: str) -> set[str] | None:
    """Returns the days in these files; None if one of them was folded away, with days that nobody knows then."""
    days: set[str] = set()
    for name in names:
        found = _days_of(folder / Path(name).name, column)
        if found is None:
            return None
        days |= found
    return days


def _days_of(file: Path, column: str) -> set[str] | None:
    """Returns the days in a file: none if it has no such column, as the SQL will say; None if the file is gone."""
    try:
        footer = pq.read_metadata(file)
    except FileNotFoundError:
        return None
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    parts = [group.column(i) for group in groups for i in range(group.num_columns)]
    found = [part.statistics for part in parts if part.path_in_schema == column and part.statistics is not None]
    bounds = [(one.min, one.max) for one in found if one.has_min_max]
    days: set[str] = set()
    for low, high in bounds:
        days |= set(days_between(low, high))
    return days


def days_between(low: Any, high: Any) -> Sequence[str]:
    if not isinstance(low, datetime) or not isinstance(high, datetime):
        return ()
    first, last = low.date(), high.date()
    number = (last - first).days
    if number > MOST_DAYS:
        return (str(first), str(last))
    return [str(first + timedelta(days=n)) for n in range(number + 1)]


def write_gold(spark: "SparkSession", gold: GoldSpec, table: Path, folder: Path, day: str) -> tuple[int, Path]:
    from pyspark.sql.functions import col, lit

    epoch, rows = _of_one_epoch(spark, table)
    begin = datetime.fromisoformat(day).replace(tzinfo=UTC)
    time = col(gold.event_time)
    rows = rows.where((time >= lit(begin)) & (time < lit(begin + timedelta(days=1))))
    rows.createOrReplaceTempView("weir_sink")
    target = folder / day / f"epoch-{epoch:010d}"
    spark.sql(gold.sql.format(table="weir_sink")).write.mode("overwrite").parquet(str(target))
    for old in sorted(target.parent.glob("epoch-*"))[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return epoch, target


def _of_one_epoch(spark: "SparkSession", table: Path) -> tuple[int, "DataFrame"]:
    """Returns a DataFrame of the table and its epoch; lists the files again if an epoch was committed meanwhile."""
    for _ in range(TRIES):
        before = newest_epoch(table)
        rows = spark.read.parquet(str(table))
        rows.inputFiles()
        if newest_epoch(table) == before:
            return before, rows
    raise WeirError(f"{table} gets epochs faster than Spark can list its files: use a longer checkpoint interval")


def preview(rows: "DataFrame") -> dg.TableMetadataValue:
    """Returns the first rows as a table for the UI."""
    records = [
        dg.TableRecord(_plain(row.asDict())) for row in rows.orderBy(*rows.columns).limit(PREVIEW_ROWS).collect()
    ]
    columns = [dg.TableColumn(field.name, field.dataType.simpleString()) for field in rows.schema]
    return dg.MetadataValue.table(records, dg.TableSchema(columns))


def _plain(row: dict[str, Any]) -> dict[str, str | int | float | bool | None]:
    """Returns the row with values that a table in the UI can hold; all others become text."""
    return {k: v if isinstance(v, str | int | float | bool | None) else str(v) for k, v in row.items()}
