"""`python -m benchmarks.run [--quick] [--only BENCH …]`: measures, prints the table, writes benchmarks/results/.

Benchmarks are not tests: a target that is not reached stands in the table with a "no".
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
from rich.console import Console
from rich.markup import escape

from benchmarks import report
from benchmarks.checkpoints import checkpoint_cost
from benchmarks.files import window_files
from benchmarks.inflight import in_flight
from benchmarks.latency import latency
from benchmarks.memory import memory
from benchmarks.nexmark.bench import nexmark
from benchmarks.processes import Neighbours
from benchmarks.recovery import recovery
from benchmarks.report import Result, Say
from benchmarks.rescale import rescale
from benchmarks.rowlane import row_lane
from benchmarks.savepoint import savepoint
from benchmarks.scale import scale
from benchmarks.sliding import sliding
from benchmarks.table_log import table_log
from benchmarks.takeover import takeover
from benchmarks.tenfold import growth
from benchmarks.text_keys import text_keys
from benchmarks.timed.bench import timed
from benchmarks.timers import timers
from benchmarks.weir import WORK
from benchmarks.window import window

Bench = Callable[[Say], list[Result]]

QUICK: dict[str, Bench] = {
    "window": lambda say: window(say, rounds=1, weir_s=7, warmup_s=18, settle_s=2, seconds=6),
    "timers": lambda say: timers(say, seconds=5),
    "sliding_rows": lambda say: sliding(say, rounds=1, seconds=5),
    "growth": lambda say: growth(say, seconds=4),
    "timed": lambda say: timed(say, count=500_000, rounds=1),
    "text_keys": lambda say: text_keys(say, files=2, rounds=1),
    "nexmark": lambda say: nexmark(say, count=500_000, rounds=1),
}
FULL: dict[str, Bench] = {
    "window": lambda say: window(say, rounds=3, weir_s=12, warmup_s=25, settle_s=4, seconds=10),
    "checkpoint_cost": lambda say: checkpoint_cost(say, pairs=6, phase_s=6),
    "latency_ms": lambda say: latency(say, rate=10_000, warmup_s=5, seconds=12, peer_s=12),
    "window_files": lambda say: window_files(say, files=20, flink_files=4),
    "text_keys": lambda say: text_keys(say, files=36, rounds=3),
    "row_lane": lambda say: row_lane(say, weir_s=10, bytewax_rows=2_000_000, flink_rows=60_000),
    "timers": lambda say: timers(say, seconds=15),
    "sliding_rows": lambda say: sliding(say, rounds=3, seconds=10),
    "growth": lambda say: growth(say, seconds=10),
    "recovery_s": lambda say: recovery(say, kills=10, bare_kills=5, rate=200_000),
    "takeover": lambda say: takeover(say, kills=5, rate=20_000),
    "memory_stuck_sink": lambda say: memory(say, seconds=60),
    "rescale": lambda say: rescale(say, megabytes=100, rounds=3),
    "savepoint": lambda say: savepoint(say, megabytes=1000, rounds=3, rate=100_000),
    "nexmark": lambda say: nexmark(say, count=10_000_000, rounds=3),
    "timed": lambda say: timed(say, count=10_000_000, rounds=3),
    "in_flight": lambda say: in_flight(say, seconds=30),
    "scale": scale,
    "table_log": table_log,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--quick", action="store_true", help="measure only the window ratio, or what --only names, in short"
    )
    parser.add_argument("--only", nargs="+", choices=list(FULL), help="run only these benches")
    options = parser.parse_args()
    console = Console()
    # With this `kill`, like Ctrl-C, leaves through the `with` blocks, which end the processes that were started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    started = time.monotonic()
    chosen = _chosen(options.quick, options.only)
    busy = os.getloadavg()[0]
    if busy > 0.75 * (os.cpu_count() or 1):
        console.print(f"[yellow]The machine is busy (load {busy:.1f}): the ratios will be rough.[/yellow]")

    def say(line: str) -> None:
        console.print(f"[dim]{time.monotonic() - started:4.0f} s[/dim]  {line}", highlight=False)

    try:
        lines, broken = _measure(chosen, say)
    finally:
        shutil.rmtree(WORK, ignore_errors=True)
    if lines:
        report.show(lines, console)
        console.print(f"Written to {report.RESULTS}/latest.json and latest.png, in {time.monotonic() - started:.0f} s.")
    sys.exit(1 if broken else 0)


def _chosen(quick: bool, only: list[str] | None) -> dict[str, Bench]:
    """Returns the benches to run. A quick run measures the window ratio; a bench without a short form runs in full."""
    if not quick:
        return {name: FULL[name] for name in only or FULL}
    return {name: QUICK.get(name, FULL[name]) for name in only or ["window"]}


def _measure(chosen: dict[str, Bench], say: Say) -> tuple[list[dict[str, Any]], bool]:
    """Runs the benches one after the other; returns all lines, and whether a bench could not be measured."""
    lines: list[dict[str, Any]] = []
    broken = False
    for name, bench in chosen.items():
        try:
            with Neighbours() as neighbours:
                results = bench(say)
        except (RuntimeError, TimeoutError, OSError, httpx.HTTPError) as error:
            say(f"[red]{name} could not be measured:[/red] {escape(str(error))}")
            broken = True
        else:
            lines = report.write([replace(result, others_cores=neighbours.cores) for result in results])
    return lines, broken


if __name__ == "__main__":
    main()
