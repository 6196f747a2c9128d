"""Goal: a job runs in a notebook as other Spark code does.

Topology: a real Jupyter kernel with a session of its own; functions and classes of its cells run in slots. Checks: what
the cells print, and that the kernel and its Spark end by themselves.
"""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from engine.spark.java import prepare_environment

ROOT = Path(__file__).parents[2]

SESSION = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[3]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
"""

JOB = """
import pyarrow as pa
from engine.api import KeyedProcessFunction, StreamEnvironment, ValueStateDescriptor

FACTOR = 10

class Numbered(KeyedProcessFunction):
    def open(self, context):
        self._seen = context.get_state(ValueStateDescriptor("seen", pa.int64()))

    def process_element(self, value, context):
        seen = (self._seen.value() or 0) + 1
        self._seen.update(seen)
        yield {"key": value["key"], "number": seen * FACTOR}

def define(store):
    env = StreamEnvironment(spark, store=store, parallelism=2)
    env.enable_checkpointing("200 ms")
    rows = spark.range(0, 9_000, 1, 3).selectExpr("id % 3 AS key")
    keyed = env.from_spark(rows, uid="rows").key_by("key")
    numbered = keyed.process(Numbered(), uid="numbered", schema="key long, number long")
    numbered.to_spark_table(f"{store}/lake/numbered", uid="out")
    return env

define(store).execute("numbered")
print("it has ended")
"""

READ = """
highest = spark.read.parquet(f"{store}/lake/numbered").groupBy("key").max("number")
sorted(map(tuple, highest.collect()))
"""

AGAIN = """
FACTOR = 1  # a changed cell: the job has ended, and another begins
import time

def slowly(row):
    time.sleep(0.001)
    return row

env = StreamEnvironment(spark, store=store, parallelism=2)
env.enable_checkpointing("200 ms")
env.from_spark(spark.range(0, 1_000_000), uid="rows").map(slowly).to_spark_table(f"{store}/lake/slow", uid="slow")
job = env.execute_async("endless")
while True:
    try:
        if job.client.status().checkpoints.completed >= 1:
            break
    except Exception:  # it is starting
        pass
    time.sleep(0.1)
print("other queries go on:", spark.range(10).count())
job.cancel()
print(job.wait().outcome)
"""


@pytest.mark.promise("F1")
def test_cells_define_run_watch_and_cancel_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # so that cells don't import from this checkout by chance
    for name, value in {**prepare_environment(), "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    sources = [f"store = {os.fspath(tmp_path)!r}", SESSION, JOB, READ, AGAIN, "spark.stop()"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    NotebookClient(notebook, timeout=400, kernel_name="python3").execute()
    job, read, again = (_said(notebook.cells[number]) for number in (2, 3, 4))
    assert job == "it has ended\n"
    assert read == "[(0, 30000), (1, 30000), (2, 30000)]"
    assert "other queries go on: 10" in again and again.rstrip().endswith("cancelled")


def _said(cell: nbformat.NotebookNode) -> str:
    """Returns the cell's printed text, then its value."""
    printed = [output.text for output in cell.outputs if output.output_type == "stream" and output.name == "stdout"]
    values = [output.data["text/plain"] for output in cell.outputs if output.output_type == "execute_result"]
    return "".join([*printed, *values])
