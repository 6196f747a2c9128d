"""The checks that may notice a mutant: unit tests and seeds of the simulator, each with the functions that it calls.

Only checks that call the changed function can notice the change, so only they run, the cheapest first. For a change
outside of functions all checks run.
"""

from __future__ import annotations

import gc
import resource
import sys
import threading
import time
from collections.abc import Iterator
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import msgspec

from tests.mutants.mutations import Mutant

SEEDS = 25
"""The simulator's seeds 0..SEEDS-1 are checks."""

TESTS = (
    "tests/protocol",
    "tests/jobmaster",
    "tests/runtime",
    "tests/snapshot",
    "tests/observe/test_timeline.py",
    "tests/test_changed_jobs.py",
    "tests/test_exchanges.py",
    "tests/test_nulls.py",
    "tests/test_operator_state.py",
    "tests/test_testing.py",
)

HANGS_S = 5.0
"""A check that uses this much processor time more than five times what it uses without a change hangs."""
_SEED = "seed "


class Check(msgspec.Struct):
    name: str
    """The id of a test, or "seed 17"."""
    cpu_s: float
    functions: list[str]
    """Such as `engine/runtime/slot.py:SlotRuntime.step`."""
    files: str
    """A digest of the engine and of the check's own files when it was measured."""
    failed: bool = False

    @property
    def is_seed(self) -> bool:
        return self.name.startswith(_SEED)

    def calls(self, mutant: Mutant) -> bool:
        """True for a change outside of functions: it may show anywhere."""
        return mutant.function is None or f"{mutant.mutation.module}:{mutant.function}" in self.functions


class Checks:
    """A plugin of pytest that runs collected tests, or seeds, one by one."""

    def __init__(self) -> None:
        self.items: dict[str, Any] = {}
        self._failed = False

    def pytest_runtest_logreport(self, report: Any) -> None:
        self._failed = self._failed or report.failed

    def names(self) -> list[str]:
        return [*self.items, *(f"{_SEED}{seed}" for seed in range(SEEDS))]

    @staticmethod
    def file(name: str) -> str:
        return "tests/simulation" if name.startswith(_SEED) else name.split("::")[0]

    def fails(self, name: str) -> bool:
        if name.startswith(_SEED):
            from tests.simulation.simulation import run

            try:
                return run(int(name.removeprefix(_SEED))).violation is not None
            except Exception:
                return True
        self._failed = False
        item = self.items[name]
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        return self._failed

    def first_failure(self, chosen: list[Check]) -> str:
        """Returns the name of the first check that fails; empty if none does. A check that hangs ends the process."""
        for check in chosen:
            limit_s = int(time.process_time() + HANGS_S + 5 * check.cpu_s) + 1
            resource.setrlimit(resource.RLIMIT_CPU, (limit_s, resource.RLIM_INFINITY))
            if self.fails(check.name):
                return check.name
        return ""


def covered(checks: Checks, files: dict[str, str], tree: Path) -> list[Check]:
    """Runs these checks, and notes which functions of the engine each calls. `files`: their digests."""
    codes: dict[int, CodeType] = {}

    def on_call(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if id(code) not in codes:
            codes[id(code)] = code

    import tests.simulation.simulation  # noqa: F401  (its import is no part of a check)

    engine = f"{tree}/engine/"
    result = []
    for name in files:
        codes.clear()
        began = time.process_time()
        threading.settrace(on_call)
        sys.settrace(on_call)
        try:
            failed = checks.fails(name)
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]
        called = {
            f"{code.co_filename[len(str(tree)) + 1 :]}:{code.co_qualname.split('.<locals>')[0]}"
            for code in codes.values()
            if code.co_filename.startswith(engine)
        }
        result.append(Check(name, round(time.process_time() - began, 3), sorted(called), files[name], failed))
    return result


def replace_function(path: Path, mutant: Mutant) -> None:
    """Gives every imported function of the module its code in the mutant. The module itself is not run again."""
    old = compile(mutant.original, str(path), "exec")
    new = compile(mutant.text, str(path), "exec")
    codes = {
        (was.co_qualname, was.co_firstlineno): becomes
        for was, becomes in zip(_functions(old), _functions(new), strict=True)
    }
    for function in gc.get_objects():
        if isinstance(function, FunctionType) and function.__code__.co_filename == str(path):
            code = function.__code__
            function.__code__ = codes[code.co_qualname, code.co_firstlineno]


def _functions(code: CodeType) -> Iterator[CodeType]:
    """Returns the functions of a module and of its classes, without those inside of functions."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_flags & CO_OPTIMIZED:
                yield constant
            else:
                yield from _functions(constant)
