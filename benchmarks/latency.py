"""Measures how long a row takes from the source through one keyed exchange to the sink, at a steady rate."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from benchmarks.peer import run_spark
from benchmarks.peers import environments
from benchmarks.report import Result, Say
from benchmarks.weir import WeirJob, fresh_folder

LIMIT_MS = 20.0
FLINK_BUFFER_TIMEOUT_MS = 0
"""Flink sends each row at once: its best setting here. See docs/benchmarks.md."""


def latency(say: Say, rate: int, warmup_s: float, seconds: float, peer_s: int) -> list[Result]:
    """Measures latency from the moment at which the rate makes a row due, exactly once, checkpoints every second.

    Each peer is warmed up for `peer_s` seconds, and then measured for the same time.
    """
    rows = _weir("latency_rows", rate, warmup_s, seconds)
    say(f"latency_ms: weir, row lane: {_spread(rows)}")
    columns = _weir("latency_columns", rate, warmup_s, seconds)
    say(f"latency_ms: weir, columnar lane: {_spread(columns)}")
    ours = (
        f"p99 at {rate:,} rows/s over {len(rows):,} rows ({_spread(rows)}): from when the rate makes a row due, "
        "through a keyed exchange and a Python function with keyed state, to the sink; a checkpoint every second"
    )
    return [
        *_beside_flink(say, rate, peer_s, rows, ours),
        _beside_spark(say, rate, peer_s, rows, ours),
        _columnar(rate, columns),
    ]


def _beside_flink(say: Say, rate: int, peer_s: int, rows: np.ndarray, ours: str) -> list[Result]:
    javac = environments.find_javac()
    if javac is None:
        say("latency_ms: Flink is left out: there is no javac on PATH (Debian: apt install openjdk-17-jdk-headless)")
        return []
    folder = fresh_folder("flink-latency")
    arguments = [str(folder), str(rate), str(peer_s), str(peer_s), str(FLINK_BUFFER_TIMEOUT_MS)]
    environments.run_flink_job(say, javac, "LatencyJob", arguments, folder, patience_s=60 + 4 * peer_s)
    return [flink_result(rows, flink_latencies(folder), ours, say)]


def flink_latencies(folder: Path) -> np.ndarray:
    """Returns the latency, in milliseconds, of every row that was due after the warm-up."""
    files = sorted(folder.glob("*.latencies"))
    if not files:
        raise RuntimeError(f"Flink recorded no latency in {folder}")
    return np.concatenate([np.fromfile(file, "<i8") for file in files]) / 1000


def flink_result(rows: np.ndarray, theirs: np.ndarray, ours: str, say: Say) -> Result:
    say(f"latency_ms: flink: {_spread(theirs)}")
    note = (
        f"{ours}. Flink the same way, in Java: a DataStream job with a `KeyedProcessFunction` and `ValueState` on the "
        f"heap, two slots in one JVM, buffer timeout {FLINK_BUFFER_TIMEOUT_MS} ms ({len(theirs):,} rows: "
        f"{_spread(theirs)})"
    )
    p99, their_p99 = _p99(rows), _p99(theirs)
    runs = {**_percentiles(rows), "flink": _percentiles(theirs)}
    return Result(
        "latency_ms", "flink", p99, their_p99, "ms", their_p99 / p99, note, "p99 ≤ Flink's", p99 <= their_p99, runs=runs
    )


def _beside_spark(say: Say, rate: int, peer_s: int, rows: np.ndarray, ours: str) -> Result:
    spark = run_spark("latency", rate=rate, warmup_s=peer_s, seconds=peer_s)
    their_p99 = spark["p99_ms"]
    theirs = f"p50 {spark['p50_ms']:.0f} ms, p99 {their_p99:.0f} ms, max {spark['max_ms']:.0f} ms"
    say(f"latency_ms: spark: {theirs}")
    note = (
        f"{ours}. Spark the same way: rows over a socket, count per key in update mode, each micro-batch right after "
        f"the last, {spark['batch_ms']:.0f} ms each ({theirs})"
    )
    return _limited("latency_ms", "spark", rows, their_p99, note)


def _columnar(rate: int, columns: np.ndarray) -> Result:
    note = (
        f"p99 at {rate:,} rows/s ({_spread(columns)}): columnar count per key in windows of 10 ms, from the end of a "
        "window to its result at the sink"
    )
    return _limited("latency_columnar_ms", None, columns, None, note)


def _limited(bench: str, peer: str | None, found: np.ndarray, theirs: float | None, note: str) -> Result:
    p99 = _p99(found)
    ratio = None if theirs is None else theirs / p99
    runs = {**_percentiles(found), "limit": LIMIT_MS}
    return Result(bench, peer, p99, theirs, "ms", ratio, note, f"p99 ≤ {LIMIT_MS:g} ms", p99 <= LIMIT_MS, runs=runs)


def _weir(name: str, rate: int, warmup_s: float, seconds: float) -> np.ndarray:
    """Returns the latency, in milliseconds, of every row that reached the sink after the warm-up."""
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


def _p99(found: np.ndarray) -> float:
    return float(np.percentile(found, 99))


def _percentiles(found: np.ndarray) -> dict[str, float]:
    return {f"p{p:g}": float(np.percentile(found, p)) for p in (50, 90, 99, 99.9, 100)}


def _spread(found: np.ndarray) -> str:
    return ", ".join(f"{name} {np.percentile(found, p):.1f} ms" for name, p in _SHOWN)


_SHOWN = (("p50", 50), ("p99", 99), ("p99.9", 99.9), ("max", 100))
