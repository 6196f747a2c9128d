"""Runs a standalone Spark cluster from the pip package, with workers that can't see this checkout.

It runs on loopback, or on hosts made of network namespaces.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import venv
from collections.abc import Sequence
from pathlib import Path

import pyarrow
import pyspark

from engine.spark.java import prepare_environment
from tests.cluster.harness import session_processes
from tests.cluster.hosts import Host

HOME = Path(pyspark.__file__).parent
PATIENCE_S = 180
_CLASSES = "org.apache.spark.deploy"


class StandaloneCluster:
    """A cluster as a context manager, which checks at its end that none of its processes is left.

    The master runs on the first host, and one worker on each of the others.
    """

    def __init__(self, folder: Path, hosts: Sequence[Host] = (Host(), Host(), Host()), cores: int = 2) -> None:
        self._folder = folder
        self._cores = cores
        self.python = _bare_python(folder / "python")
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._host, *workers = hosts
        self._master = self._start("master", self._host, "master.Master", "--port", "0")
        self.url = self._said("master", r"Starting Spark master at (spark://[0-9.]+:\d+)")
        self.workers = [self._start_worker(f"worker-{number}", host) for number, host in enumerate(workers)]

    def __enter__(self) -> StandaloneCluster:
        return self

    def __exit__(self, *_: object) -> None:
        sessions = [daemon.pid for daemon in self._daemons]
        for daemon in reversed(self._daemons):
            if daemon.poll() is None:
                daemon.terminate()
        for daemon in self._daemons:
            daemon.wait(120)
        deadline = time.monotonic() + 120
        while left := [line for session in sessions for line in session_processes(session)]:
            assert time.monotonic() < deadline, f"processes outlived the cluster: {left}"
            time.sleep(0.1)

    def _start_worker(self, name: str, host: Host) -> subprocess.Popen[bytes]:
        size = ["--cores", str(self._cores), "--memory", "2g"]
        work = ["--work-dir", str(self._folder / f"{name}-work")]
        worker = self._start(name, host, "worker.Worker", *size, *work, self.url)
        self._said(name, r"(Successfully registered with master)")
        return worker

    def worker_of(self, slot: int) -> subprocess.Popen[bytes]:
        """Returns the Spark worker under which the slot with this pid runs."""
        return next(worker for worker in self.workers if slot in _pids(worker))

    def submit(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs `spark-submit`; the driver, too, has the Python that can't see the checkout."""
        return subprocess.run(
            [str(HOME / "bin" / "spark-submit"), "--master", self.url, *arguments],
            cwd=self._folder,
            env={**self._environment(self._host), "PYSPARK_DRIVER_PYTHON": self.python},
            capture_output=True,
            text=True,
            timeout=400,
        )

    def _environment(self, host: Host) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self._folder),
            "JAVA_HOME": prepare_environment()["JAVA_HOME"],
            "SPARK_LOCAL_IP": host.address,
            "SPARK_HOME": str(HOME),
        }

    def _start(self, name: str, host: Host, kind: str, *arguments: str) -> subprocess.Popen[bytes]:
        launcher, environment = HOME / "bin" / "spark-class", self._environment(host)
        where = ["--host", host.address, "--webui-port", "0"]
        with self._log(name).open("wb") as log:
            daemon = subprocess.Popen(
                host.command(str(launcher), f"{_CLASSES}.{kind}", *where, *arguments),
                cwd=self._folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._daemons.append(daemon)
        return daemon

    def _said(self, name: str, pattern: str) -> str:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if found := re.search(pattern, self._log(name).read_text(errors="replace")):
                return found.group(1)
            time.sleep(0.1)
        raise AssertionError(f"{name} did not say {pattern}:\n{self._log(name).read_text(errors='replace')[-3000:]}")

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"


def executor_of(slot: int) -> int:
    """Returns the executor JVM under which the slot with this pid runs; other executors may be idle."""
    pid = slot
    while b"CoarseGrainedExecutorBackend" not in Path(f"/proc/{pid}/cmdline").read_bytes():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return pid


def with_children(pid: int) -> list[int]:
    """Returns this process and all below it."""
    found = [pid]
    for folder in (folder for folder in Path("/proc").iterdir() if folder.name.isdigit()):
        try:
            parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue  # it has ended
        if parent == pid:
            found += with_children(int(folder.name))
    return found


def _pids(worker: subprocess.Popen[bytes]) -> list[int]:
    return [int(line.split(" ", 1)[0]) for line in session_processes(worker.pid)]


def _bare_python(folder: Path) -> str:
    """Makes a virtualenv with the libraries of this one, but not the editable install that leads to the checkout."""
    venv.create(folder, symlinks=True)
    (site,) = (folder / "lib").glob("python*/site-packages")
    (site / "libraries.pth").write_text(f"{Path(pyarrow.__file__).parent.parent}\n")
    python = str(folder / "bin" / "python")
    seen = subprocess.run([python, "-c", "import pyarrow, pyspark, engine"], cwd=folder, capture_output=True, text=True)
    assert "No module named 'engine'" in seen.stderr, f"{seen.stderr} ({sys.executable})"
    return python
