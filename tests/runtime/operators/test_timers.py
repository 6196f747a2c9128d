"""Timers of a keyed operator: fired in bounded parts, before their watermark (B3), restored at any parallelism (B8)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api import KeyedProcessFunction, OnTimerContext, ProcessContext, RuntimeContext, ValueStateDescriptor
from engine.core.errors import StateUnclaimed, UserFunctionError
from engine.runtime.operators.base import OperatorSnapshot, RestoredState
from engine.runtime.operators.process import KeyedProcess
from engine.snapshot.statefile import decode, encode
from engine.state.key_groups import key_groups, range_of, subtask_of
from engine.state.key_hash import hash_columns
from tests.fakes import Collected, FakeClock, context

SCHEMA = pa.schema([("k", pa.string()), ("x", pa.int64()), ("_event_time", pa.int64())])


class Due(KeyedProcessFunction):
    """Registers the timer that a record asks for, in `x`; a negative one deletes. Emits how often its key fired."""

    def open(self, context: RuntimeContext) -> None:
        self._fired = context.get_state(ValueStateDescriptor("fired", "long"))

    def process_element(self, value: dict[str, Any], context: ProcessContext) -> Iterable[Any]:
        timers = context.timer_service()
        if value["x"] < 0:
            timers.delete_event_time_timer(-value["x"])
        else:
            timers.register_event_time_timer(value["x"])
        return ()

    def on_timer(self, timestamp: int, context: OnTimerContext) -> Iterable[Any]:
        fired = (self._fired.value() or 0) + 1
        self._fired.update(fired)
        yield {"k": context.get_current_key(), "x": fired}


class Clockwork(Due):
    """Registers timers of processing time, and each of them the next one, up to a limit."""

    def process_element(self, value: dict[str, Any], context: ProcessContext) -> Iterable[Any]:
        context.timer_service().register_processing_time_timer(value["x"])
        return ()

    def on_timer(self, timestamp: int, context: OnTimerContext) -> Iterable[Any]:
        if timestamp % 100 < 3:
            context.timer_service().register_processing_time_timer(timestamp + 1)
        yield {"k": context.get_current_key(), "x": timestamp}


def batch(*rows: tuple[str | None, int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"k": k, "x": x, "_event_time": 0} for k, x in rows], schema=SCHEMA)


def opened(function: KeyedProcessFunction, restored: RestoredState | None = None, **of: Any) -> KeyedProcess:
    operator = KeyedProcess(function, ["k"], SCHEMA, SCHEMA)
    operator.open(context("op", **of), restored)
    return operator


class Subtasks:
    """All subtasks of one operator, as the engine would drive them; a restore may change their number."""

    def __init__(self, parallelism: int, snapshots: list[OperatorSnapshot]) -> None:
        self.out = Collected()
        self._operators = []
        for index in range(parallelism):
            groups = range_of(index, parallelism, 128)
            tables = [
                (part.name, decode(encode(part.table(), part.keys, range_of(before, len(snapshots), 128), 128), groups))
                for before, snapshot in enumerate(snapshots)
                for part in snapshot.parts
            ]
            restored = RestoredState([s.inline for s in snapshots], [(n, t) for n, t in tables if t.num_rows])
            self._operators.append(
                opened(Due(), restored if snapshots else None, subtask=index, parallelism=parallelism)
            )

    def process(self, key: str | None, x: int) -> None:
        rows = batch((key, x))
        (group,) = key_groups(hash_columns([rows.column("k")]), 128).tolist()
        self._operators[subtask_of(group, len(self._operators), 128)].process(rows, self.out)

    def watermark(self, timestamp_ms: int, max_rows: int) -> None:
        for operator in self._operators:
            before = len(self.out.watermarks)
            operator.on_watermark(timestamp_ms, self.out)
            while operator.firing:
                assert len(self.out.watermarks) == before, "the watermark passed before its timers"
                emitted = len(self.out.rows)
                operator.work(max_rows, self.out)
                assert len(self.out.rows) <= emitted + max_rows
            assert self.out.events[-1] == timestamp_ms

    def rescaled(self, parallelism: int) -> Subtasks:
        snapshots = [operator.snapshot(1) for operator in self._operators]
        return Subtasks(parallelism, [snapshot for snapshot in snapshots if snapshot is not None])


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("row"), st.sampled_from([None, "a", "b", "c", "d"]), st.integers(-30, 60)),
        st.tuples(st.just("watermark"), st.just(""), st.integers(-20, 80)),
        st.tuples(st.just("restore"), st.just(""), st.integers(1, 4)),
    ),
    max_size=40,
)


@pytest.mark.promise("B3", "B8", "D7")
@given(STEPS, st.integers(1, 3))
@settings(max_examples=100, deadline=None)
def test_timers_fire_as_in_a_plain_model_on_random_streams(steps: list[Any], max_rows: int) -> None:
    subtasks, clock = Subtasks(2, []), -(2**63)
    timers: set[tuple[int, str | None]] = set()
    fired: dict[str | None, int] = {}
    for what, key, number in steps:
        match what:
            case "row":
                subtasks.process(key, number)
                if number < 0:
                    timers.discard((-number, key))
                else:
                    timers.add((number, key))
            case "watermark":
                clock = max(clock, number)
                wanted = []
                for due in sorted((t for t in timers if t[0] <= clock), key=repr):
                    timers.remove(due)
                    fired[due[1]] = fired.get(due[1], 0) + 1
                    wanted.append((due[1], fired[due[1]]))
                before = len(subtasks.out.rows)
                subtasks.watermark(number, max_rows)
                got = [(row["k"], row["x"]) for row in subtasks.out.rows[before:]]
                assert sorted(got, key=repr) == sorted(wanted, key=repr)
            case "restore":
                subtasks = subtasks.rescaled(number)


@pytest.mark.promise("B8")
def test_results_of_a_timer_have_its_time_as_event_time_and_those_of_processing_time_none() -> None:
    operator, out = opened(Due()), Collected()
    operator.process(batch(("a", 50)), out)
    operator.on_watermark(60, out)
    assert operator.work(10, out)
    assert out.rows == [{"k": "a", "x": 1, "_event_time": 50}]
    timed, out = opened(Clockwork(), clock=FakeClock(wall_ms=1000)), Collected()
    timed.process(batch(("a", 999)), out)
    assert timed.work(10, out)
    assert out.rows == [{"k": "a", "x": 999, "_event_time": None}]


@pytest.mark.promise("B8")
def test_processing_time_timers_follow_the_clock_and_wake_the_slot() -> None:
    clock, out = FakeClock(now_ms=7.0, wall_ms=1000), Collected()
    operator = opened(Clockwork(), clock=clock)
    operator.process(batch(("a", 1100), ("a", 1100), ("b", 1050)), out)
    assert operator.due_ms == 57.0
    assert not operator.work(10, out)
    clock.pass_ms(50)
    assert operator.work(10, out) and operator.due_ms == 107.0
    clock.pass_ms(49)
    assert not operator.work(10, out)
    clock.pass_ms(1)
    assert operator.work(10, out)
    assert operator.due_ms == 108.0, "the timer that the timer registered"
    clock.pass_ms(60)
    while operator.work(2, out):
        pass
    assert [(row["k"], row["x"]) for row in out.rows] == [("b", 1050), *(("a", 1100 + n) for n in range(4))]
    assert operator.due_ms is None


@pytest.mark.promise("B8")
def test_a_timer_that_was_missed_while_the_job_was_down_fires_after_the_restore() -> None:
    clock = FakeClock(wall_ms=1000)
    operator = opened(Clockwork(), clock=clock)
    operator.process(batch(("a", 5050)), Collected())
    snapshot = operator.snapshot(1)
    assert snapshot is not None
    clock.pass_ms(60_000)
    restored = RestoredState([snapshot.inline], [(part.name, part.table()) for part in snapshot.parts])
    again, out = opened(Clockwork(), restored, clock=clock), Collected()
    assert again.work(10, out)
    assert [row["x"] for row in out.rows] == [5050]


class Wrong(KeyedProcessFunction):
    def __init__(self, timer: Any = 5) -> None:
        self._timer = timer

    def process_element(self, value: dict[str, Any], context: ProcessContext) -> Iterable[Any]:
        context.timer_service().register_event_time_timer(self._timer)
        return ()


class Raises(Wrong):
    def on_timer(self, timestamp: int, context: OnTimerContext) -> Iterable[Any]:
        raise RuntimeError("no price")


class ReturnsOne(Wrong):
    def on_timer(self, timestamp: int, context: OnTimerContext) -> Any:
        return {"k": "a", "x": 1}


@pytest.mark.promise("B8", "H8")
def test_mistakes_with_timers_are_told() -> None:
    with pytest.raises(UserFunctionError, match="the function has no on_timer"):
        opened(Wrong()).process(batch(("a", 1)), Collected())
    with pytest.raises(UserFunctionError, match=r"takes Unix milliseconds, an int, not 1\.5"):
        opened(Raises(1.5)).process(batch(("a", 1)), Collected())
    for function, says in (
        (
            Raises(),
            r"operator 'op', subtask 0, on_timer\(5\) of event time for the key \('a',\): RuntimeError: no price",
        ),
        (ReturnsOne(), "return a list of records, .* or yield them"),
    ):
        operator = opened(function)
        operator.process(batch(("a", 1)), Collected())
        operator.on_watermark(9, Collected())
        with pytest.raises(UserFunctionError, match=says):
            operator.work(10, Collected())


@pytest.mark.promise("B8", "D8")
def test_a_function_that_lost_its_on_timer_does_not_lose_its_timers_silently() -> None:
    operator = opened(Due())
    operator.process(batch(("a", 50)), Collected())
    snapshot = operator.snapshot(1)
    assert snapshot is not None
    restored = RestoredState([snapshot.inline], [(part.name, part.table()) for part in snapshot.parts])
    with pytest.raises(StateUnclaimed, match=r"its snapshot holds 1 event-time timers, but .* no on_timer"):
        opened(Wrong(), restored)


class Later(Due):
    """Registers a timer at the time that it was made with."""

    def __init__(self, at: Any) -> None:
        self._at = at

    def process_element(self, value: dict[str, Any], context: ProcessContext) -> Iterable[Any]:
        context.timer_service().register_event_time_timer(self._at)
        return ()


@pytest.mark.promise("B8")
@pytest.mark.parametrize("at", [-(2**63), 2**63 - 1])
def test_the_first_and_the_last_moment_that_a_snapshot_can_hold_may_be_timers(at: int) -> None:
    operator = opened(Later(at))
    operator.process(batch(("a", 1)), Collected())
    tables = {part.name: part.table() for part in operator.snapshot(1).parts}
    assert tables["event-time timers"].column("_timer_ms").to_pylist() == [at]


@pytest.mark.promise("B8")
@pytest.mark.parametrize("at", [2**63, -(2**63) - 1, True, 1.5, "12:00"])
def test_a_time_that_no_snapshot_can_hold_is_refused_where_it_is_given(at: Any) -> None:
    with pytest.raises(UserFunctionError, match=r"register_event_time_timer takes Unix milliseconds, an int"):
        opened(Later(at)).process(batch(("a", 1)), Collected())
