"""What a subtask gives to a user function: a copy of its own, and the `RuntimeContext` for `open`."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

from engine.core.errors import WeirError
from engine.core.functions import Function, OperatorStateStore, RuntimeContext
from engine.core.state_types import ListStateDescriptor, OperatorListState, ValueState, ValueStateDescriptor
from engine.protocol.redistribution import Distribution
from engine.runtime.operators.base import OperatorContext
from engine.state.keyed.backend import KeyedBackend
from engine.state.operator import OperatorBackend

F = TypeVar("F")


def own(function: F) -> F:
    """Returns a copy of a rich function, so that no other subtask or attempt sees the attributes that it sets."""
    if not isinstance(function, Function):
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


class SubtaskContext(RuntimeContext):
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

    def get_state(self, descriptor: ValueStateDescriptor) -> ValueState[Any]:
        if self._keyed is None:
            raise TypeError(f"operator {self._context.uid!r} has no keyed state: use it after key_by(...)")
        return self._keyed.value_state(descriptor)

    def get_operator_state_store(self) -> OperatorStateStore:
        return SubtaskStateStore(self._context, self._operator)

    def count(self, name: str, rows: int = 1) -> None:
        self._context.count(f"user:{self._context.uid}:{name}", rows)
