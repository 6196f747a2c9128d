"""The interface of sources. A `Discovery` finds splits; a `SplitReader` reads one split and knows its position.

Invariant: both are called on the task thread and never block. Blocking work goes through the context's `Offload`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from engine.core.paths import JobPaths
from engine.core.ports import Clock, Offload, Store
from engine.core.tags import OutputTag
from engine.protocol.ids import AttemptId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MALFORMED = OutputTag(
    "malformed",
    pa.schema([("file", pa.string()), ("line", pa.int64()), ("text", pa.string()), ("reason", pa.string())]),
)
"""The side output for records that do not fit the declared schema."""


@dataclass(frozen=True)
class SourceContext:
    """Gives one subtask of a source its place in the job and the ports that it may use."""

    uid: str
    subtask: int
    parallelism: int
    clock: Clock
    offload: Offload
    store: Store
    paths: JobPaths
    schema: pa.Schema
    attempt: AttemptId
    restored: bool = False
    """True if the job goes on from an epoch in which the source took part."""
    discovered: Sequence[Any] = ()
    """`Discovery.state` of each subtask of the source in that epoch."""
    dictionaries: frozenset[str] = frozenset()
    """Columns that readers may give as dictionaries of their type: keys that are only grouped by."""
    columns: frozenset[str] | None = None
    """The columns that the job reads; readers may leave out the others. None: all."""

    @property
    def queue(self) -> str:
        """The offload queue for reads: the reads of a subtask run in order, and its uploads do not wait for them."""
        return f"{self.uid}[{self.subtask}] reads"


class SplitReader(ABC):
    """Reads one split. It is called on the task thread, so `poll` never blocks."""

    @abstractmethod
    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        """Returns the next rows, at most `max_rows`, or None if there are none now."""

    @property
    @abstractmethod
    def position(self) -> Any:
        """The position after the last row that was polled, as JSON. A new reader can start there."""

    @property
    @abstractmethod
    def finished(self) -> bool:
        """True if no more rows will ever follow."""

    @property
    def wakeup_ms(self) -> float | None:
        """The monotonic time at which to poll again after a poll without rows; None: soon, or after offloaded work."""
        return None

    def malformed(self) -> pa.RecordBatch | None:
        """Returns the malformed records met before `position`, as rows of `MALFORMED`. Each is returned once."""
        return None

    def close(self) -> None:  # noqa: B027 (few have something to release)
        """Releases its resources."""


class Discovery(ABC):
    """Finds the splits of one subtask while it runs. At any parallelism each split belongs to one subtask."""

    @abstractmethod
    def poll(self) -> Sequence[str]:
        """Returns the splits found since the last call, in the order in which to read them."""

    @property
    @abstractmethod
    def ready(self) -> bool:
        """True after the first listing; before it there is no snapshot (splits would be missing), and the source is not
        idle."""

    @property
    @abstractmethod
    def finished(self) -> bool:
        """True if no more splits will ever follow."""

    @property
    def wakeup_ms(self) -> float | None:
        """The monotonic time at which to poll again, or None to poll after offloaded work is done."""
        return None

    @property
    def state(self) -> Any:
        """What a snapshot holds besides the splits that were polled, as JSON; None: nothing."""
        return None

    def completed(self, positions: Mapping[str, Any]) -> None:  # noqa: B027 (few tell anybody)
        """Hears that a checkpoint is complete: the positions of the splits that this subtask was reading by then."""

    def close(self) -> None:  # noqa: B027 (few have something to release)
        """Releases its resources. It is called after the readers are closed."""


class Source(ABC):
    """A resettable source: it can continue from any position that one of its readers reported."""

    open_splits: int | None = None
    """The number of splits that a subtask reads at a time, in their order; None: all splits, in turn."""

    side_outputs: tuple[OutputTag, ...] = ()

    @property
    def positions(self) -> str:
        """What the positions in a snapshot refer to besides the names of splits. If it changes, they can't be used."""
        return ""

    @property
    def max_parallelism(self) -> int | None:
        """The number of subtasks beyond which some would have nothing to read; None if it is unknown before the run."""
        return None

    def check(self, schema: pa.Schema) -> None:  # noqa: B027 (most take any)
        """Raises a WeirError if the source can't read records of the declared schema."""

    def prepare(self, uid: str, session: SparkSession, store: Store, paths: JobPaths) -> None:  # noqa: B027
        """Prepares the source. The JobMaster calls it before slots start."""

    @abstractmethod
    def discovery(self, context: SourceContext, known: Sequence[str]) -> Discovery:
        """Returns the discovery of one subtask.

        `known` are the splits of all subtasks in the snapshot that this attempt was restored from.
        """

    @abstractmethod
    def reader(self, split: str, position: Any, context: SourceContext) -> SplitReader:
        """Returns a reader that starts at `position`, or at the beginning of the split if it is None."""


class FixedSource(Source):
    """A source whose splits are known when the job is built. They are assigned to the subtasks in turn."""

    @abstractmethod
    def splits(self) -> Sequence[str]:
        """Returns the ids of the splits, always in the same order."""

    @property
    def max_parallelism(self) -> int:
        return len(self.splits())

    def discovery(self, context: SourceContext, known: Sequence[str]) -> Discovery:
        return Dealt(assigned(self.splits(), context.subtask, context.parallelism))


class Dealt(Discovery):
    """The discovery of splits that are known from the start."""

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
    """Returns the splits of one subtask. Each split belongs to exactly one subtask."""
    return splits[subtask::parallelism]
