"""Heap state: objects in memory, one dict per state name, snapshotted as Arrow.

The synchronous part of a snapshot copies the dict's references; values of nested types, which a user may change in
place, are turned into Arrow there and then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pyarrow as pa

VALUE = "_value"

Key = tuple[Any, ...]
T = TypeVar("T")


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
    """The keyed state of one operator subtask. `key` is the current key; the operator sets it for each record."""

    def __init__(self, key_fields: Sequence[pa.Field]) -> None:
        self.key: Key = ()
        self._fields = list(key_fields)
        self._states: dict[str, tuple[ValueStateDescriptor, dict[Key, Any]]] = {}
        self._restored: dict[str, list[pa.Table]] = {}

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
        parts = []
        for name, (descriptor, values) in self._states.items():
            keys, held = list(values.keys()), list(values.values())
            if pa.types.is_nested(descriptor.type):
                array = pa.array(held, descriptor.type)
                parts.append((name, lambda keys=keys, array=array: self._table(keys, array)))
            else:
                of = descriptor.type
                parts.append((name, lambda keys=keys, held=held, of=of: self._table(keys, pa.array(held, of))))
        for name, tables in self._restored.items():
            parts.append((name, lambda tables=tables: pa.concat_tables(tables)))  # not opened yet: still ours to keep
        return parts

    def _load(self, descriptor: ValueStateDescriptor) -> dict[Key, Any]:
        values: dict[Key, Any] = {}
        for table in self._restored.pop(descriptor.name, []):
            held = table.column(VALUE).to_pylist()
            if held and table.schema.field(VALUE).type != descriptor.type:
                raise ValueError(
                    f"state {descriptor.name!r} was saved as {table.schema.field(VALUE).type}, "
                    f"but the job now declares {descriptor.type}"
                )
            keys = zip(*(table.column(field.name).to_pylist() for field in self._fields), strict=True)
            values.update(zip(keys, held, strict=True))
        return values

    def _table(self, keys: list[Key], values: pa.Array) -> pa.Table:
        columns = list(zip(*keys, strict=True)) if keys else [()] * len(self._fields)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, self._fields, strict=True)]
        return pa.table([*arrays, values], names=[*(field.name for field in self._fields), VALUE])
