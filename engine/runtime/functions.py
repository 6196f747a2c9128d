"""What a subtask gives to a user function: a copy of its own, and the `RuntimeContext` for `open`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, TypeVar

from engine.core.errors import WeirError
from engine.core.evictors import Evictor
from engine.core.functions import Function, KeyedStateStore, OperatorStateStore, RuntimeContext
from engine.core.state_types import (
    AggregatingState,
    AggregatingStateDescriptor,
    ListState,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    OperatorListState,
    ReducingState,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueState,
    ValueStateDescriptor,
)
from engine.core.triggers import Trigger
from engine.core.user_metrics import Counter, MetricGroup
from engine.protocol import ledger
from engine.protocol.redistribution import Distribution
from engine.runtime.operators.base import OperatorContext
from engine.runtime.timers import OF_WINDOWS, TIMERS
from engine.state.keyed.backend import KeyedBackend
from engine.state.operator import OperatorBackend
from engine.state.partial_matches import PATTERN_PARTS

F = TypeVar("F")

_CALLS: dict[str, type[StateDescriptor]] = {
    "get_state": ValueStateDescriptor,
    "get_list_state": ListStateDescriptor,
    "get_map_state": MapStateDescriptor,
    "get_reducing_state": ReducingStateDescriptor,
    "get_aggregating_state": AggregatingStateDescriptor,
}


def own(function: F) -> F:
    """Returns a copy of a rich function, so that no other subtask or attempt sees the attributes that it sets."""
    if not isinstance(function, Function | Trigger | Evictor):
        return function
    try:
        return copy.deepcopy(function)
    except Exception as error:
        raise WeirError(
            f"{type(function).__name__} can't be copied, but every subtask needs its own copy: {error}; create such "
            "objects in open() instead of __init__()"
        ) from error


class SubtaskStateStore(OperatorStateStore):
    def __init__(self, context: OperatorContext, backend: OperatorBackend) -> None:
        self._context = context
        self._backend = backend

    def get_list_state(self, descriptor: ListStateDescriptor) -> OperatorListState[Any]:
        self._check_named(descriptor.name)
        return self._backend.list_state(descriptor, Distribution.SPLIT)

    def get_union_list_state(self, descriptor: ListStateDescriptor) -> OperatorListState[Any]:
        self._check_named(descriptor.name)
        return self._backend.list_state(descriptor, Distribution.UNION)

    def _check_named(self, state: str) -> None:
        if not self._context.named:
            raise TypeError(
                f"operator {self._context.uid!r} keeps the state {state!r}, which a restart finds by the uid of the "
                'operator: give it one, as in map(function, uid="buffer")'
            )


class SubtaskCounter(Counter):
    def __init__(self, context: OperatorContext, name: str) -> None:
        self._context = context
        self._name = ledger.user_count(context.uid, name)

    def inc(self, n: int = 1) -> None:
        self._context.count(self._name, n)

    def get_count(self) -> int:
        return self._context.counters.get(self._name, 0)


class SubtaskMetrics(MetricGroup):
    def __init__(self, context: OperatorContext) -> None:
        self._context = context

    def counter(self, name: str) -> Counter:
        return SubtaskCounter(self._context, name)

    def gauge(self, name: str, value: Callable[[], float]) -> None:
        if not callable(value):
            raise TypeError(f"gauge {name!r} takes a function that returns its value, as in lambda: len(self._held)")
        self._context.gauges[self._context.uid, name] = value


class KeyedStates(KeyedStateStore):
    """Checks which call asks for which descriptor; `_keyed_state` returns the state."""

    def get_state(self, descriptor: ValueStateDescriptor) -> ValueState[Any]:
        return self._checked("get_state", descriptor)  # type: ignore[no-any-return]

    def get_list_state(self, descriptor: ListStateDescriptor) -> ListState[Any]:
        return self._checked("get_list_state", descriptor)  # type: ignore[no-any-return]

    def get_map_state(self, descriptor: MapStateDescriptor) -> MapState[Any, Any]:
        return self._checked("get_map_state", descriptor)  # type: ignore[no-any-return]

    def get_reducing_state(self, descriptor: ReducingStateDescriptor) -> ReducingState[Any]:
        return self._checked("get_reducing_state", descriptor)  # type: ignore[no-any-return]

    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor) -> AggregatingState[Any, Any]:
        return self._checked("get_aggregating_state", descriptor)  # type: ignore[no-any-return]

    def _checked(self, call: str, descriptor: StateDescriptor) -> Any:
        if not isinstance(descriptor, StateDescriptor):
            raise TypeError(f'{call} takes a {_CALLS[call].__name__}("name", ...), not {descriptor!r}')
        if not isinstance(descriptor, _CALLS[call]):
            right = next(name for name, kind in _CALLS.items() if isinstance(descriptor, kind))
            raise TypeError(f"{call} takes a {_CALLS[call].__name__}; for a {type(descriptor).__name__} call {right}")
        if descriptor.name in (*TIMERS, *PATTERN_PARTS) or descriptor.name.startswith(OF_WINDOWS):
            raise TypeError(f"a state can't have the name {descriptor.name!r}: choose another")
        return self._keyed_state(descriptor)

    def _keyed_state(self, descriptor: StateDescriptor) -> Any:
        raise NotImplementedError


class SubtaskContext(KeyedStates, RuntimeContext):
    def __init__(
        self, context: OperatorContext, keyed: KeyedBackend | None, operator: OperatorBackend, is_restored: bool
    ) -> None:
        self._context = context
        self._keyed = keyed
        self._operator = operator
        self.is_restored = is_restored

    @property
    def subtask_index(self) -> int:
        return self._context.subtask.index

    @property
    def parallelism(self) -> int:
        return self._context.parallelism

    def _keyed_state(self, descriptor: StateDescriptor) -> Any:
        assert self._keyed is not None
        return self._keyed.state(descriptor)

    def _checked(self, call: str, descriptor: StateDescriptor) -> Any:
        if self._keyed is None:
            raise TypeError(f"operator {self._context.uid!r} has no keyed state: use it after key_by(...)")
        return super()._checked(call, descriptor)

    def get_operator_state_store(self) -> OperatorStateStore:
        return SubtaskStateStore(self._context, self._operator)

    def get_metrics_group(self) -> MetricGroup:
        return SubtaskMetrics(self._context)

    def count(self, name: str, rows: int = 1) -> None:
        self._context.count(ledger.user_count(self._context.uid, name), rows)
