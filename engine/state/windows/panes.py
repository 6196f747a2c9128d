"""Columnar window state: each pane holds partial tables, called runs, and merges them level by level.

Invariant: a snapshot is a list of references to Arrow tables, which never change, so processing goes on during the
upload (C3). The upload merges these runs into one table off the task thread; the pane then uses that table instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

FANOUT = (32, 8)
"""The number of runs of the first level, and of each later one, that are merged into one run of the next level.

It bounds the work per row and the unmerged runs of a pane. Uploads do most of the merging, so the first level, whose
runs are the smallest, waits for more of them.
"""

Merge = Callable[[Sequence[pa.Table]], pa.Table]


class FrozenPane:
    """The runs of a pane at a barrier."""

    __slots__ = ("_compacted", "_merge", "runs")

    def __init__(self, runs: list[pa.Table], merge: Merge) -> None:
        self.runs = runs
        self._merge = merge
        self._compacted: pa.Table | None = None

    def compact(self) -> pa.Table:
        """Merges the runs into one table. The upload calls it in its own thread."""
        self._compacted = self._merge(self.runs) if len(self.runs) > 1 else self.runs[0]
        return self._compacted

    @property
    def compacted(self) -> list[pa.Table]:
        """The merged table once the upload has made it; before that, the runs."""
        return self.runs if self._compacted is None else [self._compacted]


class Pane:
    """The partials of one pane: those before the last barrier, and levels of runs since then."""

    __slots__ = ("_frozen", "_levels", "_merge", "_merged")

    def __init__(self, merge: Merge) -> None:
        self._merge = merge
        self._frozen = FrozenPane([], merge)
        self._levels: list[list[pa.Table]] = []
        self._merged: pa.Table | None = None

    def append(self, run: pa.Table) -> None:
        self._merged = None
        self._put(run, 0)

    def _put(self, run: pa.Table, level: int) -> None:
        if level == len(self._levels):
            self._levels.append([])
        runs = self._levels[level]
        runs.append(run)
        if len(runs) == FANOUT[level > 0]:
            self._levels[level] = []
            self._put(self._merge(runs), level + 1)

    @property
    def runs(self) -> list[pa.Table]:
        return [*self._frozen.compacted, *(run for level in self._levels for run in level)]

    def freeze(self) -> FrozenPane:
        self._frozen, self._levels = FrozenPane(self.runs, self._merge), []
        return self._frozen

    def merged(self) -> pa.Table:
        """Merges all runs into one table with a row per key. It stands for them from then on."""
        if self._merged is None:
            self._merged = self._merge(self.runs)
            self._frozen, self._levels = FrozenPane([self._merged], self._merge), []
        return self._merged


class Panes:
    """The panes of all open windows of one subtask, by their start."""

    def __init__(self, merge: Merge) -> None:
        self._merge = merge
        self._panes: dict[int, Pane] = {}

    def append(self, start_ms: int, run: pa.Table) -> None:
        pane = self._panes.get(start_ms)
        if pane is None:
            pane = self._panes[start_ms] = Pane(self._merge)
        pane.append(run)

    @property
    def oldest(self) -> int | None:
        """The start of the oldest pane; None: there is none."""
        return min(self._panes, default=None)

    def between(self, start_ms: int, end_ms: int) -> pa.Table:
        """Returns the rows of the panes of one window, merged. At least one pane must be there."""
        held = [pane.merged() for start, pane in self._panes.items() if start_ms <= start < end_ms]
        return self._merge(held) if len(held) > 1 else held[0]

    def drop(self, start_ms: int) -> None:
        del self._panes[start_ms]

    def starts(self) -> list[int]:
        return sorted(self._panes)

    def freeze(self) -> list[FrozenPane]:
        """Returns what each pane holds at a barrier, oldest first."""
        return [pane.freeze() for _, pane in sorted(self._panes.items())]

    def __len__(self) -> int:
        return len(self._panes)
