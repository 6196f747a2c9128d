"""What Spark is told about the slots of a job, and who gets which."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock

import pytest

from engine.api import StreamEnvironment
from engine.core.errors import JobError, SparkLost, WeirError
from engine.graph.execution_graph import ExecutionGraph
from engine.jobmaster.slot_pool import SlotInfo, SlotPool
from engine.protocol.ids import AttemptId
from engine.spark import slot_tasks
from engine.spark.slot_tasks import SlotJob, _Batch, _cause, in_slots
from tests.graph.test_graph import source, translate


def test_slots_that_run_the_same_are_named_together_however_many_they_are() -> None:
    env = StreamEnvironment(parallelism=100)
    words = source(env).set_parallelism(1).flat_map(lambda row: [row])
    words.key_by("app_id").sum("bytes", uid="sums").print(uid="shown")
    assert in_slots(ExecutionGraph(translate(env))) == [
        "slot 0: source views → flat_map flat_map-1, reduce sums → sink shown",
        "slots 1–99: reduce sums → sink shown",
    ]


def task(partition: int, task_attempt: int) -> SlotInfo:
    return SlotInfo(f"session {task_attempt}", "address", 1, task_attempt, 0.0, partition)


def test_a_task_gets_the_slot_of_its_partition_again_after_another_was_lost() -> None:
    pool = SlotPool(3)
    for slot in (task(2, 1), task(0, 2), task(1, 3)):
        pool.add(slot)
    assert [slot.task_attempt for slot in pool.assign()] == [2, 3, 1]
    pool.remove("session 2")
    pool.release(AttemptId(1, 1), 0.0)
    assert not pool.enough
    for slot in pool.all:
        pool.left(slot, AttemptId(1, 1))
    pool.add(task(0, 4))
    assert [(slot.task_attempt, slot.index) for slot in pool.assign()] == [(4, 0), (3, 1), (1, 2)]


def test_any_task_fills_any_slot_where_two_have_the_same_partition() -> None:
    """As after a slot that fell silent: Spark has started its replacement, and it may still be there."""
    pool = SlotPool(2)
    pool.add(task(1, 1))
    pool.add(task(1, 2))
    assert [(slot.task_attempt, slot.index) for slot in pool.assign()] == [(1, 0), (2, 1)]


def test_only_weir_s_own_error_means_that_the_job_can_not_be_built() -> None:
    def judged(said: str) -> type[Exception]:
        ends: list[Exception] = []
        job = SlotJob.__new__(SlotJob)
        job._stopped = threading.Event()
        job._on_end = ends.append
        job._say = lambda text: None
        job._run_once = lambda batch, slots: _cause(Exception(f"Traceback\n{said}"))  # type: ignore[method-assign]
        job._spark_stopped = lambda: True  # type: ignore[method-assign]
        job._run(_Batch(0, (0, 1)))
        return type(ends[0])

    assert judged("engine.core.errors.JobError: there is no module 'x'") is JobError
    assert judged("shop.errors.MyJobError: refused") is SparkLost
    assert judged("ValueError: a JobError: not ours") is SparkLost


@pytest.mark.parametrize(
    "said",
    [
        "ModuleNotFoundError: No module named 'engine'",
        "ModuleNotFoundError: No module named 'pyarrow.flight'",
        "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has 3.9",
        'java.io.IOException: Cannot run program "/opt/venv/bin/python": error=2, No such file or directory',
    ],
)
def test_workers_with_another_python_are_told_of_pyspark_python(said: str) -> None:
    cause = _cause(Exception(f"An error occurred while calling z:org.apache.spark\n\tat java.Base\n{said}\n\tat more"))
    assert cause.startswith(said) and f"set PYSPARK_PYTHON={sys.executable}" in cause
    assert _cause(Exception("Traceback\nModuleNotFoundError: No module named 'enginex'")).endswith("'enginex'")
    busy = 'java.io.IOException: Cannot run program "/opt/venv/bin/python": error=11, Resource temporarily unavailable'
    assert _cause(Exception(busy)) == busy, "another Python would not help a machine without processes or memory"


class Scheduler:
    """Spark's scheduler and its context in one, with the executors of running tasks. Notes what it is asked to do."""

    def __init__(self, executors: dict[int, str]) -> None:
        self._executors = executors
        self.done: list[tuple[str, str]] = []
        self.backend = self.taskScheduler = self.taskIdToExecutorId = self.sc = lambda: self
        self.sparkContext = self._jsc = self
        self._jvm = MagicMock()

    def get(self, task: int) -> MagicMock:
        executor = self._executors.get(task)
        return MagicMock(isDefined=lambda: executor is not None, get=lambda: executor)

    def killAndReplaceExecutor(self, executor: str) -> None:
        self.done.append(("replace", executor))

    def removeExecutor(self, executor: str, lost: object) -> None:
        self.done.append(("remove", executor))


REMOVED = [("replace", "7"), ("remove", "7")]


@pytest.mark.parametrize(
    ("executors", "heard", "done"),
    [
        ({1: "7"}, (), REMOVED),
        ({1: "7", 2: "8"}, (2,), REMOVED),
        ({1: "7", 2: "7"}, (2,), []),
        ({2: "7"}, (), []),
        ({1: "driver"}, (), []),
    ],
    ids=["it is alone", "others are elsewhere", "another slot is heard there", "it has ended its task", "local mode"],
)
def test_the_executor_of_a_silent_slot_is_removed_if(
    executors: dict[int, str], heard: tuple[int, ...], done: list[tuple[str, str]]
) -> None:
    env = StreamEnvironment()
    source(env).print(uid="shown")
    session: Any = Scheduler(executors)
    job = SlotJob(session, MagicMock(), ExecutionGraph(translate(env)), lambda error: None, lambda text: None)
    job._remove_executor(1, "silent", heard)
    assert session.done == done


class Tasks:
    """A Spark context that notes the slots of each Spark job, which then runs until it is cancelled or let go."""

    def __init__(self) -> None:
        self.sparkContext = self
        self.started: list[list[int]] = []
        self.cancelled: list[str] = []
        self.groups: list[str] = []
        self.ends = threading.Semaphore(0)
        self.setJobGroup = lambda group, what, interruptOnCancel: self.groups.append(group)
        self.setLocalProperty = lambda name, value: None
        self.cancelJobGroup = self._cancel

    def parallelize(self, slots: list[int], partitions: int) -> list[int]:
        assert len(slots) == partitions
        return slots

    def runJob(self, slots: list[int], task: Any) -> None:
        self.started.append(list(slots))
        self.ends.acquire()

    def _cancel(self, group: str) -> None:
        self.cancelled.append(group)
        self.ends.release()


def slot_job(session: Any, ends: list[WeirError]) -> SlotJob:
    env = StreamEnvironment()
    source(env).print(uid="shown")
    launch = MagicMock()
    launch.name = "job"
    job = SlotJob(session, launch, ExecutionGraph(translate(env)), ends.append, lambda text: None)
    job._spark_stopped = lambda: False  # type: ignore[method-assign]
    return job


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_further_slots_are_a_spark_job_of_their_own_which_ends_when_they_are_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spark, ends = Tasks(), list[WeirError]()
    job = slot_job(spark, ends)
    job.start()
    until(lambda: len(spark.started) == 1)
    job.add((2, 3))
    until(lambda: len(spark.started) == 2)
    assert spark.started == [[0, 1], [2, 3]] and len(set(spark.groups)) == 2
    job.release((3,))
    spark.ends.release()  # one of the two Spark jobs ends; both would be submitted again if all slots were needed
    until(lambda: len(spark.started) == 3)
    assert spark.started[2] in ([0, 1], [2]), "only slots that are needed start again"
    job.stop(0.1)
    assert not ends


def test_slots_that_never_started_are_cancelled_when_nobody_needs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_tasks, "RELEASE_PATIENCE_S", 0.05)
    spark, ends = Tasks(), list[WeirError]()
    job = slot_job(spark, ends)
    job.add((2,))
    until(lambda: len(spark.started) == 1)
    job.release((2,))
    until(lambda: len(spark.cancelled) == 1)
    until(lambda: not any(batch.thread and batch.thread.is_alive() for batch in job._batches))
    assert spark.started == [[2]] and not ends


def test_further_slots_that_fail_again_and_again_do_not_end_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a session that allows no retries: the rescale gives up after its time-out, and the job goes on."""
    monkeypatch.setattr(slot_tasks, "BACK_OFF_S", 0.01)
    spark, ends = Tasks(), list[WeirError]()
    job = slot_job(spark, ends)
    job.start()
    until(lambda: len(spark.started) == 1)
    run_job, tries = spark.runJob, list[int]()

    def fails(slots: list[int], task: Any) -> None:
        if slots != [2]:
            return run_job(slots, task)
        tries.append(1)
        raise RuntimeError("Job aborted due to stage failure")

    spark.runJob = fails  # type: ignore[method-assign]
    job.add((2,))
    until(lambda: len(tries) > 10)
    assert not ends
    job.release((2,))
    until(lambda: not job._batches[1].thread.is_alive())  # type: ignore[union-attr]
    job.stop(0.1)
