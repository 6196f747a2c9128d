"""Operator state: lists and maps without keys; a snapshot is not changed by later updates; a restore gives it back."""

import pyarrow as pa
import pytest

from engine.core.errors import SchemaMismatch
from engine.core.state_types import ListStateDescriptor, MapStateDescriptor
from engine.protocol.redistribution import Distribution
from engine.snapshot.statefile import decode_plain, encode_plain
from engine.state.operator import OperatorBackend

BUFFER = ListStateDescriptor("buffer", pa.struct([("n", pa.int64())]))
RULES = MapStateDescriptor("rules", pa.string(), pa.list_(pa.int64()))


def through_files(backend: OperatorBackend) -> OperatorBackend:
    restored = OperatorBackend()
    for name, distribution, table in backend.snapshot():
        restored.restore(name, distribution, decode_plain(encode_plain(table())))
    return restored


@pytest.mark.promise("C1")
def test_lists_and_maps_come_back_as_they_were() -> None:
    backend = OperatorBackend()
    buffer, rules = backend.list_state(BUFFER, Distribution.SPLIT), backend.broadcast_state(RULES)
    buffer.add({"n": 1})
    buffer.add_all([{"n": 2}, {"n": 3}])
    rules.put("a", [1, 2])
    rules.put_all({"b": [], "c": [9]})
    rules.remove("c")
    restored = through_files(backend)
    assert restored.list_state(BUFFER, Distribution.SPLIT).get() == [{"n": 1}, {"n": 2}, {"n": 3}]
    again = restored.broadcast_state(RULES)
    assert dict(again.items()) == {"a": [1, 2], "b": []}
    assert again.contains("b") and not again.contains("c") and again.get("c") is None and len(again) == 2
    again.clear()
    assert again.is_empty()


@pytest.mark.promise("C3")
def test_a_snapshot_does_not_change_with_later_updates() -> None:
    backend = OperatorBackend()
    buffer, rules = backend.list_state(BUFFER, Distribution.SPLIT), backend.broadcast_state(RULES)
    held = {"n": 1}
    buffer.add(held)
    rules.put("a", [1])
    taken = {name: table for name, _, table in backend.snapshot()}
    held["n"] = 99
    buffer.add({"n": 2})
    rules.get("a").append(2)
    rules.put("b", [])
    assert taken["buffer"]().to_pylist() == [{"value": {"n": 1}}]
    assert taken["rules"]().to_pylist() == [{"key": "a", "value": [1]}]


def test_what_get_returns_is_the_callers_own() -> None:
    buffer = OperatorBackend().list_state(BUFFER, Distribution.SPLIT)
    buffer.get().append({"n": 1})
    assert buffer.get() == []
    buffer.update([{"n": 2}])
    assert buffer.get() == [{"n": 2}]


def test_restored_state_that_nobody_asked_for_yet_stays_in_the_next_snapshot() -> None:
    backend = OperatorBackend()
    backend.list_state(BUFFER, Distribution.UNION).add({"n": 7})
    twice = through_files(through_files(backend))
    assert twice.list_state(BUFFER, Distribution.UNION).get() == [{"n": 7}]


def test_one_name_is_one_state() -> None:
    backend = OperatorBackend()
    backend.list_state(BUFFER, Distribution.SPLIT).add({"n": 1})
    assert backend.list_state(BUFFER, Distribution.SPLIT).get() == [{"n": 1}]
    with pytest.raises(ValueError, match=r"operator state 'buffer' is declared twice, as split .* and union"):
        backend.list_state(BUFFER, Distribution.UNION)
    with pytest.raises(ValueError, match="declared twice"):
        backend.list_state(ListStateDescriptor("buffer", pa.int64()), Distribution.SPLIT)


def test_what_was_saved_otherwise_is_refused_with_advice() -> None:
    backend = OperatorBackend()
    backend.list_state(BUFFER, Distribution.SPLIT).add({"n": 1})
    with pytest.raises(
        ValueError, match="was saved as split, but the job now asks for it as union: ask for it as it was"
    ):
        through_files(backend).list_state(BUFFER, Distribution.UNION)
    with pytest.raises(ValueError, match="was saved as struct<n: int64>, but the job now declares int64"):
        through_files(backend).list_state(ListStateDescriptor("buffer", pa.int64()), Distribution.SPLIT)


def test_values_of_another_type_than_declared_are_named() -> None:
    backend = OperatorBackend()
    backend.list_state(ListStateDescriptor("ids", pa.int64()), Distribution.SPLIT).add(1.5)
    ((_, _, table),) = backend.snapshot()
    with pytest.raises(SchemaMismatch, match=r"state 'ids' is declared as int64, but holds: 1\.5"):
        table()


@pytest.mark.parametrize("kind", [pa.float64(), pa.list_(pa.int64())])
def test_keys_that_python_could_not_find_again_are_refused(kind) -> None:
    with pytest.raises(ValueError, match="can't be the key of a map; use text or integers"):
        MapStateDescriptor("rules", kind, pa.int64())
