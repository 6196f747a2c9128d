"""What a source is: splits with positions, found by a `Discovery` and read by a `SplitReader` each.

Both are called on the task thread and never block: what may block goes through the context's `Offload`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from engine.core.paths import JobPaths
from engine.core.ports import Clock, Offload, Store
from engine.core.tags import OutputTag

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MALFORMED = OutputTag(
    "malformed",
    pa.schema([("file", pa.string()), ("line", pa.int64()), ("text", pa.string()), ("reason", pa.string())]),
)
"""The side output of records that do not have the declared form."""


@dataclass(frozen=True)
class SourceContext:
    """What one subtask of a source may use."""

    uid: str
    subtask: int
    parallelism: int
    clock: Clock
    offload: Offload
    store: Store
    paths: JobPaths
    schema: pa.Schema

    @property
    def lane(self) -> str:
        """Reads of one subtask run in order; its uploads do not wait for them."""
        return f"{self.uid}[{self.subtask}] reads"


class SplitReader(ABC):
    """Reads one split. Called on the task thread, so `poll` never blocks."""

    @abstractmethod
    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        """The next rows, at most `max_rows`; None: none now."""

    @property
    @abstractmethod
    def position(self) -> Any:
        """Where to go on after what was polled so far; JSON."""

    @property
    @abstractmethod
    def finished(self) -> bool:
        """Whether no row ever follows."""

    @property
    def wakeup_ms(self) -> float | None:
        """On the monotonic clock: when it is worth polling again; None: at once."""
        return None

    def malformed(self) -> pa.RecordBatch | None:
        """Rows of `MALFORMED` met before `position` and not given yet: each is given once."""
        return None

    def close(self) -> None:  # noqa: B027 (few have something to release)
        """Release what it holds."""


class Discovery(ABC):
    """Finds the splits of one subtask while it runs. Each split has one owner, at any parallelism."""

    @abstractmethod
    def poll(self) -> Sequence[str]:
        """The splits found since the last call, in the order in which to read them."""

    @property
    @abstractmethod
    def ready(self) -> bool:
        """Whether it has looked: before that no snapshot is taken, which would forget splits, and nobody is idle."""

    @property
    @abstractmethod
    def finished(self) -> bool:
        """Whether no split ever follows: the source is bounded."""

    @property
    def wakeup_ms(self) -> float | None:
        """On the monotonic clock: when it is worth polling again; None: when offloaded work is done."""
        return None


class Source(ABC):
    """A resettable source: it can go on from any position that a reader of it reported."""

    open_splits: int | None = None
    """How many splits a subtask reads at a time, in their order; None: all of them in turn."""

    side_outputs: tuple[OutputTag, ...] = ()

    @property
    def max_parallelism(self) -> int | None:
        """More subtasks than this would have nothing to do; None: unknown before it runs."""
        return None

    def check(self, schema: pa.Schema) -> None:  # noqa: B027 (most take any)
        """Raise a WeirError for a declared schema that it can't read."""

    def prepare(self, uid: str, session: SparkSession, store: Store, paths: JobPaths) -> None:  # noqa: B027
        """In the JobMaster, before slots start."""

    @abstractmethod
    def discovery(self, context: SourceContext, known: Sequence[str]) -> Discovery:
        """`known`: all splits, of all subtasks, in the snapshot that this attempt goes on from."""

    @abstractmethod
    def reader(self, split: str, position: Any, context: SourceContext) -> SplitReader:
        """Start at `position`; None: at the beginning."""


class FixedSource(Source):
    """Its splits are known when the job is built, and dealt out in turn."""

    @abstractmethod
    def splits(self) -> Sequence[str]:
        """The ids of the splits, always in the same order."""

    @property
    def max_parallelism(self) -> int:
        return len(self.splits())

    def discovery(self, context: SourceContext, known: Sequence[str]) -> Discovery:
        return Dealt(assigned(self.splits(), context.subtask, context.parallelism))


class Dealt(Discovery):
    """Splits that are known from the start."""

    def __init__(self, splits: Sequence[str]) -> None:
        self._splits = splits

    def poll(self) -> Sequence[str]:
        splits, self._splits = self._splits, ()
        return splits

    @property
    def ready(self) -> bool:
        return not self._splits

    @property
    def finished(self) -> bool:
        return not self._splits


def assigned(splits: Sequence[str], subtask: int, parallelism: int) -> Sequence[str]:
    """One subtask's share of all splits: each has one owner."""
    return splits[subtask::parallelism]
