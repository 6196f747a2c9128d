"""Window assigners: which windows a record belongs to."""

from __future__ import annotations

from dataclasses import dataclass

from engine.api.errors import JobError
from engine.core.durations import Duration, to_ms


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
