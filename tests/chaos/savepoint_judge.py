"""Compares tables with the truth: of a job that has read a part of the stream, or of one that began from a cut."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tests.chaos.job import EVENTS_PER_S, KEYS, SPLITS, make
from tests.chaos.reader import seconds_of, windows_due, windows_of


def wrong_in(
    numbered: pa.Table | None,
    sums: pa.Table | None,
    rows: int,
    *,
    begun: bool = False,
    whole: bool = False,
    drained: bool = False,
) -> list[str]:
    """Returns a sentence for each difference from the truth.

    `begun`: the job began from a savepoint, and so has no records before its cut; `whole`: it has read all that follow;
    `drained`: all windows of the records that it has read have fired.
    """
    n = _column(numbered, "n")
    times = np.bincount(n, minlength=rows)
    got = [np.flatnonzero(times[split:rows:SPLITS]) for split in range(SPLITS)]
    per_split = [len(range(split, rows, SPLITS)) for split in range(SPLITS)]
    firsts = [_first(mine, size) if begun else 0 for mine, size in zip(got, per_split, strict=True)]
    ends = [size if whole else _end(mine) for mine, size in zip(got, per_split, strict=True)]
    due = np.zeros(max(rows, len(times)), np.int64)
    before = np.zeros(rows, bool)
    for split in range(SPLITS):
        due[split:rows:SPLITS][firsts[split] : ends[split]] = 1
        before[split:rows:SPLITS][: firsts[split]] = True
    lost, doubled = int((times < due).sum()), int((times > due).sum())
    wrong = [f"numbered: lost {lost}, doubled {doubled}"] if lost or doubled else []
    wrong += _wrong_numbers(numbered, before)
    if drained and (sums is None or windows_of(sums) != windows_due(n)):
        return [*wrong, "sums: not all windows of the records have fired, or their rows are not in the table"]
    if drained:
        return wrong
    cut = min(split + SPLITS * first for split, first in enumerate(firsts)) // EVENTS_PER_S
    end = rows // EVENTS_PER_S if whole else None
    return wrong + _wrong_windows(sums, cut if begun else 0, end)


def _wrong_numbers(numbered: pa.Table | None, before: np.ndarray) -> list[str]:
    """The numbers of a key go on from as many as it had before the cut, without a gap."""
    key, number = _column(numbered, "key"), _column(numbered, "number")
    had = np.bincount(make(np.flatnonzero(before))["key"], minlength=KEYS)
    for one in range(KEYS):
        mine = np.sort(number[key == one])
        if not np.array_equal(mine, had[one] + 1 + np.arange(len(mine))):
            return [f"numbered: key {one} had {had[one]} records before, and its numbers do not go on from there"]
    return []


def _wrong_windows(sums: pa.Table | None, cut: int, end: int | None) -> list[str]:
    """`cut`: the second in which the first record lies that was not read before."""
    if sums is None or not sums.num_rows:
        return [] if end is None or cut >= end else ["sums: there are no windows"]
    seconds = np.unique(seconds_of(sums))
    first, last = int(seconds[0]), int(seconds[-1])
    due = windows_due(np.arange(first * EVENTS_PER_S, (last + 1) * EVENTS_PER_S))
    wrong = [] if windows_of(sums) == due else [f"sums: windows {first} to {last} are not those of the truth"]
    if not max(0, cut - 2) <= first <= cut:
        wrong.append(f"sums: begin with window {first}, and the cut is in window {cut}")
    if end is not None and last != end - 1:
        wrong.append(f"sums: end with window {last} of {end}")
    return wrong


def _column(table: pa.Table | None, name: str) -> np.ndarray:
    return np.zeros(0, np.int64) if table is None or not table.num_rows else table.column(name).to_numpy()


def _first(mine: np.ndarray, size: int) -> int:
    return int(mine[0]) if len(mine) else size


def _end(mine: np.ndarray) -> int:
    return int(mine[-1]) + 1 if len(mine) else 0
