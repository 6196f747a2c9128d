"""Signals travel between the batches of a channel. Invariant: a channel keeps order, so no signal overtakes data."""

from __future__ import annotations

import msgspec

MIN_WATERMARK = -(2**63)
MAX_WATERMARK = 2**63 - 1


class Watermark(msgspec.Struct, frozen=True, tag="w"):
    """No record with an event time at or below `timestamp_ms` follows, except late ones."""

    timestamp_ms: int


class Barrier(msgspec.Struct, frozen=True, tag="b"):
    """Separates the records of checkpoint `checkpoint` from those after it."""

    checkpoint: int
    triggered_at_ms: int
    """Unix time of the trigger: the history of each checkpoint shows how long its barriers took to arrive."""
    digests: bool = False
    """Subtasks digest their state with this checkpoint, for the proof of a rescale."""
    into: str = ""
    """The folder of the store for the state files; empty: that of the checkpoint."""


class EndOfData(msgspec.Struct, frozen=True, tag="e"):
    """No record follows. Barriers may still follow, until the final checkpoint is complete."""


class StreamStatus(msgspec.Struct, frozen=True, tag="s"):
    """An idle channel sends nothing until `StreamStatus(idle=False)`; its receiver's clock ignores it (B2)."""

    idle: bool


Signal = Watermark | Barrier | EndOfData | StreamStatus
