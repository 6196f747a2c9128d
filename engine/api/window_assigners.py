"""The window assigners of which only the row lane knows: by the clock, sessions, and global windows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from engine.api.functions import callable_with, shown
from engine.api.windows import WindowAssigner, _offset, _positive, sliding
from engine.core.durations import Duration
from engine.core.errors import JobError
from engine.core.window_functions import SessionWindowTimeGapExtractor
from engine.state.windows.assigners import Assigner, GlobalAssigner, SessionAssigner, SpanAssigner
from engine.state.windows.spans import Spans


@dataclass(frozen=True)
class ProcessingTimeWindows(WindowAssigner):
    """Windows of one size, by the clock of the slot that processes a record."""

    spans: Spans

    def compiled(self) -> Assigner:
        return SpanAssigner(False, self.spans)

    def _shifted(self) -> str:
        return f", shifted by {self.spans.offset_ms} ms" if self.spans.offset_ms else ""


class TumblingProcessingTimeWindows(ProcessingTimeWindows):
    """Windows of one size that follow each other without gaps or overlaps, by the clock."""

    def __str__(self) -> str:
        return f"tumbling by {self.spans.size_ms} ms of processing time{self._shifted()}"

    @classmethod
    def of(cls, size: Duration, offset: Duration = 0) -> TumblingProcessingTimeWindows:
        """Returns windows of this size, such as "10 s", which start `offset` after the full size."""
        size_ms = _positive("size", size)
        return cls(Spans(size_ms, size_ms, _offset(offset, "size", size_ms)))


class SlidingProcessingTimeWindows(ProcessingTimeWindows):
    """Windows of one size that overlap, by the clock: a new one starts after each slide."""

    def __str__(self) -> str:
        spans = self.spans
        return f"sliding, {spans.size_ms} ms every {spans.slide_ms} ms of processing time{self._shifted()}"

    @classmethod
    def of(cls, size: Duration, slide: Duration, offset: Duration = 0) -> SlidingProcessingTimeWindows:
        """Returns windows of this size, one for each slide, which start `offset` after the full slide."""
        return cls(sliding(size, slide, offset))


@dataclass(frozen=True)
class EventTimeSessionWindows(WindowAssigner):
    """A window for each period of activity of a key, by event time: it ends a gap after its last record.

    Two records whose times are at most the gap apart are in one session.
    """

    gap: int | Callable[[Any], int]

    def __str__(self) -> str:
        return f"sessions with {_told(self.gap)} of event time"

    @classmethod
    def with_gap(cls, gap: Duration) -> EventTimeSessionWindows:
        """Returns sessions that end after a gap such as "10 s" without records."""
        return cls(_positive("gap", gap))

    @classmethod
    def with_dynamic_gap(
        cls, extractor: SessionWindowTimeGapExtractor | Callable[[Any], int]
    ) -> EventTimeSessionWindows:
        """Returns sessions whose gap each record says: a function of a record that returns ms."""
        return cls(_dynamic(extractor))

    def compiled(self) -> Assigner:
        return SessionAssigner(True, self.gap)


@dataclass(frozen=True)
class ProcessingTimeSessionWindows(WindowAssigner):
    """A window for each period of activity of a key, by the clock: it ends a gap after its last record."""

    gap: int | Callable[[Any], int]

    def __str__(self) -> str:
        return f"sessions with {_told(self.gap)} of processing time"

    @classmethod
    def with_gap(cls, gap: Duration) -> ProcessingTimeSessionWindows:
        """Returns sessions that end after a gap such as "10 s" without records."""
        return cls(_positive("gap", gap))

    @classmethod
    def with_dynamic_gap(
        cls, extractor: SessionWindowTimeGapExtractor | Callable[[Any], int]
    ) -> ProcessingTimeSessionWindows:
        """Returns sessions whose gap each record says: a function of a record that returns ms."""
        return cls(_dynamic(extractor))

    def compiled(self) -> Assigner:
        return SessionAssigner(False, self.gap)


@dataclass(frozen=True)
class GlobalWindows(WindowAssigner):
    """One window per key, which never ends. It is computed only when a trigger says so."""

    def __str__(self) -> str:
        return "global"

    @classmethod
    def create(cls) -> GlobalWindows:
        """Returns the assigner. Set a trigger, too: without one nothing is ever computed."""
        return cls()

    def compiled(self) -> Assigner:
        return GlobalAssigner()


def _told(gap: int | Callable[[Any], int]) -> str:
    return f"a gap of {gap} ms" if isinstance(gap, int) else "a gap that each record says,"


def _dynamic(extractor: object) -> Callable[[Any], int]:
    if isinstance(extractor, SessionWindowTimeGapExtractor):
        return extractor.extract
    if isinstance(extractor, type) or not callable(extractor):
        raise JobError(
            "with_dynamic_gap takes a function of a record that returns milliseconds, such as "
            f"lambda row: row['gap_ms'], or a SessionWindowTimeGapExtractor, not {shown(extractor)}"
        )
    if not callable_with(extractor, "record"):
        raise JobError(f"with_dynamic_gap: {shown(extractor)} must take (record): as in lambda row: row['gap_ms']")
    return extractor
