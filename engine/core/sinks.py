"""What a sink is: the four verbs of a two-phase commit.

begin, pre_commit and abort of rows run in the sink's subtasks, commit in the JobMaster, and only with a `CommitPermit`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pyarrow as pa

from engine.core.paths import JobPaths
from engine.core.ports import Store
from engine.protocol.checkpoint import CommitPermit
from engine.protocol.ids import AttemptId
from engine.protocol.manifest import Committable


class Guarantee(Enum):
    """What a sink gives when its job restarts."""

    EXACTLY_ONCE = "exactly once"
    AT_LEAST_ONCE = "at least once"


class Piece(ABC):
    """Rows that a writer has let go of. Persisting again after a failure gives the same result."""

    size: int

    @abstractmethod
    def persist(self) -> dict[str, Any]:
        """Make it durable, invisible to readers; returns what `commit` needs to publish it. Off the task thread."""


@dataclass(frozen=True)
class WriterContext:
    subtask: int
    attempt: AttemptId
    store: Store
    paths: JobPaths
    schema: pa.Schema


class SinkWriter(ABC):
    """One subtask's open transaction."""

    @abstractmethod
    def begin(self) -> None:
        """A new transaction."""

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows to the transaction."""

    @abstractmethod
    def pre_commit(self) -> Piece | None:
        """Let go of what was written since `begin`; None: nothing was."""

    @property
    @abstractmethod
    def buffered_bytes(self) -> int:
        """What the open transaction holds in memory."""


class Committer(ABC):
    """Publishes epochs, in the JobMaster."""

    @abstractmethod
    def commit(self, permit: CommitPermit, committables: Sequence[Committable]) -> None:
        """Publish an epoch. Idempotent: the same epoch may be committed again, after any crash."""

    def rewind(self, permit: CommitPermit, to_epoch: int) -> None:
        """Hide what epochs after `to_epoch` published; idempotent. Only for sinks that say `can_rewind`."""
        raise TypeError(f"{type(self).__name__} can't take back what it published")

    @abstractmethod
    def abort_unknown(self, permit: CommitPermit | None, attempt: AttemptId) -> None:
        """On restore: remove what attempts before `attempt` wrote and no epoch up to the permit's published."""


class Sink(ABC):
    guarantee: Guarantee
    can_rewind = False
    """Whether what later epochs published can be hidden again."""

    @property
    def target(self) -> str | None:
        """What no other sink of the job may write to; None: it does not mind."""
        return None

    @abstractmethod
    def writer(self, context: WriterContext) -> SinkWriter: ...

    @abstractmethod
    def committer(self, store: Store, paths: JobPaths) -> Committer: ...
