"""A pattern in the simulator: every pair of records is found exactly once.

Topology: two splits → key_by → pattern → table, at parallelism 2. Fault: the JobMaster dies at a moment that differs by
seed, and the next one runs the job at parallelism 3. Checks: the pairs of each epoch with the records that wait in its
snapshot (tests/simulation/detected.py), and all of tests/simulation/invariants.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from engine.protocol.config import CheckpointConfig
from engine.state.partial_matches import WAITING, PatternState
from tests.simulation.cluster import Pace
from tests.simulation.faults import Plan
from tests.simulation.jobs import PATTERN, JobSpec
from tests.simulation.run import describe
from tests.simulation.simulation import Result, run

SEEDS = range(6)
DIES = "master dies"


def plan_of(seed: int) -> Plan:
    """The JobMaster dies when some records are taken and others still wait."""
    spec = JobSpec(PATTERN, 2, 2, 96, 2, keys=5, rescaled=3)
    pace = Pace(step=4.0, network=0.2, offload=0.5, visit_elements=2)
    blows = ((90.0 + 20 * seed, DIES),)
    return Plan(spec, CheckpointConfig(interval_ms=6), pace, blows=blows, storm_ms=300.0)


def simulated(seed: int) -> Result:
    return run(seed, plan_of(seed))


@pytest.mark.promise("A11")
def test_every_pair_is_found_exactly_once() -> None:
    results = [simulated(seed) for seed in SEEDS]
    for result in results:
        assert result.violation is None, describe(result)
        assert f"fault: {DIES}" in result.hits, "the job was over before anything was restored"
    assert sum(result.epochs for result in results) >= 3 * len(SEEDS)


def _without_waiting(self: PatternState) -> list[tuple[str, Callable[[], pa.Table]]]:
    return [(name, table) for name, table in _TAKEN(self) if name != WAITING]


def _without_matches(self: PatternState, name: str, table: pa.Table) -> None:
    if name == WAITING:
        _RESTORE(self, name, table)


def _of_the_upload(self: PatternState) -> list[tuple[str, Callable[[], pa.Table]]]:
    """Partial matches are those at the time of the upload, not at the barrier."""

    def of_now(name: str, table: Callable[[], pa.Table]) -> pa.Table:
        return dict(_TAKEN(self)).get(name, table)()

    return [(name, partial(of_now, name, table)) for name, table in _TAKEN(self)]


_TAKEN, _RESTORE = PatternState.snapshot, PatternState.restore
BUGS: dict[str, tuple[str, Any, tuple[str, ...]]] = {
    "records that wait are not in the snapshot": ("snapshot", _without_waiting, ("no_loss",)),
    "partial matches are not restored": ("restore", _without_matches, ("no_loss",)),
    "the state is not copied at the barrier": ("snapshot", _of_the_upload, ("no_loss", "no_duplicate", "no_phantom")),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_in_patterns_is_noticed(bug: str) -> None:
    name, planted, invariants = BUGS[bug]
    with patch.object(PatternState, name, planted):
        violations = (simulated(seed).violation for seed in SEEDS)
        found = next((violation for violation in violations if violation is not None), None)
    assert found is not None and found.invariant in invariants, found
