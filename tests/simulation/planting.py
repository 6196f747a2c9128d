"""What the tests of runs of one kind do with a bug that is planted into a real module."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

Patches = list[tuple[Any, str, Any]]


def check_that_a_bug_is_caught(
    name: str,
    planted: tuple[Callable[[], Patches], tuple[str, ...], int],
    run: Callable[[int], Any],
    seeds: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Plants a bug, and runs its seed, or else all of them: one of its invariants has to be violated first."""
    plant, invariants, seed = planted
    for patched in plant():
        monkeypatch.setattr(*patched)
    caught = run(seed).violation
    if caught is not None and caught.invariant in invariants:
        return
    results = (run(other) for other in range(seeds))
    first = next((result for result in results if result.violation is not None), None)
    assert first is not None and first.violation is not None, f"no seed notices; seed {seed}: {caught}"
    assert first.violation.invariant in invariants, first.violation
    warnings.warn(f"seed {seed} no longer catches {name!r}; record seed {first.seed}", stacklevel=2)
