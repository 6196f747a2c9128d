"""Window assigners: they say which windows a record belongs to."""

from __future__ import annotations

from dataclasses import dataclass

from engine.core.durations import Duration, to_ms
from engine.core.errors import JobError


@dataclass(frozen=True)
class TumblingEventTimeWindows:
    """Windows of one size that follow each other without gaps or overlaps.

    A window contains the event times from its start, inclusive, to its end, exclusive. Windows are aligned to 1970:
    those of 10 seconds start at :00, :10, :20 and so on.
    """

    size_ms: int

    def __str__(self) -> str:
        return f"tumbling by {self.size_ms} ms of event time"

    @classmethod
    def of(cls, size: Duration) -> TumblingEventTimeWindows:
        """Returns windows of this size, such as "10 s"."""
        size_ms = to_ms(size)
        if size_ms <= 0:
            raise JobError(f"the size of a window must be positive, not {size!r}")
        return cls(size_ms)
