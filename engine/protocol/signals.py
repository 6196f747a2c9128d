"""What travels between batches. A channel keeps order: a signal never overtakes data."""

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
    """On the wall clock: how long a barrier was under way is part of each checkpoint's history."""


class EndOfData(msgspec.Struct, frozen=True, tag="e"):
    """No record follows; barriers still may, until the final checkpoint is complete."""


class StreamStatus(msgspec.Struct, frozen=True, tag="s"):
    """Idle: nothing comes until the next `StreamStatus(idle=False)`, so whoever listens need not wait for it (B2)."""

    idle: bool


Signal = Watermark | Barrier | EndOfData | StreamStatus
