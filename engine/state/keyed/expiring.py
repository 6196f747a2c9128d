"""States with a time to live. Each value, item or entry is held with the time of its last write (or read).

Invariant: what is expired is never returned. It is removed without a scan: `Expiry` keeps the keys in the order of
their writes, each write removes at most a few keys at the head, a snapshot all that are due there; and the table of a
snapshot leaves out what is expired.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from engine.core.state_ttl import StateTtlConfig
from engine.core.state_types import ListState, MapState, ValueState
from engine.state.keyed.backend import Key
from engine.state.keyed.heap_states import Checked, HasKey, check_entry

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

CLEANED_PER_WRITE = 2
"""A write adds one key to the queue and takes out up to this many, so the queue never grows behind."""

Stamped = tuple[Any, int]
"""A value and the time of its last touch, in Unix ms."""


class Expiry:
    """Knows what of one state is expired, and removes it. `wall_ms`: processing time."""

    def __init__(self, ttl: StateTtlConfig, wall_ms: Callable[[], int], values: dict[Key, Any]) -> None:
        self.on_read = ttl.on_read
        self.now = wall_ms
        self._ttl_ms = ttl.ttl_ms
        self._values = values
        self._queue: deque[tuple[int, Key]] = deque()  # each key once, in about the order of their times
        self._queued: set[Key] = set()
        for key, held in values.items():
            self._enqueue(key, _oldest(held))

    def alive_since(self, now_ms: int) -> int:
        """Returns the time after which a value must have been touched to be alive."""
        return now_ms - self._ttl_ms

    def written(self, key: Key, now_ms: int) -> None:
        """Notes a write of a key, and removes a few keys that are due."""
        self._enqueue(key, now_ms)
        self._clean(now_ms, CLEANED_PER_WRITE)

    def put_back(self, key: Key) -> None:
        """Notes that a key may have a value again that was removed."""
        held = self._values.get(key)
        if held is not None:
            self._enqueue(key, _oldest(held))

    def clean_due(self) -> int:
        """Removes the keys that are due in the queue; returns the time after which a living value was touched.

        A key behind one that was touched later may stay for a while. A snapshot leaves it out by that time.
        """
        now_ms = self.now()
        self._clean(now_ms, len(self._queue))
        return self.alive_since(now_ms)

    def clean_all(self) -> None:
        """Removes everything that is expired, by a look at all keys."""
        alive_since = self.alive_since(self.now())
        for key, held in list(self._values.items()):
            if _oldest(held) <= alive_since:
                self._prune(key, held, alive_since)

    def _enqueue(self, key: Key, at_ms: int) -> None:
        if key not in self._queued:
            self._queued.add(key)
            self._queue.append((at_ms, key))

    def _clean(self, now_ms: int, most: int) -> None:
        alive_since, queue = self.alive_since(now_ms), self._queue
        while most and queue and queue[0][0] <= alive_since:
            most -= 1
            _, key = queue.popleft()
            self._queued.discard(key)
            held = self._values.get(key)
            if held is not None:
                self._prune(key, held, alive_since)
                if key in self._values:  # it was touched after it had been queued
                    self._enqueue(key, _oldest(self._values[key]))

    def _prune(self, key: Key, held: Any, alive_since: int) -> None:
        match held:
            case dict():
                left: Any = {name: entry for name, entry in held.items() if entry[1] > alive_since}
            case list():
                left = [item for item in held if item[1] > alive_since]
            case _:
                left = held if held[1] > alive_since else None
        if left:
            self._values[key] = left
        else:
            del self._values[key]


def stamped(held: Any) -> Iterator[Stamped]:
    """Returns the values of one key with their times: one, those of a list, or those of a map."""
    match held:
        case dict():
            return iter(held.values())
        case list():
            return iter(held)
        case _:
            return iter((held,))


def _oldest(held: Any) -> int:
    return min(at for _, at in stamped(held))


class ExpiringValueState(ValueState[T]):
    __slots__ = ("_backend", "_checked", "_expiry", "_values")

    def __init__(self, backend: HasKey, checked: Checked, values: dict[Key, Stamped], expiry: Expiry) -> None:
        self._backend = backend
        self._checked = checked
        self._values = values
        self._expiry = expiry

    def value(self) -> T | None:
        key = self._backend.key
        held = self._values.get(key)
        if held is None:
            return None
        now_ms = self._expiry.now()
        if held[1] <= self._expiry.alive_since(now_ms):
            del self._values[key]
            return None
        if self._expiry.on_read:
            self._values[key] = (held[0], now_ms)
        return held[0]  # type: ignore[no-any-return]

    def update(self, value: T) -> None:
        if not self._checked.fits(value):
            self._checked.refuse(value, "update")
        key, now_ms = self._backend.key, self._expiry.now()
        self._values[key] = (value, now_ms)
        self._expiry.written(key, now_ms)

    def clear(self) -> None:
        self._values.pop(self._backend.key, None)


class ExpiringListState(ListState[T]):
    def __init__(self, backend: HasKey, checked: Checked, values: dict[Key, list[Stamped]], expiry: Expiry) -> None:
        self._backend = backend
        self._checked = checked
        self._values = values
        self._expiry = expiry

    def get(self) -> list[T]:
        key = self._backend.key
        held = self._values.get(key)
        if held is None:
            return []
        now_ms = self._expiry.now()
        alive_since = self._expiry.alive_since(now_ms)
        items = [item for item, at in held if at > alive_since]
        if self._expiry.on_read:
            self._replace(key, items, now_ms)
        return items

    def add(self, value: T) -> None:
        if not self._checked.fits(value):
            self._checked.refuse(value, "add", "list of ")
        key, now_ms = self._backend.key, self._expiry.now()
        self._values.setdefault(key, []).append((value, now_ms))
        self._expiry.written(key, now_ms)

    def update(self, values: Iterable[T]) -> None:
        items = list(values)
        for item in items:
            if not self._checked.fits(item):
                self._checked.refuse(item, "update", "list of ")
        key, now_ms = self._backend.key, self._expiry.now()
        self._replace(key, items, now_ms)
        if items:
            self._expiry.written(key, now_ms)

    def clear(self) -> None:
        self._values.pop(self._backend.key, None)

    def _replace(self, key: Key, items: list[T], now_ms: int) -> None:
        if items:
            self._values[key] = [(item, now_ms) for item in items]
        else:
            self._values.pop(key, None)


class ExpiringMapState(MapState[K, V]):
    def __init__(
        self, backend: HasKey, keys: Checked, checked: Checked, values: dict[Key, dict[K, Stamped]], expiry: Expiry
    ) -> None:
        self._backend = backend
        self._keys = keys
        self._checked = checked
        self._values = values
        self._expiry = expiry

    def get(self, key: K) -> V | None:
        found = self._alive(key)
        return found[0] if found is not None else None

    def put(self, key: K, value: V) -> None:
        check_entry(self._keys, self._checked, key, value)
        of, now_ms = self._backend.key, self._expiry.now()
        self._values.setdefault(of, {})[key] = (value, now_ms)
        self._expiry.written(of, now_ms)

    def contains(self, key: K) -> bool:
        return self._alive(key) is not None

    def remove(self, key: K) -> None:
        held = self._values.get(self._backend.key)
        if held is not None:
            held.pop(key, None)
            if not held:
                self.clear()

    def entries(self) -> dict[K, V]:
        of = self._backend.key
        held = self._values.get(of)
        if held is None:
            return {}
        now_ms = self._expiry.now()
        alive_since = self._expiry.alive_since(now_ms)
        alive = {key: value for key, (value, at) in held.items() if at > alive_since}
        if self._expiry.on_read:
            held.update((key, (value, now_ms)) for key, value in alive.items())
        return alive

    def clear(self) -> None:
        self._values.pop(self._backend.key, None)

    def _alive(self, key: K) -> Stamped | None:
        held = self._values.get(self._backend.key)
        found = held.get(key) if held is not None else None
        if held is None or found is None:
            return None
        now_ms = self._expiry.now()
        if found[1] <= self._expiry.alive_since(now_ms):
            self.remove(key)
            return None
        if self._expiry.on_read:
            held[key] = (found[0], now_ms)
        return found
