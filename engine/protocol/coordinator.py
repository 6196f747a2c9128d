"""`CheckpointCoordinator` decides when to trigger a checkpoint, when it is complete and when it is aborted.

It is pure: the caller passes time and messages in and carries out the actions that are returned.

Invariants: at most `max_concurrent` periodic checkpoints are pending; an abort is announced exactly once; completed
checkpoints are handed out for publication in the order of their ids; only a publication resets the failure count.
Savepoints that the job goes on behind stand beside all this: they wait for nothing, hold up nothing, are never
subsumed, subsume nothing, and their failures do not count. While the job is held, nothing is triggered but the
checkpoint that it stops behind, which is an epoch and never subsumed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

from engine.protocol.checkpoint import CompletedCheckpoint, PendingCheckpoint
from engine.protocol.config import CheckpointConfig
from engine.protocol.failures import AckOutcome, CheckpointFailure
from engine.protocol.ids import AttemptId, SubtaskId
from engine.protocol.messages import Acknowledge, Decline
from engine.protocol.savepoint import SavepointRequest, Stopping, StopRequest


@dataclass(frozen=True)
class TriggerSources:
    """`savepoint`: it is no epoch. `suspend`: sources emit nothing behind the barrier."""

    checkpoint: int
    savepoint: bool = False
    suspend: bool = False


@dataclass(frozen=True)
class PublishCheckpoint:
    completed: CompletedCheckpoint


@dataclass(frozen=True)
class StoreSavepoint:
    """Bring the state into the savepoint's folder, unless slots have written it there.

    If the job goes on, the checkpoint's own files are not needed afterwards. If it stops, publish the checkpoint.
    """

    completed: CompletedCheckpoint
    request: SavepointRequest


@dataclass(frozen=True)
class AbortCheckpoint:
    """Notify all slots, delete the state files and record the abort in the history. Sinks keep their committables.

    `savepoint`: it would have been no epoch.
    """

    checkpoint: int
    failure: CheckpointFailure
    detail: str
    savepoint: bool = False


@dataclass(frozen=True)
class DiscardLateAck:
    """Delete the files of this acknowledgement: its checkpoint was aborted before it arrived."""

    ack: Acknowledge


@dataclass(frozen=True)
class TooManyFailures:
    detail: str


CoordinatorAction = (
    TriggerSources | PublishCheckpoint | StoreSavepoint | AbortCheckpoint | DiscardLateAck | TooManyFailures
)


_ABORTED_KNOWN = 64
"""The number of aborted checkpoints to remember, so that a late acknowledgement is not taken for a repeated one."""


class CheckpointCoordinator:
    """Coordinates the checkpoints of one attempt. Ids continue where the last attempt ended."""

    def __init__(
        self,
        config: CheckpointConfig,
        attempt: AttemptId,
        subtasks: Collection[SubtaskId],
        next_checkpoint: int,
        now_ms: float,
        probation_ms: float = 0.0,
    ) -> None:
        """`probation_ms`: how long the first checkpoint by interval waits for a record that was read."""
        assert subtasks
        self.config = config
        self.attempt = attempt
        self.next_checkpoint = next_checkpoint
        self.consecutive_failures = 0
        self._subtasks = frozenset(subtasks)
        self._pending: dict[int, PendingCheckpoint] = {}
        self._publishing: dict[int, CompletedCheckpoint] = {}
        self._aborted: deque[int] = deque(maxlen=_ABORTED_KNOWN)
        self._last_trigger_ms = now_ms
        self._last_completion_ms: float | None = None
        self._probation_ends_ms = now_ms + probation_ms
        self._final_wanted = False
        self._held = False

    @property
    def pending(self) -> list[PendingCheckpoint]:
        return list(self._pending.values())

    def wakeup_ms(self) -> float | None:
        """Returns the next time at which `on_tick` may have something to do."""
        times = [p.expires_ms for p in self._pending.values()]
        due = self._due_ms()
        if due is not None:
            times.append(due)
        return min(times, default=None)

    def on_tick(self, now_ms: float) -> list[CoordinatorAction]:
        actions: list[CoordinatorAction] = []
        too_many: list[CoordinatorAction] = []
        for pending in [p for p in self._pending.values() if p.expires_ms <= now_ms]:
            detail = f"no acknowledgement from {', '.join(map(str, pending.missing[:4]))}"
            actions += self._abort(pending, CheckpointFailure.EXPIRED, detail)
            too_many = too_many or self._count(pending, CheckpointFailure.EXPIRED, detail)
        if too_many:
            return actions + too_many  # The attempt ends, so nothing more is triggered.
        due = self._due_ms()
        if due is not None and due <= now_ms:
            actions += self.trigger(now_ms)
        return actions

    def trigger(self, now_ms: float) -> list[CoordinatorAction]:
        """Starts a checkpoint now: one by interval, one by hand, or the final one."""
        self._last_trigger_ms = now_ms
        return self._begin(now_ms, final=self._final_wanted)

    def trigger_savepoint(self, request: SavepointRequest, now_ms: float) -> list[CoordinatorAction]:
        """Starts a savepoint now, behind which the job goes on."""
        return self._begin(now_ms, savepoint=request)

    def hold(self) -> None:
        """Triggers nothing by itself from now on: the job is being stopped, or has published its final epoch."""
        self._held = True

    def trigger_stop(self, request: StopRequest, now_ms: float) -> list[CoordinatorAction]:
        """Starts the checkpoint that the job stops behind. It is an epoch, and a savepoint if one is asked for."""
        assert self._held, "a newer checkpoint could subsume the one that the job stops behind"
        final = self._final_wanted or request.drain
        return self._begin(now_ms, final=final, savepoint=request.savepoint, stopping=request.stopping)

    def _begin(
        self,
        now_ms: float,
        *,
        final: bool = False,
        savepoint: SavepointRequest | None = None,
        stopping: Stopping = Stopping.NO,
    ) -> list[CoordinatorAction]:
        checkpoint = self.next_checkpoint
        self.next_checkpoint += 1
        expires_ms = now_ms + self.config.timeout_ms
        self._pending[checkpoint] = PendingCheckpoint(
            checkpoint, self.attempt, now_ms, expires_ms, self._subtasks, final, savepoint, stopping
        )
        stops = stopping is not Stopping.NO
        return [TriggerSources(checkpoint, savepoint=savepoint is not None and not stops, suspend=stops)]

    def on_records(self) -> None:
        """Ends the probation: checkpoints from now on come behind a record that every operator has to process."""
        self._probation_ends_ms = self._last_trigger_ms

    def want_final(self) -> None:
        """Makes all further checkpoints final, as every subtask has finished. They repeat until one is published."""
        self._final_wanted = True

    def on_acknowledge(self, ack: Acknowledge, now_ms: float) -> tuple[AckOutcome, list[CoordinatorAction]]:
        if ack.attempt != self.attempt:
            return AckOutcome.UNKNOWN, []  # The files of another attempt lie under another path.
        pending = self._pending.get(ack.checkpoint)
        if pending is None:
            if ack.checkpoint in self._aborted:
                return AckOutcome.DISCARDED, [DiscardLateAck(ack)]
            # This repeats an acknowledgement of a completed checkpoint. An epoch may need the files, so they stay.
            return AckOutcome.DUPLICATE, []
        outcome = pending.acknowledge(ack)
        if not pending.complete:
            return outcome, []
        del self._pending[ack.checkpoint]
        completed = CompletedCheckpoint.of(pending, now_ms)
        if completed.savepoint is not None and not completed.stops:
            return outcome, [StoreSavepoint(completed, completed.savepoint)]
        self._publishing[ack.checkpoint] = completed
        actions: list[CoordinatorAction] = []
        for older in [p for p in self._periodic if p.checkpoint < ack.checkpoint]:
            actions += self._abort(older, CheckpointFailure.SUBSUMED, f"checkpoint {ack.checkpoint} completed first")
        savepoint = completed.savepoint
        actions.append(PublishCheckpoint(completed) if savepoint is None else StoreSavepoint(completed, savepoint))
        return outcome, actions

    def on_decline(self, decline: Decline) -> list[CoordinatorAction]:
        pending = self._pending.get(decline.checkpoint)
        if decline.attempt != self.attempt or pending is None:
            return []
        failure = CheckpointFailure.WRITE_FAILED if decline.write_failed else CheckpointFailure.DECLINED
        return self._fail(pending, failure, f"{decline.subtask}: {decline.detail}")

    def on_publication_over(self, checkpoint: int, now_ms: float) -> None:
        self._publishing.pop(checkpoint)
        self.consecutive_failures = 0
        self._last_completion_ms = now_ms

    def on_not_published(self, checkpoint: int, failure: CheckpointFailure, detail: str) -> list[CoordinatorAction]:
        """Aborts a completed checkpoint. It has no epoch record and will have none, so nothing was committed."""
        completed = self._publishing.pop(checkpoint)
        self._aborted.append(checkpoint)
        actions: list[CoordinatorAction] = [AbortCheckpoint(checkpoint, failure, detail)]
        return actions + self._count(completed, failure, detail)

    def end_attempt(self, detail: str) -> list[CoordinatorAction]:
        """Aborts all pending checkpoints. A checkpoint that is being published gets its own outcome later."""
        actions: list[CoordinatorAction] = []
        for pending in list(self._pending.values()):
            actions += self._abort(pending, CheckpointFailure.ATTEMPT_ENDED, detail)
        return actions

    @property
    def _periodic(self) -> list[PendingCheckpoint]:
        return [pending for pending in self._pending.values() if pending.periodic]

    def _due_ms(self) -> float | None:
        under_way = len(self._periodic) + len(self._publishing)
        if self._held:
            return None
        if self._final_wanted:
            settled = not self._pending and not self._publishing  # a savepoint may need the sources until it is taken
            return self._last_trigger_ms if settled else None
        if self.config.interval_ms is None or under_way >= self.config.max_concurrent:
            return None
        due = max(self._last_trigger_ms + self.config.interval_ms, self._probation_ends_ms)
        if self._last_completion_ms is not None:
            due = max(due, self._last_completion_ms + self.config.min_pause_ms)
        return due

    def _abort(self, pending: PendingCheckpoint, failure: CheckpointFailure, detail: str) -> list[CoordinatorAction]:
        del self._pending[pending.checkpoint]
        self._aborted.append(pending.checkpoint)
        savepoint = pending.savepoint is not None and pending.stopping is Stopping.NO
        return [AbortCheckpoint(pending.checkpoint, failure, detail, savepoint)]

    def _fail(self, pending: PendingCheckpoint, failure: CheckpointFailure, detail: str) -> list[CoordinatorAction]:
        return self._abort(pending, failure, detail) + self._count(pending, failure, detail)

    def _count(
        self, failed: PendingCheckpoint | CompletedCheckpoint, failure: CheckpointFailure, detail: str
    ) -> list[CoordinatorAction]:
        if not failure.counts or failed.savepoint is not None or failed.stopping is not Stopping.NO:
            return []
        self.consecutive_failures += 1
        if self.consecutive_failures > self.config.tolerable_failed:
            return [TooManyFailures(f"{failure.text}: {detail}")]
        return []
