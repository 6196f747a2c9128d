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
    """The partials of one window: those before the last barrier, and levels of runs since then."""

    __slots__ = ("_frozen", "_levels", "_merge")

    def __init__(self, merge: Merge) -> None:
        self._merge = merge
        self._frozen = FrozenPane([], merge)
        self._levels: list[list[pa.Table]] = []

    def append(self, run: pa.Table, level: int = 0) -> None:
        if level == len(self._levels):
            self._levels.append([])
        runs = self._levels[level]
        runs.append(run)
        if len(runs) == FANOUT[level > 0]:
            self._levels[level] = []
            self.append(self._merge(runs), level + 1)

    @property
    def runs(self) -> list[pa.Table]:
        return [*self._frozen.compacted, *(run for level in self._levels for run in level)]

    def freeze(self) -> FrozenPane:
        self._frozen, self._levels = FrozenPane(self.runs, self._merge), []
        return self._frozen

    def merged(self) -> pa.Table:
        return self._merge(self.runs)


class Panes:
    """The panes of all open windows of one subtask, by window start."""

    def __init__(self, merge: Merge) -> None:
        self._merge = merge
        self._panes: dict[int, Pane] = {}

    def append(self, start_ms: int, run: pa.Table) -> None:
        pane = self._panes.get(start_ms)
        if pane is None:
            pane = self._panes[start_ms] = Pane(self._merge)
        pane.append(run)

    def due(self, last_start_ms: int) -> list[int]:
        """Returns the window starts up to `last_start_ms`, oldest first."""
        return sorted(start for start in self._panes if start <= last_start_ms)

    def pop(self, start_ms: int) -> pa.Table:
        return self._panes.pop(start_ms).merged()

    def freeze(self) -> list[FrozenPane]:
        """Returns what each pane holds at a barrier, oldest first."""
        return [pane.freeze() for _, pane in sorted(self._panes.items())]

    def __len__(self) -> int:
        return len(self._panes)
