"""The queries as Weir jobs, in the columnar lane. Flink SQL's and Spark's forms are in `flink.py` and `spark.py`."""

from __future__ import annotations

import polars as pl

from engine.api import (
    DataStream,
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    StreamEnvironment,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    count,
    top_n,
    total,
)
from engine.connectors.files import ParquetSource
from engine.connectors.table import TableSink

BOUND = "4 s"
SCHEMA = "id long, key long, value long, ts timestamp_ntz"


def sliding(env: StreamEnvironment) -> None:
    """Count and sum per key of the last hour, every 5 minutes."""
    windows = _read(env, "left").key_by("key").window(SlidingEventTimeWindows.of("1 h", "5 min"))
    _out(windows.aggregate(num=count(), total=total("value"), uid="windows"))


def session(env: StreamEnvironment) -> None:
    """Count and sum per key and session, which ends after 30 s without a row."""
    windows = _read(env, "left").key_by("key").window(EventTimeSessionWindows.with_gap("30 s"))
    _out(windows.aggregate(num=count(), total=total("value"), uid="windows"))


def window_join(env: StreamEnvironment) -> None:
    """Pairs of rows of a key in the same 10 s."""
    right = _read(env, "right").select("key", other=pl.col("id"))
    joined = _read(env, "left").select("id", "key").join(right).where("key").equal_to("key")
    _out(joined.window(TumblingEventTimeWindows.of("10 s")).select("id", "other", uid="joined"))


def interval_join(env: StreamEnvironment) -> None:
    """Pairs of rows of a key that are at most 5 s apart."""
    right = _read(env, "right").select("key", other=pl.col("id"))
    left = _read(env, "left").select("id", "key")
    _out(left.key_by("key").interval_join(right.key_by("key")).between("-5 s", "5 s").select("id", "other", uid="near"))


def top_three(env: StreamEnvironment) -> None:
    """The three keys with the most rows of each 5 minutes. Of keys with as many rows the higher ones come first."""
    windows = _read(env, "left").key_by("key").window(TumblingEventTimeWindows.of("5 min"))
    counts = windows.aggregate(num=count(), uid="counts").select("key", "num", ends=pl.col("window_end"))
    best = counts.key_by("ends").window(TumblingEventTimeWindows.of("5 min"))
    _out(best.aggregate(top=top_n("key", 3, by="num"), uid="best").select("top", "ends"))


def _read(env: StreamEnvironment, stream: str) -> DataStream:
    env.enable_checkpointing("1 s")
    folder = env.params.get("rows", "/tmp/timed", "folder of the rows")
    rows = env.from_source(ParquetSource(f"{folder}/{stream}"), schema=SCHEMA, uid=stream)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(BOUND).with_timestamps("ts")
    return rows.assign_timestamps_and_watermarks(strategy)


def _out(results: DataStream) -> None:
    results.sink_to(TableSink("out"), uid="out")
