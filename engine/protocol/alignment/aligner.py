"""When has a barrier come on every channel? One `BarrierAligner` per input gate, and what it says.

A gate only asks `blocked(channel)` and tells what came, so a further mode (unaligned) is a further class beside
`aligned.py` and `tracked.py` and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Aligned:
    """The barrier has come on every channel: take the snapshot now."""

    checkpoint: int
    alignment_ms: float


@dataclass(frozen=True)
class Superseded:
    """A barrier of a newer checkpoint came first: the older one will never be complete here."""

    checkpoint: int


BarrierOutcome = Aligned | Superseded


class BarrierAligner(Protocol):
    def blocked(self, channel: int) -> bool:
        """Whether nothing may be taken from this channel now."""

    def on_barrier(self, channel: int, checkpoint: int, now_ms: float) -> list[BarrierOutcome]:
        """A barrier was taken from this channel."""

    def on_abort(self, checkpoint: int) -> None:
        """The checkpoint was aborted: its barriers mean nothing any more."""
