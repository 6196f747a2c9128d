"""Builds the subtasks of one slot for one attempt, from the slot's plan and the restored state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from engine.core.closing import close_all
from engine.core.paths import JobPaths
from engine.core.ports import Clock, Offload, Store, Transport
from engine.protocol.alignment.aligned import AlignedBarriers
from engine.protocol.alignment.aligner import BarrierAligner
from engine.protocol.alignment.tracked import TrackedBarriers
from engine.protocol.config import CheckpointingMode
from engine.protocol.credits import ChannelLimits
from engine.protocol.ids import AttemptId, ChannelId, SubtaskId
from engine.protocol.ledger import Counters
from engine.protocol.messages import SlotMessage
from engine.runtime.chain import GatesOutput, OperatorChain
from engine.runtime.exchange.channels import OutputChannel, OutputGate
from engine.runtime.exchange.gate import InputGate
from engine.runtime.operators.base import EVENT_TIME, Gauges, OperatorContext, RestoredState
from engine.runtime.plan import InputPlan, SlotPlan, SubtaskPlan
from engine.runtime.running import RUNNING
from engine.runtime.source_head import SourceHead
from engine.runtime.subtask import BATCH_ROWS, Subtask, TakenSnapshot
from engine.snapshot.restore import Restored


@dataclass
class Deployment:
    """The subtasks, gates and channels of one slot in one attempt."""

    attempt: AttemptId
    job_id: str
    plan: SlotPlan
    subtasks: list[Subtask]
    gates: dict[ChannelId, InputGate]
    receivers: dict[ChannelId, SubtaskId]
    outputs: dict[ChannelId, OutputChannel]

    def close(self) -> None:
        close_all(subtask.close for subtask in self.subtasks)


@dataclass(frozen=True)
class Deployer:
    """Builds deployments; holds what is the same in every attempt."""

    paths: JobPaths
    clock: Clock
    transport: Transport
    offload: Offload
    store: Store
    upload: Callable[[AttemptId, SubtaskPlan, TakenSnapshot], None]
    report: Callable[[SlotMessage], None]
    batch_rows: int = BATCH_ROWS
    limits: ChannelLimits = field(default_factory=ChannelLimits)

    def deploy(self, attempt: AttemptId, job_id: str, plan: SlotPlan, restored: Restored | None) -> Deployment:
        deployment = Deployment(attempt, job_id, plan, [], {}, {}, {})
        try:
            for subtask in plan.subtasks:
                deployment.subtasks.append(self._subtask(deployment, subtask, restored))
        except Exception:
            with suppress(Exception):  # the error of opening is the one to report
                deployment.close()
            raise
        return deployment

    def _subtask(self, deployment: Deployment, plan: SubtaskPlan, restored: Restored | None) -> Subtask:
        attempt = deployment.attempt
        counters: Counters = {}
        gauges: Gauges = {}
        outputs = self._outputs(deployment, plan)
        operators = [operator.build() for operator in plan.operators]
        named = {operator.uid: operator.named for operator in plan.operators}
        contexts = {
            uid: self._context(uid, plan, deployment, counters, gauges, named.get(uid, True)) for uid in plan.uids
        }
        chain = OperatorChain(operators, [contexts[of.uid] for of in plan.operators], GatesOutput(outputs))
        head = plan.source.build() if plan.source else self._gate(deployment, plan.id, plan.inputs)
        opened: list[Callable[[], None]] = []
        try:
            if plan.source is not None and isinstance(head, SourceHead):
                # Splits are assigned anew, so each source subtask gets the positions of all splits.
                uid = plan.source.uid
                RUNNING.set(contexts[uid])
                positions = RestoredState(restored.inline.get(uid, []), []) if restored else None
                dictionaries = operators[0].dictionaries if operators else frozenset()
                head.open(contexts[uid], positions, dictionaries, chain.reads)
                opened.append(head.close)
            for of, operator in zip(plan.operators, operators, strict=True):
                RUNNING.set(contexts[of.uid])
                operator.open(contexts[of.uid], _restored(restored, plan, of.uid))
                opened.append(operator.close)
        except Exception:
            with suppress(Exception):
                close_all(opened)
            raise
        RUNNING.set(None)
        return Subtask(
            plan,
            attempt,
            head,
            chain,
            outputs,
            counters,
            gauges,
            self.clock,
            self.batch_rows,
            deployment.plan.in_flight_target_ms,
            lambda taken: self.upload(attempt, plan, taken),
            self.report,
        )

    def _gate(self, deployment: Deployment, subtask: SubtaskId, inputs: Sequence[InputPlan]) -> InputGate:
        channels = [channel for edge in inputs for channel in edge.channels]
        second = frozenset(edge.edge for edge in inputs if edge.second)
        timeless = frozenset(edge.edge for edge in inputs if EVENT_TIME not in edge.schema.names)
        if len(timeless) == len(inputs):
            timeless = frozenset()  # no input has event time; the +∞ watermark at the end must still pass
        aligner = self._aligner(deployment.plan.mode, len(channels))
        gate = InputGate(
            deployment.attempt,
            channels,
            aligner,
            self.transport,
            self.limits,
            second=second,
            timeless=timeless,
            in_flight_target_ms=deployment.plan.in_flight_target_ms,
        )
        deployment.gates.update(dict.fromkeys(channels, gate))
        deployment.receivers.update(dict.fromkeys(channels, subtask))
        return gate

    def _aligner(self, mode: CheckpointingMode, channels: int) -> BarrierAligner:
        return TrackedBarriers(channels) if mode is CheckpointingMode.AT_LEAST_ONCE else AlignedBarriers(channels)

    def _outputs(self, deployment: Deployment, plan: SubtaskPlan) -> list[OutputGate]:
        gates: list[OutputGate] = []
        for edge in plan.outputs:
            channels = [
                OutputChannel(deployment.attempt, channel, self.transport, self.limits.frame_bytes)
                for channel in edge.channels
            ]
            deployment.outputs.update({channel.id: channel for channel in channels})
            gates.append(OutputGate(edge.edge, channels, edge.partitioner(), edge.side))
        return gates

    def _context(
        self, uid: str, plan: SubtaskPlan, deployment: Deployment, counters: Counters, gauges: Gauges, named: bool
    ) -> OperatorContext:
        return OperatorContext(
            uid,
            plan.id,
            plan.parallelism,
            plan.max_parallelism,
            plan.key_groups,
            deployment.attempt,
            deployment.job_id,
            self.clock,
            self.offload,
            self.store,
            self.paths,
            counters,
            gauges,
            named,
        )


def _restored(restored: Restored | None, plan: SubtaskPlan, uid: str) -> RestoredState | None:
    if restored is None:
        return None
    of = (plan.id, uid)
    return RestoredState(restored.inline.get(uid, []), restored.tables.get(of, []), restored.operator.get(of, []))
