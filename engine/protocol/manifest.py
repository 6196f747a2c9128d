"""What a completed checkpoint consists of. The manifest names every file and carries everything small inline."""

from __future__ import annotations

from typing import Any

import msgspec

from engine.protocol.ids import AttemptId, SubtaskId
from engine.protocol.redistribution import Distribution


class StateFile(msgspec.Struct, frozen=True):
    """One file of state. `group_start`/`group_end`: of keyed state, the key groups in it, sorted and indexed inside."""

    uid: str
    name: str
    path: str
    size: int
    checksum: str
    rows: int
    group_start: int = 0
    group_end: int = 0
    distribution: Distribution = Distribution.KEYED


class Committable(msgspec.Struct, frozen=True):
    """What a sink subtask pre-committed. Its birth identity never changes, whoever replays it."""

    uid: str
    subtask: int
    attempt: AttemptId
    checkpoint: int
    sequence: int
    payload: dict[str, Any]

    @property
    def identity(self) -> tuple[str, int, AttemptId, int, int]:
        return (self.uid, self.subtask, self.attempt, self.checkpoint, self.sequence)


class SubtaskState(msgspec.Struct, frozen=True):
    """The state of one subtask at a barrier. `inline` holds the small part per operator uid (positions, watermarks)."""

    subtask: SubtaskId
    files: list[StateFile]
    inline: dict[str, dict[str, Any]]


class OperatorTimings(msgspec.Struct, frozen=True):
    """One operator's part of its chain's times; the rest of them is the chain's: barrier, queue, fsync."""

    sync_ms: float = 0.0
    async_ms: float = 0.0


class Timings(msgspec.Struct, frozen=True):
    """Where the time of one subtask's snapshot went.

    From the trigger to its first barrier, from there to the last one, the synchronous part, the upload.
    """

    start_delay_ms: float = 0.0
    alignment_ms: float = 0.0
    sync_ms: float = 0.0
    async_ms: float = 0.0
    operators: dict[str, OperatorTimings] = {}


class Manifest(msgspec.Struct, frozen=True):
    """One epoch. `commits` is what it publishes; `carried` every committable some sink still held at the barrier.

    A committable that this epoch's snapshots still hold but an earlier epoch published is in `carried` only, so
    nothing is published twice.
    """

    job: str
    epoch: int
    checkpoint: int
    attempt: AttemptId
    created_ms: int
    max_parallelism: int
    subtasks: list[SubtaskState]
    commits: list[Committable]
    carried: list[Committable]
    ledger: dict[str, int]
    final: bool = False
    rewound_to: int | None = None
    """Made by a rewind: the state of this older epoch again; tables hide what later epochs published."""
    format: int = 1

    @property
    def paths(self) -> list[str]:
        return [file.path for subtask in self.subtasks for file in subtask.files]

    @property
    def state_bytes(self) -> int:
        return sum(file.size for subtask in self.subtasks for file in subtask.files)


class ManifestRef(msgspec.Struct, frozen=True):
    """Where a manifest is and what it must hash to. This is what the epoch log commits."""

    path: str
    checksum: str
    epoch: int
    checkpoint: int
