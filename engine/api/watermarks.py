"""`WatermarkStrategy`: says which column holds the event time, and how far out of order records may arrive."""

from __future__ import annotations

from dataclasses import dataclass

from engine.api.functions import shown
from engine.core.durations import Duration, to_ms
from engine.core.errors import JobError
from engine.core.event_time import EventTimeStrategy


@dataclass(frozen=True)
class WatermarkStrategy:
    """Says which column holds the event time, and how long windows wait for records that arrive out of order.

    The watermark is the highest event time seen so far, minus the bound, minus 1 ms. A window fires when the watermark
    reaches its last millisecond; records that arrive for it after that are late: they are dropped and counted.

        WatermarkStrategy.for_bounded_out_of_orderness("2 s").with_timestamps("ts")
    """

    bound_ms: int
    column: str | None = None

    @classmethod
    def for_bounded_out_of_orderness(cls, bound: Duration) -> WatermarkStrategy:
        """Returns a strategy for event times that are at most `bound` below the highest one seen before them."""
        return cls(to_ms(bound))

    @classmethod
    def for_monotonous_timestamps(cls) -> WatermarkStrategy:
        """Returns a strategy for records whose event times never go down within a split."""
        return cls(0)

    def with_timestamps(self, column: str) -> WatermarkStrategy:
        """Returns the strategy with the column that holds the event time: a timestamp, or integers in milliseconds.

        Integers count milliseconds since 1970. For other units declare the column as a timestamp, or compute it.
        """
        if not isinstance(column, str):
            raise JobError(
                f"with_timestamps takes the name of a column, not {shown(column)}: compute the event time as a column "
                "first, with select(...) or map(...)"
            )
        return WatermarkStrategy(self.bound_ms, column)

    def compiled(self) -> EventTimeStrategy:
        """Returns what the runtime needs of it; raises a `JobError` if there is no column yet."""
        if self.column is None:
            raise JobError("the watermark strategy names no event time column: add with_timestamps(COLUMN)")
        return EventTimeStrategy(self.column, self.bound_ms)
