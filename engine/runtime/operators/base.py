"""What an operator is. All of its methods run on the task thread, so operators need no locks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from engine.core.event_time import EVENT_TIME as EVENT_TIME
from engine.core.paths import JobPaths
from engine.core.ports import Clock, Offload, Store
from engine.protocol.ids import AttemptId, SubtaskId
from engine.protocol.ledger import Counters
from engine.protocol.manifest import Committable
from engine.protocol.redistribution import Distribution
from engine.state.key_groups import KeyGroupRange


class Output(Protocol):
    """What follows an operator: the next one of its chain, or the subtask's output gates."""

    def emit(self, batch: pa.RecordBatch) -> None: ...

    def watermark(self, timestamp_ms: int) -> None: ...


@dataclass(frozen=True)
class OperatorContext:
    """What an operator may use."""

    uid: str
    subtask: SubtaskId
    parallelism: int
    max_parallelism: int
    key_groups: KeyGroupRange
    attempt: AttemptId
    clock: Clock
    offload: Offload
    store: Store
    paths: JobPaths
    counters: Counters
    named: bool = True
    """Whether its uid is the author's own: state is found again by it."""

    @property
    def lane(self) -> str:
        """Offloaded work of one subtask runs in order."""
        return str(self.subtask)

    def count(self, name: str, rows: int) -> None:
        self.counters[name] = self.counters.get(name, 0) + rows


@dataclass(frozen=True)
class StatePart:
    """A state table to write: made by the synchronous part as references, turned into a file by the upload."""

    name: str
    table: Callable[[], pa.Table]
    keys: tuple[str, ...] = ()
    distribution: Distribution = Distribution.KEYED


@dataclass(frozen=True)
class OperatorSnapshot:
    """The state at a barrier. `pre_commit` runs with the upload and returns all that the sink still has to commit."""

    inline: dict[str, Any] = field(default_factory=dict)
    parts: tuple[StatePart, ...] = ()
    pre_commit: Callable[[], list[Committable]] | None = None


@dataclass(frozen=True)
class RestoredState:
    """What a restored subtask finds: the inline parts of each subtask whose key groups meet its own, the tables of its
    key groups, and its shares of operator state."""

    inline: list[dict[str, Any]]
    tables: list[tuple[str, pa.Table]]
    operator: list[tuple[str, Distribution, pa.Table]] = field(default_factory=list)


class Operator:
    """Stateless by default: rows in, rows out."""

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        """Once per subtask, before anything else."""
        self.context = context

    def process(self, batch: pa.RecordBatch, out: Output) -> None:
        raise NotImplementedError

    def process_second(self, batch: pa.RecordBatch, out: Output) -> None:
        """Of operators with two inputs: what came on the second."""
        raise NotImplementedError

    def on_watermark(self, timestamp_ms: int, out: Output) -> None:
        """Fire what is due, then pass the watermark on (B3)."""
        out.watermark(timestamp_ms)

    def on_end(self, out: Output) -> None:
        """No record follows."""

    def snapshot(self, checkpoint: int) -> OperatorSnapshot | None:
        """The synchronous part; None: no state."""
        return None

    def on_complete(self, checkpoint: int) -> None:
        """The checkpoint was published and committed."""

    @property
    def blocked(self) -> bool:
        """Whether it can take no more rows now (a sink whose writes are behind)."""
        return False

    def close(self) -> None:
        """Once per subtask, at the end, however it ends."""
