"""Operator state (C1): lists and maps of a subtask that belong to no key.

`engine/protocol/redistribution.py` decides which subtask gets which items on a restore. A snapshot is taken in the same
way as that of heap state: the barrier copies references, the upload makes Arrow tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa

from engine.core.state_types import BroadcastState, ListStateDescriptor, MapStateDescriptor, OperatorListState
from engine.protocol.redistribution import Distribution
from engine.state.values import frozen, thawed, thawed_keys

_KEY, _VALUE = "key", "value"

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
            self._lists[descriptor.name] = [] if table is None else _list(descriptor, table)
        return OperatorListState(self._lists[descriptor.name])

    def broadcast_state(self, descriptor: MapStateDescriptor) -> BroadcastState[Any, Any]:
        if self._declare(descriptor, Distribution.BROADCAST):
            table = self._take(descriptor.name, Distribution.BROADCAST)
            self._maps[descriptor.name] = {} if table is None else _map(descriptor, table)
        return BroadcastState(self._maps[descriptor.name])

    def restore(self, name: str, distribution: Distribution, table: pa.Table) -> None:
        """Takes a saved state. Must be called before the state is asked for."""
        assert name not in self._declared, f"state {name!r} is restored after it was opened"
        self._restored[name] = (distribution, table)

    @property
    def unclaimed(self) -> list[str]:
        """The names of restored states that were not asked for."""
        return list(self._restored)

    def snapshot(self) -> list[Part]:
        """Returns for each state a function that makes its table. Later updates do not show in the table."""
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
        for name, (distribution, table) in self._restored.items():  # not opened yet, but still part of the state
            parts.append((name, distribution, partial(pa.concat_tables, [table])))
        return parts

    def _declare(self, descriptor: Descriptor, distribution: Distribution) -> bool:
        """Returns True if the state was not declared before."""
        if descriptor.ttl is not None:
            raise ValueError(f"operator state {descriptor.name!r} can't have a time to live: only state per key can")
        known = self._declared.setdefault(descriptor.name, (descriptor, distribution))
        if known[0] != descriptor or known[1] is not distribution:
            raise ValueError(
                f"operator state {descriptor.name!r} is declared twice, as {known[1].value} {known[0]} and "
                f"{distribution.value} {descriptor}: give each state its own name"
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


def _list(descriptor: ListStateDescriptor, table: pa.Table) -> list[Any]:
    return thawed(descriptor.name, descriptor.type, table.column(_VALUE), descriptor.defaults)


def _map(descriptor: MapStateDescriptor, table: pa.Table) -> dict[Any, Any]:
    keys = thawed_keys(descriptor.name, descriptor.key_type, table.column(_KEY))
    values = thawed(descriptor.name, descriptor.value_type, table.column(_VALUE), descriptor.defaults)
    return dict(zip(keys, values, strict=True))
