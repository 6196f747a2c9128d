"""Measures tumbling windows, Weir and Spark in turn on the same rows, and checks that their results are the same."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.peer import run_spark
from benchmarks.processes import cpu_s
from benchmarks.report import Result, Say
from benchmarks.rows import KEYS, ROWS_PER_WINDOW, START_US, WINDOW_S, window_rows
from benchmarks.weir import WeirJob, committed_files, rate_between

PEERS = {"spark": "heap", "spark-rocksdb": "rocksdb"}
TARGET = 3.0


@dataclass(frozen=True)
class Sample:
    rows_per_s: float
    cpu_s_per_million_rows: float
    table: Path
    detail: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.rows_per_s / 1e6:.2f} M rows/s, {self.cpu_s_per_million_rows:.3f} CPU s per million rows"


def window(say: Say, rounds: int, weir_s: float, **spark_s: float) -> list[Result]:
    """Measures rows per second in steady state, Weir and Spark in turn, and returns medians of the rounds."""
    weir: list[Sample] = []
    peers: dict[str, list[Sample]] = {peer: [] for peer in PEERS}
    for turn in range(1, rounds + 1):
        weir.append(_weir(weir_s))
        say(f"window {turn}/{rounds}: weir {weir[-1]}")
        found = run_spark("window", **spark_s)
        for peer, provider in PEERS.items():
            peers[peer].append(_sample(found[provider]))
            say(f"window {turn}/{rounds}: {peer} {peers[peer][-1]}")
    results = []
    for peer, samples in peers.items():
        same = compare(weir[-1].table, samples[-1].table)
        say(f"window: weir and {peer} agree on all {KEYS:,} keys of {same} windows")
        results.append(_result(peer, weir, samples, same))
    return results


def _weir(seconds: float) -> Sample:
    with WeirJob("benchmarks.jobs:window") as job:
        job.wait_for("three checkpoints are complete", lambda: len(job.checkpoints()) >= 3)
        first, cpu, since = job.checkpoints()[-1], cpu_s(job.pids()), time.monotonic()
        time.sleep(seconds)
        cores = (cpu_s(job.pids()) - cpu) / (time.monotonic() - since)
        checkpoints = [c for c in job.checkpoints() if c.number >= first.number]
        job.check()
    last = checkpoints[-1]
    durations = {"checkpoint_ms": median(c.duration_ms for c in checkpoints), "state_bytes": last.state_bytes}
    rate = rate_between(first, last)
    return Sample(rate, cores / rate * 1e6, job.table("windows"), durations)


def _sample(found: dict[str, Any]) -> Sample:
    return Sample(found["rows_per_s"], found["cpu_s_per_million_rows"], Path(found["table"]), found)


def _result(peer: str, weir: list[Sample], samples: list[Sample], same: int) -> Result:
    ours, theirs = (median(sample.rows_per_s for sample in of) for of in (weir, samples))
    cpu, their_cpu = (median(sample.cpu_s_per_million_rows for sample in of) for of in (weir, samples))
    last = samples[-1].detail
    note = (
        f"medians of {len(weir)} run(s) each, in turn, start-up left out; Weir: rows between completed checkpoints, "
        f"one a second; Spark: micro-batches of {last['rows_per_batch'] / 1e6:g} M rows in {last['batch_s']:.1f} s, "
        f"each its checkpoint; CPU seconds per million rows: {cpu:.3f} against {their_cpu:.3f}; "
        f"both gave the same results for all {KEYS:,} keys of {same} windows"
    )
    runs = {"weir": [s.rows_per_s for s in weir], peer: [s.rows_per_s for s in samples]}
    ratio = ours / theirs
    return Result("window", peer, ours, theirs, "rows/s", ratio, note, f"≥ {TARGET:g}×", ratio >= TARGET, runs=runs)


# --- the same results ---


def compare(weir: Path, peer: Path) -> int:
    """Checks that both tables hold the same results for every window that both have; returns how many these are."""
    ours, theirs = _by_window(weir), _by_window(peer)
    common = sorted(ours.keys() & theirs.keys())
    if not common:
        raise RuntimeError("Weir and the peer have finished no window in common: nothing to compare")
    for start_us in common:
        if not ours[start_us].equals(theirs[start_us]):
            raise RuntimeError(f"Weir and the peer differ in the window that starts at {start_us} µs")
    _check_truth(ours[common[-1]], common[-1])
    return len(common)


def _by_window(table: Path) -> dict[int, pa.Table]:
    rows = pa.concat_tables([pq.ParquetFile(file).read() for file in committed_files(table)])
    starts = rows.column("window_start").cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    columns = {name: rows.column(name).cast(pa.int64()) for name in ("key", "count", "total")}
    flat = pa.table({"start": starts, **columns}, schema=_FLAT).sort_by([("start", "ascending"), ("key", "ascending")])
    values = flat.column("start").to_numpy()
    edges = np.flatnonzero(np.diff(values, prepend=-1, append=-1))
    return {int(values[at]): flat.slice(at, to - at).drop(["start"]) for at, to in pairwise(edges)}


_FLAT = pa.schema([(name, pa.int64()) for name in ("start", "key", "count", "total")])


def _check_truth(window: pa.Table, start_us: int) -> None:
    """Checks a window against numpy, from the row numbers alone."""
    first = (start_us - START_US) // (WINDOW_S * 1_000_000) * ROWS_PER_WINDOW
    rows = window_rows(np.arange(first, first + ROWS_PER_WINDOW))
    counts = np.bincount(rows["key"], minlength=KEYS)
    totals = np.bincount(rows["key"], weights=rows["value"], minlength=KEYS)
    right = len(window) == KEYS and bool((window["count"].to_numpy() == counts).all())
    if not right or not (window["total"].to_numpy() == totals).all():
        raise RuntimeError(f"the window that starts at {start_us} µs is wrong in both tables")
