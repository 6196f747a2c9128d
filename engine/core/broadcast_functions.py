"""Functions of a stream connected with a broadcast one (A7), and the broadcast state that both sides see (C1).

Every subtask gets every broadcast record and does the same with it, so that the state is the same everywhere. Broadcast
records and those of the other stream follow each other as they happen to arrive.
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
    """Of a record of the other stream. Only one subtask sees it, so it may look at broadcast state, not change it."""

    @abstractmethod
    def get_broadcast_state(self, descriptor: MapStateDescriptor) -> ReadOnlyBroadcastState[Any, Any]:
        """Returns a state that the stream was broadcast with."""


class BroadcastContext(ABC):
    """Of a broadcast record, which every subtask gets."""

    def __init__(self) -> None:
        self.timestamp_ms: int | None = None
        self.current_watermark_ms: int = MIN_WATERMARK

    @abstractmethod
    def get_broadcast_state(self, descriptor: MapStateDescriptor) -> BroadcastState[Any, Any]:
        """Returns a state that the stream was broadcast with."""

    @abstractmethod
    def apply_to_keyed_state(
        self, descriptor: ValueStateDescriptor, function: Callable[[tuple[Any, ...], ValueState[Any]], None]
    ) -> None:
        """Calls `function(key, state)` for each key of this subtask that has a value."""


class BroadcastProcessFunction(Function):
    """For a stream connected with a broadcast one."""

    def process_element(self, value: Row, context: ReadOnlyBroadcastContext) -> Iterable[Row]:
        raise NotImplementedError

    def process_broadcast_element(self, value: Row, context: BroadcastContext) -> Iterable[Row]:
        raise NotImplementedError


class KeyedBroadcastProcessFunction(BroadcastProcessFunction):
    """For a keyed stream connected with a broadcast one: `process_element` has the state of its key too."""
