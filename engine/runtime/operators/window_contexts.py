"""What a window operator gives to triggers, window functions and evictors: all of them look at one `CurrentWindow`."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from engine.core.evictors import EvictorContext
from engine.core.functions import KeyedStateStore
from engine.core.ports import Clock
from engine.core.state_types import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
)
from engine.core.triggers import OnMergeContext
from engine.core.window_functions import WindowContext
from engine.core.windows import GlobalWindow, Window
from engine.runtime.functions import KeyedStates
from engine.runtime.timers import OF_WINDOWS, KeyTimers
from engine.state.keyed.backend import Key, KeyedBackend
from engine.state.windows.assigners import Span

OF_TRIGGER, OF_WINDOW = f"{OF_WINDOWS}trigger: ", f"{OF_WINDOWS}state: "


class CurrentWindow:
    """The key and the window that are being processed. State and timers of the window follow it.

    `keyed` holds state per key, `windowed` state per key and window.
    """

    def __init__(self, keyed: KeyedBackend, windowed: KeyedBackend, timers: KeyTimers, clock: Clock) -> None:
        self.keyed = keyed
        self.windowed = windowed
        self.timers = timers
        self.clock = clock
        self.window: Window = GlobalWindow()
        self.watermark_ms = 0
        self._states: dict[str, tuple[StateDescriptor, Any]] = {}

    def enter(self, span: Span, window: Window) -> None:
        """Makes a window of the current key the current one."""
        self.windowed.key = (*self.keyed.key, *span)
        self.window = window

    @property
    def key_value(self) -> Any:
        """The value of the key column, or a tuple of the values if there are several."""
        key = self.keyed.key
        return key[0] if len(key) == 1 else key

    def state(self, prefix: str, descriptor: StateDescriptor) -> Any:
        """Returns a state of the current window. The prefix keeps the names of triggers and functions apart."""
        name = prefix + descriptor.name
        known = self._states.get(name)
        if known is None or known[0] is not descriptor:
            renamed = copy.copy(descriptor)
            object.__setattr__(renamed, "name", name)
            known = self._states[name] = (descriptor, self.windowed.state(renamed))
        return known[1]


class RuntimeTriggerContext(OnMergeContext):
    """`merged`: the keys of the windows that `on_merge` has merged."""

    def __init__(self, current: CurrentWindow) -> None:
        self._current = current
        self.merged: Sequence[Key] = ()

    def get_current_processing_time(self) -> int:
        return self._current.clock.wall_ms()

    def get_current_watermark(self) -> int:
        return self._current.watermark_ms

    def register_event_time_timer(self, time: int) -> None:
        self._current.timers.register_event_time_timer(time)

    def register_processing_time_timer(self, time: int) -> None:
        self._current.timers.register_processing_time_timer(time)

    def delete_event_time_timer(self, time: int) -> None:
        self._current.timers.delete_event_time_timer(time)

    def delete_processing_time_timer(self, time: int) -> None:
        self._current.timers.delete_processing_time_timer(time)

    def get_partitioned_state(self, descriptor: StateDescriptor) -> Any:
        if not isinstance(descriptor, StateDescriptor):
            raise TypeError(
                f'get_partitioned_state takes a descriptor such as ValueStateDescriptor("seen", "long"), '
                f"not {descriptor!r}"
            )
        return self._current.state(OF_TRIGGER, descriptor)

    def merge_partitioned_state(self, descriptor: StateDescriptor) -> None:
        backend, state = self._current.windowed, self.get_partitioned_state(descriptor)
        into, held = backend.key, []
        for key in self.merged:
            backend.key = key
            held.append(_taken(state, descriptor))
        backend.key = into
        _give(state, descriptor, held)


def _taken(state: Any, descriptor: StateDescriptor) -> Any:
    """Returns and clears what a state of a merged window holds: items, a value or an accumulator; None if nothing."""
    match descriptor:
        case ListStateDescriptor() | ReducingStateDescriptor():
            held = state.get()
        case AggregatingStateDescriptor():
            held = state.accumulator()
        case _:
            raise TypeError(
                f"merge_partitioned_state({descriptor.name!r}): only a list, a reduced value or an aggregate can be "
                f"merged, not the state of a {type(descriptor).__name__}"
            )
    state.clear()
    return held


def _give(state: Any, descriptor: StateDescriptor, held: Sequence[Any]) -> None:
    for part in held:
        match descriptor:
            case ListStateDescriptor():
                state.add_all(part)
            case AggregatingStateDescriptor() if part is not None:
                state.merge(part)
            case ReducingStateDescriptor() if part is not None:
                state.add(part)


class GlobalStates(KeyedStates):
    """The states of the current key."""

    def __init__(self, current: CurrentWindow) -> None:
        self._current = current

    def _keyed_state(self, descriptor: StateDescriptor) -> Any:
        return self._current.keyed.state(descriptor)


class WindowStates(KeyedStates):
    """The states of the current window."""

    def __init__(self, current: CurrentWindow, merging: bool) -> None:
        self._current = current
        self._merging = merging

    def _keyed_state(self, descriptor: StateDescriptor) -> Any:
        if self._merging:
            raise TypeError(
                f"window_state() has no {descriptor.name!r}: windows that merge keep no state of their own; use "
                "global_state(), or compute it from the elements"
            )
        return self._current.state(OF_WINDOW, descriptor)


class RuntimeWindowContext(WindowContext):
    def __init__(self, current: CurrentWindow, merging: bool) -> None:
        self._current = current
        self._window_states = WindowStates(current, merging)
        self._global_states = GlobalStates(current)

    def window(self) -> Any:
        return self._current.window

    def current_processing_time(self) -> int:
        return self._current.clock.wall_ms()

    def current_watermark(self) -> int:
        return self._current.watermark_ms

    def window_state(self) -> KeyedStateStore:
        return self._window_states

    def global_state(self) -> KeyedStateStore:
        return self._global_states


class RuntimeEvictorContext(EvictorContext):
    def __init__(self, current: CurrentWindow) -> None:
        self._current = current

    def current_processing_time(self) -> int:
        return self._current.clock.wall_ms()

    def current_watermark(self) -> int:
        return self._current.watermark_ms


def window_fields(keys: Sequence[str]) -> list[pa.Field]:
    """Returns the columns of a window behind the key columns: longer names if a key has the same."""
    fields = []
    for name in ("_window_start", "_window_end"):
        while name in keys:
            name += "_"
        fields.append(pa.field(name, pa.int64()))
    return fields
