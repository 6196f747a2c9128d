"""Whose fault it is if Spark can't write what a job reads."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from engine.core.errors import SparkLost, StoreError, UserFunctionError
from engine.spark.inputs import SparkInputs


def inputs(error: Exception, spark: Callable[[], bool]) -> SparkInputs:
    def prepare(*_: object) -> None:
        raise error

    source = SimpleNamespace(uid="orders", source=SimpleNamespace(prepare=prepare))
    graph: Any = SimpleNamespace(vertices=[SimpleNamespace(source=source)], static_tables=[])
    java: Any = SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=spark))
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=java))
    nobody: Any = None
    return SparkInputs(graph, session, nobody, nobody, nobody, nobody, nobody)


def gone() -> bool:
    raise ConnectionRefusedError


@pytest.mark.promise("H8")
def test_a_query_that_spark_refuses_is_the_job_s_own_fault_and_names_its_source() -> None:
    with pytest.raises(UserFunctionError, match=r"operator 'orders', subtask 0, prepare\(\): KeyError: 'no column'"):
        inputs(KeyError("no column"), lambda: False).prepare()


@pytest.mark.promise("H8")
@pytest.mark.parametrize("spark", [gone, lambda: True])
def test_a_spark_that_ended_meanwhile_is_not(spark: Callable[[], bool]) -> None:
    with pytest.raises(SparkLost, match="Spark ended while it wrote the job's inputs"):
        inputs(RuntimeError("Answer from Java side is empty"), spark).prepare()


@pytest.mark.promise("H8")
@pytest.mark.parametrize("error", [StoreError("can't write"), OSError(28, "No space left on device")])
def test_neither_is_a_store_that_fails(error: Exception) -> None:
    with pytest.raises(type(error)):
        inputs(error, lambda: False).prepare()
