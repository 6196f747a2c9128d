"""Columnar state of session windows: tables of sessions, called runs, sorted by key hash and merged level by level.

A session may lie in several runs, in parts, until somebody asks for the sessions of its key. `take` finds these by
binary search, so work grows with the sessions asked for, and not with all that are open. Rows that were taken stay in
their table and are marked; a run is written anew when most of it is.

Invariant: a snapshot is a list of references to Arrow tables, which never change, and of copied marks (C3).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from engine.state.key_hash import Hashes, hash_columns
from engine.state.windows.grouping import Ints
from engine.state.windows.session_plan import END, SessionPlan

FANOUT = 8
"""The number of runs of a level that are merged into one run of the next level."""

Flags = npt.NDArray[np.bool_]


@dataclass
class Run:
    """Sessions in the order of their key hash. `alive`: not taken yet. `fired`: kept for late records only."""

    table: pa.Table
    hashes: Hashes
    ends: Ints
    fired: Flags
    alive: Flags

    @property
    def mostly_dead(self) -> bool:
        return 2 * int(np.count_nonzero(self.alive)) < len(self.alive)


class SessionRuns:
    """The open sessions of one subtask."""

    def __init__(self, plan: SessionPlan) -> None:
        self._plan = plan
        self._levels: list[list[Run]] = []

    def append(self, table: pa.Table, fired: Flags) -> None:
        if table.num_rows:
            self._put(self._run(table, fired), 0)

    def due(self, fired_ms: int, forgotten_ms: int) -> Hashes:
        """Returns the key hashes of sessions that may fire or be forgotten at these watermarks."""
        found = []
        for run in self._runs:
            last = np.where(run.fired, forgotten_ms, fired_ms)
            found.append(run.hashes[run.alive & (run.ends - 1 <= last)])
        return np.unique(np.concatenate(found)) if found else np.zeros(0, np.uint64)

    def take(self, hashes: Hashes) -> tuple[pa.Table, Flags]:
        """Removes and returns the sessions of keys with these hashes, and which of them have fired."""
        tables, fired = [self._plan.partial_schema.empty_table()], [np.zeros(0, np.bool_)]
        for level in self._levels:
            for place, run in enumerate(level):
                rows = rows_with(run.hashes, hashes)
                rows = rows[run.alive[rows]]
                if len(rows):
                    tables.append(run.table.take(pa.array(rows)))
                    fired.append(run.fired[rows])
                    run.alive[rows] = False
                    if run.mostly_dead:
                        level[place] = _alive(run)
            level[:] = [run for run in level if len(run.alive)]
        return pa.concat_tables(tables), np.concatenate(fired)

    def freeze(self) -> list[tuple[pa.Table, Flags]]:
        """Returns what is held at a barrier: tables, and which of their rows."""
        return [(run.table, run.alive.copy()) for run in self._runs]

    def compact(self, frozen: list[tuple[pa.Table, Flags]]) -> pa.Table:
        """Merges what was held into a table with one row per session. The upload calls it in its own thread."""
        tables = [table.filter(pa.array(alive)) for table, alive in frozen]
        return self._plan.merge(pa.concat_tables([self._plan.partial_schema.empty_table(), *tables]))[0]

    @property
    def _runs(self) -> list[Run]:
        return [run for level in self._levels for run in level]

    def __len__(self) -> int:
        """Returns the number of rows held."""
        return sum(int(np.count_nonzero(run.alive)) for run in self._runs)

    def _put(self, run: Run, level: int) -> None:
        if level == len(self._levels):
            self._levels.append([])
        runs = self._levels[level]
        runs.append(run)
        if len(runs) == FANOUT:
            self._levels[level] = []
            self._put(self._merged(runs), level + 1)

    def _merged(self, runs: list[Run]) -> Run:
        """Merges runs. A session has fired if all of its parts have."""
        table = pa.concat_tables([run.table.filter(pa.array(run.alive)) for run in runs])
        fired = np.concatenate([run.fired[run.alive] for run in runs])
        merged, divided = self._plan.merge(table)
        return self._run(merged, np.bincount(divided.of[~fired], minlength=merged.num_rows) == 0)

    def _run(self, table: pa.Table, fired: Flags) -> Run:
        hashes = hash_columns([table.column(key).combine_chunks() for key in self._plan.keys])
        order = np.argsort(hashes)
        table = table.take(pa.array(order)).combine_chunks()
        ends = table.column(END).to_numpy()
        return Run(table, hashes[order], ends, fired[order], np.ones(len(order), np.bool_))


def _alive(run: Run) -> Run:
    alive = run.alive
    table = run.table.filter(pa.array(alive)).combine_chunks()
    return Run(table, run.hashes[alive], run.ends[alive], run.fired[alive], np.ones(table.num_rows, np.bool_))


def rows_with(hashes: Hashes, wanted: Hashes) -> Ints:
    """Returns the places of the wanted values in sorted hashes."""
    left, right = np.searchsorted(hashes, wanted, "left"), np.searchsorted(hashes, wanted, "right")
    lengths = right - left
    shifts = left - np.concatenate([[0], np.cumsum(lengths)[:-1]]) if len(lengths) else left
    return np.repeat(shifts, lengths) + np.arange(int(lengths.sum()))
