"""Heap state: objects in memory, one dict per state name, snapshotted as Arrow.

The synchronous part of a snapshot copies the dict's references. It converts values of nested types to Arrow at once,
because a user may change them in place. A restored value has the form that Arrow gives it: a struct or a map is a dict,
a list or a tuple is a list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from engine.core.state_types import ValueState, ValueStateDescriptor
from engine.state.keyed.backend import NO_KEY, Key
from engine.state.values import fits, frozen, thawed

VALUE = "_value"

T = TypeVar("T")

_NAN = float("nan")


class HeapValueState(ValueState[T]):
    def __init__(self, backend: HeapBackend, descriptor: ValueStateDescriptor, values: dict[Key, T]) -> None:
        self._backend = backend
        self._descriptor = descriptor
        self._fits = fits(descriptor.type)
        self._values = values

    def value(self) -> T | None:
        return self._values.get(self._backend.key)

    def update(self, value: T) -> None:
        if not self._fits(value):
            of = self._descriptor
            raise TypeError(
                f"state {of.name!r} is declared as {of.type}, but update() was given {value!r} for the key "
                f"{self._backend.key!r}"
            )
        self._values[self._backend.key] = value

    def clear(self) -> None:
        self._values.pop(self._backend.key, None)


class HeapBackend:
    """A `KeyedBackend` in memory."""

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
        return map(_canonical, keys) if self._float_keys else keys

    def value_state(self, descriptor: ValueStateDescriptor) -> ValueState[Any]:
        known = self._states.get(descriptor.name)
        if known is None:
            known = self._states[descriptor.name] = (descriptor, self._load(descriptor))
        elif known[0] != descriptor:
            raise ValueError(
                f"state {descriptor.name!r} is declared twice, as {known[0].type} and {descriptor.type}: "
                "give each state its own name"
            )
        return HeapValueState(self, *known)

    def apply_to_all(self, descriptor: ValueStateDescriptor, function: Callable[[Key, ValueState[Any]], None]) -> None:
        state = self.value_state(descriptor)
        for key in list(self._states[descriptor.name][1]):
            self.key = key
            function(key, state)
        self.key = NO_KEY

    def restore(self, name: str, table: pa.Table) -> None:
        assert name not in self._states, f"state {name!r} is restored after it was opened"
        self._restored.setdefault(name, []).append(table)

    @property
    def unclaimed(self) -> list[str]:
        return list(self._restored)

    def snapshot(self) -> list[tuple[str, Callable[[], pa.Table]]]:
        parts: list[tuple[str, Callable[[], pa.Table]]] = []
        for name, (descriptor, values) in self._states.items():
            held = frozen(name, descriptor.type, list(values.values()))
            parts.append((name, partial(self._table, list(values.keys()), held)))
        for name, tables in self._restored.items():
            parts.append((name, partial(pa.concat_tables, list(tables))))  # not opened yet, but still part of the state
        return parts

    def _load(self, descriptor: ValueStateDescriptor) -> dict[Key, Any]:
        values: dict[Key, Any] = {}
        for table in self._restored.pop(descriptor.name, []):
            held = thawed(descriptor.name, descriptor.type, table.column(self._value_name))
            keys = zip(*(table.column(field.name).to_pylist() for field in self._fields), strict=True)
            values.update(zip(self.canonical(keys), held, strict=True))
        return values

    def _table(self, keys: list[Key], values: Callable[[], pa.Array]) -> pa.Table:
        columns = list(zip(*keys, strict=True)) if keys else [()] * len(self._fields)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, self._fields, strict=True)]
        return pa.table([*arrays, values()], names=[*(field.name for field in self._fields), self._value_name])


def _canonical(key: Key) -> Key:
    """Replaces every NaN by one object: a dict finds a NaN only if it is the same object."""
    return tuple([_NAN if part != part else part for part in key])
