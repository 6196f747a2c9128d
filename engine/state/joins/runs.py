"""`SortedRun`: rows of one side of an interval join, sorted by key hash and event time, and searched by both at once.

A run never changes. The place of a row in its order is one number, made of the rank of its hash and the rank of its
time, so one binary search finds all rows of a key between two times. There is no Python per row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from engine.state.joins.matches import Matches
from engine.state.joins.rows import Ints, one_batch
from engine.state.key_hash import Hashes


class SortedRun:
    __slots__ = ("_counts", "_order", "_ranks", "_stamps", "_unique", "hashes", "rows", "times")

    def __init__(self, rows: pa.RecordBatch, hashes: Hashes, times: Ints) -> None:
        """The rows must be sorted by hash, and those of one hash by time; there must be some."""
        self.rows = rows
        self.hashes = hashes
        self.times = times
        first = np.ones(len(hashes), dtype=bool)
        np.not_equal(hashes[1:], hashes[:-1], out=first[1:])
        self._unique = hashes[first]
        self._stamps, ranks, counts = np.unique(times, return_inverse=True, return_counts=True)
        self._counts = np.cumsum(counts)
        self._ranks = len(self._stamps) + 1  # one more than there are, for a bound behind the last
        self._order = (np.cumsum(first) - 1) * self._ranks + ranks

    @classmethod
    def of(cls, rows: pa.RecordBatch, hashes: Hashes, times: Ints) -> SortedRun:
        """Sorts rows, of which there must be some."""
        order = np.lexsort((times, hashes))
        return cls(rows.take(pa.array(order)), hashes[order], times[order])

    @classmethod
    def merged(cls, runs: Sequence[SortedRun]) -> SortedRun:
        rows = one_batch(pa.Table.from_batches([run.rows for run in runs]))
        return cls.of(rows, np.concatenate([run.hashes for run in runs]), np.concatenate([run.times for run in runs]))

    def __len__(self) -> int:
        return len(self.times)

    def matches(self, other: SortedRun, earliest: Ints, latest: Ints) -> Matches:
        """Returns for each row of `other` the rows here with its hash, from its `earliest` to its `latest` time."""
        places = np.searchsorted(self._unique, other.hashes)
        found = places < len(self._unique)
        found[found] = self._unique[places[found]] == other.hashes[found]
        rows = np.flatnonzero(found)
        base = places[rows] * self._ranks
        starts = np.searchsorted(self._order, base + np.searchsorted(self._stamps, earliest[rows], side="left"))
        ends = np.searchsorted(self._order, base + np.searchsorted(self._stamps, latest[rows], side="right"))
        some = ends > starts
        return Matches(rows[some], starts[some], (ends - starts)[some])

    def up_to(self, time_ms: int) -> int:
        """Returns the number of rows that are not after this time."""
        place = int(np.searchsorted(self._stamps, time_ms, side="right"))
        return int(self._counts[place - 1]) if place else 0

    def after(self, time_ms: int) -> SortedRun | None:
        """Returns a run of the rows after this time; None if there are none."""
        gone = self.up_to(time_ms)
        if gone in (0, len(self)):
            return None if gone else self
        kept = self.times > time_ms
        return SortedRun(self.rows.filter(pa.array(kept)), self.hashes[kept], self.times[kept])
