"""Resources that runs, schedules and sensors share: the store of jobs, Spark for batch, errors that users can read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
from dagster_pyspark import LazyPySparkResource

from engine.core.errors import WeirError
from engine.observe.client import JobClient
from engine.process.settings import read_settings
from engine.spark.java import prepare_environment
from engine.store.opening import address_of
from orchestration.spec import StreamSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STORE = "store"
"""The metadata entry of `streams/<job>` that names the store in which the job was started."""


def default_store() -> str:
    """Returns WEIR_STORE, or the configuration file's store, or `weir` in DAGSTER_HOME, or the CLI's default."""
    if store := os.environ.get("WEIR_STORE"):
        return address_of(store)
    if store := read_settings().store:
        return store
    if home := os.environ.get("DAGSTER_HOME"):
        return str(Path(home).absolute() / "weir")
    return str(Path(".weir").absolute())


class WeirStore(dg.ConfigurableResource):  # type: ignore[type-arg]
    """The store of jobs, unless the run that started a job chose another one."""

    path: str

    def of(self, instance: dg.DagsterInstance, spec: StreamSpec) -> str:
        """Returns the store in which `streams/<job>` was last materialized; all actions on the job use it."""
        event = instance.get_latest_materialization_event(spec.stream_key)
        found = metadata_of(event).get(STORE)
        return str(found) if found else self.path

    def client(self, instance: dg.DagsterInstance, spec: StreamSpec) -> JobClient:
        return JobClient(self.of(instance, spec), spec.job)


def metadata_of(event: dg.EventLogEntry | None) -> Mapping[str, Any]:
    """Returns the metadata of a materialization, as plain values."""
    if event is None or event.asset_materialization is None:
        return {}
    return {name: value.value for name, value in event.asset_materialization.metadata.items()}


def batch_spark() -> LazyPySparkResource:
    """Returns Spark for batches, started when first used. It is its own application: slots hold a job's cores."""
    return LazyPySparkResource(
        spark_config={
            "spark.master": "local[2]",
            "spark.app.name": "weir gold",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.authenticate": "true",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": "4",
            "spark.log.level": "ERROR",
        }
    )


def session_of(pyspark: LazyPySparkResource) -> SparkSession:
    """Returns the resource's session, on the Java that Weir finds."""
    os.environ.update(prepare_environment())
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    session: SparkSession = pyspark.spark_session
    return session


@contextmanager
def readable_errors() -> Iterator[None]:
    """Shows a WeirError in Dagster without a traceback, and does not retry: its text says what to do."""
    try:
        yield
    except WeirError as error:
        raise dg.Failure(description=str(error), allow_retries=False) from error


def resources() -> dict[str, Any]:
    return {"weir": WeirStore(path=default_store()), "pyspark": batch_spark()}
