"""State of window joins and co-groups: the rows of both sides, kept once, in the panes that their windows share.

Invariant: a snapshot is a list of references to Arrow tables, which never change (C3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from engine.state.joins.matches import Matches, Pairs
from engine.state.joins.rows import Ints, JoinInput, bits, one_batch
from engine.state.windows.panes import Panes
from engine.state.windows.spans import Spans


@dataclass(frozen=True)
class WindowSides:
    """The rows of both sides in one window."""

    start_ms: int
    end_ms: int
    left: pa.RecordBatch
    right: pa.RecordBatch


class _AllRows:
    """Joins keep every row."""

    def merge(self, runs: Sequence[pa.Table]) -> pa.Table:
        return pa.concat_tables(runs)

    put_together = merge


class WindowRows:
    def __init__(self, left: JoinInput, right: JoinInput, spans: Spans) -> None:
        self._inputs = (left, right)
        self._spans = spans
        self._panes = (Panes(_AllRows()), Panes(_AllRows()))

    def add(self, side: int, pane_ms: int, rows: pa.Table) -> None:
        self._panes[side].append(pane_ms, rows)

    def due(self, before_ms: int, now_ms: int) -> Iterator[WindowSides]:
        """Yields the windows that became due since a watermark, oldest first; forgets panes that no window needs."""
        spans = self._spans
        start_ms = spans.first_open(before_ms)
        while (oldest := min((start for of in self._panes for start in of.starts()), default=None)) is not None:
            start_ms = max(start_ms, spans.first_window(oldest))
            if spans.due_ms(start_ms) > now_ms:
                return
            left, right = (self._between(side, start_ms) for side in (0, 1))
            yield WindowSides(start_ms, start_ms + spans.size_ms, left, right)
            for panes in self._panes:
                for pane in panes.starts():
                    if spans.last_window(pane) > start_ms:
                        break
                    panes.drop(pane)
            start_ms += spans.slide_ms

    def _between(self, side: int, start_ms: int) -> pa.RecordBatch:
        panes, end_ms = self._panes[side], start_ms + self._spans.size_ms
        if not any(start_ms <= pane < end_ms for pane in panes.starts()):
            return one_batch(self._inputs[side].schema.empty_table())
        return one_batch(panes.between(start_ms, end_ms))

    def freeze(self, side: int) -> Callable[[], pa.Table]:
        """Returns a function that makes the table of the rows of one side as they are now. Any thread may call it."""
        frozen, empty = self._panes[side].freeze(), self._inputs[side].schema.empty_table()
        return lambda: pa.concat_tables([empty, *(pane.compact() for pane in frozen)])

    def __len__(self) -> int:
        """The number of panes of both sides."""
        return sum(map(len, self._panes))


def paired(
    left: pa.RecordBatch, left_keys: Sequence[pa.Array], right: pa.RecordBatch, right_keys: Sequence[pa.Array]
) -> Callable[[Callable[[], int]], Iterator[Pairs]]:
    """Returns a function that yields all pairs with the same key, at most so many at a time as it is told.

    No key may be null.
    """
    ours, theirs = key_codes(left_keys, right_keys)
    order = np.argsort(theirs, kind="stable")
    sorted_ = theirs[order]
    starts = np.searchsorted(sorted_, ours, side="left")
    counts = np.searchsorted(sorted_, ours, side="right") - starts
    some = np.flatnonzero(counts)
    matches = Matches(some, starts[some], counts[some])
    return lambda most: (
        Pairs(left, pa.array(mine), right, pa.array(order[places])) for mine, places in matches.parts(most)
    )


@dataclass(frozen=True)
class Groups:
    """Some groups: group i is the rows of `left` and of `right` from the i-th bound to the next, and has a code."""

    codes: Ints
    left: pa.RecordBatch
    left_bounds: list[int]
    right: pa.RecordBatch
    right_bounds: list[int]


def grouped(window: WindowSides, left: JoinInput, right: JoinInput, most: Callable[[], int]) -> Iterator[Groups]:
    """Yields the rows of a window by key, about `most()` at a time; a group is never divided.

    Rows with a null in their key are in groups of their side alone, because null equals nothing.
    """
    ours, theirs = key_codes(left.keys_of(window.left), right.keys_of(window.right))
    ours, theirs = ours * 2, theirs * 2
    theirs[~right.complete(window.right)] += 1
    return by_codes(window.left, ours, window.right, theirs, most)


def by_codes(
    left: pa.RecordBatch, ours: Ints, right: pa.RecordBatch, theirs: Ints, most: Callable[[], int]
) -> Iterator[Groups]:
    """Yields the rows of both sides that have the same code, about `most()` at a time; a group is never divided."""
    left_rows, left_codes = _by_code(left, ours)
    right_rows, right_codes = _by_code(right, theirs)
    codes = np.union1d(left_codes, right_codes)
    left_ends = np.searchsorted(left_codes, codes, side="right")
    right_ends = np.searchsorted(right_codes, codes, side="right")
    ends, first, left_done, right_done = left_ends + right_ends, 0, 0, 0
    while first < len(codes):
        last = max(first + 1, int(np.searchsorted(ends, left_done + right_done + most(), side="right")))
        bounds = [
            [0, *(of[first:last] - done).tolist()] for of, done in ((left_ends, left_done), (right_ends, right_done))
        ]
        some_left = left_rows.slice(left_done, bounds[0][-1])
        some_right = right_rows.slice(right_done, bounds[1][-1])
        yield Groups(codes[first:last], some_left, bounds[0], some_right, bounds[1])
        first, left_done, right_done = last, int(left_ends[last - 1]), int(right_ends[last - 1])


def _by_code(rows: pa.RecordBatch, codes: Ints) -> tuple[pa.RecordBatch, Ints]:
    order = np.argsort(codes, kind="stable")
    return rows.take(pa.array(order)), codes[order]


def key_codes(left: Sequence[pa.Array], right: Sequence[pa.Array]) -> tuple[Ints, Ints]:
    """Returns a number for each row of both sides, equal for equal keys. Nulls of one column are equal here."""
    codes: Ints | None = None
    for ours, theirs in zip(left, right, strict=True):
        encoded = pa.concat_arrays([bits(ours), bits(theirs)]).dictionary_encode(null_encoding="encode")
        more = encoded.indices.to_numpy().astype(np.int64)
        if codes is not None:
            more = np.unique(codes * len(encoded.dictionary) + more, return_inverse=True)[1]
        codes = more
    assert codes is not None
    return codes[: len(left[0])], codes[len(left[0]) :]
