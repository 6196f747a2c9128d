"""Functions of a stream that is connected with a broadcast stream (A7), and the contexts that show them state (C1).

Invariant: broadcast state is the same in every subtask. Every subtask receives every broadcast record, and the function
must treat it alike everywhere. The order between broadcast records and records of the other stream is not defined.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

from engine.core.functions import Function, ProcessContext, Row
from engine.core.state_types import (
    BroadcastState,
    MapStateDescriptor,
    ReadOnlyBroadcastState,
    ValueState,
    ValueStateDescriptor,
)
from engine.protocol.signals import MIN_WATERMARK


class ReadOnlyBroadcastContext(ProcessContext, ABC):
    """The context of a record of the other stream. Only one subtask sees it, so its broadcast state is read-only."""

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
        self, descriptor: ValueStateDescriptor, function: Callable[[tuple[Any, ...], ValueState[Any]], None]
    ) -> None:
        """Calls `function(key, state)` for each key of this subtask that has a value."""


class BroadcastProcessFunction(Function):
    """Processes a stream that is connected with a broadcast stream."""

    def process_element(self, value: Row, context: ReadOnlyBroadcastContext) -> Iterable[Row]:
        raise NotImplementedError

    def process_broadcast_element(self, value: Row, context: BroadcastContext) -> Iterable[Row]:
        raise NotImplementedError


class KeyedBroadcastProcessFunction(BroadcastProcessFunction):
    """Processes a keyed stream with a broadcast stream; `process_element` may also use the state of its key."""
