"""`ExecutionGraph`: the parallel subtasks of a JobGraph, which slot runs which, and the channels between them.

Slots are shared by the subtasks of different vertices, never by two of one: subtask i of each vertex is in slot i.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.graph.job_graph import JobEdge, JobGraph
from engine.protocol.ids import ChannelId, SubtaskId
from engine.runtime.partitioners import ForwardPartitioner, HashPartitioner, Partitioner, RoundRobinPartitioner
from engine.state.keygroups import KeyGroupRange, range_of


@dataclass(frozen=True)
class ExecutionGraph:
    graph: JobGraph

    @property
    def slots(self) -> int:
        return max(vertex.parallelism for vertex in self.graph.vertices)

    @property
    def subtasks(self) -> list[SubtaskId]:
        return [SubtaskId(v.id, index) for v in self.graph.vertices for index in range(v.parallelism)]

    def in_slot(self, slot: int) -> list[SubtaskId]:
        return [subtask for subtask in self.subtasks if subtask.index == slot]

    def slot_of(self, subtask: SubtaskId) -> int:
        return subtask.index

    def key_groups(self, subtask: SubtaskId) -> KeyGroupRange:
        parallelism = self.graph.vertex(subtask.vertex).parallelism
        return range_of(subtask.index, parallelism, self.graph.max_parallelism)

    def inputs(self, subtask: SubtaskId) -> list[ChannelId]:
        return [
            ChannelId(edge.id, sender, subtask.index)
            for edge in self.graph.inputs(subtask.vertex)
            for sender in self._senders(edge, subtask.index)
        ]

    def outputs(self, edge: JobEdge, sender: int) -> list[ChannelId]:
        if self._forward(edge):
            return [ChannelId(edge.id, sender, sender)]
        return [ChannelId(edge.id, sender, r) for r in range(self.graph.vertex(edge.target).parallelism)]

    def partitioner(self, edge: JobEdge, sender: int) -> Partitioner:
        targets = self.graph.vertex(edge.target).parallelism
        if edge.keys:
            return HashPartitioner(edge.keys, targets, self.graph.max_parallelism)
        if self._forward(edge):
            return ForwardPartitioner()
        return RoundRobinPartitioner(targets, sender)

    def receiver(self, channel: ChannelId) -> SubtaskId:
        edge = next(edge for edge in self.graph.edges if edge.id == channel.edge)
        return SubtaskId(edge.target, channel.receiver)

    def _senders(self, edge: JobEdge, receiver: int) -> list[int]:
        if self._forward(edge):
            return [receiver]
        return list(range(self.graph.vertex(edge.source).parallelism))

    def _forward(self, edge: JobEdge) -> bool:
        same = self.graph.vertex(edge.source).parallelism == self.graph.vertex(edge.target).parallelism
        return not edge.keys and same
