"""The manifest of an epoch. It names every file of the snapshot and carries small values inline."""

from __future__ import annotations

from typing import Any

import msgspec

from engine.protocol.gate import GateVerdict
from engine.protocol.ids import AttemptId, SubtaskId
from engine.protocol.job_description import JobDescription
from engine.protocol.redistribution import Distribution


class StateFile(msgspec.Struct, frozen=True):
    """One state file. A file of keyed state holds the key groups from `group_start` to `group_end` (exclusive)."""

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
    """Output that a sink's subtask pre-committed. Its identity stays the same when a later attempt restores it."""

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
    """The state of one subtask at a barrier. `inline` holds small values by operator uid (positions, watermarks)."""

    subtask: SubtaskId
    files: list[StateFile]
    inline: dict[str, dict[str, Any]]


class OperatorTimings(msgspec.Struct, frozen=True):
    """One operator's part of its subtask's timings. The rest (barrier, queue, fsync) belongs to the whole chain."""

    sync_ms: float = 0.0
    async_ms: float = 0.0


class Timings(msgspec.Struct, frozen=True):
    """The durations of one subtask's snapshot.

    `start_delay_ms` is from the trigger to the first barrier, `alignment_ms` from there to the last barrier, `sync_ms`
    the part on the task thread, `async_ms` the upload. The start delay compares the wall clocks of the JobMaster and of
    the slot, so it is wrong by the difference between them. Nothing is decided by it.
    """

    start_delay_ms: float = 0.0
    alignment_ms: float = 0.0
    sync_ms: float = 0.0
    async_ms: float = 0.0
    operators: dict[str, OperatorTimings] = {}


FORMAT = 1
"""The format of manifests and of the state files that they name. What older versions can't read gets a new number."""


class Manifest(msgspec.Struct, frozen=True):
    """Describes one epoch.

    `commits` is the output that the epoch publishes. `carried` holds every committable that a sink still held at the
    barrier. A committable that an earlier epoch published is in `carried` only, so nothing is published twice.
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
    description: JobDescription = JobDescription()
    """The job that took the snapshot."""
    final: bool = False
    drained: bool = False
    """All windows and timers have fired before the sources were read to their ends: the job can't go on from here."""
    rewound_to: int | None = None
    """Set by a rewind: the older epoch whose state this is. Tables hide the output of the epochs in between."""
    inputs: dict[str, str] = {}
    """Copies of the inputs that the job has to begin with, and their checksums. Only a snapshot that was copied from a
    savepoint or from another job has them."""
    verdicts: list[GateVerdict] = []
    """What the gates of sinks have said about the rows of this epoch."""
    format: int = FORMAT

    @property
    def state_bytes(self) -> int:
        return sum(file.size for subtask in self.subtasks for file in subtask.files)


class ManifestRef(msgspec.Struct, frozen=True):
    """Points to a manifest, with its checksum. The records of the epoch log hold it."""

    path: str
    checksum: str
    epoch: int
    checkpoint: int
