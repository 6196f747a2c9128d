"""One attempt at running the job, and the decision whether there is another."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.protocol.coordinator import CheckpointCoordinator
from engine.protocol.ids import AttemptId, SubtaskId
from engine.protocol.messages import TaskFailed
from engine.protocol.restart import RestartStrategy


@dataclass(frozen=True)
class BrokenChannel:
    """A report of a broken channel. It is the cause of the failure if no other shows up until `decided_at_ms`."""

    report: TaskFailed
    decided_at_ms: float


@dataclass
class Attempt:
    """One deployment of all subtasks. The JobMaster starts it once all slots have built their subtasks."""

    id: AttemptId
    coordinator: CheckpointCoordinator
    undeployed: set[str]
    """The sessions of the slots that have not answered yet."""
    finished: set[SubtaskId] = field(default_factory=set)
    broken: BrokenChannel | None = None


class Restarts:
    """Decides whether the job is tried again after a failure.

    The restart strategy decides for all failures alike. An error of the job's own code that keeps coming
    without an epoch in between ends the job, whatever the strategy says.
    """

    def __init__(self, strategy: RestartStrategy, same_error_limit: int) -> None:
        self._strategy = strategy
        self._same_error_limit = same_error_limit
        self._last_error = ""
        self._times = 0

    def on_failure(self, now_ms: float, jitter: float) -> float | None:
        """Returns the wait before the next attempt in ms, or None to give up."""
        delay_ms, self._strategy = self._strategy.on_failure(now_ms, jitter)
        return delay_ms

    def on_job_error(self, error: str) -> str | None:
        """Counts an error of the job's own code. Returns the reason to give up if the same one came too often."""
        self._times = self._times + 1 if error == self._last_error else 1
        self._last_error = error
        if self._times < self._same_error_limit:
            return None
        return f"{error} (the same error {self._times} times without a checkpoint in between)"

    def on_published(self) -> None:
        """Forgets the last error: the job made progress, so the next error counts as a new one."""
        self._last_error, self._times = "", 0
