"""`TimerQueue`: the timers of one operator subtask in one time domain.

Invariant: a key has at most one timer per timestamp. Timers are held by timestamp, and a heap holds the timestamps, so
registering and firing cost the logarithm of the number of distinct timestamps. Deleting leaves the timestamp in the
heap, where it is skipped when its turn comes; a heap in which most are left over is built anew. The key group of a
timer is needed only in a snapshot, whose files are sorted by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np
import pyarrow as pa

from engine.state.keyed.backend import Key

TIMESTAMP = "_timer_ms"
LEFT_OVER = 64
"""So many timestamps without a timer may always stay in the heap."""


class TimerQueue:
    def __init__(self, key_fields: Sequence[pa.Field]) -> None:
        self._fields = list(key_fields)
        self._keys: dict[int, Key | dict[Key, None]] = {}  # most timestamps have one key, which needs no dict
        self._heap: list[int] = []  # every timestamp of `_keys`, and some that have no timer any more
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def register(self, timestamp_ms: int, key: Key) -> None:
        held = self._keys.get(timestamp_ms)
        if held is None:
            heappush(self._heap, timestamp_ms)
            self._keys[timestamp_ms] = key
        elif type(held) is dict:
            before = len(held)
            held[key] = None
            self._count += len(held) - before
            return
        elif held == key:
            return
        else:
            self._keys[timestamp_ms] = {held: None, key: None}  # type: ignore[dict-item]
        self._count += 1

    def delete(self, timestamp_ms: int, key: Key) -> None:
        held = self._keys.get(timestamp_ms)
        if type(held) is dict:
            if key in held:
                del held[key]
                self._count -= 1
            if held:
                return
        elif held is None or held != key:
            return
        else:
            self._count -= 1
        del self._keys[timestamp_ms]
        if len(self._heap) > 2 * len(self._keys) + LEFT_OVER:
            self._heap = list(self._keys)
            heapify(self._heap)

    def next_ms(self) -> int | None:
        """Returns the time of the first timer; None if there is none."""
        heap, keys = self._heap, self._keys
        while heap and heap[0] not in keys:
            heappop(heap)
        return heap[0] if heap else None

    def pop(self, until_ms: int) -> tuple[int, Key] | None:
        """Removes and returns the first timer that is due at `until_ms`; the order within one timestamp is any."""
        timestamp_ms = self.next_ms()
        if timestamp_ms is None or timestamp_ms > until_ms:
            return None
        held = self._keys[timestamp_ms]
        self._count -= 1
        if type(held) is dict:
            key, _ = held.popitem()
            if held:
                return timestamp_ms, key
        else:
            key = held  # type: ignore[assignment]
        del self._keys[timestamp_ms]
        heappop(self._heap)
        return timestamp_ms, key

    # --- snapshots ---

    def freeze(self) -> Callable[[], pa.Table]:
        """Copies the references and returns a function that makes the table. Later changes do not show in it."""
        stamps = list(self._keys)
        held: list[Any] = [list(keys) if type(keys) is dict else (keys,) for keys in self._keys.values()]
        return lambda: self._table(stamps, held)

    def _table(self, stamps: list[int], held: Sequence[Sequence[Key]]) -> pa.Table:
        keys = [key for of_stamp in held for key in of_stamp]
        columns = list(zip(*keys, strict=True)) if keys else [()] * len(self._fields)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, self._fields, strict=True)]
        times = pa.array(np.repeat(np.array(stamps, np.int64), list(map(len, held))))
        return pa.table([*arrays, times], names=[*(field.name for field in self._fields), self._timestamp])

    def load(self, table: pa.Table, canonical: Callable[[Iterator[Key]], Iterator[Key]]) -> None:
        """Registers the timers of a saved table."""
        keys = canonical(zip(*(table.column(field.name).to_pylist() for field in self._fields), strict=True))
        for timestamp_ms, key in zip(table.column(self._timestamp).to_pylist(), keys, strict=True):
            self.register(timestamp_ms, key)

    @property
    def _timestamp(self) -> str:
        """The column of the timestamps. Its name is longer if a key column has the same."""
        name = TIMESTAMP
        while any(field.name == name for field in self._fields):
            name += "_"
        return name
