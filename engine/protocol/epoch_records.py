"""The rules of the epoch log. It is append-only; each record is a fence, an epoch or a rewind.

Invariants: the record after number n has number n + 1 and is made by create-if-absent, so exactly one writer makes it.
A writer that finds another writer's record in its place has been replaced, and stops. Every record carries the current
generation and the newest epoch, so the last record alone tells where the job stands.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import Enum

import msgspec

from engine.protocol.ids import Generation
from engine.protocol.manifest import ManifestRef


class RecordKind(Enum):
    FENCE = "fence"
    EPOCH = "epoch"
    REWIND = "rewind"


class LogRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One record of the epoch log.

    `owner` tells two writers apart that claim the same generation: a record with equal bytes is the writer's own.
    `job_id` is made with the first record and never changes. Jobs of the same name in two stores have different ids,
    and so have a job and its fork. `checksum` is that of all other fields; it is empty in records of earlier versions.
    A rewind says to which epoch it went `back_to` (None in records of earlier versions), and whether tables hide the
    output of the epochs in between.
    """

    number: int
    kind: RecordKind
    generation: int
    owner: str
    newest: ManifestRef | None
    next_checkpoint: int
    job_id: str
    checksum: str = ""
    back_to: int | None = None
    hides: bool = False

    def sealed(self) -> LogRecord:
        """Returns the record with its checksum: one changed bit could let two attempts use the same names."""
        return msgspec.structs.replace(self, checksum=self._digest())

    @property
    def intact(self) -> bool:
        return self.checksum in ("", self._digest())

    def _digest(self) -> str:
        rest = msgspec.structs.replace(self, checksum="")
        return hashlib.blake2b(msgspec.json.encode(rest), digest_size=8).hexdigest()


class Created(Enum):
    """The outcome of `Store.create`. After UNKNOWN the caller repeats the same bytes until the outcome is definite."""

    CREATED = "created"
    EXISTS = "exists"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Claimed:
    """Shows that this process owns the job from this record on."""

    record: LogRecord

    @property
    def generation(self) -> Generation:
        return Generation(self.record.generation)


def job_id_from(owner: str) -> str:
    """Returns the id of the job whose first record this owner makes. Owners are random, so no two jobs share an id."""
    return hashlib.blake2b(owner.encode(), digest_size=6).hexdigest()


def fence_after(last: LogRecord | None, owner: str) -> LogRecord:
    """Returns the record by which a new JobMaster takes over."""
    return LogRecord(
        number=last.number + 1 if last else 1,
        kind=RecordKind.FENCE,
        generation=last.generation + 1 if last else 1,
        owner=owner,
        newest=last.newest if last else None,
        next_checkpoint=last.next_checkpoint if last else 1,
        job_id=last.job_id if last else job_id_from(owner),
    ).sealed()


def epoch_after(last: LogRecord, manifest: ManifestRef) -> LogRecord:
    """Returns the record by which the owner of `last` publishes an epoch."""
    expected = last.newest.epoch + 1 if last.newest else 1
    assert manifest.epoch == expected, f"epoch {manifest.epoch} would follow {expected - 1}"
    assert manifest.checkpoint >= last.next_checkpoint, f"checkpoint {manifest.checkpoint} was used before"
    return LogRecord(
        number=last.number + 1,
        kind=RecordKind.EPOCH,
        generation=last.generation,
        owner=last.owner,
        newest=manifest,
        next_checkpoint=manifest.checkpoint + 1,
        job_id=last.job_id,
    ).sealed()


def rewind_after(last: LogRecord, manifest: ManifestRef, back_to: int, hides: bool) -> LogRecord:
    """Returns the record by which a person goes back to older state. Its epoch number is new: none is used twice."""
    assert last.newest is not None and manifest.epoch > last.newest.epoch
    assert manifest.checkpoint >= last.next_checkpoint, f"checkpoint {manifest.checkpoint} was used before"
    return LogRecord(
        number=last.number + 1,
        kind=RecordKind.REWIND,
        generation=last.generation,
        owner=last.owner,
        newest=manifest,
        next_checkpoint=manifest.checkpoint + 1,
        job_id=last.job_id,
        back_to=back_to,
        hides=hides,
    ).sealed()
