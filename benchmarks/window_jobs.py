"""The measured jobs with windows that differ from `benchmarks/jobs.py`. Slots import this module, so it stays light."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.jobs import SPLITS
from benchmarks.rows import SCHEMA, START_US, many_keys_of, mix
from benchmarks.sinks import DiscardSink
from engine.api import (
    AggregateFunction,
    DataStream,
    SlidingEventTimeWindows,
    StreamEnvironment,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    WindowedStream,
    count,
    total,
)
from engine.connectors.generator import Columns, GeneratorSource
from engine.core.functions import Row

WINDOW_MS = 100
STEP_US = {"columns": 1, "functions": 50}
"""How far event time moves with each row, for each lane, so that a window has 100,000 rows or 2,000."""
KEYS = {"columns": 1000, "functions": 20}
SLIDING_KEYS, SLIDING_STEP_US = 100, 10_000
"""A key has 300 rows in 5 minutes."""


class Total(AggregateFunction):
    def create_accumulator(self) -> Any:
        return {"rows": 0, "total": 0}

    def add(self, value: Row, accumulator: Any) -> Any:
        return {"rows": accumulator["rows"] + 1, "total": accumulator["total"] + value["value"]}

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, left: Any, right: Any) -> Any:
        return {"rows": left["rows"] + right["rows"], "total": left["total"] + right["total"]}


def sliding(env: StreamEnvironment) -> None:
    """Counts and sums with a function of Python in windows of `size` every five minutes; results are discarded."""
    env.enable_checkpointing("1 s")
    size = env.params.get("size", "1 h", "size of a window, which starts every five minutes; 5 min: windows tumble")

    def make(n: np.ndarray) -> Columns:
        mixed = mix(n)
        return {
            "key": many_keys_of(mixed, SLIDING_KEYS),
            "value": mixed & 1023,
            "ts": n * SLIDING_STEP_US + START_US,
        }

    rows = env.from_source(GeneratorSource(make, splits=SPLITS), schema=SCHEMA, uid="rows")
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("1 s").with_timestamps("ts")
    keyed = rows.assign_timestamps_and_watermarks(strategy).key_by("key")
    _totals(keyed.window(SlidingEventTimeWindows.of(size, "5 min"))).sink_to(DiscardSink(), uid="out")


def disorder(env: StreamEnvironment) -> None:
    """Counts and sums in windows of which many are open, because the watermark is as many windows behind.

    The rows are in order, or anywhere in the time of these windows.
    """
    env.enable_checkpointing("1 s")
    lane = env.params.get("lane", "columns", "columns: built-in aggregates; functions: a function of Python")
    windows = env.params.get("open", 1, "windows that are open at a time")
    disordered = env.params.get("disordered", False, "whether rows come in any order within the open windows")
    step_us, keys, bound_ms = STEP_US[lane], KEYS[lane], windows * WINDOW_MS

    def make(n: np.ndarray) -> Columns:
        mixed = mix(n)
        times = n * step_us + START_US
        if disordered:
            times = times - mixed % (bound_ms * 1000)
        return {"key": many_keys_of(mix(n + 7), keys), "value": mixed & 1023, "ts": times}

    rows = env.from_source(GeneratorSource(make, splits=SPLITS), schema=SCHEMA, uid="rows")
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(bound_ms).with_timestamps("ts")
    tumbling = (
        rows.assign_timestamps_and_watermarks(strategy).key_by("key").window(TumblingEventTimeWindows.of(WINDOW_MS))
    )
    if lane == "columns":
        results = tumbling.aggregate(rows=count(), total=total("value"), uid="windows")
    else:
        results = _totals(tumbling)
    results.sink_to(DiscardSink(), uid="out")


def _totals(windows: WindowedStream) -> DataStream:
    fields = "rows long, total long"
    return windows.aggregate(Total(), accumulator_type=f"struct<{fields}>", schema=fields, uid="windows")
