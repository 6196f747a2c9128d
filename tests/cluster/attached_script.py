"""A script as a user writes it, for test_attached.py: DataFrames in, a Weir table out, in one Spark application.

`python attached_script.py MASTER STORE [kill]`; prints what Spark finds in the tables.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from engine.api import FixedDelay, StreamEnvironment, TumblingEventTimeWindows, WatermarkStrategy, count, total
from engine.core.errors import JobFailed, WeirError

ROWS = 60_000
DOUBLED = 2


def slow(row: dict[str, object]) -> dict[str, object]:
    """Doubles the value. Workers can't import this function: it is defined in the script."""
    time.sleep(0.00005)
    return {**row, "value": row["value"] * DOUBLED}  # type: ignore[operator]


def main() -> None:
    master, store = sys.argv[1], sys.argv[2]
    spark = SparkSession.builder.master(master).appName("notebook").config("spark.ui.port", "0").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    numbers = spark.range(0, ROWS, 1, 4).selectExpr("id % 10 AS key", "id AS value", "timestamp_millis(id) AS ts")
    names = spark.range(9).select(F.col("id").alias("key"), F.concat(F.lit("key "), "id").alias("name"))

    env = StreamEnvironment(spark, store=store, parallelism=2)
    env.enable_checkpointing("200 ms")
    env.set_restart_strategy(FixedDelay(attempts=20, delay_ms=100))
    stamped = env.from_spark(numbers, uid="numbers").assign_timestamps_and_watermarks(
        WatermarkStrategy.for_monotonous_timestamps().with_timestamps("ts")
    )
    named = stamped.map(slow).join_static(names, on="key", how="left", uid="names")
    windows = named.key_by("key", "name").window(TumblingEventTimeWindows.of("10 s"))
    windows.aggregate(rows=count(), sum=total("value"), uid="sums").to_spark_table(f"{store}/lake/sums", uid="out")

    job = env.execute_async("attached")
    if "kill" in sys.argv:
        os.kill(first_slot(job), signal.SIGKILL)
    end = job.wait()
    found = spark.read.parquet(f"{store}/lake/sums")
    rows = found.groupBy("key", "name").agg(F.sum("rows"), F.sum("sum")).orderBy("key").collect()
    restarts = Path(store, "attached/history/events.jsonl").read_text().count('"attempt_failed"')
    found = {"rows": [list(r) for r in rows], "outcome": end.outcome, "restarts": restarts}
    print("RESULT" + json.dumps({**found, "failed": failure(StreamEnvironment(spark, store=store))}))


def failure(env: StreamEnvironment) -> list[str]:
    """Runs a job whose function always raises. Returns what the script sees of it."""
    env.enable_checkpointing("200 ms")
    env.set_restart_strategy(FixedDelay(attempts=20, delay_ms=100))
    env.from_elements([{"n": n} for n in range(100)], "n long").map(refuse).print()
    try:
        env.execute("refused")
    except JobFailed as error:
        return [str(error), str(error.__cause__)]
    return []


def refuse(row: dict[str, object]) -> dict[str, object]:
    raise ValueError(f"refused {row['n']}")


def first_slot(job: object) -> int:
    while True:
        try:
            status = job.client.status()  # type: ignore[attr-defined]
            if status.checkpoints.completed >= 2:
                return int(status.slots[0].pid)
        except WeirError:
            pass
        time.sleep(0.05)


main()
