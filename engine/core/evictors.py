"""Evictors remove records of a window before or after it is computed. A window with an evictor keeps all records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from engine.core.durations import Duration, to_ms
from engine.core.errors import JobError
from engine.core.functions import Row


@dataclass(frozen=True)
class TimestampedValue:
    """A record of a window and its event time; None if it has none."""

    value: Row
    timestamp: int | None


class EvictorContext(ABC):
    """Tells the time to an evictor, in Unix ms."""

    @abstractmethod
    def current_processing_time(self) -> int:
        """Returns the time of the clock."""

    @abstractmethod
    def current_watermark(self) -> int:
        """Returns how far event time has come."""


class Evictor:
    """Removes records from the list `elements`, in place. They are in the order in which they came."""

    def evict_before(self, elements: list[TimestampedValue], size: int, window: Any, context: EvictorContext) -> None:
        """Is called before the window is computed. `size` is the number of elements."""

    def evict_after(self, elements: list[TimestampedValue], size: int, window: Any, context: EvictorContext) -> None:
        """Is called after the window was computed, with the elements that are left."""


class _BeforeOrAfter(Evictor):
    """Evicts at one of the two moments."""

    def __init__(self, do_evict_after: bool) -> None:
        self._after = do_evict_after

    def evict_before(self, elements: list[TimestampedValue], size: int, window: Any, context: EvictorContext) -> None:
        if not self._after:
            self._evict(elements)

    def evict_after(self, elements: list[TimestampedValue], size: int, window: Any, context: EvictorContext) -> None:
        if self._after:
            self._evict(elements)

    def _evict(self, elements: list[TimestampedValue]) -> None:
        raise NotImplementedError


class CountEvictor(_BeforeOrAfter):
    """Keeps the last `max_count` records."""

    def __init__(self, max_count: int, do_evict_after: bool = False) -> None:
        super().__init__(do_evict_after)
        if type(max_count) is not int or max_count < 1:
            raise JobError(f"CountEvictor.of({max_count!r}): it keeps a number of records: 1 or more")
        self._max_count = max_count

    @classmethod
    def of(cls, max_count: int, do_evict_after: bool = False) -> CountEvictor:
        """Keeps the last `max_count` records of a window, before or after it is computed."""
        return cls(max_count, do_evict_after)

    def _evict(self, elements: list[TimestampedValue]) -> None:
        del elements[: max(0, len(elements) - self._max_count)]


class TimeEvictor(_BeforeOrAfter):
    """Keeps the records of the last stretch of event time before the latest record; those without a time stay."""

    def __init__(self, window_size: Duration, do_evict_after: bool = False) -> None:
        super().__init__(do_evict_after)
        self._size_ms = to_ms(window_size, "TimeEvictor.of")
        if self._size_ms <= 0:
            raise JobError(f"TimeEvictor.of({window_size!r}): the time that it keeps must be positive")

    @classmethod
    def of(cls, window_size: Duration, do_evict_after: bool = False) -> TimeEvictor:
        """Keeps the records of the last `window_size`, such as "10 s", before or after the window is computed."""
        return cls(window_size, do_evict_after)

    def _evict(self, elements: list[TimestampedValue]) -> None:
        times = [element.timestamp for element in elements if element.timestamp is not None]
        if times:
            cutoff = max(times) - self._size_ms
            elements[:] = [kept for kept in elements if kept.timestamp is None or kept.timestamp > cutoff]
