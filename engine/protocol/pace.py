"""`Pace` measures how fast a gate consumes, and says how many bytes are worth having in flight."""

from __future__ import annotations

WINDOW_MS = 100.0
"""A measurement covers at least this much time in which the gate had something to consume."""
SMOOTHING = 0.5
"""The weight of the newest measurement."""


class Pace:
    """Time counts only from an element that was taken to the next look: a starved gate says nothing of its speed."""

    def __init__(self, target_ms: float) -> None:
        self._target_ms = target_ms
        self._bytes_per_ms: float | None = None
        self._bytes = 0
        self._busy_ms = 0.0
        self._taken_ms: float | None = None

    def look(self, now_ms: float) -> int | None:
        """Notes that the last element is done. Returns the bytes to have in flight if a measurement is complete."""
        if self._taken_ms is None:
            return None
        self._busy_ms += now_ms - self._taken_ms
        self._taken_ms = None
        if self._busy_ms < WINDOW_MS or not self._bytes:
            return None
        measured = self._bytes / self._busy_ms
        before = self._bytes_per_ms
        self._bytes_per_ms = measured if before is None else before + SMOOTHING * (measured - before)
        self._bytes, self._busy_ms = 0, 0.0
        return int(self._bytes_per_ms * self._target_ms)

    def took(self, size: int, now_ms: float) -> None:
        self._bytes += size
        self._taken_ms = now_ms
