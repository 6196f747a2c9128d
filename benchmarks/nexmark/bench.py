"""Measures Nexmark's queries, Weir beside Flink SQL on the same files, and checks that their results are the same."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.nexmark import events, flink
from benchmarks.peers import environments
from benchmarks.report import Result, Say
from benchmarks.weir import WeirJob, committed_files, fresh_folder

QUERIES = ["q0", "q1", "q2", "q3", "q4", "q5", "q7", "q8", "q11", "q12"]
UPDATING = ("q4",)
"""Their newest row per key is the result."""
CLOCKED = "q12"
"""Its windows are those of the clock, so no two runs have the same: each bidder's bids are compared with the input."""
TARGET = 10.0


def nexmark(say: Say, count: int, rounds: int) -> list[Result]:
    """Measures each query in turn: Weir, Flink SQL, and Weir again for the other rounds."""
    folder = fresh_folder("nexmark")
    events.write(folder, count)
    size = sum(file.stat().st_size for file in folder.rglob("*.parquet"))
    say(f"nexmark: {count:,} events in {size / 1e6:.0f} MB of Parquet files")
    python = environments.flink(say)
    results = [_query(say, python, query, folder, count, rounds) for query in QUERIES]
    return [*results, _mean(results)]


def _query(say: Say, python: Path, query: str, folder: Path, count: int, rounds: int) -> Result:
    runs = []
    for _ in range(rounds):
        seconds, ours = _weir(query, folder)
        runs.append(count / seconds)
    their_s, theirs = _flink(python, query, folder)
    same = _counted(folder, ours, theirs) if query == CLOCKED else _compare(query, ours, theirs)
    rate, peer = median(runs), count / their_s
    say(f"nexmark {query}: weir {rate / 1e6:.2f} M events/s, flink {peer / 1e6:.2f} M events/s: {rate / peer:.1f}×")
    note = (
        f"{count:,} events in two Parquet files of each kind, a checkpoint every second, two cores, from the running "
        f"job to its end; Weir: the median of {rounds} runs; both {same}"
    )
    ratio = rate / peer
    reached = ratio >= TARGET
    return Result(
        f"nexmark_{query}", "flink", rate, peer, "rows/s", ratio, note, f"≥ {TARGET:g}×", reached, runs={"weir": runs}
    )


def _mean(results: list[Result]) -> Result:
    ratios = [result.ratio for result in results if result.ratio is not None]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    note = f"geometric mean of the ratios of {len(ratios)} queries; q6 can't be run by Flink SQL"
    return Result("nexmark", "flink", mean, 1.0, "×", mean, note, f"≥ {TARGET:g}×", mean >= TARGET)


def _weir(query: str, folder: Path) -> tuple[float, pa.Table]:
    with WeirJob(f"benchmarks.nexmark.queries:{query}", events=folder) as job:
        seconds = job.seconds_to_its_end()
    return seconds, _read(committed_files(job.table("out")))


def _flink(python: Path, query: str, folder: Path) -> tuple[float, pa.Table]:
    work = fresh_folder(f"flink-{query}")
    columns, select = flink.QUERIES[query]
    order = {
        "folder": str(work),
        "tables": {name: (str(folder / name), fields) for name, fields in flink.TABLES.items()},
        "time": "date_time",
        "views": [flink.CLOCKED] if query == CLOCKED else [],
        "columns": columns,
        "select": select,
        "updating": query in UPDATING,
    }
    said = environments.run_peer(python, ["flink_query.py", json.dumps(order)], work, 600)
    seconds = environments.result_of(said)["seconds"]
    return seconds, _printed(said) if query in UPDATING else _read(committed_files(work / "table"))


def _read(files: Iterator[Path]) -> pa.Table:
    return pa.concat_tables([pq.ParquetFile(file).read() for file in files])


def _printed(said: str) -> pa.Table:
    """Returns the rows that were added and not removed again, from the log of Flink's changes."""
    rows = re.findall(r"\+[IU]\[(\d+), ([\d.E]+), (\d+)\]", said)
    return pa.table(
        {
            "category": pa.array([int(category) for category, _, _ in rows]),
            "average": pa.array([float(average) for _, average, _ in rows]),
            "auctions": pa.array([int(auctions) for _, _, auctions in rows]),
        }
    )


def _compare(query: str, ours: pa.Table, theirs: pa.Table) -> str:
    """Says how many rows both have. Raises an error if they differ."""
    mine, other = (_canonical(query, table) for table in (ours, theirs))
    if mine.column_names != other.column_names:
        raise RuntimeError(f"nexmark {query}: Weir has {mine.column_names}, Flink {other.column_names}")
    if not mine.equals(other):
        raise RuntimeError(
            f"nexmark {query}: Weir has {mine.num_rows:,} rows, Flink {other.num_rows:,}, and they differ"
        )
    if not mine.num_rows:
        raise RuntimeError(f"nexmark {query}: there are no results to compare")
    return f"gave the same {mine.num_rows:,} rows"


def _counted(folder: Path, ours: pa.Table, theirs: pa.Table) -> str:
    """Checks that nobody counted a bid that is not there. Windows that are open at the end of the input do not fire."""
    read = pa.concat_tables([pq.read_table(file, columns=["bidder"]) for file in sorted((folder / "bid").iterdir())])
    there = read.group_by("bidder").aggregate([("bidder", "count")])
    shares = []
    for table in (ours, theirs):
        counted = table.group_by("bidder").aggregate([("bids", "sum")]).join(there, "bidder")
        if pc.any(pc.greater(counted["bids_sum"], counted["bidder_count"])).as_py():
            raise RuntimeError("nexmark q12: more bids of a bidder were counted than there are")
        shares.append(pc.sum(counted["bids_sum"]).as_py() / read.num_rows)
    return f"counted no bid twice: {shares[0]:.0%} and {shares[1]:.0%} of them were in windows that had ended"


def _canonical(query: str, table: pa.Table) -> pa.Table:
    """Returns the rows in order, with times as milliseconds; of an updating query the last row of each key."""
    columns = {}
    for name in sorted(table.column_names):
        column = table.column(name)
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("ms")).cast(pa.int64())
        columns[name] = column
    rows = pa.table(columns)
    if query in UPDATING:
        newest = {row["category"]: row for row in rows.to_pylist()}
        return pa.table(
            {
                "category": sorted(newest),
                "auctions": [newest[category]["auctions"] for category in sorted(newest)],
                "average": [round(newest[category]["average"], 3) for category in sorted(newest)],
            }
        )
    return rows.sort_by([(name, "ascending") for name in rows.column_names]).combine_chunks()
