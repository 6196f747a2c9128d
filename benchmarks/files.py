"""The window job on Parquet files, beside Flink SQL: the same files, the same results, a checkpoint every second."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.peers import environments
from benchmarks.report import Result, Say
from benchmarks.rows import BOUND_S, WINDOW_S, window_rows
from benchmarks.weir import WeirJob, fresh_folder, rate_between
from benchmarks.window import compare

PEERS = {"flink": "hashmap", "flink-rocksdb": "rocksdb"}
TARGET = 20.0
ROWS_PER_FILE = 5_000_000


def window_files(say: Say, files: int, flink_files: int) -> list[Result]:
    """Weir reads all of the files; Flink, which would take minutes, the first few of them."""
    python = environments.flink(say)
    folder = _write(files)
    say(f"window_files: {files * ROWS_PER_FILE:,} rows in {files} Parquet files")
    few = fresh_folder("few-files")
    for file in sorted(folder.iterdir())[:flink_files]:
        os.link(file, few / file.name)
    ours, table = _weir(folder)
    say(f"window_files: weir {ours / 1e6:.2f} M rows/s")
    results = []
    for peer, backend in PEERS.items():
        work = fresh_folder(peer)
        order = {"folder": str(work), "backend": backend, "rows": str(few), "bound_s": BOUND_S, "window_s": WINDOW_S}
        said = environments.run_peer(python, ["flink_sql.py", json.dumps(order)], work, 240)
        seconds = environments.result_of(said)["seconds"]
        theirs = flink_files * ROWS_PER_FILE / seconds
        same = compare(table, work / "table")
        say(f"window_files: {peer} {theirs / 1e6:.2f} M rows/s; both agree on {same} windows")
        note = (
            f"the same Parquet files (key, value, ts; {ROWS_PER_FILE:,} rows each), tumbling windows of {WINDOW_S} s, "
            f"a checkpoint every second, two cores; Weir: {files} files, between completed checkpoints; Flink SQL "
            f"({backend} state, net run time of the job): {flink_files} files in {seconds:.1f} s; both gave the same "
            f"results for {same} windows"
        )
        reached = ours / theirs >= TARGET
        results.append(
            Result("window_files", peer, ours, theirs, "rows/s", ours / theirs, note, f"≥ {TARGET:g}×", reached)
        )
    return results


def _weir(folder: Path) -> tuple[float, Path]:
    with WeirJob("benchmarks.jobs:window_files", rows=folder) as job:
        job.wait_until_ended()
        job.check()
        checkpoints = [c for c in job.checkpoints() if c.rows]
    return rate_between(checkpoints[0], checkpoints[-1]), job.table("windows")


def _write(files: int) -> Path:
    folder = fresh_folder("parquet")
    for number in range(files):
        columns = window_rows(np.arange(number * ROWS_PER_FILE, (number + 1) * ROWS_PER_FILE))
        stamps = pa.array(columns["ts"]).cast(pa.timestamp("us"))
        table = pa.table({"key": columns["key"], "value": columns["value"], "ts": stamps})
        pq.write_table(table, folder / f"{number:04d}.parquet", row_group_size=1_000_000)
    return folder
