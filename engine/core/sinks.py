"""The interface of sinks: a two-phase commit.

Invariant: nothing is committed without a `CommitPermit`. A `SinkWriter` belongs to a subtask; its methods run on the
task thread, and `Piece.persist` beside it. A `Committer` runs in the JobMaster, and in the command that goes back to an
older epoch. On a restore its methods are called in this order: `claim`, `commit` (or `rewind`), `begin` if the sink is
new, `abort_unknown`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pyarrow as pa

from engine.core.gates import Gate
from engine.core.paths import JobPaths
from engine.core.ports import Store
from engine.protocol.checkpoint import CommitPermit
from engine.protocol.ids import AttemptId
from engine.protocol.job_description import Column
from engine.protocol.manifest import Committable


class Guarantee(Enum):
    """The guarantee that a sink gives when its job restarts."""

    EXACTLY_ONCE = "exactly once"
    AT_LEAST_ONCE = "at least once"


class Piece(ABC):
    """The rows of one transaction, ready to be persisted. Persisting again after a failure gives the same result."""

    size: int

    @abstractmethod
    def persist(self) -> dict[str, Any]:
        """Makes the rows durable but not visible to readers. Runs off the task thread.

        Returns the payload that `commit` needs to publish them.
        """


@dataclass(frozen=True)
class WriterContext:
    subtask: int
    attempt: AttemptId
    store: Store
    paths: JobPaths
    schema: pa.Schema
    job_id: str
    """The id of the job in this store (`LogRecord.job_id`): no other job has it."""


class SinkWriter(ABC):
    """Writes the rows of one subtask; it always has one open transaction."""

    @abstractmethod
    def begin(self) -> None:
        """Begins a new transaction."""

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Adds rows to the transaction."""

    @abstractmethod
    def pre_commit(self) -> Piece | None:
        """Ends the transaction and returns its rows, or None if nothing was written since `begin`."""

    @property
    @abstractmethod
    def buffered_bytes(self) -> int:
        """The number of bytes that the open transaction holds in memory."""


class GatheringWriter(SinkWriter):
    """Keeps the rows of a transaction in memory until it ends. So do sinks that write them as a whole."""

    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0
        self._pieces = 0

    def begin(self) -> None:
        self._batches, self._bytes = [], 0

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self._batches.append(batch)
            self._bytes += batch.nbytes

    def pre_commit(self) -> Piece | None:
        if not self._batches:
            return None
        self._pieces += 1
        return self._piece(self._batches, self._pieces, self._bytes)

    @abstractmethod
    def _piece(self, batches: list[pa.RecordBatch], number: int, size: int) -> Piece:
        """Makes a piece of a transaction's rows. `number` is that of the piece in this attempt, from 1 on."""

    @property
    def buffered_bytes(self) -> int:
        return self._bytes


@dataclass(frozen=True)
class Found:
    """What a job finds in a sink's target when it starts.

    `claimed` is False if there is no sign that the job has ever claimed the target. `columns` are those of the rows
    that were published there; empty if there are none, or if it does not matter.
    """

    claimed: bool = True
    columns: Sequence[Column] = ()


@dataclass(frozen=True)
class Tidied:
    """What a committer has done in the background: so many files became fewer, and so many were deleted.

    `problems` says which output could not be tidied, and why.
    """

    folded: int = 0
    into: int = 0
    written_bytes: int = 0
    deleted: int = 0
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Withheld:
    """What an epoch publishes in the place of committables of which rows are withheld: so many, with this digest."""

    commits: list[Committable]
    rows: int
    digest: int


class Committer(ABC):
    """Publishes the output of epochs."""

    def look(self, job_id: str, epoch: int) -> Found:
        """Returns what is in the target up to this epoch, and changes nothing. Raises TargetTaken as `claim` does."""
        return Found()

    @abstractmethod
    def claim(self, job_id: str, next_epoch: int) -> None:
        """Makes the target this job's own before anything is written to it. Idempotent.

        The JobMaster calls it first on every restore. Raises TargetTaken if the target is not this job's. A target
        that is new holds no epoch before `next_epoch`: what is committed to it again of earlier ones is ignored.
        """

    def begin(self, next_epoch: int) -> None:  # noqa: B027 (few depend on the number)
        """Prepares the target for this epoch, if its sink took no part in the one before. Idempotent."""

    def check(self, committables: Sequence[Committable]) -> None:  # noqa: B027 (what can't be lost needs no check)
        """Raises a StoreError if output is not there any more that an epoch is about to publish.

        The JobMaster calls it before it publishes. Writers have seen the output durable, but a mount that was gone for
        a moment, or another server at the same address, may have taken it.
        """

    def withhold(self, committables: Sequence[Committable], refused: Mapping[str, Sequence[int]] | None) -> Withheld:
        """Prepares an epoch without rows that its gate has refused; None: without any of these rows. Idempotent.

        `refused` are the numbers of the rows by file. Nothing that readers see changes.
        """
        raise TypeError(f"{type(self).__name__} has no gate")

    @abstractmethod
    def commit(self, permit: CommitPermit, committables: Sequence[Committable]) -> None:
        """Publishes the output of an epoch. Idempotent: after a crash the same epoch may be committed again."""

    def prepare_rewind(self, to_epoch: int, generation: int) -> None:  # noqa: B027 (few have anything to prepare)
        """Makes sure that the output after `to_epoch` can be hidden, or raises TargetTaken. Idempotent.

        `generation` is that of the process that goes back. It has claimed the job, and has published nothing yet.
        """

    def rewind(self, permit: CommitPermit, to_epoch: int) -> None:
        """Hides the output of all epochs after `to_epoch`. Idempotent; only called if the sink says `can_rewind`."""
        raise TypeError(f"{type(self).__name__} can't hide output that it has published")

    def rewind_epoch(self, at_least: int) -> int:
        """Returns the first epoch number from `at_least` on that a rewind may have."""
        return at_least

    @abstractmethod
    def pass_over(self, permit: CommitPermit) -> None:
        """Publishes nothing for an epoch whose manifest is lost; leaves it as it is if it is committed. Idempotent."""

    @abstractmethod
    def abort_unknown(self, permit: CommitPermit | None, attempt: AttemptId) -> None:
        """Removes output of attempts before `attempt` that no epoch up to the permit's has published.

        The JobMaster calls it on restore.
        """

    def tidy(self, generation: int, epoch: int, kept_from: int, now_ms: float) -> Tidied:
        """Makes published output smaller or faster to read, and deletes what is not needed any more.

        `epoch` is committed, and the job never goes back behind `kept_from`. It runs beside `commit`, on another
        thread, one call at a time. It may fail, or end half-way with its process: a later call goes on.
        """
        return Tidied()


class NothingToCommit(Committer):
    """The committer of a sink whose writers leave nothing to publish, such as one that prints."""

    def claim(self, job_id: str, next_epoch: int) -> None:
        pass

    def commit(self, permit: CommitPermit, committables: Sequence[Committable]) -> None:
        pass

    def pass_over(self, permit: CommitPermit) -> None:
        pass

    def abort_unknown(self, permit: CommitPermit | None, attempt: AttemptId) -> None:
        pass


class Sink(ABC):
    """Where a stream ends: subtasks write with a `SinkWriter`, and the JobMaster publishes with a `Committer`."""

    guarantee: Guarantee
    gate: Gate | None = None
    """Decides on the rows of each epoch before they are published."""
    can_rewind = False
    """True if the output of later epochs can be hidden by a rewind."""
    gains_columns = False
    """True if the target may get new columns, which are null in the rows that are there already."""

    @property
    def target(self) -> str | None:
        """The place that no other sink of the job may write to, or None if sharing it is harmless."""
        return None

    @property
    def targets(self) -> Sequence[str]:
        """All such places: a sink may have one beside its target."""
        return () if self.target is None else (self.target,)

    @abstractmethod
    def writer(self, context: WriterContext) -> SinkWriter:
        """Returns the writer of one subtask."""

    @abstractmethod
    def committer(self, store: Store, paths: JobPaths) -> Committer:
        """Returns what publishes the epochs. It runs in the JobMaster."""
