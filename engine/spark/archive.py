"""The archive of Spark's classes: with it a JVM starts in half of the time, because it need not read and check them.

Java calls this class data sharing. The archive belongs to one Java and one Spark, so its name holds a digest of both.
It lies in the user's cache folder. `ArchiveMaker` makes it once, in the background.

Invariants: an archive is used only if this user alone can write it, and Java checks its content as it loads it. Without
one, or with one that does not fit, everything works as before.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from engine.host.locks import held
from engine.spark.java import JavaHome, cache_folder, find_java

AFTER_S = 60.0
"""A job that has run for so long has time for it; one that ends sooner is not disturbed."""
_PATIENCE_S = 600.0
_NICE = 10
_MONTH_S = 30 * 24 * 3600
_SILENT = "-Xlog:cds=off -Xlog:cds+dynamic=off"
"""An archive that does not fit is no news for anybody."""


def archive_of(java: JavaHome, environ: Mapping[str, str] = os.environ) -> Path:
    """Returns where the archive is, or would be, for this Java and the installed Spark."""
    jars = Path(_spark_home(), "jars")
    listed = sorted((entry.name, entry.stat().st_size, entry.stat().st_mtime_ns) for entry in os.scandir(jars))
    digest = hashlib.sha256(repr((str(java.path), java.version, str(jars), listed)).encode()).hexdigest()[:16]
    return cache_folder(environ) / f"spark-{digest}.jsa"


def options(java: JavaHome, environ: Mapping[str, str] = os.environ) -> str:
    """Returns the options with which a JVM uses the archive; none if there is no archive that can be trusted."""
    try:
        archive = archive_of(java, environ)
        if not _private(archive):
            return ""
    except OSError:
        return ""
    return f"-XX:SharedArchiveFile={shlex.quote(str(archive))} -XX:+VerifySharedSpaces -Xshare:auto {_SILENT}"


def _private(archive: Path) -> bool:
    """Says whether this user alone can write the file and its folder: what is in it runs in the JVM."""
    for path in (archive, archive.parent):
        found = path.stat()
        if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o022:
            return False
    return True


class _Unable(Exception):
    """This Java can't make one, now or later."""


class ArchiveMaker:
    """Makes the archive in a process of its own, once a job has run for a while. `poll` is called again and again."""

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._begun = False

    def poll(self, running: bool) -> None:
        """`running`: the job's processes are up."""
        if self._begun:
            if self._process is not None and self._process.poll() is not None:
                self._process = None
            return
        if not running:
            self._since_s = None
            return
        self._since_s = self._since_s if self._since_s is not None else time.monotonic()
        if time.monotonic() - self._since_s >= AFTER_S:
            self._begun = True  # once: a failure is not repeated
            with contextlib.suppress(OSError):
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "engine.spark.archive"],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )

    def end(self) -> None:
        """Ends the process, if it is at work."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


def make(java: JavaHome | None = None, environ: Mapping[str, str] = os.environ) -> Path | None:
    """Makes the archive, unless it is there or another process makes it. Returns it; None: it could not be made."""
    java = java or find_java()
    archive = archive_of(java, environ)
    archive.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    failed = archive.with_suffix(".failed")
    with held(archive.with_suffix(".lock")) as taken:
        if not taken or failed.exists():
            return None
        if not archive.exists():
            draft = archive.with_suffix(f".{os.getpid()}")
            try:
                _start_and_end(draft)
                _make_durable(draft)
                draft.chmod(0o600)
                draft.replace(archive)
            except _Unable as error:
                failed.write_text(f"{error}\n")
                return None
            except Exception:  # a full disk, a machine that is too busy: the next job tries again
                return None
            finally:
                draft.unlink(missing_ok=True)
            _forget_others(archive)
    return archive


def _start_and_end(draft: Path) -> None:
    """Starts Spark as a job does, has it run a task and a query, and lets its JVM keep the classes that it loaded."""
    from pyspark import SparkContext

    from engine.spark.session import start_session

    with tempfile.TemporaryDirectory(prefix="weir-archive-") as scratch:
        session = start_session(
            "archive", 1, 1, scratch=Path(scratch), queries=False, java_options=f"-XX:ArchiveClassesAtExit={draft}"
        )
        session.sparkContext.parallelize([0], 1).mapPartitions(list).collect()
        session.range(3).groupBy("id").count().collect()
        gateway = SparkContext._gateway
        assert gateway is not None
        session.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()  # its JVM ends when nobody can write to it
        gateway.proc.wait(_PATIENCE_S)
    if not draft.exists():
        raise _Unable("this Java writes no archive")


def _make_durable(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _forget_others(archive: Path) -> None:
    """Deletes archives of earlier Javas and Sparks, and drafts of makers that were ended: each takes 120 MB.

    An archive that is in use stays readable. One that is still wanted, by another virtualenv, is made again.
    """
    for other in archive.parent.glob("spark-*"):
        with contextlib.suppress(OSError):
            draft = other.stem == archive.stem and other.suffix[1:].isdigit()
            old = other.stem != archive.stem and time.time() - other.stat().st_mtime > _MONTH_S
            if draft or old:
                other.unlink()


def _spark_home() -> str:
    from pyspark.find_spark_home import _find_spark_home

    return str(_find_spark_home())


def _end_with(parent: int) -> None:
    """Ends this process and its JVM once the supervisor that started it is gone."""
    while os.getppid() == parent:
        time.sleep(1)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    os.nice(_NICE)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    made = make()
    print(made or "no archive was made: another process makes it, or this Java can't")
