"""How long a row takes from the source through one keyed exchange to the sink, at a steady rate."""

from __future__ import annotations

import json
import time

import numpy as np
import pyarrow as pa
from pyarrow import csv

from benchmarks.peer import run_spark
from benchmarks.peers import environments
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
    flink_p99, flink_note = _flink(say, rate, seconds + warmup_s)
    p99, columnar = (float(np.percentile(found, 99)) for found in (rows, columns))
    target = f"p99 ≤ {LIMIT_MS:g} ms"
    return [
        _result("latency_ms", "spark", p99, their_p99, note, target, rows),
        _result("latency_ms", "flink", p99, flink_p99, flink_note, "p99 ≤ Flink's", rows, limit_ms=flink_p99),
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
    limit_ms: float = LIMIT_MS,
) -> Result:
    ratio = None if theirs is None else theirs / p99
    percentiles = {f"p{p:g}": float(np.percentile(found, p)) for p in (50, 90, 99, 99.9, 100)}
    runs = {**percentiles, "limit": limit_ms}
    return Result(bench, peer, p99, theirs, "ms", ratio, note, target, p99 <= limit_ms, runs=runs)


def _flink(say: Say, rate: int, seconds: float) -> tuple[float, str]:
    """Flink SQL reads both clocks itself: when its generator makes a row, and behind a keyed OVER aggregate."""
    python, folder = environments.flink(say), fresh_folder("flink-latency")
    order = {"folder": str(folder), "backend": "hashmap", "rate": rate, "seconds": seconds, "buffer_timeout": "5 ms"}
    environments.run_peer(python, ["flink_sql.py", "latency", json.dumps(order)], folder, 180)
    names = ["made", "seen", "rows_of_key"]
    files = [path for path in (folder / "latencies").iterdir() if path.name[0] not in "._"]
    parts = [csv.read_csv(file, read_options=csv.ReadOptions(column_names=names)) for file in files]
    made, seen = (
        np.concatenate(
            [part.column(name).cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64()).to_numpy() for part in parts]
        )
        for name in ("made", "seen")
    )
    steady = made > made.min() + 5000
    found = (seen - made)[steady]
    spread = _spread(found)
    say(f"latency_ms: flink: {spread}")
    note = (
        f"Flink SQL, Java from end to end, over {len(found):,} rows ({spread}, in whole ms), at the same rate, "
        "buffer timeout 5 ms, a checkpoint every second: from when its generator makes a row, not from when it is due, "
        "to behind a keyed OVER aggregate. Weir: as in the line above, with a Python function per record"
    )
    return float(np.percentile(found, 99)), note


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
