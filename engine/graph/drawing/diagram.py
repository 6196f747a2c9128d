"""The three graphs of a job as diagrams (A10): boxes and arrows, to be drawn as text, Mermaid or SVG."""

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
    """`id` is its name too. `lane`: boxes of one lane are drawn together."""

    id: str
    note: str
    lines: tuple[str, ...]
    lane: str


@dataclass(frozen=True)
class Arrow:
    """`edge`: whose channel it is; a picture names the exchange of an edge once."""

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
    """Of this level; None: of all three."""
    drawn = {
        Level.STREAM: of_stream_graph(stream_graph),
        Level.JOB: of_job_graph(graph),
        Level.EXECUTION: of_execution_graph(ExecutionGraph(graph)),
    }
    return list(drawn.values()) if level is None else [drawn[level]]


def of_stream_graph(graph: StreamGraph) -> Diagram:
    """Operators as they were written."""
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
    """Vertices, each a chain of operators."""
    boxes = tuple(
        Box(vertex.id, f"×{vertex.parallelism}", vertex.chain, _group(vertex, graph.vertices))
        for vertex in graph.vertices
    )
    arrows = tuple(Arrow(edge.id, edge.source, edge.target, _edge_label(edge)) for edge in graph.edges)
    return Diagram(f"JobGraph: {_count(len(boxes), 'vertex', 'vertices')}", boxes, arrows)


def of_execution_graph(execution: ExecutionGraph) -> Diagram:
    """Subtasks in their slots, and the channels between them."""
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
    """`tag`: of the side output that it carries."""
    return f"{tag}: {exchange}" if tag else str(exchange)


def _kind(node: StreamNode) -> str:
    return node.operator.kind if node.operator else "source"


def _group(of: StreamNode | JobVertex, among: Sequence[StreamNode | JobVertex]) -> str:
    """Its slot sharing group, where there is another than the default."""
    apart = any(other.slot_sharing_group != DEFAULT_GROUP for other in among)
    return f"slot sharing group {of.slot_sharing_group}" if apart else ""


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
