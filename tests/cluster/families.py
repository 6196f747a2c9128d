"""One job with an operator of each family: union, process functions, two inputs, timers, asides, joins, windows.

Its watermarks come from a generator of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from engine.api import (
    FAILED,
    AggregateFunction,
    CoGroupFunction,
    EventTimeSessionWindows,
    KeyedCoProcessFunction,
    MapStateDescriptor,
    OnTimerContext,
    OutputTag,
    ProcessContext,
    ProcessFunction,
    ProcessWindowFunction,
    RuntimeContext,
    SlidingEventTimeWindows,
    StreamEnvironment,
    TimeDomain,
    ValueStateDescriptor,
    WatermarkGenerator,
    WatermarkOutput,
    WatermarkStrategy,
    WindowContext,
)
from engine.connectors.generator import Columns, GeneratorSource
from engine.connectors.table import TableSink

KEYS, PERIOD_MS, GAP_MS = 50, 500, 50
"""For its sessions, a key is active in every second period."""
NEAR_STEPS, NEAR_MS = (40, 7), 20
HOP_MS, EVERY_MS = 700, 300
BAD_STEP = 1000
"""Records of these numbers can't be processed by one of the operators."""
BEHIND_MS = 5
"""The watermark is so far behind the highest time of a split."""
TENS = OutputTag("tens", "n long")
WOKEN = OutputTag("woken", "key long")
NAMED = OutputTag("named", "key long, name string")


def _numbers(n: np.ndarray) -> Columns:
    return {"n": n, "key": n * 7919 % KEYS, "at": n // 10}


def _names(n: np.ndarray) -> Columns:
    return {"id": n, "name": [f"name {i}" for i in n.tolist()], "at": np.zeros(len(n), np.int64)}


class Behind(WatermarkGenerator):
    """Follows the highest time of its split, which is part of the snapshot."""

    def __init__(self) -> None:
        self._highest: int | None = None

    def on_batch(self, batch: pa.RecordBatch, timestamps: pa.Array, output: WatermarkOutput) -> None:
        highest = pc.max(timestamps).as_py()
        self._highest = highest if self._highest is None else max(self._highest, highest)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        if self._highest is not None:
            output.emit_watermark(self._highest - BEHIND_MS)

    def snapshot_state(self) -> Any:
        return {"highest": self._highest}

    def restore_state(self, state: Any) -> None:
        self._highest = state["highest"]


class Tens(ProcessFunction):
    def process_element(self, value: dict[str, Any], context: ProcessContext) -> Iterable[Any]:
        yield value
        if value["n"] % 10 == 0:
            yield TENS, {"n": value["n"]}


class Seconds(KeyedCoProcessFunction):
    """Counts the records of a key in each second with event-time timers; wakes once by the clock."""

    def open(self, context: RuntimeContext) -> None:
        self._rows = context.get_map_state(MapStateDescriptor("rows", "long", "long"))
        self._woken = context.get_state(ValueStateDescriptor("woken", "boolean"))
        self._seen = context.get_metrics_group().counter("seen")

    def process_element1(self, value: dict[str, Any], context: ProcessContext) -> Iterable[Any]:
        timers = context.timer_service()
        end = (context.timestamp() or 0) // 1000 * 1000 + 1000
        self._rows[end] = (self._rows[end] or 0) + 1
        timers.register_event_time_timer(end - 1)
        if not self._woken.value():
            self._woken.update(True)
            timers.register_processing_time_timer(timers.current_processing_time() + 100)
        self._seen.inc()
        return ()

    def process_element2(self, value: dict[str, Any], context: ProcessContext) -> Iterable[Any]:
        yield NAMED, {"key": context.get_current_key(), "name": value["name"]}

    def on_timer(self, timestamp: int, context: OnTimerContext) -> Iterable[Any]:
        key = context.get_current_key()
        if context.time_domain() is TimeDomain.PROCESSING_TIME:
            yield WOKEN, {"key": key}
        else:
            yield {"key": key, "end": timestamp + 1, "rows": self._rows[timestamp + 1]}
            del self._rows[timestamp + 1]


class Rows(AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: dict[str, Any], accumulator: int) -> int:
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, left: int, right: int) -> int:
        return left + right


class Sizes(CoGroupFunction):
    """Counts the records that each of two streams has in a session; one of them may have none."""

    def co_group(self, first: Sequence[dict[str, Any]], second: Sequence[dict[str, Any]]) -> Iterable[Any]:
        both = [*first, *second]
        start = min(record["at"] for record in both)
        yield {"key": both[0]["key"], "start": start, "ours": len(first), "theirs": len(second)}


def refused(value: dict[str, Any]) -> dict[str, Any]:
    if value["n"] % BAD_STEP == 0:
        raise ValueError(f"{value['n']} is refused")
    return value


class Bounds(ProcessWindowFunction):
    def process(self, key: Any, context: WindowContext, elements: Iterable[int]) -> Iterable[Any]:
        window = context.window()
        yield {"key": key, "start": window.start, "end": window.end, "rows": sum(elements)}


def families(env: StreamEnvironment) -> None:
    env.enable_checkpointing("300 ms")
    rows, rate = env.params.get("rows", 40_000), env.params.get("rate", 8_000)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("at")
    source = GeneratorSource(_numbers, 2, rows, rate)
    numbers = env.from_source(source, "n long, key long, at long", uid="numbers")
    generated = WatermarkStrategy.for_generator(lambda context: Behind()).with_timestamps("at")
    timed = numbers.assign_timestamps_and_watermarks(generated)
    both = timed.where(pl.col("n") % 2 == 0).union(timed.where(pl.col("n") % 2 == 1))
    processed = both.process(Tens())
    processed.get_side_output(TENS).sink_to(TableSink("tens"), uid="tens")
    names = env.from_source(GeneratorSource(_names, 1, KEYS), "id long, name string, at long", uid="names")
    seconds = (
        processed.key_by("key")
        .connect(names.assign_timestamps_and_watermarks(strategy).key_by("id"))
        .process(Seconds(), uid="seconds", schema="key long, end long, rows long")
    )
    active = processed.where((pl.col("at") // PERIOD_MS + pl.col("key")) % 2 == 0)
    sessions = active.key_by("key").window(EventTimeSessionWindows.with_gap(GAP_MS))
    bounds = "key long, start long, end long, rows long"
    counted = sessions.aggregate(Rows(), Bounds(), accumulator_type="long", schema=bounds, uid="sessions")
    counted.sink_to(TableSink("sessions"), uid="sessions out")
    hops = processed.key_by("key").window(SlidingEventTimeWindows.of(HOP_MS, EVERY_MS))
    hopping = hops.aggregate(Rows(), Bounds(), accumulator_type="long", schema=bounds, uid="hops")
    hopping.sink_to(TableSink("hops"), uid="hops out")
    seconds.sink_to(TableSink("seconds"), uid="out")
    seconds.get_side_output(WOKEN).sink_to(TableSink("woken"), uid="woken")
    seconds.get_side_output(NAMED).sink_to(TableSink("named"), uid="named")
    accepted = timed.where(pl.col("n") % 100 == 0).map(refused, uid="refusing").on_error("dead_letter")
    accepted.sink_to(TableSink("accepted"), uid="accepted")
    accepted.get_side_output(FAILED).sink_to(TableSink("refused"), uid="refused")
    some, others = (timed.where(pl.col("n") % step == 0).key_by("key") for step in NEAR_STEPS)
    near = some.interval_join(others).between(f"-{NEAR_MS} ms", f"{NEAR_MS} ms").select("n", "n_right", uid="near")
    near.sink_to(TableSink("near"), uid="near out")
    ours, theirs = (active.where(pl.col("n") % step == 0) for step in NEAR_STEPS)
    together = EventTimeSessionWindows.with_gap(GAP_MS)
    met = ours.join(theirs).where("key").equal_to("key").window(together).select("n", "n_right", uid="met")
    met.sink_to(TableSink("met"), uid="met out")
    sized = ours.co_group(theirs).where("key").equal_to("key").window(together)
    sizes = sized.apply(Sizes(), uid="sizes", schema="key long, start long, ours long, theirs long")
    sizes.sink_to(TableSink("sizes"), uid="sizes out")
