"""Runs Spark Structured Streaming on the same rows: `python -m benchmarks.spark_peer FOLDER JSON`.

It has the best configuration that we found: see `SETTINGS` and `_numbers`. docs/benchmarks.md says what was tried.
"""

from __future__ import annotations

import json
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from benchmarks.processes import cpu_s, tree
from benchmarks.rows import BOUND_S, ROWS_PER_WINDOW, WINDOW_S, keys_of, mix, spark_columns
from engine.spark.java import prepare_environment

CORES = 2

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "6g",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": str(CORES),
    # Weir's kernels do not check for overflow either; with Spark's default (on) its rows/s are lower.
    "spark.sql.ansi.enabled": "false",
}
_STORE = "spark.sql.streaming.stateStore"
_STATE = "org.apache.spark.sql.execution.streaming.state"
PROVIDERS = {
    "rocksdb": {
        f"{_STORE}.providerClass": f"{_STATE}.RocksDBStateStoreProvider",
        # Each batch writes the state's changes, not whole files: Spark's own advice for short batches.
        f"{_STORE}.rocksdb.changelogCheckpointing.enabled": "true",
    },
    "heap": {f"{_STORE}.providerClass": f"{_STATE}.HDFSBackedStateStoreProvider"},
}
"""The state stores. `Order.providers` says in which order they are measured: the later one has the warmer JVM."""

BLOCK = 250_000
"""Rows that Spark's `range` makes for each row of the streaming source."""


@dataclass(frozen=True)
class Order:
    """What to measure, and for how long."""

    what: str
    warmup_s: float = 25
    settle_s: float = 4
    seconds: float = 10
    rate: int = 10_000
    keys: int | None = None
    providers: tuple[str, ...] = ("rocksdb", "heap")
    windows: float = 2.5
    """The least number of windows to finish, for the comparison of results."""


def main() -> None:
    folder, order = Path(sys.argv[1]), Order(**json.loads(sys.argv[2]))
    os.environ.update(prepare_environment())
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.master(f"local[{CORES}]").appName("peer")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    result = {"window": _window, "latency": _latency}[order.what](spark, folder, order)
    (folder / "result.json").write_text(json.dumps(result))
    sys.stdout.flush()
    spark.stop()


# --- windows ---

_WINDOW_START = f"timestamp_micros(unix_micros(ts) div {WINDOW_S}000000 * {WINDOW_S}000000) AS window_start"
"""The start is computed: Spark's `window` function, which users would write, takes twice the CPU time here."""


def _window(spark: SparkSession, folder: Path, order: Order) -> dict[str, Any]:
    """Measures the state stores one after the other in one warm JVM (its compiler needs about 25 s on two cores)."""
    with _Windows(spark, folder / "warmup", 6_000_000 // BLOCK, order.keys) as query:
        query.run(order.warmup_s, at_least=3)
        blocks = query.blocks_per_s()
    results = {}
    for provider in order.providers:
        for name, value in PROVIDERS[provider].items():
            spark.conf.set(name, value)
        with _Windows(spark, folder / f"{provider}-settle", blocks, order.keys) as query:
            query.run(order.settle_s, at_least=2)
            blocks = query.blocks_per_s()
        with _Windows(spark, folder / provider, blocks, order.keys) as query:
            results[provider] = query.measure(order.seconds, order.windows)
    return results


class _Windows:
    def __init__(self, spark: SparkSession, folder: Path, blocks: int, keys: int | None) -> None:
        self._rows_per_batch = blocks * BLOCK
        self._table = folder / "table"
        columns = spark_columns(keys=keys)
        rows = _numbers(spark, blocks).selectExpr(*columns).selectExpr("key", "value", _WINDOW_START)
        # A window's start is up to a window's length behind its newest row.
        windows = rows.withWatermark("window_start", f"{WINDOW_S + BOUND_S} seconds").groupBy("window_start", "key")
        counted = windows.agg(F.count("*").alias("count"), F.sum("value").alias("total"))
        results = counted.select("key", "window_start", "count", "total")
        self._writer = (
            results.writeStream.format("parquet")
            .outputMode("append")
            .option("path", str(self._table))
            .option("checkpointLocation", str(folder / "checkpoint"))
        )

    def __enter__(self) -> _Windows:
        self._query = self._writer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._query.stop()

    def run(self, seconds: float, at_least: int) -> None:
        _run(self._query, seconds, at_least)

    def measure(self, seconds: float, windows: float) -> dict[str, Any]:
        self.run(0, at_least=2)
        cpu, skipped = cpu_s(tree(os.getpid())), len(self._batches())
        self.run(seconds, at_least=max(2, math.ceil(windows * ROWS_PER_WINDOW / self._rows_per_batch)))
        cpu, batches = cpu_s(tree(os.getpid())) - cpu, self._batches()[skipped:]
        return {
            "rows_per_s": self._rows_per_s(batches),
            "rows_per_batch": self._rows_per_batch,
            "batch_s": median(_duration_ms(batch) for batch in batches) / 1000,
            "cpu_s_per_million_rows": cpu / (len(batches) * self._rows_per_batch) * 1e6,
            "table": str(self._table),
        }

    def blocks_per_s(self) -> int:
        """Returns how many blocks make a batch of about a second, estimated from the last third of the batches."""
        batches = self._batches()
        return max(1, round(self._rows_per_s(batches[len(batches) * 2 // 3 :]) / BLOCK))

    def _batches(self) -> list[Any]:
        return [progress for progress in self._query.recentProgress if progress.numInputRows]

    def _rows_per_s(self, batches: list[Any]) -> float:
        return len(batches) * self._rows_per_batch * 1000 / sum(_duration_ms(batch) for batch in batches)


def _duration_ms(progress: Any) -> int:
    return int(progress.durationMs["triggerExecution"])


def _run(query: StreamingQuery, seconds: float, at_least: int) -> None:
    """Waits for `seconds`, and until `at_least` more batches are complete. It polls seldom, to leave Spark the CPUs."""
    first, deadline = _last_batch(query), time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0 or _last_batch(query) < first + at_least:
        if not query.isActive:
            raise RuntimeError(f"the Spark query ended by itself: {query.exception()}")
        time.sleep(max(0.5, left))


def _last_batch(query: StreamingQuery) -> int:
    progress = query.lastProgress
    return progress.batchId if progress is not None else -1


def _numbers(spark: SparkSession, blocks: int) -> DataFrame:
    """Returns replayable row numbers, made as fast as Spark can: by `range`, which is compiled into the query's loop.

    `rate-micro-batch`, Spark's generator for benchmarks, makes single row objects. It therefore gives only the numbers
    of the blocks of rows in a batch.
    """
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", blocks).option("numPartitions", 1)
    block = F.broadcast(source.load().select("value"))
    return spark.range(0, BLOCK, 1, CORES).join(block).selectExpr(f"value * {BLOCK}L + id AS n")


# --- latency ---


def _latency(spark: SparkSession, folder: Path, order: Order) -> dict[str, Any]:
    """Measures rows that arrive over a socket when they are due. The clock is read behind the exchange.

    With the default trigger each batch starts when the last one is done, and takes all rows that have arrived.
    """
    port = _feed(order.rate)
    lines = spark.readStream.format("socket").option("host", "127.0.0.1").option("port", port).load()
    fields = lines.selectExpr("explode(split(value, ' ')) AS row").selectExpr("split(row, ',') AS f")
    rows = fields.selectExpr("CAST(f[0] AS long) AS key", "CAST(f[1] AS long) AS due_us")
    counted = rows.groupBy("key").agg(F.count("*").alias("seen"), F.max("due_us").alias("due_us"))
    seen: list[tuple[float, np.ndarray]] = []

    def keep(batch: DataFrame, _: int) -> None:
        table: pa.Table = batch.selectExpr("due_us", _NOW_MS + " AS now_ms").toArrow()
        late_us = table.column("now_ms").to_numpy() * 1000 - table.column("due_us").to_numpy()
        seen.append((time.monotonic(), late_us))

    query = (
        counted.writeStream.outputMode("update")
        .foreachBatch(keep)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )
    _run(query, order.warmup_s, at_least=5)
    since = time.monotonic()
    _run(query, order.seconds, at_least=10)
    query.stop()
    latencies = np.concatenate([late_us for at, late_us in seen if at >= since]) / 1000
    durations = [_duration_ms(progress) for progress in query.recentProgress[-20:]]
    return {
        "p50_ms": float(np.percentile(latencies, 50)),
        "p99_ms": float(np.percentile(latencies, 99)),
        "max_ms": float(latencies.max()),
        "rows": len(latencies),
        "batch_ms": median(durations),
    }


_NOW_MS = "CAST(reflect('java.lang.System', 'currentTimeMillis') AS long)"


def _feed(rate: int) -> int:
    """Starts a server that sends `key,due` pairs at the rate, from a thread, and returns its port.

    Each line has many pairs: the time of Spark's socket source is quadratic in the lines of a batch.
    """
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = server.accept()
        for lines in _due_lines(rate):
            try:
                connection.sendall(lines)
            except OSError:
                return

    threading.Thread(target=serve, daemon=True).start()
    return int(server.getsockname()[1])


def _due_lines(rate: int) -> Iterator[bytes]:
    start_us, sent = time.time_ns() / 1000, 0
    while True:
        time.sleep(0.002)
        due = int((time.time_ns() / 1000 - start_us) * rate / 1_000_000)
        n = np.arange(sent, due)
        keys, due_us = keys_of(mix(n)).tolist(), (start_us + n * 1_000_000 / rate).astype(np.int64).tolist()
        sent = due
        if keys:
            yield (" ".join(f"{key},{at}" for key, at in zip(keys, due_us, strict=True)) + "\n").encode()


if __name__ == "__main__":
    main()
