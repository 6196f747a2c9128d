"""When has a barrier come on every channel? One `BarrierAligner` per input gate.

Invariant of `AlignedBarriers`: between the first and the last barrier of a checkpoint no record from a channel whose
barrier has come is handed out. `TrackedBarriers` (at-least-once) never holds a channel back. A gate only asks
`blocked(channel)` and tells what came, so a further mode (unaligned) is a further class here and nothing else.
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


Outcome = Aligned | Superseded


class BarrierAligner(Protocol):
    def blocked(self, channel: int) -> bool:
        """Whether nothing may be taken from this channel now."""

    def on_barrier(self, channel: int, checkpoint: int, now_ms: float) -> list[Outcome]:
        """A barrier was taken from this channel."""

    def on_abort(self, checkpoint: int) -> None:
        """The checkpoint was aborted: its barriers mean nothing any more."""


class AlignedBarriers:
    """EXACTLY_ONCE: one checkpoint is aligned at a time; channels that have its barrier wait for the others."""

    def __init__(self, channels: int) -> None:
        assert channels > 0
        self._channels = channels
        self._current: int | None = None
        self._arrived: set[int] = set()
        self._since_ms = 0.0
        self._closed = 0  # every checkpoint up to this one is over here: aligned, superseded or aborted
        self._aborted: set[int] = set()  # later ones that are over already; what is aligned now goes on

    def blocked(self, channel: int) -> bool:
        return channel in self._arrived

    def on_barrier(self, channel: int, checkpoint: int, now_ms: float) -> list[Outcome]:
        assert channel not in self._arrived, f"channel {channel} was read while it was blocked"
        outcomes: list[Outcome] = []
        if checkpoint <= self._closed or checkpoint in self._aborted:
            return outcomes
        if self._current is not None and checkpoint < self._current:
            return outcomes
        if self._current is not None and checkpoint > self._current:
            outcomes.append(Superseded(self._current))
            self._release(self._current)
        if self._current is None:
            self._current = checkpoint
            self._since_ms = now_ms
        self._arrived.add(channel)
        if len(self._arrived) == self._channels:
            self._release(checkpoint)
            outcomes.append(Aligned(checkpoint, now_ms - self._since_ms))
        return outcomes

    def on_abort(self, checkpoint: int) -> None:
        if checkpoint == self._current:
            self._release(checkpoint)
        elif checkpoint > self._closed:
            self._aborted.add(checkpoint)

    def _release(self, checkpoint: int) -> None:
        self._closed = max(self._closed, checkpoint)
        self._aborted = {c for c in self._aborted if c > self._closed}
        self._current = None
        self._arrived.clear()


class TrackedBarriers:
    """AT_LEAST_ONCE: count barriers, never hold a channel back; several checkpoints may be under way."""

    def __init__(self, channels: int) -> None:
        assert channels > 0
        self._channels = channels
        self._arrived: dict[int, set[int]] = {}
        self._since_ms: dict[int, float] = {}
        self._closed = 0
        self._aborted: set[int] = set()

    def blocked(self, channel: int) -> bool:
        return False

    def on_barrier(self, channel: int, checkpoint: int, now_ms: float) -> list[Outcome]:
        if checkpoint <= self._closed or checkpoint in self._aborted:
            return []
        arrived = self._arrived.setdefault(checkpoint, set())
        self._since_ms.setdefault(checkpoint, now_ms)
        arrived.add(channel)
        if len(arrived) < self._channels:
            return []
        outcomes: list[Outcome] = [Superseded(older) for older in sorted(self._arrived) if older < checkpoint]
        outcomes.append(Aligned(checkpoint, now_ms - self._since_ms[checkpoint]))
        self._close(checkpoint)
        return outcomes

    def on_abort(self, checkpoint: int) -> None:
        self._arrived.pop(checkpoint, None)
        self._since_ms.pop(checkpoint, None)
        if checkpoint > self._closed:
            self._aborted.add(checkpoint)

    def _close(self, checkpoint: int) -> None:
        self._closed = max(self._closed, checkpoint)
        self._aborted = {c for c in self._aborted if c > self._closed}
        for older in [c for c in self._arrived if c <= checkpoint]:
            del self._arrived[older]
            del self._since_ms[older]
