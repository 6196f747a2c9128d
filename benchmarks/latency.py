"""How long a row takes from the source through one keyed exchange to the sink, at a steady rate."""

from __future__ import annotations

import time

import numpy as np

from benchmarks.peer import run_spark
from benchmarks.report import Result, Say
from benchmarks.weir import WeirJob, fresh_folder

LIMIT_MS = 20.0


def latency(say: Say, rate: int, warmup_s: float, seconds: float, spark_s: float) -> list[Result]:
    """Counted from the moment at which the rate makes a row due; checkpoints every second, exactly once."""
    rows = _weir("latency_rows", rate, warmup_s, seconds)
    say(f"latency_ms: weir, row lane: {_spread(rows)}")
    columns = _weir("latency_columns", rate, warmup_s, seconds)
    say(f"latency_ms: weir, columnar lane: {_spread(columns)}")
    spark = run_spark("latency", rate=rate, warmup_s=spark_s, seconds=spark_s)
    their_p99 = spark["p99_ms"]
    theirs = f"p50 {spark['p50_ms']:.0f} ms, p99 {their_p99:.0f} ms, max {spark['max_ms']:.0f} ms"
    say(f"latency_ms: spark: {theirs}")
    note = (
        f"p99 at {rate:,} rows/s over {len(rows):,} rows ({_spread(rows)}): from when the rate makes a row due, "
        "through a keyed exchange and a Python function with keyed state, to the sink; a checkpoint every second. "
        f"Spark the same way: rows over a socket, count per key in update mode, each micro-batch right after the last, "
        f"{spark['batch_ms']:.0f} ms each ({theirs})"
    )
    columnar_note = (
        f"p99 at {rate:,} rows/s ({_spread(columns)}): columnar count per key in windows of 10 ms, from the end of a "
        "window to its result at the sink"
    )
    p99, columnar = (float(np.percentile(found, 99)) for found in (rows, columns))
    target = f"p99 ≤ {LIMIT_MS:g} ms"
    return [
        _result("latency_ms", "spark", p99, their_p99, note, target, rows),
        _result("latency_columnar_ms", None, columnar, None, columnar_note, target, columns),
    ]


def _result(
    bench: str,
    peer: str | None,
    p99: float,
    theirs: float | None,
    note: str,
    target: str,
    found: np.ndarray,
) -> Result:
    ratio = None if theirs is None else theirs / p99
    percentiles = {f"p{p:g}": float(np.percentile(found, p)) for p in (50, 90, 99, 99.9, 100)}
    runs = {**percentiles, "limit": LIMIT_MS}
    return Result(bench, peer, p99, theirs, "ms", ratio, note, target, p99 <= LIMIT_MS, runs=runs)


def _weir(name: str, rate: int, warmup_s: float, seconds: float) -> np.ndarray:
    """Milliseconds, of every row that reached the sink after the warm-up."""
    folder = fresh_folder(f"latencies-{name}")
    with WeirJob(f"benchmarks.jobs:{name}", rate=rate, folder=folder) as job:
        time.sleep(warmup_s)
        before = set(folder.iterdir())
        time.sleep(seconds)
        files = set(folder.iterdir()) - before
        job.check()
    if not files:
        raise RuntimeError(f"{name}: no latency was recorded in {seconds} s")
    return np.concatenate([np.load(file) for file in sorted(files)]) / 1000


def _spread(found: np.ndarray) -> str:
    return ", ".join(f"{name} {np.percentile(found, p):.1f} ms" for name, p in _SHOWN)


_SHOWN = (("p50", 50), ("p99", 99), ("p99.9", 99.9), ("max", 100))
