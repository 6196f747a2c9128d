"""`SortedRun`: rows of one side of an interval join, sorted by key hash and event time, and searched by both at once.

A run never changes. The place of a row in its order is one number of 64 bits: the upper half of its hash, and its time
since the first of the run in 32 bits, in a coarser unit if they span more than 2³² ms. So one search finds all rows of
a key between two times, and those of few other keys and times, which the caller leaves out. There is no Python per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from engine.state.joins.matches import Matches
from engine.state.joins.rows import Ints, one_batch
from engine.state.key_hash import Hashes

_OF_HASH = np.uint64(0xFFFF_FFFF_0000_0000)
_TIME_BITS = 32


@dataclass(frozen=True)
class _Order:
    """Places of rows, by the upper half of their hash and then by their time. `last_ms` is in it."""

    first_ms: int
    last_ms: int

    @classmethod
    def of(cls, times: Ints) -> _Order:
        return cls(int(times.min()), int(times.max()))

    def places(self, hashes: Hashes, times: Ints) -> Hashes:
        """The times must be from the first to the last."""
        coarser = max(0, (self.last_ms - self.first_ms).bit_length() - _TIME_BITS)
        since: Hashes = (times - self.first_ms).view(np.uint64)
        if coarser:
            since >>= np.uint64(coarser)
        since |= hashes & _OF_HASH
        return since


class SortedRun:
    __slots__ = ("_by_time", "_order", "_places", "hashes", "rows", "times")

    def __init__(
        self, rows: pa.RecordBatch, hashes: Hashes, times: Ints, order: _Order, places: Hashes, by_time: Ints
    ) -> None:
        """The rows must be sorted by their places; there must be some."""
        self.rows = rows
        self.hashes = hashes
        self.times = times
        self._order = order
        self._places = places
        self._by_time = by_time

    @classmethod
    def of(cls, rows: pa.RecordBatch, hashes: Hashes, times: Ints) -> SortedRun:
        """Sorts rows, of which there must be some."""
        order = _Order.of(times)
        places = order.places(hashes, times)
        return cls._sorted(rows, hashes, times, order, places, np.argsort(places))

    @classmethod
    def merged(cls, runs: Sequence[SortedRun]) -> SortedRun:
        rows = one_batch(pa.Table.from_batches([run.rows for run in runs]))
        hashes = np.concatenate([run.hashes for run in runs])
        times = np.concatenate([run.times for run in runs])
        order = _Order(min(run._order.first_ms for run in runs), max(run._order.last_ms for run in runs))
        places = order.places(hashes, times)
        return cls._sorted(rows, hashes, times, order, places, np.argsort(places, kind="stable"))  # it merges runs

    @classmethod
    def _sorted(
        cls, rows: pa.RecordBatch, hashes: Hashes, times: Ints, order: _Order, places: Hashes, by: Ints
    ) -> SortedRun:
        return cls(rows.take(pa.array(by)), hashes[by], times[by], order, places[by], np.sort(times))

    def __len__(self) -> int:
        return len(self.times)

    def matches(self, other: SortedRun, earliest: Ints, latest: Ints) -> Matches:
        """Returns for each row of `other` the rows here with its hash, from its `earliest` to its `latest` time.

        There may be more: rows whose hash has the same upper half, and rows right beside these times.
        """
        order = self._order
        rows = np.flatnonzero((latest >= order.first_ms) & (earliest <= order.last_ms))
        hashes = other.hashes[rows]
        lowest = order.places(hashes, np.maximum(earliest[rows], order.first_ms))
        highest = order.places(hashes, np.minimum(latest[rows], order.last_ms))
        starts = np.searchsorted(self._places, lowest, side="left")
        first = self._places[np.minimum(starts, len(self) - 1)]
        some = np.flatnonzero(first <= highest)  # few: only theirs are searched again
        rows, starts = rows[some], starts[some]
        return Matches(rows, starts, np.searchsorted(self._places, highest[some], side="right") - starts)

    def up_to(self, time_ms: int) -> int:
        """Returns the number of rows that are not after this time."""
        return int(np.searchsorted(self._by_time, time_ms, side="right"))

    def after(self, time_ms: int) -> SortedRun | None:
        """Returns a run of the rows after this time; None if there are none."""
        gone = self.up_to(time_ms)
        if gone in (0, len(self)):
            return None if gone else self
        kept = self.times > time_ms
        rows = self.rows.filter(pa.array(kept))
        by_time = self._by_time[gone:]
        return SortedRun(rows, self.hashes[kept], self.times[kept], self._order, self._places[kept], by_time)
