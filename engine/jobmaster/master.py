"""`JobMaster` makes every decision about one job. It takes messages, results and ticks, and returns actions. It does no
I/O, and has neither threads nor a clock.

The life of a job: FENCING (claim a generation) → RESTORING (commit the newest epoch again, abort output that no epoch
knows) → WAITING for slots → DEPLOYING (the slots build their subtasks, begin, and connect their channels) → RUNNING. A
failure leads to RESTARTING and from there to RESTORING. The last phase is STOPPED. A standby begins in STANDBY, with
slots that register, and comes to FENCING by `take_over`.

Invariants: a standby does not touch the epoch log; messages of an attempt that is over change nothing; nothing is
restored while the outcome of a publication is open; a stopped JobMaster decides nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from engine.core.errors import (
    CorruptSnapshot,
    Fenced,
    ForeignSnapshot,
    IncompatibleJob,
    SyncFailed,
    TargetTaken,
)
from engine.core.sinks import Committer
from engine.graph.execution_graph import ExecutionGraph
from engine.jobmaster import events
from engine.jobmaster.actions import Action, Done, Note, Outcome, RunOffLoop, Send, Stop, was_drained
from engine.jobmaster.attempts import Attempt, Restarts
from engine.jobmaster.claiming import Claiming
from engine.jobmaster.failure_handler import FailureHandler, can_not_be_restored
from engine.jobmaster.figures import Rates, checkpoint_figures
from engine.jobmaster.gatekeeper import HeldEpoch
from engine.jobmaster.publisher import (
    CommitFailed,
    Committed,
    NotPublished,
    PublicationOutcome,
    Published,
    Publisher,
    Replaced,
    StoppedByGate,
)
from engine.jobmaster.rescaling import Answer, Refused, Rescaler, Scale, Verdict
from engine.jobmaster.savepoints import FilesCopied, OpenPlace, Refusal, Savepoints, Settled, StopFailed
from engine.jobmaster.savepoints import Outcome as SavepointOutcome
from engine.jobmaster.slot_keeper import SlotKeeper
from engine.jobmaster.slot_pool import SlotPool
from engine.jobmaster.slot_watch import SlotWatch
from engine.protocol import ledger
from engine.protocol.checkpoint import CompletedCheckpoint
from engine.protocol.coordinator import (
    AbortCheckpoint,
    CheckpointCoordinator,
    CoordinatorAction,
    DiscardLateAck,
    PublishCheckpoint,
    StoreSavepoint,
    TooManyFailures,
    TriggerSources,
)
from engine.protocol.epoch_records import Claimed
from engine.protocol.failures import AckOutcome, AttemptFailure, CheckpointFailure, Failed, Raised
from engine.protocol.gate import GateAnswer, GateVerdict, Ruling
from engine.protocol.ids import AttemptId
from engine.protocol.manifest import Manifest, ManifestRef
from engine.protocol.messages import (
    Acknowledge,
    Connected,
    Decline,
    Deploy,
    Deployed,
    Drain,
    Flowing,
    Heartbeat,
    Left,
    MasterMessage,
    NotBuilt,
    NotifyAbort,
    NotifyComplete,
    OverBudget,
    Register,
    Rollback,
    SlotMessage,
    Start,
    SubtaskFinished,
    SubtaskTotals,
    TaskFailed,
    Trigger,
    WatermarkLimits,
    WatermarkReport,
)
from engine.protocol.savepoint import SavepointRequest, StopRequest
from engine.protocol.scaling import Scaling
from engine.protocol.watermark_alignment import AlignmentGroups
from engine.snapshot.epoch_log import EpochLog
from engine.store.places import open_place


class Phase(Enum):
    STANDBY = "standing by"
    FENCING = "fencing"
    RESTORING = "restoring"
    WAITING = "waiting for slots"
    DEPLOYING = "deploying"
    RUNNING = "running"
    RESTARTING = "restarting"
    STOPPED = "stopped"


@dataclass(frozen=True)
class MasterConfig:
    """Time-outs and limits of a JobMaster. `SlotWatch` explains those of steps.

    A broken channel is reported as the cause of a failure if no other cause shows up within `cause_grace_ms`.
    The job fails after `same_error_limit` equal errors of its own code without an epoch in between. `retry_ms` is the
    wait before the JobMaster asks the store again; while the job is claimed, it waits longer after each error. Every
    `slots_timeout_ms` it notes that slots are missing. `allows` says of an epoch whether its state that no operator
    claims any more is dropped, or an error. `probation_ms`: so long the first checkpoint by interval waits for a
    record, so that a version that fails at its first record publishes nothing.
    """

    slots_timeout_ms: float = 60_000
    deploy_timeout_ms: float = 300_000
    heartbeat_ms: float = 500
    heartbeat_timeout_ms: float = 10_000
    slow_step_ms: float = 10_000
    step_timeout_ms: float = 300_000
    cause_grace_ms: float = 2_000
    same_error_limit: int = 3
    retry_ms: float = 50
    allows: Callable[[int], bool] = lambda epoch: False
    probation_ms: float = 0.0


@dataclass
class MasterStats:
    restarts: int = 0
    checkpoints_completed: int = 0
    checkpoints_failed: int = 0
    last_failure: events.AttemptFailed | None = None
    running_since_ms: int | None = None


class JobMaster:
    def __init__(
        self,
        execution: ExecutionGraph,
        epoch_log: EpochLog,
        committers: Mapping[str, Committer],
        owner: str,
        nonce: str,
        wall_ms: Callable[[], int],
        jitter: Callable[[], float],
        config: MasterConfig | None = None,
        scale: Scale | None = None,
        open_place: OpenPlace = open_place,
        *,
        standby: bool = False,
    ) -> None:
        self.config = config or MasterConfig()
        self.phase = Phase.STANDBY if standby else Phase.FENCING
        self.stats = MasterStats()
        self.slots = SlotPool(execution.slots)
        self._keeper = SlotKeeper(
            self.slots,
            self._watch_of(execution),
            nonce,
            execution.graph.fingerprint,
            self.config.heartbeat_ms,
            self.config.slots_timeout_ms,
            jitter,
            self._slot_lost,
        )
        self._rescaler = Rescaler(scale, execution, self.slots, self._keeper, self.config.slots_timeout_ms)
        self.attempt = AttemptId(0, 0)
        self.totals: dict[str, SubtaskTotals] = {}
        self.rates = Rates()
        self._current: Attempt | None = None
        self._publisher = Publisher(
            execution.graph,
            epoch_log,
            committers,
            wall_ms,
            self.config.retry_ms,
            self.config.allows,
            self._off_loop,
            self._publication_is,
        )
        self._savepoints = Savepoints(self._publisher, epoch_log, open_place, self._off_loop, self._savepoint_is)
        self._restarts = Restarts(execution.graph.restart, self.config.same_error_limit)
        self._failures = FailureHandler(
            self._restarts, self.config.cause_grace_ms, jitter, wall_ms, self._end_attempt, self._end_job
        )
        self._claiming = Claiming(self._publisher, owner, self.config.retry_ms, jitter, self._claimed, self._end_job)
        self._wall_ms = wall_ms
        self._jitter = jitter
        self._next_checkpoint = 1
        self._since_ms = 0.0
        self._restart_at_ms = 0.0
        self._read_to_end: Manifest | None = None
        self._cancelling = ""  # why, once the job is to be cancelled
        self._ending: tuple[Outcome, Manifest] | None = None  # the last epoch is committed; savepoints may be open

    def _watch_of(self, execution: ExecutionGraph) -> SlotWatch:
        """No I/O is worth waiting for once its checkpoint has expired, or its deployment has timed out."""
        config = self.config
        io_timeout_ms = max(config.deploy_timeout_ms, execution.graph.checkpoints.timeout_ms)
        return SlotWatch(config.heartbeat_timeout_ms, config.slow_step_ms, config.step_timeout_ms, io_timeout_ms)

    @property
    def execution(self) -> ExecutionGraph:
        """The job at its parallelism now."""
        return self._rescaler.now.execution

    @property
    def refusal(self) -> str:
        """Why the last slot was refused, while slots are missing."""
        return self._keeper.refusal

    @property
    def connecting(self) -> list[int]:
        """The slots that were started and have a channel whose receiver has not answered yet."""
        current = self._current
        if current is None or not current.started:
            return []
        numbers = (slot.index for slot in self.slots.assigned if slot.session in current.unconnected)
        return sorted(number for number in numbers if number is not None)

    @property
    def newest(self) -> ManifestRef | None:
        """The newest epoch."""
        return self._publisher.newest

    @property
    def ledger(self) -> Mapping[str, int]:
        """The job's totals at the newest epoch."""
        return self._publisher.ledger

    @property
    def coordinator(self) -> CheckpointCoordinator | None:
        """The coordinator of the current attempt; None between attempts."""
        return self._current.coordinator if self._current is not None else None

    # ------------------------------------------------------------------ events

    def on_tick(self, now_ms: float) -> list[Action]:
        actions: list[Action] = []
        if self.phase is Phase.STOPPED:
            return actions
        if self._cancelling and not self._publisher.busy:
            return self._stop(Outcome.CANCELLED, self._cancelling)
        if self._keeper.beat_at_ms is None or now_ms >= self._keeper.beat_at_ms:
            actions += self._keeper.beat(now_ms)
        actions += self._publisher.on_tick(now_ms)
        if self._current is not None:
            actions += self._announce_limits(self._current, now_ms)
        if self._ending is not None:
            return actions + self._end_if_settled()
        match self.phase:
            case Phase.FENCING:
                actions += self._claiming.on_tick(now_ms)
            case Phase.WAITING:
                deployed = self._deploy_if_ready(now_ms)
                given_up = self._rescaler.on_waiting(now_ms) if self.phase is Phase.WAITING else []
                actions += deployed + (given_up + self._redeploy(now_ms) if given_up else [])
            case Phase.DEPLOYING:
                assert self._current is not None
                if self._current.undeployed and now_ms - self._since_ms > self.config.deploy_timeout_ms:
                    actions += self._deploy_timed_out(self._current, now_ms)
                else:
                    actions += self._failures.cause_if_due(self._current, now_ms)
            case Phase.RUNNING:
                assert self._current is not None
                if due := self._failures.cause_if_due(self._current, now_ms):
                    return actions + due
                actions += self._carry_out(self._current.coordinator.on_tick(now_ms), now_ms)
                actions += self._go_on_stopping(now_ms)
                actions += self._rescaler.on_tick(now_ms) + self._checkpoint_for_rescale(now_ms)
            case Phase.RESTARTING:
                if now_ms >= self._restart_at_ms and not self._publisher.busy and not self._rescaler.saving:
                    actions += self._go_on(now_ms)
        return actions

    def wakeup_ms(self) -> float:
        """Returns the time by which `on_tick` has to be called again."""
        times: list[float | None] = [self._keeper.beat_at_ms or 0.0, self._publisher.wakeup_ms, self.limits_due_ms]
        if self._current is not None and self._current.broken is not None:
            times.append(self._current.broken.decided_at_ms)
        if self.phase is Phase.RUNNING and self._current is not None:
            times += [self._current.coordinator.wakeup_ms(), self._rescaler.wakeup_ms]
        if self.phase is Phase.RESTARTING and not self._rescaler.saving:
            times.append(self._restart_at_ms)
        return min(time for time in times if time is not None)

    @property
    def limits_due_ms(self) -> float | None:
        """When aligned sources have to be told how far they may read; None: not before they report more."""
        return self._current.alignment.wakeup_ms if self._current is not None else None

    def on_message(self, session: str, message: SlotMessage, now_ms: float) -> list[Action]:
        if self.phase is Phase.STOPPED:
            return []
        if isinstance(message, Register):
            return self._register(message, now_ms)
        if isinstance(message, NotBuilt):
            return self._not_built(session, message, now_ms)
        slot = self.slots.get(session)
        if slot is None:
            return []  # this slot was given up; its replacement has another session
        slot.heard_ms = now_ms
        if isinstance(message, Heartbeat):
            self.totals.update(message.totals)
            self.rates.add(message.totals, now_ms)
            if self._current is not None and any(total.rows_in for total in message.totals.values()):
                self._current.coordinator.on_records()
            return self._keeper.on_heartbeat(slot, message)
        if isinstance(message, Left):
            self.slots.left(slot, message.attempt)
            return self._deploy_if_ready(now_ms) if self.phase is Phase.WAITING else []
        if isinstance(message, OverBudget):
            return self._keeper.on_over_budget(slot, message, now_ms)
        if message.attempt != self.attempt or self.phase not in (Phase.DEPLOYING, Phase.RUNNING):
            return []  # its attempt is over; its late files lie under a path of their own, and a sweep deletes them
        current = self._current
        assert current is not None
        match message:
            case Deployed():
                if session in current.undeployed:
                    current.undeployed.discard(session)
                    current.deployed.append(message)
                return self._start_if_deployed(current, now_ms)
            case Connected():
                current.unconnected.discard(session)
                return self._running_if_connected(current)
            case Flowing() if self.phase is Phase.DEPLOYING:
                current.flowing_ms = current.flowing_ms or now_ms
                return []
            case Flowing():
                return self._rescaler.on_flowing(now_ms)
            case Acknowledge():
                self._rescaler.on_acknowledged(message)
                outcome, actions = current.coordinator.on_acknowledge(message, now_ms)
                odd = events.OddAcknowledgement(message.checkpoint, str(message.subtask), outcome.value)
                noted: list[Action] = [] if outcome is AckOutcome.SUCCESS else [Note(odd)]
                return noted + self._carry_out(actions, now_ms)
            case Decline():
                return self._carry_out(current.coordinator.on_decline(message), now_ms)
            case SubtaskFinished(_, subtask):
                current.finished.add(subtask)
                if len(current.finished) == len(self.execution.subtasks):
                    current.coordinator.want_final()
                return []
            case WatermarkReport(_, number, watermarks):
                current.alignment.on_report(number, watermarks)
                return self._announce_limits(current, now_ms)
            case TaskFailed(corrupt=True):
                return self._end_job(can_not_be_restored(self.newest, message.error))
            case TaskFailed():
                return self._failures.task_failed(current, message, now_ms)

    def on_slot_gone(self, session: str, why: str, now_ms: float) -> list[Action]:
        return [] if self.phase is Phase.STOPPED else self._keeper.on_gone(session, why, now_ms)

    def trigger_checkpoint(self, now_ms: float) -> tuple[int | None, list[Action]]:
        """Triggers a checkpoint by hand. Returns its number, or None if the job is not running."""
        if self._not_running() is not None:
            return None, []
        coordinator = self._running.coordinator
        actions = coordinator.trigger(now_ms)
        return coordinator.next_checkpoint - 1, self._carry_out(actions, now_ms)

    def take_over(self, now_ms: float) -> list[Action]:
        """Lets a standby claim the job. Its slots have registered already, so they can be deployed to at once."""
        assert self.phase is Phase.STANDBY
        self.phase = Phase.FENCING
        return self.on_tick(now_ms)

    def trigger_savepoint(self, request: SavepointRequest, now_ms: float) -> tuple[int | Refusal, list[Action]]:
        """Triggers a savepoint that the job goes on behind. Returns its checkpoint's number, or why it can't be."""
        refusal = self._not_running() or self._savepoints.refusal(request)
        if refusal is None and self._rescaler.takes_checkpoint:
            refusal = Refusal("the job is being rescaled, which would abort the savepoint: ask again in a few seconds")
        if refusal is not None:
            return refusal, []
        coordinator = self._running.coordinator
        noted, decided = self._savepoints.trigger(request, coordinator, now_ms)
        return coordinator.next_checkpoint - 1, noted + self._carry_out(decided, now_ms)

    def stop(self, request: StopRequest, now_ms: float) -> tuple[Refusal | None, list[Action]]:
        """Stops the job behind a last epoch, which is committed before it ends. Returns why, if it can't be."""
        refusal = self._not_running() or self._held_back() or self._savepoints.refusal(request.savepoint)
        if refusal is not None:
            return refusal, []
        given_up = self._rescaler.on_attempt_over("the job is being stopped")
        self._running.coordinator.hold()
        return None, given_up + self._savepoints.stop(request) + self._go_on_stopping(now_ms)

    def _not_running(self) -> Refusal | None:
        if self.phase is Phase.RUNNING and not self._cancelling and self._ending is None:
            return self._savepoints.refusal(None)
        failure = self.stats.last_failure
        if self.phase is Phase.RESTARTING and failure is not None:
            cause = next(one.text for one in AttemptFailure if one.code == failure.cause)
            return Refusal(
                f"the job is not running now: it is being restarted, because {cause}: {failure.detail}. Ask again when "
                "it runs; weir status shows it"
            )
        return Refusal("the job is not running now: look at it with weir status")

    @property
    def _running(self) -> Attempt:
        assert self._current is not None
        return self._current

    def rescale(self, wanted: Scaling, now_ms: float) -> tuple[Answer, list[Action]]:
        """Begins to run the job at another parallelism, or says why not."""
        if (refusal := self._not_running() or self._held_back()) is not None:
            return Refused(refusal.why, False), []
        answer, actions = self._rescaler.request(wanted, self.attempt.generation, now_ms)
        return answer, actions + self._checkpoint_for_rescale(now_ms)

    # ------------------------------------------------------------------ the commit gate

    @property
    def held(self) -> list[HeldEpoch]:
        """The sinks of the epoch that a gate holds until a person decides."""
        return self._publisher.held

    @property
    def verdicts(self) -> list[GateVerdict]:
        """The verdicts about the newest epoch that this JobMaster has published."""
        return self._publisher.verdicts

    def on_gate_answer(self, answer: GateAnswer, now_ms: float) -> list[Action]:
        """Takes what the process of the gates says. It may come late, twice, or never."""
        return [] if self.phase is Phase.STOPPED else self._publisher.on_gate_answer(answer, now_ms)

    def rule(self, checkpoint: int, ruling: Ruling, now_ms: float) -> tuple[Refusal | None, list[Action]]:
        """Releases, discards or asks again about the epoch that is held. Returns why, if it can't be done."""
        if self.phase is Phase.STOPPED:
            return Refusal("the job has ended: its next start makes the rows again, and asks the gate again"), []
        why, actions = self._publisher.rule(checkpoint, ruling, now_ms)
        return (Refusal(why) if why else None), actions

    def _held_back(self) -> Refusal | None:
        """Says why nothing can be asked for that needs an epoch: one that is held comes first."""
        if not self.held:
            return None
        one = self.held[0]
        return Refusal(
            f"epoch {one.epoch} is held by the gate of sink {one.sink!r}: {one.why}. Decide on it first: weir gate "
            f"{self.execution.graph.name} release, or discard"
        )

    def cancel(self, now_ms: float, why: str = "cancelled") -> list[Action]:
        self._cancelling = self._cancelling or why
        return self.on_tick(now_ms)

    # ------------------------------------------------------------------ slots

    def _register(self, message: Register, now_ms: float) -> list[Action]:
        actions = self._keeper.register(message, self.attempt.generation, now_ms)
        if (unfit := self._keeper.hopeless) is not None:
            return actions + self._end_job(unfit.why, unfit.raised)
        if self.phase is Phase.WAITING:
            return actions + self._deploy_if_ready(now_ms)
        return actions + self._checkpoint_for_rescale(now_ms)

    def _not_built(self, session: str, message: NotBuilt, now_ms: float) -> list[Action]:
        actions = self._keeper.not_built(session, message, now_ms)
        unfit = self._keeper.hopeless
        return actions if unfit is None else actions + self._end_job(unfit.why, unfit.raised)

    def _slot_lost(self, failed: Failed, now_ms: float) -> list[Action]:
        return self._end_attempt(failed, now_ms) if self.phase in (Phase.DEPLOYING, Phase.RUNNING) else []

    def _deploy_timed_out(self, current: Attempt, now_ms: float) -> list[Action]:
        """Ends the attempt, and the slots that did not answer: their I/O may hang, which a new process does not."""
        late = [slot for slot in self.slots.assigned if slot.session in current.undeployed]
        waits = ", ".join(str(slot.index) for slot in late)
        detail = f"slots {waits} did not answer in {self.config.deploy_timeout_ms / 1000:.0f} s"
        failure = AttemptFailure.DEPLOY_TIMEOUT
        killed = self._keeper.give_up(late, f"{failure.text}: {detail}", now_ms)
        return killed + self._end_attempt(Failed(failure, detail), now_ms)

    # ------------------------------------------------------------------ start

    def _claimed(self, claimed: Claimed, now_ms: float) -> list[Action]:
        self._next_checkpoint = claimed.record.next_checkpoint
        self.attempt = AttemptId(claimed.generation, 0)
        return [Note(events.Claimed()), *self._go_on(now_ms)]

    def _go_on(self, now_ms: float) -> list[Action]:
        """Restores the job, the first time after its durable parallelism was read."""
        read = self._rescaler.read
        if read is None:
            return self._restore(now_ms)
        self.phase = Phase.RESTORING
        return [self._off_loop("parallelism", read, self._parallelism_read)]

    def _parallelism_read(self, read: Scaling | None, error: BaseException | None, now_ms: float) -> list[Action]:
        return self._rescaler.on_read(read) + self._restore(now_ms)

    def _restore(self, now_ms: float) -> list[Action]:
        self.phase = Phase.RESTORING
        self._since_ms = now_ms
        self._publisher.rescaled(self.execution.graph)
        self.attempt = AttemptId(self.attempt.generation, self.attempt.attempt + 1)
        attempt = self.attempt

        def done(manifest: Manifest | None, error: BaseException | None, now_ms: float) -> list[Action]:
            if self.phase is not Phase.RESTORING or attempt != self.attempt:
                return []
            return self._restored(manifest, error, now_ms)

        return [self._publisher.recommit(attempt, done)]

    def _restored(self, manifest: Manifest | None, error: BaseException | None, now_ms: float) -> list[Action]:
        if isinstance(error, CorruptSnapshot):
            return self._end_job(can_not_be_restored(self.newest, str(error)))
        if isinstance(error, Fenced):
            return self._stop(Outcome.FENCED, str(error))
        if isinstance(error, IncompatibleJob | ForeignSnapshot | TargetTaken):
            return self._end_job(str(error))
        if error is not None:
            return self._failures.commit_failed(error, now_ms)
        self._restarts.on_committed()
        if manifest is not None and manifest.drained:
            return self._stop(Outcome.STOPPED, was_drained(manifest.epoch))
        dropped = self._publisher.dropped
        self._publisher.go_on_from(manifest)
        self._read_to_end = manifest if manifest is not None and manifest.final else None
        self.phase = Phase.WAITING
        self._since_ms = now_ms
        return [*(Note(events.StateDropped(one.uid, one.what)) for one in dropped), *self._deploy_if_ready(now_ms)]

    def _deploy_if_ready(self, now_ms: float) -> list[Action]:
        if not self.slots.enough:
            return self._keeper.note_missing(self._since_ms, now_ms)
        self.phase = Phase.DEPLOYING
        self._since_ms = now_ms
        self.totals = {}
        self.rates.clear()
        assigned = self.slots.assign()
        checkpoints, subtasks = self.execution.graph.checkpoints, self.execution.subtasks
        probation_ms = 0.0 if self.stats.checkpoints_completed else self.config.probation_ms
        self._current = Attempt(
            self.attempt,
            CheckpointCoordinator(checkpoints, self.attempt, subtasks, self._next_checkpoint, now_ms, probation_ms),
            alignment=AlignmentGroups(self.execution.alignment_groups),
            undeployed={slot.session for slot in assigned},
            unconnected={slot.session for slot in assigned},
        )
        addresses = [slot.address for slot in assigned]
        return [
            Note(events.Deploying(str(self.attempt), self.newest.epoch if self.newest else None)),
            *(Send(slot.session, self._deployment(index, addresses)) for index, slot in enumerate(assigned)),
        ]

    def _deployment(self, index: int, addresses: list[str]) -> Deploy:
        rescaler, job_id = self._rescaler, self._publisher.job_id
        setup = rescaler.now
        plan, digests = setup.execution.graph.fingerprint, rescaler.wants_digests
        return Deploy(self.attempt, index, addresses, self.newest, job_id, setup.scaling, plan, digests)

    def waited_ms(self, now_ms: float) -> float | None:
        """Returns how long the job has been waiting for slots; None if it is not."""
        return now_ms - self._since_ms if self.phase is Phase.WAITING else None

    def _start_if_deployed(self, current: Attempt, now_ms: float) -> list[Action]:
        if current.started or current.undeployed:
            return []
        match self._rescaler.on_deployed(current.deployed):
            case Verdict.START:
                return self._start(current)
            case Verdict.SAVE:
                return [self._off_loop("parallelism", self._rescaler.save, self._parallelism_saved)]
            case Verdict.GO_BACK:
                return self._rescaler.go_back() + self._redeploy(now_ms)

    def _start(self, current: Attempt) -> list[Action]:
        current.started = True
        return [*self._broadcast(Start(current.id)), *self._rescaler.on_running()]

    def _running_if_connected(self, current: Attempt) -> list[Action]:
        if self.phase is not Phase.DEPLOYING or current.unconnected:
            return []
        self.phase = Phase.RUNNING
        self.stats.running_since_ms = self._wall_ms()
        flowed = [] if current.flowing_ms is None else self._rescaler.on_flowing(current.flowing_ms)
        return [Note(events.Running(str(current.id))), *flowed]

    def _announce_limits(self, current: Attempt, now_ms: float) -> list[Action]:
        """Tells aligned sources how far they may read, if that has changed."""
        limits = current.alignment.announce(now_ms)
        return self._broadcast(WatermarkLimits(current.id, current.alignment.announcements, limits)) if limits else []

    # ------------------------------------------------------------------ another parallelism

    def _checkpoint_for_rescale(self, now_ms: float) -> list[Action]:
        """Takes the checkpoint that a rescale switches behind. It waits for savepoints: the switch would abort them."""
        if self._not_running() is not None or self._current is None or not self._rescaler.wants_checkpoint:
            return []
        if self._savepoints.under_way:
            return []
        coordinator = self._current.coordinator
        actions = self._rescaler.on_trigger(coordinator.next_checkpoint)
        return actions + self._carry_out(coordinator.trigger(now_ms), now_ms)

    def _parallelism_saved(self, _: None, error: BaseException | None, now_ms: float) -> list[Action]:
        """Starts the attempt that was proved, if its parallelism is durable now. It may have failed meanwhile."""
        current = self._current
        actions = self._rescaler.on_saved(error, now_ms, deployed=current is not None)
        if current is None:
            return actions
        return actions + (self._start(current) if error is None else self._redeploy(now_ms))

    def _redeploy(self, now_ms: float) -> list[Action]:
        """Leaves the attempt, which has not failed, for one at another parallelism."""
        left = self._leave_attempt("the job is rescaled", now_ms)
        self.phase, self._restart_at_ms = Phase.RESTARTING, now_ms
        return left

    # ------------------------------------------------------------------ failures

    def _end_attempt(self, failed: Failed, now_ms: float) -> list[Action]:
        """Rolls all slots back. The job is restored when no publication is open, unless it gives up."""
        if self._ending is not None:  # the last epoch is committed: nothing that is left to do needs slots
            return self._abort_checkpoints(failed.failure.text, now_ms) + self._end_if_settled()
        text = f"{failed.failure.text}: {failed.detail}"
        actions = self._savepoints.on_attempt_over(text) + self._leave_attempt(text, now_ms)
        actions += self._rescaler.on_attempt_over(f"the attempt failed meanwhile: {text}")
        event, delay_ms = self._failures.attempt_ended(self.attempt, failed, now_ms)
        self.stats.last_failure = event
        actions.append(Note(event))
        if delay_ms is None:
            return actions + self._end_job(text, event.raised)
        self.stats.restarts += 1
        self.phase = Phase.RESTARTING
        self._restart_at_ms = now_ms + delay_ms
        return actions

    def _leave_attempt(self, why: str, now_ms: float) -> list[Action]:
        actions: list[Action] = list(self._broadcast(Rollback(self.attempt)))
        actions += self._abort_checkpoints(why, now_ms)
        self._current = None
        self.slots.release(self.attempt, now_ms)
        self.stats.running_since_ms = None
        return actions

    def _abort_checkpoints(self, why: str, now_ms: float) -> list[Action]:
        """Aborts the checkpoints of an attempt that is over, except the one that is being published."""
        if self._current is None:
            return []
        coordinator = self._current.coordinator
        decided = coordinator.end_attempt(why)
        decided += [
            AbortCheckpoint(completed.checkpoint, CheckpointFailure.ATTEMPT_ENDED, why)
            for completed in self._publisher.drop_waiting()
        ]
        self._next_checkpoint = max(self._next_checkpoint, coordinator.next_checkpoint)
        return self._carry_out(decided, now_ms)

    def _end_job(self, reason: str, raised: Raised | None = None) -> list[Action]:
        return self._stop(Outcome.FAILED, reason, raised)

    def _stop(self, outcome: Outcome, reason: str, raised: Raised | None = None) -> list[Action]:
        self.phase = Phase.STOPPED
        return [
            *self._rescaler.on_attempt_over(f"the job ended: {reason}"),
            *self._keeper.shut_down(reason),
            Note(events.Stopped(outcome.value, reason, raised)),
            Stop(outcome, reason, raised),
        ]

    # ------------------------------------------------------------------ checkpoints

    def _carry_out(self, decided: list[CoordinatorAction], now_ms: float) -> list[Action]:
        actions: list[Action] = []
        for action in decided:
            match action:
                case TriggerSources(checkpoint, savepoint, suspend):
                    self._next_checkpoint = checkpoint + 1
                    if not savepoint:
                        actions.append(Note(events.Triggered(checkpoint, str(self.attempt))))
                    digests = self._rescaler.is_digested(checkpoint)
                    into = self._savepoints.into(checkpoint)
                    actions += self._broadcast(
                        Trigger(self.attempt, checkpoint, self._wall_ms(), suspend, digests, into)
                    )
                case StoreSavepoint(completed):
                    actions += self._savepoints.store(completed, now_ms)
                case PublishCheckpoint(completed):
                    actions += self._publisher.publish(completed, now_ms)
                case AbortCheckpoint(checkpoint, failure, detail, savepoint):
                    if not savepoint:
                        self.stats.checkpoints_failed += 1
                        actions.append(Note(events.Aborted(checkpoint, failure.code, detail)))
                    actions += self._broadcast(NotifyAbort(self.attempt, checkpoint))
                    actions += self._publisher.discard(self.attempt, checkpoint)
                    actions += self._savepoints.on_abort(checkpoint, f"{failure.text}: {detail}", now_ms)
                    actions += self._rescaler.on_aborted(checkpoint, f"{failure.text}: {detail}")
                case DiscardLateAck(ack):
                    actions += self._publisher.delete([file.path for file in ack.state.files])
                case TooManyFailures(detail):
                    actions += self._end_attempt(Failed(AttemptFailure.CHECKPOINTS_FAILED, detail), now_ms)
        return actions

    def _publication_is(self, outcome: PublicationOutcome, now_ms: float) -> list[Action]:
        """Reacts to the outcome of a publication."""
        match outcome:
            case Published(manifest):
                self._restarts.on_published()
                return [Note(events.Published(manifest.checkpoint, manifest.epoch))]
            case NotPublished(completed, failure, detail):
                coordinator = self._coordinator_of(completed)
                if coordinator is None:
                    aborted = self._savepoints.on_abort(completed.checkpoint, f"{failure.text}: {detail}", now_ms)
                    return aborted + self._publish_next(now_ms)
                failed = coordinator.on_not_published(completed.checkpoint, failure, detail)
                return self._carry_out(failed, now_ms) + self._publish_next(now_ms)
            case CommitFailed(completed, error):
                if (coordinator := self._coordinator_of(completed)) is not None:
                    coordinator.on_publication_over(completed.checkpoint, now_ms)
                assert self.newest is not None
                noted = self._savepoints.on_commit_failed(completed.checkpoint, self.newest.epoch, str(error))
                if self.phase in (Phase.DEPLOYING, Phase.RUNNING):
                    return noted + self._failures.commit_failed(error, now_ms)
                return noted  # the job is restarting already: the restore commits this epoch again
            case Committed(completed, manifest):
                return self._committed(completed, manifest, now_ms)
            case Replaced(detail):
                return self._stop(Outcome.FENCED, detail)
            case StoppedByGate(_, why):
                return self._end_job(why)

    def _committed(self, completed: CompletedCheckpoint, manifest: Manifest, now_ms: float) -> list[Action]:
        """Ends the checkpoint: tells the slots, and deletes old snapshots. A final checkpoint ends the job."""
        self._restarts.on_committed()
        self.stats.checkpoints_completed += 1
        took_ms = now_ms - completed.triggered_ms
        figures = checkpoint_figures(completed, manifest, self.execution.subtasks, took_ms, self._wall_ms())
        actions: list[Action] = [Note(figures)]
        coordinator = self._coordinator_of(completed)
        if coordinator is not None:
            coordinator.on_publication_over(completed.checkpoint, now_ms)
            actions += self._broadcast(NotifyComplete(self.attempt, completed.checkpoint))
        actions += self._publisher.sweep(self.attempt.generation, self._savepoints.held)
        actions += self._savepoints.sweep(now_ms)
        actions += self._publisher.tidy(self.attempt.generation, now_ms)
        if completed.stops:
            self._ending = (Outcome.STOPPED, manifest)
            return actions + self._savepoints.on_committed(completed, manifest) + self._end_if_settled()
        if manifest.final and coordinator is not None and not self._savepoints.stopping:
            coordinator.hold()
            self._ending = (Outcome.FINISHED, manifest)
            return actions + self._end_if_settled()
        if coordinator is not None and (
            switching := self._rescaler.on_committed(completed.checkpoint, self.newest, now_ms)
        ):
            return actions + switching + self._redeploy(now_ms)
        return actions + self._publish_next(now_ms)

    def _end_if_settled(self) -> list[Action]:
        """Ends a job whose last epoch is committed, once no savepoint is under way."""
        if self._ending is None or self._savepoints.under_way:
            return []
        outcome, manifest = self._ending
        stopped = outcome is Outcome.STOPPED
        how = self._savepoints.how_it_stopped(manifest.epoch) if stopped else self._finished(manifest)
        return self._stop(outcome, how)

    def _finished(self, manifest: Manifest) -> str:
        ended = self._read_to_end
        if ended is not None and ledger.all_read(ended.ledger) == ledger.all_read(manifest.ledger):
            return (
                f"nothing new: its sources were read to their ends in epoch {ended.epoch}; to read files that come "
                "later give the source watch=…, to read all again start it under another --name"
            )
        return f"all records are processed and committed in epoch {manifest.epoch}"

    def _go_on_stopping(self, now_ms: float) -> list[Action]:
        """Takes the next step of a stop: drains the sources, and triggers the checkpoint that the job stops behind."""
        current = self._current
        if current is None or not self._savepoints.stopping:
            return []
        actions: list[Action] = []
        if self._savepoints.drain_now(current.coordinator):
            actions += self._broadcast(Drain(self.attempt))
        ended = len(current.finished) == len(self.execution.subtasks)
        noted, decided = self._savepoints.trigger_stop(current.coordinator, now_ms, all_finished=ended)
        return actions + noted + self._carry_out(decided, now_ms)

    def _savepoint_is(self, outcome: SavepointOutcome, now_ms: float) -> list[Action]:
        """Reacts to the outcome of a savepoint."""
        match outcome:
            case FilesCopied(completed):
                return self._publisher.publish(completed, now_ms)
            case StopFailed(detail, completed):
                self._ending = None
                aborted: list[Action] = []
                if completed is not None and (coordinator := self._coordinator_of(completed)) is not None:
                    failure = CheckpointFailure.FINALIZE_FAILED
                    aborted = self._carry_out(
                        coordinator.on_not_published(completed.checkpoint, failure, detail), now_ms
                    )
                if self.phase not in (Phase.DEPLOYING, Phase.RUNNING):
                    return aborted
                return aborted + self._end_attempt(Failed(AttemptFailure.STOP_FAILED, detail), now_ms)
            case Settled():
                return self._end_if_settled()

    def _coordinator_of(self, completed: CompletedCheckpoint) -> CheckpointCoordinator | None:
        """Returns the coordinator that triggered this checkpoint, or None if its attempt is over."""
        current = self._current
        return current.coordinator if current is not None and current.id == completed.attempt else None

    def _publish_next(self, now_ms: float) -> list[Action]:
        return self._publisher.publish_next(now_ms) if self.phase is Phase.RUNNING else []

    def _off_loop(self, name: str, work: Callable[[], Any], done: Done) -> RunOffLoop:
        def checked(result: Any, error: BaseException | None, now_ms: float) -> list[Action]:
            if isinstance(error, SyncFailed):
                raise error  # it is unknown now what is durable, so this process must not go on
            return [] if self.phase is Phase.STOPPED else done(result, error, now_ms)

        return RunOffLoop(name, work, checked)

    def _broadcast(self, message: MasterMessage) -> list[Action]:
        return [Send(slot.session, message) for slot in self.slots.assigned]
