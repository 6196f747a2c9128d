"""Runs slots as the tasks of long-running Spark jobs: one for the slots that the job starts with, and one for the slots
of each rescale that adds some. Each task has a number, which its replacement keeps.

In a session that Weir started, Spark itself starts a lost task again, and the other tasks stay alive. In a session of
the user's own, which may allow no retries, the whole Spark job fails with its first lost task, and is submitted again.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
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
_OTHER_PYTHON = re.compile(
    r"ModuleNotFoundError: No module named '(engine|pyarrow|numpy|polars|msgspec|xxhash)\b|PYTHON_VERSION_MISMATCH|"
    r"Cannot run program .*: .*(No such file|Permission denied|Exec format)"
)
"""What Spark says if its workers run a Python in which no slot can run, or none at all."""
_PYTHON_SAID = re.compile(r"(?!java\.|org\.|scala\.)[\w.]+(Error|Exception)\b.*")


RELEASE_PATIENCE_S = 10.0
"""Slots that are not needed end by themselves; tasks that have not even started by then are cancelled."""


@dataclass
class _Batch:
    """The slots that were started together. `released` are those that the job no longer needs."""

    number: int
    slots: tuple[int, ...]
    released: set[int] = field(default_factory=set)
    thread: threading.Thread | None = None

    @property
    def needed(self) -> list[int]:
        return [slot for slot in self.slots if slot not in self.released]


class SlotJob:
    """Keeps the Spark jobs of the slots running. `on_end` gets the error if it gives up; `say` writes to the log."""

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
        self._first = range(execution.slots)
        self._in_slots = in_slots(execution)
        self._on_end = on_end
        self._say = say
        self._stopped = threading.Event()
        self._batches: list[_Batch] = []

    def start(self) -> None:
        self.add(self._first)

    def add(self, slots: Iterable[int]) -> None:
        """Has Spark start slots of these numbers, in a Spark job of their own."""
        batch = _Batch(len(self._batches), tuple(slots))
        batch.thread = threading.Thread(target=self._run, args=(batch,), name="slot job", daemon=True)
        self._batches.append(batch)
        batch.thread.start()

    def release(self, slots: Iterable[int]) -> None:
        """These slots are not needed any more. Those that run were told to end."""
        released = set(slots)
        for batch in self._batches:
            batch.released |= released & set(batch.slots)
            if released & set(batch.slots) and not batch.needed:
                timer = threading.Timer(RELEASE_PATIENCE_S, self._cancel, (batch,))
                timer.daemon = True
                timer.start()

    def stop(self, patience_s: float) -> None:
        """Waits until the Spark jobs have ended, and cancels those that do not. The slots were told to end before."""
        self._stopped.set()
        deadline_s = time.monotonic() + patience_s
        for batch in self._batches:
            _join(batch, deadline_s - time.monotonic())
        for batch in self._batches:
            self._cancel(batch)
        for batch in self._batches:
            _join(batch, patience_s)

    def _cancel(self, batch: _Batch) -> None:
        if batch.thread is not None and batch.thread.is_alive():
            self._session.sparkContext.cancelJobGroup(self._group(batch))

    def _group(self, batch: _Batch) -> str:
        return f"weir {self._launch.name}" + (f", further slots {batch.number}" if batch.number else "")

    def _run(self, batch: _Batch) -> None:
        failures = 0
        while slots := batch.needed:
            started_s = time.monotonic()
            why = self._run_once(batch, slots)
            if self._stopped.is_set() or not batch.needed:
                return
            failures = 1 if time.monotonic() - started_s > LONG_S else failures + 1
            given_up = failures > FAILURES_IN_A_ROW and not batch.number  # without further slots the job can run
            if given_up or self._spark_stopped():
                self._on_end(JobError(why) if _JOB_ERROR in why else SparkLost(why))
                return
            self._say(f"{why}; submitting it again")
            self._stopped.wait(BACK_OFF_S)

    def _run_once(self, batch: _Batch, slots: list[int]) -> str:
        """Runs the Spark job of these slots until it ends. Returns why it did."""
        context = self._session.sparkContext
        try:
            self._show_in_ui(batch)
            # `collect` would name the stage after this line of code, and hide the names of other queries meanwhile.
            context.runJob(context.parallelize(slots, len(slots)), _slot_task(self._launch))
            return "the Spark job of the slots ended"
        except Exception as error:
            return f"the Spark job of the slots failed: {_cause(error)}"

    def _show_in_ui(self, batch: _Batch) -> None:
        """Sets the Spark job's description, the name of its stage, and the text behind the stage's "+details"."""
        context, name = self._session.sparkContext, self._launch.name
        what = [f"further slots {batch.slots}, after a rescale"] if batch.number else self._in_slots
        context.setJobGroup(self._group(batch), f"weir {name}: {'; '.join(what)}", interruptOnCancel=True)
        context.setLocalProperty("callSite.short", f"slots of {name}")
        context.setLocalProperty("callSite.long", "\n".join([f"{name}, by the Index of its tasks:", *what]))

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


def _join(batch: _Batch, patience_s: float) -> None:
    if batch.thread is not None:
        batch.thread.join(max(0.0, patience_s))


def _executor_of(scheduler: Any, task_attempt: int) -> str | None:
    """Returns the executor on which a task attempt runs; None if it has ended."""
    found = scheduler.taskIdToExecutorId().get(task_attempt)
    return str(found.get()) if found.isDefined() else None


def _cause(error: Exception) -> str:
    """Returns the Python error inside of a task if there is one; otherwise Spark's first line."""
    lines = str(error).splitlines()
    if other := next((line.strip() for line in lines if _OTHER_PYTHON.search(line)), ""):
        return (
            f"{other}: the workers of this Spark run another Python than {sys.executable}, or one without Weir: set "
            f"PYSPARK_PYTHON={sys.executable}, or a Python on their machines that has Weir, before Spark is started"
        )
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
        (number,) = numbers
        run_slot(launch, context.taskAttemptId(), number)
        return ()

    return slot
