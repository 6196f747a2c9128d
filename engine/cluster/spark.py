"""Slots as tasks of one long-running Spark job. Everything that would break slots is pinned here.

A lost task is started again by Spark itself: retries are high, the other tasks stay alive. Slots hold their cores for
good, so in local mode Spark gets as many task slots as the largest parallelism allowed, and one for its own work.
"""

from __future__ import annotations

import os
import secrets
import sys
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from engine.cluster.java import prepare_environment
from engine.cluster.slot_main import SlotLaunch, run_slot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK_RETRIES = 1000

_PINNED = {
    "spark.speculation": "false",
    "spark.dynamicAllocation.enabled": "false",
    "spark.python.worker.reuse": "false",
    "spark.python.daemon.module": "engine.cluster.slot_daemon",
    "spark.task.maxFailures": str(TASK_RETRIES),
    "spark.task.reaper.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.authenticate": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def default_max_slots() -> int:
    return max(4, os.cpu_count() or 1)


def start_session(job: str, max_slots: int, parallelism: int) -> SparkSession:
    """A local Spark on loopback, with a task slot for every Weir slot and one more."""
    if parallelism > max_slots:
        raise ValueError(
            f"the job needs {parallelism} slots, but Spark was given {max_slots}: start it with "
            f"--max-slots {parallelism} or a lower --parallelism"
        )
    os.environ.update(prepare_environment())
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = dict.fromkeys([os.getcwd(), *(p for p in sys.path if p), *(p for p in inherited if p)])
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    # Batches come from the network unaligned; the kernels used here do not mind.
    os.environ.setdefault("ACERO_ALIGNMENT_HANDLING", "ignore")
    # Arrow frees and takes buffers of the same size again and again: keep them instead of asking the kernel each time.
    os.environ.setdefault("MALLOC_TRIM_THRESHOLD_", str(256 << 20))
    os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", str(256 << 20))
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local[{max_slots + 1},{TASK_RETRIES}]").appName(f"weir {job}")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    builder = builder.config("spark.authenticate.secret", secrets.token_hex(16))
    for name, value in _PINNED.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


class SlotJob:
    """The Spark job whose tasks are the slots."""

    def __init__(self, session: SparkSession, launch: SlotLaunch, slots: int, on_end: Callable[[str], None]) -> None:
        self._session = session
        self._launch = launch
        self._slots = slots
        self._on_end = on_end
        self._thread = threading.Thread(target=self._run, name="slot job", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        context = self._session.sparkContext
        context.setJobGroup("weir", f"weir slots of {self._launch.job.name}", interruptOnCancel=True)
        try:
            context.parallelize(range(self._slots), self._slots).mapPartitions(_slot_task(self._launch)).collect()
            self._on_end("the Spark job of the slots ended")
        except Exception as error:
            self._on_end(f"the Spark job of the slots failed: {str(error).splitlines()[0]}")

    def kill(self, task_attempt: int, why: str) -> None:
        """Spark never notices a hung task: end this attempt, so that it starts another."""
        java_context: Any = self._session.sparkContext._jsc.sc()
        java_context.killTaskAttempt(task_attempt, True, why)


def _slot_task(launch: SlotLaunch) -> Callable[[Iterable[int]], Iterable[int]]:
    def slot(partition: Iterable[int]) -> Iterable[int]:
        """Which partition this is means nothing: any task fills any slot."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        run_slot(launch, context.taskAttemptId())
        return ()

    return slot
