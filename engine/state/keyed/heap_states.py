"""The states of a heap backend: each looks up the current key in a dict of its own.

`engine/state/keyed/expiring.py` has the same states with a time to live.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from engine.core.state_types import (
    AggregatingState,
    AggregatingStateDescriptor,
    ListState,
    MapState,
    ReducingState,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueState,
)
from engine.state.keyed.backend import Key
from engine.state.values import fits

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class HasKey(Protocol):
    """A backend, as its states see it."""

    key: Key


class Checked:
    """Refuses what a state of this type can't hold, where it is given: a snapshot would fail much later."""

    def __init__(self, backend: HasKey, descriptor: StateDescriptor, kind: pa.DataType) -> None:
        self._backend = backend
        self._name = descriptor.name
        self._kind = kind
        self.fits: Callable[[Any], bool] = fits(kind)

    def refuse(self, value: object, call: str, of: str = "") -> None:
        raise TypeError(
            f"state {self._name!r} is declared as {of}{self._kind}, but {call}() was given {value!r} for the key "
            f"{self._backend.key!r}"
        )


class HeapValueState(ValueState[T]):
    __slots__ = ("_backend", "_checked", "_fits", "_values")

    def __init__(self, backend: HasKey, checked: Checked, values: dict[Key, T]) -> None:
        self._backend = backend
        self._checked = checked
        self._fits = checked.fits
        self._values = values

    def value(self) -> T | None:
        return self._values.get(self._backend.key)

    def update(self, value: T) -> None:
        if not self._fits(value):
            self._checked.refuse(value, "update")
        self._values[self._backend.key] = value

    def clear(self) -> None:
        self._values.pop(self._backend.key, None)


class HeapListState(ListState[T]):
    def __init__(self, backend: HasKey, checked: Checked, values: dict[Key, list[T]]) -> None:
        self._backend = backend
        self._checked = checked
        self._fits = checked.fits
        self._values = values

    def get(self) -> list[T]:
        return list(self._values.get(self._backend.key, ()))

    def add(self, value: T) -> None:
        if not self._fits(value):
            self._checked.refuse(value, "add", "list of ")
        self._values.setdefault(self._backend.key, []).append(value)

    def update(self, values: Iterable[T]) -> None:
        items = list(values)
        for item in items:
            if not self._fits(item):
                self._checked.refuse(item, "update", "list of ")
        if items:
            self._values[self._backend.key] = items
        else:
            self.clear()

    def clear(self) -> None:
        self._values.pop(self._backend.key, None)


class HeapMapState(MapState[K, V]):
    def __init__(self, backend: HasKey, keys: Checked, checked: Checked, values: dict[Key, dict[K, V]]) -> None:
        self._backend = backend
        self._keys = keys
        self._checked = checked
        self._values = values

    def get(self, key: K) -> V | None:
        held = self._values.get(self._backend.key)
        return held.get(key) if held is not None else None

    def put(self, key: K, value: V) -> None:
        check_entry(self._keys, self._checked, key, value)
        self._values.setdefault(self._backend.key, {})[key] = value

    def contains(self, key: K) -> bool:
        return key in self._values.get(self._backend.key, ())

    def remove(self, key: K) -> None:
        held = self._values.get(self._backend.key)
        if held is not None:
            held.pop(key, None)
            if not held:
                self.clear()

    def entries(self) -> dict[K, V]:
        return dict(self._values.get(self._backend.key, ()))

    def clear(self) -> None:
        self._values.pop(self._backend.key, None)


def check_entry(keys: Checked, values: Checked, key: object, value: object) -> None:
    """Refuses an entry of a map that its state can't hold."""
    if key is None or not keys.fits(key):
        keys.refuse(key, "put", "map with keys of ")
    if not values.fits(value):
        values.refuse(value, "put", "map with values of ")


class Reducing(ReducingState[T]):
    """Keeps the reduced value in a value state, which may have a time to live."""

    def __init__(self, descriptor: ReducingStateDescriptor, value: ValueState[T]) -> None:
        self._reduce = descriptor.reduce
        self._value = value

    def get(self) -> T | None:
        return self._value.value()

    def add(self, value: T) -> None:
        held = self._value.value()
        self._value.update(value if held is None else self._reduce(held, value))

    def clear(self) -> None:
        self._value.clear()


class Aggregating(AggregatingState[K, V]):
    """Keeps the accumulator in a value state, which may have a time to live."""

    def __init__(self, descriptor: AggregatingStateDescriptor, accumulator: ValueState[Any]) -> None:
        self._function = descriptor.function
        self._accumulator = accumulator

    def get(self) -> V | None:
        held = self._accumulator.value()
        return None if held is None else self._function.get_result(held)

    def add(self, value: K) -> None:
        held = self._accumulator.value()
        before = self._function.create_accumulator() if held is None else held
        self._accumulator.update(self._function.add(value, before))

    def accumulator(self) -> Any:
        """Returns the accumulator; None if nothing was added."""
        return self._accumulator.value()

    def merge(self, accumulator: Any) -> None:
        """Merges an accumulator of another window into this one."""
        held = self._accumulator.value()
        self._accumulator.update(accumulator if held is None else self._function.merge(held, accumulator))

    def clear(self) -> None:
        self._accumulator.clear()
