"""Measures the pause of a rescale in place, 2 → 3 → 2, of a running job with keyed state."""

from __future__ import annotations

from statistics import median

from benchmarks.report import Result, Say
from benchmarks.weir import WeirJob
from engine.observe.rescales import RescaleState

BYTES_PER_KEY = 40
"""The state of one key: the key, its window, the number of rows, the total."""
LIMIT_MS = 1000.0


def rescale(say: Say, megabytes: int, rounds: int) -> list[Result]:
    """Measures from the last record at the old parallelism to the first at the new one."""
    keys = megabytes * 1_000_000 // BYTES_PER_KEY
    pauses: dict[str, list[float]] = {"up": [], "down": []}
    with WeirJob("benchmarks.jobs:large_state", max_slots=3, keys=keys) as job:
        wanted = 0.95 * megabytes * 1e6
        job.wait_for(
            f"it has {megabytes} MB of state",
            lambda: bool(job.checkpoints()) and job.checkpoints()[-1].state_bytes > wanted,
            patience_s=300,
            poll_s=0.5,
        )
        for _ in range(rounds):
            for way, parallelism in (("up", 3), ("down", 2)):
                done = job.rescale(parallelism)
                if done.state is not RescaleState.COMPLETED or done.pause_ms is None:
                    raise RuntimeError(f"the job was not rescaled: {done.reason or 'no record came since'}")
                if done.digest_before != done.digest_after:
                    raise RuntimeError("the job completed a rescale with other state")
                pauses[way].append(done.pause_ms)
                say(f"rescale {way}: {done.pause_ms:.0f} ms, {done.rows:,} keys")
        state_mb = job.checkpoints()[-1].state_bytes / 1e6
        job.check()
    slowest = max(max(of_way) for of_way in pauses.values())
    middle = {way: median(of_way) for way, of_way in pauses.items()}
    note = (
        f"the longest pause of {2 * rounds} rescales, from the last record before to the first after, with "
        f"{state_mb:.0f} MB of keyed state; median 2 → 3 {middle['up']:.0f} ms, 3 → 2 {middle['down']:.0f} ms; every "
        "digest was the same"
    )
    target = f"≤ {LIMIT_MS:.0f} ms"
    return [Result("rescale", None, slowest, None, "ms", None, note, target, slowest <= LIMIT_MS, runs={"ms": pauses})]
