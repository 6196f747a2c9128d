"""The autoscaler decides on shares that were measured, within its bounds, and not too often."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.protocol.autoscale import Bounds, Load, wanted_parallelism

BOUNDS = Bounds(1, 8, target_busy=0.7, tolerance=0.15, cool_down_ms=60_000)


def decided(current: int, *loads: Load, bounds: Bounds = BOUNDS) -> int | None:
    return wanted_parallelism(bounds, current, loads, None, 0)


@pytest.mark.promise("F5")
def test_a_busy_job_gets_more_subtasks_and_an_idle_one_fewer() -> None:
    assert decided(2, Load(2, 0.95)) == 3
    assert decided(6, Load(6, 0.2)) == 2
    assert decided(4, Load(4, 0.0)) == 1


def test_a_load_near_the_target_leaves_the_job_alone() -> None:
    assert decided(3, Load(3, 0.7)) is None
    assert decided(3, Load(3, 0.84)) is None
    assert decided(3, Load(3, 0.56)) is None


def test_the_busiest_vertex_decides() -> None:
    assert decided(4, Load(4, 0.1), Load(4, 1.0)) == 6


def test_back_pressure_gives_the_slow_vertex_one_more_than_its_share_says() -> None:
    """The source is held back for half of the time, so more work waits than the busy window shows."""
    assert decided(3, Load(3, 0.3, back_pressured=0.5), Load(3, 0.7)) == 4


def test_a_vertex_of_its_own_parallelism_is_not_counted() -> None:
    assert decided(3, Load(3, 0.7), Load(1, 1.0, scalable=False)) is None


def test_nothing_is_decided_without_a_measurement() -> None:
    assert decided(3) is None


def test_a_job_outside_of_the_bounds_is_brought_inside() -> None:
    bounds = Bounds(2, 4)
    assert decided(9, bounds=bounds) == 4
    assert decided(1, Load(1, 0.0), bounds=bounds) == 2


def test_nothing_changes_during_the_cool_down() -> None:
    busy = [Load(2, 1.0)]
    assert wanted_parallelism(BOUNDS, 2, busy, 1000, 60_999) is None
    assert wanted_parallelism(BOUNDS, 2, busy, 1000, 61_000) == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"least": 0, "most": 2},
        {"least": 3, "most": 2},
        {"least": 1, "most": 2, "target_busy": 1.0},
        {"least": 1, "most": 2, "tolerance": 0.7},
        {"least": 1, "most": 2, "cool_down_ms": -1.0},
    ],
)
def test_bounds_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"must be|write"):
        Bounds(**wrong)  # type: ignore[arg-type]


shares = st.floats(0, 1)
loads = st.lists(st.builds(Load, st.integers(1, 40), shares, shares, st.booleans()), max_size=5)
bounds = st.builds(
    lambda least, more, target, part: Bounds(least, least + more, target, part * target),
    st.integers(1, 20),
    st.integers(0, 20),
    st.floats(0.1, 0.95),
    st.floats(0, 0.9),
)


@given(bounds, st.integers(1, 60), loads)
def test_what_is_decided_is_within_the_bounds_and_a_change(bounds: Bounds, current: int, loads: list[Load]) -> None:
    wanted = wanted_parallelism(bounds, current, loads, None, 0)
    assert wanted is None or (bounds.least <= wanted <= bounds.most and wanted != current)
    if wanted is None and not any(load.scalable for load in loads):
        assert bounds.least <= current <= bounds.most


@given(bounds, st.integers(1, 40), shares)
def test_the_same_work_at_the_decided_parallelism_is_left_alone_or_shrinks_no_further(
    bounds: Bounds, current: int, busy: float
) -> None:
    """A decision leads to rest: with the same work nothing is decided again in the same direction."""
    wanted = wanted_parallelism(bounds, current, [Load(current, busy)], None, 0)
    if wanted is None:
        return
    work = current * busy
    again = wanted_parallelism(bounds, wanted, [Load(wanted, min(1.0, work / wanted))], None, 0)
    assert again is None or (again - wanted) * (wanted - current) <= 0 or work / wanted > 1.0
