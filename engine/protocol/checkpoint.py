"""The life of a checkpoint: PendingCheckpoint → CompletedCheckpoint → CommitPermit, once its epoch record exists."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.protocol.failures import AckOutcome
from engine.protocol.ids import AttemptId, SubtaskId
from engine.protocol.manifest import ManifestRef
from engine.protocol.messages import Acknowledge
from engine.protocol.savepoint import SavepointRequest, Stopping


@dataclass
class PendingCheckpoint:
    """A triggered checkpoint that waits for every subtask. Repeated and unknown acknowledgements do no harm.

    `savepoint` is there if it becomes a savepoint: one that the job goes on behind is no epoch, one that the job stops
    behind is both.
    """

    checkpoint: int
    attempt: AttemptId
    triggered_ms: float
    expires_ms: float
    expected: frozenset[SubtaskId]
    final: bool = False
    savepoint: SavepointRequest | None = None
    stopping: Stopping = Stopping.NO
    acks: dict[SubtaskId, Acknowledge] = field(default_factory=dict)

    def acknowledge(self, ack: Acknowledge) -> AckOutcome:
        if ack.subtask not in self.expected:
            return AckOutcome.UNKNOWN
        if ack.subtask in self.acks:
            return AckOutcome.DUPLICATE
        self.acks[ack.subtask] = ack
        return AckOutcome.SUCCESS

    @property
    def complete(self) -> bool:
        return len(self.acks) == len(self.expected)

    @property
    def periodic(self) -> bool:
        """True for a checkpoint that nobody waits for: it may be subsumed, and its failure counts."""
        return self.savepoint is None and self.stopping is Stopping.NO

    @property
    def missing(self) -> list[SubtaskId]:
        return sorted(self.expected - self.acks.keys())


@dataclass(frozen=True)
class CompletedCheckpoint:
    """A checkpoint that every subtask has acknowledged and that is not yet published."""

    checkpoint: int
    attempt: AttemptId
    triggered_ms: float
    completed_ms: float
    final: bool
    acks: tuple[Acknowledge, ...]
    savepoint: SavepointRequest | None = None
    stopping: Stopping = Stopping.NO

    @property
    def stops(self) -> bool:
        """True if the job ends once this checkpoint is committed."""
        return self.stopping is not Stopping.NO

    @classmethod
    def of(cls, pending: PendingCheckpoint, now_ms: float) -> CompletedCheckpoint:
        assert pending.complete, f"checkpoint {pending.checkpoint} still waits for {pending.missing}"
        acks = tuple(pending.acks[subtask] for subtask in sorted(pending.acks))
        return cls(
            pending.checkpoint,
            pending.attempt,
            pending.triggered_ms,
            now_ms,
            pending.final,
            acks,
            pending.savepoint,
            pending.stopping,
        )


_ISSUED = object()


class CommitPermit:
    """Proves that an epoch record exists in the log. Nothing commits without one, and only `issue` creates one.

    It does not say which generation commits: the record exists for good, so a JobMaster that has been replaced may
    still commit its epoch. Its successor commits the same output, and commits are idempotent.
    """

    __slots__ = ("manifest",)

    def __init__(self, token: object, manifest: ManifestRef) -> None:
        if token is not _ISSUED:
            raise TypeError("a CommitPermit is issued for a published epoch, never made by hand")
        self.manifest = manifest

    @classmethod
    def issue(cls, published: ManifestRef) -> CommitPermit:
        """Creates a permit. The caller has created or read the log record whose newest manifest is `published`."""
        return cls(_ISSUED, published)

    @property
    def epoch(self) -> int:
        return self.manifest.epoch
