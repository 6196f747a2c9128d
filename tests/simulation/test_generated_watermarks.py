"""Watermark generators of the author that keep state, in the simulator.

Topology: a source of four splits with a generator each, called with records or with batches, and windows. Fault: the
JobMaster dies, and the next one runs the job at parallelism 1 or 3. Checks: a generator has seen exactly what was read
before each barrier, and its watermark never goes back (tests/simulation/generated.py), besides all other invariants.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

from engine.protocol.config import CheckpointConfig
from engine.runtime.generated_watermarks import GeneratedWatermark
from tests.simulation.cluster import Pace
from tests.simulation.faults import Plan
from tests.simulation.generated import BATCHES, RECORDS
from tests.simulation.jobs import JobSpec
from tests.simulation.run import describe
from tests.simulation.simulation import Result, run

SEEDS = range(4)


def crashed(seed: int) -> Result:
    spec = JobSpec("windows", 2, 4, 160, 2, rescaled=1 + 2 * (seed % 2), generated=(RECORDS, BATCHES)[seed // 2 % 2])
    pace = Pace(step=4.0, network=2.0, visit_elements=1 + seed % 2)
    blows = ((25.0 + 9 * seed, "master dies"),)
    return run(seed, Plan(spec, CheckpointConfig(interval_ms=4), pace, blows=blows))


@pytest.mark.promise("B1", "D7")
def test_generators_have_seen_what_was_read_whatever_crashes() -> None:
    results = [crashed(seed) for seed in SEEDS]
    for result in results:
        assert result.violation is None, describe(result)
    assert sum(result.epochs for result in results) > 5 * len(SEEDS)


_MADE = GeneratedWatermark.__init__


def _forgets_state(self: Any, strategy: Any, context: Any, split: Any, reached_ms: int, state: Any) -> None:
    _MADE(self, strategy, context, split, reached_ms)


def test_a_planted_bug_in_the_restore_of_generators_is_noticed() -> None:
    with patch.object(GeneratedWatermark, "__init__", _forgets_state):
        violations = (crashed(seed).violation for seed in SEEDS)
        found = next((violation for violation in violations if violation is not None), None)
    assert found is not None and found.invariant == "generators", found
