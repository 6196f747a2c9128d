"""`ExecutionGraph`: the parallel subtasks of a JobGraph, the slots that run them, and the channels between them.

Invariant: subtasks of different vertices may share a slot, two subtasks of one vertex never do (A9). Each slot sharing
group has its own slots, as many as its widest vertex has subtasks; subtask i of each vertex runs in the group's i-th
slot.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial

from engine.graph.exchange import ExchangeKind
from engine.graph.job_graph import JobEdge, JobGraph, SourceSpec
from engine.protocol.ids import ChannelId, SubtaskId
from engine.protocol.watermark_alignment import WatermarkAlignment
from engine.runtime.exchange.partitioners import (
    BroadcastPartitioner,
    CustomPartitioner,
    FirstPartitioner,
    HashPartitioner,
    Partitioner,
    RebalancePartitioner,
    ShufflePartitioner,
)
from engine.runtime.plan import InputPlan, OperatorPlan, OutputPlan, SlotPlan, SourcePlan, SubtaskPlan
from engine.runtime.source_head import SourceHead
from engine.state.key_groups import KeyGroupRange, range_of


@dataclass(frozen=True)
class ExecutionGraph:
    graph: JobGraph

    @property
    def slots(self) -> int:
        return sum(self._widths.values())

    @cached_property
    def subtasks(self) -> tuple[SubtaskId, ...]:
        return tuple(SubtaskId(v.id, index) for v in self.graph.vertices for index in range(v.parallelism))

    def in_slot(self, slot: int) -> list[SubtaskId]:
        indexes = ((v, slot - self._first_slots[v.slot_sharing_group]) for v in self.graph.vertices)
        return [SubtaskId(v.id, index) for v, index in indexes if 0 <= index < v.parallelism]

    def slot_of(self, subtask: SubtaskId) -> int:
        return self._first_slots[self.graph.vertex(subtask.vertex).slot_sharing_group] + subtask.index

    @cached_property
    def alignment_groups(self) -> dict[WatermarkAlignment, list[str]]:
        """The source subtasks of each group whose watermarks are aligned."""
        groups: dict[WatermarkAlignment, list[str]] = {}
        for vertex in self.graph.vertices:
            strategy = vertex.source.strategy if vertex.source else None
            if strategy is not None and strategy.alignment is not None:
                subtasks = (str(SubtaskId(vertex.id, index)) for index in range(vertex.parallelism))
                groups.setdefault(strategy.alignment, []).extend(subtasks)
        return groups

    @cached_property
    def _widths(self) -> dict[str, int]:
        """The number of slots of each slot sharing group, in the order of the vertices."""
        widths: dict[str, int] = {}
        for vertex in self.graph.vertices:
            group = vertex.slot_sharing_group
            widths[group] = max(widths.get(group, 0), vertex.parallelism)
        return widths

    @cached_property
    def _first_slots(self) -> dict[str, int]:
        first, result = 0, {}
        for group, width in self._widths.items():
            result[group] = first
            first += width
        return result

    def key_groups(self, subtask: SubtaskId) -> KeyGroupRange:
        parallelism = self.graph.vertex(subtask.vertex).parallelism
        return range_of(subtask.index, parallelism, self.graph.max_parallelism)

    def plan(self, slot: int) -> SlotPlan:
        """Returns the plan of what the slot of this number runs."""
        checkpoints = self.graph.checkpoints
        subtasks = [self._subtask_plan(subtask) for subtask in self.in_slot(slot)]
        return SlotPlan(subtasks, checkpoints.mode, checkpoints.in_flight_target_ms)

    def _subtask_plan(self, subtask: SubtaskId) -> SubtaskPlan:
        vertex = self.graph.vertex(subtask.vertex)
        return SubtaskPlan(
            subtask,
            vertex.parallelism,
            self.graph.max_parallelism,
            self.key_groups(subtask),
            vertex.row_lane,
            _source_plan(vertex.source) if vertex.source else None,
            [OperatorPlan(operator.uid, operator.build, operator.named) for operator in vertex.operators],
            [
                InputPlan(edge.id, self._arriving(edge, subtask.index), edge.schema, edge.input > 0)
                for edge in self.graph.inputs(vertex.id)
            ],
            [self._output_plan(edge, subtask.index) for edge in self.graph.outputs(vertex.id)],
        )

    def _output_plan(self, edge: JobEdge, sender: int) -> OutputPlan:
        channels = {channel: self.slot_of(self.receiver(channel)) for channel in self.outputs(edge, sender)}
        return OutputPlan(edge.id, channels, edge.schema, partial(self.partitioner, edge, sender), edge.side)

    def inputs(self, subtask: SubtaskId) -> list[ChannelId]:
        return [c for edge in self.graph.inputs(subtask.vertex) for c in self._arriving(edge, subtask.index)]

    def _arriving(self, edge: JobEdge, receiver: int) -> list[ChannelId]:
        return [
            ChannelId(edge.id, sender, receiver)
            for sender in range(self.graph.vertex(edge.source).parallelism)
            if receiver in self._receivers(edge, sender)
        ]

    def outputs(self, edge: JobEdge, sender: int) -> list[ChannelId]:
        return [ChannelId(edge.id, sender, receiver) for receiver in self._receivers(edge, sender)]

    def _receivers(self, edge: JobEdge, sender: int) -> range:
        senders, receivers = self.graph.vertex(edge.source).parallelism, self.graph.vertex(edge.target).parallelism
        return edge.exchange.receivers(sender, senders, receivers)

    def partitioner(self, edge: JobEdge, sender: int) -> Partitioner:
        """Returns a partitioner whose targets are the channels of `outputs`, in their order."""
        exchange, targets = edge.exchange, len(self._receivers(edge, sender))
        match exchange.kind:
            case ExchangeKind.HASH:
                return HashPartitioner(exchange.columns, targets, self.graph.max_parallelism)
            case ExchangeKind.CUSTOM:
                assert exchange.function is not None
                uid = self.graph.vertex(edge.source).uids[-1]
                return CustomPartitioner(exchange.function, exchange.columns, targets, uid, sender)
            case ExchangeKind.SHUFFLE:
                return ShufflePartitioner(targets, sender)
            case ExchangeKind.REBALANCE | ExchangeKind.RESCALE:
                return RebalancePartitioner(targets, sender)
            case ExchangeKind.BROADCAST:
                return BroadcastPartitioner(targets)
            case ExchangeKind.FORWARD | ExchangeKind.GLOBAL:
                return FirstPartitioner()

    def sender(self, channel: ChannelId) -> SubtaskId:
        return SubtaskId(self._edges[channel.edge].source, channel.sender)

    def receiver(self, channel: ChannelId) -> SubtaskId:
        return SubtaskId(self._edges[channel.edge].target, channel.receiver)

    @cached_property
    def _edges(self) -> dict[str, JobEdge]:
        return {edge.id: edge for edge in self.graph.edges}


def _source_plan(spec: SourceSpec) -> SourcePlan:
    return SourcePlan(spec.uid, partial(SourceHead, spec.source, spec.schema, spec.strategy, spec.digest))
