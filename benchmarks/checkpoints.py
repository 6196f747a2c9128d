"""Measures what a checkpoint every second costs: phases with and without checkpoints, in turn, in one run."""

from __future__ import annotations

import time
from itertools import pairwise
from statistics import median

from benchmarks.report import Result, Say
from benchmarks.weir import WeirJob, rate_between

LIMIT = 0.05


def checkpoint_cost(say: Say, pairs: int, phase_s: float) -> list[Result]:
    """Compares phases with a checkpoint every second with phases without, in turn, in one run of the window job.

    Both kinds begin and end with a checkpoint, whose ledger says exactly how many rows were read between two barriers.
    Every second pair has the other order, so that a machine that gets slower or faster favours neither kind.
    """
    order = [checkpointed for pair in range(pairs) for checkpointed in (pair % 2 == 0, pair % 2 == 1)]
    with WeirJob("benchmarks.jobs:window", interval="none") as job:
        time.sleep(3)
        _checkpoint(job)
        bounds = [len(job.checkpoints()) - 1]
        for checkpointed in order:
            _spend(job, phase_s, every_s=1.0 if checkpointed else phase_s)
            bounds.append(len(job.checkpoints()) - 1)
        job.check()
        checkpoints = job.checkpoints()
    rates = [rate_between(checkpoints[first], checkpoints[last]) for first, last in pairwise(bounds)]
    busy = [rate for rate, checkpointed in zip(rates, order, strict=True) if checkpointed]
    free = [rate for rate, checkpointed in zip(rates, order, strict=True) if not checkpointed]
    cost = median(1 - with_ / without for with_, without in zip(busy, free, strict=True))
    say(f"checkpoint_cost: {cost:.1%} ({median(busy) / 1e6:.2f} against {median(free) / 1e6:.2f} M rows/s)")
    duration, state = median(c.duration_ms for c in checkpoints[1:]), checkpoints[-1].state_bytes
    note = (
        f"cost {cost:.1%}: the median of {pairs} pairs of phases of {phase_s:g} s in one run of the window job; a "
        f"checkpoint takes {duration:.0f} ms from its trigger to its commit and holds {state / 1e6:.1f} MB of state"
    )
    runs = {"with": busy, "without": free, "cost_percent": cost * 100, "limit": median(free) * (1 - LIMIT)}
    result = Result(
        "checkpoint_cost",
        "weir-without-checkpoints",
        median(busy),
        median(free),
        "rows/s",
        1 - cost,
        note,
        "cost ≤ 5 %",
        cost <= LIMIT,
        runs=runs,
    )
    return [result]


def _spend(job: WeirJob, seconds: float, every_s: float) -> None:
    due = time.monotonic()
    for _ in range(round(seconds / every_s)):
        due += every_s
        time.sleep(max(0.0, due - time.monotonic()))
        _checkpoint(job)


def _checkpoint(job: WeirJob) -> None:
    done = len(job.checkpoints())
    job.trigger()
    job.wait_for("the checkpoint is complete", lambda: len(job.checkpoints()) > done)
