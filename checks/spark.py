"""A Spark application for reading: a job's slots hold their cores for good, so audits and readers use their own."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from engine.spark import archive
from engine.spark.java import find_java, prepare_environment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from checks.spec import AuditedTable


def reading_session(name: str, *, threads: int = 2, compiled: bool = False, log: Path | None = None) -> SparkSession:
    """Starts a local Spark on loopback, in UTC, without task retries, so that failures show. `log` gets Java's output.

    The session lives for seconds, so compiling costs more than it saves, in the JVM (a third of its CPU time) and in
    Spark, unless there are millions of rows (`compiled`).
    """
    java = find_java()
    os.environ.update(prepare_environment(java))
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
        "spark.sql.shuffle.partitions": str(threads),
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.log.level": "ERROR",
    }
    java_options = archive.options(java)
    if not compiled:
        java_options = f"-XX:TieredStopAtLevel=1 {java_options}".rstrip()
        options |= {
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        }
    if java_options:
        options["spark.driver.extraJavaOptions"] = java_options
    builder = SparkSession.builder.master(f"local[{threads}]").appName(name)
    for option, value in options.items():
        builder = builder.config(option, value)
    with _stderr_to(log):
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


@contextmanager
def _stderr_to(log: Path | None) -> Iterator[None]:
    """Sends the stderr of processes that start meanwhile to the log: Java prints lines that users don't need."""
    if log is None:
        yield
        return
    kept = os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def read_published(spark: SparkSession, paths: str | Sequence[str], table: AuditedTable) -> DataFrame:
    """Reads with plain `spark.read.parquet`: a table's folder, or files.

    With a given schema a table without files is empty, not an error.
    """
    return spark.read.schema(table.schema).parquet(*([paths] if isinstance(paths, str) else paths))
