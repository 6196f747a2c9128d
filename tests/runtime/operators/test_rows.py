"""The row lane: plain functions per record (A2), their lifecycle (A5), keyed state, and errors that say where."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from engine.api import (
    FilterFunction,
    FlatMapFunction,
    KeyedProcessFunction,
    MapFunction,
    ProcessContext,
    ReduceFunction,
    RuntimeContext,
    ValueStateDescriptor,
)
from engine.core.errors import SchemaMismatch, UserFunctionError
from engine.runtime.operators.base import Operator, RestoredState
from engine.runtime.operators.process import KeyedProcess
from engine.runtime.operators.rows import KeyedReduce, RowFilter, RowFlatMap, RowMap
from engine.snapshot.statefile import decode, encode
from engine.state.key_groups import KeyGroupRange, key_groups
from engine.state.key_hash import hash_columns
from tests.fakes import Collected, context

SCHEMA = pa.schema([("k", pa.string()), ("x", pa.int64())])
TIMED = SCHEMA.append(pa.field("_event_time", pa.int64()))


def run(operator: Operator, *batches: list[dict[str, Any]], schema: pa.Schema = SCHEMA, subtask: int = 0) -> Collected:
    out = Collected()
    operator.open(context("op", subtask, 4), None)
    for rows in batches:
        operator.process(pa.RecordBatch.from_pylist(rows, schema=schema), out)
    return out


def row(k: str, x: int, **more: Any) -> dict[str, Any]:
    return {"k": k, "x": x, **more}


@pytest.mark.promise("A2")
def test_map_filter_and_flat_map_take_a_record_and_give_one_some_or_none() -> None:
    rows = [row("a", 1), row("b", 2), row("c", 3)]
    double = RowMap(None, lambda r: {**r, "x": 2 * r["x"]}, SCHEMA)
    assert run(double, rows).rows == [row("a", 2), row("b", 4), row("c", 6)]
    odd = RowFilter(None, lambda r: r["x"] % 2 == 1, SCHEMA)
    assert run(odd, rows).rows == [row("a", 1), row("c", 3)]
    repeat = RowFlatMap(None, lambda r: [r] * (r["x"] - 1), SCHEMA)
    assert run(repeat, rows).rows == [row("b", 2), row("c", 3), row("c", 3)]


def test_nothing_is_emitted_for_nothing() -> None:
    assert run(RowFilter(None, lambda r: False, SCHEMA), [row("a", 1)], []).events == []


def test_event_times_go_with_their_records() -> None:
    repeat = RowFlatMap(None, lambda r: [{"k": r["k"], "x": n} for n in range(r["x"])], TIMED)
    out = run(repeat, [row("a", 0, _event_time=5), row("b", 2, _event_time=6)], schema=TIMED)
    assert out.rows == [row("b", 0, _event_time=6), row("b", 1, _event_time=6)]


def test_a_function_does_not_see_the_hidden_column() -> None:
    seen = []
    run(RowMap(None, lambda r: seen.append(r) or r, TIMED), [row("a", 1, _event_time=5)], schema=TIMED)
    assert seen == [row("a", 1)]


def test_records_may_change_their_schema() -> None:
    schema = pa.schema([("name", pa.string()), ("pair", pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))]))])
    operator = RowMap(None, lambda r: {"pair": {"a": r["x"], "b": [r["k"]]}, "name": r["k"]}, schema)
    assert run(operator, [row("a", 1)]).rows == [{"name": "a", "pair": {"a": 1, "b": ["a"]}}]


def test_a_record_that_lacks_a_field_is_told_with_operator_and_field() -> None:
    with pytest.raises(SchemaMismatch, match=r"operator 'op' .* returned \{'k': 'a'\}, which has no field 'x': add it"):
        run(RowMap(None, lambda r: {"k": "a"}, SCHEMA), [row("a", 1)])


@pytest.mark.parametrize("wrong", [{"k": "a", "x": "text"}, {"k": 5, "x": 1}, {"k": "a", "x": object()}])
def test_a_record_that_does_not_fit_the_declared_schema_is_told_with_operator_and_field(wrong: Any) -> None:
    with pytest.raises(SchemaMismatch, match=r"operator 'op' .* declares the field '[kx]' as (string|int64), but its"):
        run(RowMap(None, lambda r: wrong, SCHEMA), [row("a", 1)])


@pytest.mark.parametrize("wrong", [2**70, -(2**63) - 1])
def test_a_number_too_large_for_its_field_is_told_with_operator_and_field(wrong: int) -> None:
    with pytest.raises(SchemaMismatch, match=r"operator 'op' .* declares the field 'x' as int64"):
        run(RowMap(None, lambda r: {**r, "x": wrong}, SCHEMA), [row("a", 1)])


@pytest.mark.parametrize("fraction", [1.5, np.float64(1.5)])
def test_a_fraction_in_an_integer_field_is_not_cut_off_silently(fraction: float) -> None:
    with pytest.raises(SchemaMismatch, match=r"operator 'op' .* declares the field 'x' as int64"):
        run(RowMap(None, lambda r: {**r, "x": fraction}, SCHEMA), [row("a", 1)])


def test_a_null_in_a_field_declared_not_null_is_told() -> None:
    schema = pa.schema([pa.field("k", pa.string(), nullable=False), ("x", pa.int64())])
    with pytest.raises(SchemaMismatch, match=r"operator 'op' .* declares the field 'k'"):
        run(RowMap(None, lambda r: {**r, "k": None}, schema), [row("a", 1)])


@pytest.mark.promise("A5")
def test_an_error_names_operator_subtask_and_record() -> None:
    def fails_on_three(record: dict[str, Any]) -> dict[str, Any]:
        if record["x"] == 3:
            raise ZeroDivisionError("three")
        return record

    operator = RowMap(None, fails_on_three, SCHEMA)
    with pytest.raises(UserFunctionError) as caught:
        run(operator, [row("a", 1)], [row("b", 2), row("c", 3)], subtask=2)
    assert str(caught.value) == (
        "operator 'op', subtask 2, record 3 of this attempt, {'k': 'c', 'x': 3}: ZeroDivisionError: three"
    )
    assert caught.value.uid == "op"
    raised = caught.value.raised
    assert (raised.type, raised.message, raised.record) == ("ZeroDivisionError", "three", "{'k': 'c', 'x': 3}")
    assert raised.position == "record 3 of this attempt" and raised.line.rpartition(":")[0] == __file__
    assert raised.traceback.splitlines()[0].startswith(f'  File "{__file__}", line ')
    assert "in fails_on_three" in raised.traceback and "engine/" not in raised.traceback


def test_a_long_record_is_cut_in_the_error() -> None:
    with pytest.raises(UserFunctionError) as caught:
        run(RowMap(None, lambda r: 1 / 0, SCHEMA), [row("a" * 10_000, 1)])  # type: ignore[arg-type, return-value]
    assert len(str(caught.value)) < 400


class Lifecycle(MapFunction, FilterFunction, FlatMapFunction, ReduceFunction):
    def __init__(self) -> None:
        self.calls: list[str] = []

    def open(self, context: RuntimeContext) -> None:
        self.calls.append(f"open {context.subtask_index} of {context.parallelism}")
        self._context = context

    def close(self) -> None:
        self.calls.append("close")

    def map(self, value: dict[str, Any]) -> dict[str, Any]:
        self.calls.append("map")
        self._context.count("seen", 2)
        return value


@pytest.mark.promise("A5")
def test_open_and_close_are_called_once_per_subtask_around_the_records() -> None:
    function = Lifecycle()
    operator = RowMap(function, function.map, SCHEMA)
    run(operator, [row("a", 1), row("b", 2)], subtask=3)
    operator.close()
    assert function.calls == ["open 3 of 4", "map", "map", "close"]
    assert operator.context.counters == {"user:op:seen": 4}


@pytest.mark.promise("A5")
def test_an_error_in_open_or_close_says_so() -> None:
    class Bad(MapFunction):
        def open(self, context: RuntimeContext) -> None:
            raise OSError("no database")

        def close(self) -> None:
            raise OSError("gone")

    function = Bad()
    with pytest.raises(UserFunctionError, match=r"operator 'op', subtask 0, open\(\): OSError: no database"):
        run(RowMap(function, function.map, SCHEMA))
    with pytest.raises(UserFunctionError, match=r"subtask 0, close\(\): OSError: gone"):
        operator = RowMap(function, function.map, SCHEMA)
        operator.context = context("op")
        operator.close()


def test_keyed_state_before_key_by_is_told() -> None:
    class Wants(MapFunction):
        def open(self, context: RuntimeContext) -> None:
            context.get_state(ValueStateDescriptor("n", pa.int64()))

    function = Wants()
    with pytest.raises(UserFunctionError, match="operator 'op' has no keyed state: use it after key_by"):
        run(RowMap(function, function.map, SCHEMA))


# --- keyed ---


def restored_from(operator: Operator) -> RestoredState:
    """Its snapshot, through files."""
    snapshot = operator.snapshot(1)
    assert snapshot is not None
    everything = KeyGroupRange(0, 128)
    tables = [(p.name, decode(encode(p.table(), p.keys, everything, 128), everything)) for p in snapshot.parts]
    return RestoredState([snapshot.inline], tables)


def adding(left: dict[str, Any], right: dict[str, Any]) -> dict[str, Any]:
    return {"k": left["k"], "x": left["x"] + right["x"]}


@pytest.mark.promise("A2", "C1")
def test_reduce_emits_the_running_value_per_record_and_goes_on_from_a_snapshot() -> None:
    operator = KeyedReduce(adding, adding, ["k"], SCHEMA)
    out = run(operator, [row("a", 1), row("b", 10), row("a", 2)])
    assert out.rows == [row("a", 1), row("b", 10), row("a", 3)]
    restored = restored_from(operator)
    operator.process(pa.RecordBatch.from_pylist([row("a", 100)], schema=SCHEMA), out)
    second = KeyedReduce(adding, adding, ["k"], SCHEMA)
    second.open(context("op"), restored)
    out = Collected()
    second.process(pa.RecordBatch.from_pylist([row("a", 5), row("c", 1)], schema=SCHEMA), out)
    assert out.rows == [row("a", 8), row("c", 1)]


@pytest.mark.promise("A2")
def test_a_reduce_that_changes_its_left_side_in_place_still_emits_each_value() -> None:
    def in_place(left: dict[str, Any], right: dict[str, Any]) -> dict[str, Any]:
        left["x"] += right["x"]
        return left

    operator = KeyedReduce(in_place, in_place, ["k"], SCHEMA)
    assert run(operator, [row("a", 1), row("a", 2), row("a", 3)]).rows == [row("a", 1), row("a", 3), row("a", 6)]


def test_a_reduce_that_changes_a_list_of_its_left_side_still_emits_each_value() -> None:
    schema = pa.schema([("k", pa.string()), ("xs", pa.list_(pa.int64()))])

    def appended(left: dict[str, Any], right: dict[str, Any]) -> dict[str, Any]:
        left["xs"].extend(right["xs"])
        return left

    operator, out = KeyedReduce(appended, appended, ["k"], schema), Collected()
    operator.open(context("op"), None)
    operator.process(pa.RecordBatch.from_pylist([{"k": "a", "xs": [x]} for x in (1, 2, 3)], schema=schema), out)
    assert [row["xs"] for row in out.rows] == [[1], [1, 2], [1, 2, 3]]


@pytest.mark.promise("A2")
def test_a_map_column_looks_the_same_to_both_sides_of_a_reduce_also_after_a_restore() -> None:
    schema = pa.schema([("k", pa.string()), ("m", pa.map_(pa.string(), pa.int64()))])
    seen: list[tuple[Any, Any]] = []

    def last(left: dict[str, Any], right: dict[str, Any]) -> dict[str, Any]:
        seen.append((left["m"], right["m"]))
        return right

    first = KeyedReduce(last, last, ["k"], schema)
    run(first, [{"k": "a", "m": [("x", 1)]}], [{"k": "a", "m": [("x", 1)]}], schema=schema)
    second = KeyedReduce(last, last, ["k"], schema)
    second.open(context("op"), restored_from(first))
    second.process(pa.RecordBatch.from_pylist([{"k": "a", "m": [("x", 1)]}], schema=schema), Collected())
    assert len(seen) == 2
    assert all(left == right for left, right in seen)
    assert seen[0] == seen[1]


def test_a_map_is_a_dict_to_a_function_also_inside_other_types() -> None:
    of = pa.map_(pa.string(), pa.int64())
    schema = pa.schema([("m", of), ("l", pa.list_(of)), ("s", pa.struct([("deep", pa.list_(pa.struct([("m", of)])))]))])
    seen: list[dict[str, Any]] = []
    rows = [{"m": {"x": 1}, "l": [{"y": 2}, None], "s": {"deep": [{"m": {"z": 3}}]}}, {"m": None, "l": None, "s": None}]
    run(RowMap(None, lambda r: seen.append(r) or r, schema), rows, schema=schema)
    assert seen == rows


class CountPerKey(KeyedProcessFunction):
    def open(self, context: RuntimeContext) -> None:
        self._count = context.get_state(ValueStateDescriptor("count", pa.int64()))
        self.seen: list[tuple[Any, ...]] = []

    def process_element(self, value: dict[str, Any], context: ProcessContext) -> list[dict[str, Any]]:
        self.seen.append((context.current_key, context.timestamp_ms, context.current_watermark_ms))
        self._count.update((self._count.value() or 0) + 1)
        return [{"k": value["k"], "x": self._count.value()}]


@pytest.mark.promise("A6", "C1")
def test_process_sees_key_time_and_watermark_and_keeps_state_per_key() -> None:
    function = CountPerKey()
    operator = KeyedProcess(function, ["k"], TIMED, TIMED)
    out = run(operator, [row("a", 0, _event_time=5), row("b", 0, _event_time=6)], schema=TIMED)
    operator.on_watermark(4, out)
    operator.process(pa.RecordBatch.from_pylist([row("a", 0, _event_time=7)], schema=TIMED), out)
    assert out.rows == [row("a", 1, _event_time=5), row("b", 1, _event_time=6), row("a", 2, _event_time=7)]
    assert function.seen == [(("a",), 5, -(2**63)), (("b",), 6, -(2**63)), (("a",), 7, 4)]
    assert out.watermarks == [4]
    second = CountPerKey()
    again = KeyedProcess(second, ["k"], TIMED, TIMED)
    again.open(context("op"), restored_from(operator))
    out = Collected()
    again.process(pa.RecordBatch.from_pylist([row("a", 0, _event_time=8)], schema=TIMED), out)
    assert out.rows == [row("a", 3, _event_time=8)]


@pytest.mark.promise("B7", "D7")
def test_a_function_sees_the_watermark_of_its_key_s_group_after_subtasks_are_joined() -> None:
    keys = [f"k{n}" for n in range(12)]
    groups = dict(zip(keys, key_groups(hash_columns([pa.array(keys)]), 128).tolist(), strict=True))
    function = CountPerKey()
    operator = KeyedProcess(function, ["k"], TIMED, TIMED)
    operator.open(context("op"), RestoredState([{"watermarks": [[0, 64, 90]]}, {"watermarks": [[64, 128, 40]]}], []))
    rows = pa.RecordBatch.from_pylist([row(key, 0, _event_time=5) for key in keys], schema=TIMED)
    for clock, low, high in ((None, 90, 40), (60, 90, 60), (95, 95, 95)):
        function.seen.clear()
        if clock is not None:
            operator.on_watermark(clock, Collected())
        operator.process(rows, Collected())
        assert [seen[2] for seen in function.seen] == [low if groups[key] < 64 else high for key in keys]


@pytest.mark.promise("A6")
def test_process_may_return_nothing() -> None:
    class Silent(KeyedProcessFunction):
        def process_element(self, value: Any, context: Any) -> Any:
            return None

    assert run(KeyedProcess(Silent(), ["k"], SCHEMA, SCHEMA), [row("a", 1)]).events == []
