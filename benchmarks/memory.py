"""Measures the memory that slots hold while a sink is stuck."""

from __future__ import annotations

import time

from benchmarks.processes import rss_bytes
from benchmarks.report import Result, Say
from benchmarks.weir import WeirJob, fresh_folder

SETTLE_S = 10
LIMIT_MB = 10.0


def memory(say: Say, seconds: float) -> list[Result]:
    """Measures each slot's resident memory: a source as fast as possible, a sink that never persists its rows."""
    release = fresh_folder("stuck") / "release"
    rss: list[tuple[float, list[float]]] = []
    processed: list[tuple[float, int]] = []
    with WeirJob("benchmarks.jobs:stuck", release=release) as job:
        try:
            pids, since = job.slot_pids(), time.monotonic()
            while (spent := time.monotonic() - since) < seconds:
                rss.append((spent, [rss_bytes(pid) / 1e6 for pid in pids]))
                processed.append((spent, sum(vertex.rows_in for vertex in job.status().vertices)))
                time.sleep(0.5)
            failures = job.failures()
        finally:
            release.touch()  # a slot whose sink is stuck could not end
    settled = [sample for spent, sample in rss if spent >= SETTLE_S]
    growth = max(max(sample[slot] for sample in settled) - settled[0][slot] for slot in range(len(pids)))
    held = max(max(sample) for sample in settled)
    rows_after = processed[-1][1] - next(rows for spent, rows in processed if spent >= SETTLE_S)
    say(f"memory_stuck_sink: {growth:+.1f} MB after the first {SETTLE_S} s, {held:.0f} MB held")
    note = (
        f"growth of a slot's resident memory (the larger of two) from second {SETTLE_S} to {seconds:.0f} with a sink "
        f"that never persists; the slot holds {held:.0f} MB; rows processed in that time: {rows_after:,}"
    )
    if failures:
        note += f". The job failed {len(failures)} times meanwhile: {failures[0]}"
    runs = {"rss_mb": [[round(spent, 1), *(round(mb, 1) for mb in sample)] for spent, sample in rss], "limit": LIMIT_MB}
    target = f"flat: ≤ {LIMIT_MB:g} MB"
    return [
        Result(
            "memory_stuck_sink",
            None,
            growth,
            None,
            "MB",
            None,
            note,
            target,
            growth <= LIMIT_MB and not failures,
            runs=runs,
        )
    ]
