"""Lets Spark write a job's DataFrames and static tables into the store, and refreshes the static tables."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from engine.connectors.dataframe import DataFrameTable
from engine.core.errors import SparkFailed, SparkLost, UserFunctionError, WeirError
from engine.core.paths import JobPaths
from engine.core.ports import Clock, Offload, Store
from engine.core.sources import Source
from engine.graph.job_graph import JobGraph
from engine.jobmaster.events import Refreshed
from engine.protocol.failures import Fault
from engine.protocol.remedy import fault_of_query
from engine.spark.watch import stopped

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkInputs:
    """Runs in the JobMaster process. `note` adds an event to the job's history."""

    def __init__(
        self,
        graph: JobGraph,
        session: SparkSession,
        store: Store,
        paths: JobPaths,
        clock: Clock,
        offload: Offload,
        note: Callable[[Refreshed], None],
    ) -> None:
        self._graph = graph
        self._session = session
        self._store = store
        self._paths = paths
        self._clock = clock
        self._offload = offload
        self._note = note
        self._due_ms: dict[str, float] = {}

    def prepare(self) -> None:
        """Writes everything that slots read into the store, before they start: afterwards they hold the cores."""
        for vertex in self._graph.vertices:
            if vertex.source is not None:
                uid, source = vertex.source.uid, vertex.source.source
                self._prepare(uid, partial(source.prepare, uid, self._session, self._store, self._paths))
        for uid, static in self._graph.static_tables:
            self._prepare(uid, partial(static.prepare, uid, self._session, self._store, self._paths))
            self._wait(uid, static)

    def _prepare(self, uid: str, work: Callable[[], None]) -> None:
        """Runs the author's query. What failed outside of it is tried again by another JobMaster."""
        try:
            work()
        except (WeirError, OSError):
            raise
        except Exception as error:
            self._check_spark(error)
            if fault_of_spark(error) is Fault.OUTSIDE:
                raise SparkFailed(
                    f"operator {uid!r}: Spark could not write the job's inputs: {short(error)}"
                ) from error
            raise UserFunctionError(uid, 0, "prepare()", error) from error

    def _check_spark(self, error: Exception) -> None:
        try:
            lost = stopped(self._session)
        except Exception:
            lost = True
        if lost:
            raise SparkLost(f"Spark ended while it wrote the job's inputs: {error}") from error

    def poll(self) -> None:
        """Refreshes the static tables that are due."""
        now_ms = self._clock.now_ms()
        for uid, static in self._graph.static_tables:
            if now_ms >= self._due_ms.get(uid, now_ms + 1):
                del self._due_ms[uid]  # none is due while a refresh runs
                self._refresh(uid, static)

    def _refresh(self, uid: str, static: DataFrameTable) -> None:
        def work() -> int:
            return static.refresh(uid, self._session, self._store, self._paths)

        def done(version: int | None, error: BaseException | None) -> None:
            """Notes the refresh. A failure does not fail the job: it goes on with the version that it has."""
            self._note(Refreshed(uid, version, short(error) if error else None))
            self._wait(uid, static)

        self._offload.submit("static", work, done)

    def _wait(self, uid: str, static: DataFrameTable) -> None:
        if static.refresh_ms is not None:
            self._due_ms[uid] = self._clock.now_ms() + static.refresh_ms


def runs_queries(graph: JobGraph) -> bool:
    """Says whether Spark writes inputs of the job, beside running its slots."""
    sources = [vertex.source.source for vertex in graph.vertices if vertex.source is not None]
    return bool(graph.static_tables) or any(type(source).prepare is not Source.prepare for source in sources)


def fault_of_spark(error: Exception) -> Fault:
    """Says whose fault an error of a query is. An error that no Java class takes part in is the author's Python."""
    java = java_classes(error)
    if not java and type(error).__module__.startswith("py4j."):
        return Fault.OUTSIDE  # the connection to Spark's JVM broke
    return fault_of_query(java) if java else Fault.JOB


def java_classes(error: Exception) -> list[str]:
    """Returns the Java classes of an error of PySpark and of its causes, outermost first."""
    found: list[str] = []
    # py4j's own error has `java_exception`; those that PySpark makes of it have `_origin`.
    thrown = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    while thrown is not None and len(found) < _DEEPEST:
        found.append(str(thrown.getClass().getName()))
        thrown = thrown.getCause()
    return found


_DEEPEST = 50


def short(error: BaseException) -> str:
    """Returns the line of an error that says what happened. py4j's first line only names the call."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = next((line.removeprefix(": ") for line in lines if line.startswith(": ")), lines[0] if lines else "")
    return f"{type(error).__name__}: {said}"
