"""Base classes of the functions that compute windows from all of their records, or from an aggregate (B5)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from engine.core.functions import Emitted, Function, KeyedStateStore


class WindowContext(ABC):
    """Describes the window that is being computed, tells the time, and gives access to state."""

    @abstractmethod
    def window(self) -> Any:
        """Returns the window: a `TimeWindow` with `start` and `end`, or a `GlobalWindow`."""

    @abstractmethod
    def current_processing_time(self) -> int:
        """Returns the time of the clock, in Unix ms."""

    @abstractmethod
    def current_watermark(self) -> int:
        """Returns how far event time has come, in Unix ms."""

    @abstractmethod
    def window_state(self) -> KeyedStateStore:
        """Returns the states of this key and window. `clear` has to clear them. Windows that merge have none."""

    @abstractmethod
    def global_state(self) -> KeyedStateStore:
        """Returns the states of this key, which all of its windows share."""


class ProcessWindowFunction(Function):
    """Computes a window of a keyed stream, from all of its records or from one aggregate."""

    def process(self, key: Any, context: WindowContext, elements: Iterable[Any]) -> Iterable[Emitted]:
        """Returns the results of a window; `yield TAG, record` emits to a side output."""
        raise NotImplementedError

    def clear(self, context: WindowContext) -> None:
        """Is called when a window ends, to clear the state that the function keeps for it."""


class ProcessAllWindowFunction(Function):
    """Computes a window of a stream without keys."""

    def process(self, context: WindowContext, elements: Iterable[Any]) -> Iterable[Emitted]:
        """Returns the results of a window; `yield TAG, record` emits to a side output."""
        raise NotImplementedError

    def clear(self, context: WindowContext) -> None:
        """Is called when a window ends, to clear the state that the function keeps for it."""


class SessionWindowTimeGapExtractor:
    """Says for each record how long its session stays open after it."""

    def extract(self, element: Any) -> int:
        """Returns the gap in ms, 1 or more."""
        raise NotImplementedError
