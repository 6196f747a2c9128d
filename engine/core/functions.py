"""Functions that a job's author writes. A plain callable is enough; these classes add a lifecycle and state (A5)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from engine.core.state_types import ListStateDescriptor, OperatorListState, ValueState, ValueStateDescriptor
from engine.protocol.signals import MIN_WATERMARK

Row = dict[str, Any]


class OperatorStateStore(ABC):
    """State of a subtask that belongs to no key. Ask for it in `open`."""

    @abstractmethod
    def get_list_state(self, descriptor: ListStateDescriptor) -> OperatorListState[Any]:
        """Restored at another parallelism, each item goes to one subtask, in even shares."""

    @abstractmethod
    def get_union_list_state(self, descriptor: ListStateDescriptor) -> OperatorListState[Any]:
        """Every restored subtask gets the items of all. It has to keep only its own: what all keep, the next snapshot
        holds once per subtask."""


class RuntimeContext(ABC):
    """Where a function runs, and its state."""

    is_restored: bool
    """Whether the job goes on from an epoch, so that there may be state from before."""

    @property
    @abstractmethod
    def subtask_index(self) -> int:
        """The number of this subtask, from 0."""

    @property
    @abstractmethod
    def parallelism(self) -> int:
        """How many subtasks the operator has."""

    @abstractmethod
    def get_state(self, descriptor: ValueStateDescriptor) -> ValueState[Any]:
        """Returns the state of the current key; only behind key_by(...)."""

    @abstractmethod
    def get_operator_state_store(self) -> OperatorStateStore:
        """Returns the state that belongs to no key."""

    @abstractmethod
    def count(self, name: str, rows: int = 1) -> None:
        """Adds to a metric of this operator."""


class Function:
    def open(self, context: RuntimeContext) -> None:
        """Once per subtask, before the first record."""

    def snapshot_state(self, checkpoint: int) -> None:
        """At each barrier, before its snapshot is taken: put what belongs into it into operator state."""

    def close(self) -> None:
        """Once per subtask, at the end."""


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
