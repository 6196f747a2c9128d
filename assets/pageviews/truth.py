"""Computes what the page-view job must count, from the records alone, without the engine."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from assets.pageviews.source import page_views

Counts = Counter[tuple[str, int]]


def expected(rows: int, event_rate: int, window_ms: int) -> Counts:
    """Returns the page views per app and window start (ms)."""
    result: Counts = Counter()
    for first in range(0, rows, 1_000_000):
        columns = page_views(np.arange(first, min(rows, first + 1_000_000), dtype=np.int64), event_rate)
        starts = columns["ts"] // 1000 // window_ms * window_ms
        grouped = pa.table({"app": columns["app_id"], "start": starts}).group_by(["app", "start"])
        for row in grouped.aggregate([([], "count_all")]).to_pylist():
            result[row["app"], row["start"]] += row["count_all"]
    return result


def counted(table: pa.Table) -> Counts:
    """Returns the same from the job's table; a window that is in the table twice counts twice."""
    result: Counts = Counter()
    if not table.num_rows:
        return result
    starts = table.column("window_start").cast(pa.int64()).to_numpy() // 1000
    for app, start, views in zip(
        table.column("app_id").to_pylist(), starts, table.column("pv").to_pylist(), strict=True
    ):
        result[app, int(start)] += views
    return result


@dataclass(frozen=True)
class Verdict:
    rows: int
    counted: int
    lost: int
    duplicated: int


def compare(want: Counts, got: Counts) -> Verdict:
    """Compares each app and window alone, so that a lost row of one can't hide a doubled row of another."""
    lost = sum(max(0, views - got[key]) for key, views in want.items())
    duplicated = sum(max(0, views - want[key]) for key, views in got.items())
    return Verdict(sum(want.values()), sum(got.values()), lost, duplicated)
