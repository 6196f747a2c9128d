"""The measured jobs. Slots import this module, so it imports nothing heavy."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.rows import BOUND_S, KEYS, SCHEMA, START_US, STEP_US, WINDOW_S, keys_of, many_keys_of, mix, window_rows
from benchmarks.sinks import DiscardSink, LatencySink, StuckSink
from engine.api import (
    DataStream,
    ExponentialDelay,
    FixedDelay,
    KeyedProcessFunction,
    OnTimerContext,
    ProcessContext,
    RuntimeContext,
    StreamEnvironment,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
    WatermarkStrategy,
    count,
    total,
)
from engine.connectors.files import ParquetSource
from engine.connectors.generator import Columns, GeneratorSource
from engine.connectors.table import TableSink
from engine.core.functions import Row
from engine.core.sources import SourceContext, SplitReader

SPLITS = 2


def window(env: StreamEnvironment) -> None:
    """Counts and sums per key in tumbling windows of ten seconds, as fast as possible, into a table."""
    interval = env.params.get("interval", "1 s", "time between checkpoints; none: only those triggered by hand")
    env.enable_checkpointing(interval=None if interval == "none" else interval)
    splits = env.params.get("splits", SPLITS, "splits of the source, which has no more subtasks than splits")
    rows = env.from_source(GeneratorSource(window_rows, splits=splits), schema=SCHEMA, uid="rows")
    _windowed(_stamped(rows), f"{WINDOW_S} s").sink_to(TableSink("windows"), uid="out")


def window_files(env: StreamEnvironment) -> None:
    """Counts and sums the same on Parquet files, to their end."""
    env.enable_checkpointing("1 s")
    folder = env.params.get("rows", "/tmp/rows", "folder of Parquet files")
    rows = env.from_source(ParquetSource(folder), schema="key long, value long, ts timestamp_ntz", uid="rows")
    _windowed(_stamped(rows), f"{WINDOW_S} s").sink_to(TableSink("windows"), uid="out")


def text_keys(env: StreamEnvironment) -> None:
    """Counts and sums per text key on Parquet files, to their end."""
    env.enable_checkpointing("1 s")
    folder = env.params.get("rows", "/tmp/rows", "folder of Parquet files")
    rows = env.from_source(ParquetSource(folder), schema="key string, value double, ts timestamp_ntz", uid="rows")
    _windowed(_stamped(rows), f"{WINDOW_S} s").sink_to(TableSink("windows"), uid="out")


def growth(env: StreamEnvironment) -> None:
    """Runs the window job with more keys, wider rows or smaller batches."""
    env.enable_checkpointing("1 s")
    keys = env.params.get("keys", KEYS, "distinct keys")
    columns = env.params.get("columns", 1, "columns of values, all of which are summed")
    batch = env.params.get("batch", 262_144, "records in a batch at most")
    names = [f"value{number}" for number in range(columns)]

    def make(n: np.ndarray) -> Columns:
        mixed = mix(n)
        values = dict.fromkeys(names, mixed & 1023)
        return {"key": many_keys_of(mixed, keys), **values, "ts": n * STEP_US + START_US}

    schema = ", ".join(["key long", *(f"{name} long" for name in names), "ts timestamp"])
    rows = env.from_source(SmallBatches(make, env.parallelism, batch), schema=schema, uid="rows")
    windows = _stamped(rows).key_by("key").window(TumblingEventTimeWindows.of(f"{WINDOW_S} s"))
    totals = {f"total{number}": total(name) for number, name in enumerate(names)}
    windows.aggregate(rows=count(), **totals, uid="windows").sink_to(TableSink("windows"), uid="out")


def large_state(env: StreamEnvironment) -> None:
    """Counts and sums per key in a window that does not end: after one round over all keys its state has its size."""
    interval = env.params.get("interval", "5 s", "time between checkpoints; none: only those triggered by hand")
    env.enable_checkpointing(interval=None if interval == "none" else interval)
    keys = env.params.get("keys", 1_000_000, "distinct keys")
    rate = env.params.get("rate", 200_000, "records per second")

    def make(n: np.ndarray) -> Columns:
        return {"key": n % keys, "value": n & 1023, "ts": np.full(len(n), START_US)}

    source = GeneratorSource(make, splits=SPLITS + 1, rate=rate)
    rows = _stamped(env.from_source(source, schema=SCHEMA, uid="rows"))
    windows = rows.key_by("key").window(TumblingEventTimeWindows.of("1 d"))
    windows.aggregate(rows=count(), total=total("value"), uid="windows").sink_to(TableSink("windows"), uid="out")


class SmallBatches(GeneratorSource):
    """A generator whose batches have at most `most` rows, even if the engine asks for more."""

    def __init__(self, make: Callable[[np.ndarray], Columns], splits: int, most: int) -> None:
        super().__init__(make, splits)
        self._most = most

    def reader(self, split: str, position: Any, context: SourceContext) -> SplitReader:
        reader, most = super().reader(split, position, context), self._most
        poll = reader.poll
        reader.poll = lambda rows: poll(min(rows, most))  # type: ignore[method-assign]
        return reader


def row_lane(env: StreamEnvironment) -> None:
    """Keeps a running sum per key in ValueState: Python per record, as fast as possible, results discarded."""
    env.enable_checkpointing("1 s")
    keys = env.params.get("keys", KEYS, "distinct keys")

    def make(n: np.ndarray) -> Columns:
        mixed = mix(n)
        return {"key": many_keys_of(mixed, keys), "value": mixed & 1023}

    source = GeneratorSource(keyed_values if keys == KEYS else make, splits=SPLITS)
    rows = env.from_source(source, schema="key long, value long", uid="rows")
    sums = rows.key_by("key").process(RunningSum(), uid="sums", schema="key long, value long, sum long")
    sums.sink_to(DiscardSink(), uid="out")


def timers(env: StreamEnvironment) -> None:
    """Registers a timer with every record, which fires when as many records have come as timers are to wait."""
    env.enable_checkpointing("2 s")
    waiting = env.params.get("timers", 1_000_000, "timers that wait at a time")

    def make(n: np.ndarray) -> Columns:
        return {"key": mix(n) % waiting, "at": n + START_US // 1000}

    rows = env.from_source(GeneratorSource(make, splits=SPLITS), schema="key long, at long", uid="rows")
    timed = rows.assign_timestamps_and_watermarks(WatermarkStrategy.for_monotonous_timestamps().with_timestamps("at"))
    fired = timed.key_by("key").process(Later(waiting), uid="timers", schema="key long, at long")
    fired.sink_to(DiscardSink(), uid="out")


class Later(KeyedProcessFunction):
    """Emits each record `after_ms` of event time later. A timer knows its key and its time, so there is no state."""

    def __init__(self, after_ms: int) -> None:
        self._after_ms = after_ms

    def process_element(self, value: Row, context: ProcessContext) -> Iterable[Row]:
        context.timer_service().register_event_time_timer(value["at"] + self._after_ms)
        return ()

    def on_timer(self, timestamp: int, context: OnTimerContext) -> Iterable[Row]:
        yield {"key": context.get_current_key(), "at": timestamp}


def slow_sink(env: StreamEnvironment) -> None:
    """Reads as fast as possible and handles a fifth of what the row lane could: a Python function that also sleeps."""
    env.enable_checkpointing("1 s")
    rate = env.params.get("rate", 12_000, "records per second that a subtask handles")
    rows = env.from_source(GeneratorSource(keyed_values, splits=SPLITS), schema="key long, value long", uid="rows")
    slow = rows.key_by("key").process(SlowSum(rate), uid="slow", schema="key long, value long, sum long")
    slow.sink_to(DiscardSink(), uid="out")


def keyed_values(n: np.ndarray) -> Columns:
    rows = window_rows(n)
    return {"key": rows["key"], "value": rows["value"]}


class RunningSum(KeyedProcessFunction):
    def open(self, context: RuntimeContext) -> None:
        self._sum = context.get_state(ValueStateDescriptor("sum", pa.int64()))

    def process_element(self, value: Row, context: ProcessContext) -> Iterable[Row]:
        total = (self._sum.value() or 0) + value["value"]
        self._sum.update(total)
        yield {"key": value["key"], "value": value["value"], "sum": total}


class SlowSum(RunningSum):
    """Sleeps for a millisecond after as many records as it may handle in one."""

    def __init__(self, rate: int) -> None:
        self._most = max(1, rate // 1000)
        self._seen = 0

    def process_element(self, value: Row, context: ProcessContext) -> Iterable[Row]:
        self._seen += 1
        if self._seen % self._most == 0:
            time.sleep(0.001)
        return super().process_element(value, context)


def _stamped(rows: DataStream) -> DataStream:
    bound = WatermarkStrategy.for_bounded_out_of_orderness(f"{BOUND_S} s").with_timestamps("ts")
    return rows.assign_timestamps_and_watermarks(bound)


def _windowed(stamped: DataStream, size: str) -> DataStream:
    windows = stamped.key_by("key").window(TumblingEventTimeWindows.of(size))
    return windows.aggregate(count=count(), total=total("value"), uid="windows")


def latency_rows(env: StreamEnvironment) -> None:
    """Measures the row lane: paced source, keyed exchange, Python function with keyed state, sink with a clock."""
    keyed = _paced(env).key_by("key")
    counted = keyed.process(CountPerKey(), uid="counted", schema="key long, due timestamp, seen long")
    counted.sink_to(LatencySink(_folder(env), "due"), uid="out")


def latency_columns(env: StreamEnvironment) -> None:
    """Measures the columnar lane: the same source, windows of 10 ms. Latency counts from the end of a window."""
    stamped = _paced(env).assign_timestamps_and_watermarks(
        WatermarkStrategy.for_monotonous_timestamps().with_timestamps("due")
    )
    windows = stamped.key_by("key").window(TumblingEventTimeWindows.of(10)).aggregate(rows=count(), uid="windows")
    windows.sink_to(LatencySink(_folder(env), "window_end"), uid="out")


def _folder(env: StreamEnvironment) -> str:
    return env.params.get("folder", "/tmp/weir-latency", "where latencies are written")


def _paced(env: StreamEnvironment) -> DataStream:
    rate = env.params.get("rate", 10_000, "rows per second")
    env.enable_checkpointing(interval="1 s")
    # Of 1, 2 and 5 ms, a buffer timeout of 2 ms gives the lowest latency.
    source = GeneratorSource(due_rows(rate), splits=SPLITS, rate=rate, buffer_timeout_ms=2)
    return env.from_source(source, schema="key long, due timestamp", uid="rows")


def due_rows(rate: float) -> Callable[[np.ndarray], Columns]:
    """Returns a function that makes rows with the time at which they were due by the rate, not when they were made.

    A delay of the source therefore counts as latency. The last row of a split's first batch is due now; the due times
    of all others follow from their numbers.
    """
    origin_us: dict[int, float] = {}
    step_us = 1_000_000 / rate

    def make(n: np.ndarray) -> Columns:
        split = int(n[0]) % SPLITS
        if split not in origin_us:
            origin_us[split] = time.time_ns() / 1000 - int(n[-1]) * step_us
        return {"key": keys_of(mix(n)), "due": (n * step_us + origin_us[split]).astype(np.int64)}

    return make


class CountPerKey(KeyedProcessFunction):
    def open(self, context: RuntimeContext) -> None:
        self._seen = context.get_state(ValueStateDescriptor("seen", pa.int64()))

    def process_element(self, value: Row, context: ProcessContext) -> Iterable[Row]:
        seen = (self._seen.value() or 0) + 1
        self._seen.update(seen)
        yield {"key": value["key"], "due": value["due"], "seen": seen}


def recovery(env: StreamEnvironment) -> None:
    """Runs the window job at a steady rate; a keyed function beside it notes its first record of each attempt."""
    rate = env.params.get("rate", 200_000, "rows per second")
    folder = env.params.get("folder", "/tmp/weir-recovery", "where first records are noted")
    delay = env.params.get("delay", "default", "before a restart; none: at once")
    env.enable_checkpointing(interval="1 s")
    # The default's delay grows with each failure within an hour; here every kill must meet the delay of a first one.
    first = ExponentialDelay(reset_after_ms=0)
    env.set_restart_strategy(first if delay == "default" else FixedDelay(attempts=1_000, delay_ms=0))
    rows = env.from_source(GeneratorSource(window_rows, splits=SPLITS, rate=rate), schema=SCHEMA, uid="rows")
    stamped = _stamped(rows)
    some = stamped.map_batches(every_hundredth_key)
    some.key_by("key").process(FirstRecord(folder), uid="first").sink_to(DiscardSink(), uid="discard")
    _windowed(stamped, f"{WINDOW_S} s").sink_to(TableSink("windows"), uid="out")


def every_hundredth_key(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.filter(pa.array(batch.column("key").to_numpy() % 100 == 0))


class FirstRecord(KeyedProcessFunction):
    """Notes the wall clock at its first record after `open`: its state is restored by then."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def open(self, context: RuntimeContext) -> None:
        self._seen = context.get_state(ValueStateDescriptor("seen", pa.int64()))
        self._subtask = context.subtask_index
        self._first = True

    def process_element(self, value: Row, context: ProcessContext) -> Iterable[Row]:
        seen = (self._seen.value() or 0) + 1
        self._seen.update(seen)
        if self._first:
            self._first = False
            now_us = time.time_ns() // 1000
            (self._folder / f"{now_us}-{self._subtask}-{os.getpid()}-{seen}").touch()
        yield value


def stuck(env: StreamEnvironment) -> None:
    """Sends about as many results as rows, as fast as possible, into a stuck sink."""
    release = env.params.get("release", "/tmp/weir-release", "the sink is stuck until this file exists")
    env.enable_checkpointing(interval="1 s")
    rows = env.from_source(GeneratorSource(window_rows, splits=SPLITS), schema=SCHEMA, uid="rows")
    _windowed(_stamped(rows), "10 ms").sink_to(StuckSink(release), uid="out")
