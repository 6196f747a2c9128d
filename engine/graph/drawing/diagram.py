"""Turns the three graphs of a job into diagrams (A10): boxes and arrows, which `render.py` draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from engine.graph.exchange import Exchange, ExchangeKind
from engine.graph.execution_graph import ExecutionGraph
from engine.graph.job_graph import JobEdge, JobGraph, JobVertex
from engine.graph.stream_graph import DEFAULT_GROUP, StreamGraph, StreamNode
from engine.protocol.ids import SubtaskId


class Level(Enum):
    STREAM = "stream"
    JOB = "job"
    EXECUTION = "execution"


@dataclass(frozen=True)
class Box:
    """A box with its name (`id`). Boxes of the same `lane` are drawn together."""

    id: str
    note: str
    lines: tuple[str, ...]
    lane: str


@dataclass(frozen=True)
class Arrow:
    """An arrow between two boxes. Several arrows may belong to one `edge`; SVG shows the label of an edge once."""

    edge: str
    source: str
    target: str
    label: str


@dataclass(frozen=True)
class Diagram:
    title: str
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]

    @property
    def lanes(self) -> list[str]:
        return list(dict.fromkeys(box.lane for box in self.boxes))


def diagrams(stream_graph: StreamGraph, graph: JobGraph, level: Level | None) -> list[Diagram]:
    """Returns the diagram of one level, or of all three if `level` is None."""
    drawn = {
        Level.STREAM: of_stream_graph(stream_graph),
        Level.JOB: of_job_graph(graph),
        Level.EXECUTION: of_execution_graph(ExecutionGraph(graph)),
    }
    return list(drawn.values()) if level is None else [drawn[level]]


def of_stream_graph(graph: StreamGraph) -> Diagram:
    """Shows the operators as they were written."""
    boxes = tuple(
        Box(node.uid, f"×{node.parallelism}", (_kind(node),), _group(node, graph.nodes)) for node in graph.nodes
    )
    arrows = tuple(
        Arrow(
            f"{node.uid}#{number}",
            graph.nodes[taken.node].uid,
            node.uid,
            _label(graph.exchange(taken, node), taken.tag.name if taken.tag else None),
        )
        for node in graph.nodes
        for number, taken in enumerate(node.inputs)
    )
    return Diagram(f"StreamGraph: {_count(len(boxes), 'operator')}", boxes, arrows)


def of_job_graph(graph: JobGraph) -> Diagram:
    """Shows the vertices, each with its chain of operators."""
    boxes = tuple(
        Box(vertex.id, f"×{vertex.parallelism}", vertex.chain, _group(vertex, graph.vertices))
        for vertex in graph.vertices
    )
    arrows = tuple(Arrow(edge.id, edge.source, edge.target, _edge_label(edge)) for edge in graph.edges)
    return Diagram(f"JobGraph: {_count(len(boxes), 'vertex', 'vertices')}", boxes, arrows)


def of_execution_graph(execution: ExecutionGraph) -> Diagram:
    """Shows the subtasks in their slots, and the channels between them."""
    keyed = {edge.target for edge in execution.graph.edges if edge.exchange.kind is ExchangeKind.HASH}

    def lines(subtask: SubtaskId) -> tuple[str, ...]:
        return (f"key groups {execution.key_groups(subtask)}",) if subtask.vertex in keyed else ()

    boxes = tuple(
        Box(str(subtask), "", lines(subtask), f"slot {slot}")
        for slot in range(execution.slots)
        for subtask in execution.in_slot(slot)
    )
    arrows = tuple(
        Arrow(edge.id, str(execution.sender(channel)), str(execution.receiver(channel)), _edge_label(edge))
        for edge in execution.graph.edges
        for sender in range(execution.graph.vertex(edge.source).parallelism)
        for channel in execution.outputs(edge, sender)
    )
    title = f"ExecutionGraph: {_count(len(boxes), 'subtask')} in {_count(execution.slots, 'slot')}"
    return Diagram(title, boxes, arrows)


def _edge_label(edge: JobEdge) -> str:
    return _label(edge.exchange, edge.side[1] if edge.side else None)


def _label(exchange: Exchange, tag: str | None) -> str:
    """Returns the label of an edge. `tag` is the name of the side output that the edge carries."""
    return f"{tag}: {exchange}" if tag else str(exchange)


def _kind(node: StreamNode) -> str:
    return node.operator.kind if node.operator else "source"


def _group(of: StreamNode | JobVertex, among: Sequence[StreamNode | JobVertex]) -> str:
    """Returns the label of a slot sharing group, or nothing if all are in the default group."""
    apart = any(other.slot_sharing_group != DEFAULT_GROUP for other in among)
    return f"slot sharing group {of.slot_sharing_group}" if apart else ""


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
