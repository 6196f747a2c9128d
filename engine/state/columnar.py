"""Columnar window state: per pane a log of partial tables, merged by levels; a snapshot is a list of references.

Arrow tables never change, so what a snapshot refers to stays as it was while processing goes on (C3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa

FANOUT = 8
"""Runs of one level that are merged into one of the next: bounds both the work per row and the runs per pane."""

Merge = Callable[[Sequence[pa.Table]], pa.Table]


class Pane:
    """The partials of one window, as levels of runs."""

    __slots__ = ("_levels", "_merge")

    def __init__(self, merge: Merge) -> None:
        self._merge = merge
        self._levels: list[list[pa.Table]] = []

    def append(self, run: pa.Table, level: int = 0) -> None:
        if level == len(self._levels):
            self._levels.append([])
        runs = self._levels[level]
        runs.append(run)
        if len(runs) == FANOUT:
            self._levels[level] = []
            self.append(self._merge(runs), level + 1)

    @property
    def runs(self) -> list[pa.Table]:
        return [run for level in self._levels for run in level]

    def merged(self) -> pa.Table:
        return self._merge(self.runs)


class Panes:
    """All open windows of one subtask, by window start."""

    def __init__(self, merge: Merge) -> None:
        self._merge = merge
        self._panes: dict[int, Pane] = {}

    def append(self, start_ms: int, run: pa.Table) -> None:
        pane = self._panes.get(start_ms)
        if pane is None:
            pane = self._panes[start_ms] = Pane(self._merge)
        pane.append(run)

    def due(self, last_start_ms: int) -> list[int]:
        """The starts up to `last_start_ms`, oldest first."""
        return sorted(start for start in self._panes if start <= last_start_ms)

    def pop(self, start_ms: int) -> pa.Table:
        return self._panes.pop(start_ms).merged()

    def references(self) -> list[list[pa.Table]]:
        return [pane.runs for _, pane in sorted(self._panes.items())]

    def __len__(self) -> int:
        return len(self._panes)

    @staticmethod
    def compact(references: Iterable[Sequence[pa.Table]], merge: Merge) -> list[pa.Table]:
        """For the upload: one table per pane."""
        return [merge(runs) if len(runs) > 1 else runs[0] for runs in references]
