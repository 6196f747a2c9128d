"""Jobs for the tests with a real daemon. Slots import this module, so it imports nothing heavy."""

from __future__ import annotations

import numpy as np

from engine.api import StreamEnvironment, TumblingEventTimeWindows, WatermarkStrategy, count, total
from engine.connectors.generator import Columns, GeneratorSource
from engine.connectors.table import TableSink


def make(n: np.ndarray) -> Columns:
    return {"key": n % 10, "value": n % 1000, "ts": n * 1000}


def by_hand(env: StreamEnvironment) -> None:
    """Has no checkpoint interval: nothing is committed unless Dagster or a user triggers a checkpoint."""
    env.enable_checkpointing(interval=None)
    stream = env.from_source(GeneratorSource(make, 2, None, 2000), "key long, value long, ts timestamp", uid="numbers")
    (
        stream.assign_timestamps_and_watermarks(WatermarkStrategy.for_monotonous_timestamps().with_timestamps("ts"))
        .key_by("key")
        .window(TumblingEventTimeWindows.of("1 s"))
        .aggregate(rows=count(), sum=total("value"), uid="sums")
        .sink_to(TableSink("sums"), uid="out")
    )
