"""`WatermarkStrategy`: where event time comes from, and how far out of order records may arrive."""

from __future__ import annotations

from dataclasses import dataclass

from engine.api.errors import JobError
from engine.core.durations import Duration, to_ms
from engine.core.event_time import EventTimeStrategy


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

    def compiled(self) -> EventTimeStrategy:
        if self.column is None:
            raise JobError("the watermark strategy needs with_timestamps(COLUMN): which column is the event time?")
        return EventTimeStrategy(self.column, self.bound_ms)
