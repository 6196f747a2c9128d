"""Measures the pause of a rescale in place, 2 → 3 → 2, of a running job with keyed state, beside Flink."""

from __future__ import annotations

from statistics import median

from benchmarks.peers import environments
from benchmarks.report import Result, Say
from benchmarks.weir import WeirJob, fresh_folder
from engine.observe.rescales import RescaleState

BYTES_PER_KEY = 32
"""The state of one key: the key, its window, the number of rows, the total."""
LIMIT_MS = 1000.0
RATE = 200_000
FLINK_ROUNDS = 1
"""Each of its switches takes many seconds."""


def rescale(say: Say, megabytes: int, rounds: int) -> list[Result]:
    """Measures from the last record at the old parallelism to the first at the new one."""
    keys = megabytes * 1_000_000 // BYTES_PER_KEY
    pauses, state_mb = _weir(say, megabytes, keys, rounds)
    slowest = max(max(of_way) for of_way in pauses.values())
    middle = {way: median(of_way) for way, of_way in pauses.items()}
    note = (
        f"the longest pause of {2 * rounds} rescales, from the last record before to the first after, with "
        f"{state_mb:.0f} MB of keyed state; median 2 → 3 {middle['up']:.0f} ms, 3 → 2 {middle['down']:.0f} ms; every "
        "digest was the same"
    )
    target, reached, runs = f"≤ {LIMIT_MS:.0f} ms", slowest <= LIMIT_MS, {"ms": pauses}
    theirs = _flink(say, keys)
    if not theirs:
        return [Result("rescale", None, slowest, None, "ms", None, note, target, reached, runs=runs)]
    note += (
        f". Flink, the same job in Java with state on the heap, is stopped with a savepoint and started at the other "
        f"parallelism on a cluster that stays up: longest {max(theirs):.0f} ms, median {median(theirs):.0f} ms"
    )
    ratio = max(theirs) / slowest
    runs["flink"] = theirs
    return [Result("rescale", "flink", slowest, max(theirs), "ms", ratio, note, target, reached, runs=runs)]


def _weir(say: Say, megabytes: int, keys: int, rounds: int) -> tuple[dict[str, list[float]], float]:
    pauses: dict[str, list[float]] = {"up": [], "down": []}
    with WeirJob("benchmarks.jobs:large_state", max_slots=3, keys=keys, rate=RATE) as job:
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
                say(f"rescale {way}: {done.pause_ms:.0f} ms, {done.rows:,} rows of state")
        state_mb = job.checkpoints()[-1].state_bytes / 1e6
        job.check()
    return pauses, state_mb


def _flink(say: Say, keys: int) -> list[float]:
    """Returns Flink's pauses in milliseconds; none if there is no compiler for its job."""
    javac = environments.find_javac()
    if javac is None:
        say("rescale: Flink is left out: there is no javac on PATH (Debian: apt install openjdk-17-jdk-headless)")
        return []
    folder = fresh_folder("flink-rescale")
    arguments = [str(folder), str(keys), str(RATE), str(FLINK_ROUNDS)]
    said = environments.run_flink_job(say, javac, "RescaleJob", arguments, folder, patience_s=600)
    pauses = [float(pause) for pause in environments.result_of(said)]
    say(f"rescale: flink: {', '.join(f'{pause:.0f}' for pause in pauses)} ms")
    return pauses
