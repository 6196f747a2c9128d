"""Jobs for the tests with a real daemon. Slots import this module, so it imports nothing heavy."""

from __future__ import annotations

import numpy as np
import polars as pl

from engine.api import Aggregate, StreamEnvironment, TumblingEventTimeWindows, WatermarkStrategy, count, maximum, total
from engine.connectors.generator import Columns, GeneratorSource
from engine.connectors.table import TableSink


def make(n: np.ndarray) -> Columns:
    return {"key": n % 10, "value": n % 1000, "ts": n * 1000}


def by_hand(env: StreamEnvironment) -> None:
    """Has no checkpoint interval: nothing is committed unless Dagster or a user triggers a checkpoint."""
    sums(env, rows=count(), sum=total("value"))


def with_largest(env: StreamEnvironment) -> None:
    """The next version of `by_hand`, which writes one more column."""
    sums(env, rows=count(), sum=total("value"), largest=maximum("value"))


def without_a_key(env: StreamEnvironment) -> None:
    """A wrong version of `by_hand`, which lacks the rows of a key."""
    sums(env, pl.col("key") != 3, rows=count(), sum=total("value"))


def sums(env: StreamEnvironment, where: pl.Expr | None = None, **aggregates: Aggregate) -> None:
    env.enable_checkpointing(interval=None)
    stream = env.from_source(GeneratorSource(make, 2, None, 2000), "key long, value long, ts timestamp", uid="numbers")
    stream = stream.where(where) if where is not None else stream
    (
        stream.assign_timestamps_and_watermarks(WatermarkStrategy.for_monotonous_timestamps().with_timestamps("ts"))
        .key_by("key")
        .window(TumblingEventTimeWindows.of("1 s"))
        .aggregate(**aggregates, uid="sums")
        .sink_to(TableSink("sums"), uid="out")
    )
