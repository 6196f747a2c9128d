"""`TrackedBarriers` tracks barriers for at-least-once checkpoints. Invariant: it never blocks a channel."""

from __future__ import annotations

from engine.protocol.alignment.aligner import Aligned, BarrierOutcome, Superseded


class TrackedBarriers:
    """Counts the barriers of each checkpoint (AT_LEAST_ONCE); several checkpoints may be under way."""

    def __init__(self, channels: int) -> None:
        assert channels > 0
        self._channels = channels
        self._arrived: dict[int, set[int]] = {}
        self._since_ms: dict[int, float] = {}
        self._closed = 0
        self._aborted: set[int] = set()

    def blocked(self, channel: int) -> bool:
        return False

    def on_barrier(self, channel: int, checkpoint: int, now_ms: float) -> list[BarrierOutcome]:
        if checkpoint <= self._closed or checkpoint in self._aborted:
            return []
        arrived = self._arrived.setdefault(checkpoint, set())
        self._since_ms.setdefault(checkpoint, now_ms)
        arrived.add(channel)
        if len(arrived) < self._channels:
            return []
        outcomes: list[BarrierOutcome] = [Superseded(older) for older in sorted(self._arrived) if older < checkpoint]
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
