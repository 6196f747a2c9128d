"""`KeyedRows`: rows of one side of a join, sorted by key hash in runs, which are merged level by level.

`take` finds the rows of some keys by binary search, so work grows with the rows asked for, and not with all that are
kept. Rows that were taken stay in their batch and are marked; a run is written anew when most of it is.

Invariant: a snapshot is a list of references to Arrow batches, which never change, and of copied marks (C3).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from engine.state.joins.rows import Mask, one_batch
from engine.state.key_hash import Hashes
from engine.state.windows.session_runs import FANOUT, rows_with


@dataclass
class _Run:
    """Rows in the order of their key hash, of one key in the order in which they came. `alive`: not taken yet."""

    rows: pa.RecordBatch
    hashes: Hashes
    alive: Mask

    @property
    def left(self) -> int:
        return int(np.count_nonzero(self.alive))

    def written_anew(self) -> _Run:
        rows = self.rows.filter(pa.array(self.alive))
        return _Run(rows, self.hashes[self.alive], np.ones(rows.num_rows, np.bool_))


class KeyedRows:
    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._levels: list[list[_Run]] = []

    def append(self, rows: pa.RecordBatch, hashes: Hashes) -> None:
        if rows.num_rows:
            self._put([rows], hashes, 0)

    def _put(self, batches: list[pa.RecordBatch], hashes: Hashes, level: int) -> None:
        rows = one_batch(pa.Table.from_batches(batches))
        order = np.argsort(hashes, kind="stable")
        if level == len(self._levels):
            self._levels.append([])
        runs = self._levels[level]
        runs.append(_Run(rows.take(pa.array(order)), hashes[order], np.ones(len(order), np.bool_)))
        if len(runs) == FANOUT:
            self._levels[level] = []
            left = [run.written_anew() for run in runs]
            self._put([run.rows for run in left], np.concatenate([run.hashes for run in left]), level + 1)

    def take(self, hashes: Hashes) -> pa.RecordBatch:
        """Removes and returns the rows of keys with these hashes, which are sorted; the oldest rows of a key first."""
        taken = [self._schema.empty_table()]
        for level in reversed(self._levels):  # older rows are in higher levels
            for place, run in enumerate(level):
                rows = rows_with(run.hashes, hashes)
                rows = rows[run.alive[rows]]
                if len(rows):
                    taken.append(pa.Table.from_batches([run.rows.take(pa.array(rows))]))
                    run.alive[rows] = False
                    if 2 * run.left < len(run.alive):
                        level[place] = run.written_anew()
            level[:] = [run for run in level if len(run.alive)]
        return one_batch(pa.concat_tables(taken))

    def freeze(self) -> Callable[[], pa.Table]:
        """Returns a function that makes the table of the rows as they are now. Any thread may call it."""
        frozen = [(run.rows, run.alive.copy()) for level in reversed(self._levels) for run in level]
        empty = self._schema.empty_table()
        return lambda: pa.concat_tables(
            [empty, *(pa.Table.from_batches([rows.filter(pa.array(alive))]) for rows, alive in frozen)]
        )

    def __len__(self) -> int:
        return sum(run.left for level in self._levels for run in level)
