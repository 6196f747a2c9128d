"""How a window operator keeps what is in a window: all records, one reduced record, or one accumulator.

All of them are items of a list state per key and window. A list tells an accumulator that is null from none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa

from engine.core.evictors import TimestampedValue
from engine.core.functions import AggregateFunction, Row
from engine.core.state_types import ListState
from engine.runtime.operators.records import short
from engine.state.copies import copier, value_copier

Items = list[Any]


class Contents(ABC):
    """`type` is the type of the items. `by_clock`: records come with the time of the clock in place of event time."""

    type: pa.DataType
    by_clock = False

    @abstractmethod
    def add(self, state: ListState[Any], record: Row, timestamp_ms: int | None) -> bool:
        """Puts a record into the state of its window. Returns True if the window had something already.

        Contents that would have to count their items to know that return False.
        """

    def merged(self, parts: Sequence[Items]) -> Items:
        """Returns the items of several windows that became one."""
        return [item for items in parts for item in items]

    @abstractmethod
    def elements(self, items: Items, kept: bool) -> list[Any]:
        """Returns what the window function gets. They are copies, which it may change, if the window keeps the items.

        Results are emitted a batch at a time, so they must not change with the window either.
        """

    @abstractmethod
    def folded(self, records: list[Row], times: Sequence[int | None]) -> list[Any]:
        """Returns what the window function gets if the window holds these records, with these event times."""


class Records(Contents):
    """Keeps all records."""

    def __init__(self, record: pa.DataType) -> None:
        self.type = record
        self._copy = copier(record)

    def add(self, state: ListState[Any], record: Row, timestamp_ms: int | None) -> bool:
        state.add(record)
        return False

    def elements(self, items: Items, kept: bool) -> list[Any]:
        return [self._copy(record) for record in items]

    def folded(self, records: list[Row], times: Sequence[int | None]) -> list[Any]:
        return records


class Folding(Contents):
    """Keeps one item, into which each record is folded. `combined` makes one item of several, and may change them."""

    _declared = "the fields of the stream"
    """Says where the author has declared the type."""

    @abstractmethod
    def first(self, record: Row, at_ms: int | None) -> Any:
        """Returns the item of one record, which has this time."""

    @abstractmethod
    def more(self, item: Any, record: Row, at_ms: int | None) -> Any:
        """Returns the item with one more record. It may be the same object, changed."""

    @abstractmethod
    def combined(self, items: Sequence[Any]) -> Any:
        """Returns the item of what all of these hold, one or more. It may change them: copy what is kept."""

    @abstractmethod
    def copied(self, item: Any) -> Any:
        """Returns a copy of an item, which functions may change."""

    def add(self, state: ListState[Any], record: Row, timestamp_ms: int | None) -> bool:
        held = state.get()
        item = self.more(held[0], record, timestamp_ms) if held else self.first(record, timestamp_ms)
        try:
            state.update([item])
        except TypeError:
            raise self.unfit(item) from None
        return bool(held)

    def unfit(self, item: Any) -> TypeError:
        """Returns the error for an item that is not of the type of the contents."""
        return TypeError(f"the window keeps {self.type} ({self._declared}), but its function returned {short(item)}")

    def merged(self, parts: Sequence[Items]) -> Items:
        held = super().merged(parts)
        return [self.combined(held)] if held else []


class Reduced(Folding):
    """Keeps one record, to which a function reduces all. The function may change its arguments: they are copies."""

    def __init__(self, call: Callable[[Row, Row], Row], record: pa.DataType) -> None:
        self.type = record
        self._call = call
        self._copy = copier(record)

    def first(self, record: Row, at_ms: int | None) -> Any:
        return record

    def more(self, item: Any, record: Row, at_ms: int | None) -> Any:
        return self._call(self._copy(item), self._copy(record))

    def combined(self, items: Sequence[Any]) -> Any:
        return reduce(self._call, items)

    def copied(self, item: Any) -> Any:
        return self._copy(item)

    def elements(self, items: Items, kept: bool) -> list[Any]:
        return [self._copy(record) for record in items]

    def folded(self, records: list[Row], times: Sequence[int | None]) -> list[Any]:
        return [self.combined(records)] if records else []


class Aggregated(Folding):
    """Keeps the accumulator of an `AggregateFunction`. The function may change it, and the record, which is a copy."""

    _declared = "accumulator_type"

    def __init__(self, function: AggregateFunction, accumulator: pa.DataType, record: pa.DataType) -> None:
        self.type = accumulator
        self._function = function
        self._copy = copier(record)
        self._copied = value_copier(accumulator)

    def first(self, record: Row, at_ms: int | None) -> Any:
        return self._add(self._copy(record), self._function.create_accumulator())

    def more(self, item: Any, record: Row, at_ms: int | None) -> Any:
        return self._add(self._copy(record), item)

    def _add(self, record: Row, accumulator: Any) -> Any:
        added = self._function.add(record, accumulator)
        if added is None and accumulator is not None:
            raise TypeError(f"add of {type(self._function).__name__} returned None: return the accumulator")
        return added

    def combined(self, items: Sequence[Any]) -> Any:
        return reduce(self._merge, items)

    def _merge(self, left: Any, right: Any) -> Any:
        merged = self._function.merge(left, right)
        if merged is None and left is not None and right is not None:
            name = type(self._function).__name__
            raise TypeError(f"merge of {name} returned None: return the accumulator of what both hold")
        return merged

    def copied(self, item: Any) -> Any:
        return self._copied(item)

    def elements(self, items: Items, kept: bool) -> list[Any]:
        return [self._function.get_result(self.copied(items[0]) if kept else items[0])]

    def folded(self, records: list[Row], times: Sequence[int | None]) -> list[Any]:
        accumulator = self._function.create_accumulator()
        for record in records:
            accumulator = self._add(record, accumulator)
        return [self._function.get_result(accumulator)]


@dataclass(frozen=True)
class Timestamped(Contents):
    """Keeps all records with their times, for an evictor; `inner` folds those that it leaves."""

    inner: Contents
    record: pa.DataType

    @property
    def type(self) -> pa.DataType:
        return pa.struct([pa.field("record", self.record), pa.field("at", pa.int64())])

    def add(self, state: ListState[Any], record: Row, timestamp_ms: int | None) -> bool:
        state.add({"record": record, "at": timestamp_ms})
        return False

    def elements(self, items: Items, kept: bool) -> list[Any]:
        return self.folded([dict(item["record"]) for item in items], [item["at"] for item in items])

    def folded(self, records: list[Row], times: Sequence[int | None]) -> list[Any]:
        return self.inner.folded(records, times)

    def stamped(self, items: Items) -> list[TimestampedValue]:
        """Returns the items as an evictor sees them."""
        return [TimestampedValue(dict(item["record"]), item["at"]) for item in items]

    def left(self, elements: Sequence[TimestampedValue]) -> list[Any]:
        """Returns what the window function gets of the records that an evictor has left."""
        copy = copier(self.record)
        return self.folded([copy(element.value) for element in elements], [one.timestamp for one in elements])

    def items(self, elements: Sequence[TimestampedValue]) -> Items:
        return [{"record": element.value, "at": element.timestamp} for element in elements]
