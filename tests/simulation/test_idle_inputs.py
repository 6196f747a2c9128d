"""Subtasks of one operator at different watermarks, restored as one.

Topology: two source subtasks whose files appear in turns, so that each is idle while the other reads, and two window
subtasks. A window subtask that hears of the end of idleness before the other's watermark stands lower than one that
hears of it after. Fault: the JobMaster dies right after an epoch in which the two differ, and the next one runs the job
at parallelism 1. Checks: all of tests/simulation/invariants.py: no window is published twice, no watermark falls.
"""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from unittest.mock import patch

import pytest

from engine.protocol.config import CheckpointConfig
from engine.runtime.operators.base import OperatorContext, RestoredState
from engine.state.group_clock import GroupClock
from tests.simulation.bugs import Patches
from tests.simulation.cluster import Pace
from tests.simulation.faults import Plan
from tests.simulation.jobs import IDLE_FILES, JobSpec
from tests.simulation.run import describe
from tests.simulation.simulation import Result, run

SEEDS = range(20)


def idle(seed: int, master_dies_ms: float | None = None) -> Result:
    spec = JobSpec("idle", 2, IDLE_FILES, 48, 1 + seed % 2, keys=8, folder=True, rescaled=1)
    pace = Pace(step=4.0, network=6.0, visit_elements=1 + seed % 2)
    blows = () if master_dies_ms is None else ((master_dies_ms + 0.3, "master dies"),)
    return run(seed, Plan(spec, CheckpointConfig(interval_ms=2), pace, blows=blows))


def one_watermark_for_all_groups(choose: Callable[[Iterable[int]], int]) -> Patches:
    """Plants a bug: after a restore one watermark holds for all key groups of a subtask."""
    made = OperatorContext.group_clock

    def flat(self: OperatorContext, restored: RestoredState | None) -> GroupClock:
        clock = made(self, restored)
        clock._restored[:] = choose(clock._restored.tolist())
        clock.now_ms = clock._highest_ms = int(clock._restored[0])
        return clock

    return [(OperatorContext, "group_clock", flat)]


def uneven() -> list[tuple[int, float]]:
    """Returns seeds and moments at which an epoch was published whose subtasks differ."""
    found = [(seed, at_ms) for seed in SEEDS for at_ms in idle(seed).uneven_ms]
    assert len(found) >= 10, "too few runs have subtasks at different watermarks: the test checks nothing"
    return found


@pytest.mark.promise("B2", "B7", "D7")
def test_no_watermark_falls_and_no_window_opens_again_when_two_subtasks_become_one() -> None:
    for seed, at_ms in uneven():
        result = idle(seed, at_ms)
        assert result.violation is None, describe(result)


@pytest.mark.parametrize(("choose", "invariant"), [(min, "watermarks"), (max, "internal_error")])
def test_one_restored_watermark_for_all_key_groups_is_noticed(
    choose: Callable[[Iterable[int]], int], invariant: str
) -> None:
    """The lowest lets windows open again. The highest drops records of windows that have not fired."""
    caught = set()
    for seed, at_ms in uneven():
        with ExitStack() as planted:
            for patched in one_watermark_for_all_groups(choose):
                planted.enter_context(patch.object(*patched))
            violation = idle(seed, at_ms).violation
        caught |= {violation.invariant} if violation else set()
    assert caught == {invariant}
