"""The oracle of session windows, and of windows with allowed lateness and a side output for late records.

Which records are late depends on the schedule, so the table of late records says it, or the count of dropped ones. All
else has to fit: each record is late once, or counts in the last result of its window.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from engine.api import OutputTag
from tests.simulation.world import Violation

LATE = OutputTag("late", "n long, key string, v long, ts timestamp")

Rows = list[tuple[Any, ...]]
Window = tuple[str, int]


@dataclass(frozen=True)
class Record:
    n: int
    key: str
    stamp: int
    value: int


def check(due: Sequence[Record], tables: Mapping[str, Rows], gap_ms: int, held: int, dropped: int) -> None:
    """Checks an epoch: no result and no late record twice; with sessions and no lateness, all records are accounted."""
    late = [row[0] for row in tables.get("late", [])]
    known = {record.n for record in due}
    if twice := [n for n, times in Counter(late).items() if times > 1]:
        raise Violation("no_duplicate", f"late more than once: {twice[:10]}")
    if unread := [n for n in late if n not in known]:
        raise Violation("no_phantom", f"late records behind the barrier: {unread[:10]}")
    results = Counter((key, start, pv) for key, start, _, pv, _ in tables["out"])
    if repeated := [result for result, times in results.items() if times > 1]:
        raise Violation("no_reopened_window", f"a window fired twice with the same records: {repeated[:4]}")
    if gap_ms and "late" not in tables:
        found = sum(row[3] for row in tables["out"]) + held + dropped
        if found != len(due):
            what = "no_loss" if found < len(due) else "no_duplicate"
            raise Violation(what, f"{len(due)} records are before the barrier, {found} are accounted for")


def check_final(
    records: Sequence[Record], tables: Mapping[str, Rows], width_ms: int, sessions: bool, exact: bool
) -> None:
    """Checks the end of the job. `exact`: no record is late, so each window has one result, which is known."""
    late = {row[0] for row in tables.get("late", [])}
    counted = [record for record in records if record.n not in late]
    if exact:
        if late:
            raise Violation("exact_result", f"{len(late)} records are late, and none is")
        _same(_last(tables["out"]), _sessions(counted, width_ms) if sessions else _tumbling(counted, width_ms))
    elif not sessions:
        _same(_last(tables["out"]), _tumbling(counted, width_ms))
    elif "late" in tables:
        for key in {record.key for record in records}:
            mine = [record for record in counted if record.key == key]
            got = [(pv, v) for of, _, _, pv, v in tables["out"] if of == key]
            if sum(pv for pv, _ in got) < len(mine):
                raise Violation("no_loss", f"key {key}: {got} of {len(mine)} records")


def _last(rows: Rows) -> dict[Window, tuple[int, int]]:
    """Returns the last result of each window: the one with most records."""
    last: dict[Window, tuple[int, int]] = {}
    for key, start, _, pv, v in rows:
        window = (key, _ms(start))
        last[window] = max(last.get(window, (0, 0)), (pv, v))
    return last


def _tumbling(records: Sequence[Record], size_ms: int) -> dict[Window, tuple[int, int]]:
    result: dict[Window, tuple[int, int]] = {}
    for record in records:
        window = (record.key, record.stamp - record.stamp % size_ms)
        pv, v = result.get(window, (0, 0))
        result[window] = (pv + 1, v + record.value)
    return result


def _sessions(records: Sequence[Record], gap_ms: int) -> dict[Window, tuple[int, int]]:
    result: dict[Window, tuple[int, int]] = {}
    last: dict[str, tuple[Window, int]] = {}
    for record in sorted(records, key=lambda one: one.stamp):
        window, stamp = last.get(record.key, ((record.key, record.stamp), record.stamp))
        if record.stamp > stamp + gap_ms:
            window = (record.key, record.stamp)
        pv, v = result.get(window, (0, 0))
        result[window] = (pv + 1, v + record.value)
        last[record.key] = (window, record.stamp)
    return result


def _same(got: dict[Window, tuple[int, int]], want: dict[Window, tuple[int, int]]) -> None:
    wrong = sorted(window for window in got.keys() | want.keys() if got.get(window) != want.get(window))
    if wrong:
        window = wrong[0]
        raise Violation("exact_result", f"{len(wrong)} windows, {window}: {got.get(window)}, not {want.get(window)}")


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
