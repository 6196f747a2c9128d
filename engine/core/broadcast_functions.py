"""Functions of a stream that is connected with a broadcast stream (A7), and the contexts that show them state (C1).

Invariant: broadcast state is the same in every subtask. Every subtask receives every broadcast record, and the function
must treat it alike everywhere. The order between broadcast records and records of the other stream is not defined.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

from engine.core.functions import Emitted, Function, OnTimerContext, ProcessContext, Row, TimerFunction
from engine.core.state_types import BroadcastState, MapStateDescriptor, ReadOnlyBroadcastState, StateDescriptor
from engine.protocol.signals import MIN_WATERMARK


class ReadOnlyBroadcastContext(ProcessContext, ABC):
    """The context of a record of the other stream. Only one subtask sees it, so its broadcast state is read-only."""

    @abstractmethod
    def get_broadcast_state(self, descriptor: MapStateDescriptor) -> ReadOnlyBroadcastState[Any, Any]:
        """Returns one of the states that were declared in `broadcast(...)`."""


class BroadcastOnTimerContext(OnTimerContext, ABC):
    """The context of a timer, whose function may read the broadcast state."""

    @abstractmethod
    def get_broadcast_state(self, descriptor: MapStateDescriptor) -> ReadOnlyBroadcastState[Any, Any]:
        """Returns one of the states that were declared in `broadcast(...)`."""


class BroadcastContext(ABC):
    """The context of a broadcast record, which every subtask receives."""

    def __init__(self) -> None:
        self.timestamp_ms: int | None = None
        self.current_watermark_ms: int = MIN_WATERMARK

    @abstractmethod
    def get_broadcast_state(self, descriptor: MapStateDescriptor) -> BroadcastState[Any, Any]:
        """Returns one of the states that were declared in `broadcast(...)`."""

    @abstractmethod
    def apply_to_keyed_state(
        self, descriptor: StateDescriptor, function: Callable[[tuple[Any, ...], Any], None]
    ) -> None:
        """Calls `function(key, state)` for each key of this subtask that has a value in this state."""


class BroadcastProcessFunction(Function):
    """Processes a stream that is connected with a broadcast stream."""

    def process_element(self, value: Row, context: ReadOnlyBroadcastContext) -> Iterable[Emitted]:
        """Is called with each record of the stream that is not broadcast. It can read broadcast state."""
        raise NotImplementedError

    def process_broadcast_element(self, value: Row, context: BroadcastContext) -> Iterable[Emitted]:
        """Is called with each broadcast record, in every subtask. It can change broadcast state."""
        raise NotImplementedError


class KeyedBroadcastProcessFunction(BroadcastProcessFunction, TimerFunction):
    """Processes a keyed stream with a broadcast stream; `process_element` may use the state and timers of its key.

    `on_timer` gets a `BroadcastOnTimerContext`.
    """
