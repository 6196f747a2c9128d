"""Triggers decide when a window is computed, and when its contents are dropped (B6)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import Any

from engine.core.functions import Row
from engine.core.state_types import StateDescriptor
from engine.core.windows import Window


class TriggerResult(Enum):
    """What becomes of a window. `FIRE` computes it and keeps its contents; `PURGE` drops them without a result."""

    CONTINUE = (False, False)
    FIRE = (True, False)
    PURGE = (False, True)
    FIRE_AND_PURGE = (True, True)

    def is_fire(self) -> bool:
        """Says whether the window is computed."""
        return self.value[0]

    def is_purge(self) -> bool:
        """Says whether the contents of the window are dropped."""
        return self.value[1]


class TriggerContext(ABC):
    """Tells the time, and gives timers and state to one window of one key. Times are Unix ms."""

    @abstractmethod
    def get_current_processing_time(self) -> int:
        """Returns the time of the clock."""

    @abstractmethod
    def get_current_watermark(self) -> int:
        """Returns how far event time has come."""

    @abstractmethod
    def register_event_time_timer(self, time: int) -> None:
        """Calls `on_event_time` of this window when the watermark reaches this time."""

    @abstractmethod
    def register_processing_time_timer(self, time: int) -> None:
        """Calls `on_processing_time` of this window when the clock reaches this time."""

    @abstractmethod
    def delete_event_time_timer(self, time: int) -> None:
        """Deletes the event-time timer of this time, if there is one."""

    @abstractmethod
    def delete_processing_time_timer(self, time: int) -> None:
        """Deletes the processing-time timer of this time, if there is one."""

    @abstractmethod
    def get_partitioned_state(self, descriptor: StateDescriptor) -> Any:
        """Returns the trigger's own state of this window, of the kind that the descriptor says."""


class OnMergeContext(TriggerContext):
    """The context of `on_merge`: its window is the merged one."""

    @abstractmethod
    def merge_partitioned_state(self, descriptor: StateDescriptor) -> None:
        """Merges this state of the windows that were merged: a list, a reduced value or an aggregate."""


class Trigger(ABC):
    """Is asked after each record and each timer of a window what becomes of the window.

    A trigger keeps nothing in its attributes: one object serves all windows. What belongs to a window is in
    `context.get_partitioned_state(...)`, and `clear` removes it. Timers that `on_element` registers and that are left
    when the window ends are removed by `clear`, too.
    """

    @abstractmethod
    def on_element(self, element: Row, timestamp: int | None, window: Any, context: TriggerContext) -> TriggerResult:
        """Is called after each record of the window. `timestamp` is its event time, if it has one."""

    @abstractmethod
    def on_event_time(self, time: int, window: Any, context: TriggerContext) -> TriggerResult:
        """Is called when an event-time timer of the window fires."""

    @abstractmethod
    def on_processing_time(self, time: int, window: Any, context: TriggerContext) -> TriggerResult:
        """Is called when a processing-time timer of the window fires."""

    def on_merge(self, window: Window, context: OnMergeContext) -> None:
        """Is called when windows were merged into `window`. Session windows need a trigger that has this method."""
        raise NotImplementedError

    def can_merge(self) -> bool:
        """Says whether the trigger works with windows that merge: whether it has `on_merge`."""
        return type(self).on_merge is not Trigger.on_merge

    @abstractmethod
    def clear(self, window: Any, context: TriggerContext) -> None:
        """Removes the state and the timers of a window that ends."""

    def __str__(self) -> str:
        return type(self).__name__
