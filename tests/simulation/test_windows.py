"""Windows with a function and a trigger, under the faults of the first seeds.

Topology: a source, session windows with a trigger that fires early and drops, a table (tests/simulation/sessions.py).
Faults: those of the seed (tests/simulation/faults.py), and slots that die. Checks: tests/simulation/invariants.py; each
record is published once or held by a window at every epoch; sessions have the right bounds at the end. Each planted
bug is noticed by some seed, and without it all seeds pass.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from engine.api import TriggerResult
from engine.protocol.config import CheckpointConfig
from engine.runtime.operators.windowed_functions import SESSIONS as WINDOW_SESSIONS
from engine.runtime.operators.windowed_functions import WindowOperator
from engine.state.keyed.heap import HeapBackend
from engine.state.windows import record_plan
from engine.state.windows.assigners import Span
from engine.state.windows.record_plan import Accumulator, RecordPlan
from engine.state.windows.sessions import Merge, Sessions
from tests.simulation.cluster import Pace
from tests.simulation.faults import draw_plan
from tests.simulation.jobs import SESSIONS, JobSpec
from tests.simulation.run import describe
from tests.simulation.simulation import Result, run

SEEDS = range(16, 28)
SLOW = Pace(visit_elements=1, step=8.0, network=0.2, offload=0.5)
"""Slow steps and quick checkpoints: the job still runs when something dies."""


def sessions(seed: int, aggregated: bool = False) -> Result:
    """Runs a job of many small epochs, whose slots die now and then besides what else the seed breaks."""
    plan = draw_plan(seed)
    of = JobSpec(SESSIONS, parallelism=2 + seed % 2, splits=2, rows=48, batch_rows=2, aggregated=aggregated)
    checkpoints = CheckpointConfig(interval_ms=2, max_concurrent=2, tolerable_failed=50)
    deaths = [(30.0 + 40 * count + 3 * (seed % 5), "slot dies") for count in range(3)]
    blows = tuple(sorted([*plan.blows, *deaths]))
    return run(seed, replace(plan, spec=of, checkpoints=checkpoints, pace=SLOW, blows=blows, user_fault=None))


@pytest.mark.promise("B4", "B5", "B6", "D10", "D11")
def test_sessions_with_a_trigger_are_exact_whatever_the_seed_breaks() -> None:
    for seed in SEEDS:
        result = sessions(seed)
        assert result.violation is None, describe(result)


def aggregated(seed: int) -> Result:
    """Runs the job with built-in aggregates, which fold the values of two records."""
    with patch.object(record_plan, "PENDING", 2):
        return sessions(seed, aggregated=True)


@pytest.mark.promise("B4", "B5", "B6", "D10", "D11")
def test_built_in_aggregates_of_sessions_are_exact_whatever_the_seed_breaks() -> None:
    for seed in SEEDS:
        result = aggregated(seed)
        assert result.violation is None, describe(result)


def _only_what_came_last(self: RecordPlan, accumulators: Sequence[Accumulator]) -> Accumulator:
    """Folds values, and forgets what was folded before."""
    return _FOLDED(self, [{**one, "rows": len(one["pending"]["n"]), "partial": None} for one in accumulators])


def _the_first_of_them(self: RecordPlan, accumulators: Sequence[Accumulator]) -> Accumulator:
    return accumulators[0]


_FOLDED = RecordPlan._folded
IN_AGGREGATES: dict[str, tuple[str, Callable[..., Any]]] = {
    "what was folded before is lost": ("_folded", _only_what_came_last),
    "accumulators are not merged": ("combined", _the_first_of_them),
}


@pytest.mark.parametrize("bug", IN_AGGREGATES)
def test_a_planted_bug_in_aggregates_is_noticed(bug: str) -> None:
    name, planted = IN_AGGREGATES[bug]
    with patch.object(RecordPlan, name, planted):
        violations = (aggregated(seed).violation for seed in SEEDS)
        found = next((violation for violation in violations if violation is not None), None)
    assert found is not None and found.invariant in ("no_loss", "windows"), found


def _contents_stay_where_they_were(self: WindowOperator, merge: Merge) -> None:
    """Merges the windows, and forgets the contents of all but the first."""
    _MERGE(self, replace(merge, moved=()))


def _what_is_purged_stays(
    self: WindowOperator, result: TriggerResult, span: Span, held: Span, ends: bool = False
) -> None:
    _ACT(self, TriggerResult.FIRE if result is TriggerResult.FIRE_AND_PURGE else result, span, held, ends)


def _sessions_not_restored(self: HeapBackend, name: str, table: pa.Table) -> None:
    if name != WINDOW_SESSIONS:
        _RESTORE(self, name, table)


def _alone(self: Sessions, window: Span) -> Merge:
    """Keeps windows that touch apart."""
    self._held.setdefault(window, window)
    return Merge(window, window)


_MERGE, _ACT, _RESTORE = WindowOperator._merge, WindowOperator._act, HeapBackend.restore
BUGS: dict[str, tuple[type, str, Callable[..., Any], tuple[str, ...]]] = {
    "contents are not merged": (WindowOperator, "_merge", _contents_stay_where_they_were, ("no_loss", "windows")),
    "what is purged stays": (WindowOperator, "_act", _what_is_purged_stays, ("no_duplicate",)),
    "sessions are not restored": (HeapBackend, "restore", _sessions_not_restored, ("no_loss", "windows")),
    "sessions are not merged": (Sessions, "add", _alone, ("windows",)),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_in_windows_is_noticed(bug: str) -> None:
    of, name, planted, invariants = BUGS[bug]
    with patch.object(of, name, planted):
        violations = (sessions(seed).violation for seed in SEEDS)
        found = next((violation for violation in violations if violation is not None), None)
    assert found is not None and found.invariant in invariants, found
