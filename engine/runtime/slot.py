"""`SlotRuntime`: runs the subtasks of one slot. Its process hands it messages and frames, and calls `step` in a loop.

Invariant: at most one attempt is deployed; messages, frames and grants of other attempts are dropped and counted.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from engine.core.errors import (
    ChannelBroken,
    CorruptSnapshot,
    StoreError,
    SyncFailed,
    UserFunctionError,
    WeirError,
    fault_of,
    raised_by,
)
from engine.core.paths import JobPaths
from engine.core.ports import Clock, Control, Frame, Offload, Store, Transport
from engine.core.syncing import EndsOnFailedSync, end_by_raising
from engine.protocol.credits import ChannelLimits
from engine.protocol.failures import Fault
from engine.protocol.ids import AttemptId, ChannelId, SubtaskId
from engine.protocol.manifest import OperatorTimings, Timings
from engine.protocol.messages import (
    Acknowledge,
    Connected,
    Decline,
    Deploy,
    Deployed,
    Drain,
    EndProcess,
    Flowing,
    Left,
    MasterHeartbeat,
    MasterMessage,
    NotifyAbort,
    NotifyComplete,
    Rollback,
    Shutdown,
    Start,
    SubtaskTotals,
    TaskFailed,
    Trigger,
    WatermarkLimits,
    WatermarkReport,
    Welcome,
)
from engine.protocol.signals import Barrier
from engine.protocol.state_proof import SubtaskDigests
from engine.runtime.aligned_sources import AlignedSources
from engine.runtime.deployment import Deployer, Deployment
from engine.runtime.plan import SlotPlan, SubtaskPlan
from engine.runtime.running import RUNNING
from engine.runtime.subtask import BATCH_ROWS, Activity, Subtask, TakenSnapshot
from engine.snapshot.epoch_log import EpochLog
from engine.snapshot.restore import Restored, Wanted, restore
from engine.snapshot.upload import Uploaded, upload

VISIT_ELEMENTS = 256
VISIT_MS = 10.0
"""One subtask takes at most this much from its inputs before the next one has its turn."""


@dataclass
class _Visit:
    """When the task thread left a subtask, and the activity to which the time until its return is added."""

    left_ms: float
    activity: Activity


class SlotRuntime:
    """`plan` returns the plan for a deployment, which says the slot's number and the parallelism of the job."""

    def __init__(
        self,
        plan: Callable[[Deploy], SlotPlan],
        paths: JobPaths,
        clock: Clock,
        transport: Transport,
        offload: Offload,
        store: Store,
        control: Control,
        batch_rows: int = BATCH_ROWS,
        limits: ChannelLimits | None = None,
        visit_elements: int = VISIT_ELEMENTS,
    ) -> None:
        self._visit_elements = visit_elements
        self.refused = 0
        self.shutdown: str | None = None
        self._plan = plan
        self._clock = clock
        self._transport = transport
        self._offload = EndsOnFailedSync(offload, end_by_raising)
        self._store = store
        self._paths = paths
        self._control = control
        self._epoch_log = EpochLog(store, paths)
        self._deployer = Deployer(
            paths,
            clock,
            transport,
            self._offload,
            store,
            self._upload,
            control.send,
            batch_rows,
            limits or ChannelLimits(),
        )
        self._attempt: AttemptId | None = None
        self._left = AttemptId(0, 0)  # this slot takes no part in this attempt or earlier ones
        self._deploy: Deploy | None = None
        self._deployment: Deployment | None = None
        self._deployed: Deployed | None = None
        self._aligned = AlignedSources([])
        self._started = False
        self._unanswered: set[ChannelId] = set()  # channels whose receivers have not answered in this attempt
        self._waits_for_record = False  # the JobMaster wants to know when the first record is taken
        self._visits: dict[SubtaskId, _Visit] = {}

    # --- input from the slot's process ---

    def on_control(self, message: MasterMessage) -> None:
        match message:
            case Welcome() | MasterHeartbeat() | EndProcess():
                return
            case Shutdown(reason):
                self._leave()
                self.shutdown = reason
            case Rollback(attempt):
                if attempt > self._left:
                    self._left = attempt
                    if self._attempt is not None and self._attempt <= attempt:
                        self._leave()
                self._control.send(Left(attempt))
            case Deploy():
                self._on_deploy(message)
            case Start(attempt):
                if self._current(attempt) and self._deployment is not None and not self._started:
                    self._guarded(None, self._start)
            case Trigger(attempt, checkpoint, triggered_at_ms, suspend, digests, into):
                if self._current(attempt) and self._started:
                    for subtask in self._subtasks:
                        subtask.trigger(Barrier(checkpoint, triggered_at_ms, digests, into), suspend)
            case Drain(attempt):
                if self._current(attempt) and self._started:
                    for subtask in self._subtasks:
                        subtask.drain()
            case WatermarkLimits(attempt, number, limits):
                if self._current(attempt):
                    self._aligned.on_limits(number, limits)
            case NotifyComplete(attempt, checkpoint):
                if self._current(attempt):
                    for subtask in self._subtasks:
                        subtask.on_complete(checkpoint)
            case NotifyAbort(attempt, checkpoint):
                if self._current(attempt):
                    for subtask in self._subtasks:
                        subtask.on_abort(checkpoint)

    def on_frame(self, attempt: AttemptId, channel: ChannelId, frame: Frame) -> None:
        if self._current(attempt) and self._deployment is not None:
            gate = self._deployment.gates[channel]
            self._guarded(self._deployment.receivers[channel], lambda: gate.receive(channel, frame))

    def on_grant(self, attempt: AttemptId, channel: ChannelId, granted_total: int) -> None:
        if self._current(attempt) and self._deployment is not None:
            self._deployment.outputs[channel].on_grant(granted_total)
            if channel in self._unanswered:
                self._unanswered.remove(channel)
                self._tell_if_connected(attempt)

    def on_channel_broken(self, attempt: AttemptId, channel: ChannelId, why: str) -> None:
        if self._current(attempt):
            self._fail(None, ChannelBroken(f"channel {channel} broke: {why}"))

    # --- the task loop ---

    def step(self) -> bool:
        """Gives every subtask one turn; returns whether any of them was busy."""
        if not self._started:
            return False
        busy = False
        for subtask in self._subtasks:
            if self._deployment is None:
                break  # an earlier subtask failed and ended the attempt
            busy = self._guarded(subtask.id, partial(self._visit, subtask)) is Activity.BUSY or busy
        if self._waits_for_record and any(subtask.meter.rows_in for subtask in self._subtasks):
            self._waits_for_record = False
            assert self._attempt is not None
            self._control.send(Flowing(self._attempt))
        if (watermarks := self._aligned.report(self._clock.now_ms())) and self._attempt is not None:
            self._control.send(WatermarkReport(self._attempt, self._aligned.reports, watermarks))
        return busy

    def wakeup_ms(self) -> float | None:
        """Returns when an idle slot has to call `step` again; None: only when something arrives."""
        if not self._started:
            return None
        times = [*(subtask.wakeup_ms for subtask in self._subtasks), self._aligned.wakeup_ms()]
        return min((time for time in times if time is not None), default=None)

    def _visit(self, subtask: Subtask) -> Activity:
        """Gives a source one step, and a subtask with inputs as many as the limits allow.

        A source makes one batch per turn; its receivers keep up by taking everything that has arrived.
        """
        began = before = self._clock.now_ms()
        visit = self._visits.setdefault(subtask.id, _Visit(began, Activity.IDLE))
        spent = subtask.meter.spent_ms
        spent[visit.activity] += began - visit.left_ms
        was_busy = False
        for _ in range(1 if subtask.source else self._visit_elements):
            activity = subtask.step()
            after = self._clock.now_ms()
            spent[activity] += after - before
            before = after
            if activity is not Activity.BUSY or after - began > VISIT_MS:
                break
            was_busy = True
        visit.left_ms = before
        visit.activity = Activity.IDLE if activity is Activity.BUSY else activity
        return Activity.BUSY if was_busy else activity

    def totals(self) -> dict[str, SubtaskTotals]:
        """Returns the running totals per subtask, for heartbeats."""
        return {
            str(subtask.id): SubtaskTotals(
                rows_in=subtask.meter.rows_in,
                rows_out=subtask.rows_out,
                watermark_ms=subtask.meter.watermark_ms,
                finished=subtask.finished,
                waits=subtask.meter.waits,
                gauges=subtask.gauges(),
                **{f"{activity.value}_ms": spent for activity, spent in subtask.meter.spent_ms.items()},
            )
            for subtask in self._subtasks
        }

    def records_done(self) -> int:
        """Returns a number that changes with each record of a Python function; the heartbeat thread looks at it."""
        return sum(subtask.records_done for subtask in self._subtasks)

    # --- attempts ---

    @property
    def _subtasks(self) -> list[Subtask]:
        deployment = self._deployment  # read once: the heartbeat thread asks too, while the task thread may leave
        return deployment.subtasks if deployment is not None else []

    def _current(self, attempt: AttemptId) -> bool:
        if attempt == self._attempt:
            return True
        self.refused += 1
        return False

    def _on_deploy(self, deploy: Deploy) -> None:
        if deploy.attempt <= self._left or (self._attempt is not None and deploy.attempt <= self._attempt):
            if deploy == self._deploy and self._deployed is not None:
                self._control.send(self._deployed)  # the first answer was lost
            self.refused += 1
            return
        self._leave()
        self._attempt = deploy.attempt
        self._deploy = deploy
        self._guarded(None, lambda: self._restore(deploy, self._plan(deploy)))

    def _restore(self, deploy: Deploy, plan: SlotPlan) -> None:
        if deploy.restore is None:
            self._build(deploy, plan, None, [])
            return
        ref, wanted = deploy.restore, _wanted(plan)

        def work() -> tuple[Restored, list[SubtaskDigests]]:
            restored = restore(self._epoch_log, ref, wanted)
            return restored, restored.digests() if deploy.digests else []

        def done(result: tuple[Restored, list[SubtaskDigests]] | None, error: BaseException | None) -> None:
            if self._attempt != deploy.attempt:
                return
            if result is None:
                assert error is not None
                self._fail(None, error)
            else:
                self._guarded(None, lambda: self._build(deploy, plan, *result))

        self._offload.submit("restore", work, done)

    def _build(self, deploy: Deploy, plan: SlotPlan, restored: Restored | None, digests: list[SubtaskDigests]) -> None:
        self._deployment = self._deployer.deploy(deploy.attempt, deploy.job_id, plan, restored)
        self._aligned = AlignedSources(self._deployment.subtasks)
        self._deployed = Deployed(deploy.attempt, digests)
        self._control.send(self._deployed)

    def _start(self) -> None:
        deploy, deployment = self._deploy, self._deployment
        assert deploy is not None and deployment is not None
        self._unanswered = set(deployment.outputs)
        for output in (output for subtask in deployment.plan.subtasks for output in subtask.outputs):
            for channel, slot in output.channels.items():
                self._transport.open(deploy.attempt, channel, deploy.addresses[slot], output.schema)
        for gate in dict.fromkeys(deployment.gates.values()):
            gate.start()
        self._started = True
        self._waits_for_record = deploy.digests
        self._tell_if_connected(deploy.attempt)

    def _tell_if_connected(self, attempt: AttemptId) -> None:
        if self._started and not self._unanswered:
            self._control.send(Connected(attempt))

    def _leave(self) -> Exception | None:
        """Leaves the attempt and returns the error that closing it raised. Does not wait for uploads under way."""
        deployment, attempt = self._deployment, self._attempt
        self._attempt = self._deploy = self._deployment = self._deployed = None
        self._started = self._waits_for_record = False
        self._aligned = AlignedSources([])
        self._unanswered.clear()
        self._visits.clear()
        if attempt is not None:
            self._left = max(self._left, attempt)
            self._transport.close(attempt)
        if deployment is None:
            return None
        try:
            deployment.close()
        except Exception as error:  # a user's close() raised; the attempt is over anyway
            return error
        return None

    def _guarded(self, subtask: SubtaskId | None, work: Callable[[], Any]) -> Any:
        """Runs `work`; an error ends the attempt in this slot and is reported to the JobMaster."""
        try:
            return work()
        except Exception as error:
            self._fail(subtask, error)
            return None

    def _fail(self, subtask: SubtaskId | None, error: BaseException) -> None:
        if isinstance(error, SyncFailed):
            raise error  # it is unknown now which writes are durable, so this process must end
        running = RUNNING.get()
        RUNNING.set(None)
        attempt = self._attempt
        if attempt is None:
            return
        closing = self._leave()
        detail = "".join(traceback.format_exception(error))
        if closing is not None:  # the first error is the one to report
            detail += f"\nwhile closing: {closing}"
        uid = error.uid if isinstance(error, UserFunctionError) else ""
        explained = isinstance(error, WeirError) and not isinstance(error, StoreError)
        text = str(error) if explained else f"{type(error).__name__}: {error}"
        message = TaskFailed(
            attempt,
            subtask or (running.subtask if running else None),
            uid or (running.uid if running else ""),
            text,
            detail,
            fault_of(error),
            corrupt=isinstance(error, CorruptSnapshot),
            raised=raised_by(error),
            channel_broken=isinstance(error, ChannelBroken),
        )
        self._control.send(message)

    # --- snapshots ---

    def _upload(self, attempt: AttemptId, subtask: SubtaskPlan, taken: TakenSnapshot) -> None:
        started = self._clock.now_ms()

        def work() -> Uploaded:
            return upload(
                self._store,
                self._paths,
                attempt,
                taken.checkpoint,
                subtask.id,
                subtask.key_groups,
                subtask.max_parallelism,
                taken.operators,
                self._clock.now_ms,
                taken.digests,
                taken.into,
            )

        def done(uploaded: Uploaded | None, error: BaseException | None) -> None:
            if attempt != self._attempt:
                return
            if error is not None and fault_of(error) is Fault.JOB:
                self._fail(subtask.id, error)  # the next checkpoint would meet it again
                return
            if uploaded is None:
                self._control.send(Decline(attempt, taken.checkpoint, subtask.id, True, str(error)))
                return
            timings = Timings(
                taken.start_delay_ms,
                taken.alignment_ms,
                taken.sync_ms,
                uploaded.done_ms - started,
                {uid: OperatorTimings(taken.operators_sync_ms[uid], ms) for uid, ms in uploaded.spent_ms.items()},
            )
            state, committables = uploaded.state, uploaded.committables
            self._control.send(
                Acknowledge(attempt, taken.checkpoint, state, committables, taken.ledger, timings, uploaded.digests)
            )

        self._offload.submit(str(subtask.id), work, done)


def _wanted(plan: SlotPlan) -> list[Wanted]:
    return [
        Wanted(subtask.id, operator.uid, subtask.key_groups, subtask.parallelism)
        for subtask in plan.subtasks
        for operator in subtask.operators
    ]
