"""`JobMaster`: every decision about one job. Messages, results and ticks in; actions out. No I/O, threads, clock here.

The life of a job: FENCING (claim a generation) → RESTORING (commit the newest epoch again, abort what no epoch knows) →
WAITING for slots → DEPLOYING → RUNNING; a failure leads to RESTARTING and from there to RESTORING; STOPPED at the end.

Invariants: only the owner of the log's last fence publishes; epochs are published one at a time and committed before
the next; nothing is restored while the outcome of a publication is open; a permit exists only for a published epoch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from engine.core.errors import CorruptSnapshot, Fenced, StoreError, SyncFailed
from engine.core.sinks import Committer
from engine.graph.compatibility import incompatibility
from engine.graph.execution_graph import ExecutionGraph
from engine.jobmaster.actions import Action, Done, KillSlot, Note, Outcome, RunOffLoop, Send, Stop
from engine.jobmaster.figures import Rates, checkpoint_figures
from engine.jobmaster.slot_pool import SlotInfo, SlotPool
from engine.protocol import ledger
from engine.protocol.checkpoint import CommitPermit, CompletedCheckpoint
from engine.protocol.coordinator import (
    AbortCheckpoint,
    CheckpointCoordinator,
    CoordinatorAction,
    DiscardLateAck,
    PublishCheckpoint,
    TooManyFailures,
    TriggerSources,
)
from engine.protocol.epoch_records import Claimed, LogRecord
from engine.protocol.failures import AckOutcome, AttemptFailure, CheckpointFailure, FailedAt, Fault
from engine.protocol.ids import AttemptId, SubtaskId
from engine.protocol.manifest import Committable, Manifest, ManifestRef
from engine.protocol.messages import (
    Acknowledge,
    Decline,
    Deploy,
    Deployed,
    Heartbeat,
    MasterHeartbeat,
    MasterMessage,
    NotifyAbort,
    NotifyComplete,
    OverBudget,
    Register,
    Rollback,
    Shutdown,
    SlotMessage,
    Start,
    SubtaskFinished,
    TaskFailed,
    Trigger,
    Welcome,
)
from engine.snapshot.epoch_log import EpochLog
from engine.snapshot.retention import disposable, keep


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
    """Time-outs in ms. `same_error_limit`: how often the same user error may come without a checkpoint in between;
    `claim_error_limit`: how many errors of the store a JobMaster bears while it claims the job; `retry_ms`: how long
    it waits before it asks the store again.
    """

    slots_timeout_ms: float = 60_000
    deploy_timeout_ms: float = 60_000
    heartbeat_ms: float = 500
    heartbeat_timeout_ms: float = 10_000
    same_error_limit: int = 3
    claim_error_limit: int = 5
    retry_ms: float = 50


@dataclass
class Publication:
    """The one checkpoint that is being published: manifest, epoch record, commits."""

    completed: CompletedCheckpoint
    manifest: Manifest
    ref: ManifestRef | None = None
    create_sent: bool = False
    retry_at_ms: float | None = None
    published: bool = False


@dataclass
class MasterStats:
    restarts: int = 0
    checkpoints_completed: int = 0
    checkpoints_failed: int = 0
    last_failure: dict[str, Any] = field(default_factory=dict)
    running_since_ms: int | None = None


class JobMaster:
    def __init__(
        self,
        execution: ExecutionGraph,
        log: EpochLog,
        committers: Mapping[str, Committer],
        owner: str,
        nonce: str,
        wall_ms: Callable[[], int],
        jitter: Callable[[], float],
        config: MasterConfig | None = None,
    ) -> None:
        self.execution = execution
        self.phase = Phase.FENCING
        self.stats = MasterStats()
        self.slots = SlotPool(execution.slots)
        self.attempt = AttemptId(0, 0)
        self.config = config or MasterConfig()
        self.coordinator: CheckpointCoordinator | None = None
        self.finished: set[SubtaskId] = set()
        self.metrics: dict[str, dict[str, Any]] = {}
        self.rates = Rates()
        self.newest: ManifestRef | None = None
        self.ledger: dict[str, int] = {}
        self._log = log
        self._committers = dict(committers)
        self._owner = owner
        self._nonce = nonce
        self._wall_ms = wall_ms
        self._jitter = jitter
        self._strategy = execution.graph.restart
        self._record: LogRecord | None = None
        self._manifest: Manifest | None = None
        self._carried: list[Committable] = []  # by the newest epoch: what later snapshots may still hold
        self._retained: list[ManifestRef] = []
        self._next_checkpoint = 1
        self._failures = 0
        self._undeployed: set[str] = set()  # sessions that this attempt's start waits for
        self._queue: deque[CompletedCheckpoint] = deque()
        self._publication: Publication | None = None
        self._since_ms = 0.0
        self._restart_at_ms = 0.0
        self._claim_at_ms = 0.0
        self._claim_errors = 0
        self._heartbeat_at_ms = 0.0
        self._same_error: tuple[str, int] = ("", 0)
        self._cancelling = False
        self._claiming = False
        self._swept = False

    # ------------------------------------------------------------------ events

    def on_tick(self, now_ms: float) -> list[Action]:
        actions: list[Action] = []
        if self.phase is Phase.STOPPED:
            return actions
        if self._cancelling and self._publication is None:
            return self._stop(Outcome.CANCELLED, "cancelled")
        if now_ms >= self._heartbeat_at_ms:
            self._heartbeat_at_ms = now_ms + self.config.heartbeat_ms
            actions += [Send(slot.session, MasterHeartbeat()) for slot in self.slots.all]
            # As often and no oftener: ticks come with every message, and this looks at every slot.
            for slot in self.slots.silent_since(now_ms - self.config.heartbeat_timeout_ms):
                actions.append(KillSlot(slot, AttemptFailure.SLOT_SILENT.text))
                actions += self._lose(slot, AttemptFailure.SLOT_SILENT, f"slot process {slot.pid}", now_ms)
        publication = self._publication
        if publication is not None and publication.retry_at_ms is not None and now_ms >= publication.retry_at_ms:
            publication.retry_at_ms = None
            actions.append(self._append_epoch())
        match self.phase:
            case Phase.FENCING:
                if not self._claiming and now_ms >= self._claim_at_ms:
                    actions += self._claim(now_ms)
            case Phase.WAITING:
                actions += self._deploy_if_ready(now_ms)
            case Phase.DEPLOYING:
                if now_ms - self._since_ms > self.config.deploy_timeout_ms:
                    actions += self._end_attempt(AttemptFailure.DEPLOY_TIMEOUT, self._not_deployed(), now_ms)
            case Phase.RUNNING:
                assert self.coordinator is not None
                actions += self._carry_out(self.coordinator.on_tick(now_ms), now_ms)
            case Phase.RESTARTING:
                if now_ms >= self._restart_at_ms and self._publication is None:
                    actions += self._restore(now_ms)
        return actions

    def wakeup_ms(self) -> float:
        """When `on_tick` may have something to do at the latest."""
        times = [self._heartbeat_at_ms]
        if self._publication is not None and self._publication.retry_at_ms is not None:
            times.append(self._publication.retry_at_ms)
        if self.phase is Phase.RUNNING and self.coordinator is not None:
            due = self.coordinator.wakeup_ms()
            if due is not None:
                times.append(due)
        if self.phase is Phase.RESTARTING:
            times.append(self._restart_at_ms)
        return min(times)

    def on_message(self, session: str, message: SlotMessage, now_ms: float) -> list[Action]:
        if self.phase is Phase.STOPPED:
            return []
        if isinstance(message, Register):
            return self._register(message, now_ms)
        slot = self.slots.get(session)
        if slot is None:
            return []  # it was given up; its replacement has another session
        slot.heard_ms = now_ms
        if isinstance(message, Heartbeat):
            self.metrics.update(message.metrics)
            self.rates.add(message.metrics, now_ms)
            return []
        if isinstance(message, OverBudget):
            used, budget = message.used_bytes / 1e6, message.budget_bytes / 1e6
            detail = f"slot process {slot.pid} held {used:.0f} MB and may hold {budget:.0f}: raise --slot-memory"
            return self._lose(slot, AttemptFailure.SLOT_MEMORY, detail, now_ms)
        if message.attempt != self.attempt or self.phase not in (Phase.DEPLOYING, Phase.RUNNING):
            return []  # of an attempt that is over; its late files lie under its own path and go with retention
        assert self.coordinator is not None
        match message:
            case Deployed():
                self._undeployed.discard(session)
                return self._start_if_deployed(now_ms)
            case Acknowledge():
                outcome, actions = self.coordinator.on_acknowledge(message, now_ms)
                note = {"checkpoint": message.checkpoint, "subtask": str(message.subtask), "outcome": outcome.value}
                noted: list[Action] = [] if outcome is AckOutcome.SUCCESS else [Note("odd_acknowledgement", note)]
                return noted + self._carry_out(actions, now_ms)
            case Decline():
                return self._carry_out(self.coordinator.on_decline(message), now_ms)
            case SubtaskFinished(_, subtask):
                self.finished.add(subtask)
                if len(self.finished) == len(self.execution.subtasks):
                    self.coordinator.want_final()
                return []
            case TaskFailed():
                return self._task_failed(message, now_ms)

    def on_slot_gone(self, session: str, why: str, now_ms: float) -> list[Action]:
        slot = self.slots.get(session)
        if slot is None or self.phase is Phase.STOPPED:
            return []
        return self._lose(slot, AttemptFailure.SLOT_LOST, f"slot process {slot.pid}: {why}", now_ms)

    def trigger_checkpoint(self, now_ms: float) -> tuple[int | None, list[Action]]:
        """By hand. None: not now, because the job is not running."""
        if self.phase is not Phase.RUNNING or self.coordinator is None or self._cancelling:
            return None, []
        actions = self.coordinator.trigger(now_ms)
        return self.coordinator.next_checkpoint - 1, self._carry_out(actions, now_ms)

    def cancel(self, now_ms: float) -> list[Action]:
        self._cancelling = True
        return self.on_tick(now_ms)

    # ------------------------------------------------------------------ slots

    def _register(self, message: Register, now_ms: float) -> list[Action]:
        if message.nonce != self._nonce:
            reason = (
                f"the slot in process {message.pid} does not see this job's store; every executor needs the same "
                "store, at the same address"
            )
            return [Send(message.session, Shutdown(reason)), *self._stop(Outcome.FAILED, reason)]
        if message.plan != self.execution.graph.fingerprint:
            reason = (
                f"the slot in process {message.pid} runs other code than the JobMaster (plan {message.plan}, not "
                f"{self.execution.graph.fingerprint}): ship the same version of the job to every executor"
            )
            return [Send(message.session, Shutdown(reason)), *self._stop(Outcome.FAILED, reason)]
        slot = SlotInfo(message.session, message.address, message.pid, message.task_attempt, now_ms, message.partition)
        self.slots.add(slot)
        actions: list[Action] = [
            Send(message.session, Welcome(self.attempt.generation)),
            Note("slot_registered", {"pid": message.pid, "registered": len(self.slots)}),
        ]
        return actions + (self._deploy_if_ready(now_ms) if self.phase is Phase.WAITING else [])

    def _lose(self, slot: SlotInfo, failure: AttemptFailure, detail: str, now_ms: float) -> list[Action]:
        self.slots.remove(slot.session)
        if slot.index is None or self.phase not in (Phase.DEPLOYING, Phase.RUNNING):
            return []
        return self._end_attempt(failure, detail, now_ms, FailedAt(slot=slot.index))

    def _not_deployed(self) -> str:
        waits = [str(slot.index) for slot in self.slots.assigned if slot.session in self._undeployed]
        return f"slots {', '.join(waits)} did not answer in {self.config.deploy_timeout_ms / 1000:.0f} s"

    # ------------------------------------------------------------------ start

    def _claim(self, now_ms: float) -> list[Action]:
        self._claiming = True

        def done(claimed: Claimed | None, error: BaseException | None, now_ms: float) -> list[Action]:
            self._claiming = False
            if error is not None:
                self._claim_errors += 1
                if not isinstance(error, StoreError) or self._claim_errors >= self.config.claim_error_limit:
                    return self._stop(Outcome.FAILED, f"the store can't be used: {error}")
                self._claim_at_ms = now_ms + self.config.retry_ms
                return [Note("claim_failed", {"error": str(error)})]
            if claimed is None:
                self._claim_at_ms = now_ms + self.config.retry_ms
                return [Note("claim_lost", {})]
            self._record = claimed.record
            self.newest = claimed.record.newest
            self._retained = [self.newest] if self.newest else []
            self._next_checkpoint = claimed.record.next_checkpoint
            self.attempt = AttemptId(claimed.generation, 0)
            return [Note("claimed", {"generation": claimed.generation}), *self._restore(now_ms)]

        return [self._off_loop("claim", lambda: self._log.claim(self._owner), done)]

    def _restore(self, now_ms: float) -> list[Action]:
        """Commit the newest epoch again (it may have been published and not committed), abort what no epoch knows."""
        assert self._publication is None, "nothing is restored while a publication is open"
        self.phase = Phase.RESTORING
        self._since_ms = now_ms
        self.attempt = AttemptId(self.attempt.generation, self.attempt.attempt + 1)
        newest, attempt = self.newest, self.attempt

        def work() -> Manifest | None:
            manifest = self._log.read_manifest(newest) if newest else None
            permit = CommitPermit.issue(newest, attempt.generation) if newest else None
            if permit is not None and manifest is not None:
                self._commit_all(permit, manifest)
            for committer in self._committers.values():
                committer.abort_unknown(permit, attempt)
            return manifest

        def done(manifest: Manifest | None, error: BaseException | None, now_ms: float) -> list[Action]:
            if self.phase is not Phase.RESTORING or attempt != self.attempt:
                return []
            if isinstance(error, CorruptSnapshot):
                return self._stop(Outcome.FAILED, self._corrupt(str(error)))
            if error is not None:
                return self._end_attempt(AttemptFailure.COMMIT_FAILED, str(error), now_ms)
            why_not = incompatibility(self.execution.graph, manifest) if manifest is not None else None
            if why_not is not None:
                return self._stop(Outcome.FAILED, why_not)
            self._manifest = manifest
            self.ledger = dict(manifest.ledger) if manifest else {}
            self.phase = Phase.WAITING
            self._since_ms = now_ms
            return self._deploy_if_ready(now_ms)

        return [self._off_loop("restore", work, done)]

    def _corrupt(self, what: str) -> str:
        epoch = self.newest.epoch if self.newest else 0
        return (
            f"the snapshot of epoch {epoch} can't be restored: {what}. Its output is committed, so Weir does not go "
            "back to an older epoch by itself. Bring the file back from a backup, or start the job with --rewind (its "
            "tables hide what later epochs published), --fork NAME (another job goes on from the older state, with "
            "tables of its own) or --allow-replay (what was published stays, and some of it is published again)"
        )

    def _deploy_if_ready(self, now_ms: float) -> list[Action]:
        if not self.slots.enough:
            waited = now_ms - self._since_ms
            if waited > self.config.slots_timeout_ms:
                have, need = len(self.slots), self.slots.needed
                return self._stop(
                    Outcome.FAILED,
                    f"too few slots: registered {have} of {need} after {waited / 1000:.0f} s. Give Spark at least "
                    f"{need} task slots that nothing else uses, or start the job with a lower --parallelism",
                )
            return []
        self.phase = Phase.DEPLOYING
        self._since_ms = now_ms
        self.finished = set()
        self.metrics = {}
        self.rates.clear()
        self.coordinator = CheckpointCoordinator(
            self.execution.graph.checkpoints,
            self.attempt,
            self.execution.subtasks,
            self._next_checkpoint,
            now_ms,
            self._failures,
        )
        assigned = self.slots.assign()
        self._undeployed = {slot.session for slot in assigned}
        addresses = [slot.address for slot in assigned]
        return [
            Note("deploying", {"attempt": str(self.attempt), "epoch": self.newest.epoch if self.newest else None}),
            *(
                Send(slot.session, Deploy(self.attempt, index, addresses, self.newest))
                for index, slot in enumerate(assigned)
            ),
        ]

    def _start_if_deployed(self, now_ms: float) -> list[Action]:
        if self.phase is not Phase.DEPLOYING or self._undeployed:
            return []
        self.phase = Phase.RUNNING
        self.stats.running_since_ms = self._wall_ms()
        return [Note("running", {"attempt": str(self.attempt)}), *self._broadcast(Start(self.attempt))]

    # ------------------------------------------------------------------ failures

    def _task_failed(self, message: TaskFailed, now_ms: float) -> list[Action]:
        if message.corrupt:
            return self._stop(Outcome.FAILED, self._corrupt(message.error))
        failure = AttemptFailure.USER_CODE if message.fault is Fault.JOB else AttemptFailure.RUNTIME
        where = f"{message.subtask}: " if message.subtask else ""
        noted: list[Action] = [Note("task_failed", {"where": where, "error": message.error, "detail": message.detail})]
        if message.fault is Fault.JOB:
            last, times = self._same_error
            self._same_error = (message.error, times + 1 if message.error == last else 1)
            if self._same_error[1] >= self.config.same_error_limit:
                reason = f"{message.error} (the same error {self._same_error[1]} times without a checkpoint in between)"
                return noted + self._stop(Outcome.FAILED, reason)
        at = FailedAt(message.uid, message.subtask)
        return noted + self._end_attempt(failure, where + message.error, now_ms, at)

    def _end_attempt(
        self, failure: AttemptFailure, detail: str, now_ms: float, at: FailedAt | None = None
    ) -> list[Action]:
        """Roll everyone back; wait for what is being published; then restore, unless the restart strategy gives up."""
        actions: list[Action] = list(self._broadcast(Rollback(self.attempt)))
        if self.coordinator is not None:
            actions += self._carry_out(self.coordinator.end_attempt(failure.text), now_ms)
            self._next_checkpoint = max(self._next_checkpoint, self.coordinator.next_checkpoint)
            self._failures = 0
        while self._queue:
            completed = self._queue.popleft()
            abort = AbortCheckpoint(
                completed.checkpoint, CheckpointFailure.ATTEMPT_ENDED, failure.text, completed.triggered_ms
            )
            actions += self._carry_out([abort], now_ms)
        self.coordinator = None
        self.slots.release()
        delay, self._strategy = self._strategy.on_failure(now_ms, self._jitter())
        failed = {"cause": failure.code, "detail": detail, **(at or FailedAt()).as_json}
        self.stats.last_failure = {**failed, "at_ms": self._wall_ms()}
        self.stats.running_since_ms = None
        actions.append(Note("attempt_failed", {"attempt": str(self.attempt), **failed}))
        if delay is None:
            return actions + self._stop(Outcome.FAILED, f"{failure.text}: {detail}")
        self.stats.restarts += 1
        self.phase = Phase.RESTARTING
        self._restart_at_ms = now_ms + delay
        return actions

    def _stop(self, outcome: Outcome, reason: str) -> list[Action]:
        self.phase = Phase.STOPPED
        shutdowns: list[Action] = [Send(slot.session, Shutdown(reason)) for slot in self.slots.all]
        return [*shutdowns, Note("stopped", {"outcome": outcome.value, "reason": reason}), Stop(outcome, reason)]

    # ------------------------------------------------------------------ checkpoints

    def _carry_out(self, decided: list[CoordinatorAction], now_ms: float) -> list[Action]:
        actions: list[Action] = []
        for action in decided:
            match action:
                case TriggerSources(checkpoint):
                    self._next_checkpoint = checkpoint + 1
                    actions.append(Note("triggered", {"checkpoint": checkpoint, "attempt": str(self.attempt)}))
                    actions += self._broadcast(Trigger(self.attempt, checkpoint, self._wall_ms()))
                case PublishCheckpoint(completed):
                    self._queue.append(completed)
                    actions += self._publish_next(now_ms)
                case AbortCheckpoint(checkpoint, failure, detail):
                    self.stats.checkpoints_failed += 1
                    actions.append(Note("aborted", {"checkpoint": checkpoint, "why": failure.code, "detail": detail}))
                    actions += self._broadcast(NotifyAbort(self.attempt, checkpoint))
                    actions.append(self._delete([self._log.paths.attempt(self.attempt, checkpoint)]))
                case DiscardLateAck(ack):
                    actions.append(self._delete([file.path for file in ack.state.files]))
                case TooManyFailures(detail):
                    actions += self._end_attempt(AttemptFailure.CHECKPOINTS_FAILED, detail, now_ms)
        return actions

    def _publish_next(self, now_ms: float) -> list[Action]:
        if self._publication is not None or not self._queue:
            return []
        completed = self._queue.popleft()
        manifest = self._make_manifest(completed)
        broken = ledger.violations(manifest.ledger, self._base, self.execution.graph.checkpoints.mode)
        if broken:
            assert self.coordinator is not None
            failed = self.coordinator.on_not_published(
                completed.checkpoint, CheckpointFailure.LEDGER_MISMATCH, "; ".join(broken)
            )
            return self._carry_out(failed, now_ms) + self._after_publication(now_ms)
        self._publication = Publication(completed, manifest)
        return [self._off_loop("manifest", lambda: self._log.write_manifest(manifest), self._manifest_written)]

    def _make_manifest(self, completed: CompletedCheckpoint) -> Manifest:
        carried = [c for ack in completed.acks for c in ack.committables]
        done = {c.identity for c in self._carried}
        return Manifest(
            job=self.execution.graph.name,
            epoch=self.newest.epoch + 1 if self.newest else 1,
            checkpoint=completed.checkpoint,
            attempt=completed.attempt,
            created_ms=self._wall_ms(),
            max_parallelism=self.execution.graph.max_parallelism,
            subtasks=[ack.state for ack in completed.acks],
            commits=[c for c in carried if c.identity not in done],
            carried=carried,
            ledger=ledger.total(self._base, (ack.ledger for ack in completed.acks)),
            final=completed.final,
        )

    @property
    def _base(self) -> dict[str, int]:
        """Totals at the epoch that this attempt was restored from."""
        return self._manifest.ledger if self._manifest else {}

    def _manifest_written(self, ref: ManifestRef | None, error: BaseException | None, now_ms: float) -> list[Action]:
        publication = self._publication
        assert publication is not None
        if ref is None:
            return self._not_published(str(error), now_ms)
        publication.ref = ref
        return [self._append_epoch()]

    def _append_epoch(self) -> Action:
        publication, record = self._publication, self._record
        assert publication is not None and publication.ref is not None and record is not None
        ref = publication.ref
        return self._off_loop("publish", lambda: self._log.publish(record, ref), self._appended)

    def _appended(self, record: LogRecord | None, error: BaseException | None, now_ms: float) -> list[Action]:
        publication = self._publication
        assert publication is not None
        if isinstance(error, Fenced):
            return self._stop(Outcome.FENCED, str(error))
        if error is not None and not isinstance(error, StoreError):
            raise error
        if error is not None and not publication.create_sent:
            return self._not_published(str(error), now_ms)
        if record is None:
            publication.create_sent = True  # from here on only the log knows: repeat until the answer is definite
            publication.retry_at_ms = now_ms + self.config.retry_ms
            return [Note("publish_unknown", {"checkpoint": publication.completed.checkpoint})]
        return self._published(publication, record, now_ms)

    def _not_published(self, detail: str, now_ms: float) -> list[Action]:
        publication = self._publication
        assert publication is not None
        self._publication = None
        if self.coordinator is None or self.coordinator.attempt != publication.completed.attempt:
            return self._after_publication(now_ms)
        failed = self.coordinator.on_not_published(
            publication.completed.checkpoint, CheckpointFailure.FINALIZE_FAILED, detail
        )
        return self._carry_out(failed, now_ms) + self._after_publication(now_ms)

    def _published(self, publication: Publication, record: LogRecord, now_ms: float) -> list[Action]:
        """The commit point is behind us. Only now is there a permit."""
        publication.published = True
        self._record = record
        self.newest = record.newest
        assert self.newest is not None and self.newest.epoch == publication.manifest.epoch
        self._carried = publication.manifest.carried
        self.ledger = dict(publication.manifest.ledger)
        self._same_error = ("", 0)
        permit = CommitPermit.issue(self.newest, record.generation)
        manifest = publication.manifest
        return [
            Note("published", {"checkpoint": manifest.checkpoint, "epoch": manifest.epoch}),
            self._off_loop("commit", lambda: self._commit_all(permit, manifest), self._committed),
        ]

    def _commit_all(self, permit: CommitPermit, manifest: Manifest) -> None:
        assert permit.epoch == manifest.epoch
        if manifest.epoch == 0:
            return  # a fork begins with another job's state, and has published nothing itself
        for uid, committer in self._committers.items():
            if manifest.rewound_to is not None:
                committer.rewind(permit, manifest.rewound_to)
                continue
            committer.commit(permit, [c for c in manifest.commits if c.uid == uid])

    def _committed(self, _: None, error: BaseException | None, now_ms: float) -> list[Action]:
        publication = self._publication
        assert publication is not None and self.newest is not None
        self._publication = None
        completed, manifest = publication.completed, publication.manifest
        same_attempt = self.coordinator is not None and self.coordinator.attempt == completed.attempt
        if same_attempt and self.coordinator is not None:
            self.coordinator.on_published(completed.checkpoint, now_ms)
        if error is not None:
            if self.phase in (Phase.DEPLOYING, Phase.RUNNING):
                return self._end_attempt(AttemptFailure.COMMIT_FAILED, str(error), now_ms)
            return []  # already restarting: restoring commits this epoch again
        self.stats.checkpoints_completed += 1
        figures = checkpoint_figures(
            completed, manifest, self.execution.subtasks, now_ms - completed.triggered_ms, self._wall_ms()
        )
        self._retained = keep(self._retained, self.newest, self.execution.graph.checkpoints.retained)
        actions: list[Action] = [Note("completed", figures)]
        if same_attempt:
            actions += self._broadcast(NotifyComplete(self.attempt, completed.checkpoint))
        actions.append(self._sweep())
        if manifest.final and same_attempt:
            return actions + self._stop(
                Outcome.FINISHED, f"all records are processed and committed in epoch {manifest.epoch}"
            )
        return actions + self._after_publication(now_ms)

    def _after_publication(self, now_ms: float) -> list[Action]:
        return self._publish_next(now_ms) if self.phase is Phase.RUNNING else []

    def _sweep(self) -> Action:
        """Retention: delete what no kept epoch needs."""
        kept, generation = list(self._retained), self.attempt.generation
        # What earlier generations left is looked for once; after that only this one makes files.
        generations = [generation] if self._swept else range(1, generation + 1)
        self._swept = True

        def work() -> None:
            store, paths = self._log.store, self._log.paths
            files = [path for number in generations for path in store.list(paths.generation(number))]
            for directory in disposable(paths, files, kept, generation):
                store.delete(directory)

        return self._off_loop("sweep", work, _ignore)

    def _delete(self, paths: list[str]) -> Action:
        def work() -> None:
            for path in paths:
                self._log.store.delete(path)

        return self._off_loop("delete", work, _ignore)

    def _off_loop(self, name: str, work: Callable[[], Any], done: Done) -> RunOffLoop:
        def checked(result: Any, error: BaseException | None, now_ms: float) -> list[Action]:
            if isinstance(error, SyncFailed):
                raise error  # what is durable is unknown now: this process must not go on
            return [] if self.phase is Phase.STOPPED else done(result, error, now_ms)

        return RunOffLoop(name, work, checked)

    def _broadcast(self, message: MasterMessage) -> list[Action]:
        return [Send(slot.session, message) for slot in self.slots.assigned]


def _ignore(result: Any, error: BaseException | None, now_ms: float) -> list[Action]:
    """What could not be deleted now goes with the next sweep."""
    return []
