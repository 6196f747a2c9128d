"""How a window operator keeps what is in a window: all records, one reduced record, or one accumulator.

All of them are items of a list state per key and window. A list tells an accumulator that is null from none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa

from engine.core.evictors import TimestampedValue
from engine.core.functions import AggregateFunction, Row
from engine.core.state_types import ListState
from engine.runtime.operators.records import copier

Items = list[Any]


class Contents(ABC):
    """`type` is the type of the items. `add` puts a record into the state of its window."""

    type: pa.DataType

    @abstractmethod
    def add(self, state: ListState[Any], record: Row, timestamp_ms: int | None) -> None: ...

    @abstractmethod
    def merged(self, parts: Sequence[Items]) -> Items:
        """Returns the items of several windows that became one."""

    @abstractmethod
    def elements(self, items: Items, kept: bool) -> list[Any]:
        """Returns what the window function gets. They are copies, which it may change, if the window keeps the items.

        Results are emitted a batch at a time, so they must not change with the window either.
        """

    @abstractmethod
    def folded(self, records: list[Row]) -> list[Any]:
        """Returns what the window function gets if the window holds these records."""


class Records(Contents):
    """Keeps all records."""

    def __init__(self, record: pa.DataType) -> None:
        self.type = record
        self._copy = copier(record)

    def add(self, state: ListState[Any], record: Row, timestamp_ms: int | None) -> None:
        state.add(record)

    def merged(self, parts: Sequence[Items]) -> Items:
        return [item for items in parts for item in items]

    def elements(self, items: Items, kept: bool) -> list[Any]:
        return [self._copy(record) for record in items]

    def folded(self, records: list[Row]) -> list[Any]:
        return records


class Reduced(Contents):
    """Keeps one record, to which a function reduces all. The function may change its arguments: they are copies."""

    def __init__(self, call: Callable[[Row, Row], Row], record: pa.DataType) -> None:
        self.type = record
        self._call = call
        self._copy = copier(record)

    def add(self, state: ListState[Any], record: Row, timestamp_ms: int | None) -> None:
        held = state.get()
        state.update([self._call(self._copy(held[0]), self._copy(record)) if held else record])

    def merged(self, parts: Sequence[Items]) -> Items:
        return self.folded([record for items in parts for record in items])

    def elements(self, items: Items, kept: bool) -> list[Any]:
        return [self._copy(record) for record in items]

    def folded(self, records: list[Row]) -> list[Any]:
        return [reduce(self._call, records)] if records else []


class Aggregated(Contents):
    """Keeps the accumulator of an `AggregateFunction`. The function may change it, and the record, which is a copy."""

    def __init__(self, function: AggregateFunction, accumulator: pa.DataType, record: pa.DataType) -> None:
        self.type = accumulator
        self._function = function
        self._copy = copier(record)

    def add(self, state: ListState[Any], record: Row, timestamp_ms: int | None) -> None:
        held = state.get()
        before = held[0] if held else self._function.create_accumulator()
        state.update([self._function.add(self._copy(record), before)])

    def merged(self, parts: Sequence[Items]) -> Items:
        held = [item for items in parts for item in items]
        return [reduce(self._function.merge, held)] if held else []

    def elements(self, items: Items, kept: bool) -> list[Any]:
        return [self._function.get_result(deepcopy(items[0]) if kept else items[0])]

    def folded(self, records: list[Row]) -> list[Any]:
        accumulator = self._function.create_accumulator()
        for record in records:
            accumulator = self._function.add(record, accumulator)
        return [self._function.get_result(accumulator)]


@dataclass(frozen=True)
class Timestamped(Contents):
    """Keeps all records with their times, for an evictor; `inner` folds those that it leaves."""

    inner: Contents
    record: pa.DataType

    @property
    def type(self) -> pa.DataType:
        return pa.struct([pa.field("record", self.record), pa.field("at", pa.int64())])

    def add(self, state: ListState[Any], record: Row, timestamp_ms: int | None) -> None:
        state.add({"record": record, "at": timestamp_ms})

    def merged(self, parts: Sequence[Items]) -> Items:
        return [item for items in parts for item in items]

    def elements(self, items: Items, kept: bool) -> list[Any]:
        return self.folded([dict(item["record"]) for item in items])

    def folded(self, records: list[Row]) -> list[Any]:
        return self.inner.folded(records)

    def stamped(self, items: Items) -> list[TimestampedValue]:
        """Returns the items as an evictor sees them."""
        return [TimestampedValue(dict(item["record"]), item["at"]) for item in items]

    def left(self, elements: Sequence[TimestampedValue]) -> list[Any]:
        """Returns what the window function gets of the records that an evictor has left."""
        copy = copier(self.record)
        return self.folded([copy(element.value) for element in elements])

    def items(self, elements: Sequence[TimestampedValue]) -> Items:
        return [{"record": element.value, "at": element.timestamp} for element in elements]
