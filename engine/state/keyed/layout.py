"""How a keyed state lies in a table: one row for a value, for an item of a list, for an entry of a map.

The names of the columns say the kind of the state, so a state that is asked for as another kind is noticed. A state
with a time to live has one column more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from engine.core.state_types import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from engine.state.keyed.backend import Key
from engine.state.values import frozen, thawed, thawed_keys

TOUCHED = "_touched_ms"
MAP_KEY = "_map_key"
_VALUES: dict[str, str] = {
    "_value": "value",
    "_item": "list",
    "_map_value": "map",
    "_reduced": "reducing",
    "_accumulator": "aggregating",
}
"""The column that holds the values of a state, and the kind of state that it means."""


@dataclass(frozen=True)
class Layout:
    """`fields`: the key columns. `value` is the column of the values, `kind` their type, `map_key` that of a map's.

    `defaults` are values of struct fields that saved values may lack.
    """

    name: str
    fields: tuple[pa.Field, ...]
    value: str
    kind: pa.DataType
    map_key: pa.DataType | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_list(self) -> bool:
        return self.value == "_item"

    def column(self, name: str) -> str:
        """Returns the name of a column in the table: longer if a key column has the same name."""
        while any(field.name == name for field in self.fields):
            name += "_"
        return name

    def freeze(self, values: dict[Key, Any], alive_since: int | None = None) -> Callable[[], pa.Table]:
        """Copies the references and returns a function that makes the table. Later updates do not show in it.

        `alive_since`: the state has a time to live; the table leaves out what was not touched after this time.
        """
        keys = list(values.keys())
        each: list[int] | None = None
        times: list[int] = []
        held: list[Any] = list(values.values())
        columns: dict[str, Callable[[], pa.Array]] = {}
        if self.map_key is not None:
            columns[MAP_KEY] = frozen(self.name, self.map_key, list(chain.from_iterable(held)))
        if self.is_list or self.map_key is not None:
            each = list(map(len, held))
            held = list(chain.from_iterable(of.values() if isinstance(of, dict) else of for of in held))
        if alive_since is not None:
            times = [at for _, at in held]
            held = [value for value, _ in held]
            columns[TOUCHED] = lambda: pa.array(times, pa.int64())
        columns[self.value] = frozen(self.name, self.kind, held)
        if alive_since is None:
            return lambda: self._table(keys, each, columns)
        return lambda: self._alive(self._table(keys, each, columns), alive_since)

    def _alive(self, table: pa.Table, alive_since: int) -> pa.Table:
        return table.filter(pc.greater(table.column(self.column(TOUCHED)), alive_since))

    def _table(
        self, keys: Sequence[Key], each: Sequence[int] | None, columns: dict[str, Callable[[], pa.Array]]
    ) -> pa.Table:
        of_key = list(zip(*keys, strict=True)) if keys else [()] * len(self.fields)
        arrays = [pa.array(column, field.type) for column, field in zip(of_key, self.fields, strict=True)]
        if each is not None:
            rows = pa.array(np.repeat(np.arange(len(keys)), each))
            arrays = [array.take(rows) for array in arrays]
        names = [*(field.name for field in self.fields), *map(self.column, columns)]
        return pa.table([*arrays, *(made() for made in columns.values())], names=names)

    def load(
        self, tables: Sequence[pa.Table], canonical: Callable[[Iterator[Key]], Iterator[Key]], touched_ms: int | None
    ) -> dict[Key, Any]:
        """Returns the values of saved tables, by canonical key.

        `touched_ms`: the state has a time to live; values that had none before were touched at this time.
        """
        values: dict[Key, Any] = {}
        for table in tables:
            self._check_kind(table)
            keys = canonical(zip(*(table.column(field.name).to_pylist() for field in self.fields), strict=True))
            held = thawed(self.name, self.kind, table.column(self.column(self.value)), self.defaults)
            if touched_ms is not None:
                touched = self.column(TOUCHED)
                saved = table.column(touched).to_pylist() if touched in table.column_names else [touched_ms] * len(held)
                held = list(zip(held, saved, strict=True))
            if self.map_key is not None:
                names = thawed_keys(self.name, self.map_key, table.column(self.column(MAP_KEY)))
                for key, name, value in zip(keys, names, held, strict=True):
                    values.setdefault(key, {})[name] = value
            elif self.is_list:
                for key, item in zip(keys, held, strict=True):
                    values.setdefault(key, []).append(item)
            else:
                values.update(zip(keys, held, strict=True))
        return values

    def _check_kind(self, table: pa.Table) -> None:
        if self.column(self.value) in table.column_names:
            return
        was = next((kind for name, kind in _VALUES.items() if self.column(name) in table.column_names), "another")
        raise ValueError(
            f"state {self.name!r} was saved as {_a(was)} state, but the job now asks for it as "
            f"{_a(_VALUES[self.value])} state: ask for it as it was, or for a new state under another name"
        )


def layout_of(descriptor: StateDescriptor, fields: Sequence[pa.Field]) -> Layout:
    name, keys, defaults = descriptor.name, tuple(fields), descriptor.defaults
    match descriptor:
        case ValueStateDescriptor():
            return Layout(name, keys, "_value", descriptor.type, defaults=defaults)
        case ListStateDescriptor():
            return Layout(name, keys, "_item", descriptor.type, defaults=defaults)
        case MapStateDescriptor():
            return Layout(name, keys, "_map_value", descriptor.value_type, descriptor.key_type, defaults)
        case ReducingStateDescriptor():
            return Layout(name, keys, "_reduced", descriptor.type, defaults=defaults)
        case AggregatingStateDescriptor():
            return Layout(name, keys, "_accumulator", descriptor.type, defaults=defaults)
    raise TypeError(f"{descriptor!r} is no descriptor of a keyed state")


def described(descriptor: StateDescriptor) -> str:
    """Returns the kind and the types of a state, for messages."""
    layout = layout_of(descriptor, ())
    types = f"{layout.map_key} to {layout.kind}" if layout.map_key is not None else str(layout.kind)
    return f"{_a(_VALUES[layout.value])} state of {types}"


def _a(kind: str) -> str:
    return f"{'an' if kind[0] == 'a' else 'a'} {kind}"
