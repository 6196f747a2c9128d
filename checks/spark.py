"""A Spark application for reading: audits and readers never run on the cores that a job's slots hold."""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

from engine.cluster.java import prepare_environment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from checks.spec import AuditedTable


def reading_session(name: str, threads: int = 2) -> SparkSession:
    """A local Spark on loopback, in UTC, without retries: what fails here has to be seen."""
    os.environ.update(prepare_environment())
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession

    options = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.authenticate": "true",
        "spark.authenticate.secret": secrets.token_hex(16),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(2 * threads),
        "spark.sql.adaptive.enabled": "false",  # tables of a drill are small: planning again costs more than it saves
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.log.level": "ERROR",
    }
    builder = SparkSession.builder.master(f"local[{threads}]").appName(name)
    for option, value in options.items():
        builder = builder.config(option, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


def read_published(spark: SparkSession, folder: str, table: AuditedTable) -> DataFrame:
    """Plain `spark.read.parquet`; the schema is given, so that a table without any file is an empty one."""
    return spark.read.schema(table.schema).parquet(folder)
