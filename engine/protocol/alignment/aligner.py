"""`BarrierAligner` decides when a barrier has arrived on every channel; each input gate has one.

The gate only asks `blocked(channel)` and reports barriers and aborts. So another mode (unaligned) only needs another
class beside those of `aligned.py` and `tracked.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Aligned:
    """The barrier has arrived on every channel; the subtask takes its snapshot now."""

    checkpoint: int
    alignment_ms: float


@dataclass(frozen=True)
class Superseded:
    """A newer checkpoint's barrier arrived first, so this checkpoint will never be complete here."""

    checkpoint: int


BarrierOutcome = Aligned | Superseded


class BarrierAligner(Protocol):
    def blocked(self, channel: int) -> bool:
        """Returns True if the gate may take nothing from this channel now."""

    def on_barrier(self, channel: int, checkpoint: int, now_ms: float) -> list[BarrierOutcome]:
        """Takes note of a barrier that the gate took from this channel."""

    def on_abort(self, checkpoint: int) -> None:
        """Takes note of an aborted checkpoint; its barriers are ignored from now on."""
