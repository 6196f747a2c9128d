"""A generator source: record n is a pure function of n, so any position can be replayed byte by byte.

Split s of S holds the records s, s + S, s + 2S, …; a position is the number of records of the split already made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from engine.connectors.base import Source, SplitReader
from engine.runtime.errors import SchemaMismatch
from engine.runtime.ports import Clock

BUFFER_TIMEOUT_MS = 2.0
"""How long a rate-limited split gathers records into one batch."""

Columns = Mapping[str, Any]


class GeneratorSource(Source):
    """`make` maps an int64 array of record numbers to columns (Arrow or numpy arrays), by name.

    `rows`: how many records in all; None: unbounded. `rate`: records per second in all; None: flat out.
    `live`: without a position to go on from, begin where the rate would be by now since `started_ms` (wall clock): like a
    feed that does not wait for its reader. So what nobody read is gone.
    """

    def __init__(
        self,
        make: Callable[[np.ndarray], Columns],
        splits: int = 2,
        rows: int | None = None,
        rate: float | None = None,
        live_since_ms: int | None = None,
    ) -> None:
        if splits < 1:
            raise ValueError(f"a generator needs at least one split, not {splits}")
        if live_since_ms is not None and rate is None:
            raise ValueError("a live generator needs a rate")
        self._make = make
        self._splits = splits
        self._rows = rows
        self._rate = rate
        self._live_since_ms = live_since_ms

    def splits(self) -> Sequence[str]:
        return [str(split) for split in range(self._splits)]

    def reader(self, split: str, position: Any, clock: Clock, schema: pa.Schema) -> SplitReader:
        index = int(split)
        end = None if self._rows is None else (self._rows - index + self._splits - 1) // self._splits
        rate_per_ms = None if self._rate is None else self._rate / self._splits / 1000
        if position is None:
            position = 0
            if self._live_since_ms is not None and rate_per_ms is not None:
                position = int(max(0.0, clock.wall_ms() - self._live_since_ms) * rate_per_ms)
        return _Reader(self._make, index, self._splits, int(position), end, rate_per_ms, clock, schema)


class _Reader(SplitReader):
    def __init__(
        self,
        make: Callable[[np.ndarray], Columns],
        index: int,
        splits: int,
        position: int,
        end: int | None,
        rate_per_ms: float | None,
        clock: Clock,
        schema: pa.Schema,
    ) -> None:
        self._make = make
        self._index = index
        self._splits = splits
        self._position = position
        self._end = end
        self._rate = rate_per_ms
        self._clock = clock
        self._schema = schema
        self._start_ms = clock.now_ms()
        self._start_position = position
        self._wakeup_ms: float | None = None

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        count = max_rows if self._end is None else min(max_rows, self._end - self._position)
        if self._rate is not None:
            count = min(count, self._due(count))
        if count <= 0:
            return None
        numbers = np.arange(self._position, self._position + count, dtype=np.int64) * self._splits + self._index
        self._position += count
        columns = self._make(numbers)
        try:
            arrays = [_array(columns[field.name], field.type) for field in self._schema]
        except KeyError as error:
            raise SchemaMismatch(f"the generator made no column {error}; it made {sorted(columns)}") from error
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _due(self, limit: int) -> int:
        """How many records the rate allows now; none before a few of them can go together."""
        assert self._rate is not None
        now = self._clock.now_ms()
        if self._wakeup_ms is not None and now < self._wakeup_ms:
            return 0
        due = int((now - self._start_ms) * self._rate) - (self._position - self._start_position)
        gather = max(1, int(self._rate * BUFFER_TIMEOUT_MS))
        next_position = self._position - self._start_position + max(0, min(due, limit)) + gather
        self._wakeup_ms = self._start_ms + next_position / self._rate if due <= limit else None
        return due

    @property
    def position(self) -> int:
        return self._position

    @property
    def finished(self) -> bool:
        return self._end is not None and self._position >= self._end

    @property
    def wakeup_ms(self) -> float | None:
        return self._wakeup_ms


def _array(values: Any, of: pa.DataType) -> pa.Array:
    array = values if isinstance(values, pa.Array) else pa.array(values)
    if array.type == of:
        return array
    if pa.types.is_timestamp(of) and pa.types.is_int64(array.type):
        return array.view(of)
    return array.cast(of)
