"""Says by which columns rows of a table are told apart and ordered in event time, and how far a snapshot has come.

Two runs of a job publish the same rows in different epochs, so what they have published is compared by event time: up
to the point that both have passed. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from engine.core.columns import stored_columns
from engine.core.event_time import EVENT_TIME
from engine.graph.description import describe
from engine.graph.job_graph import JobGraph, JobVertex, OperatorSpec
from engine.protocol.job_description import JobDescription
from engine.protocol.manifest import Manifest
from engine.runtime.operators.base import WATERMARKS

WINDOW_START, WINDOW_END = "window_start", "window_end"
_OF_SEVERAL = ("interval_join", "window_join", "co_group", "pattern")
"""Their rows hold the times of several records, or none: no column says when a row was published."""


@dataclass(frozen=True)
class RowIdentity:
    """`keys` tell two rows apart; without them a row is all of its columns. `time` is the column with the event time.

    `windows` is the uid of the windows whose results the rows are: they end at `time`. Otherwise `source` is the uid of
    the source that read `time`.
    """

    keys: tuple[str, ...]
    time: str
    windows: str = ""
    source: str = ""

    def passed(self, manifest: Manifest) -> int | None:
        """Returns the event time up to which all rows of the snapshot's job are published; None: there is none yet."""
        return min(self._clocks(manifest), default=None)

    def begun(self, manifest: Manifest) -> int | None:
        """Returns the event time behind which no row of the snapshot's job is published; None: none is."""
        if self.windows:
            return max(self._clocks(manifest), default=None)
        states = [state.inline[self.source] for state in manifest.subtasks if self.source in state.inline]
        of_splits = [split["seen_ms"] for state in states for split in state["splits"].values()]
        return max((ms for ms in (*of_splits, *_finished(states)) if ms is not None), default=None)

    def _clocks(self, manifest: Manifest) -> list[int]:
        if self.windows:
            saved = [state.inline[self.windows] for state in manifest.subtasks if self.windows in state.inline]
            return [watermark for of in saved for _, _, watermark in of[WATERMARKS]]
        return [state.inline[self.source]["watermark"] for state in manifest.subtasks if self.source in state.inline]


def _finished(states: list[dict[str, dict[str, int | None]]]) -> Iterator[int | None]:
    for state in states:
        yield from state["finished"].values()


def row_identity(graph: JobGraph, sink: str) -> RowIdentity | None:
    """Returns how the rows of a sink can be compared; None: they have no event time in their columns,
    or windows make them that may have several results."""
    vertex, operator = _find(graph, sink)
    assert operator.input_schema is not None
    columns = {column.name for column in stored_columns(operator.input_schema)}
    keys_of = {one.uid: [key.name for key in one.keys] for one in describe(graph, JobDescription(), 1).operators}
    for before in _upstream(graph, vertex, operator):
        if isinstance(before, OperatorSpec) and before.kind == "window":
            if before.corrects or before.row_lane:
                return None  # a window may have several results: after its end, or as the author's function decides
            keys = (*keys_of.get(before.uid, []), WINDOW_START)
            return RowIdentity(keys, WINDOW_END, windows=before.uid) if columns >= {*keys, WINDOW_END} else None
        if isinstance(before, OperatorSpec) and before.kind in _OF_SEVERAL:
            return None
        if isinstance(before, JobVertex) and before.source is not None and before.source.strategy is not None:
            column = before.source.strategy.column
            return RowIdentity((), column, source=before.source.uid) if column in columns - {EVENT_TIME} else None
    return None


def _find(graph: JobGraph, sink: str) -> tuple[JobVertex, OperatorSpec]:
    return next((v, operator) for v in graph.vertices for operator in v.operators if operator.uid == sink)


def _upstream(graph: JobGraph, vertex: JobVertex, operator: OperatorSpec) -> Iterator[OperatorSpec | JobVertex]:
    """Yields the operators before one, nearest first, and each vertex behind its operators."""
    before = vertex.operators[: vertex.operators.index(operator)]
    waiting, seen = [(vertex, before)], {vertex.id}
    while waiting:
        current, operators = waiting.pop(0)
        yield from reversed(operators)
        yield current
        for edge in graph.inputs(current.id):
            if edge.source not in seen:
                seen.add(edge.source)
                earlier = graph.vertex(edge.source)
                waiting.append((earlier, earlier.operators))
