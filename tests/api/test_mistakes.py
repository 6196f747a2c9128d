"""Typical mistakes of a newcomer. Each is told when the job is written, with what was given and what to write."""

from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
import pytest

from engine.api import (
    FlatMapFunction,
    JobError,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapFunction,
    MapStateDescriptor,
    OutputTag,
    ProcessContext,
    ProcessFunction,
    RuntimeContext,
    StreamEnvironment,
    ValueStateDescriptor,
    WatermarkStrategy,
    count,
    maximum,
    mean,
    total,
)
from engine.connectors.table import TableSink
from tests.api.streams.building import TEN_SECONDS, timed, views


class Process(KeyedProcessFunction):
    def process_element(self, value: dict[str, Any], context: ProcessContext) -> Iterable[dict[str, Any]]:
        return [value]


class Upper(MapFunction):
    def map(self, value: dict[str, Any]) -> dict[str, Any]:
        return value


class Timed(MapFunction):
    def map(self, value: dict[str, Any]) -> dict[str, Any]:
        return value

    def on_timer(self, timestamp: int, context: Any) -> list[Any]:
        return []


class TimedProcess(ProcessFunction):
    def on_timer(self, timestamp: int, context: Any) -> list[Any]:
        return []


class OneArgument(KeyedProcessFunction):
    def process_element(self, value: dict[str, Any]) -> list[Any]:  # type: ignore[override]
        return []


class TimerWithoutContext(Process):
    def on_timer(self, timestamp: int) -> list[Any]:  # type: ignore[override]
        return []


class TwiceNamed(Process):
    def open(self, context: RuntimeContext) -> None:
        self._value = context.get_state(ValueStateDescriptor("seen", "long"))
        self._again = context.get_state(ValueStateDescriptor("seen", "bigint"))
        self._list = context.get_list_state(ListStateDescriptor("seen", "long"))


class TwiceTyped(Process):
    def open(self, context: RuntimeContext) -> None:
        self._map = context.get_map_state(MapStateDescriptor("seen", "string", "long"))
        self._other = context.get_map_state(MapStateDescriptor("seen", "string", "double"))


def keyed() -> Any:
    return views().key_by("app_id")


def windowed() -> Any:
    return timed().key_by("app_id").window(TEN_SECONDS)


def tagged() -> Any:
    return views("k string, tags array<string>").key_by("k")


def untyped(stream: Any) -> Any:
    return stream


MISTAKES: list[tuple[Callable[[], object], str]] = [
    (
        lambda: views().sink_to("t", uid="out"),  # type: ignore[arg-type]
        "sink_to takes a sink (write to_spark_table('t', uid=...)), not 't'",
    ),
    (
        lambda: views().sink_to(TableSink, uid="out"),  # type: ignore[arg-type]
        "sink_to takes an object, not the class TableSink: write TableSink(...)",
    ),
    (lambda: views().print(uid=1), "uid=1: a uid is a text, as in uid='1'"),  # type: ignore[arg-type]
    (lambda: keyed().sum("bytes", uid=7), "uid=7: a uid is a text"),
    (
        lambda: views().filter("app_id"),  # type: ignore[arg-type]
        "filter takes a function, such as lambda row: row['n'] > 0, or a FilterFunction, not 'app_id'",
    ),
    (lambda: views().map(Upper), "map takes an object of Upper, not the class: write Upper()"),  # type: ignore[arg-type]
    (
        lambda: views().map(FlatMapFunction()),  # type: ignore[arg-type]
        "or a MapFunction, not an object of FlatMapFunction",
    ),
    (lambda: keyed().process(Process, uid="p"), "process takes an object of Process, not the class: write Process()"),
    (
        lambda: keyed().process(lambda row, context: [row], uid="p"),
        "process takes an object of a class that extends KeyedProcessFunction, not a lambda; a plain function goes",
    ),
    (lambda: keyed().reduce(None, uid="r"), "reduce takes a function, such as lambda left, right:"),
    (
        lambda: views().key_by(lambda row: row["app_id"]),  # type: ignore[arg-type, return-value]
        "key_by takes the names of columns, not a lambda: compute the key as a column first",
    ),
    (
        lambda: WatermarkStrategy.for_monotonous_timestamps().with_timestamps(lambda row: 1),  # type: ignore[arg-type]
        "with_timestamps takes the name of a column, not a lambda",
    ),
    (
        lambda: views().assign_timestamps_and_watermarks("ts"),  # type: ignore[arg-type]
        "assign_timestamps_and_watermarks takes a strategy such as WatermarkStrategy.for_bounded_out_of_orderness",
    ),
    (lambda: timed().key_by("app_id").window("10 s"), "window takes windows such as TumblingEventTimeWindows.of"),  # type: ignore[arg-type]
    (
        lambda: StreamEnvironment().from_source("events/", "n long", uid="s"),  # type: ignore[arg-type]
        "from_source takes a source such as JsonSource(\"/data/events\"), not 'events/'",
    ),
    (lambda: keyed().sum("app_id", uid="s"), "sum needs a number; 'app_id' is string"),
    (lambda: keyed().sum("ts", uid="s"), "sum needs a number; 'ts' is timestamp[us, tz=UTC]"),
    (lambda: keyed().sum("amount", uid="s"), "sum: there is no column 'amount'; the stream has (app_id string"),
    (lambda: tagged().min("tags", uid="s"), "min needs values that have an order; 'tags' is list<element: string>"),
    (lambda: tagged().max("tags", uid="s"), "max needs values that have an order; 'tags' is list"),
    (lambda: windowed().aggregate(s=total("app_id"), uid="w"), "s=total(app_id) needs a number; 'app_id' is string"),
    (lambda: windowed().aggregate(s=mean("app_id"), uid="w"), "s=mean(app_id) needs a number; 'app_id' is string"),
    (
        lambda: (
            timed("k string, tags array<string>, ts timestamp")
            .key_by("k")
            .window(TEN_SECONDS)
            .aggregate(s=maximum("tags"), uid="w")
        ),
        "s=maximum(tags) needs values that have an order",
    ),
    (
        lambda: untyped(views()).window(TEN_SECONDS),
        "a DataStream has no window(...): window needs key_by first, as in stream.key_by(COLUMN).window(...)",
    ),
    (lambda: untyped(views()).process(Process(), uid="p"), "process needs key_by first"),
    (
        lambda: keyed().sink_to(TableSink("t"), uid="out"),
        "a KeyedStream has no sink_to(...): call sink_to",
    ),
    (lambda: keyed().aggregate(n=count(), uid="n"), "aggregate needs a window"),
    (lambda: views().map(Timed()), "Timed has on_timer (test_mistakes.py, line"),
    (lambda: views().map(Timed()), "which map would never call: timers belong to keys, so write stream.key_by(...)"),
    (lambda: views().process(TimedProcess()), "which process would never call: timers belong to keys"),
    (
        lambda: keyed().process(OneArgument(), uid="p"),
        "must take two arguments: def process_element(self, value, context)",
    ),
    (
        lambda: keyed().process(TimerWithoutContext(), uid="p"),
        "must take two arguments: def on_timer(self, timestamp, context)",
    ),
    (
        lambda: keyed().process(TwiceNamed(), uid="p"),
        "TwiceNamed asks for the state 'seen' twice, as a value of int64 (line",
    ),
    (lambda: keyed().process(TwiceTyped(), uid="p"), "and as a map of string of double (line"),
    (lambda: keyed().min_by("amount", uid="m"), "min_by: there is no column 'amount'; the stream has (app_id string"),
    (lambda: keyed().max_by("byte", uid="m"), "did you mean 'bytes'?"),
    (lambda: views().key_by("app"), "ts timestamp[us, tz=UTC]); did you mean 'app_id'?"),
    (lambda: views().union(), "union takes at least one other stream"),
    (lambda: views().union(keyed()), "union takes streams (call it before key_by), not an object of KeyedStream"),
    (lambda: untyped(views()).side_output(None), "it is called get_side_output, as in PyFlink"),
    (lambda: untyped(keyed()).get_side_output(None), "call get_side_output on the stream that process(...) returned"),
    (lambda: views().get_side_output("late"), 'takes a tag such as OutputTag("late", "n long"), not \'late\''),  # type: ignore[arg-type]
    (lambda: OutputTag("late", int), "OutputTag('late'): its schema is a pyarrow.Schema or a Spark DDL string"),  # type: ignore[arg-type]
    (lambda: windowed().sink_to(TableSink("t"), uid="out"), "end the window with aggregate(...), as in window(...)"),
    (lambda: windowed().sum("bytes", uid="s"), "write aggregates, as in window"),
    (lambda: ValueStateDescriptor("s", "lnog"), "state 's', type 'lnog', character 1: unknown type 'lnog'"),
    (lambda: ValueStateDescriptor("s", "long x"), "expected the end, found 'x'"),
    (
        lambda: ValueStateDescriptor("s", int),
        "state 's': a type is a pyarrow type or a Spark DDL type, not int: write 'long'",
    ),
    *[
        (
            lambda kind=kind: views(f"amount {kind}").assign_timestamps_and_watermarks(  # type: ignore[misc]
                WatermarkStrategy.for_monotonous_timestamps().with_timestamps("amount")
            ),
            "it must be a timestamp, or integers that are milliseconds since 1970",
        )
        for kind in ("boolean", "double", "string", "date", "decimal(10,2)")
    ],
]


@pytest.mark.parametrize(("mistake", "text"), MISTAKES, ids=[text[:60] for _, text in MISTAKES])
def test_a_newcomer_s_mistake_is_told_what_to_write_instead(mistake: Callable[[], object], text: str) -> None:
    with pytest.raises(JobError) as caught:
        mistake()
    assert text in str(caught.value)


def test_a_method_that_weir_does_not_have_is_a_plain_attribute_error() -> None:
    for stream in (views(), keyed(), windowed()):
        with pytest.raises(AttributeError, match="has no attribute 'cogroup'"):
            untyped(stream).cogroup()


def test_state_types_may_be_written_as_ddl() -> None:
    assert ValueStateDescriptor("s", "long") == ValueStateDescriptor("s", pa.int64())
    assert ListStateDescriptor("s", "array<string>").type == pa.list_(pa.field("element", pa.string()))
    assert MapStateDescriptor("s", "string", "decimal(10,2)").value_type == pa.decimal128(10, 2)
