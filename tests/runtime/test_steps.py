"""How long the task thread has been in one step, as another thread sees it."""

from __future__ import annotations

from engine.runtime.steps import StepWatch


def test_a_step_lasts_until_the_position_changes() -> None:
    watch = StepWatch(0.0)
    assert [watch.look(position, 250.0 * look) for look, position in enumerate("aaabb", 1)] == [0, 250, 500, 0, 250]


def test_the_sleep_of_the_whole_process_is_no_long_step() -> None:
    watch = StepWatch(0.0)
    watch.look("a", 250.0)
    assert watch.look("a", 600_000.0) == 1000.0
