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
    threading.Event().wait(60)
    return False


@pytest.mark.promise("F2")
@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (raises, "Spark's JVM is gone: ConnectionRefusedError: [Errno 111] Connection refused"),
        (lambda: True, "the SparkContext was stopped"),
        (hangs, "Spark's JVM did not answer for 0 s"),
    ],
)
def test_a_spark_that_died_was_stopped_or_hangs_is_lost(
    answer: Callable[[], bool], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "ASK_S", 0.02)
    lost: list[str] = []
    noticed = threading.Event()
    SparkWatch(answer, 0.2, lambda why: (lost.append(why), noticed.set())).start()
    assert noticed.wait(10) and lost == [says]


def test_a_spark_that_answers_is_not_lost_and_nobody_hears_of_one_that_ends_on_purpose(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch, "ASK_S", 0.02)
    lost: list[str] = []
    ends = threading.Event()
    watching = SparkWatch(ends.is_set, 0.1, lost.append)
    watching.start()
    threading.Event().wait(0.4)
    watching.stop()
    ends.set()
    threading.Event().wait(0.2)
    assert lost == []
