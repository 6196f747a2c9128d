"""The rules of the epoch log. It is dense and append-only; each record is a fence or an epoch.

Invariants: the record after number n is n + 1, made by create-if-absent, so exactly one writer makes it; a writer that
finds a foreign record where it would write has been replaced and stops. Every record carries the generation in force
and the newest epoch, so the last record alone tells where the job stands.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import msgspec

from engine.protocol.ids import Generation
from engine.protocol.manifest import ManifestRef


class RecordKind(Enum):
    FENCE = "fence"
    EPOCH = "epoch"
    REWIND = "rewind"


class LogRecord(msgspec.Struct, frozen=True):
    """`owner` tells two writers of the same generation number apart, so that equal bytes mean: ours."""

    number: int
    kind: RecordKind
    generation: int
    owner: str
    newest: ManifestRef | None
    next_checkpoint: int


class Created(Enum):
    """What became of a create. UNKNOWN: no answer; repeat the same bytes until the answer is definite."""

    CREATED = "created"
    EXISTS = "exists"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Claimed:
    """This process owns the job from here on."""

    record: LogRecord

    @property
    def generation(self) -> Generation:
        return Generation(self.record.generation)


def fence_after(last: LogRecord | None, owner: str) -> LogRecord:
    """The record by which a new JobMaster takes over."""
    return LogRecord(
        number=last.number + 1 if last else 1,
        kind=RecordKind.FENCE,
        generation=last.generation + 1 if last else 1,
        owner=owner,
        newest=last.newest if last else None,
        next_checkpoint=last.next_checkpoint if last else 1,
    )


def epoch_after(last: LogRecord, manifest: ManifestRef) -> LogRecord:
    """The record by which the owner of `last` publishes an epoch."""
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
    )


def rewind_after(last: LogRecord, manifest: ManifestRef) -> LogRecord:
    """The record by which an operator goes back to older state. Its epoch is new: numbers are never used again."""
    assert last.newest is not None and manifest.epoch > last.newest.epoch
    assert manifest.checkpoint >= last.next_checkpoint, f"checkpoint {manifest.checkpoint} was used before"
    return LogRecord(
        number=last.number + 1,
        kind=RecordKind.REWIND,
        generation=last.generation,
        owner=last.owner,
        newest=manifest,
        next_checkpoint=manifest.checkpoint + 1,
    )
