"""Measures how the time per record changes when something grows tenfold, and tenfold again.

What grows: keys, open windows, timers that wait, and how far records are out of order; for built-in aggregates and for
functions of Python. Growth is linear or better if the time per record grows no more than what grows: nothing is looked
at more than once for each record. `make bench ONLY=growth` writes the table in docs/benchmarks.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.report import PAGE, Result, Say, between_markers
from benchmarks.weir import WeirJob
from benchmarks.window_jobs import STEP_US, WINDOW_MS

TIMES = (1, 10, 100)
BEGIN, END = "<!-- tenfold: written by make bench ONLY=growth -->", "<!-- end of tenfold -->"


@dataclass(frozen=True)
class Sweep:
    """What grows: a parameter of a job. `full` says after how many rows the state has its size."""

    name: str
    lane: str
    job: str
    parameter: str
    least: int
    full: Callable[[int], int]
    fixed: dict[str, Any] = field(default_factory=dict)


def _of_windows(lane: str) -> Callable[[int], int]:
    return lambda windows: 3 * windows * WINDOW_MS * 1000 // STEP_US[lane]


def _open(name: str, lane: str, disordered: bool) -> Sweep:
    fixed = {"lane": lane, "disordered": disordered}
    return Sweep(name, lane, "benchmarks.window_jobs:disorder", "open", 1, _of_windows(lane), fixed)


SWEEPS = (
    Sweep("keys", "columns", "benchmarks.jobs:growth", "keys", 10_000, lambda keys: 2 * keys),
    Sweep("keys", "functions", "benchmarks.jobs:row_lane", "keys", 10_000, lambda keys: 2 * keys),
    _open("open windows", "columns", False),
    _open("open windows", "functions", False),
    _open("open windows, records anywhere in them", "columns", True),
    _open("open windows, records anywhere in them", "functions", True),
    Sweep("timers that wait", "functions", "benchmarks.jobs:timers", "timers", 10_000, lambda timers: 2 * timers),
)


@dataclass(frozen=True)
class Point:
    """The rate at one size, and how many times as long as at the least size a record takes."""

    sweep: Sweep
    times: int
    rows_per_s: float
    longer: float

    @property
    def linear(self) -> bool:
        return self.longer <= self.times

    @property
    def cells(self) -> list[str]:
        sweep = self.sweep
        return [
            sweep.name,
            sweep.lane,
            f"{sweep.least * self.times:,}",
            f"{self.rows_per_s / 1e6:.3f} M",
            f"{1e6 / self.rows_per_s:.3g} µs",
            f"{self.longer:.2f}×",
            "yes" if self.linear else "**no**",
        ]


def growth(say: Say, seconds: float, times: tuple[int, ...] = TIMES) -> list[Result]:
    points: list[Point] = []
    for sweep in SWEEPS:
        first = 0.0
        for factor in times:
            rate = _rate(sweep, factor, seconds)
            first = first or rate
            points.append(Point(sweep, factor, rate, first / rate))
            say(f"growth: {' '.join(points[-1].cells)}")
    heading = ["what grows", "lane", "to", "rows/s", "time per record", "compared with the least", "linear or better"]
    rows = [f"| {' | '.join(heading)} |", "|---|---|---:|---:|---:|---:|---|"]
    between_markers(PAGE, [*rows, *(f"| {' | '.join(point.cells)} |" for point in points)], BEGIN, END)
    return [_result(points, times[-1])]


def _result(points: list[Point], most: int) -> Result:
    """Returns the line of the growth that costs most; the table has the others."""
    worst = max((point for point in points if point.times == most), key=lambda point: point.longer)
    note = (
        f"the longest time per record of any job when one of its sizes has grown {most} times, compared with the "
        f'least size: {worst.sweep.name} in {worst.sweep.lane}; the table under "What grows" has all'
    )
    runs = {f"{point.sweep.name}, {point.sweep.lane}, {point.times}": point.rows_per_s for point in points}
    reached = all(point.linear for point in points)
    return Result("growth", None, worst.longer, None, "×", None, note, "≤ the growth", reached, runs=runs)


def _rate(sweep: Sweep, factor: int, seconds: float) -> float:
    """Waits until the state has the size that it will always have, and measures from there."""
    value = sweep.least * factor
    with WeirJob(sweep.job, **sweep.fixed, **{sweep.parameter: value}) as job:
        full = sweep.full(value)
        job.wait_for(
            "the state has its size",
            lambda: len(job.checkpoints()) >= 3 and job.checkpoints()[-1].rows > full,
            patience_s=300,
        )
        return job.steady_rate(seconds)
