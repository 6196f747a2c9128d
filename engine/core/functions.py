"""Base classes of the functions in a job. A plain callable works too; these add a lifecycle and state (A5)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

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
    ValueState,
    ValueStateDescriptor,
)
from engine.core.tags import OutputTag
from engine.core.timers import TimeDomain, TimerService
from engine.core.user_metrics import MetricGroup
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


class KeyedStateStore(ABC):
    """Gives access to state per key."""

    @abstractmethod
    def get_state(self, descriptor: ValueStateDescriptor) -> ValueState[Any]:
        """Returns the value of the current key. The stream must be keyed: use it after key_by(...)."""

    @abstractmethod
    def get_list_state(self, descriptor: ListStateDescriptor) -> ListState[Any]:
        """Returns the list of the current key."""

    @abstractmethod
    def get_map_state(self, descriptor: MapStateDescriptor) -> MapState[Any, Any]:
        """Returns the map of the current key."""

    @abstractmethod
    def get_reducing_state(self, descriptor: ReducingStateDescriptor) -> ReducingState[Any]:
        """Returns the reduced value of the current key."""

    @abstractmethod
    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor) -> AggregatingState[Any, Any]:
        """Returns the aggregate of the current key."""


class RuntimeContext(KeyedStateStore):
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
    def get_operator_state_store(self) -> OperatorStateStore:
        """Returns the store of operator state."""

    @abstractmethod
    def get_metrics_group(self) -> MetricGroup:
        """Returns the group in which the function makes its counters and gauges."""

    @abstractmethod
    def count(self, name: str, rows: int = 1) -> None:
        """Adds `rows` to the counter of this name."""


class Function:
    """The base class of functions with a lifecycle: `open` before the first record, `close` at the end."""

    def open(self, context: RuntimeContext) -> None:
        """Is called once per subtask, before the first record."""

    def snapshot_state(self, checkpoint: int) -> None:
        """Is called at each barrier, before the snapshot is taken. Put whatever must be saved into operator state."""

    def close(self) -> None:
        """Is called once per subtask, at the end."""


class MapFunction(Function):
    """Returns one record for each record, for `map`."""

    def map(self, value: Row) -> Row:
        """Returns the record that takes the place of this one."""
        raise NotImplementedError


class FilterFunction(Function):
    """Decides which records a stream keeps, for `filter`."""

    def filter(self, value: Row) -> bool:
        """Says whether the record is kept."""
        raise NotImplementedError


class FlatMapFunction(Function):
    """Returns any number of records for each record, for `flat_map`."""

    def flat_map(self, value: Row) -> Iterable[Row]:
        """Returns a list of records, or yields them."""
        raise NotImplementedError


class ReduceFunction(Function):
    """Combines two records of a key into one, for `reduce`."""

    def reduce(self, left: Row, right: Row) -> Row:
        """Returns the new running value: `left` is the one so far, `right` the next record.

        In windows it is associative: `right` may be the value of several records.
        """
        raise NotImplementedError


class AggregateFunction(Function):
    """Adds values to an accumulator, for `AggregatingStateDescriptor`."""

    def create_accumulator(self) -> Any:
        """Returns the accumulator of nothing."""
        raise NotImplementedError

    def add(self, value: Any, accumulator: Any) -> Any:
        """Returns the accumulator with a value added; it may be the same object."""
        raise NotImplementedError

    def get_result(self, accumulator: Any) -> Any:
        """Returns the result of an accumulator."""
        raise NotImplementedError

    def merge(self, left: Any, right: Any) -> Any:
        """Returns the accumulator of what both hold; it may be one of them, changed.

        Sessions need it. Sliding windows share panes if there is one.
        """
        raise NotImplementedError


class ProcessContext:
    """Describes the record that is being processed: its key and timestamp, and the current watermark."""

    def __init__(self, timers: TimerService | None = None) -> None:
        self.current_key: tuple[Any, ...] = ()
        """The values of the key columns; empty on a stream without keys."""
        self.timestamp_ms: int | None = None
        self.current_watermark_ms: int = MIN_WATERMARK
        self._timers = timers

    def timestamp(self) -> int | None:
        """Returns the event time of the record, or of the timer that fires; None if there is none."""
        return self.timestamp_ms

    def get_current_key(self) -> Any:
        """Returns the value of the key column, or a tuple of the values if there are several."""
        return self.current_key[0] if len(self.current_key) == 1 else self.current_key

    def timer_service(self) -> TimerService:
        """Returns the service that tells the time and registers timers."""
        assert self._timers is not None, "this context was made without timers"
        return self._timers


class OnTimerContext(ProcessContext):
    """Describes the timer that fires. Its records get the timer's time as event time; processing time gives none."""

    def __init__(self, timers: TimerService | None = None) -> None:
        super().__init__(timers)
        self.domain = TimeDomain.EVENT_TIME

    def time_domain(self) -> TimeDomain:
        """Says whether the timer is one of event time or of processing time."""
        return self.domain


Emitted = Row | tuple[OutputTag, Row]
"""A record for the main output, or a tag and a record for a side output."""


class ProcessFunction(Function):
    """Processes a stream without keys: any number of records for each, also to side outputs (`yield tag, record`)."""

    def process_element(self, value: Row, context: ProcessContext) -> Iterable[Emitted]:
        """Is called with each record. Returns a list of records, or yields them."""
        raise NotImplementedError


class TimerFunction(Function):
    """A function with timers. They need keys: a timer belongs to the key under which it was registered."""

    def on_timer(self, timestamp: int, context: Any) -> Iterable[Emitted]:
        """Is called when a timer fires, with an `OnTimerContext` and the state of its key. It may register others."""
        raise NotImplementedError

    @property
    def has_timers(self) -> bool:
        """True if the author wrote `on_timer`."""
        return type(self).on_timer is not TimerFunction.on_timer


class KeyedProcessFunction(TimerFunction):
    """Processes a keyed stream, with state and timers per key."""

    def process_element(self, value: Row, context: ProcessContext) -> Iterable[Emitted]:
        """Is called with each record and the state of its key. Returns a list of records, or yields them."""
        raise NotImplementedError
