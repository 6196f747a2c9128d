"""`TimerQueue`: the timers of one operator subtask in one time domain.

Invariant: a key has at most one timer per timestamp. Timers are held by timestamp, and a heap holds the timestamps, so
registering and firing cost the logarithm of the number of distinct timestamps. Deleting leaves the timestamp in the
heap, where it is skipped when its turn comes; a heap in which most are left over is built anew. The key group of a
timer is needed only in a snapshot, whose files are sorted by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import chain, repeat

import numpy as np
import pyarrow as pa

from engine.state.keyed.backend import Key

TIMESTAMP = "_timer_ms"
LEFT_OVER = 64
"""So many timestamps without a timer may always stay in the heap."""


class TimerQueue:
    def __init__(self, key_fields: Sequence[pa.Field]) -> None:
        self._fields = list(key_fields)
        self._single: dict[int, Key] = {}  # most timestamps have one key, which needs no dict
        self._shared: dict[int, dict[Key, None]] = {}
        self._heap: list[int] = []  # every timestamp of the two, and some that have no timer any more
        self._in_shared = 0

    def __len__(self) -> int:
        return len(self._single) + self._in_shared

    def holds(self, timestamp_ms: int, key: Key) -> bool:
        return self._single.get(timestamp_ms) == key or key in self._shared.get(timestamp_ms, ())

    def register(self, timestamp_ms: int, key: Key) -> None:
        if timestamp_ms in self._single:
            held = self._single[timestamp_ms]
            if held != key:
                del self._single[timestamp_ms]
                self._shared[timestamp_ms] = {held: None, key: None}
                self._in_shared += 2
        elif (several := self._shared.get(timestamp_ms)) is not None:
            before = len(several)
            several[key] = None
            self._in_shared += len(several) - before
        else:
            heappush(self._heap, timestamp_ms)
            self._single[timestamp_ms] = key

    def delete(self, timestamp_ms: int, key: Key) -> None:
        if self._single.get(timestamp_ms) == key:
            del self._single[timestamp_ms]
        elif key in (several := self._shared.get(timestamp_ms, {})):
            del several[key]
            self._in_shared -= 1
            if several:
                return
            del self._shared[timestamp_ms]
        else:
            return
        if len(self._heap) > 2 * (len(self._single) + len(self._shared)) + LEFT_OVER:
            self._heap = [*self._single, *self._shared]
            heapify(self._heap)

    def next_ms(self) -> int | None:
        """Returns the time of the first timer; None if there is none."""
        heap = self._heap
        while heap and heap[0] not in self._single and heap[0] not in self._shared:
            heappop(heap)
        return heap[0] if heap else None

    def pop(self, until_ms: int) -> tuple[int, Key] | None:
        """Removes and returns the first timer that is due at `until_ms`; the order within one timestamp is any."""
        timestamp_ms = self.next_ms()
        if timestamp_ms is None or timestamp_ms > until_ms:
            return None
        if timestamp_ms in self._single:
            heappop(self._heap)
            return timestamp_ms, self._single.pop(timestamp_ms)
        several = self._shared[timestamp_ms]
        key, _ = several.popitem()
        self._in_shared -= 1
        if not several:
            del self._shared[timestamp_ms]
            heappop(self._heap)
        return timestamp_ms, key

    # --- snapshots ---

    def freeze(self) -> Callable[[], pa.Table]:
        """Copies the references and returns a function that makes the table. Later changes do not show in it.

        It copies whole lists and never looks at a single timer: a subtask stands still meanwhile.
        """
        stamps, keys = list(self._single), list(self._single.values())
        shared, held = list(self._shared), list(map(list, self._shared.values()))
        return lambda: self._table([*stamps, *shared], keys, held)

    def _table(self, stamps: list[int], keys: list[Key], held: list[list[Key]]) -> pa.Table:
        """Makes the table: `keys` belong to the first timestamps, one each, `held` to the others."""
        counts = [*repeat(1, len(keys)), *map(len, held)]
        keys = [*keys, *chain.from_iterable(held)]
        columns = list(zip(*keys, strict=True)) if keys else [()] * len(self._fields)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, self._fields, strict=True)]
        times = pa.array(np.repeat(np.array(stamps, np.int64), counts))
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
