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
from engine.host.launch import LaunchOptions
from engine.observe.client import JobClient
from engine.process.settings import read_settings
from engine.spark.conf import resolved
from engine.spark.java import prepare_environment
from engine.spark.session import LOOPBACK, check_master, checked_conf, is_local, on_this_machine
from engine.store.opening import address_of
from orchestration.spec import StreamSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCH_SLOTS = 2
"""The cores of a batch on this machine, unless the job says how many slots it has: others run beside it."""
LEAST_JVM_MB = 512
"""Spark refuses to start in less than 450 MiB."""

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
    """Returns Spark for batches, started when first used. It is its own application: slots hold a job's cores.

    It says nothing of master, cores and memory: these are the job's, or of a run's config.
    """
    return LazyPySparkResource(
        spark_config={
            "spark.app.name": "weir gold",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": "4",
            "spark.log.level": "ERROR",
        }
    )


def session_of(pyspark: LazyPySparkResource, options: LaunchOptions) -> SparkSession:
    """Returns the session of the resource on the Spark that the options ask for, on the Java that Weir finds."""
    os.environ.update(prepare_environment())
    if is_local(options.spark_master):
        os.environ["SPARK_LOCAL_IP"] = LOOPBACK
    configured: dict[str, Any] = dict(pyspark.spark_config)
    session: SparkSession = LazyPySparkResource(spark_config={**configured, **batch_conf(options)}).spark_session
    return session


def batch_conf(options: LaunchOptions) -> dict[str, str]:
    """Returns Spark's settings for a batch: master and configuration of the options, with room for as many slots."""
    master, slots = options.spark_master, options.max_slots or BATCH_SLOTS
    check_master(master)
    conf: dict[str, str] = {"spark.master": master or f"local[{slots}]"}
    if is_local(master) or on_this_machine(master):
        conf |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
    if is_local(master):
        conf["spark.authenticate"] = "true"
    elif options.max_slots is not None:
        conf["spark.cores.max"] = str(slots)
    if options.slot_memory_mb is not None:
        memory, whose = options.slot_memory_mb, "executor"
        if is_local(master):
            memory, whose = memory * slots, "driver"  # its tasks run in the driver
        conf[f"spark.{whose}.memory"] = f"{max(memory, LEAST_JVM_MB)}m"
    return conf | dict(checked_conf(resolved(options.conf, os.environ)))


@contextmanager
def readable_errors() -> Iterator[None]:
    """Shows a WeirError in Dagster without a traceback, and does not retry: its text says what to do."""
    try:
        yield
    except WeirError as error:
        raise dg.Failure(description=str(error), allow_retries=False) from error


def resources() -> dict[str, Any]:
    return {"weir": WeirStore(path=default_store()), "pyspark": batch_spark()}
