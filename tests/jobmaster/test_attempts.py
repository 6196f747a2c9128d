"""Whether the job is tried again."""

from __future__ import annotations

import pytest

from engine.jobmaster.attempts import Restarts
from engine.protocol.restart import FixedDelay, NoRestart


@pytest.mark.promise("D10")
def test_the_restart_strategy_decides_when_and_whether() -> None:
    restarts = Restarts(FixedDelay(attempts=2, delay_ms=10), same_error_limit=3)
    assert [restarts.on_failure(0.0, 0.5) for _ in range(3)] == [10, 10, None]
    assert Restarts(NoRestart(), 3).on_failure(0.0, 0.5) is None


def test_the_same_error_of_the_job_s_own_code_is_not_tried_for_ever() -> None:
    restarts = Restarts(FixedDelay(attempts=99, delay_ms=10), same_error_limit=3)
    assert restarts.on_job_error("a") is None and restarts.on_job_error("a") is None
    assert restarts.on_job_error("a") == "a (the same error 3 times without a checkpoint in between)"


def test_another_error_or_an_epoch_in_between_begins_the_count_again() -> None:
    restarts = Restarts(FixedDelay(attempts=99, delay_ms=10), same_error_limit=2)
    assert [restarts.on_job_error(error) for error in ("a", "b", "a")] == [None, None, None]
    restarts.on_published()
    assert restarts.on_job_error("a") is None and restarts.on_job_error("a") is not None
