"""Goal: of a query that Spark can't run, only what the author wrote ends the job.

A real Spark, with real errors: a wrong column, a function that raises, a division by zero; then a worker that is
killed, a store that is not there, files that were deleted, a target that can't be written, and last a killed JVM.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf

from engine.core.errors import SparkFailed, UserFunctionError, WeirError, fault_of
from engine.protocol.failures import Fault
from engine.spark.inputs import SparkInputs
from engine.spark.java import find_java


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkSession]:
    find_java()
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    made = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    made.sparkContext.setLogLevel("OFF")
    yield made
    # The test kills the JVM. PySpark would give the dead one to the next session of this process.
    SparkSession._instantiatedSession = None
    SparkContext._active_spark_context = SparkContext._gateway = SparkContext._jvm = None


def fails(session: SparkSession, folder: Path, frame: Callable[[SparkSession], DataFrame]) -> WeirError | OSError:
    nobody: Any = None
    inputs = SparkInputs(nobody, session, nobody, nobody, nobody, nobody, nobody)
    with pytest.raises((WeirError, OSError)) as error:
        inputs._prepare("orders", lambda: frame(session).write.parquet(f"file://{folder}"))
    return error.value


def deleted(session: SparkSession, folder: Path) -> DataFrame:
    session.range(3).write.parquet(f"file://{folder}")
    found = session.read.parquet(f"file://{folder}")
    for file in folder.glob("*.parquet"):
        file.unlink()
    return found


@pytest.mark.promise("H8")
def test_only_the_author_s_part_of_a_query_ends_the_job(session: SparkSession, tmp_path: Path) -> None:
    @udf("long")
    def raises(n: int) -> int:
        raise ConnectionRefusedError("by my database")

    @udf("long")
    def killed(n: int) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return n

    (tmp_path / "file").touch()
    cases: list[tuple[type[WeirError], str, Callable[[SparkSession], DataFrame], str]] = [
        (UserFunctionError, "nope", lambda s: s.range(3).select("nope"), "out1"),
        (UserFunctionError, "by my database", lambda s: s.range(3).select(raises("id")), "out2"),
        (UserFunctionError, "DIVIDE_BY_ZERO", lambda s: s.range(3).selectExpr("1 / (id - id)"), "out3"),
        (UserFunctionError, "PATH_NOT_FOUND", lambda s: s.read.parquet("/nowhere"), "out4"),
        (SparkFailed, "", lambda s: s.range(3).select(killed("id")), "out5"),
        (SparkFailed, "ConnectException", lambda s: s.read.parquet("hdfs://127.0.0.1:1/x"), "out6"),
        (SparkFailed, "", lambda s: deleted(s, tmp_path / "in"), "out7"),
        (SparkFailed, "ParentNotDirectory", lambda s: s.range(3).toDF("n"), "file/x"),
    ]
    for kind, says, frame, out in cases:
        error = fails(session, tmp_path / out, frame)
        assert type(error) is kind and says in str(error) and "operator 'orders'" in str(error), (out, str(error))
    java = session.sparkContext._gateway.proc.pid
    os.kill(java, signal.SIGKILL)
    session.sparkContext._gateway.proc.wait()
    assert fault_of(fails(session, tmp_path / "out8", lambda s: s.range(3).toDF("n"))) is Fault.OUTSIDE
