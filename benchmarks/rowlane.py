"""Measures Python per record with keyed state, a running sum per key, beside PyFlink's DataStream API and Bytewax."""

from __future__ import annotations

import time

from benchmarks.peers import environments
from benchmarks.report import Result, Say
from benchmarks.rows import KEYS
from benchmarks.weir import WeirJob, fresh_folder, rate_between

TARGETS = {"pyflink": 30.0, "bytewax": 3.0}


def row_lane(say: Say, weir_s: float, bytewax_rows: int, flink_rows: int) -> list[Result]:
    ours = _weir(weir_s)
    say(f"row_lane: weir {ours / 1e3:,.0f} k rows/s")
    theirs = {"bytewax": _bytewax(say, bytewax_rows), "pyflink": _pyflink(say, flink_rows)}
    results = []
    for peer, (rate, how) in theirs.items():
        say(f"row_lane: {peer} {rate / 1e3:,.1f} k rows/s")
        note = (
            f"a running sum per key ({KEYS:,} keys) in a Python function with keyed state, two processes, a snapshot "
            f"every second; each has the same rows from a source of its own; {how}"
        )
        ratio = ours / rate
        target = f"≥ {TARGETS[peer]:g}×"
        results.append(Result("row_lane", peer, ours, rate, "rows/s", ratio, note, target, ratio >= TARGETS[peer]))
    return results


def _weir(seconds: float) -> float:
    with WeirJob("benchmarks.jobs:row_lane") as job:
        job.wait_for("three checkpoints are complete", lambda: len(job.checkpoints()) >= 3)
        first = job.checkpoints()[-1]
        time.sleep(seconds)
        last = job.checkpoints()[-1]
        job.check()
    return rate_between(first, last)


def _bytewax(say: Say, rows: int) -> tuple[float, str]:
    python, folder = environments.bytewax(say), fresh_folder("bytewax")
    database = folder / "recovery"
    database.mkdir()
    environments.run_peer(python, ["-m", "bytewax.recovery", str(database), "2"], folder, 60)
    scale, recovery = ["-p", "2", "-w", "1"], ["-r", str(database), "-s", "1", "-b", "0"]
    command = ["-m", "bytewax.testing", "bytewax_rows:flow", *scale, *recovery]
    environments.run_peer(python, command, folder, 240, PEER_ROWS=str(rows), PEER_FOLDER=str(folder))
    done, seconds = environments.tallied(folder)
    return done / seconds, f"Bytewax: `stateful_map`, {rows:,} rows, the first quarter left out"


def _pyflink(say: Say, rows: int) -> tuple[float, str]:
    python, folder = environments.flink(say), fresh_folder("pyflink")
    environments.run_peer(python, ["flink_rows.py", str(rows), str(folder)], folder, 240)
    done, seconds = environments.tallied(folder)
    return done / seconds, (
        f"PyFlink: process mode (thread mode did not run here), all keys in Python's state cache, {rows:,} rows, the "
        "first half left out, in which that cache fills"
    )
