"""Functions that a job's author writes. A plain callable is enough; these classes add a lifecycle and state (A5)."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, TypeVar

from engine.core.errors import WeirError
from engine.protocol.redistribution import Distribution
from engine.protocol.signals import MIN_WATERMARK
from engine.runtime.operators.base import OperatorContext
from engine.state.keyed.heap import HeapBackend, ValueState, ValueStateDescriptor
from engine.state.operator import ListStateDescriptor, OperatorBackend, OperatorListState

Row = dict[str, Any]


class OperatorStateStore:
    """State of a subtask that belongs to no key. Ask for it in `open`."""

    def __init__(self, context: OperatorContext, backend: OperatorBackend) -> None:
        self._context = context
        self._backend = backend

    def get_list_state(self, descriptor: ListStateDescriptor) -> OperatorListState[Any]:
        """Restored at another parallelism, each item goes to one subtask, in even shares."""
        self._check_named(descriptor.name)
        return self._backend.list_state(descriptor, Distribution.SPLIT)

    def get_union_list_state(self, descriptor: ListStateDescriptor) -> OperatorListState[Any]:
        """Every restored subtask gets the items of all. It has to keep only its own: what all keep, the next snapshot
        holds once per subtask."""
        self._check_named(descriptor.name)
        return self._backend.list_state(descriptor, Distribution.UNION)

    def _check_named(self, state: str) -> None:
        if not self._context.named:
            raise TypeError(
                f"operator {self._context.uid!r} keeps the state {state!r}, so it needs a name by which that is found "
                'again: give it a uid, as in map(function, uid="buffer")'
            )


class RuntimeContext:
    """Where a function runs, and its state."""

    def __init__(
        self, context: OperatorContext, backend: HeapBackend | None, operator: OperatorBackend, is_restored: bool
    ) -> None:
        self._context = context
        self._backend = backend
        self._operator = operator
        self.is_restored = is_restored
        """Whether the job goes on from an epoch, so that there may be state from before."""

    @property
    def subtask_index(self) -> int:
        return self._context.subtask.index

    @property
    def parallelism(self) -> int:
        return self._context.parallelism

    def get_state(self, descriptor: ValueStateDescriptor) -> ValueState[Any]:
        if self._backend is None:
            raise TypeError(f"operator {self._context.uid!r} has no keyed state: use it after key_by(...)")
        return self._backend.value_state(descriptor)

    def get_operator_state_store(self) -> OperatorStateStore:
        return OperatorStateStore(self._context, self._operator)

    def count(self, name: str, rows: int = 1) -> None:
        """Add to a metric of this operator."""
        self._context.count(f"user:{self._context.uid}:{name}", rows)


class Function:
    def open(self, context: RuntimeContext) -> None:
        """Once per subtask, before the first record."""

    def snapshot_state(self, checkpoint: int) -> None:
        """At each barrier, before its snapshot is taken: put what belongs into it into operator state."""

    def close(self) -> None:
        """Once per subtask, at the end."""


F = TypeVar("F")


def own(function: F) -> F:
    """A subtask's own instance of a rich function: nobody else sees the attributes that an attempt leaves in it."""
    if not isinstance(function, Function):
        return function
    try:
        return copy.deepcopy(function)
    except Exception as error:
        raise WeirError(
            f"{type(function).__name__} can't be copied, and every subtask needs its own: {error}; make such things in "
            "open() instead of __init__()"
        ) from error


class MapFunction(Function):
    def map(self, value: Row) -> Row:
        raise NotImplementedError


class FilterFunction(Function):
    def filter(self, value: Row) -> bool:
        raise NotImplementedError


class FlatMapFunction(Function):
    def flat_map(self, value: Row) -> Iterable[Row]:
        raise NotImplementedError


class ReduceFunction(Function):
    def reduce(self, left: Row, right: Row) -> Row:
        raise NotImplementedError


class ProcessContext:
    """Of the record being processed."""

    def __init__(self) -> None:
        self.current_key: tuple[Any, ...] = ()
        self.timestamp_ms: int | None = None
        self.current_watermark_ms: int = MIN_WATERMARK


class KeyedProcessFunction(Function):
    def process_element(self, value: Row, context: ProcessContext) -> Iterable[Row]:
        raise NotImplementedError
