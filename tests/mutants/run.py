"""Runs a seeded sample of mutants against simulator and unit tests: `python -m tests.mutants.run --count N --seed S`.

Works on a copy of the repository in `build/mutants`. Results are kept there, so an interrupted run goes on.
`--again` tries the survivors once more, with the tests as they are now.

Each mutant runs in a forked child. The libraries are imported before the fork, the engine after it.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import msgspec

from tests.mutants.mutations import ROOMS, Mutant, sample

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / "build" / "mutants"
TREE = PLACE / "tree"
COPIED = ("engine", "tests", "assets", "pyproject.toml")

SEEDS = 25
"""The simulator's seeds 0..SEEDS-1 run first: most mutants die in the first of them."""

TESTS = {
    "protocol": ("tests/protocol", "tests/jobmaster"),
    "runtime": ("tests/runtime",),
    "snapshot": ("tests/snapshot", "tests/jobmaster/test_publisher.py"),
    "jobmaster": ("tests/jobmaster", "tests/observe/test_timeline.py"),
}
TIMED = "tests/jobmaster/test_scale.py"
"""Fails on a busy machine, whatever the mutant."""

CPU_S = 60
TIMEOUT_S = 600.0
"""A mutant that uses more processor time, or more time, counts as noticed: it hangs."""


class Result(msgspec.Struct):
    id: str
    module: str
    operator: str
    changed: str
    outcome: str
    """killed, timeout or survived."""
    by: str = ""
    """The seed or test that noticed."""
    seconds: float = 0.0


class Verdict(msgspec.Struct):
    """What the child says about its mutant."""

    by: str = ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=150, help="number of mutants")
    parser.add_argument("--seed", type=int, default=0, help="decides which mutants")
    parser.add_argument("--limit-s", type=float, default=0.0, help="stop after this time; the next run goes on")
    parser.add_argument("--again", action="store_true", help="run the survivors again")
    parser.add_argument("--only", default="", help="only mutants of modules whose path contains this")
    arguments = parser.parse_args()
    _copy_tree()
    _import_libraries()
    mutants = [m for m in sample(ROOT, arguments.count, arguments.seed) if arguments.only in m.mutation.module]
    results = _load(PLACE / "results.jsonl")
    if arguments.again:
        results = {id: result for id, result in results.items() if result.outcome != "survived"}
    began = time.monotonic()
    for room in ROOMS:
        verdict = _in_child(room)
        if verdict is None or verdict.by:
            print(f"without any change the tests of {room} fail: {verdict.by if verdict else 'time-out'}")
            return 2
    for number, mutant in enumerate(mutants, 1):
        if mutant.id in results:
            continue
        if arguments.limit_s and time.monotonic() - began > arguments.limit_s:
            break
        result = results[mutant.id] = _try(mutant)
        with (PLACE / "results.jsonl").open("ab") as file:
            file.write(msgspec.json.encode(result) + b"\n")
        spent = f"{result.seconds:.1f} s"
        print(f"{number}/{len(mutants)} {result.outcome} {result.module} {spent} {result.by}", flush=True)
    return _report([results[m.id] for m in mutants if m.id in results], len(mutants))


def _copy_tree() -> None:
    shutil.rmtree(TREE, ignore_errors=True)
    TREE.mkdir(parents=True)
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, TREE / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, TREE / name)


def _import_libraries() -> None:
    import hypothesis  # noqa: F401
    import numpy  # noqa: F401
    import polars  # noqa: F401
    import pyarrow.compute
    import pyarrow.flight
    import pyarrow.parquet  # noqa: F401
    import pytest  # noqa: F401
    import xxhash  # noqa: F401

    sys.dont_write_bytecode = True


def _load(path: Path) -> dict[str, Result]:
    if not path.exists():
        return {}
    found = (msgspec.json.decode(line, type=Result) for line in path.read_bytes().splitlines())
    return {result.id: result for result in found}


def _try(mutant: Mutant) -> Result:
    path = TREE / mutant.mutation.module
    began = time.monotonic()
    path.write_text(mutant.text)
    try:
        verdict = _in_child(mutant.mutation.module.split("/")[1])
    finally:
        path.write_text(mutant.original)
    outcome = "timeout" if verdict is None else "killed" if verdict.by else "survived"
    seconds = time.monotonic() - began
    by = verdict.by if verdict else ""
    return Result(
        mutant.id, mutant.mutation.module, mutant.mutation.operator, mutant.changed, outcome, by, round(seconds, 1)
    )


def _in_child(room: str) -> Verdict | None:
    """Returns who noticed something; None if the child took too long."""
    with tempfile.NamedTemporaryFile() as answer, tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            try:
                os.setpgrp()
                resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
                for stream in (1, 2):
                    os.dup2(output.fileno(), stream)
                verdict = Verdict(_noticed(room))
                Path(answer.name).write_bytes(msgspec.json.encode(verdict))
            finally:
                os._exit(0)
        status = _ended(child)
        if status is None:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
        if status is None or os.WIFSIGNALED(status):
            return None
        data = Path(answer.name).read_bytes()
        return msgspec.json.decode(data, type=Verdict) if data else Verdict("the tests did not come to an end")


def _ended(child: int) -> int | None:
    """Returns the child's exit status; None if it takes too long."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.02)
    return None


def _noticed(room: str) -> str:
    """Returns the first seed or test that fails in the copy; empty if none does."""
    import pytest

    os.chdir(TREE)
    for name in [name for name in sys.modules if name.split(".")[0] in ("engine", "tests", "assets")]:
        del sys.modules[name]
    sys.path[:] = [str(TREE), *(entry for entry in sys.path if entry not in ("", str(ROOT)))]
    try:
        from tests.simulation.simulation import run

        for seed in range(SEEDS):
            violation = run(seed).violation
            if violation is not None:
                return f"seed {seed}: {violation.invariant}"
    except BaseException as error:
        return f"simulator: {type(error).__name__}: {str(error)[:80]}"
    failed = _FirstFailure()
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--ignore={TIMED}"]
    pytest.main([*options, *TESTS[room]], plugins=[failed])
    return failed.name


class _FirstFailure:
    def __init__(self) -> None:
        self.name = ""

    def pytest_runtest_logreport(self, report: object) -> None:
        if getattr(report, "failed", False) and not self.name:
            self.name = report.nodeid  # type: ignore[attr-defined]

    def pytest_collectreport(self, report: object) -> None:
        if getattr(report, "failed", False) and not self.name:
            self.name = f"import of {report.nodeid}"  # type: ignore[attr-defined]


def _report(results: list[Result], wanted: int) -> int:
    counts = Counter(result.outcome for result in results)
    survivors = [result for result in results if result.outcome == "survived"]
    for result in sorted(survivors, key=lambda r: (r.module, r.changed)):
        print(f"\n{result.module} ({result.operator}, {result.id})\n{result.changed}")
    print(f"\n{len(results)} of {wanted} mutants: {', '.join(f'{n} {name}' for name, n in sorted(counts.items()))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
