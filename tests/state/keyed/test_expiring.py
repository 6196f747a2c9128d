"""State kinds and their time to live (C1), against a straightforward model that holds every value with its time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.errors import JobError
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
from engine.snapshot.statefile import decode, encode
from engine.state.key_groups import KeyGroupRange
from engine.state.keyed.heap import HeapBackend

KEYS = [pa.field("k", pa.string())]
TTL_MS = 100


class Clock:
    def __init__(self) -> None:
        self.now = 1000

    def __call__(self) -> int:
        return self.now


class Sum(AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: int, accumulator: int) -> int:
        return accumulator + value

    def get_result(self, accumulator: int) -> str:
        return f"sum {accumulator}"


DESCRIPTORS: dict[str, Callable[[], StateDescriptor]] = {
    "value": lambda: ValueStateDescriptor("s", "long"),
    "list": lambda: ListStateDescriptor("s", "long"),
    "map": lambda: MapStateDescriptor("s", "string", "long"),
    "reducing": lambda: ReducingStateDescriptor("s", lambda left, right: left + right, "long"),
    "aggregating": lambda: AggregatingStateDescriptor("s", Sum(), "long"),
}


def descriptor(kind: str, on_read: bool | None) -> StateDescriptor:
    made = DESCRIPTORS[kind]()
    if on_read is not None:
        builder = StateTtlConfig.new_builder(TTL_MS)
        made.enable_time_to_live((builder.update_ttl_on_read_and_write() if on_read else builder).build())
    return made


def through_files(backend: HeapBackend, clock: Clock) -> HeapBackend:
    restored = HeapBackend(KEYS, clock)
    for name, table in backend.snapshot():
        data = encode(table(), ["k"], KeyGroupRange(0, 128), 128)
        restored.restore(name, decode(data, KeyGroupRange(0, 128)))
    return restored


@dataclass
class Model:
    """Every value with the time of its last touch; `held` is a list of [entry, value, time] per key."""

    kind: str
    on_read: bool | None
    held: dict[str, list[list[Any]]] = field(default_factory=dict)

    def alive(self, key: str, now: int) -> list[list[Any]]:
        entries = self.held.get(key, [])
        self.held[key] = [e for e in entries if self.on_read is None or e[2] + TTL_MS > now]
        return self.held[key]

    def read(self, key: str, now: int) -> Any:
        alive = self.alive(key, now)
        if self.on_read:
            for entry in alive:
                entry[2] = now
        values = [value for _, value, _ in alive]
        match self.kind:
            case "list":
                return values
            case "map":
                return {name: value for name, value, _ in alive}
            case "aggregating":
                return f"sum {values[0]}" if values else None
            case _:
                return values[0] if values else None

    def write(self, key: str, entry: str, value: int, now: int) -> None:
        alive = self.alive(key, now)
        match self.kind:
            case "list":
                alive.append([entry, value, now])
            case "map":
                same = next((e for e in alive if e[0] == entry), None)
                if same is None:
                    alive.append([entry, value, now])
                else:
                    same[1:] = [value, now]
            case "value":
                self.held[key] = [["", value, now]]
            case _:
                before = alive[0][1] if alive else 0
                self.held[key] = [["", before + value, now]]


def read(state: Any, kind: str) -> Any:
    return getattr(state, {"value": "value", "map": "entries"}.get(kind, "get"))()


def write(state: Any, kind: str, entry: str, value: int) -> None:
    if kind == "map":
        state.put(entry, value)
    elif kind == "value":
        state.update(value)
    else:
        state.add(value)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sampled_from("abc"), st.sampled_from("xyz"), st.integers(-5, 5)),
        st.tuples(st.just("read"), st.sampled_from("abc"), st.just(""), st.just(0)),
        st.tuples(st.just("clear"), st.sampled_from("abc"), st.just(""), st.just(0)),
        st.tuples(st.just("wait"), st.just(""), st.just(""), st.sampled_from([1, 40, 99, 100, 101, 250])),
        st.tuples(st.just("restore"), st.just(""), st.just(""), st.just(0)),
    ),
    max_size=40,
)


@pytest.mark.promise("C1")
@pytest.mark.parametrize("on_read", [None, False, True], ids=["without ttl", "on write", "on read too"])
@pytest.mark.parametrize("kind", DESCRIPTORS)
@given(steps=STEPS)
@settings(max_examples=60, deadline=None)
def test_a_state_holds_what_a_plain_model_holds(kind: str, on_read: bool | None, steps: list[Any]) -> None:
    clock = Clock()
    backend, of = HeapBackend(KEYS, clock), descriptor(kind, on_read)
    state, model = backend.state(of), Model(kind, on_read)
    for what, key, entry, number in steps:
        backend.key = (key,)
        match what:
            case "write":
                write(state, kind, entry, number)
                if kind in ("reducing", "aggregating") and on_read:
                    model.read(key, clock.now)
                model.write(key, entry, number, clock.now)
            case "read":
                assert read(state, kind) == model.read(key, clock.now)
            case "clear":
                state.clear()
                model.held.pop(key, None)
            case "wait":
                clock.now += number
            case "restore":
                backend = through_files(backend, clock)
                state = backend.state(of)
    alive = {(key,) for key in "abc" if model.alive(key, clock.now)}
    ((_, table),) = backend.snapshot() or [("", lambda: pa.table({"k": []}))]
    assert {(key,) for key in table().column("k").to_pylist()} == alive, "a snapshot holds exactly what is alive"


@pytest.mark.promise("C1")
@pytest.mark.parametrize("kind", DESCRIPTORS)
def test_expired_keys_are_removed_while_others_are_written_without_a_look_at_all(kind: str) -> None:
    clock = Clock()
    backend, of = HeapBackend(KEYS, clock), descriptor(kind, on_read=False)
    state = backend.state(of)
    held = backend._states["s"].values
    for n in range(2000):
        clock.now += 1
        backend.key = (f"k{n}",)
        write(state, kind, "x", n)
        assert len(held) <= TTL_MS + 2, "the dead pile up"
    assert len(held) == TTL_MS


@pytest.mark.promise("C1")
@pytest.mark.parametrize("kind", ["list", "map"])
def test_a_read_of_all_lets_what_is_alive_live_longer_also_beside_something_expired(kind: str) -> None:
    clock = Clock()
    backend = HeapBackend(KEYS, clock)
    state: Any = backend.state(descriptor(kind, on_read=True))
    backend.key = ("a",)
    write(state, kind, "old", 1)
    clock.now += TTL_MS // 2
    write(state, kind, "new", 2)
    for passed_ms in (TTL_MS // 2, TTL_MS - 1, TTL_MS - 1):
        clock.now += passed_ms
        assert read(state, kind) == ([2] if kind == "list" else {"new": 2})


def test_a_key_that_is_written_and_cleared_again_and_again_is_queued_once() -> None:
    backend = HeapBackend(KEYS, Clock())
    state = backend.state(descriptor("value", on_read=False))
    backend.key = ("a",)
    for n in range(100):
        state.update(n)
        state.clear()
    expiry = backend._states["s"].expiry
    assert expiry is not None and len(expiry._queue) == 1


@pytest.mark.promise("C1")
def test_keys_of_a_restored_state_are_removed_when_they_expire() -> None:
    clock = Clock()
    backend, of = HeapBackend(KEYS, clock), descriptor("value", on_read=False)
    state = backend.state(of)
    for n in range(50):
        backend.key = (f"old{n}",)
        state.update(n)
    backend = through_files(backend, clock)
    state, held = backend.state(of), backend._states["s"].values
    clock.now += TTL_MS
    for n in range(25):
        backend.key = (f"new{n}",)
        state.update(n)
    assert set(held) == {(f"new{n}",) for n in range(25)}, "two go with each write"


@pytest.mark.promise("C1")
def test_a_value_that_expires_at_this_moment_is_not_shown_to_a_function_of_all_keys() -> None:
    clock = Clock()
    backend, of = HeapBackend(KEYS, clock), descriptor("value", on_read=False)
    backend.key = ("a",)
    backend.state(of).update(1)
    for passed_ms, seen in ((TTL_MS - 1, [("a",)]), (1, [])):
        clock.now += passed_ms
        found: list[Any] = []
        backend.apply_to_all(of, lambda key, state, found=found: found.append(key))
        assert found == seen


@pytest.mark.promise("C1")
def test_a_snapshot_removes_all_keys_that_are_due() -> None:
    clock = Clock()
    backend = HeapBackend(KEYS, clock)
    state, held = backend.state(descriptor("value", on_read=False)), backend._states["s"].values
    for n in range(50):
        backend.key = (f"k{n}",)
        state.update(n)
    clock.now += TTL_MS
    backend.snapshot()
    assert held == {}


@pytest.mark.promise("C1")
def test_a_key_that_was_touched_again_goes_when_that_time_is_over_and_not_later() -> None:
    clock = Clock()
    backend, of = HeapBackend(KEYS, clock), descriptor("value", on_read=False)
    state, held = backend.state(of), backend._states["s"].values

    def write_to(key: str) -> None:
        backend.key = (key,)
        state.update(1)

    write_to("a")
    clock.now += TTL_MS // 2
    write_to("a")
    clock.now += TTL_MS // 2
    backend.snapshot()  # the time of the first write is over
    assert set(held) == {("a",)}
    clock.now += TTL_MS // 2
    write_to("b")
    assert set(held) == {("b",)}


@pytest.mark.promise("C1", "D8")
def test_a_state_gains_and_loses_its_time_to_live_without_losing_its_values() -> None:
    clock = Clock()
    backend = HeapBackend(KEYS, clock)
    backend.key = ("a",)
    backend.state(descriptor("list", None)).add(1)
    clock.now += 10 * TTL_MS
    gained = through_files(backend, clock)
    gained.key = ("a",)
    state = gained.state(descriptor("list", on_read=False))
    assert state.get() == [1], "it is as old as the restore"
    lost = through_files(gained, clock)
    clock.now += TTL_MS
    assert state.get() == []
    lost.key = ("a",)
    assert lost.state(descriptor("list", None)).get() == [1]


@pytest.mark.promise("C1", "D8")
def test_a_state_that_is_asked_for_as_another_kind_is_refused() -> None:
    backend = HeapBackend(KEYS, Clock())
    backend.key = ("a",)
    backend.state(descriptor("list", None)).add(1)
    restored = through_files(backend, Clock())
    with pytest.raises(ValueError, match=r"state 's' was saved as a list state, but .* as an aggregating state"):
        restored.state(descriptor("aggregating", None))
    with pytest.raises(ValueError, match="twice, as a list state of int64 and as a map state of string to int64"):
        backend.state(descriptor("map", None))


@pytest.mark.promise("C3")
@pytest.mark.parametrize("kind", ["list", "map"])
def test_later_changes_of_a_list_or_a_map_do_not_show_in_a_snapshot(kind: str) -> None:
    backend = HeapBackend(KEYS, Clock())
    state = backend.state(descriptor(kind, None))
    backend.key = ("a",)
    write(state, kind, "x", 1)
    ((_, table),) = backend.snapshot()
    write(state, kind, "y", 2)
    state.clear()
    assert table().num_rows == 1


def test_keys_of_a_job_may_have_the_names_of_the_hidden_columns() -> None:
    fields = [pa.field(name, pa.int64()) for name in ("_item", "_touched_ms")]
    backend = HeapBackend(fields, Clock())
    backend.key = (1, 2)
    backend.state(descriptor("list", on_read=False)).add(7)
    restored = HeapBackend(fields, Clock())
    for name, table in backend.snapshot():
        restored.restore(name, table())
    restored.key = (1, 2)
    assert restored.state(descriptor("list", on_read=False)).get() == [7]


MISTAKES: list[tuple[Callable[[], object], str]] = [
    (lambda: ValueStateDescriptor("m", int), "not int: write 'long'"),
    (lambda: ListStateDescriptor("m", list), "not list: write such as 'array<long>', or use a ListStateDescriptor"),
    (lambda: MapStateDescriptor("m", str, "long"), "not str: write 'string'"),
    (lambda: MapStateDescriptor("m", "double", "long"), "double can't be the key of a map"),
    (lambda: ValueStateDescriptor("", "long"), "a state needs a name, a text"),
    (lambda: ReducingStateDescriptor("m", "long", max), "takes a function such as max, or a ReduceFunction, before"),  # type: ignore[arg-type]
    (lambda: AggregatingStateDescriptor("m", Sum, "long"), "takes an object of an AggregateFunction before the type"),  # type: ignore[arg-type]
    (lambda: ValueStateDescriptor("m", "long").enable_time_to_live("1 h"), "new_builder(\"1 h\").build(), not '1 h'"),  # type: ignore[arg-type]
    (lambda: StateTtlConfig.new_builder("0 s"), "a time to live must be longer than 0"),
    (lambda: StateTtlConfig.new_builder("soon"), "'soon' is not a duration"),
]


@pytest.mark.parametrize(("mistake", "text"), MISTAKES, ids=[text[:40] for _, text in MISTAKES])
def test_a_wrong_descriptor_says_what_to_write(mistake: Callable[[], object], text: str) -> None:
    with pytest.raises(JobError) as caught:
        mistake()
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "call", "says"),
    [
        ("list", lambda s: s.add("x"), "declared as list of int64, but add() was given 'x' for the key ('a',)"),
        ("list", lambda s: s.update([1, "x"]), "declared as list of int64, but update() was given 'x'"),
        ("map", lambda s: s.put(1, 1), "declared as map with keys of string, but put() was given 1"),
        ("map", lambda s: s.put(None, 1), "declared as map with keys of string, but put() was given None"),
        ("map", lambda s: s.put("x", "y"), "declared as map with values of int64, but put() was given 'y'"),
        ("reducing", lambda s: s.add("x"), "declared as int64, but update() was given 'x'"),
    ],
)
@pytest.mark.parametrize("on_read", [None, False])
def test_a_value_of_another_type_is_refused_where_it_is_given(
    kind: str, call: Callable[[Any], None], says: str, on_read: bool | None
) -> None:
    backend = HeapBackend(KEYS, Clock())
    backend.key = ("a",)
    with pytest.raises(TypeError) as caught:
        call(backend.state(descriptor(kind, on_read)))
    assert says in str(caught.value)


@pytest.mark.promise("C1")
@pytest.mark.parametrize("look", ["get", "contains"])
@pytest.mark.parametrize("on_read", [False, True])
def test_a_look_at_one_entry_of_a_map_lets_that_entry_live_longer_if_reads_count(look: str, on_read: bool) -> None:
    clock = Clock()
    backend = HeapBackend(KEYS, clock)
    state: Any = backend.state(descriptor("map", on_read))
    backend.key = ("a",)
    write(state, "map", "seen", 1)
    write(state, "map", "not seen", 2)
    clock.now += TTL_MS - 1
    assert getattr(state, look)("seen")
    clock.now += TTL_MS - 1
    assert state.contains("seen") is on_read and not state.contains("not seen")
    assert state.entries() == ({"seen": 1} if on_read else {})


@pytest.mark.promise("C1")
@pytest.mark.parametrize("kind", ["list", "map"])
def test_items_and_entries_are_removed_one_by_one_as_they_expire(kind: str) -> None:
    clock = Clock()
    backend = HeapBackend(KEYS, clock)
    state, held = backend.state(descriptor(kind, on_read=False)), backend._states["s"].values
    backend.key = ("a",)
    write(state, kind, "old", 1)
    clock.now += TTL_MS // 2
    write(state, kind, "middle", 2)
    clock.now += TTL_MS // 2
    write(state, kind, "new", 3)
    assert len(held["a",]) == 2
    clock.now += TTL_MS // 2
    backend.key = ("b",)
    write(state, kind, "x", 4)
    assert len(held["a",]) == 1, "the oldest is gone, although nobody has looked at the key"


@pytest.mark.promise("C1")
def test_a_list_of_which_all_has_expired_is_empty_and_so_is_one_that_is_updated_with_nothing() -> None:
    clock = Clock()
    backend, of = HeapBackend(KEYS, clock), descriptor("list", on_read=True)
    state, held = backend.state(of), backend._states["s"].values
    backend.key = ("a",)
    state.update([1, 2])
    state.update([])
    assert state.get() == [] and held == {}
    state.add(3)
    clock.now += TTL_MS
    assert state.get() == [] and held == {}, "a read of nothing keeps no empty list"
