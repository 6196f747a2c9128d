"""Operator state (C1): lists and maps of a subtask that belong to no key. What a restore gives to whom is decided in
`engine/protocol/redistribution.py`.

A snapshot is taken as heap state's is: references now, Arrow later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

import pyarrow as pa

from engine.protocol.redistribution import Distribution
from engine.state.values import frozen, thawed

_KEY, _VALUE = "key", "value"

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True)
class ListStateDescriptor:
    """A named list, with items of an Arrow type."""

    name: str
    type: pa.DataType


@dataclass(frozen=True)
class MapStateDescriptor:
    """A named map, with keys and values of Arrow types."""

    name: str
    key_type: pa.DataType
    value_type: pa.DataType

    def __post_init__(self) -> None:
        if pa.types.is_nested(self.key_type) or pa.types.is_floating(self.key_type):
            raise ValueError(f"state {self.name!r}: {self.key_type} can't be the key of a map; use text or integers")


class OperatorListState(Generic[T]):
    """The items of this subtask. After a restore at another parallelism: its share of all, or all (union)."""

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
    """What the broadcast side has put there; the same in every subtask."""

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
    """Every subtask has to change it in the same way: from the broadcast record alone, not from where it runs."""

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


Descriptor: TypeAlias = ListStateDescriptor | MapStateDescriptor
Part: TypeAlias = tuple[str, Distribution, Callable[[], pa.Table]]


class OperatorBackend:
    """The operator state of one operator subtask."""

    def __init__(self) -> None:
        self._lists: dict[str, list[Any]] = {}
        self._maps: dict[str, dict[Any, Any]] = {}
        self._declared: dict[str, tuple[Descriptor, Distribution]] = {}
        self._restored: dict[str, tuple[Distribution, pa.Table]] = {}

    def list_state(self, descriptor: ListStateDescriptor, distribution: Distribution) -> OperatorListState[Any]:
        if self._declare(descriptor, distribution):
            table = self._take(descriptor.name, distribution)
            saved = [] if table is None else thawed(descriptor.name, descriptor.type, table.column(_VALUE))
            self._lists[descriptor.name] = saved
        return OperatorListState(self._lists[descriptor.name])

    def broadcast_state(self, descriptor: MapStateDescriptor) -> BroadcastState[Any, Any]:
        if self._declare(descriptor, Distribution.BROADCAST):
            table = self._take(descriptor.name, Distribution.BROADCAST)
            self._maps[descriptor.name] = {} if table is None else _map(descriptor, table)
        return BroadcastState(self._maps[descriptor.name])

    def restore(self, name: str, distribution: Distribution, table: pa.Table) -> None:
        """To be called before the states are asked for."""
        assert name not in self._declared, f"state {name!r} is restored after it was opened"
        self._restored[name] = (distribution, table)

    def snapshot(self) -> list[Part]:
        """How to make the table of each state later. Later updates do not show in it."""
        parts: list[Part] = []
        for name, (descriptor, distribution) in self._declared.items():
            if isinstance(descriptor, ListStateDescriptor):
                columns = {_VALUE: frozen(name, descriptor.type, list(self._lists[name]))}
            else:
                held = self._maps[name]
                columns = {
                    _KEY: frozen(name, descriptor.key_type, list(held.keys())),
                    _VALUE: frozen(name, descriptor.value_type, list(held.values())),
                }
            parts.append((name, distribution, partial(_table, columns)))
        for name, (distribution, table) in self._restored.items():  # not opened yet: still ours to keep
            parts.append((name, distribution, partial(pa.concat_tables, [table])))
        return parts

    def _declare(self, descriptor: Descriptor, distribution: Distribution) -> bool:
        """Whether it is new."""
        known = self._declared.setdefault(descriptor.name, (descriptor, distribution))
        if known[0] != descriptor or known[1] is not distribution:
            raise ValueError(
                f"operator state {descriptor.name!r} is declared twice, as {known[1].value} {known[0]} and "
                f"{distribution.value} {descriptor}"
            )
        return descriptor.name not in self._lists and descriptor.name not in self._maps

    def _take(self, name: str, distribution: Distribution) -> pa.Table | None:
        saved = self._restored.pop(name, None)
        if saved is None:
            return None
        if saved[0] is not distribution:
            raise ValueError(
                f"operator state {name!r} was saved as {saved[0].value}, but the job now asks for it as "
                f"{distribution.value}: ask for it as it was, or for a new state under another name"
            )
        return saved[1]


def _table(columns: Mapping[str, Callable[[], pa.Array]]) -> pa.Table:
    return pa.table({name: made() for name, made in columns.items()})


def _map(descriptor: MapStateDescriptor, table: pa.Table) -> dict[Any, Any]:
    keys = thawed(descriptor.name, descriptor.key_type, table.column(_KEY))
    return dict(zip(keys, thawed(descriptor.name, descriptor.value_type, table.column(_VALUE)), strict=True))
