"""Heap state: objects in memory, one dict per state name, snapshotted as Arrow.

The synchronous part of a snapshot copies the dict's references. It converts values of nested types to Arrow at once,
because a user may change them in place. A restored value has the form that Arrow gives it: a struct or a map is a dict,
a list or a tuple is a list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from engine.core.errors import UnfitState
from engine.core.state_types import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
)
from engine.state.copies import changeable
from engine.state.keyed.backend import NO_KEY, Key
from engine.state.keyed.expiring import ExpiringListState, ExpiringMapState, ExpiringValueState, Expiry
from engine.state.keyed.heap_states import (
    Aggregating,
    Checked,
    HeapListState,
    HeapMapState,
    HeapValueState,
    Reducing,
)
from engine.state.keyed.layout import Layout, described, layout_of
from engine.state.keyed.undo import Undoable

_NAN = float("nan")


@dataclass(frozen=True)
class _Held:
    """One state: its values by key, and the object through which a function uses them."""

    descriptor: StateDescriptor
    layout: Layout
    values: dict[Key, Any]
    expiry: Expiry | None
    state: Any


class HeapBackend:
    """A `KeyedBackend` in memory. `wall_ms`: processing time, for states with a time to live.

    `undoable`: what was done since `begin_record` can be undone. That costs a copy of what a record touches.
    """

    def __init__(self, key_fields: Sequence[pa.Field], wall_ms: Callable[[], int], undoable: bool = False) -> None:
        self._fields = list(key_fields)
        self._float_keys = any(pa.types.is_floating(field.type) for field in self._fields)
        self.key: Key = ()
        self._wall_ms = wall_ms
        self._undoable = undoable
        self._changeable = False
        self._in_record = False
        self._undoables: list[tuple[Undoable, Expiry | None]] = []
        self._states: dict[str, _Held] = {}
        self._restored: dict[str, list[pa.Table]] = {}

    def canonical(self, keys: Iterator[Key]) -> Iterator[Key]:
        return map(_canonical, keys) if self._float_keys else keys

    def state(self, descriptor: StateDescriptor) -> Any:
        known = self._states.get(descriptor.name)
        if known is None:
            known = self._states[descriptor.name] = self._open(descriptor)
        elif known.descriptor != descriptor:
            raise ValueError(
                f"state {descriptor.name!r} is declared twice, as {described(known.descriptor)} and as "
                f"{described(descriptor)}: give each state its own name"
            )
        return known.state

    def apply_to_all(self, descriptor: StateDescriptor, function: Callable[[Key, Any], None]) -> None:
        state = self.state(descriptor)
        held = self._states[descriptor.name]
        if held.expiry is not None:
            held.expiry.clean_all()
        for key in list(held.values):
            self.key = key
            function(key, state)
        self.key = NO_KEY

    @property
    def holds_changeable(self) -> bool:
        return self._changeable

    def begin_record(self) -> None:
        self._in_record = True
        for values, _ in self._undoables:
            values.begin()

    def end_record(self) -> None:
        self._in_record = False
        for values, _ in self._undoables:
            values.end()

    def undo_record(self) -> None:
        self._in_record = False
        for values, expiry in self._undoables:
            for key in values.undo():
                if expiry is not None:
                    expiry.put_back(key)

    def restore(self, name: str, table: pa.Table) -> None:
        assert name not in self._states, f"state {name!r} is restored after it was opened"
        self._restored.setdefault(name, []).append(table)

    @property
    def unclaimed(self) -> list[str]:
        return list(self._restored)

    def snapshot(self) -> list[tuple[str, Callable[[], pa.Table]]]:
        parts: list[tuple[str, Callable[[], pa.Table]]] = []
        for name, held in self._states.items():
            alive_since = held.expiry.clean_due() if held.expiry is not None else None
            parts.append((name, held.layout.freeze(held.values, alive_since)))
        for name, tables in self._restored.items():
            parts.append((name, partial(pa.concat_tables, list(tables))))  # not opened yet, but still part of the state
        return parts

    def _open(self, descriptor: StateDescriptor) -> _Held:
        layout = layout_of(descriptor, self._fields)
        touched_ms = self._wall_ms() if descriptor.ttl is not None else None
        try:
            values = layout.load(self._restored.get(descriptor.name, []), self.canonical, touched_ms)
        except ValueError as error:
            raise UnfitState(str(error)) from error
        self._restored.pop(descriptor.name, None)
        self._changeable = self._changeable or changeable(layout.kind)
        undoable = Undoable(values, self, descriptor) if self._undoable else None
        values = values if undoable is None else undoable
        expiry = Expiry(descriptor.ttl, self._wall_ms, values) if descriptor.ttl is not None else None
        if undoable is not None:
            self._undoables.append((undoable, expiry))
            if self._in_record:
                undoable.begin()
        return _Held(descriptor, layout, values, expiry, self._made(descriptor, layout, values, expiry))

    def _made(self, descriptor: StateDescriptor, layout: Layout, values: dict[Key, Any], expiry: Expiry | None) -> Any:
        checked = Checked(self, descriptor, layout.kind)
        match descriptor:
            case ListStateDescriptor():
                if expiry is not None:
                    return ExpiringListState(self, checked, values, expiry)
                return HeapListState(self, checked, values)
            case MapStateDescriptor():
                keys = Checked(self, descriptor, descriptor.key_type)
                if expiry is not None:
                    return ExpiringMapState(self, keys, checked, values, expiry)
                return HeapMapState(self, keys, checked, values)
        value: Any = HeapValueState(self, checked, values)
        if expiry is not None:
            value = ExpiringValueState(self, checked, values, expiry)
        match descriptor:
            case ReducingStateDescriptor():
                return Reducing(descriptor, value)
            case AggregatingStateDescriptor():
                return Aggregating(descriptor, value)
        return value


def _canonical(key: Key) -> Key:
    """Replaces every NaN by one object: a dict finds a NaN only if it is the same object."""
    return tuple([_NAN if part != part else part for part in key])
