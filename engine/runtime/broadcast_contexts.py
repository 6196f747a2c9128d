"""The contexts of a function on a connected broadcast stream: one reads the broadcast states, the other writes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from engine.core.broadcast_functions import BroadcastContext, BroadcastOnTimerContext, ReadOnlyBroadcastContext
from engine.core.state_types import BroadcastState, MapStateDescriptor, ReadOnlyBroadcastState, StateDescriptor
from engine.core.timers import TimerService
from engine.state.keyed.backend import KeyedBackend
from engine.state.operator import OperatorBackend


class BroadcastStates:
    """The broadcast states of an operator: one for each descriptor given to `broadcast(...)`."""

    def __init__(self, backend: OperatorBackend, descriptors: Sequence[MapStateDescriptor]) -> None:
        self._descriptors = {descriptor.name: descriptor for descriptor in descriptors}
        self._states = {descriptor.name: backend.broadcast_state(descriptor) for descriptor in descriptors}
        self._read_only = {name: state.read_only for name, state in self._states.items()}

    def of(self, descriptor: MapStateDescriptor) -> BroadcastState[Any, Any]:
        return self._states[self._declared(descriptor)]

    def read_only(self, descriptor: MapStateDescriptor) -> ReadOnlyBroadcastState[Any, Any]:
        return self._read_only[self._declared(descriptor)]

    def _declared(self, descriptor: MapStateDescriptor) -> str:
        """Checks that the state was declared and returns its name. Called per record, so identity is compared first."""
        known = self._descriptors.get(descriptor.name)
        if known is not descriptor and known != descriptor:
            declared = ", ".join(repr(name) for name in self._descriptors)
            raise ValueError(
                f"the broadcast state {descriptor.name!r} ({descriptor.key_type} to {descriptor.value_type}) is not "
                f"one that its stream was broadcast with: broadcast(...) names {declared}"
            )
        return descriptor.name


class ReadingContext(ReadOnlyBroadcastContext):
    def __init__(self, states: BroadcastStates, timers: TimerService) -> None:
        super().__init__(timers)
        self._states = states

    def get_broadcast_state(self, descriptor: MapStateDescriptor) -> ReadOnlyBroadcastState[Any, Any]:
        return self._states.read_only(descriptor)


class TimerReadingContext(BroadcastOnTimerContext):
    def __init__(self, states: BroadcastStates, timers: TimerService) -> None:
        super().__init__(timers)
        self._states = states

    def get_broadcast_state(self, descriptor: MapStateDescriptor) -> ReadOnlyBroadcastState[Any, Any]:
        return self._states.read_only(descriptor)


class WritingContext(BroadcastContext):
    def __init__(self, states: BroadcastStates, keyed: KeyedBackend | None) -> None:
        super().__init__()
        self._states = states
        self._keyed = keyed

    def get_broadcast_state(self, descriptor: MapStateDescriptor) -> BroadcastState[Any, Any]:
        return self._states.of(descriptor)

    def apply_to_keyed_state(
        self, descriptor: StateDescriptor, function: Callable[[tuple[Any, ...], Any], None]
    ) -> None:
        if self._keyed is None:
            raise TypeError("apply_to_keyed_state needs keys: connect the broadcast stream with key_by(...)")
        self._keyed.apply_to_all(descriptor, function)
