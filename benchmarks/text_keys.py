"""Measures tumbling windows over text keys on Parquet files beside one batch of Polars on the same files.

Polars has no checkpoints, no event time and no exchange: its batch says what the reading and grouping cost by
themselves. `python -m benchmarks.text_keys FOLDER TABLE` is that batch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.report import Result, Say
from benchmarks.rows import START_US, STEP_US, WINDOW_S, many_keys_of, mix
from benchmarks.weir import WeirJob, committed_files, fresh_folder, rate_between

TARGET = 0.8
ROWS_PER_FILE = 5_000_000
KEYS = (100_000, 10_000)


def text_keys(say: Say, files: int, rounds: int) -> list[Result]:
    """Measures Weir and Polars in turn, with each number of distinct keys."""
    return [_measured(say, files, rounds, keys) for keys in KEYS]


def _measured(say: Say, files: int, rounds: int, keys: int) -> Result:
    folder = _write(files, keys)
    rates: list[float] = []
    batches: list[float] = []
    for turn in range(1, rounds + 1):
        rate, ours = _weir(folder)
        rates.append(rate)
        table = fresh_folder("polars")
        batches.append(files * ROWS_PER_FILE / _polars(folder, table))
        say(f"text_keys {turn}/{rounds}: {keys:,} keys: weir {rate / 1e6:.2f}, polars {batches[-1] / 1e6:.2f} M rows/s")
    same = _compared(ours, table)
    note = (
        f"the same {files} Parquet files of {ROWS_PER_FILE:,} rows ({keys:,} text keys, a double, a timestamp), "
        f"windows of {WINDOW_S} s with count and sum, two cores; Weir with a checkpoint every second, between "
        f"completed checkpoints; Polars: one batch, with its own two threads, no checkpoints and no event time; "
        f"medians of {rounds} runs in turn; both gave the same results for {same} windows"
    )
    weir, polars = median(rates), median(batches)
    name, ratio = f"text_keys_{keys}", weir / polars
    runs = {"weir": rates, "polars": batches}
    return Result(name, "polars", weir, polars, "rows/s", ratio, note, f"≥ {TARGET:g}×", ratio >= TARGET, runs=runs)


def _weir(folder: Path) -> tuple[float, Path]:
    with WeirJob("benchmarks.jobs:text_keys", rows=folder) as job:
        job.wait_until_ended()
        job.check()
        checkpoints = [c for c in job.checkpoints() if c.rows]
    return rate_between(checkpoints[0], checkpoints[-1]), job.table("windows")


def _polars(folder: Path, table: Path) -> float:
    command = [sys.executable, "-m", "benchmarks.text_keys", str(folder), str(table)]
    environ = {**os.environ, "POLARS_MAX_THREADS": "2"}
    run = subprocess.run(command, stdout=subprocess.PIPE, env=environ, timeout=300, check=True)
    return float(json.loads(run.stdout)["seconds"])


def _batch(folder: Path, table: Path) -> float:
    """Returns the time of the batch, without the start of its process."""
    began = time.perf_counter()
    grouped = pl.scan_parquet(folder / "*.parquet").group_by(pl.col("ts").dt.truncate(f"{WINDOW_S}s"), "key")
    result = grouped.agg(count=pl.len().cast(pl.Int64), total=pl.col("value").sum())
    shaped = result.select("key", "count", "total", window_start="ts")
    shaped.collect(engine="streaming").write_parquet(table / "all.parquet")
    return time.perf_counter() - began


def _compared(weir: Path, polars: Path) -> int:
    """Checks that both have the same results; returns the number of windows. The sums are of whole numbers: exact."""
    ours, theirs = (
        pl.read_parquet(files).select("key", "count", "total", "window_start").sort("window_start", "key")
        for files in (list(committed_files(weir)), [polars / "all.parquet"])
    )
    ours = ours.with_columns(pl.col("window_start").dt.replace_time_zone(None).cast(pl.Datetime("us")))
    if not ours.equals(theirs):
        raise RuntimeError("Weir and Polars differ")
    return ours["window_start"].n_unique()


def _write(files: int, keys: int) -> Path:
    folder = fresh_folder("text")
    names = pa.array([f"user-{number:09d}@example.org" for number in range(keys)])
    for number in range(files):
        n = np.arange(number * ROWS_PER_FILE, (number + 1) * ROWS_PER_FILE)
        mixed = mix(n)
        stamps = pa.array(n * STEP_US + START_US).cast(pa.timestamp("us"))
        key, value = names.take(pa.array(many_keys_of(mixed, keys))), (mixed & 1023).astype(np.float64)
        table = pa.table({"key": key, "value": value, "ts": stamps})
        pq.write_table(table, folder / f"{number:04d}.parquet", row_group_size=1_000_000)
    return folder


if __name__ == "__main__":
    seconds = _batch(Path(sys.argv[1]), Path(sys.argv[2]))
    print(json.dumps({"seconds": seconds}))
