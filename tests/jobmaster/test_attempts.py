"""Whether the job is tried again."""

from __future__ import annotations

import pytest

from engine.jobmaster.attempts import Restarts
from engine.protocol.failures import Fault, Raised
from engine.protocol.restart import FixedDelay, NoRestart

STRATEGY = FixedDelay(attempts=99, delay_ms=10)


def error(line: str = "job.py:7", record: str = "", kind: str = "ValueError", text: str = "bad") -> Raised:
    return Raised(kind, text, line, "record 1", record, "")


@pytest.mark.promise("D10")
def test_the_restart_strategy_decides_when_and_whether() -> None:
    restarts = Restarts(FixedDelay(attempts=2, delay_ms=10), same_error_limit=3)
    assert [restarts.on_failure(0.0, 0.5, Fault.JOB) for _ in range(3)] == [10, 10, None]
    assert Restarts(NoRestart(), 3).on_failure(0.0, 0.5, Fault.JOB) is None


@pytest.mark.promise("H8")
def test_errors_of_the_same_operator_type_and_line_are_the_same_whatever_their_texts_say() -> None:
    restarts = Restarts(STRATEGY, same_error_limit=3)
    texts = [error(text=f"subtask {n}", record=f"{{'n': {n}}}") for n in range(3)]
    assert [restarts.on_job_error("clean", text) for text in texts] == [None, None, 3]


@pytest.mark.promise("H8")
def test_the_same_record_at_the_same_line_is_tried_once_more_and_not_twice() -> None:
    restarts = Restarts(STRATEGY, same_error_limit=3)
    assert restarts.on_job_error("clean", error(record="{'n': 1}")) is None
    assert restarts.on_job_error("clean", error(record="{'n': 1}")) == 2


@pytest.mark.promise("H8")
def test_errors_that_take_turns_end_the_job_too() -> None:
    restarts = Restarts(STRATEGY, same_error_limit=3)
    turns = [("clean", error()), ("price", error())] * 3
    assert [restarts.on_job_error(uid, raised) for uid, raised in turns] == [None, None, None, None, 3, 3]


@pytest.mark.parametrize("other", [("price", error()), ("clean", error("job.py:8")), ("clean", error(kind="KeyError"))])
def test_another_operator_line_or_type_is_another_error(other: tuple[str, Raised]) -> None:
    restarts = Restarts(STRATEGY, same_error_limit=2)
    assert restarts.on_job_error("clean", error()) is None and restarts.on_job_error(*other) is None


def test_an_epoch_in_between_begins_the_count_again() -> None:
    restarts = Restarts(STRATEGY, same_error_limit=2)
    assert restarts.on_job_error("clean", error(record="{}")) is None
    restarts.on_published()
    assert restarts.on_job_error("clean", error(record="{}")) is None
    assert restarts.on_job_error("clean", error()) == 2


@pytest.mark.promise("H8")
def test_errors_of_committers_are_counted_until_an_epoch_is_committed_since_each_follows_a_published_one() -> None:
    restarts = Restarts(STRATEGY, same_error_limit=2)
    assert restarts.on_commit_error("out", error()) is None
    restarts.on_committed()
    assert restarts.on_commit_error("out", error()) is None
    restarts.on_published()
    assert restarts.on_commit_error("out", error()) == 2
