"""Runs a seeded sample of mutants against units and simulator: `python -m tests.mutants.run --count N --seed S`.

Works on a copy of the repository. Results are kept in `build/mutants`, so an interrupted run goes on.
`--again` tries the survivors once more, with the tests as they are now.

Engine and tests are imported and collected once; each mutant runs in a forked child (`checks.py`).
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from tests.mutants.checks import TESTS, Check, Checks, covered, replace_function
from tests.mutants.mutations import Mutant, sample

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / "build" / "mutants"
COPIED = ("engine", "tests", "assets", "pyproject.toml")
MEMORY = Path("/dev/shm")
"""The copy lies in memory where that exists: tests that sync files take minutes on a busy disk."""

TIMED = "tests/jobmaster/test_scale.py"
"""Fails on a busy machine, whatever the mutant."""

TIMEOUT_S = 1800.0
"""A mutant that takes longer counts as noticed, as does one that uses too much processor time (`HANGS_S`)."""


class Result(msgspec.Struct):
    id: str
    module: str
    operator: str
    changed: str
    outcome: str
    """killed, timeout or survived."""
    by: str = ""
    """The seed or test that noticed."""
    checks: int = 0
    """How many seeds and tests call the changed function."""
    seconds: float = 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=150, help="number of mutants")
    parser.add_argument("--seed", type=int, default=0, help="decides which mutants")
    parser.add_argument("--limit-s", type=float, default=0.0, help="stop after this time; the next run goes on")
    parser.add_argument("--again", action="store_true", help="run the survivors again")
    parser.add_argument("--only", default="", help="only mutants of modules whose path contains this")
    arguments = parser.parse_args()
    PLACE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="weir-mutants-", dir=MEMORY if MEMORY.is_dir() else None) as scratch:
        tree = Path(scratch) / "tree"
        _copy_to(tree)
        run = Run(tree, arguments)
        _work_in(tree)
        return collected(tree, TESTS, run.all)


class Run:
    def __init__(self, tree: Path, arguments: argparse.Namespace) -> None:
        self._tree = tree
        self._arguments = arguments
        self._results = _load(PLACE / "results.jsonl")

    def all(self, checks: Checks) -> int:
        covering = self._covering(checks)
        if covering is None:
            return 2
        mutants = [
            mutant
            for mutant in sample(self._tree, self._arguments.count, self._arguments.seed)
            if self._arguments.only in mutant.mutation.module
        ]
        mutants.sort(key=lambda mutant: mutant.function is None)  # those of all checks take longest, and come last
        began = time.monotonic()
        for number, mutant in enumerate(mutants, 1):
            known = self._results.get(mutant.id)
            if known and not (self._arguments.again and known.outcome == "survived"):
                continue
            if self._arguments.limit_s and time.monotonic() - began > self._arguments.limit_s:
                break
            result = self._results[mutant.id] = self._try(mutant, checks, covering)
            with (PLACE / "results.jsonl").open("ab") as file:
                file.write(msgspec.json.encode(result) + b"\n")
            spent = f"{result.seconds:.1f} s of {result.checks} checks"
            print(f"{number}/{len(mutants)} {result.outcome} {result.module} {spent} {result.by}", flush=True)
        return _report([self._results[m.id] for m in mutants if m.id in self._results], len(mutants))

    def _covering(self, checks: Checks) -> list[Check] | None:
        """Returns which functions each check calls; None if a check fails without any change.

        A check is measured again only if the engine or its own file has changed.
        """
        kept = PLACE / "covered.json"
        known = msgspec.json.decode(kept.read_bytes(), type=list[Check]) if kept.exists() else []
        files = {name: _digest(self._tree, checks.file(name)) for name in checks.names()}
        found = [check for check in known if files.get(check.name) == check.files]
        missing = {name: files[name] for name in files.keys() - {check.name for check in found}}
        if missing:
            print(f"{len(missing)} checks run once without a change", flush=True)
            answer = _in_child(lambda: msgspec.json.encode(covered(checks, missing, self._tree)))
            measured = msgspec.json.decode(answer or b"[]", type=list[Check])
            failed = [check.name for check in measured if check.failed]
            if failed or not measured:
                print(f"without any change these fail: {', '.join(failed) or 'all'}")
                return None
            found += measured
            kept.write_bytes(msgspec.json.encode(found))
        return found

    def _try(self, mutant: Mutant, checks: Checks, covering: list[Check]) -> Result:
        began = time.monotonic()
        chosen = sorted((c for c in covering if c.calls(mutant)), key=lambda check: check.cpu_s)
        path = self._tree / mutant.mutation.module
        if mutant.function is None:
            path.write_text(mutant.text)  # before the fork: the child imports everything again

        def work() -> bytes:
            if mutant.function is not None:
                replace_function(path, mutant)
                return checks.first_failure(chosen).encode()
            return _imported_again(self._tree, chosen).encode()

        try:
            by = _in_child(work)
        finally:
            path.write_text(mutant.original)
        return Result(
            mutant.id,
            mutant.mutation.module,
            mutant.mutation.operator,
            mutant.changed,
            "timeout" if by is None else "killed" if by else "survived",
            (by or b"").decode(),
            len(chosen),
            round(time.monotonic() - began, 1),
        )


def collected(tree: Path, tests: tuple[str, ...], work: Callable[[Checks], int]) -> int:
    """Imports the tests, hands them to `work`, and returns what it returns; 1 if they could not be imported."""
    import pytest

    class Loop(Checks):
        code = 1

        def pytest_runtestloop(self, session: Any) -> bool:
            if not session.testsfailed:
                self.items = {item.nodeid: item for item in session.items}
                self.code = work(self)
            return True

    loop = Loop()
    options = [
        "-q",
        "-s",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        f"--ignore={TIMED}",
        f"--basetemp={tree.parent / 'tmp'}",
    ]
    pytest.main([*options, *tests], plugins=[loop])
    return loop.code


def _imported_again(tree: Path, chosen: list[Check]) -> str:
    for name in [name for name in sys.modules if name.split(".")[0] in ("engine", "tests", "assets")]:
        if not name.startswith("tests.mutants"):
            del sys.modules[name]
    failed = ["the import of engine or tests"]

    def work(checks: Checks) -> int:
        failed[:] = [checks.first_failure(chosen)]
        return 0

    files = dict.fromkeys(check.name.split("::")[0] for check in chosen if not check.is_seed)
    collected(tree, tuple(files) or TESTS[:1], work)
    return failed[0]


def _copy_to(tree: Path) -> None:
    tree.mkdir()
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, tree / name)


def _work_in(tree: Path) -> None:
    """From here on, engine and tests are those of the copy."""
    os.chdir(tree)
    sys.dont_write_bytecode = True
    for name in [name for name in sys.modules if name.split(".")[0] in ("engine", "tests", "assets")]:
        if not name.startswith("tests.mutants"):
            del sys.modules[name]
    sys.path[:] = [str(tree), *(entry for entry in sys.path if entry not in ("", str(ROOT)))]


def _digest(tree: Path, check: str) -> str:
    """Returns a digest of the engine and of the files of a check."""
    return f"{_digest_of(tree / 'engine')} {_digest_of(tree / check)}"


@cache
def _digest_of(path: Path) -> str:
    digest = hashlib.sha256()
    for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _load(path: Path) -> dict[str, Result]:
    if not path.exists():
        return {}
    found = (msgspec.json.decode(line, type=Result) for line in path.read_bytes().splitlines())
    return {result.id: result for result in found}


def _in_child(work: Callable[[], bytes]) -> bytes | None:
    """Returns what `work` returns in a forked child; None if the child took too long."""
    with tempfile.NamedTemporaryFile() as answer, tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            try:
                os.setpgrp()
                for stream in (1, 2):
                    os.dup2(output.fileno(), stream)
                Path(answer.name).write_bytes(b"." + work())
            finally:
                os._exit(0)
        status = _ended(child)
        if status is None:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
        if status is None or os.WIFSIGNALED(status):
            return None
        return Path(answer.name).read_bytes()[1:] or (b"" if Path(answer.name).stat().st_size else b"no end")


def _ended(child: int) -> int | None:
    """Returns the child's exit status; None if it takes too long."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.02)
    return None


def _report(results: list[Result], wanted: int) -> int:
    counts = Counter(result.outcome for result in results)
    survivors = [result for result in results if result.outcome == "survived"]
    for result in sorted(survivors, key=lambda r: (r.module, r.changed)):
        print(f"\n{result.module} ({result.operator}, {result.id}, {result.checks} checks)\n{result.changed}")
    print(f"\n{len(results)} of {wanted} mutants: {', '.join(f'{n} {name}' for name, n in sorted(counts.items()))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
