"""Sliding and session windows in Spark Structured Streaming: `python -m benchmarks.timed.spark FOLDER QUERY ROWS`.

All rows come in one micro-batch (`availableNow`), the largest that Spark can have: smaller ones would cost it more. A
first query on few rows warms the JVM up.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from benchmarks.spark_peer import CORES, PROVIDERS, SETTINGS
from engine.spark.java import prepare_environment

SCHEMA = "id LONG, key LONG, value LONG, ts TIMESTAMP_NTZ"


def windows() -> dict[str, Column]:
    return {"sliding": F.window("ts", "1 hour", "5 minutes"), "session": F.session_window("ts", "30 seconds")}


def main() -> None:
    folder, query, rows = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    os.environ.update(prepare_environment())
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.master(f"local[{CORES}]").appName("peer")
    for name, value in {**SETTINGS, **PROVIDERS["heap"]}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    _run(spark, query, f"{rows}/few", folder / "warmup")
    seconds = _run(spark, query, f"{rows}/left", folder)
    (folder / "result.json").write_text(json.dumps({"seconds": seconds}))
    spark.stop()


def _run(spark: SparkSession, query: str, rows: str, folder: Path) -> float:
    stream = spark.readStream.schema(SCHEMA).parquet(rows).withColumn("ts", F.col("ts").cast("timestamp"))
    grouped = stream.withWatermark("ts", "4 seconds").groupBy(windows()[query].alias("window"), "key")
    results = grouped.agg(F.count("*").alias("num"), F.sum("value").alias("total"))
    flat = results.selectExpr("key", "num", "total", "window.start AS window_start", "window.end AS window_end")
    began = time.perf_counter()
    written = flat.writeStream.format("parquet").outputMode("append").trigger(availableNow=True)
    written = written.option("checkpointLocation", str(folder / "checkpoint"))
    written.start(str(folder / "table")).awaitTermination()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
