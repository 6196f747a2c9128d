"""Measures timers: a Python function registers one per record, and one fires per record, while more and more wait.

The number of timers that wait grows tenfold twice; a queue that scans would slow down a hundredfold.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median

from benchmarks.report import Result, Say
from benchmarks.weir import Checkpoint, WeirJob, rate_between

TARGET = 0.5
"""With a hundred times as many timers the rate may fall by half: of larger tables fewer fit into the caches."""


@dataclass(frozen=True)
class Point:
    """The rate with so many timers waiting, and what a checkpoint of them costs."""

    timers: int
    rows_per_s: float
    sync_ms: float
    checkpoint_ms: float
    state_bytes: int

    def __str__(self) -> str:
        return (
            f"{self.timers:,} timers: {self.rows_per_s / 1e3:,.0f} k rows/s; a checkpoint of "
            f"{self.state_bytes / 1e6:.0f} MB stops a subtask for {self.sync_ms:.0f} ms and takes "
            f"{self.checkpoint_ms:.0f} ms"
        )


def timers(say: Say, seconds: float, counts: tuple[int, ...] = (10_000, 100_000, 1_000_000)) -> list[Result]:
    points = []
    for count in counts:
        points.append(_measured(count, seconds))
        say(f"timers: {points[-1]}")
    few, many = points[0], points[-1]
    ratio = many.rows_per_s / few.rows_per_s
    note = (
        "rows/s of a `KeyedProcessFunction` that registers a timer per record, of which one fires per record; two "
        f"slots, a checkpoint every 2 s; the peer is Weir with {few.timers:,} timers that wait; "
        f"{'; '.join(map(str, points))}"
    )
    runs = {str(point.timers): point.rows_per_s for point in points}
    target = f"≥ {TARGET:g}× with 100×"
    peer = f"weir-{few.timers:,}-timers"
    return [
        Result(
            "timers", peer, many.rows_per_s, few.rows_per_s, "rows/s", ratio, note, target, ratio >= TARGET, runs=runs
        )
    ]


def _measured(count: int, seconds: float) -> Point:
    """Waits until as many timers wait as will ever do, and measures from there."""
    with WeirJob("benchmarks.jobs:timers", timers=count) as job:
        job.wait_for("all timers wait", lambda: _rows(job) > 1.2 * count, patience_s=240)
        first = job.checkpoints()[-1]
        time.sleep(seconds)
        job.wait_for("another checkpoint", lambda: job.checkpoints()[-1].number > first.number + 1)
        found = [checkpoint for checkpoint in job.checkpoints() if checkpoint.number >= first.number]
        job.check()
    rate = rate_between(found[0], found[-1])
    sync_ms = median(checkpoint.sync_ms for checkpoint in found)
    return Point(count, rate, sync_ms, median(c.duration_ms for c in found), found[-1].state_bytes)


def _rows(job: WeirJob) -> int:
    checkpoints: list[Checkpoint] = job.checkpoints()
    return checkpoints[-1].rows if checkpoints else 0
