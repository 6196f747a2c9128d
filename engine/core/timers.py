"""Timers as functions see them (B8): per key, one per timestamp, of event time or of processing time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum


class TimeDomain(Enum):
    """The time by which a timer fires."""

    EVENT_TIME = "event time"
    PROCESSING_TIME = "processing time"


class TimerService(ABC):
    """Tells the time, and registers timers of the current key. Times are Unix ms.

    A timer is part of the snapshot. Registering the same time twice for a key is one timer. If the time has passed
    already, an event-time timer fires with the next watermark, and a processing-time timer at once.
    """

    @abstractmethod
    def current_processing_time(self) -> int:
        """Returns the time of the clock."""

    @abstractmethod
    def current_watermark(self) -> int:
        """Returns how far event time has come."""

    @abstractmethod
    def register_event_time_timer(self, timestamp: int) -> None:
        """Calls `on_timer` when the watermark reaches this time."""

    @abstractmethod
    def register_processing_time_timer(self, timestamp: int) -> None:
        """Calls `on_timer` when the clock reaches this time."""

    @abstractmethod
    def delete_event_time_timer(self, timestamp: int) -> None:
        """Deletes the event-time timer of this time, if there is one."""

    @abstractmethod
    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Deletes the processing-time timer of this time, if there is one."""
