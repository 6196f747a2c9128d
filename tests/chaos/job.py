"""The job that is broken: one source, a table of the row lane and a table of windows. Slots import this module."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from engine.api import (
    FixedDelay,
    KeyedProcessFunction,
    ProcessContext,
    RuntimeContext,
    StreamEnvironment,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
    WatermarkStrategy,
    count,
    total,
)
from engine.connectors.generator import Columns, GeneratorSource
from engine.connectors.table import TableSink

KEYS = 50
SPLITS = 3
EVENTS_PER_S = 1_000
"""Records per second of event time: a window of a second has this many."""


def make(n: np.ndarray) -> Columns:
    return {"n": n, "key": n * 7919 % KEYS, "value": n % 1000, "ts": n * 1_000_000 // EVENTS_PER_S}


class Numbered(KeyedProcessFunction):
    """Numbers the records of each key from 1: a lost or a doubled state shows as a gap or a repetition.

    `ballast_kb`: each key also keeps so much, for savepoints that take a while.
    """

    def __init__(self, ballast_kb: int) -> None:
        self._ballast_kb = ballast_kb

    def open(self, context: RuntimeContext) -> None:
        self._seen = context.get_state(ValueStateDescriptor("seen", pa.int64()))
        self._ballast = context.get_state(ValueStateDescriptor("ballast", pa.binary()))

    def process_element(self, value: dict[str, Any], context: ProcessContext) -> Iterable[dict[str, Any]]:
        number = (self._seen.value() or 0) + 1
        if number == 1 and self._ballast_kb:
            self._ballast.update(random.Random(value["key"]).randbytes(self._ballast_kb * 1024))
        self._seen.update(number)
        yield {"n": value["n"], "key": value["key"], "number": number}


def chaos(env: StreamEnvironment) -> None:
    env.enable_checkpointing(env.params.get("interval", "500 ms"))
    env.set_restart_strategy(FixedDelay(attempts=1_000_000, delay_ms=100))  # the default waits longer each time
    rows, rate = env.params.get("rows", 60_000), env.params.get("rate", 2_000)
    source = GeneratorSource(make, SPLITS, rows, rate, buffer_timeout_ms=50)  # fewer batches: less load on the machine
    numbers = env.from_source(source, "n long, key long, value long, ts timestamp", uid="numbers")
    numbered = numbers.key_by("key").process(
        Numbered(env.params.get("ballast_kb", 0)), uid="numbered", schema="n long, key long, number long"
    )
    numbered.sink_to(TableSink("numbered"), uid="rows out")
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("ts")
    keyed = numbers.assign_timestamps_and_watermarks(strategy).key_by("key")
    windows = keyed.window(TumblingEventTimeWindows.of("1 s"))
    windows.aggregate(rows=count(), sum=total("value"), uid="sums").sink_to(TableSink("sums"), uid="windows out")
