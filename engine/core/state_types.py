"""State as functions see it: descriptors that name a state and its types, and the states themselves (C1)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import pyarrow as pa

from engine.core.ddl import parse_type

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True)
class ValueStateDescriptor:
    """Names a value per key and gives its type: an Arrow type, or a DDL type such as "long" or "array<string>"."""

    name: str
    type: pa.DataType

    def __post_init__(self) -> None:
        object.__setattr__(self, "type", parse_type(self.type, f"state {self.name!r}"))


@dataclass(frozen=True)
class ListStateDescriptor:
    """Names a list and gives the type of its items: an Arrow type, or a DDL type such as "long"."""

    name: str
    type: pa.DataType

    def __post_init__(self) -> None:
        object.__setattr__(self, "type", parse_type(self.type, f"state {self.name!r}"))


@dataclass(frozen=True)
class MapStateDescriptor:
    """Names a map and gives the types of its keys and values: Arrow types, or DDL types such as "long"."""

    name: str
    key_type: pa.DataType
    value_type: pa.DataType

    def __post_init__(self) -> None:
        object.__setattr__(self, "key_type", parse_type(self.key_type, f"state {self.name!r}"))
        object.__setattr__(self, "value_type", parse_type(self.value_type, f"state {self.name!r}"))
        if pa.types.is_nested(self.key_type) or pa.types.is_floating(self.key_type):
            raise ValueError(f"state {self.name!r}: {self.key_type} can't be the key of a map; use text or integers")


class ValueState(ABC, Generic[T]):
    """The value of the current key."""

    @abstractmethod
    def value(self) -> T | None:
        """Returns the value, or None if the key has none."""

    @abstractmethod
    def update(self, value: T) -> None:
        """Sets the value."""

    @abstractmethod
    def clear(self) -> None:
        """Removes the value."""


class OperatorListState(Generic[T]):
    """The items of this subtask. A restore at another parallelism gives it a share of all items, or all (union)."""

    def __init__(self, items: list[T]) -> None:
        self._items = items

    def get(self) -> list[T]:
        return list(self._items)

    def add(self, item: T) -> None:
        self._items.append(item)

    def add_all(self, items: Iterable[T]) -> None:
        self._items.extend(items)

    def update(self, items: Iterable[T]) -> None:
        self._items[:] = items

    def clear(self) -> None:
        self._items.clear()


class ReadOnlyBroadcastState(Generic[K, V]):
    """A map that the broadcast side fills; it is the same in every subtask."""

    def __init__(self, values: dict[K, V]) -> None:
        self._values = values

    def get(self, key: K) -> V | None:
        return self._values.get(key)

    def contains(self, key: K) -> bool:
        return key in self._values

    def items(self) -> Iterator[tuple[K, V]]:
        return iter(self._values.items())

    def keys(self) -> Iterator[K]:
        return iter(self._values.keys())

    def values(self) -> Iterator[V]:
        return iter(self._values.values())

    def is_empty(self) -> bool:
        return not self._values

    def __len__(self) -> int:
        return len(self._values)


class BroadcastState(ReadOnlyBroadcastState[K, V]):
    """A map that every subtask must change in the same way: by the broadcast record alone, not by where it runs."""

    @property
    def read_only(self) -> ReadOnlyBroadcastState[K, V]:
        return ReadOnlyBroadcastState(self._values)

    def put(self, key: K, value: V) -> None:
        self._values[key] = value

    def put_all(self, values: Mapping[K, V]) -> None:
        self._values.update(values)

    def remove(self, key: K) -> None:
        self._values.pop(key, None)

    def clear(self) -> None:
        self._values.clear()
