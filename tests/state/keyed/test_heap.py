"""Heap state: a value per key; a snapshot is not changed by later updates (C3); a restore gives back what was held."""

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.errors import SchemaMismatch
from engine.core.state_types import ValueStateDescriptor
from engine.snapshot.statefile import decode, encode
from engine.state.key_groups import KeyGroupRange
from engine.state.keyed.heap import HeapBackend

COUNT = ValueStateDescriptor("count", pa.int64())
KEYS = [pa.field("k", pa.string()), pa.field("g", pa.int64())]


def through_files(backend: HeapBackend, keys: list[pa.Field]) -> HeapBackend:
    """Snapshot, write, read, restore."""
    restored = HeapBackend(keys, int)
    for name, table in backend.snapshot():
        data = encode(table(), [field.name for field in keys], KeyGroupRange(0, 128), 128)
        restored.restore(name, decode(data, KeyGroupRange(0, 128)))
    return restored


def held(backend: HeapBackend, descriptor: ValueStateDescriptor, key: tuple[Any, ...]) -> Any:
    state = backend.state(descriptor)
    (backend.key,) = backend.canonical(iter([key]))
    return state.value()


@pytest.mark.promise("C1")
def test_a_value_belongs_to_the_current_key() -> None:
    backend = HeapBackend(KEYS, int)
    state = backend.state(COUNT)
    backend.key = ("a", 1)
    assert state.value() is None
    state.update(5)
    backend.key = ("a", 2)
    assert state.value() is None
    backend.key = ("a", 1)
    assert state.value() == 5
    state.clear()
    assert state.value() is None
    state.clear()


@pytest.mark.promise("C1")
@given(st.dictionaries(st.tuples(st.none() | st.text(max_size=3), st.none() | st.integers(-9, 9)), st.integers(-9, 9)))
def test_restored_state_is_what_was_held(values) -> None:
    backend = HeapBackend(KEYS, int)
    state = backend.state(COUNT)
    for key, value in values.items():
        backend.key = key
        state.update(value)
    restored = through_files(backend, KEYS)
    for key, value in values.items():
        assert held(restored, COUNT, key) == value
    assert held(restored, COUNT, ("not there", 0)) is None


@pytest.mark.promise("C3")
def test_later_updates_do_not_show_in_a_snapshot() -> None:
    backend = HeapBackend(KEYS, int)
    state = backend.state(COUNT)
    for key, value in ((("a", 1), 1), (("b", 1), 2)):
        backend.key = key
        state.update(value)
    ((name, table),) = backend.snapshot()
    backend.key = ("a", 1)
    state.update(100)
    backend.key = ("c", 1)
    state.update(3)
    backend.key = ("b", 1)
    state.clear()
    assert name == "count"
    assert table().to_pylist() == [{"k": "a", "g": 1, "_value": 1}, {"k": "b", "g": 1, "_value": 2}]


@pytest.mark.promise("C3")
def test_a_nested_value_changed_in_place_does_not_show_in_a_snapshot() -> None:
    backend = HeapBackend(KEYS, int)
    state = backend.state(ValueStateDescriptor("seen", pa.list_(pa.string())))
    backend.key = ("a", 1)
    seen = ["x"]
    state.update(seen)
    ((_, table),) = backend.snapshot()
    seen.append("y")
    assert table().column("_value").to_pylist() == [["x"]]
    assert state.value() == ["x", "y"]


@pytest.mark.promise("C1")
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.list_(pa.int64()), [1, None, 3]),
        (pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))]), {"a": 1, "b": ["x"]}),
        (pa.map_(pa.string(), pa.int64()), {"x": 1, "y": 2}),
        (pa.struct([("m", pa.map_(pa.string(), pa.int64()))]), {"m": {"x": 1}}),
        (pa.timestamp("us", tz="UTC"), dt.datetime(2024, 1, 1, 1, 2, 3, 4, tzinfo=dt.UTC)),
        (pa.date32(), dt.date(2024, 1, 1)),
        (pa.binary(), b"\x00\xff"),
        (pa.bool_(), False),
        (pa.float64(), -0.5),
    ],
)
def test_a_restored_value_has_the_python_type_that_it_had(kind: pa.DataType, value: Any) -> None:
    descriptor = ValueStateDescriptor("v", kind)
    backend = HeapBackend(KEYS, int)
    state = backend.state(descriptor)
    backend.key = ("a", 1)
    state.update(value)
    restored = held(through_files(backend, KEYS), descriptor, ("a", 1))
    assert restored == value
    assert type(restored) is type(value)


@pytest.mark.promise("D8")
def test_state_of_another_type_is_a_clear_error() -> None:
    backend = HeapBackend(KEYS, int)
    backend.state(COUNT)
    backend.key = ("a", 1)
    backend.state(COUNT).update(1)
    restored = through_files(backend, KEYS)
    with pytest.raises(ValueError, match=r"state 'count' was saved as int64, but the job now declares string: declare"):
        restored.state(ValueStateDescriptor("count", pa.string()))


def test_a_state_declared_twice_with_different_types_is_a_clear_error() -> None:
    backend = HeapBackend(KEYS, int)
    backend.state(COUNT)
    backend.state(COUNT)
    with pytest.raises(ValueError, match="'count' is declared twice, as a value state of int64 and as a value state"):
        backend.state(ValueStateDescriptor("count", pa.string()))


@pytest.mark.parametrize("kind", [pa.int64(), pa.list_(pa.int64())])
@pytest.mark.parametrize("value", ["text", 2**70, [2**70], object(), 1.5])
def test_a_value_that_does_not_fit_its_type_names_the_state(kind: pa.DataType, value: Any) -> None:
    backend = HeapBackend(KEYS, int)
    state = backend.state(ValueStateDescriptor("n", kind))
    backend.key = ("a", 1)
    with pytest.raises((TypeError, SchemaMismatch), match="state 'n' is declared as") as caught:
        state.update(value)
        [table() for _, table in backend.snapshot()]
    if not pa.types.is_nested(kind):  # found when it is put
        assert f"update() was given {value!r} for the key ('a', 1)" in str(caught.value)


def test_state_that_nobody_has_opened_yet_is_kept() -> None:
    backend = HeapBackend(KEYS, int)
    backend.key = ("a", 1)
    backend.state(COUNT).update(7)
    again = through_files(through_files(backend, KEYS), KEYS)
    assert held(again, COUNT, ("a", 1)) == 7


def test_several_states_of_one_operator_are_kept_apart() -> None:
    other = ValueStateDescriptor("other", pa.string())
    backend = HeapBackend(KEYS, int)
    backend.key = ("a", 1)
    backend.state(COUNT).update(1)
    backend.state(other).update("x")
    restored = through_files(backend, KEYS)
    assert held(restored, COUNT, ("a", 1)) == 1
    assert held(restored, other, ("a", 1)) == "x"


def test_a_key_may_be_called_like_the_value_column() -> None:
    keys = [pa.field("_value", pa.int64())]
    backend = HeapBackend(keys, int)
    backend.key = (3,)
    backend.state(COUNT).update(4)
    assert held(through_files(backend, keys), COUNT, (3,)) == 4


def test_dictionary_keys_are_restored_by_value() -> None:
    keys = [pa.field("k", pa.dictionary(pa.int32(), pa.string()))]
    backend = HeapBackend(keys, int)
    backend.key = ("a",)
    backend.state(COUNT).update(1)
    assert held(through_files(backend, keys), COUNT, ("a",)) == 1


@pytest.mark.promise("A3")
def test_nan_is_one_key_and_negative_zero_is_zero() -> None:
    keys = [pa.field("k", pa.float64())]
    backend = HeapBackend(keys, int)
    for key in backend.canonical(iter([(float("nan"),), (-0.0,)])):
        backend.key = key
        backend.state(COUNT).update(1)
    assert held(backend, COUNT, (float("inf") - float("inf"),)) == 1
    restored = through_files(backend, keys)
    assert held(restored, COUNT, (float("nan"),)) == 1
    assert held(restored, COUNT, (0.0,)) == 1


def test_empty_state_is_an_empty_table() -> None:
    backend = HeapBackend(KEYS, int)
    backend.state(COUNT)
    ((_, table),) = backend.snapshot()
    assert table().num_rows == 0
    assert table().schema.names == ["k", "g", "_value"]
