"""State as functions see it: descriptors that name a state and its types, and the states themselves (C1)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pyarrow as pa

from engine.core.ddl import parse_type
from engine.core.errors import JobError
from engine.core.schema_rules import SchemaError
from engine.core.state_ttl import StateTtlConfig

if TYPE_CHECKING:  # functions ask for states, so their file imports this one
    from engine.core.functions import AggregateFunction

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True)
class StateDescriptor:
    """Names a state. Types are Arrow types, or DDL types such as "long" or "array<string>"."""

    name: str
    ttl: StateTtlConfig | None = field(default=None, init=False, compare=False)
    defaults: Mapping[str, Any] = field(default_factory=dict, compare=False, kw_only=True)
    """Values of struct fields that snapshots of earlier versions of the job lack; a field without one is null."""

    def enable_time_to_live(self, ttl: StateTtlConfig) -> None:
        """Lets the values of the state expire. Only state per key can."""
        if not isinstance(ttl, StateTtlConfig):
            raise JobError(
                f"state {self.name!r}: enable_time_to_live takes a config such as "
                f'StateTtlConfig.new_builder("1 h").build(), not {ttl!r}'
            )
        object.__setattr__(self, "ttl", ttl)

    def _parse(self, *types: str) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise JobError(f"a state needs a name, a text: {type(self).__name__}({self.name!r}, ...)")
        for of in types:
            given = getattr(self, of)
            if isinstance(given, type) and given in _DDL:
                raise JobError(
                    f"state {self.name!r}: a type is a pyarrow type or a Spark DDL type, not {given.__name__}: "
                    f"write {_DDL[given]}"
                )
            object.__setattr__(self, of, parse_type(given, f"state {self.name!r}"))
        _check_defaults(self.name, getattr(self, types[-1]), self.defaults)

    def _check_function(self, given: object, fits: bool, instead: str) -> None:
        if not fits or isinstance(given, type):
            shown = f"the class {given.__name__}" if isinstance(given, type) else repr(given)
            raise JobError(f"state {self.name!r}: {type(self).__name__} takes {instead} before the type, not {shown}")


_DDL: dict[type, str] = {
    int: "'long'",
    float: "'double'",
    str: "'string'",
    bool: "'boolean'",
    bytes: "'binary'",
    datetime: "'timestamp'",
    date: "'date'",
    Decimal: "such as 'decimal(10,2)'",
    list: "such as 'array<long>', or use a ListStateDescriptor",
    dict: "such as 'map<string,long>' or 'struct<a long, b string>', or use a MapStateDescriptor",
}
"""What to write in place of a Python type."""


@dataclass(frozen=True)
class ValueStateDescriptor(StateDescriptor):
    """Names a value per key and gives its type."""

    type: pa.DataType

    def __post_init__(self) -> None:
        self._parse("type")


@dataclass(frozen=True)
class ListStateDescriptor(StateDescriptor):
    """Names a list, per key or of a subtask, and gives the type of its items."""

    type: pa.DataType

    def __post_init__(self) -> None:
        self._parse("type")


@dataclass(frozen=True)
class MapStateDescriptor(StateDescriptor):
    """Names a map, per key or broadcast, and gives the types of its keys and values."""

    key_type: pa.DataType
    value_type: pa.DataType

    def __post_init__(self) -> None:
        self._parse("key_type", "value_type")
        if pa.types.is_nested(self.key_type) or pa.types.is_floating(self.key_type):
            raise SchemaError(f"state {self.name!r}: {self.key_type} can't be the key of a map; use text or integers")


@dataclass(frozen=True)
class ReducingStateDescriptor(StateDescriptor):
    """Names a value per key into which a function of two values, or a `ReduceFunction`, reduces all that is added."""

    function: Any = field(compare=False)
    type: pa.DataType

    def __post_init__(self) -> None:
        fits = callable(self.function) or hasattr(self.function, "reduce")
        self._check_function(self.function, fits, "a function such as max, or a ReduceFunction,")
        self._parse("type")

    @property
    def reduce(self) -> Callable[[Any, Any], Any]:
        """The function as a plain callable."""
        reduce: Callable[[Any, Any], Any] = getattr(self.function, "reduce", self.function)
        return reduce


@dataclass(frozen=True)
class AggregatingStateDescriptor(StateDescriptor):
    """Names an accumulator per key to which an `AggregateFunction` adds; `type` is the type of the accumulator."""

    function: AggregateFunction = field(compare=False)
    type: pa.DataType

    def __post_init__(self) -> None:
        fits = hasattr(self.function, "create_accumulator")
        self._check_function(self.function, fits, "an object of an AggregateFunction")
        self._parse("type")


def _check_defaults(state: str, kind: pa.DataType, defaults: Mapping[str, Any]) -> None:
    """Raises an error if a default is not a value of a field: nobody would notice before the next upgrade."""
    for name, value in defaults.items():
        if not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
            raise ValueError(f"state {state!r} has a default for {name!r}, which is no field of its type {kind}")
        try:
            pa.scalar(value, kind.field(name).type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise ValueError(
                f"state {state!r}: the default {value!r} of {name!r} is not a {kind.field(name).type}: {error}"
            ) from error


class ValueState(ABC, Generic[T]):
    """The value of the current key."""

    __slots__ = ()  # so that `state.value = 1` is an error, and does not put the method out of sight

    @abstractmethod
    def value(self) -> T | None:
        """Returns the value, or None if the key has none."""

    @abstractmethod
    def update(self, value: T) -> None:
        """Sets the value."""

    @abstractmethod
    def clear(self) -> None:
        """Removes the value."""


class ListState(ABC, Generic[T]):
    """The list of the current key. A key without items has no list."""

    @abstractmethod
    def get(self) -> list[T]:
        """Returns the items, in the order in which they were added."""

    @abstractmethod
    def add(self, value: T) -> None:
        """Adds an item at the end."""

    @abstractmethod
    def update(self, values: Iterable[T]) -> None:
        """Replaces all items by these."""

    @abstractmethod
    def clear(self) -> None:
        """Removes all items."""

    def add_all(self, values: Iterable[T]) -> None:
        """Adds items at the end."""
        for value in values:
            self.add(value)

    def __iter__(self) -> Iterator[T]:
        return iter(self.get())


class MapState(ABC, Generic[K, V]):
    """The map of the current key."""

    @abstractmethod
    def get(self, key: K) -> V | None:
        """Returns the value of a key of the map, or None if there is none."""

    @abstractmethod
    def put(self, key: K, value: V) -> None:
        """Sets the value of a key of the map."""

    @abstractmethod
    def contains(self, key: K) -> bool:
        """Says whether the map has this key."""

    @abstractmethod
    def remove(self, key: K) -> None:
        """Removes a key of the map, if it is there."""

    @abstractmethod
    def entries(self) -> dict[K, V]:
        """Returns a copy of the map as a dict."""

    @abstractmethod
    def clear(self) -> None:
        """Removes all entries."""

    def put_all(self, values: Mapping[K, V]) -> None:
        """Sets the values of several keys of the map."""
        for key, value in values.items():
            self.put(key, value)

    def items(self) -> Iterator[tuple[K, V]]:
        """Returns the entries as they are now; the map may change meanwhile."""
        return iter(self.entries().items())

    def keys(self) -> Iterator[K]:
        """Returns the keys of the map as they are now."""
        return iter(self.entries())

    def values(self) -> Iterator[V]:
        """Returns the values of the map as they are now."""
        return iter(self.entries().values())

    def is_empty(self) -> bool:
        """Says whether the map has no entry."""
        return not self.entries()

    def __getitem__(self, key: K) -> V | None:
        return self.get(key)

    def __setitem__(self, key: K, value: V) -> None:
        self.put(key, value)

    def __delitem__(self, key: K) -> None:
        self.remove(key)

    def __contains__(self, key: K) -> bool:
        return self.contains(key)

    def __iter__(self) -> Iterator[K]:
        return self.keys()


class ReducingState(ABC, Generic[T]):
    """The reduced value of all that was added under the current key."""

    @abstractmethod
    def get(self) -> T | None:
        """Returns the reduced value, or None if nothing was added."""

    @abstractmethod
    def add(self, value: T) -> None:
        """Reduces the value so far and this one to a new value."""

    @abstractmethod
    def clear(self) -> None:
        """Removes the value."""


class AggregatingState(ABC, Generic[K, V]):
    """The result of an `AggregateFunction` for all that was added under the current key."""

    @abstractmethod
    def get(self) -> V | None:
        """Returns the result, or None if nothing was added."""

    @abstractmethod
    def add(self, value: K) -> None:
        """Adds a value to the accumulator."""

    @abstractmethod
    def clear(self) -> None:
        """Removes the accumulator."""


class OperatorListState(Generic[T]):
    """The items of this subtask. A restore at another parallelism gives it a share of all items, or all (union)."""

    def __init__(self, items: list[T]) -> None:
        self._items = items

    def get(self) -> list[T]:
        """Returns a copy of the items."""
        return list(self._items)

    def add(self, item: T) -> None:
        """Adds an item at the end."""
        self._items.append(item)

    def add_all(self, items: Iterable[T]) -> None:
        """Adds items at the end."""
        self._items.extend(items)

    def update(self, items: Iterable[T]) -> None:
        """Replaces all items by these."""
        self._items[:] = items

    def clear(self) -> None:
        """Removes all items."""
        self._items.clear()


class ReadOnlyBroadcastState(Generic[K, V]):
    """A map that the broadcast side fills; it is the same in every subtask."""

    def __init__(self, values: dict[K, V]) -> None:
        self._values = values

    def get(self, key: K) -> V | None:
        """Returns the value of a key of the map, or None if there is none."""
        return self._values.get(key)

    def contains(self, key: K) -> bool:
        """Says whether the map has this key."""
        return key in self._values

    def items(self) -> Iterator[tuple[K, V]]:
        """Iterates over the entries."""
        return iter(self._values.items())

    def keys(self) -> Iterator[K]:
        """Iterates over the keys of the map."""
        return iter(self._values.keys())

    def values(self) -> Iterator[V]:
        """Iterates over the values of the map."""
        return iter(self._values.values())

    def is_empty(self) -> bool:
        """Says whether the map has no entry."""
        return not self._values

    def __len__(self) -> int:
        return len(self._values)


class BroadcastState(ReadOnlyBroadcastState[K, V]):
    """A map that every subtask must change in the same way: by the broadcast record alone, not by where it runs."""

    @property
    def read_only(self) -> ReadOnlyBroadcastState[K, V]:
        """The same map, without the methods that change it."""
        return ReadOnlyBroadcastState(self._values)

    def put(self, key: K, value: V) -> None:
        """Sets the value of a key of the map."""
        self._values[key] = value

    def put_all(self, values: Mapping[K, V]) -> None:
        """Sets the values of several keys of the map."""
        self._values.update(values)

    def remove(self, key: K) -> None:
        """Removes a key of the map, if it is there."""
        self._values.pop(key, None)

    def clear(self) -> None:
        """Removes all entries."""
        self._values.clear()
