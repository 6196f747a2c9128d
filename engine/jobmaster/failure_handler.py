"""`FailureHandler` decides what a failure leads to: another attempt, or the end of the job.

Only the job's own fault ends it (H8). A broken channel is mostly a consequence, so its cause is waited for a little.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.core.errors import UserFunctionError, fault_of, raised_by
from engine.jobmaster import events
from engine.jobmaster.actions import Action, Note
from engine.jobmaster.attempts import Attempt, BrokenChannel, Restarts
from engine.protocol.failures import AttemptFailure, Failed, FailedAt, Fault, Raised
from engine.protocol.ids import AttemptId
from engine.protocol.manifest import ManifestRef
from engine.protocol.messages import TaskFailed

EndAttempt = Callable[[Failed, float], list[Action]]
EndJob = Callable[[str, Raised | None], list[Action]]


class FailureHandler:
    """`end_attempt` and `end_job` carry out what was decided, and return the JobMaster's actions."""

    def __init__(
        self,
        restarts: Restarts,
        cause_grace_ms: float,
        jitter: Callable[[], float],
        wall_ms: Callable[[], int],
        end_attempt: EndAttempt,
        end_job: EndJob,
    ) -> None:
        self._restarts = restarts
        self._cause_grace_ms = cause_grace_ms
        self._jitter = jitter
        self._wall_ms = wall_ms
        self._end_attempt = end_attempt
        self._end_job = end_job

    def task_failed(self, current: Attempt, message: TaskFailed, now_ms: float) -> list[Action]:
        if message.channel_broken:
            if current.broken is None:
                current.broken = BrokenChannel(message, now_ms + self._cause_grace_ms)
            return self.cause_if_due(current, now_ms)
        return self._failed_in_task(message, now_ms)

    def cause_if_due(self, current: Attempt, now_ms: float) -> list[Action]:
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
                return noted + self._end_job(reason, message.raised)
        at = FailedAt(message.uid, message.subtask, raised=message.raised)
        return noted + self._end_attempt(Failed(failure, where + message.error, at, message.fault), now_ms)

    def commit_failed(self, error: BaseException, now_ms: float) -> list[Action]:
        """A committer raised, after the epoch was published or while it is committed again."""
        fault, raised = fault_of(error), raised_by(error)
        uid = error.uid if isinstance(error, UserFunctionError) else ""
        if fault is Fault.JOB and raised is not None:
            times = self._restarts.on_commit_error(uid, raised)
            if times is not None:
                reason = f"{error} (the same error {times} times without a committed epoch in between)"
                return self._end_job(reason, raised)
        at = FailedAt(uid, raised=raised)
        return self._end_attempt(Failed(AttemptFailure.COMMIT_FAILED, str(error), at, fault), now_ms)

    def attempt_ended(
        self, attempt: AttemptId, failed: Failed, now_ms: float
    ) -> tuple[events.AttemptFailed, float | None]:
        """Returns the event, and the wait before the next attempt in ms; None to give up."""
        stop_failed = failed.failure is AttemptFailure.STOP_FAILED  # not the job's fault: no strategy says that it ends
        delay_ms = 0.0 if stop_failed else self._restarts.on_failure(now_ms, self._jitter(), failed.fault)
        at = failed.at
        vertex, subtask = (at.subtask.vertex, at.subtask.index) if at.subtask else ("", None)
        event = events.AttemptFailed(
            str(attempt),
            failed.failure.code,
            failed.detail,
            at.uid,
            vertex,
            subtask,
            at.slot,
            at.raised,
            at_ms=self._wall_ms(),
        )
        return event, delay_ms


def can_not_be_restored(newest: ManifestRef | None, what: str) -> str:
    """Returns why a job whose snapshot is damaged ends, and what its owner can choose."""
    epoch = newest.epoch if newest else 0
    return (
        f"the snapshot of epoch {epoch} can't be restored: {what}. Its output is committed, so Weir does not go "
        "back to an older epoch by itself. Bring the file back from a backup, or start the job with --rewind (its "
        "tables hide what later epochs published), --fork NAME (another job goes on from the older state, with "
        "tables of its own) or --allow-replay (published output stays, and some of it is published again)"
    )
