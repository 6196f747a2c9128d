"""Window assigners and watermark strategies, as a job's author writes them."""

from __future__ import annotations

from dataclasses import dataclass

from engine.core import event_time as watermarks
from engine.core.durations import Duration, to_ms
from engine.core.errors import JobError


@dataclass(frozen=True)
class TumblingEventTimeWindows:
    """[start, start + size), aligned to the epoch."""

    size_ms: int

    @classmethod
    def of(cls, size: Duration) -> TumblingEventTimeWindows:
        size_ms = to_ms(size)
        if size_ms <= 0:
            raise JobError(f"a window of {size!r} has no length")
        return cls(size_ms)


@dataclass(frozen=True)
class WatermarkStrategy:
    """Watermark = max seen timestamp - bound - 1 ms, per source split."""

    bound_ms: int
    column: str | None = None

    @classmethod
    def for_bounded_out_of_orderness(cls, bound: Duration) -> WatermarkStrategy:
        return cls(to_ms(bound))

    @classmethod
    def for_monotonous_timestamps(cls) -> WatermarkStrategy:
        return cls(0)

    def with_timestamps(self, column: str) -> WatermarkStrategy:
        """The column that holds the event time: a timestamp, or integers in milliseconds."""
        return WatermarkStrategy(self.bound_ms, column)

    def compiled(self) -> watermarks.WatermarkStrategy:
        if self.column is None:
            raise JobError("the watermark strategy needs with_timestamps(COLUMN): which column is the event time?")
        return watermarks.WatermarkStrategy(self.column, self.bound_ms)
