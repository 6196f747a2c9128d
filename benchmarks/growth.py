"""Measures how the window job's rate changes with the number of keys, slots and columns, and the size of batches.

`python -m benchmarks.growth` (five minutes) writes results/growth.json and growth.png, and the table in
docs/benchmarks.md. For the number of keys it measures Spark, too.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.peer import run_spark
from benchmarks.report import FAINT, INK, PAGE, PEER, RESULTS, WEIR, between_markers, canvas, stamp, where
from benchmarks.weir import WeirJob

SECONDS = 6.0
BEGIN, END = "<!-- growth: written by python -m benchmarks.growth -->", "<!-- end of growth -->"
SWEEPS: dict[str, list[dict[str, int]]] = {
    "keys": [{"keys": keys} for keys in (10_000, 100_000, 1_000_000)],
    "slots": [{"parallelism": slots} for slots in (1, 2, 3, 4)],
    "columns of values": [{"columns": columns} for columns in (1, 10)],
    "rows in a batch": [{"batch": rows} for rows in (262_144, 65_536, 8_192, 1_024)],
}


@dataclass(frozen=True)
class Point:
    """The rate at one value of a sweep. `spark` is None if Spark was not measured."""

    sweep: str
    at: int
    weir: float
    spark: float | None = None

    @property
    def cells(self) -> list[str]:
        spark = "" if self.spark is None else f"{self.spark / 1e6:.2f} M"
        ratio = "" if self.spark is None else f"{self.weir / self.spark:.1f}×"
        return [self.sweep, f"{self.at:,}", f"{self.weir / 1e6:.2f} M", spark, ratio]


def main() -> None:
    points = []
    for sweep, settings in SWEEPS.items():
        for setting in settings:
            at = next(iter(setting.values()))
            points.append(Point(sweep, at, _weir(**setting), _spark(at) if sweep == "keys" else None))
            print(" ".join(points[-1].cells), flush=True)
    RESULTS.mkdir(parents=True, exist_ok=True)
    found = {"points": [asdict(point) for point in points], **stamp()}
    (RESULTS / "growth.json").write_text(json.dumps(found, indent=2) + "\n")
    plot(points, where(found), RESULTS / "growth.png")
    _into_page(points)


def _weir(**setting: int) -> float:
    with WeirJob("benchmarks.jobs:growth", **setting) as job:
        job.wait_for("three checkpoints are complete", lambda: len(job.checkpoints()) >= 3)
        return job.steady_rate(SECONDS)


def _spark(keys: int) -> float:
    found = run_spark("window", warmup_s=18, settle_s=3, seconds=SECONDS, keys=keys, providers=["heap"], windows=0)
    return float(found["heap"]["rows_per_s"])


def _into_page(points: list[Point]) -> None:
    rows = ["| what grows | | Weir, rows/s | Spark, rows/s | ratio |", "|---|---:|---:|---:|---:|"]
    rows += [f"| {' | '.join(point.cells)} |" for point in points]
    between_markers(PAGE, rows, BEGIN, END)


def plot(points: list[Point], caption: str, path: Path) -> None:
    """Draws a panel per sweep. Both axes are logarithmic: a power law is a straight line."""
    with canvas(len(SWEEPS), caption, path) as panels:
        for panel, sweep in zip(panels, SWEEPS, strict=True):
            _panel(panel, sweep, [point for point in points if point.sweep == sweep])


def _panel(panel: Any, sweep: str, points: list[Point]) -> None:
    at = [point.at for point in points]
    panel.plot(at, [point.weir / 1e6 for point in points], color=WEIR, marker="o", label="Weir")
    for point in points:
        panel.annotate(
            f"{point.weir / 1e6:.3g}",
            (point.at, point.weir / 1e6),
            fontsize=8,
            color=INK,
            ha="center",
            xytext=(0, 6),
            textcoords="offset points",
        )
    if all(point.spark is not None for point in points):
        panel.plot(at, [(point.spark or 0) / 1e6 for point in points], color=PEER, marker="o", label="Spark")
        panel.legend(fontsize=8, frameon=False, labelcolor=INK)
    panel.set_xscale("log", base=2 if sweep in ("slots", "rows in a batch") else 10)
    panel.set_yscale("log")
    highest = max(point.weir for point in points) / 1e6
    lowest = min(min(point.weir, point.spark or point.weir) for point in points) / 1e6
    panel.set_ylim(lowest / 2, highest * 2.5)
    panel.set_xticks(at, [f"{value:,}" for value in at], fontsize=8)
    panel.minorticks_off()
    panel.set_title(sweep, fontsize=10, color=INK, loc="left")
    panel.set_ylabel("million rows/s", fontsize=8, color=FAINT)


if __name__ == "__main__":
    main()
