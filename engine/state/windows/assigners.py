"""Assigners of the row lane: they say which windows a single record belongs to. Pure.

A window is a pair (start, end) here. The pair of a global window is (0, 0).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from engine.core.functions import Row
from engine.core.windows import GlobalWindow, TimeWindow, Window
from engine.state.windows.spans import Spans

Span = tuple[int, int]
"""The start and the end of a window."""


@dataclass(frozen=True)
class Assigner(ABC):
    """`event_time`: windows are assigned by the event time of records, so records may be late."""

    event_time: bool

    merging = False
    """True if windows that touch become one."""

    @abstractmethod
    def assign(self, record: Row, at_ms: int) -> list[Span]:
        """Returns the windows of a record with this time."""

    def window(self, span: Span) -> Window:
        """Returns a window as functions see it."""
        return TimeWindow(*span)


@dataclass(frozen=True)
class SpanAssigner(Assigner):
    """Windows of one size, one for each slide."""

    spans: Spans

    def assign(self, record: Row, at_ms: int) -> list[Span]:
        size_ms, slide_ms = self.spans.size_ms, self.spans.slide_ms
        last = self.spans.last_window(at_ms)
        return [(start, start + size_ms) for start in range(last, at_ms - size_ms, -slide_ms)][::-1]


@dataclass(frozen=True)
class SessionAssigner(Assigner):
    """Each record opens a window as long as its gap; windows of a key that touch are merged."""

    gap: int | Callable[[Any], int]

    merging = True

    def assign(self, record: Row, at_ms: int) -> list[Span]:
        gap_ms = self.gap if isinstance(self.gap, int) else self._dynamic(self.gap(record))
        return [(at_ms, at_ms + gap_ms)]

    def _dynamic(self, gap_ms: Any) -> int:
        if type(gap_ms) is not int or gap_ms < 1:
            raise ValueError(f"the gap of a session window is {gap_ms!r}: return milliseconds, an int of 1 or more")
        return gap_ms


@dataclass(frozen=True)
class GlobalAssigner(Assigner):
    """One window per key, which never ends."""

    event_time: bool = False

    def assign(self, record: Row, at_ms: int) -> list[Span]:
        return [(0, 0)]

    def window(self, span: Span) -> Window:
        return GlobalWindow()
