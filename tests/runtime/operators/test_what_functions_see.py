"""What functions see of time: watermarks of streams, of key groups and in timers; and keys that are found again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest

from engine.api import (
    BroadcastContext,
    BroadcastProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    MapStateDescriptor,
    OnTimerContext,
    ProcessContext,
    ProcessFunction,
    ReadOnlyBroadcastContext,
)
from engine.runtime.operators.base import RestoredState
from engine.runtime.operators.broadcast import BroadcastProcess, KeyedBroadcastProcess
from engine.runtime.operators.process import KeyedProcess, Process
from engine.snapshot.statefile import decode, encode
from engine.state.key_groups import KeyGroupRange, key_groups
from engine.state.key_hash import hash_columns
from tests.fakes import Collected, context

SCHEMA = pa.schema([("k", pa.string()), ("x", pa.int64()), ("_event_time", pa.int64())])
RULES = MapStateDescriptor("rules", "string", "long")
Row = dict[str, Any]


def batch(*keys: Any, schema: pa.Schema = SCHEMA, x: int = 0) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"k": k, "x": x, "_event_time": 0} for k in keys], schema=schema)


@pytest.mark.promise("A6", "B1")
def test_a_function_without_keys_sees_the_watermark_in_its_context_and_its_timer_service() -> None:
    seen: list[tuple[int, int]] = []

    class Sees(ProcessFunction):
        def process_element(self, value: Row, context: ProcessContext) -> Iterable[Row]:
            seen.append((context.current_watermark_ms, context.timer_service().current_watermark()))
            return ()

    operator = Process(Sees(), SCHEMA)
    operator.open(context("op"), None)
    operator.on_watermark(40, Collected())
    operator.process(batch("a"), Collected())
    assert seen == [(40, 40)]


class Both(BroadcastProcessFunction):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def process_element(self, value: Row, context: ReadOnlyBroadcastContext) -> Iterable[Row]:
        self.seen.append(("record", context.current_watermark_ms, context.timer_service().current_watermark()))
        return ()

    def process_broadcast_element(self, value: Row, context: BroadcastContext) -> Iterable[Row]:
        self.seen.append(("rule", context.current_watermark_ms))
        return ()


class KeyedBoth(Both, KeyedBroadcastProcessFunction):  # type: ignore[misc]
    pass


@pytest.mark.promise("A6", "B1")
def test_records_and_broadcast_records_see_the_same_watermark() -> None:
    function = Both()
    operator = BroadcastProcess(function, [RULES], SCHEMA)
    operator.open(context("op"), None)
    operator.on_watermark(40, Collected())
    operator.process(batch("a"), Collected())
    operator.process_second(batch("a"), Collected())
    assert function.seen == [("record", 40, 40), ("rule", 40)]


@pytest.mark.promise("A6", "B1", "D7")
def test_a_broadcast_record_beside_keys_sees_the_lowest_watermark_also_right_after_a_restore() -> None:
    function = KeyedBoth()
    operator = KeyedBroadcastProcess(function, [RULES], ["k"], SCHEMA, SCHEMA)
    operator.open(context("op"), RestoredState([{"watermarks": [[0, 64, 90]]}, {"watermarks": [[64, 128, 40]]}], []))
    for watermark in (None, 60, 95):
        if watermark is not None:
            operator.on_watermark(watermark, Collected())
        operator.process_second(batch("a"), Collected())
    assert function.seen == [("rule", 40), ("rule", 60), ("rule", 95)]


class Once(KeyedProcessFunction):
    """Registers a timer for `x`; a negative one deletes. Emits the watermark that a timer sees."""

    def process_element(self, value: Row, context: ProcessContext) -> Iterable[Row]:
        timers = context.timer_service()
        if value["x"] < 0:
            timers.delete_event_time_timer(-value["x"])
        else:
            timers.register_event_time_timer(value["x"])
        return ()

    def on_timer(self, timestamp: int, context: OnTimerContext) -> Iterable[Row]:
        yield {"k": context.get_current_key(), "x": context.current_watermark_ms}


def fired(operator: KeyedProcess, watermark: int) -> list[Row]:
    out = Collected()
    operator.on_watermark(watermark, out)
    while operator.firing:
        operator.work(10, out)
    return [{"k": row["k"], "x": row["x"]} for row in out.rows]


@pytest.mark.promise("B8", "D7")
def test_a_timer_sees_the_watermark_of_its_key_s_group() -> None:
    keys = [f"k{n}" for n in range(12)]
    groups = dict(zip(keys, key_groups(hash_columns([pa.array(keys)]), 128).tolist(), strict=True))
    operator = KeyedProcess(Once(), ["k"], SCHEMA, SCHEMA)
    operator.open(context("op"), RestoredState([{"watermarks": [[0, 64, 90]]}, {"watermarks": [[64, 128, 40]]}], []))
    operator.process(batch(*keys, x=50), Collected())
    done = operator.records_done
    found = {row["k"]: row["x"] for row in fired(operator, 60)}
    assert found == {key: 90 if groups[key] < 64 else 60 for key in keys}
    assert operator.records_done == done + 12, "a job that only fires timers is at work, too"


@pytest.mark.promise("B8", "A3")
@pytest.mark.parametrize("key", [float("nan"), -0.0])
def test_a_timer_of_a_float_key_is_found_again_after_a_restore(key: float) -> None:
    schema = SCHEMA.set(0, pa.field("k", pa.float64()))
    operator = KeyedProcess(Once(), ["k"], schema, schema)
    operator.open(context("op"), None)
    operator.process(batch(key, schema=schema, x=50), Collected())
    everything = KeyGroupRange(0, 128)
    snapshot = operator.snapshot(1)
    tables = [(p.name, decode(encode(p.table(), p.keys, everything, 128), everything)) for p in snapshot.parts]
    again = KeyedProcess(Once(), ["k"], schema, schema)
    again.open(context("op"), RestoredState([snapshot.inline], [(name, t) for name, t in tables if t.num_rows]))
    again.process(batch(key, schema=schema, x=-50), Collected())
    assert fired(again, 60) == []
