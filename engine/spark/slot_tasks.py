"""Runs slots as the tasks of one long-running Spark job.

In a session that Weir started, Spark itself starts a lost task again, and the other tasks stay alive. In a session of
the user's own, which may allow no retries, the whole Spark job fails with its first lost task, and is submitted again.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from engine.core.errors import JobError, SparkLost, WeirError
from engine.graph.execution_graph import ExecutionGraph
from engine.spark.slot_process import SlotLaunch, run_slot
from engine.spark.watch import stopped

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FAILURES_IN_A_ROW = 3
LONG_S = 20.0
"""A Spark job that lived longer than this did start: its failure is the first in a row."""
BACK_OFF_S = 0.5
DRIVER = "driver"
"""The executor id in local mode. It is this process's own JVM, so it is never removed."""
EXECUTOR_PATIENCE_S = 4.0
"""An executor that can be reached ends a task in this time: it waits 2 s (`spark.python.task.killTimeout`) at most."""
_JOB_ERROR = f"{JobError.__module__}.{JobError.__qualname__}: "
"""How a Python worker names Weir's own error; an author's class may have a similar name."""
_PYTHON_SAID = re.compile(r"(?!java\.|org\.|scala\.)[\w.]+(Error|Exception)\b.*")


class SlotJob:
    """Keeps the Spark job of the slots running. `on_end` gets the error if it gives up; `say` writes to the log."""

    def __init__(
        self,
        session: SparkSession,
        launch: SlotLaunch,
        execution: ExecutionGraph,
        on_end: Callable[[WeirError], None],
        say: Callable[[str], None],
    ) -> None:
        self._session = session
        self._launch = launch
        self._slots = execution.slots
        self._in_slots = in_slots(execution)
        self._on_end = on_end
        self._say = say
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="slot job", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, patience_s: float) -> None:
        """Waits until the Spark job has ended, and cancels it if it does not. The slots were told to end before."""
        self._stopped.set()
        self._thread.join(patience_s)
        if self._thread.is_alive():
            self._session.sparkContext.cancelJobGroup(self._group)
            self._thread.join(patience_s)

    @property
    def _group(self) -> str:
        return f"weir {self._launch.name}"

    def _run(self) -> None:
        failures = 0
        while True:
            started_s = time.monotonic()
            why = self._run_once()
            if self._stopped.is_set():
                return
            failures = 1 if time.monotonic() - started_s > LONG_S else failures + 1
            if failures > FAILURES_IN_A_ROW or self._spark_stopped():
                self._on_end(JobError(why) if _JOB_ERROR in why else SparkLost(why))
                return
            self._say(f"{why}; submitting it again")
            self._stopped.wait(BACK_OFF_S)

    def _run_once(self) -> str:
        """Runs the Spark job of the slots until it ends. Returns why it did."""
        context = self._session.sparkContext
        try:
            self._show_in_ui()
            # `collect` would name the stage after this line of code, and hide the names of other queries meanwhile.
            context.runJob(context.parallelize(range(self._slots), self._slots), _slot_task(self._launch))
            return "the Spark job of the slots ended"
        except Exception as error:
            return f"the Spark job of the slots failed: {_cause(error)}"

    def _show_in_ui(self) -> None:
        """Sets the Spark job's description, the name of its stage, and the text behind the stage's "+details"."""
        context, name = self._session.sparkContext, self._launch.name
        context.setJobGroup(self._group, f"weir {name}: {'; '.join(self._in_slots)}", interruptOnCancel=True)
        context.setLocalProperty("callSite.short", f"slots of {name}")
        context.setLocalProperty("callSite.long", "\n".join([f"{name}, by the Index of its tasks:", *self._in_slots]))

    def _spark_stopped(self) -> bool:
        try:
            return stopped(self._session)
        except Exception:  # the JVM is gone
            return True

    def kill(self, task_attempt: int, why: str) -> None:
        """Ends a task attempt that hangs, which Spark does not notice by itself. Spark then starts another."""
        self._java_context.killTaskAttempt(task_attempt, True, why)

    def kill_silent(self, task_attempt: int, why: str, heard: Sequence[int]) -> None:
        """Ends a task attempt from which nothing is heard. Its executor is removed if it does not end the task soon.

        Spark itself would wait for its own time-outs. An executor that runs one of the tasks in `heard` stays.
        """
        self.kill(task_attempt, why)
        timer = threading.Timer(EXECUTOR_PATIENCE_S, self._remove_executor, (task_attempt, why, heard))
        timer.daemon = True
        timer.start()

    def _remove_executor(self, task_attempt: int, why: str, heard: Sequence[int]) -> None:
        try:
            scheduler = self._java_context.taskScheduler()
            executor = _executor_of(scheduler, task_attempt)
            if executor is None or executor == DRIVER or executor in [_executor_of(scheduler, task) for task in heard]:
                return
            self._say(f"executor {executor} did not end a silent slot in {EXECUTOR_PATIENCE_S:.0f} s: removing it")
            # The same two steps that Spark takes when an executor's heartbeats stop: it asks for another, and forgets
            # this one. The first alone would wait for an answer from the executor's host.
            self._java_context.killAndReplaceExecutor(executor)
            jvm: Any = self._session.sparkContext._jvm
            lost = jvm.org.apache.spark.scheduler.ExecutorProcessLost(why, jvm.scala.Option.empty(), True)
            scheduler.backend().removeExecutor(executor, lost)
        except Exception as error:  # Spark's own time-outs find it later
            self._say(f"the executor of a silent slot could not be removed: {error}")

    @property
    def _java_context(self) -> Any:
        return self._session.sparkContext._jsc.sc()


def _executor_of(scheduler: Any, task_attempt: int) -> str | None:
    """Returns the executor on which a task attempt runs; None if it has ended."""
    found = scheduler.taskIdToExecutorId().get(task_attempt)
    return str(found.get()) if found.isDefined() else None


def _cause(error: Exception) -> str:
    """Returns the Python error inside of a task if there is one; otherwise Spark's first line."""
    lines = str(error).splitlines()
    said = [line for line in lines if _PYTHON_SAID.match(line)]
    return said[-1] if said else (lines or [type(error).__name__])[0]


def in_slots(execution: ExecutionGraph) -> list[str]:
    """Returns what runs in which slots. Neighbouring slots that run the same vertices share a line."""
    vertex = execution.graph.vertex
    chains = [", ".join(vertex(s.vertex).label for s in execution.in_slot(slot)) for slot in range(execution.slots)]
    lines = []
    for what, found in groupby(range(execution.slots), key=chains.__getitem__):
        first, *others = found
        lines.append(f"slots {first}–{others[-1]}: {what}" if others else f"slot {first}: {what}")
    return lines


def _slot_task(launch: SlotLaunch) -> Callable[[Iterable[int]], Iterable[int]]:
    def slot(numbers: Iterable[int]) -> Iterable[int]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        run_slot(launch, context.taskAttemptId(), context.partitionId())
        return ()

    return slot
