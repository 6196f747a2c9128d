"""`ExecutionGraph`: the parallel subtasks of a JobGraph, which slot runs which, and the channels between them.

Slots are shared by the subtasks of different vertices, never by two of one: each slot sharing group has slots of its
own, as many as its widest vertex has subtasks, and subtask i of each of its vertices is in the i-th of them (A9).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from engine.graph.exchange import ExchangeKind
from engine.graph.job_graph import JobEdge, JobGraph
from engine.protocol.ids import ChannelId, SubtaskId
from engine.runtime.exchange.partitioners import (
    BroadcastPartitioner,
    CustomPartitioner,
    FirstPartitioner,
    HashPartitioner,
    Partitioner,
    RebalancePartitioner,
    ShufflePartitioner,
)
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
    def _widths(self) -> dict[str, int]:
        """The slots of each group, in the order of the vertices."""
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

    def inputs(self, subtask: SubtaskId) -> list[ChannelId]:
        return [
            ChannelId(edge.id, sender, subtask.index)
            for edge in self.graph.inputs(subtask.vertex)
            for sender in range(self.graph.vertex(edge.source).parallelism)
            if subtask.index in self._receivers(edge, sender)
        ]

    def outputs(self, edge: JobEdge, sender: int) -> list[ChannelId]:
        return [ChannelId(edge.id, sender, receiver) for receiver in self._receivers(edge, sender)]

    def _receivers(self, edge: JobEdge, sender: int) -> range:
        senders, receivers = self.graph.vertex(edge.source).parallelism, self.graph.vertex(edge.target).parallelism
        return edge.exchange.receivers(sender, senders, receivers)

    def partitioner(self, edge: JobEdge, sender: int) -> Partitioner:
        """Over the channels of `outputs`, in their order."""
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
