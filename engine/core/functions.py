"""Base classes of the functions in a job. A plain callable works too; these add a lifecycle and state (A5)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from engine.core.state_types import ListStateDescriptor, OperatorListState, ValueState, ValueStateDescriptor
from engine.protocol.signals import MIN_WATERMARK

Row = dict[str, Any]


class OperatorStateStore(ABC):
    """Gives access to operator state, which belongs to a subtask and to no key. Call its methods in `open`."""

    @abstractmethod
    def get_list_state(self, descriptor: ListStateDescriptor) -> OperatorListState[Any]:
        """Returns a list state. A restore at another parallelism gives each item to one subtask, in even shares."""

    @abstractmethod
    def get_union_list_state(self, descriptor: ListStateDescriptor) -> OperatorListState[Any]:
        """Returns a list state of which a restore gives all items to every subtask.

        Each subtask must then drop the items that are not its own: an item that every subtask keeps is in the next
        snapshot once per subtask.
        """


class RuntimeContext(ABC):
    """Tells a function where it runs, and gives access to its state."""

    is_restored: bool
    """True if the job was restored from an epoch, so that state may hold values already."""

    @property
    @abstractmethod
    def subtask_index(self) -> int:
        """The number of this subtask, from 0."""

    @property
    @abstractmethod
    def parallelism(self) -> int:
        """The number of subtasks of the operator."""

    @abstractmethod
    def get_state(self, descriptor: ValueStateDescriptor) -> ValueState[Any]:
        """Returns the state of the current key. The stream must be keyed: use it after key_by(...)."""

    @abstractmethod
    def get_operator_state_store(self) -> OperatorStateStore:
        """Returns the store of operator state."""

    @abstractmethod
    def count(self, name: str, rows: int = 1) -> None:
        """Adds `rows` to the named metric of this operator."""


class Function:
    def open(self, context: RuntimeContext) -> None:
        """Is called once per subtask, before the first record."""

    def snapshot_state(self, checkpoint: int) -> None:
        """Is called at each barrier, before the snapshot is taken. Put whatever must be saved into operator state."""

    def close(self) -> None:
        """Is called once per subtask, at the end."""


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
    """Describes the record that is being processed: its key and timestamp, and the current watermark."""

    def __init__(self) -> None:
        self.current_key: tuple[Any, ...] = ()
        self.timestamp_ms: int | None = None
        self.current_watermark_ms: int = MIN_WATERMARK


class KeyedProcessFunction(Function):
    def process_element(self, value: Row, context: ProcessContext) -> Iterable[Row]:
        raise NotImplementedError
