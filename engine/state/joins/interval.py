"""State of an interval join: the rows of each side that may still find a partner, in sorted runs of growing size.

Invariants: two rows are joined if and only if neither was late when it came; this is so because a row stays as long as
a row of the other side that is not late may match it. A row that is needed no longer is in no snapshot, and at most as
many such rows are held as there are others. A snapshot is a list of references to runs, which never change (C3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from engine.state.joins.matches import Pairs
from engine.state.joins.rows import Ints, JoinInput, same_keys
from engine.state.joins.runs import SortedRun

FANOUT = 4
"""The number of runs of one level that are merged into one of the next. It bounds the runs that a batch is looked up
in, and how often a row is merged: both grow with the logarithm of the state."""

MOST_BYTES = 512 << 20
"""Runs are not merged beyond this size: Arrow's strings have offsets of 32 bits."""

_EARLIEST, _LATEST = -(2**63), 2**63 - 1


@dataclass(frozen=True)
class Bounds:
    """A right row may be joined if its time is from `lower_ms` to `upper_ms` after that of the left row, inclusive."""

    lower_ms: int
    upper_ms: int

    def __str__(self) -> str:
        return f"right time - left time from {self.lower_ms} to {self.upper_ms} ms"

    def left_done(self, watermark_ms: int) -> int:
        """Returns the time up to which left rows are needed no longer: right rows at the watermark would be late."""
        return _within(watermark_ms - self.upper_ms)

    def right_done(self, watermark_ms: int) -> int:
        return _within(watermark_ms + self.lower_ms)


class KeptRows:
    """The rows of one side."""

    def __init__(self) -> None:
        self._levels: list[list[SortedRun]] = []
        self._done_ms = _EARLIEST

    def add(self, run: SortedRun) -> None:
        needed = run.after(self._done_ms)
        if needed is not None:
            self._put(needed, 0)

    def _put(self, run: SortedRun, level: int) -> None:
        if level == len(self._levels):
            self._levels.append([])
        runs = self._levels[level]
        runs.append(run)
        if len(runs) >= FANOUT and sum(of.rows.nbytes for of in runs) < MOST_BYTES:
            self._levels[level] = []
            needed = [left for of in runs if (left := of.after(self._done_ms)) is not None]
            if needed:
                self._put(SortedRun.merged(needed), level + 1)

    def drop(self, done_ms: int) -> None:
        """Forgets the rows up to this time, as soon as they are half of a run."""
        self._done_ms = done_ms
        for runs in self._levels:
            kept = (run.after(done_ms) if 2 * run.up_to(done_ms) >= len(run) else run for run in runs)
            runs[:] = [run for run in kept if run is not None]

    @property
    def runs(self) -> list[SortedRun]:
        return [run for runs in self._levels for run in runs]

    def __len__(self) -> int:
        return sum(map(len, self.runs))

    def freeze(self, schema: pa.Schema) -> Callable[[], pa.Table]:
        """Returns a function that makes the table of the rows that are needed now. Any thread may call it."""
        runs, done_ms = self.runs, self._done_ms

        def table() -> pa.Table:
            needed = [left.rows for run in runs if (left := run.after(done_ms)) is not None]
            return pa.Table.from_batches(needed, schema)

        return table


class IntervalState:
    def __init__(self, left: JoinInput, right: JoinInput, bounds: Bounds) -> None:
        self._left = left
        self._right = right
        self._bounds = bounds
        self.left = KeptRows()
        self.right = KeptRows()

    def add_left(self, run: SortedRun) -> Callable[[Callable[[], int]], Iterator[Pairs]]:
        """Adds rows, and returns a function that yields their pairs, at most so many at a time as it is told."""
        found = self.right.runs
        self.left.add(run)
        earliest, latest = run.times + self._bounds.lower_ms, run.times + self._bounds.upper_ms
        return lambda most: (
            self._pairs(run, mine, other, theirs)
            for other in found
            for mine, theirs in other.matches(run, earliest, latest).parts(most)
        )

    def add_right(self, run: SortedRun) -> Callable[[Callable[[], int]], Iterator[Pairs]]:
        found = self.left.runs
        self.right.add(run)
        earliest, latest = run.times - self._bounds.upper_ms, run.times - self._bounds.lower_ms
        return lambda most: (
            self._pairs(other, theirs, run, mine)
            for other in found
            for mine, theirs in other.matches(run, earliest, latest).parts(most)
        )

    def _pairs(self, left: SortedRun, left_rows: Ints, right: SortedRun, right_rows: Ints) -> Pairs:
        """Returns the pairs whose keys are equal and whose times fit: a run finds a few others too."""
        apart = right.times[right_rows] - left.times[left_rows]
        fit = (apart >= self._bounds.lower_ms) & (apart <= self._bounds.upper_ms)
        ours, theirs = pa.array(left_rows), pa.array(right_rows)
        fit &= same_keys(
            [key.take(ours) for key in self._left.keys_of(left.rows)],
            [key.take(theirs) for key in self._right.keys_of(right.rows)],
        )
        if not fit.all():
            ours, theirs = ours.filter(pa.array(fit)), theirs.filter(pa.array(fit))
        return Pairs(left.rows, ours, right.rows, theirs)

    def advance(self, watermark_ms: int) -> None:
        """Forgets what no row that is not late can match any more."""
        self.left.drop(self._bounds.left_done(watermark_ms))
        self.right.drop(self._bounds.right_done(watermark_ms))


def _within(time_ms: int) -> int:
    """Returns the time, or the end of 64 bits that it lies beyond: a watermark may be at either end."""
    return max(_EARLIEST, min(time_ms, _LATEST))
