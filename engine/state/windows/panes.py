"""Columnar window state: each pane holds partial tables, called runs, and merges them level by level.

Runs that have hardly a key in common, as with very many keys, are put together without grouping: that would cost much,
and leave as many rows.

Invariant: a snapshot is a list of references to Arrow tables, which never change, so processing goes on during the
upload (C3). The upload merges the smaller of these runs off the task thread; the pane then uses the merged run instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import pyarrow as pa

FANOUT = (32, 8)
"""The number of runs of the first level, and of each later one, that are put together into one of the next level.

It bounds the work per row and the unmerged runs of a pane. Uploads do most of the merging, so the first level, whose
runs are the smallest, waits for more of them.
"""

LARGER = 2
"""An upload merges a run with the smaller ones if it has at most this many times their rows.

So a checkpoint of much state groups what is new, not all again. A key may have a row in each run that is left. Each of
these is more than twice as large as all smaller ones together, so there are few of them.
"""


Order: TypeAlias = Callable[[pa.Table], pa.Table]
"""Puts the rows of a run in the order in which a snapshot holds them; returns the run itself if they are."""


class Merging(Protocol):
    """How runs become one."""

    def merge(self, runs: Sequence[pa.Table]) -> pa.Table:
        """Returns the runs as one, with a row per key."""

    def put_together(self, runs: Sequence[pa.Table]) -> pa.Table:
        """Returns the runs as one. Keys may still have several rows."""


class FrozenPane:
    """The runs of a pane at a barrier. The first `ordered` of them are in a snapshot's order."""

    __slots__ = ("_compacted", "_merging", "_ordered", "runs")

    def __init__(self, runs: list[pa.Table], merging: Merging, ordered: int = 0) -> None:
        self.runs = runs
        self._merging = merging
        self._ordered = ordered
        self._compacted: list[pa.Table] | None = None

    def compact(self, order: Order = lambda run: run) -> pa.Table:
        """Puts the smaller runs together, each run in order, and returns all rows. The upload calls it in its thread.

        A run that an earlier upload has put in order is not looked at again.
        """
        in_order = {id(run) for run in self.runs[: self._ordered]}
        runs = sorted(self.runs, key=lambda run: run.num_rows)
        smaller, rows = 0, 0
        for position, run in enumerate(runs):
            if run.num_rows <= LARGER * rows:
                smaller = position + 1
            rows += run.num_rows
        if smaller:
            runs = [self._merging.put_together(runs[:smaller]), *runs[smaller:]]
        self._compacted = [run if id(run) in in_order else order(run) for run in runs]
        return pa.concat_tables(self._compacted)

    def held(self) -> tuple[list[pa.Table], int]:
        """Returns the runs, and how many from the first are in order: all, once the upload has compacted them."""
        compacted = self._compacted  # read once: the upload's thread sets it
        return (self.runs, self._ordered) if compacted is None else (compacted, len(compacted))


class Pane:
    """The partials of one pane: those before the last barrier, and levels of runs since then."""

    __slots__ = ("_frozen", "_levels", "_merged", "_merging")

    def __init__(self, merging: Merging) -> None:
        self._merging = merging
        self._frozen = FrozenPane([], merging)
        self._levels: list[list[pa.Table]] = []
        self._merged: pa.Table | None = None

    def append(self, run: pa.Table) -> None:
        self._merged = None
        self._put(run, 0)

    def restore(self, run: pa.Table) -> None:
        """Adds rows of a snapshot: many at once, so they are not put together with the next small runs."""
        self._frozen = FrozenPane([*self._frozen.runs, run], self._merging)

    def _put(self, run: pa.Table, level: int) -> None:
        if level == len(self._levels):
            self._levels.append([])
        runs = self._levels[level]
        runs.append(run)
        if len(runs) == FANOUT[level > 0]:
            self._levels[level] = []
            self._put(self._merging.put_together(runs), level + 1)

    @property
    def runs(self) -> list[pa.Table]:
        return [*self._frozen.held()[0], *self._since()]

    def _since(self) -> list[pa.Table]:
        return [run for level in self._levels for run in level]

    def freeze(self) -> FrozenPane:
        before, ordered = self._frozen.held()
        self._frozen, self._levels = FrozenPane([*before, *self._since()], self._merging, ordered), []
        return self._frozen

    def merged(self) -> pa.Table:
        """Merges all runs into one table with a row per key. It stands for them from then on."""
        if self._merged is None:
            self._merged = self._merging.merge(self.runs)
            self._frozen, self._levels = FrozenPane([self._merged], self._merging), []
        return self._merged


class Panes:
    """The panes of all open windows of one subtask, by their start."""

    def __init__(self, merging: Merging) -> None:
        self._merging = merging
        self._panes: dict[int, Pane] = {}

    def append(self, start_ms: int, run: pa.Table) -> None:
        self._pane(start_ms).append(run)

    def restore(self, start_ms: int, run: pa.Table) -> None:
        """Adds rows of a snapshot, before any others."""
        self._pane(start_ms).restore(run)

    def _pane(self, start_ms: int) -> Pane:
        pane = self._panes.get(start_ms)
        if pane is None:
            pane = self._panes[start_ms] = Pane(self._merging)
        return pane

    def between(self, start_ms: int, end_ms: int) -> pa.Table:
        """Returns the rows of the panes of one window, merged. At least one pane must be there."""
        held = [pane.merged() for start, pane in self._panes.items() if start_ms <= start < end_ms]
        return self._merging.merge(held) if len(held) > 1 else held[0]

    def drop(self, start_ms: int) -> None:
        del self._panes[start_ms]

    def starts(self) -> list[int]:
        return sorted(self._panes)

    def freeze(self) -> list[FrozenPane]:
        """Returns what each pane holds at a barrier, oldest first."""
        return [pane.freeze() for _, pane in sorted(self._panes.items())]

    def __len__(self) -> int:
        return len(self._panes)
