"""The asset `gold/<job>`: batch Spark SQL over the committed epochs of a sink table, through dagster-pyspark.

Plain `spark.read.parquet` of a Weir table sees only whole epochs, so each result belongs to one epoch and is written to
a folder with its number. The previous result is kept, so that its readers are not disturbed.
"""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
from dagster_pyspark import LazyPySparkResource

from engine.core.errors import WeirError
from engine.core.paths import JobPaths
from engine.store.bucket import is_bucket
from orchestration.resources import WeirStore, readable_errors, session_of
from orchestration.spec import GoldSpec, StreamSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEPT = 2
PREVIEW_ROWS = 20
TRIES = 10


def gold_asset(spec: StreamSpec) -> dg.AssetsDefinition:
    gold = spec.gold
    assert gold is not None

    @dg.asset(
        key=spec.gold_key,
        deps=[spec.sinks_key],
        description=f"A Spark batch over the committed epochs of {spec.job}:\n\n```sql\n{gold.sql.strip()}\n```",
        group_name="gold",
        tags=spec.tags,
        owners=list(spec.owners),
        kinds={"pyspark", "parquet"},
    )
    def compute(
        context: dg.AssetExecutionContext, weir: WeirStore, pyspark: LazyPySparkResource
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
            epoch, target = write_gold(session_of(pyspark), gold, table, Path(store, spec.job, "gold"))
            context.log.info(f"the result of epoch {epoch} is {target}")
            result = session_of(pyspark).read.parquet(str(target))
            return dg.MaterializeResult(
                metadata={
                    "dagster/row_count": result.count(),
                    "epoch": epoch,
                    "path": dg.MetadataValue.path(str(target)),
                    "preview": preview(result),
                }
            )

    return compute


def gold_job(spec: StreamSpec) -> Any:
    return dg.define_asset_job(
        f"{spec.job}_gold",
        selection=[spec.gold_key],
        description=f"Compute gold/{spec.job} from the epochs that are committed now.",
    )


def newest_epoch(table: Path) -> int:
    """Returns the newest epoch that readers of the table see; 0 if there is none."""
    names = [path.name.removesuffix(".compact") for path in (table / "_spark_metadata").glob("[0-9]*")]
    return max((int(name) + 1 for name in names), default=0)


def write_gold(spark: "SparkSession", gold: GoldSpec, table: Path, folder: Path) -> tuple[int, Path]:
    epoch, rows = _of_one_epoch(spark, table)
    rows.createOrReplaceTempView("weir_sink")
    target = folder / f"epoch-{epoch:010d}"
    spark.sql(gold.sql.format(table="weir_sink")).write.mode("overwrite").parquet(str(target))
    for old in sorted(folder.glob("epoch-*"))[:-KEPT]:
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
