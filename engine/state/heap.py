"""Heap state: objects in memory, one dict per state name, snapshotted as Arrow.

The synchronous part of a snapshot copies the dict's references; values of nested types, which a user may change in
place, are turned into Arrow there and then. A restored value is what Arrow makes of it: a struct or a map is a dict, a
list or a tuple is a list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import pyarrow as pa

VALUE = "_value"

Key = tuple[Any, ...]
T = TypeVar("T")

_NAN = float("nan")


@dataclass(frozen=True)
class ValueStateDescriptor:
    """A named value per key, of an Arrow type."""

    name: str
    type: pa.DataType


class ValueState(Generic[T]):
    """The value of the current key."""

    def __init__(self, backend: HeapBackend, values: dict[Key, T]) -> None:
        self._backend = backend
        self._values = values

    def value(self) -> T | None:
        return self._values.get(self._backend.key)

    def update(self, value: T) -> None:
        self._values[self._backend.key] = value

    def clear(self) -> None:
        self._values.pop(self._backend.key, None)


class HeapBackend:
    """The keyed state of one operator subtask. `key` is the current key; the operator sets it for each record, as
    `canonical` gives it."""

    def __init__(self, key_fields: Sequence[pa.Field]) -> None:
        self._fields = list(key_fields)
        self._float_keys = any(pa.types.is_floating(field.type) for field in self._fields)
        self.key: Key = ()
        self._value_name = VALUE
        while self._value_name in [field.name for field in self._fields]:
            self._value_name += "_"
        self._states: dict[str, tuple[ValueStateDescriptor, dict[Key, Any]]] = {}
        self._restored: dict[str, list[pa.Table]] = {}

    def canonical(self, keys: Iterator[Key]) -> Iterator[Key]:
        """Keys as they have to be set."""
        return map(_canonical, keys) if self._float_keys else keys

    def value_state(self, descriptor: ValueStateDescriptor) -> ValueState[Any]:
        known = self._states.get(descriptor.name)
        if known is None:
            known = self._states[descriptor.name] = (descriptor, self._load(descriptor))
        elif known[0] != descriptor:
            raise ValueError(f"state {descriptor.name!r} is declared twice, as {known[0].type} and {descriptor.type}")
        return ValueState(self, known[1])

    def restore(self, name: str, table: pa.Table) -> None:
        """To be called before the states are asked for."""
        assert name not in self._states, f"state {name!r} is restored after it was opened"
        self._restored.setdefault(name, []).append(table)

    def snapshot(self) -> list[tuple[str, Callable[[], pa.Table]]]:
        """Per state name, how to make its table later. Later updates do not show in it."""
        parts: list[tuple[str, Callable[[], pa.Table]]] = []
        for name, (descriptor, values) in self._states.items():
            keys, held = list(values.keys()), list(values.values())
            if pa.types.is_nested(descriptor.type):
                parts.append((name, partial(self._table, keys, _array(descriptor, held))))
            else:
                parts.append((name, partial(self._table_of, keys, descriptor, held)))
        for name, tables in self._restored.items():
            parts.append((name, partial(pa.concat_tables, list(tables))))  # not opened yet: still ours to keep
        return parts

    def _load(self, descriptor: ValueStateDescriptor) -> dict[Key, Any]:
        values: dict[Key, Any] = {}
        for table in self._restored.pop(descriptor.name, []):
            saved = table.column(self._value_name)
            if saved.type != descriptor.type:
                raise ValueError(
                    f"state {descriptor.name!r} was saved as {saved.type}, but the job now declares {descriptor.type}: "
                    "declare the type it had, or a new state under another name"
                )
            keys = zip(*(table.column(field.name).to_pylist() for field in self._fields), strict=True)
            values.update(zip(self.canonical(keys), objects_of(saved), strict=True))
        return values

    def _table_of(self, keys: list[Key], descriptor: ValueStateDescriptor, held: list[Any]) -> pa.Table:
        return self._table(keys, _array(descriptor, held))

    def _table(self, keys: list[Key], values: pa.Array) -> pa.Table:
        columns = list(zip(*keys, strict=True)) if keys else [()] * len(self._fields)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, self._fields, strict=True)]
        return pa.table([*arrays, values], names=[*(field.name for field in self._fields), self._value_name])


def objects_of(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """What a function sees: a map is a dict. Arrow makes those the long way round, thirty times as slowly as others."""
    return column.to_pylist(maps_as_pydicts="lossy" if _holds_maps(column.type) else None)  # type: ignore[no-any-return]


def _holds_maps(kind: pa.DataType) -> bool:
    return pa.types.is_map(kind) or any(_holds_maps(kind.field(place).type) for place in range(kind.num_fields))


def _canonical(key: Key) -> Key:
    """Every NaN is one key: Python finds it again only if it is the same object."""
    return tuple([_NAN if part != part else part for part in key])


def _array(descriptor: ValueStateDescriptor, held: list[Any]) -> pa.Array:
    try:
        if pa.types.is_integer(descriptor.type):
            for value in held:
                if isinstance(value, float) and not value.is_integer():
                    raise ValueError(f"{value} (Arrow would cut it off without a word)")
        return pa.array(held, descriptor.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"state {descriptor.name!r} is declared as {descriptor.type}, but holds: {error}") from error
