"""What a record did to keyed state and timers is undone, against a backend that never saw the record (C1, B8)."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.functions import AggregateFunction
from engine.core.state_ttl import StateTtlConfig
from engine.core.state_types import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from engine.runtime.timers import KeyTimers
from engine.state.group_clock import GroupClock
from engine.state.key_groups import KeyGroupRange
from engine.state.keyed.heap import HeapBackend

KEYS = [pa.field("k", pa.string())]
TTL_MS = 20


class Clock:
    def __init__(self) -> None:
        self.now = 1000

    def wall_ms(self) -> int:
        return self.now


class Appended(AggregateFunction):
    def create_accumulator(self) -> list[int]:
        return []

    def add(self, value: int, accumulator: list[int]) -> list[int]:
        accumulator.append(value)  # in place, as authors do
        return accumulator

    def get_result(self, accumulator: list[int]) -> list[int]:
        return accumulator


def descriptors(ttl: bool | None) -> list[StateDescriptor]:
    made: list[StateDescriptor] = [
        ValueStateDescriptor("number", "long"),
        ValueStateDescriptor("nested", "array<long>"),
        ListStateDescriptor("list", "long"),
        ListStateDescriptor("lists", "array<long>"),
        MapStateDescriptor("map", "long", "long"),
        MapStateDescriptor("maps", "long", "array<long>"),
        ReducingStateDescriptor("reducing", lambda left, right: left + right, "long"),
        AggregatingStateDescriptor("aggregating", Appended(), "array<long>"),
    ]
    if ttl is not None:
        builder = StateTtlConfig.new_builder(TTL_MS)
        for descriptor in made:
            descriptor.enable_time_to_live((builder.update_ttl_on_read_and_write() if ttl else builder).build())
    return made


class Subject:
    def __init__(self, clock: Clock, ttl: bool | None, undoable: bool) -> None:
        self.backend = HeapBackend(KEYS, clock.wall_ms, undoable)
        self.states = {descriptor.name: self.backend.state(descriptor) for descriptor in descriptors(ttl)}
        groups: Any = GroupClock(KeyGroupRange(0, 128), 128, ())
        self.timers = KeyTimers(self.backend, KEYS, clock, groups, True)  # type: ignore[arg-type]

    def do(self, key: str, step: tuple[str, int, int]) -> None:
        self.backend.key = (key,)
        what, place, number = step
        state = self.states.get(what)
        match what:
            case "number" | "nested":
                held = state.value()
                if what == "nested":
                    held = held or []
                    held.append(number)
                    if place == 0:
                        return  # changed in place only
                state.clear() if place == 1 else state.update(held if what == "nested" else number)
            case "list" | "lists":
                item: Any = number if what == "list" else [number]
                if what == "lists" and place == 2:
                    for other in state.get():
                        other.append(number)
                [state.add, lambda item: state.update([item]), state.add, lambda _: state.clear()][place](item)
            case "map" | "maps":
                if what == "maps" and place == 3:
                    for value in state.entries().values():
                        value.append(number)
                state.remove(place) if number == 0 else state.put(place, number if what == "map" else [number])
            case "reducing" | "aggregating":
                state.clear() if place == 3 else state.add(number)
            case "event":
                (self.timers.delete_event_time_timer if place > 1 else self.timers.register_event_time_timer)(number)
            case "clock":
                of = self.timers
                (of.delete_processing_time_timer if place > 1 else of.register_processing_time_timer)(number)

    def held(self) -> dict[str, list[Any]]:
        parts = [*self.backend.snapshot(), *self.timers.snapshot()]
        tables = {name: table().to_pylist() for name, table in parts}
        return {name: sorted(rows, key=repr) for name, rows in tables.items() if rows}


NAMES = ["number", "nested", "list", "lists", "map", "maps", "reducing", "aggregating", "event", "clock"]
STEPS = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 3), st.integers(0, 4)), max_size=6)
RECORDS = st.lists(st.tuples(st.sampled_from("ab"), STEPS, st.booleans(), st.integers(0, 15)), max_size=25)


@pytest.mark.promise("C1", "B8", "A12")
@pytest.mark.parametrize("ttl", [None, False, True], ids=["no ttl", "on write", "on read too"])
@given(records=RECORDS)
@settings(max_examples=200, deadline=None)
def test_what_a_record_did_is_undone(ttl: bool | None, records: list[Any]) -> None:
    clock = Clock()
    undoing, model = Subject(clock, ttl, True), Subject(clock, ttl, False)
    for key, steps, fails, later in records:
        undoing.backend.begin_record()
        undoing.timers.begin_record()
        for step in steps:
            undoing.do(key, step)
            if not fails:
                model.do(key, step)
        for part in (undoing.backend, undoing.timers):
            part.undo_record() if fails else part.end_record()
        clock.now += later
        assert undoing.held() == model.held()


def test_what_happens_between_two_records_is_not_undone() -> None:
    subject = Subject(Clock(), None, True)
    subject.do("a", ("list", 0, 1))
    subject.backend.begin_record()
    subject.backend.end_record()
    subject.do("a", ("list", 0, 2))
    subject.backend.undo_record()
    assert subject.states["list"].get() == [1, 2]


def test_a_state_that_a_record_asks_for_first_is_undone_too() -> None:
    backend = HeapBackend(KEYS, int, undoable=True)
    backend.key = ("a",)
    backend.begin_record()
    state = backend.state(ValueStateDescriptor("late", "long"))
    state.update(1)
    backend.undo_record()
    assert state.value() is None


def test_an_item_that_is_changed_after_another_was_added_is_undone_too() -> None:
    subject = Subject(Clock(), None, True)
    subject.do("a", ("lists", 0, 1))
    subject.backend.begin_record()
    subject.do("a", ("lists", 0, 2))
    subject.do("a", ("lists", 2, 3))
    subject.backend.undo_record()
    assert subject.states["lists"].get() == [[1]]
