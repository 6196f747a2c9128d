"""Runs many seeds, or one seed with its trace: `python -m tests.simulation.run --seeds N --start S [--trace SEED]`."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.simulation import coverage
from tests.simulation.simulation import Result, run

CHUNK = 20
TRACES = Path("build/simulation")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2000, help="number of seeds to run")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="number of processes")
    parser.add_argument("--trace", type=int, metavar="SEED", help="run this seed and print its trace")
    parser.add_argument("--bug", default="", help="with --trace: plant the bug of this name")
    arguments = parser.parse_args()
    if arguments.trace is not None:
        return trace(arguments.trace, arguments.bug)
    return many(arguments.start, arguments.seeds, arguments.jobs)


def trace(seed: int, bug_name: str) -> int:
    from contextlib import nullcontext

    from tests.simulation.bugs import BUGS

    bug = next((bug for bug in BUGS if bug_name and bug_name in bug.name), None)
    with bug.planted(seed) if bug else nullcontext():
        result = run(seed)
    print("\n".join(line for line in result.trace if not line.endswith(" - net")))
    print(describe(result))
    return 0 if result.violation is None else 1


def describe(result: Result) -> str:
    verdict = "all invariants hold" if result.violation is None else f"VIOLATED  {result.violation}"
    return (
        f"seed {result.seed}: {verdict}\n  plan {result.plan}\n"
        f"  {result.events} events, {result.epochs} epochs, trace {result.digest[:16]}"
    )


def _chunk(seeds: range) -> tuple[int, list[tuple[int, str, str]], Counter[str]]:
    """Runs seeds in a worker process; returns how many, which failed, and how many took each transition."""
    failed: list[tuple[int, str, str]] = []
    counts: Counter[str] = Counter()
    for seed in seeds:
        result = run(seed)
        counts.update(result.hits)
        if result.violation is not None:
            TRACES.mkdir(parents=True, exist_ok=True)
            path = TRACES / f"seed-{seed}.txt"
            path.write_text("\n".join([*result.trace, describe(result)]))
            failed.append((seed, str(result.violation).splitlines()[0], str(path)))
    return len(seeds), failed, counts


def _chunks(start: int, seeds: int) -> Iterator[range]:
    for first in range(start, start + seeds, CHUNK):
        yield range(first, min(first + CHUNK, start + seeds))


def many(start: int, seeds: int, jobs: int) -> int:
    began = time.monotonic()
    done = 0
    failures: list[tuple[int, str, str]] = []
    counts: Counter[str] = Counter()
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for ran, failed, of_chunk in pool.imap_unordered(_chunk, _chunks(start, seeds)):
            done += ran
            failures += failed
            counts.update(of_chunk)
            spent = time.monotonic() - began
            print(
                f"\r{done} of {seeds} seeds, {len(failures)} failed, {spent:.0f} s", end="", file=sys.stderr, flush=True
            )
    spent = time.monotonic() - began
    print(file=sys.stderr)
    print(coverage.table(counts, seeds))
    for seed, what, path in sorted(failures):
        print(f"seed {seed}: {what}\n  replay: python -m tests.simulation.run --trace {seed}   trace: {path}")
    print(
        f"{seeds} seeds from {start}, {len(failures)} failed, {spent:.1f} s: "
        f"{1000 * spent / seeds:.1f} ms a seed ({1000 * spent * jobs / seeds:.1f} ms on one of {jobs} processes)"
    )
    missed = coverage.missed(counts)
    if missed and seeds >= 2000:
        print(f"no seed took: {', '.join(missed)}")
    return 1 if failures or (missed and seeds >= 2000) else 0


if __name__ == "__main__":
    sys.exit(main())
