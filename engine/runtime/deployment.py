"""Builds the subtasks of one slot for one attempt, from the graph and from what was restored."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from engine.core.closing import close_all
from engine.core.paths import JobPaths
from engine.core.ports import Clock, Offload, Store, Transport
from engine.graph.execution_graph import ExecutionGraph
from engine.graph.job_graph import JobVertex
from engine.protocol.alignment.aligner import AlignedBarriers, BarrierAligner, TrackedBarriers
from engine.protocol.config import CheckpointingMode
from engine.protocol.credits import ChannelLimits
from engine.protocol.ids import AttemptId, ChannelId, SubtaskId
from engine.protocol.ledger import Counters
from engine.protocol.messages import SlotMessage
from engine.runtime.chain import OperatorChain, PortsOutput
from engine.runtime.exchange.channels import OutputChannel, OutputPort
from engine.runtime.exchange.gate import InputGate
from engine.runtime.operators.base import EVENT_TIME, OperatorContext, RestoredState
from engine.runtime.running import RUNNING
from engine.runtime.source_head import SourceHead
from engine.runtime.subtask import BATCH_ROWS, Subtask, TakenSnapshot
from engine.snapshot.restore import Restored


@dataclass
class Deployment:
    """What one slot runs in one attempt."""

    attempt: AttemptId
    subtasks: list[Subtask]
    gates: dict[ChannelId, InputGate]
    outputs: dict[ChannelId, OutputChannel]

    def close(self) -> None:
        close_all(subtask.close for subtask in self.subtasks)


@dataclass(frozen=True)
class Deployer:
    """Everything a deployment needs that does not change between attempts."""

    execution: ExecutionGraph
    paths: JobPaths
    clock: Clock
    transport: Transport
    offload: Offload
    store: Store
    upload: Callable[[AttemptId, SubtaskId, TakenSnapshot], None]
    report: Callable[[SlotMessage], None]
    batch_rows: int = BATCH_ROWS
    limits: ChannelLimits = field(default_factory=ChannelLimits)

    def deploy(self, attempt: AttemptId, slot: int, restored: Restored | None) -> Deployment:
        deployment = Deployment(attempt, [], {}, {})
        try:
            for subtask in self.execution.in_slot(slot):
                deployment.subtasks.append(self._subtask(deployment, subtask, restored))
        except Exception:
            with suppress(Exception):  # what could not be opened is the error to report
                deployment.close()
            raise
        return deployment

    def _subtask(self, deployment: Deployment, subtask: SubtaskId, restored: Restored | None) -> Subtask:
        attempt, graph = deployment.attempt, self.execution.graph
        vertex = graph.vertex(subtask.vertex)
        counters: Counters = {}
        ports = self._ports(deployment, subtask)
        operators = [spec.build() for spec in vertex.operators]
        named = {spec.uid: spec.named for spec in vertex.operators}
        contexts = {
            uid: self._context(uid, subtask, vertex, attempt, counters, named.get(uid, True)) for uid in vertex.uids
        }
        chain = OperatorChain(operators, [contexts[spec.uid] for spec in vertex.operators], PortsOutput(ports))
        head = self._head(deployment, subtask, vertex)
        opened: list[Callable[[], None]] = []
        try:
            if vertex.source is not None and isinstance(head, SourceHead):
                # Splits are dealt out anew, so each source subtask sees the positions of all.
                uid = vertex.source.uid
                RUNNING.set(contexts[uid])
                head.open(contexts[uid], RestoredState(restored.inline.get(uid, []), []) if restored else None)
                opened.append(head.close)
            for spec, operator in zip(vertex.operators, operators, strict=True):
                RUNNING.set(contexts[spec.uid])
                operator.open(contexts[spec.uid], self._restored(restored, subtask, spec.uid))
                opened.append(operator.close)
        except Exception:
            with suppress(Exception):
                close_all(opened)
            raise
        RUNNING.set(None)
        return Subtask(
            subtask,
            attempt,
            head,
            vertex.source.uid if vertex.source else "",
            chain,
            [spec.uid for spec in vertex.operators],
            ports,
            counters,
            self.clock,
            vertex.row_lane,
            self.batch_rows,
            lambda taken: self.upload(attempt, subtask, taken),
            self.report,
        )

    def _head(self, deployment: Deployment, subtask: SubtaskId, vertex: JobVertex) -> SourceHead | InputGate:
        if vertex.source is not None:
            return SourceHead(vertex.source.source, vertex.source.schema, vertex.source.strategy)
        channels = self.execution.inputs(subtask)
        edges = self.execution.graph.inputs(vertex.id)
        second = frozenset(edge.id for edge in edges if edge.input)
        timeless = frozenset(edge.id for edge in edges if EVENT_TIME not in edge.schema.names)
        if len(timeless) == len(edges):
            timeless = frozenset()  # no clock at all, but an end of time
        aligner = self._aligner(len(channels))
        gate = InputGate(
            deployment.attempt, channels, aligner, self.transport, self.limits, second=second, timeless=timeless
        )
        deployment.gates.update(dict.fromkeys(channels, gate))
        return gate

    def _aligner(self, channels: int) -> BarrierAligner:
        if self.execution.graph.checkpoints.mode is CheckpointingMode.AT_LEAST_ONCE:
            return TrackedBarriers(channels)
        return AlignedBarriers(channels)

    def _ports(self, deployment: Deployment, subtask: SubtaskId) -> list[OutputPort]:
        ports = []
        for edge in self.execution.graph.outputs(subtask.vertex):
            channels = [
                OutputChannel(deployment.attempt, channel, self.transport, self.limits.frame_bytes)
                for channel in self.execution.outputs(edge, subtask.index)
            ]
            deployment.outputs.update({channel.id: channel for channel in channels})
            ports.append(OutputPort(edge.id, channels, self.execution.partitioner(edge, subtask.index), edge.side))
        return ports

    def _context(
        self, uid: str, subtask: SubtaskId, vertex: JobVertex, attempt: AttemptId, counters: Counters, named: bool
    ) -> OperatorContext:
        return OperatorContext(
            uid,
            subtask,
            vertex.parallelism,
            self.execution.graph.max_parallelism,
            self.execution.key_groups(subtask),
            attempt,
            self.clock,
            self.offload,
            self.store,
            self.paths,
            counters,
            named,
        )

    def _restored(self, restored: Restored | None, subtask: SubtaskId, uid: str) -> RestoredState | None:
        if restored is None:
            return None
        inline = restored.inline_of(uid, self.execution.key_groups(subtask))
        of = (subtask, uid)
        return RestoredState(inline, restored.tables.get(of, []), restored.operator.get(of, []))
