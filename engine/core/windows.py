"""Windows as functions and triggers see them (B4)."""

from __future__ import annotations

from dataclasses import dataclass

from engine.protocol.signals import MAX_WATERMARK


@dataclass(frozen=True, order=True)
class TimeWindow:
    """The times from `start`, inclusive, to `end`, exclusive, in Unix ms."""

    start: int
    end: int

    def max_timestamp(self) -> int:
        """Returns the last time that is in the window."""
        return self.end - 1


@dataclass(frozen=True)
class GlobalWindow:
    """The one window of a key, which never ends. Count windows are global windows with a trigger that counts."""

    def max_timestamp(self) -> int:
        """Returns the end of time."""
        return MAX_WATERMARK


Window = TimeWindow | GlobalWindow
