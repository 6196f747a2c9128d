"""Measures what sliding windows with a Python function cost: 1 h every 5 min beside tumbling windows of 5 min.

A record is in 12 of the sliding windows. If each of them had it, their rate would be a twelfth or so.
"""

from __future__ import annotations

from statistics import median

from benchmarks.report import Result, Say
from benchmarks.weir import WeirJob

TARGET = 0.7
"""Sliding windows emit as many results as the tumbling ones, each of 12 panes."""


def sliding(say: Say, rounds: int, seconds: float) -> list[Result]:
    rates: dict[str, list[float]] = {"1 h": [], "5 min": []}
    for _ in range(rounds):
        for size, found in rates.items():
            found.append(_rate(size, seconds))
            say(f"sliding_rows: windows of {size} every 5 min: {found[-1] / 1e3:,.0f} k rows/s")
    ours, tumbling = (median(found) for found in rates.values())
    note = (
        "rows/s of an `AggregateFunction` in windows of 1 h every 5 min; 100 keys with 300 rows in 5 min each, two "
        "slots, a checkpoint every second; the peer is Weir with tumbling windows of 5 min"
    )
    ratio = ours / tumbling
    target = f"≥ {TARGET:g}×"
    reached = ratio >= TARGET
    return [
        Result(
            "sliding_rows", "weir-tumbling", ours, tumbling, "rows/s", ratio, note, target, reached, runs=dict(rates)
        )
    ]


def _rate(size: str, seconds: float) -> float:
    with WeirJob("benchmarks.window_jobs:sliding", size=size) as job:
        full = 12 * 30_000  # the rows of an hour
        job.wait_for("the first hour is over", lambda: [c.rows > full for c in job.checkpoints()][-1:] == [True])
        return job.steady_rate(seconds)
