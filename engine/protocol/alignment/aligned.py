"""`AlignedBarriers` aligns barriers for exactly-once checkpoints.

Invariant: between the first and the last barrier of a checkpoint, no record is handed out from a channel whose barrier
has arrived.
"""

from __future__ import annotations

from engine.protocol.alignment.aligner import Aligned, BarrierOutcome, Superseded


class AlignedBarriers:
    """Aligns one checkpoint at a time (EXACTLY_ONCE); channels whose barrier has arrived wait for the others."""

    def __init__(self, channels: int) -> None:
        assert channels > 0
        self._channels = channels
        self._current: int | None = None
        self._arrived: set[int] = set()
        self._since_ms = 0.0
        self._closed = 0  # every checkpoint up to this one is aligned, superseded or aborted
        self._aborted: set[int] = set()  # aborted checkpoints after `_closed`, other than the current one

    def blocked(self, channel: int) -> bool:
        return channel in self._arrived

    def on_barrier(self, channel: int, checkpoint: int, now_ms: float) -> list[BarrierOutcome]:
        assert channel not in self._arrived, f"channel {channel} was read while it was blocked"
        outcomes: list[BarrierOutcome] = []
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
