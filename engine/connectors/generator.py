"""A generator source. Invariant: record n is a pure function of n, so a replay from any position gives the same bytes.

Split s of S holds the records s, s + S, s + 2S, …; a position is the number of records of the split already made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from engine.core.errors import SchemaMismatch
from engine.core.ports import Clock
from engine.core.sources import FixedSource, SourceContext, SplitReader

BUFFER_TIMEOUT_MS = 5.0

Columns = Mapping[str, Any]


class GeneratorSource(FixedSource):
    """`make` maps an int64 array of record numbers to columns (Arrow or numpy arrays), by name.

    Integers for a timestamp column count its own unit: microseconds for `timestamp`.
    `rows`: the number of records in all; None: unbounded. `rate`: records per second in all; None: as fast as possible.
    `live_since_ms`: imitates a live feed that began at this wall-clock time and does not wait for its reader. A new job
    starts at the record that is due now and misses the earlier ones; a restored job first catches up from its position.
    `buffer_timeout_ms`: how long a rate-limited split gathers records into one batch. A longer time costs less work and
    adds latency.
    """

    def __init__(
        self,
        make: Callable[[np.ndarray], Columns],
        splits: int = 2,
        rows: int | None = None,
        rate: float | None = None,
        live_since_ms: int | None = None,
        buffer_timeout_ms: float = BUFFER_TIMEOUT_MS,
    ) -> None:
        if not callable(make):
            raise ValueError(f"a generator takes a function of record numbers that returns columns, not {make!r}")
        if splits < 1:
            raise ValueError(f"a generator needs at least one split, not {splits}")
        if rows is not None and rows < 0:
            raise ValueError(f"a generator can't make {rows} records")
        if rate is not None and rate <= 0:
            raise ValueError(f"the rate of a generator must be positive, not {rate}")
        if live_since_ms is not None and rate is None:
            raise ValueError("a live generator needs a rate")
        self._make = make
        self._splits = splits
        self._rows = rows
        self._rate = rate
        self._live_since_ms = live_since_ms
        self._buffer_timeout_ms = buffer_timeout_ms

    @property
    def positions(self) -> str:
        """The number of splits decides which records a split has."""
        return f"{self._splits} splits"

    def splits(self) -> Sequence[str]:
        return [str(split) for split in range(self._splits)]

    def reader(self, split: str, position: Any, context: SourceContext) -> SplitReader:
        index, clock = int(split), context.clock
        end = None if self._rows is None else (self._rows - index + self._splits - 1) // self._splits
        pace = None
        if self._rate is not None:
            per_ms = self._rate / self._splits / 1000
            gather = max(1, int(per_ms * self._buffer_timeout_ms))
            if self._live_since_ms is None:
                pace = _Pace(per_ms, clock.now_ms(), int(position or 0), gather)
            else:
                since = clock.now_ms() - max(0, clock.wall_ms() - self._live_since_ms)
                pace = _Pace(per_ms, since, 0, gather)
                position = pace.due_at(clock.now_ms()) if position is None else position
        return _Reader(self._make, index, self._splits, int(position or 0), end, pace, clock, context.schema)


@dataclass(frozen=True)
class _Pace:
    """The rate of a split: record `first + n` is due n / `per_ms` after `since_ms`. `gather`: records per batch."""

    per_ms: float
    since_ms: float
    first: int
    gather: int

    def due_at(self, now_ms: float) -> int:
        # A thousandth of a record early, so that record n is due at `time_of(n)` despite rounding.
        return self.first + int((now_ms - self.since_ms) * self.per_ms + 0.001)

    def time_of(self, position: int) -> float:
        return self.since_ms + (position - self.first) / self.per_ms


class _Reader(SplitReader):
    def __init__(
        self,
        make: Callable[[np.ndarray], Columns],
        index: int,
        splits: int,
        position: int,
        end: int | None,
        pace: _Pace | None,
        clock: Clock,
        schema: pa.Schema,
    ) -> None:
        self._make = make
        self._index = index
        self._splits = splits
        self._position = position
        self._end = end
        self._pace = pace
        self._clock = clock
        self._schema = schema
        self._wakeup_ms: float | None = None

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        count = max_rows if self._end is None else min(max_rows, self._end - self._position)
        if self._pace is not None:
            count = min(count, self._due(self._pace, count))
        if count <= 0:
            return None
        numbers = np.arange(self._position, self._position + count, dtype=np.int64) * self._splits + self._index
        self._position += count
        return self._batch(self._make(numbers), count)

    def _batch(self, columns: Columns, count: int) -> pa.RecordBatch:
        arrays = []
        for field in self._schema:
            if field.name not in columns:
                raise SchemaMismatch(f"the generator made no column {field.name!r}; it made {sorted(columns)}")
            try:
                array = _array(columns[field.name], field.type)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                raise SchemaMismatch(
                    f"the generator's column {field.name!r} is not of type {field.type}: {error}"
                ) from error
            if len(array) != count:
                raise SchemaMismatch(
                    f"the generator's column {field.name!r} has {len(array)} values for {count} record numbers: its "
                    "function gets an array of record numbers, and returns an array of as many values for each column"
                )
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _due(self, pace: _Pace, limit: int) -> int:
        """Returns how many records the rate allows now; 0 until enough for a batch are due."""
        now = self._clock.now_ms()
        if self._wakeup_ms is not None and now < self._wakeup_ms:
            return 0
        due = pace.due_at(now) - self._position
        self._wakeup_ms = pace.time_of(self._position + max(0, due) + pace.gather) if due <= limit else None
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
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    array = values if isinstance(values, pa.Array) else pa.array(values)
    if array.type == of:
        return array
    if pa.types.is_timestamp(of) and pa.types.is_int64(array.type):
        return array.view(of)
    return array.cast(of)
