"""A Spark that died, was stopped or hangs is noticed, once."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from engine.spark import watch
from engine.spark.watch import SparkWatch


def raises() -> bool:
    raise ConnectionRefusedError("[Errno 111] Connection refused")


def hangs() -> bool:
    threading.Event().wait(120)
    return False


@pytest.mark.promise("F2")
@pytest.mark.parametrize(
    ("answer", "patience_s", "says"),
    [
        (raises, 120, "Spark's JVM is gone: ConnectionRefusedError: [Errno 111] Connection refused"),
        (lambda: True, 120, "the SparkContext was stopped"),
        (hangs, 0.2, "Spark's JVM did not answer for 0 s"),
    ],
)
def test_a_spark_that_died_was_stopped_or_hangs_is_lost(
    answer: Callable[[], bool], patience_s: float, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "ASK_S", 0.02)
    lost: list[str] = []
    noticed = threading.Event()
    SparkWatch(answer, patience_s, lambda why: (lost.append(why), noticed.set())).start()
    assert noticed.wait(60) and lost == [says]


def test_a_spark_that_answers_is_not_lost_and_nobody_hears_of_one_that_ends_on_purpose(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The patience is far above what a busy machine takes for a thread's turn, so only the answers decide."""
    monkeypatch.setattr(watch, "ASK_S", 0.01)
    lost: list[str] = []
    answers: list[bool] = []
    asked_often = threading.Event()
    ends = threading.Event()

    def stopped() -> bool:
        if len(answers) == 20:
            asked_often.set()
            ends.wait(60)
        answers.append(ends.is_set())
        return answers[-1]

    before = set(threading.enumerate())
    watching = SparkWatch(stopped, 120, lost.append)
    watching.start()
    watchers = set(threading.enumerate()) - before
    assert asked_often.wait(60) and lost == []
    watching.stop()
    ends.set()
    for watcher in watchers:
        watcher.join(60)
    assert answers == [False] * 20 + [True] and lost == []
