"""Aligned sources whose subtasks are idle at different times, in the simulator.

Topology: two source subtasks whose files appear in turns, so that each is idle while the other reads, and wakes up with
files that are behind it in event time; windows follow. Fault: the JobMaster dies while splits wait, and the next one
runs the job at parallelism 1 or 3. Checks: no file is read further ahead of the others than the drift
(tests/simulation/drifting.py), the job ends, and all of tests/simulation/invariants.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

import pytest

from engine.protocol.config import CheckpointConfig
from engine.protocol.credits import ChannelLimits
from engine.protocol.watermark_alignment import AlignmentGroups
from engine.runtime.aligned_sources import AlignedSources
from tests.simulation.cluster import Pace
from tests.simulation.drifting import WAITED
from tests.simulation.faults import Plan
from tests.simulation.jobs import IDLE_FILES, JobSpec
from tests.simulation.ports import NetworkFaults
from tests.simulation.run import describe
from tests.simulation.simulation import Result, run

SEEDS = range(8)


def idle(seed: int) -> Result:
    spec = JobSpec(
        "idle", 2, IDLE_FILES, 320, 1, keys=8, folder=True, rescaled=1 + 2 * (seed % 2), drift_ms=(20, 100)[seed % 2]
    )
    pace = Pace(step=4.0, network=2.0, visit_elements=1 + seed % 2)
    blows = ((25.0 + 9 * seed, "master dies"),)
    return run(seed, Plan(spec, CheckpointConfig(interval_ms=4), pace, blows=blows))


@pytest.mark.promise("B9", "B2", "D7")
def test_files_wait_for_each_other_and_idle_subtasks_hold_nobody_back() -> None:
    results = [idle(seed) for seed in SEEDS]
    for result in results:
        assert result.violation is None, describe(result)
        assert WAITED in result.hits
    assert sum(result.epochs for result in results) > 5 * len(SEEDS)


def _forgets_who_was_idle(self: AlignmentGroups, number: int, watermarks: Mapping[str, int | None]) -> None:
    idle = {subtask for group in self._groups for subtask, mark in group.reported.items() if mark is None}
    _REPORT(self, number, {subtask: mark for subtask, mark in watermarks.items() if subtask not in idle})


def _waits_for_idle_ones(self: AlignmentGroups, number: int, watermarks: Mapping[str, int | None]) -> None:
    _REPORT(self, number, {subtask: mark for subtask, mark in watermarks.items() if mark is not None})


def _resumes_nobody(self: AlignedSources, number: int, limits: Mapping[str, int]) -> None:
    """Takes limits that fall, and the first one, but none that rises: a split that waits is never read again."""
    known = vars(self).setdefault("known", {})
    known.update({group: min(limit, known.get(group, limit)) for group, limit in limits.items()})
    _LIMITS(self, number, known)


_REPORT, _LIMITS = AlignmentGroups.on_report, AlignedSources.on_limits
BUGS: dict[str, tuple[type, str, Any, tuple[str, ...]]] = {
    "the minimum forgets an idle member that becomes active": (
        AlignmentGroups,
        "on_report",
        _forgets_who_was_idle,
        ("drift",),
    ),
    "idle members are waited for": (AlignmentGroups, "on_report", _waits_for_idle_ones, ("finishes",)),
    "a split that waits is not resumed": (AlignedSources, "on_limits", _resumes_nobody, ("finishes",)),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_in_alignment_is_noticed(bug: str) -> None:
    of, name, planted, invariants = BUGS[bug]
    with patch.object(of, name, planted):
        violations = (idle(seed).violation for seed in SEEDS)
        found = next((violation for violation in violations if violation is not None), None)
    assert found is not None and found.invariant in invariants, found


def repeated(seed: int) -> Result:
    """Topology: two splits of two source subtasks. Fault: many messages come again, after newer ones."""
    spec = JobSpec("timers", parallelism=2, splits=2, rows=36, batch_rows=3, keys=3, drift_ms=20)
    limits = ChannelLimits(own_bytes=500, frame_bytes=250, least_bytes=60)
    pace = Pace(step=2.0, network=1.5, offload=4.0, start=10.0, visit_elements=1, limits=limits)
    checkpoints = CheckpointConfig(interval_ms=16, timeout_ms=12, max_concurrent=3, tolerable_failed=3)
    return run(seed, Plan(spec, checkpoints, pace, network=NetworkFaults(message_repeated=0.4), storm_ms=400.0))


@pytest.mark.promise("B9")
def test_messages_that_come_again_hold_nobody_back() -> None:
    """A bug: a repeated announcement brought an old limit back, and the job stood still for ever (seed 988)."""
    for seed in SEEDS:
        result = repeated(seed)
        assert result.violation is None, describe(result)
        assert WAITED in result.hits


def _old_limits_come_back(self: AlignedSources, number: int, limits: Mapping[str, int]) -> None:
    self._announcement = 0
    _LIMITS(self, number, limits)


def _old_reports_count_again(self: AlignmentGroups, number: int, watermarks: Mapping[str, int | None]) -> None:
    self._newest.clear()
    _REPORT(self, number, watermarks)


@pytest.mark.parametrize(
    ("of", "name", "planted"),
    [
        (AlignedSources, "on_limits", _old_limits_come_back),
        (AlignmentGroups, "on_report", _old_reports_count_again),
    ],
)
def test_a_message_that_counts_again_is_noticed(of: type, name: str, planted: Any) -> None:
    with patch.object(of, name, planted):
        violations = (repeated(seed).violation for seed in range(8, 60))
        found = next((violation for violation in violations if violation is not None), None)
    assert found is not None and found.invariant == "finishes", found
