"""Session windows, and windows with allowed lateness and a side output, under the faults of the simulator.

Topology: two source splits, keyed windows at parallelism 2, a table of results and one of late records. Faults: those
that the seed draws for any job; in every other run the next JobMaster has another parallelism. Checks: all of
tests/simulation/invariants.py, and the oracle of tests/simulation/late_windows.py.
"""

from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from engine.protocol.config import CheckpointConfig, CheckpointingMode
from engine.runtime.operators.base import OperatorContext, RestoredState
from engine.runtime.operators.session_window import SessionMerge
from engine.runtime.operators.window import WindowMerge
from engine.runtime.operators.window_clocks import WindowClocks
from tests.simulation.bugs import Patches
from tests.simulation.cluster import Pace
from tests.simulation.faults import Plan, draw_plan
from tests.simulation.jobs import JobSpec
from tests.simulation.run import describe
from tests.simulation.simulation import Result, run

SEEDS = range(4)
JOBS = {
    "sessions": JobSpec("windows", 2, 2, 36, 3, gap_ms=60),
    "late sessions": JobSpec("late", 2, 2, 36, 3, gap_ms=60),
    "lateness": JobSpec("late", 2, 2, 36, 3, lateness_ms=200),
    "late sessions aside": JobSpec("late", 2, 2, 36, 3, gap_ms=60, lateness_ms=0),
}


def simulated(job: str, seed: int) -> Result:
    plan = draw_plan(seed)
    spec = replace(JOBS[job], rescaled=3 if seed % 2 else None)
    checkpoints = msgspec.structs.replace(plan.checkpoints, interval_ms=4, mode=CheckpointingMode.EXACTLY_ONCE)
    return run(seed, replace(plan, spec=spec, checkpoints=checkpoints, user_fault=None))


def slow(job: str, seed: int, master_dies_ms: float) -> Result:
    """Runs a job with many epochs, in which uploads take long, and whose JobMaster dies in the middle."""
    spec = replace(JOBS[job], rows=72, batch_rows=2)
    pace = Pace(step=4.0, network=6.0, visit_elements=1, offload=8.0 if JOBS[job].gap_ms else 1.0)
    return run(seed, Plan(spec, CheckpointConfig(interval_ms=2), pace, blows=((master_dies_ms, "master dies"),)))


@pytest.mark.promise("B4", "B7", "D7", "D11")
@pytest.mark.parametrize("job", JOBS)
def test_windows_survive_the_faults_of_the_simulator(job: str) -> None:
    for result in [*(simulated(job, seed) for seed in SEEDS), slow(job, 1, 30.0)]:
        assert result.violation is None, describe(result)


def kept_windows_fire_again_after_a_restore() -> Patches:
    """Plants a bug: what has fired before the snapshot is not known to have."""
    opened = WindowMerge.open

    def forgetful(self: WindowMerge, context: OperatorContext, restored: RestoredState | None) -> None:
        opened(self, context, restored)
        self._clocks = WindowClocks(context, None, self._lateness_ms)
        self._clock, self._forgotten = self._clocks.fired, self._clocks.forgotten

    return [(WindowMerge, "open", forgetful)]


def sessions_are_copied_after_the_barrier() -> Patches:
    """Plants a bug: a snapshot of sessions has what the upload finds (C3)."""
    taken = SessionMerge.snapshot

    def late(self: SessionMerge, checkpoint: int) -> Any:
        snapshot = taken(self, checkpoint)
        (part,) = snapshot.parts
        return replace(snapshot, parts=(replace(part, table=lambda: self._runs.compact(self._runs.freeze())),))

    return [(SessionMerge, "snapshot", late)]


@pytest.mark.parametrize(
    ("job", "bug", "invariants"),
    [
        ("lateness", kept_windows_fire_again_after_a_restore, {"no_reopened_window"}),
        ("sessions", sessions_are_copied_after_the_barrier, {"no_duplicate"}),
    ],
)
def test_a_planted_bug_is_noticed(job: str, bug: Any, invariants: set[str]) -> None:
    with ExitStack() as planted:
        for patched in bug():
            planted.enter_context(patch.object(*patched))
        violation = slow(job, 1, 30.0).violation
    assert violation is not None and violation.invariant in invariants
