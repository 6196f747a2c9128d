"""Measures aligned checkpoints while a sink handles a fifth of what its source reads."""

from __future__ import annotations

import time
from statistics import median

from benchmarks.report import Result, Say
from benchmarks.weir import WeirJob

LIMIT_MS = 2000.0


def in_flight(say: Say, seconds: float) -> list[Result]:
    """Measures the longest checkpoint: nearly all of it is the wait of barriers behind rows in flight."""
    with WeirJob("benchmarks.jobs:slow_sink") as job:
        time.sleep(seconds)
        durations = [checkpoint.duration_ms for checkpoint in job.checkpoints()]
        job.check()
    if not durations:
        raise TimeoutError(f"no checkpoint was complete after {seconds:g} s")
    longest = max(durations)
    say(f"in_flight: checkpoints of {median(durations):.0f} ms, at most {longest:.0f} ms")
    note = f"the longest of {len(durations)} aligned checkpoints in {seconds:g} s, median {median(durations):.0f} ms"
    return [
        Result(
            "in_flight",
            None,
            longest,
            None,
            "ms",
            None,
            note,
            f"≤ {LIMIT_MS:g} ms",
            longest <= LIMIT_MS,
            runs={"duration_ms": durations, "limit": LIMIT_MS},
        )
    ]
