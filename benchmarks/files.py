"""Measures the window job on Parquet files beside Flink SQL: same files, same results, a checkpoint every second."""

from __future__ import annotations

import json
import os
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.peers import environments
from benchmarks.report import Result, Say
from benchmarks.rows import BOUND_S, STEP_US, WINDOW_S, window_rows
from benchmarks.weir import WeirJob, fresh_folder, rate_between
from benchmarks.window import compare

PEERS = {"flink": "hashmap", "flink-rocksdb": "rocksdb"}
TARGET = 20.0
ROWS_PER_FILE = 5_000_000


def window_files(say: Say, files: int, flink_files: int) -> list[Result]:
    """Measures Weir on all files, before, between and after its peers, and Flink on a few: all would take minutes."""
    python = environments.flink(say)
    folder = _write(files)
    say(f"window_files: {files * ROWS_PER_FILE:,} rows in {files} Parquet files")
    few = fresh_folder("few-files")
    for file in sorted(folder.iterdir())[:flink_files]:
        os.link(file, few / file.name)
    rates = [_weir(say, folder)[0]]
    measured: dict[str, tuple[float, int]] = {}
    for peer in PEERS:
        seconds, theirs = _flink(python, peer, few, flink_files)
        say(f"window_files: {peer} {flink_files * ROWS_PER_FILE / seconds / 1e6:.2f} M rows/s")
        rate, ours = _weir(say, folder)
        rates.append(rate)
        measured[peer] = seconds, compare(ours, theirs)
    return [_result(peer, rates, files, flink_files, *measured[peer]) for peer in PEERS]


def _result(peer: str, rates: list[float], files: int, flink_files: int, seconds: float, same: int) -> Result:
    ours, theirs = median(rates), flink_files * ROWS_PER_FILE / seconds
    note = (
        f"the same Parquet files (key, value, ts; {ROWS_PER_FILE:,} rows each), tumbling windows of {WINDOW_S} s, "
        f"a checkpoint every second, two cores; Weir: {files} files, between completed checkpoints, the median of "
        f"{len(rates)} runs; Flink SQL ({PEERS[peer]} state, net run time of the job): {flink_files} files in "
        f"{seconds:.1f} s; both gave the same results for {same} windows"
    )
    ratio, target = ours / theirs, f"≥ {TARGET:g}×"
    runs = {"weir": rates}
    return Result("window_files", peer, ours, theirs, "rows/s", ratio, note, target, ratio >= TARGET, runs=runs)


def _flink(python: Path, peer: str, rows: Path, files: int) -> tuple[float, Path]:
    """Returns the net run time of Flink's job, and its table.

    Flink hands files out in any order and dropped half a window as late, so its bound covers all of event time.
    """
    work, bound_s = fresh_folder(peer), BOUND_S + files * ROWS_PER_FILE * STEP_US // 1_000_000
    order = {"folder": str(work), "backend": PEERS[peer], "rows": str(rows), "bound_s": bound_s, "window_s": WINDOW_S}
    said = environments.run_peer(python, ["flink_sql.py", json.dumps(order)], work, 240)
    return environments.result_of(said)["seconds"], work / "table"


def _weir(say: Say, folder: Path) -> tuple[float, Path]:
    with WeirJob("benchmarks.jobs:window_files", rows=folder) as job:
        job.wait_until_ended()
        job.check()
        checkpoints = [c for c in job.checkpoints() if c.rows]
    rate = rate_between(checkpoints[0], checkpoints[-1])
    say(f"window_files: weir {rate / 1e6:.2f} M rows/s")
    return rate, job.table("windows")


def _write(files: int) -> Path:
    folder = fresh_folder("parquet")
    for number in range(files):
        columns = window_rows(np.arange(number * ROWS_PER_FILE, (number + 1) * ROWS_PER_FILE))
        stamps = pa.array(columns["ts"]).cast(pa.timestamp("us"))
        table = pa.table({"key": columns["key"], "value": columns["value"], "ts": stamps})
        pq.write_table(table, folder / f"{number:04d}.parquet", row_group_size=1_000_000)
    return folder
