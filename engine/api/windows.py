"""Window assigners: they say which windows a record belongs to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from engine.core.durations import Duration, to_ms, to_signed_ms
from engine.core.errors import JobError
from engine.state.windows.assigners import Assigner, SpanAssigner
from engine.state.windows.spans import Spans

MOST_WINDOWS = 100_000
"""The most windows that a record may be in: a day every second. A job with more would hardly get on."""

LONGEST_MS = 1000 * 365 * 86_400_000
"""Event time ends with the year 9999, and so should the windows of nearly all of it."""


class WindowAssigner(ABC):
    """Says which windows a record belongs to. `of`, `with_gap` or `create` of its classes makes one."""

    @abstractmethod
    def compiled(self) -> Assigner:
        """Returns the assigner of the row lane."""


@dataclass(frozen=True)
class EventTimeWindows(WindowAssigner):
    """Windows of one size, by event time. A window contains the times from its start, inclusive, to its end, exclusive.

    Windows are aligned to 1970: those of 10 seconds start at :00, :10, :20 and so on.
    """

    spans: Spans

    def __post_init__(self) -> None:
        if not isinstance(self.spans, Spans):
            raise JobError(f"write {type(self).__name__}.of({self.spans!r}, ...), not {type(self).__name__}(...)")

    def compiled(self) -> Assigner:
        return SpanAssigner(True, self.spans)

    def _shifted(self) -> str:
        return f", shifted by {self.spans.offset_ms} ms" if self.spans.offset_ms else ""


class TumblingEventTimeWindows(EventTimeWindows):
    """Windows of one size that follow each other without gaps or overlaps."""

    def __str__(self) -> str:
        return f"tumbling by {self.spans.size_ms} ms of event time{self._shifted()}"

    @classmethod
    def of(cls, size: Duration, offset: Duration = 0) -> TumblingEventTimeWindows:
        """Returns windows of this size, such as "10 s".

        They start `offset` after the full size: for days that start at 16:00 UTC it is "16 h".
        """
        size_ms = _positive("size", size)
        return cls(Spans(size_ms, size_ms, _offset(offset, "size", size_ms)))


class SlidingEventTimeWindows(EventTimeWindows):
    """Windows of one size that overlap: a new one starts after each slide.

    A record is in every window that contains its event time, and is kept once for all of them. With a slide longer
    than the size there are gaps between windows, and a record in a gap is in no window.
    """

    def __str__(self) -> str:
        spans = self.spans
        return f"sliding, {spans.size_ms} ms every {spans.slide_ms} ms of event time{self._shifted()}"

    @classmethod
    def of(cls, size: Duration, slide: Duration, offset: Duration = 0) -> SlidingEventTimeWindows:
        """Returns windows of this size, one for each slide: `of("1 h", "5 min")` is the last hour every five minutes.

        They start `offset` after the full slide.
        """
        return cls(sliding(size, slide, offset))


def sliding(size: Duration, slide: Duration, offset: Duration) -> Spans:
    """Returns windows of this size, one for each slide. A slide much too short is a mistake of the unit."""
    size_ms, slide_ms = _positive("size", size), _positive("slide", slide)
    if size_ms > MOST_WINDOWS * slide_ms:
        raise JobError(
            f"windows of {size!r}, one for each {slide!r}: a record would be in {size_ms // slide_ms} of them: write "
            f"a longer slide, of {-(-size_ms // MOST_WINDOWS)} ms or more (a number without a unit is milliseconds)"
        )
    return Spans(size_ms, slide_ms, _offset(offset, "slide", slide_ms))


def _positive(what: str, given: Duration) -> int:
    given_ms = to_signed_ms(given, f"the {what} of a window")
    if given_ms <= 0:
        raise JobError(f"the {what} of a window must be positive, not {given!r}: write one such as '10 s'")
    if given_ms > LONGEST_MS:
        raise JobError(
            f"the {what} of a window is {given!r}: write at most 1000 years; for one that never ends write "
            "GlobalWindows.create() with a trigger"
        )
    return given_ms


def _offset(given: Duration, what: str, below_ms: int) -> int:
    offset_ms = to_ms(given, "the offset of windows")
    if offset_ms >= below_ms:
        raise JobError(f"the offset of windows must be shorter than their {what}, and {given!r} is not")
    return offset_ms
