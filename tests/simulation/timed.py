"""The job of the kind "timers": two keyed streams, whose records wait for timers of event time and processing time.

`Hold` emits each record three times: at once, with its number in the line of its key; when an event-time timer fires;
and when a processing-time timer fires. Several records share a timer. A timer for which nothing waits emits record -1.
At some records `Hold` raises after it has changed state and timers: they are left out (`on_error`), and it is as if
they had never come. `Order`, behind it, marks records of an event-time timer that come after the watermark which fired
it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from engine.api import (
    DataStream,
    KeyedCoProcessFunction,
    MapStateDescriptor,
    OnTimerContext,
    ProcessContext,
    ProcessFunction,
    RuntimeContext,
    StreamEnvironment,
    TimeDomain,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from engine.connectors.generator import GeneratorSource
from engine.connectors.table import TableSink
from engine.core.functions import Row
from tests.simulation.drifting import aligned
from tests.simulation.world import Violation

MARKS, MARK_SPLITS = 9, 2
HOLD_MS, SHARED_MS, CLOCK_MS = 25, 50, 3
WAITING, PENDING = "waiting", "pending"
SCHEMA = "n long, key string, what string, seq long, late boolean"
OUT = "n long, key string, what string, seq long, disordered boolean"

Rows = list[tuple[Any, ...]]


def fails(n: int) -> bool:
    """Says whether a record can't be processed."""
    return n % 13 == 7


class Hold(KeyedCoProcessFunction):
    def open(self, context: RuntimeContext) -> None:
        self._seen = context.get_state(ValueStateDescriptor("seen", "long"))
        self._waiting = context.get_map_state(MapStateDescriptor(WAITING, "long", "struct<due long, late boolean>"))
        self._pending = context.get_map_state(MapStateDescriptor(PENDING, "long", "long"))

    def _line(self, n: int, key: str, what: str) -> Row:
        seq = (self._seen.value() or 0) + 1
        self._seen.update(seq)
        return {"n": n, "key": key, "what": what, "seq": seq, "late": False}

    def process_element1(self, value: Row, context: ProcessContext) -> list[Row]:
        timers, n = context.timer_service(), value["n"]
        stamp = context.timestamp()
        assert stamp is not None
        due = (stamp + HOLD_MS) // SHARED_MS * SHARED_MS + SHARED_MS
        self._waiting.put(n, {"due": due, "late": due <= timers.current_watermark()})
        timers.register_event_time_timer(due)
        at = timers.current_processing_time() + CLOCK_MS
        self._pending.put(n, at)
        timers.register_processing_time_timer(at)
        timers.register_processing_time_timer(at + 1)
        timers.delete_processing_time_timer(at + 1)
        line = self._line(n, value["key"], "line")
        if fails(n):
            raise ValueError(f"record {n} can't be processed")
        return [line]

    def process_element2(self, value: Row, context: ProcessContext) -> list[Row]:
        return [self._line(value["mark"], value["of"], "mark")]

    def on_timer(self, timestamp: int, context: OnTimerContext) -> list[Row]:
        key = context.get_current_key()
        if context.time_domain() is TimeDomain.EVENT_TIME:
            due = {n: held["late"] for n, held in self._waiting.items() if held["due"] == timestamp}
            state, what = self._waiting, "event"
        else:
            due = {n: False for n, at in self._pending.items() if at == timestamp}
            state, what = self._pending, "clock"
        for n in due:
            state.remove(n)
        rows = [{"n": n, "key": key, "what": what, "seq": 0, "late": late} for n, late in sorted(due.items())]
        return rows or [{"n": -1, "key": key, "what": what, "seq": 0, "late": False}]


class Order(ProcessFunction):
    def process_element(self, value: Row, context: ProcessContext) -> list[Row]:
        stamp, watermark = context.timestamp(), context.timer_service().current_watermark()
        late = value.pop("late")
        disordered = value["what"] == "event" and not late and stamp is not None and stamp <= watermark
        return [{**value, "disordered": disordered}]


def marks_of(
    env: StreamEnvironment, keys: int, base_ms: int, rows: int, step_ms: int, drift_ms: int | None
) -> DataStream:
    """Returns a second source, in whose stream no record is late."""

    def make(n: Any) -> dict[str, Any]:
        return {"mark": n, "of": [f"k{i % keys}" for i in n.tolist()], "ts": (base_ms + n * step_ms) * 1000}

    source = GeneratorSource(make, rows=rows, splits=MARK_SPLITS)
    strategy = aligned(WatermarkStrategy.for_bounded_out_of_orderness(0).with_timestamps("ts"), drift_ms)
    stream = env.from_source(source, "mark long, of string, ts timestamp", uid="rules")
    return stream.assign_timestamps_and_watermarks(strategy)


def define(
    env: StreamEnvironment, stamped: DataStream, keys: int, base_ms: int, out: TableSink, drift_ms: int | None
) -> None:
    held = (
        stamped.key_by("key")
        .connect(marks_of(env, keys, base_ms, MARKS, 40, drift_ms).key_by("of"))
        .process(Hold(), uid="hold", schema=SCHEMA)
        .on_error("skip")
    )
    held.process(Order(), schema=OUT).sink_to(out, uid="out")


def check(
    rows: Rows,
    waiting: dict[str, list[int]],
    due: Sequence[int],
    marks: Sequence[int],
    each_once: Callable[[str, Sequence[int], Sequence[int]], None],
    exactly_once: bool,
) -> None:
    """Checks the published rows together with what the snapshot says is still waiting for its timer."""
    due = [n for n in due if not fails(n)]
    by_what = {what: [row[0] for row in rows if row[2] == what] for what in ("line", "mark", "event", "clock")}
    for what, numbers in by_what.items():
        if -1 in numbers:
            raise Violation("timers", f"a timer of {what} time fired, and nothing waited for it")
    disordered = [row[0] for row in rows if row[4]]
    if disordered:
        raise Violation("watermark_order", f"the watermark was there before the timers of {disordered[:10]}")
    each_once("out (line)", due, by_what["line"])
    each_once("out (mark)", marks, by_what["mark"])
    each_once("out (event)", due, by_what["event"] + waiting.get(WAITING, []))
    each_once("out (clock)", due, by_what["clock"] + waiting.get(PENDING, []))
    for key in {row[1] for row in rows} if exactly_once else ():
        line = sorted(row[3] for row in rows if row[1] == key and row[2] in ("line", "mark"))
        if line != list(range(1, len(line) + 1)):
            raise Violation("state", f"key {key}: the records of both streams are numbered {line}")


def check_final(waiting: dict[str, list[int]]) -> None:
    """Event time has ended, so every event-time timer has fired. Timers of processing time may be left."""
    if waiting.get(WAITING):
        raise Violation("timers", f"the timers of {sorted(waiting[WAITING])[:10]} never fired")
