"""Measures sliding and session windows, joins and top 3: Weir beside Flink SQL and Spark on the same files.

Each result is compared row by row; a difference is an error.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median

import polars as pl

from benchmarks.peers import environments
from benchmarks.report import Result, Say
from benchmarks.timed import flink, rows
from benchmarks.weir import WeirJob, committed_files, fresh_folder

TARGETS = {"sliding": 10.0, "session": 10.0, "window_join": 5.0, "interval_join": 5.0, "top_three": 10.0}
SPARK = {"sliding": 3.0, "session": 3.0}
FEW = 100_000


def timed(say: Say, count: int, rounds: int) -> list[Result]:
    """Measures each query in turn: Weir, Flink SQL, and Spark for windows."""
    folder = fresh_folder("timed")
    rows.write(folder, count)
    few = pl.scan_parquet(folder / "left" / "0.parquet").head(FEW).collect()
    (folder / "few").mkdir()
    few.write_parquet(folder / "few" / "0.parquet")
    python = environments.flink(say)
    return [result for query in TARGETS for result in _query(say, python, query, folder, count, rounds)]


def _query(say: Say, python: Path, query: str, folder: Path, count: int, rounds: int) -> list[Result]:
    read = count * 2 if query.endswith("join") else count
    runs = []
    for _ in range(rounds):
        seconds, ours = _weir(query, folder)
        runs.append(read / seconds)
    peers = {"flink": (TARGETS[query], *_flink(python, query, folder))}
    if query in SPARK:
        peers["spark"] = (SPARK[query], *_spark(query, folder))
    results = []
    for peer, (target, their_s, theirs) in peers.items():
        same = _compare(query, peer, ours, theirs)
        rate, other = median(runs), read / their_s
        ratio = rate / other
        say(f"timed {query}: weir {rate / 1e6:.2f} M rows/s, {peer} {other / 1e6:.2f} M rows/s: {ratio:.1f}×")
        note = (
            f"{read:,} rows in Parquet files ({rows.KEYS:,} keys), two cores; Weir: a checkpoint every second, from "
            f"the running job to its end, the median of {rounds} runs; {_how(peer)}; both gave the same {same:,} rows"
        )
        reached = ratio >= target
        of = {"weir": runs}
        results.append(Result(query, peer, rate, other, "rows/s", ratio, note, f"≥ {target:g}×", reached, runs=of))
    return results


def _how(peer: str) -> str:
    if peer == "spark":
        return "Spark: one micro-batch in a warm JVM, state on the heap"
    return "Flink SQL: a checkpoint every second, state on the heap, net run time of the job"


def _weir(query: str, folder: Path) -> tuple[float, pl.DataFrame]:
    with WeirJob(f"benchmarks.timed.queries:{query}", rows=folder) as job:
        seconds = job.seconds_to_its_end()
    return seconds, pl.read_parquet(list(committed_files(job.table("out"))))


def _flink(python: Path, query: str, folder: Path) -> tuple[float, pl.DataFrame]:
    work = fresh_folder(f"flink-{query}")
    columns, select = flink.QUERIES[query]
    order = {
        "folder": str(work),
        "tables": {f"`{name}`": (str(folder / name), flink.FIELDS) for name in rows.STREAMS},
        "time": "ts",
        "views": [],
        "columns": columns,
        "select": select,
        "updating": False,
    }
    said = environments.run_peer(python, ["flink_query.py", json.dumps(order)], work, 600)
    return environments.result_of(said)["seconds"], pl.read_parquet(list(committed_files(work / "table")))


def _spark(query: str, folder: Path) -> tuple[float, pl.DataFrame]:
    work = fresh_folder(f"spark-{query}")
    command = ["-m", "benchmarks.timed.spark", str(work), query, str(folder)]
    root = Path(__file__).parent.parent.parent
    environments.run_peer(Path(sys.executable), command, work, 600, PYTHONPATH=str(root))
    seconds = json.loads((work / "result.json").read_text())["seconds"]
    return seconds, pl.read_parquet(list(committed_files(work / "table")))


def _compare(query: str, peer: str, ours: pl.DataFrame, theirs: pl.DataFrame) -> int:
    """Returns how many rows both have; raises an error if they differ.

    Windows that are open at the end of the input do not fire in Spark.
    """
    mine, other = _canonical(ours), _canonical(theirs)
    if peer == "spark":
        mine = mine.filter(pl.col("window_end") <= other["window_end"].max())
    if not mine.height or not mine.equals(other):
        raise RuntimeError(f"timed {query}: Weir has {mine.height:,} rows, {peer} {other.height:,}, and they differ")
    return mine.height


def _canonical(table: pl.DataFrame) -> pl.DataFrame:
    if "top" in table.columns:
        table = table.explode("top").unnest("top")
    stamps = pl.selectors.datetime()
    plain = table.with_columns(stamps.dt.replace_time_zone(None).dt.cast_time_unit("ms"))
    return plain.select(sorted(plain.columns)).sort(sorted(plain.columns))
