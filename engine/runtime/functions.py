"""Functions that a job's author writes. A plain callable is enough; these classes add a lifecycle and state (A5)."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, TypeVar

from engine.runtime.errors import WeirError
from engine.runtime.operators.base import OperatorContext
from engine.state.heap import HeapBackend, ValueState, ValueStateDescriptor

Row = dict[str, Any]


class RuntimeContext:
    """Where a function runs, and its keyed state."""

    def __init__(self, context: OperatorContext, backend: HeapBackend | None) -> None:
        self._context = context
        self._backend = backend

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

    def count(self, name: str, rows: int = 1) -> None:
        """Add to a metric of this operator."""
        self._context.count(f"user:{self._context.uid}:{name}", rows)


class Function:
    def open(self, context: RuntimeContext) -> None:
        """Once per subtask, before the first record."""

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
        self.current_watermark_ms: int = 0


class KeyedProcessFunction(Function):
    def process_element(self, value: Row, context: ProcessContext) -> Iterable[Row]:
        raise NotImplementedError
