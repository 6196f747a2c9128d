"""The interface of operators. All methods run on the task thread, so operators need no locks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from engine.core.event_time import EVENT_TIME as EVENT_TIME
from engine.core.paths import JobPaths
from engine.core.ports import Clock, Offload, Store
from engine.core.tags import OutputTag
from engine.protocol.ids import AttemptId, SubtaskId
from engine.protocol.ledger import Counters
from engine.protocol.manifest import Committable
from engine.protocol.redistribution import Distribution
from engine.state.group_clock import GroupClock
from engine.state.key_groups import KeyGroupRange

if TYPE_CHECKING:  # it makes dead letters of an operator's records, so it imports operators
    from engine.runtime.operators.failed_records import FailedRecords

WATERMARKS = "watermarks"
"""The inline value that holds the watermarks of an operator's key groups."""


Gauges = dict[tuple[str, str], Callable[[], float]]
"""The gauges of a subtask's functions, by operator uid and name."""


class Output(Protocol):
    """Where an operator emits to: the next operator of its chain, or the subtask's output gates."""

    def emit(self, batch: pa.RecordBatch) -> None: ...

    def emit_side(self, uid: str, tag: OutputTag, batch: pa.RecordBatch) -> None:
        """Emits to a side output of the operator with this uid."""

    def watermark(self, timestamp_ms: int) -> None: ...


@dataclass(frozen=True)
class OperatorContext:
    """The identity of an operator in one subtask and attempt, and the services that it may use."""

    uid: str
    subtask: SubtaskId
    parallelism: int
    max_parallelism: int
    key_groups: KeyGroupRange
    attempt: AttemptId
    job_id: str
    clock: Clock
    offload: Offload
    store: Store
    paths: JobPaths
    counters: Counters
    gauges: Gauges = field(default_factory=dict)
    named: bool = True
    """True if the author chose the uid, so that state can be found by it."""

    @property
    def queue(self) -> str:
        """The queue of offloaded work: the work of one subtask runs in order."""
        return str(self.subtask)

    def group_clock(self, restored: RestoredState | None) -> GroupClock:
        """Returns the clock of a keyed operator, at the watermarks that its snapshots hold under `WATERMARKS`."""
        saved = (inline[WATERMARKS] for inline in (restored.inline if restored else []))
        return GroupClock(self.key_groups, self.max_parallelism, saved)

    def count(self, name: str, rows: int) -> None:
        self.counters[name] = self.counters.get(name, 0) + rows


@dataclass(frozen=True)
class StatePart:
    """A state table to write: `table` holds references taken at the barrier; the upload calls it and writes a file."""

    name: str
    table: Callable[[], pa.Table]
    keys: tuple[str, ...] = ()
    distribution: Distribution = Distribution.KEYED


@dataclass(frozen=True)
class OperatorSnapshot:
    """The state at a barrier. `pre_commit` runs with the upload and returns all committables that are not committed."""

    inline: dict[str, Any] = field(default_factory=dict)
    parts: tuple[StatePart, ...] = ()
    pre_commit: Callable[[], list[Committable]] | None = None


@dataclass(frozen=True)
class RestoredState:
    """The state that one operator of a restored subtask starts from.

    `inline`: the inline values of all subtasks of the snapshot that have some, in order. `tables`: the rows of its key
    groups. `operator`: its shares of operator state.
    """

    inline: list[dict[str, Any]]
    tables: list[tuple[str, pa.Table]]
    operator: list[tuple[str, Distribution, pa.Table]] = field(default_factory=list)

    def inline_of(self, context: OperatorContext) -> list[dict[str, Any]]:
        """Returns the value that this subtask wrote; after rescaling, the values of all subtasks.

        It is for operators of which every subtask writes a value, and which have no keys.
        """
        same = len(self.inline) == context.parallelism
        return [self.inline[context.subtask.index]] if same else self.inline


class Operator:
    """One operator in one subtask. It keeps no state unless a subclass overrides `snapshot`."""

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        """Called once per subtask, before any other method."""
        self.context = context

    def leave_out(self, failed: FailedRecords) -> None:
        """Is called before `open`: records that can't be processed are left out instead of ending the attempt."""
        raise NotImplementedError(f"{type(self).__name__} can't leave records out")

    def process(self, batch: pa.RecordBatch, out: Output) -> None:
        raise NotImplementedError

    def process_second(self, batch: pa.RecordBatch, out: Output) -> None:
        """Processes a batch of the second input, for operators with two."""
        raise NotImplementedError

    def on_watermark(self, timestamp_ms: int, out: Output) -> None:
        """Fires the windows that are due, then passes the watermark on (B3).

        An operator with many timers keeps the watermark, is `firing` from then on, and passes it on from `work`.
        """
        out.watermark(timestamp_ms)

    def release(self, out: Output) -> None:
        """Emits all rows that it holds back, before a barrier and before its input is idle."""

    def work(self, max_rows: int, out: Output) -> bool:
        """Does a bounded part of what is due by itself, such as timers. Returns False if nothing was due."""
        return False

    @property
    def dictionaries(self) -> frozenset[str]:
        """The columns of its input that may come as dictionaries of their type."""
        return frozenset()

    def reads(self, behind: frozenset[str] | None) -> frozenset[str] | None:
        """Returns the columns of its input that it and those behind it read; None: it may read all.

        `behind`: the columns that those behind it read of its output; None: all. The others may be left out.
        """
        return None

    @property
    def firing(self) -> bool:
        """True while the operator holds a watermark back. Until it lets it go it takes no input and no snapshot."""
        return False

    @property
    def due_ms(self) -> float | None:
        """The monotonic time at which `work` will have something to do by itself; None: not known."""
        return None

    def on_end(self, out: Output) -> None:
        """Called when no record follows."""

    def snapshot(self, checkpoint: int) -> OperatorSnapshot | None:
        """Takes the synchronous part of a snapshot; None: the operator has no state."""
        return None

    def on_complete(self, checkpoint: int) -> None:
        """Called after the checkpoint was published and committed."""

    @property
    def records_done(self) -> int:
        """The number of records that were handed to a Python function one by one. Read by other threads."""
        return 0

    @property
    def blocked(self) -> bool:
        """True while the operator can take no rows, such as a sink whose writes are behind."""
        return False

    @property
    def wakeup_ms(self) -> float | None:
        """The monotonic time at which a blocked operator has to be asked again; None: after offloaded work."""
        return None

    def close(self) -> None:
        """Called once per subtask when it ends, also after a failure."""
