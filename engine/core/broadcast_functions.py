"""Functions of a stream connected with a broadcast one (A7), and the broadcast state that both sides see (C1).

Every subtask gets every broadcast record and does the same with it, so that the state is the same everywhere. Broadcast
records and those of the other stream follow each other as they happen to arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from engine.core.functions import Function, ProcessContext, Row
from engine.protocol.signals import MIN_WATERMARK
from engine.state.keyed.heap import HeapBackend, ValueState, ValueStateDescriptor
from engine.state.operator import BroadcastState, MapStateDescriptor, OperatorBackend, ReadOnlyBroadcastState


class BroadcastStates:
    """The broadcast states of an operator: those that its stream was broadcast with."""

    def __init__(self, backend: OperatorBackend, descriptors: Sequence[MapStateDescriptor]) -> None:
        self._descriptors = {descriptor.name: descriptor for descriptor in descriptors}
        self._states = {descriptor.name: backend.broadcast_state(descriptor) for descriptor in descriptors}
        self._read_only = {name: state.read_only for name, state in self._states.items()}

    def of(self, descriptor: MapStateDescriptor) -> BroadcastState[Any, Any]:
        return self._states[self._declared(descriptor)]

    def read_only(self, descriptor: MapStateDescriptor) -> ReadOnlyBroadcastState[Any, Any]:
        return self._read_only[self._declared(descriptor)]

    def _declared(self, descriptor: MapStateDescriptor) -> str:
        """Its name. Asked for each record, mostly with the very object that was declared."""
        known = self._descriptors.get(descriptor.name)
        if known is not descriptor and known != descriptor:
            declared = ", ".join(repr(name) for name in self._descriptors)
            raise ValueError(
                f"the broadcast state {descriptor.name!r} ({descriptor.key_type} to {descriptor.value_type}) is not "
                f"one that its stream was broadcast with: broadcast(...) names {declared}"
            )
        return descriptor.name


class ReadOnlyBroadcastContext(ProcessContext):
    """Of a record of the other stream. Only one subtask sees it, so it may look at broadcast state, not change it."""

    def __init__(self, states: BroadcastStates) -> None:
        super().__init__()
        self._states = states

    def get_broadcast_state(self, descriptor: MapStateDescriptor) -> ReadOnlyBroadcastState[Any, Any]:
        return self._states.read_only(descriptor)


class BroadcastContext:
    """Of a broadcast record, which every subtask gets."""

    def __init__(self, states: BroadcastStates, heap: HeapBackend | None) -> None:
        self.timestamp_ms: int | None = None
        self.current_watermark_ms: int = MIN_WATERMARK
        self._states = states
        self._heap = heap

    def get_broadcast_state(self, descriptor: MapStateDescriptor) -> BroadcastState[Any, Any]:
        return self._states.of(descriptor)

    def apply_to_keyed_state(
        self, descriptor: ValueStateDescriptor, function: Callable[[tuple[Any, ...], ValueState[Any]], None]
    ) -> None:
        """Calls `function(key, state)` for each key of this subtask that has a value."""
        if self._heap is None:
            raise TypeError("apply_to_keyed_state needs keys: connect the broadcast stream with key_by(...)")
        self._heap.apply_to_all(descriptor, function)


class BroadcastProcessFunction(Function):
    """For a stream connected with a broadcast one."""

    def process_element(self, value: Row, context: ReadOnlyBroadcastContext) -> Iterable[Row]:
        raise NotImplementedError

    def process_broadcast_element(self, value: Row, context: BroadcastContext) -> Iterable[Row]:
        raise NotImplementedError


class KeyedBroadcastProcessFunction(BroadcastProcessFunction):
    """For a keyed stream connected with a broadcast one: `process_element` has the state of its key too."""
