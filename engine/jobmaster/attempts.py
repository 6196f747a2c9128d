"""One attempt at running the job, and the decision whether there is another."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.protocol.coordinator import CheckpointCoordinator
from engine.protocol.failures import Fault, Raised
from engine.protocol.ids import AttemptId, SubtaskId
from engine.protocol.messages import Deployed, TaskFailed
from engine.protocol.remedy import Remedy, Where, remedy
from engine.protocol.restart import RestartStrategy
from engine.protocol.watermark_alignment import AlignmentGroups


@dataclass(frozen=True)
class BrokenChannel:
    """A report of a broken channel. It is the cause of the failure if no other shows up until `decided_at_ms`."""

    report: TaskFailed
    decided_at_ms: float


@dataclass
class Attempt:
    """One deployment of all subtasks. The JobMaster starts it once all slots have built their subtasks.

    It is running once all channels are connected: a link between two hosts may be cut.
    """

    id: AttemptId
    coordinator: CheckpointCoordinator
    undeployed: set[str]
    """The sessions of the slots that have not built their subtasks yet."""
    alignment: AlignmentGroups
    unconnected: set[str]
    """The sessions of the slots with a channel whose receiver has not answered yet."""
    started: bool = False
    flowing_ms: float | None = None
    """When the first record was taken, if that was before all channels were connected."""
    deployed: list[Deployed] = field(default_factory=list)
    finished: set[SubtaskId] = field(default_factory=set)
    broken: BrokenChannel | None = None


class SameErrors:
    """Counts errors of the job's own code. Errors are the same if operator, type and author's line are.

    Texts are not compared: they name subtasks and records.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._seen: list[tuple[tuple[str, str, str], str]] = []

    def add(self, uid: str, raised: Raised) -> int | None:
        """Returns how often the same error came if that ends the job: at the same record twice, else `limit` times."""
        error = (uid, raised.type, raised.line)
        same_record = bool(raised.record) and (error, raised.record) in self._seen
        self._seen.append((error, raised.record))
        times = sum(1 for seen, _ in self._seen if seen == error)
        again = same_record or times >= self._limit
        return times if remedy(Where.ATTEMPT, Fault.JOB, again=again) is Remedy.END else None

    def forget(self) -> None:
        self._seen.clear()


class Restarts:
    """Decides whether the job is tried again after a failure.

    The same error of the job's own code again and again ends the job, whatever its restart strategy says. The count
    begins anew when the job makes progress: that of its functions with a published epoch, that of its committers with
    a committed one, since they run after the publication. Otherwise the strategy decides.
    """

    def __init__(self, strategy: RestartStrategy, same_error_limit: int) -> None:
        self._strategy = strategy
        self._in_functions = SameErrors(same_error_limit)
        self._in_committers = SameErrors(same_error_limit)

    def on_failure(self, now_ms: float, jitter: float, fault: Fault) -> float | None:
        """Returns the wait before the next attempt in ms, or None to give up."""
        delay_ms, self._strategy = self._strategy.on_failure(now_ms, jitter, fault)
        return delay_ms

    def on_job_error(self, uid: str, raised: Raised) -> int | None:
        """Counts an error of a function, a source or a sink. Returns how often it came if that ends the job."""
        return self._in_functions.add(uid, raised)

    def on_commit_error(self, uid: str, raised: Raised) -> int | None:
        """Counts an error of a committer. Returns how often it came if that ends the job."""
        return self._in_committers.add(uid, raised)

    def on_published(self) -> None:
        self._in_functions.forget()

    def on_committed(self) -> None:
        self._in_committers.forget()
