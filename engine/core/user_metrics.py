"""Metrics of a function (A5): counters and gauges that `/metrics` shows with the operator's uid."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable


class Counter(ABC):
    """A number that grows. It is part of the ledger of each checkpoint: a restart neither loses nor repeats counts."""

    @abstractmethod
    def inc(self, n: int = 1) -> None:
        """Adds to the counter."""

    @abstractmethod
    def get_count(self) -> int:
        """Returns what this subtask has counted in this attempt."""


class MetricGroup(ABC):
    """Makes the metrics of one operator subtask. Call its methods in `open`."""

    @abstractmethod
    def counter(self, name: str) -> Counter:
        """Returns the counter of this name. `/metrics` shows its total at the newest epoch."""

    @abstractmethod
    def gauge(self, name: str, value: Callable[[], float]) -> None:
        """Shows what the function returns. It is called with each heartbeat, on another thread: keep it short."""
