"""`JobMaster` makes every decision about one job. It takes messages, results and ticks, and returns actions. It does no
I/O, and has neither threads nor a clock.

The life of a job: FENCING (claim a generation) → RESTORING (commit the newest epoch again, abort output that no epoch
knows) → WAITING for slots → DEPLOYING → RUNNING. A failure leads to RESTARTING and from there to RESTORING. The last
phase is STOPPED.

Invariants: messages of an attempt that is over change nothing; nothing is restored while the outcome of a publication
is open; a stopped JobMaster decides nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from engine.core.errors import (
    CorruptSnapshot,
    IncompatibleJob,
    StoreError,
    SyncFailed,
    TargetTaken,
    UserFunctionError,
    fault_of,
    raised_by,
)
from engine.core.sinks import Committer
from engine.graph.execution_graph import ExecutionGraph
from engine.jobmaster import events
from engine.jobmaster.actions import Action, Done, Note, Outcome, RunOffLoop, Send, Stop
from engine.jobmaster.attempts import Attempt, BrokenChannel, Restarts
from engine.jobmaster.figures import Rates, checkpoint_figures
from engine.jobmaster.publisher import (
    CommitFailed,
    Committed,
    NotPublished,
    PublicationOutcome,
    Published,
    Publisher,
    Replaced,
)
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
    TooManyFailures,
    TriggerSources,
)
from engine.protocol.epoch_records import Claimed
from engine.protocol.failures import AckOutcome, AttemptFailure, CheckpointFailure, FailedAt, Fault, Raised
from engine.protocol.ids import AttemptId
from engine.protocol.manifest import Manifest, ManifestRef
from engine.protocol.messages import (
    Acknowledge,
    Decline,
    Deploy,
    Deployed,
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
)
from engine.protocol.remedy import Remedy, Where, remedy
from engine.protocol.restart import ExponentialDelay, RestartStrategy
from engine.snapshot.epoch_log import EpochLog

CLAIM_WAIT_MS = 10_000.0


class Phase(Enum):
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
    `slots_timeout_ms` it notes that slots are missing. `allow_non_restored_state`: state that no operator claims any
    more is dropped.
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
    allow_non_restored_state: bool = False


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
    ) -> None:
        self.execution = execution
        self.config = config or MasterConfig()
        self.phase = Phase.FENCING
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
            self.config.allow_non_restored_state,
            self._off_loop,
            self._publication_is,
        )
        self._restarts = Restarts(execution.graph.restart, self.config.same_error_limit)
        self._owner = owner
        self._wall_ms = wall_ms
        self._jitter = jitter
        self._next_checkpoint = 1
        self._since_ms = 0.0
        self._restart_at_ms = 0.0
        self._claim_at_ms = 0.0
        self._claim_retries: RestartStrategy = ExponentialDelay(
            self.config.retry_ms, max_ms=CLAIM_WAIT_MS, multiplier=2
        )
        self._read_to_end: Manifest | None = None
        self._cancelling = False
        self._claiming = False

    def _watch_of(self, execution: ExecutionGraph) -> SlotWatch:
        """No I/O is worth waiting for once its checkpoint has expired, or its deployment has timed out."""
        config = self.config
        io_timeout_ms = max(config.deploy_timeout_ms, execution.graph.checkpoints.timeout_ms)
        return SlotWatch(config.heartbeat_timeout_ms, config.slow_step_ms, config.step_timeout_ms, io_timeout_ms)

    @property
    def refusal(self) -> str:
        """Why the last slot was refused, while slots are missing."""
        return self._keeper.refusal

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
            return self._stop(Outcome.CANCELLED, "cancelled")
        if self._keeper.beat_at_ms is None or now_ms >= self._keeper.beat_at_ms:
            actions += self._keeper.beat(now_ms)
        actions += self._publisher.on_tick(now_ms)
        match self.phase:
            case Phase.FENCING:
                if not self._claiming and now_ms >= self._claim_at_ms:
                    actions += self._claim()
            case Phase.WAITING:
                actions += self._deploy_if_ready(now_ms)
            case Phase.DEPLOYING:
                assert self._current is not None
                if now_ms - self._since_ms > self.config.deploy_timeout_ms:
                    actions += self._deploy_timed_out(self._current, now_ms)
                else:
                    actions += self._cause_if_due(self._current, now_ms)
            case Phase.RUNNING:
                assert self._current is not None
                if due := self._cause_if_due(self._current, now_ms):
                    return actions + due
                actions += self._carry_out(self._current.coordinator.on_tick(now_ms), now_ms)
            case Phase.RESTARTING:
                if now_ms >= self._restart_at_ms and not self._publisher.busy:
                    actions += self._restore(now_ms)
        return actions

    def wakeup_ms(self) -> float:
        """Returns the time by which `on_tick` has to be called again."""
        times: list[float | None] = [self._keeper.beat_at_ms or 0.0, self._publisher.wakeup_ms]
        if self._current is not None and self._current.broken is not None:
            times.append(self._current.broken.decided_at_ms)
        if self.phase is Phase.RUNNING and self._current is not None:
            times.append(self._current.coordinator.wakeup_ms())
        if self.phase is Phase.RESTARTING:
            times.append(self._restart_at_ms)
        return min(time for time in times if time is not None)

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
                current.undeployed.discard(session)
                return self._start_if_deployed(current)
            case Acknowledge():
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
            case TaskFailed():
                return self._task_failed(message, now_ms)

    def on_slot_gone(self, session: str, why: str, now_ms: float) -> list[Action]:
        return [] if self.phase is Phase.STOPPED else self._keeper.on_gone(session, why, now_ms)

    def trigger_checkpoint(self, now_ms: float) -> tuple[int | None, list[Action]]:
        """Triggers a checkpoint by hand. Returns its number, or None if the job is not running."""
        if self.phase is not Phase.RUNNING or self._current is None or self._cancelling:
            return None, []
        coordinator = self._current.coordinator
        actions = coordinator.trigger(now_ms)
        return coordinator.next_checkpoint - 1, self._carry_out(actions, now_ms)

    def cancel(self, now_ms: float) -> list[Action]:
        self._cancelling = True
        return self.on_tick(now_ms)

    # ------------------------------------------------------------------ slots

    def _register(self, message: Register, now_ms: float) -> list[Action]:
        actions = self._keeper.register(message, self.attempt.generation, now_ms)
        if (unfit := self._keeper.hopeless) is not None:
            return actions + self._stop(Outcome.FAILED, unfit.why, unfit.raised)
        return actions + (self._deploy_if_ready(now_ms) if self.phase is Phase.WAITING else [])

    def _not_built(self, session: str, message: NotBuilt, now_ms: float) -> list[Action]:
        actions = self._keeper.not_built(session, message, now_ms)
        unfit = self._keeper.hopeless
        return actions if unfit is None else actions + self._stop(Outcome.FAILED, unfit.why, unfit.raised)

    def _slot_lost(
        self, failure: AttemptFailure, detail: str, now_ms: float, at: FailedAt, fault: Fault
    ) -> list[Action]:
        if self.phase not in (Phase.DEPLOYING, Phase.RUNNING):
            return []
        return self._end_attempt(failure, detail, now_ms, at, fault)

    def _deploy_timed_out(self, current: Attempt, now_ms: float) -> list[Action]:
        """Ends the attempt, and the slots that did not answer: their I/O may hang, which a new process does not."""
        late = [slot for slot in self.slots.assigned if slot.session in current.undeployed]
        waits = ", ".join(str(slot.index) for slot in late)
        detail = f"slots {waits} did not answer in {self.config.deploy_timeout_ms / 1000:.0f} s"
        failure = AttemptFailure.DEPLOY_TIMEOUT
        killed = self._keeper.give_up(late, f"{failure.text}: {detail}", now_ms)
        return killed + self._end_attempt(failure, detail, now_ms)

    # ------------------------------------------------------------------ start

    def _claim(self) -> list[Action]:
        self._claiming = True
        return [self._publisher.claim(self._owner, self._claimed)]

    def _claimed(self, claimed: Claimed | None, error: BaseException | None, now_ms: float) -> list[Action]:
        self._claiming = False
        if error is not None:
            if remedy(Where.JOBMASTER, fault_of(error)) is Remedy.END:
                return self._stop(Outcome.FAILED, str(error))
            if not isinstance(error, StoreError):
                raise error  # another JobMaster may do better
            delay_ms, self._claim_retries = self._claim_retries.on_failure(now_ms, self._jitter(), fault_of(error))
            self._claim_at_ms = now_ms + (delay_ms or 0.0)
            return [Note(events.ClaimFailed(str(error)))]
        if claimed is None:
            self._claim_at_ms = now_ms + self.config.retry_ms
            return [Note(events.ClaimLost())]
        self._next_checkpoint = claimed.record.next_checkpoint
        self.attempt = AttemptId(claimed.generation, 0)
        return [Note(events.Claimed()), *self._restore(now_ms)]

    def _restore(self, now_ms: float) -> list[Action]:
        self.phase = Phase.RESTORING
        self._since_ms = now_ms
        self.attempt = AttemptId(self.attempt.generation, self.attempt.attempt + 1)
        attempt = self.attempt

        def done(manifest: Manifest | None, error: BaseException | None, now_ms: float) -> list[Action]:
            if self.phase is not Phase.RESTORING or attempt != self.attempt:
                return []
            return self._restored(manifest, error, now_ms)

        return [self._publisher.recommit(attempt, done)]

    def _restored(self, manifest: Manifest | None, error: BaseException | None, now_ms: float) -> list[Action]:
        if isinstance(error, CorruptSnapshot):
            return self._stop(Outcome.FAILED, self._corrupt(str(error)))
        if isinstance(error, IncompatibleJob | TargetTaken):
            return self._stop(Outcome.FAILED, str(error))
        if error is not None:
            return self._commit_failed(error, now_ms)
        self._restarts.on_committed()
        dropped = self._publisher.dropped
        self._publisher.go_on_from(manifest)
        self._read_to_end = manifest if manifest is not None and manifest.final else None
        self.phase = Phase.WAITING
        self._since_ms = now_ms
        return [*(Note(events.StateDropped(one.uid, one.what)) for one in dropped), *self._deploy_if_ready(now_ms)]

    def _corrupt(self, what: str) -> str:
        epoch = self.newest.epoch if self.newest else 0
        return (
            f"the snapshot of epoch {epoch} can't be restored: {what}. Its output is committed, so Weir does not go "
            "back to an older epoch by itself. Bring the file back from a backup, or start the job with --rewind (its "
            "tables hide what later epochs published), --fork NAME (another job goes on from the older state, with "
            "tables of its own) or --allow-replay (published output stays, and some of it is published again)"
        )

    def _deploy_if_ready(self, now_ms: float) -> list[Action]:
        if not self.slots.enough:
            return self._keeper.note_missing(self._since_ms, now_ms)
        self.phase = Phase.DEPLOYING
        self._since_ms = now_ms
        self.totals = {}
        self.rates.clear()
        assigned = self.slots.assign()
        checkpoints, subtasks = self.execution.graph.checkpoints, self.execution.subtasks
        self._current = Attempt(
            self.attempt,
            CheckpointCoordinator(checkpoints, self.attempt, subtasks, self._next_checkpoint, now_ms),
            undeployed={slot.session for slot in assigned},
        )
        addresses = [slot.address for slot in assigned]
        return [
            Note(events.Deploying(str(self.attempt), self.newest.epoch if self.newest else None)),
            *(
                Send(slot.session, Deploy(self.attempt, index, addresses, self.newest, self._publisher.job_id))
                for index, slot in enumerate(assigned)
            ),
        ]

    def waited_ms(self, now_ms: float) -> float | None:
        """Returns how long the job has been waiting for slots; None if it is not."""
        return now_ms - self._since_ms if self.phase is Phase.WAITING else None

    def _start_if_deployed(self, current: Attempt) -> list[Action]:
        if self.phase is not Phase.DEPLOYING or current.undeployed:
            return []
        self.phase = Phase.RUNNING
        self.stats.running_since_ms = self._wall_ms()
        return [Note(events.Running(str(current.id))), *self._broadcast(Start(current.id))]

    # ------------------------------------------------------------------ failures

    def _task_failed(self, message: TaskFailed, now_ms: float) -> list[Action]:
        if message.corrupt:
            return self._stop(Outcome.FAILED, self._corrupt(message.error))
        if message.channel_broken:
            assert self._current is not None
            if self._current.broken is None:
                self._current.broken = BrokenChannel(message, now_ms + self.config.cause_grace_ms)
            return self._cause_if_due(self._current, now_ms)
        return self._failed_in_task(message, now_ms)

    def _cause_if_due(self, current: Attempt, now_ms: float) -> list[Action]:
        """Ends the attempt with a broken channel as the cause, unless a cause for the break may still show up."""
        broken = current.broken
        if broken is None or now_ms < broken.decided_at_ms:
            return []
        return self._failed_in_task(broken.report, now_ms)

    def _failed_in_task(self, message: TaskFailed, now_ms: float) -> list[Action]:
        failure = AttemptFailure.RUNTIME
        if message.fault is Fault.JOB:  # with a line it is a function, without one a file, a column or a state
            by_function = message.raised is None or message.raised.line
            failure = AttemptFailure.USER_CODE if by_function else AttemptFailure.UNFIT
        where = f"{message.subtask}: " if message.subtask else ""
        noted: list[Action] = [Note(events.TaskFailed(where, message.error, message.detail, message.raised))]
        if message.fault is Fault.JOB and message.raised is not None:
            times = self._restarts.on_job_error(message.uid, message.raised)
            if times is not None:
                reason = f"{message.error} (the same error {times} times without a checkpoint in between)"
                return noted + self._stop(Outcome.FAILED, reason, message.raised)
        at = FailedAt(message.uid, message.subtask, raised=message.raised)
        return noted + self._end_attempt(failure, where + message.error, now_ms, at, message.fault)

    def _commit_failed(self, error: BaseException, now_ms: float) -> list[Action]:
        """A committer raised, after the epoch was published or while it is committed again."""
        fault, raised = fault_of(error), raised_by(error)
        uid = error.uid if isinstance(error, UserFunctionError) else ""
        if fault is Fault.JOB and raised is not None:
            times = self._restarts.on_commit_error(uid, raised)
            if times is not None:
                reason = f"{error} (the same error {times} times without a committed epoch in between)"
                return self._stop(Outcome.FAILED, reason, raised)
        at = FailedAt(uid, raised=raised)
        return self._end_attempt(AttemptFailure.COMMIT_FAILED, str(error), now_ms, at, fault)

    def _end_attempt(
        self,
        failure: AttemptFailure,
        detail: str,
        now_ms: float,
        at: FailedAt | None = None,
        fault: Fault = Fault.OUTSIDE,
    ) -> list[Action]:
        """Rolls all slots back. The job is restored when no publication is open, unless it gives up."""
        actions: list[Action] = list(self._broadcast(Rollback(self.attempt)))
        actions += self._abort_checkpoints(failure.text, now_ms)
        self._current = None
        self.slots.release(self.attempt, now_ms)
        delay_ms = self._restarts.on_failure(now_ms, self._jitter(), fault)
        failed = self._failed(failure, detail, at or FailedAt())
        self.stats.last_failure = failed
        self.stats.running_since_ms = None
        actions.append(Note(failed))
        if delay_ms is None:
            return actions + self._stop(Outcome.FAILED, f"{failure.text}: {detail}", failed.raised)
        self.stats.restarts += 1
        self.phase = Phase.RESTARTING
        self._restart_at_ms = now_ms + delay_ms
        return actions

    def _failed(self, failure: AttemptFailure, detail: str, at: FailedAt) -> events.AttemptFailed:
        vertex, subtask = (at.subtask.vertex, at.subtask.index) if at.subtask else ("", None)
        return events.AttemptFailed(
            str(self.attempt), failure.code, detail, at.uid, vertex, subtask, at.slot, at.raised, at_ms=self._wall_ms()
        )

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

    def _stop(self, outcome: Outcome, reason: str, raised: Raised | None = None) -> list[Action]:
        self.phase = Phase.STOPPED
        return [
            *self._keeper.shut_down(reason),
            Note(events.Stopped(outcome.value, reason, raised)),
            Stop(outcome, reason, raised),
        ]

    # ------------------------------------------------------------------ checkpoints

    def _carry_out(self, decided: list[CoordinatorAction], now_ms: float) -> list[Action]:
        actions: list[Action] = []
        for action in decided:
            match action:
                case TriggerSources(checkpoint):
                    self._next_checkpoint = checkpoint + 1
                    actions.append(Note(events.Triggered(checkpoint, str(self.attempt))))
                    actions += self._broadcast(Trigger(self.attempt, checkpoint, self._wall_ms()))
                case PublishCheckpoint(completed):
                    actions += self._publisher.publish(completed, now_ms)
                case AbortCheckpoint(checkpoint, failure, detail):
                    self.stats.checkpoints_failed += 1
                    actions.append(Note(events.Aborted(checkpoint, failure.code, detail)))
                    actions += self._broadcast(NotifyAbort(self.attempt, checkpoint))
                    actions.append(self._publisher.discard(self.attempt, checkpoint))
                case DiscardLateAck(ack):
                    actions.append(self._publisher.delete([file.path for file in ack.state.files]))
                case TooManyFailures(detail):
                    actions += self._end_attempt(AttemptFailure.CHECKPOINTS_FAILED, detail, now_ms)
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
                    return self._publish_next(now_ms)
                failed = coordinator.on_not_published(completed.checkpoint, failure, detail)
                return self._carry_out(failed, now_ms) + self._publish_next(now_ms)
            case CommitFailed(completed, error):
                if (coordinator := self._coordinator_of(completed)) is not None:
                    coordinator.on_publication_over(completed.checkpoint, now_ms)
                if self.phase in (Phase.DEPLOYING, Phase.RUNNING):
                    return self._commit_failed(error, now_ms)
                return []  # the job is restarting already: the restore commits this epoch again
            case Committed(completed, manifest):
                return self._committed(completed, manifest, now_ms)
            case Replaced(detail):
                return self._stop(Outcome.FENCED, detail)

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
        actions.append(self._publisher.sweep(self.attempt.generation))
        if manifest.final and coordinator is not None:
            return actions + self._stop(Outcome.FINISHED, self._finished(manifest))
        return actions + self._publish_next(now_ms)

    def _finished(self, manifest: Manifest) -> str:
        ended = self._read_to_end
        if ended is not None and ledger.all_read(ended.ledger) == ledger.all_read(manifest.ledger):
            return (
                f"nothing new: its sources were read to their ends in epoch {ended.epoch}; to read files that come "
                "later give the source watch=…, to read all again start it under another --name"
            )
        return f"all records are processed and committed in epoch {manifest.epoch}"

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
