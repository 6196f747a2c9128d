"""Measures how fast a savepoint of a running job is written, to a directory and to MinIO, and what it costs the job."""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from benchmarks.report import Result, Say
from benchmarks.rescale import BYTES_PER_KEY
from benchmarks.weir import WeirJob, fresh_folder
from engine.host.places import STATE
from engine.observe.client import JobClient
from tests.servers.minio import running

DIRECTORY_MB_PER_S, MINIO_MB_PER_S, RATE_SHARE = 200.0, 100.0, 0.8
BLOCK = 8 << 20
BUILD_RATE = 500_000
"""The rate at which the state is made. Then the job is stopped, and goes on at the rate that is measured."""


def savepoint(say: Say, megabytes: int, rounds: int, rate: int) -> list[Result]:
    """Takes savepoints of a job that counts and sums per key at this rate, in a directory, in memory and in MinIO."""
    disk = fresh_folder("savepoint-disk")
    with tempfile.TemporaryDirectory(prefix="weir-savepoint-", dir="/dev/shm") as memory:
        results = [
            _measure(say, "savepoint", str(fresh_folder("savepoint-store")), disk, megabytes, rounds, rate),
            _measure(say, "savepoint_memory", memory, Path(memory), megabytes, rounds, rate),
        ]
    with running(fresh_folder("minio")) as server, ExitStack() as stack:
        for name, value in {**server.environ, STATE: str(fresh_folder("minio-state"))}.items():
            stack.callback(_restore, name, os.environ.get(name))
            os.environ[name] = value
        results.append(_measure(say, "savepoint_minio", "s3://weir/bench", disk, megabytes, rounds, rate))
    return results


def _measure(say: Say, bench: str, store: str, disk: Path, megabytes: int, rounds: int, rate: int) -> Result:
    keys = megabytes * 1_000_000 // BYTES_PER_KEY
    taken, shares = [], []
    with WeirJob("benchmarks.jobs:large_state", store=store, keys=keys, rate=BUILD_RATE, interval="none") as job:
        job.wait_for(f"it has {megabytes} MB of state", lambda: _rows(job) > 1.05 * keys, patience_s=300, poll_s=0.5)
        JobClient(store, job.name).stop()
        job.wait_until_ended()
    with WeirJob("benchmarks.jobs:large_state", store=store, keys=keys, rate=rate, interval="none") as job:
        client = JobClient(store, job.name)
        job.wait_for("it goes on", lambda: _rows(job) > rate, patience_s=300, poll_s=0.5)
        for number in range(rounds):
            time.sleep(5)
            before = _paced(job, 5.0)
            begun, rows = time.monotonic(), _rows(job)
            made = client.wait_for_savepoint(client.savepoint(f"bench-{number}"), 300)
            seconds = time.monotonic() - begun
            share = (_rows(job) - rows) / seconds / before
            assert made.bytes is not None and made.duration_ms is not None
            speed = made.bytes / 1e3 / made.duration_ms
            say(f"{bench}: {made.bytes / 1e6:.0f} MB in {made.duration_ms / 1000:.1f} s, {speed:.0f} MB/s, "
                f"{share:.0%} of the rows")  # fmt: skip
            taken.append(speed)
            shares.append(share)
        job.check()
    raw = _disk_speed(disk, megabytes)
    ours, limit = median(taken), MINIO_MB_PER_S if store.startswith("s3:") else DIRECTORY_MB_PER_S
    say(f"{bench}: median {ours:.0f} MB/s; one process writes and syncs the same bytes at {raw:.0f} MB/s")
    note = (
        f"median of {rounds} savepoints of {megabytes} MB of keyed state ({keys:,} keys), from the request to "
        f"`savepoint.json`, of a job at {rate:,} rows/s, which processed {median(shares):.0%} of its usual rate "
        f"meanwhile (target ≥ {RATE_SHARE:.0%}); the peer is one process that writes as many bytes to the same disk "
        "and syncs them"
    )
    reached = ours >= limit and median(shares) >= RATE_SHARE
    runs = {"mb_per_s": taken, "rate_share": shares}
    return Result(bench, "plain write", ours, raw, "MB/s", ours / raw, note, f"≥ {limit:.0f} MB/s", reached, runs=runs)


def _rows(job: WeirJob) -> int:
    """Returns the rows that the window operator has taken."""
    return sum(vertex.rows_in for vertex in job.status().vertices if "windows" in vertex.operators)


def _paced(job: WeirJob, seconds: float) -> float:
    rows, begun = _rows(job), time.monotonic()
    time.sleep(seconds)
    return (_rows(job) - rows) / (time.monotonic() - begun)


def _disk_speed(folder: Path, megabytes: int) -> float:
    """Returns the MB/s at which one process writes and syncs a file."""
    file, block, begun = folder / "plain", os.urandom(BLOCK), time.monotonic()
    with file.open("wb") as out:
        for _ in range(megabytes * 1_000_000 // BLOCK):
            out.write(block)
        out.flush()
        os.fsync(out.fileno())
    seconds, size = time.monotonic() - begun, file.stat().st_size
    file.unlink()
    return size / 1e6 / seconds


def _restore(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
