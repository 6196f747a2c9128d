"""State files: rows filed by key group, so that any parallelism finds every row once; damage is always noticed."""

import datetime as dt
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.errors import CorruptSnapshot
from engine.core.paths import JobPaths
from engine.core.pieces import Pieces
from engine.protocol.ids import AttemptId, SubtaskId
from engine.protocol.manifest import Manifest, StateFile, SubtaskState
from engine.snapshot import statefile
from engine.snapshot.epoch_log import EpochLog
from engine.snapshot.restore import Wanted, restore
from engine.snapshot.statefile import checksum, decode, decode_plain, encode, encode_plain
from engine.state import group_order
from engine.state.group_order import in_group_order
from engine.state.key_groups import KeyGroupRange, key_groups, range_of, subtask_of
from engine.state.key_hash import hash_columns
from tests.fakes import MemoryStore

MAX = 128
ALL = KeyGroupRange(0, MAX)
TABLE = pa.table({"k": [f"key {i}" for i in range(200)], "v": list(range(200))})


def owned(table: pa.Table, keys: list[str], groups: KeyGroupRange) -> pa.Table:
    of_row = key_groups(hash_columns([table.column(key).combine_chunks() for key in keys]), MAX)
    return table.filter(pa.array((of_row >= groups.start) & (of_row < groups.end)))


@pytest.mark.promise("D7")
@given(
    st.lists(st.tuples(st.text(max_size=3) | st.none(), st.integers(-5, 5), st.integers()), max_size=60),
    st.integers(1, 9),
    st.integers(1, 9),
)
def test_any_parallelism_restores_every_row_exactly_once(rows, before, after) -> None:
    table = pa.table(
        {
            "a": pa.array([row[0] for row in rows], pa.string()),
            "b": pa.array([row[1] for row in rows], pa.int64()),
            "n": pa.array(range(len(rows)), pa.int64()),
        }
    )
    files = []
    for subtask in range(before):
        groups = range_of(subtask, before, MAX)
        files.append((groups, encode(owned(table, ["a", "b"], groups), ["a", "b"], groups, MAX)))
    found = []
    for subtask in range(after):
        wanted = range_of(subtask, after, MAX)
        for groups, data in files:
            if groups.intersects(wanted):
                part = decode(data, wanted)
                assert part.schema == table.schema
                if part.num_rows:
                    hashes = hash_columns([part.column(k).combine_chunks() for k in ("a", "b")])
                    assert (subtask_of(key_groups(hashes, MAX), after, MAX) == subtask).all()
                found += part.column("n").to_pylist()
    assert sorted(found) == list(range(len(rows)))


def test_key_groups_outside_the_file_are_empty() -> None:
    groups = KeyGroupRange(10, 20)
    data = encode(owned(TABLE, ["k"], groups), ["k"], groups, MAX)
    assert decode(data, KeyGroupRange(0, 10)).num_rows == 0
    assert decode(data, KeyGroupRange(20, 30)).num_rows == 0
    assert decode(data, KeyGroupRange(0, 30)).num_rows == owned(TABLE, ["k"], groups).num_rows


def test_rows_of_one_key_keep_their_order() -> None:
    table = pa.table({"k": ["a", "b"] * 50, "n": list(range(100))})
    restored = decode(encode(table, ["k"], ALL, MAX), ALL)
    of_a = restored.filter(pa.array(np.array(restored.column("k").to_pylist()) == "a")).column("n").to_pylist()
    assert of_a == list(range(0, 100, 2))


def places(data: Pieces, table: pa.Table) -> int:
    """Returns how many bytes of a content are the memory of the table itself."""
    own = [
        (buffer.address, buffer.address + buffer.size)
        for column in table.columns
        for chunk in column.chunks
        for buffer in chunk.buffers()
        if buffer
    ]
    addresses = [(np.frombuffer(piece, np.uint8).ctypes.data, piece.nbytes) for piece in data]
    return sum(size for at, size in addresses if any(start <= at and at + size <= end for start, end in own))


def test_large_state_in_order_is_written_from_where_it_lies_and_only_newer_rows_are_copied() -> None:
    keys = np.arange(400_000)
    old = in_group_order(pa.table({"k": keys, "n": keys}), ["k"], MAX)
    new = in_group_order(pa.table({"k": keys[:1000], "n": keys[:1000] + 1}), ["k"], MAX)
    with patch.object(group_order, "LEAST_SLICE", 1 << 10), patch.object(statefile, "LEAST_BATCH", 1 << 14):
        data = encode(pa.concat_tables([old, new]), ["k"], ALL, MAX)
    assert places(data, old) >= 0.98 * old.nbytes
    assert len(data) < 1.02 * (old.nbytes + new.nbytes)
    restored = decode(data, ALL)
    assert sorted(restored.column("n").to_pylist()) == sorted([*keys.tolist(), *(keys[:1000] + 1).tolist()])
    group = KeyGroupRange(7, 8)
    assert decode(data, group).equals(owned(pa.concat_tables([old, new]), ["k"], group))


def test_state_in_many_small_chunks_becomes_few_batches() -> None:
    crumbs = pa.concat_tables([TABLE] * 2000)
    for data in (encode(crumbs, ["k"], ALL, MAX), encode_plain(crumbs)):
        batches = pa.ipc.open_file(bytes(data)).num_record_batches
        assert batches <= 1 + crumbs.nbytes // (1 << 20) * 2
        assert decode_plain(data).num_rows == crumbs.num_rows


def test_the_checksum_of_pieces_is_that_of_their_bytes() -> None:
    data = encode(TABLE, ["k"], ALL, MAX)
    assert checksum(data) == checksum(bytes(data)) == checksum(memoryview(bytes(data)))


def test_nested_dictionary_and_temporal_columns_come_back_as_they_were() -> None:
    table = pa.table(
        {
            "k": pa.chunked_array(
                [pa.array(["a", "b"]).dictionary_encode(), pa.array(["c", None]).dictionary_encode()]
            ),
            "s": pa.array([{"x": 1, "y": ["a"]}, None, {"x": None, "y": []}, {"x": 2, "y": None}]),
            "m": pa.array([[("a", 1)], [], None, [("b", None)]], pa.map_(pa.string(), pa.int64())),
            "t": pa.array([dt.datetime(2024, 1, 1)] * 4, pa.timestamp("us", tz="UTC")),
        }
    )
    restored = decode(encode(table, ["k"], ALL, MAX), ALL)
    assert sorted(restored.to_pylist(), key=repr) == sorted(table.to_pylist(), key=repr)
    assert restored.schema == table.schema


def test_state_outside_the_subtask_s_key_groups_is_never_written() -> None:
    with pytest.raises(AssertionError, match="state outside the subtask's key groups"):
        encode(TABLE, ["k"], KeyGroupRange(0, 64), MAX)


def test_a_snapshot_of_another_key_hash_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode(TABLE, ["k"], ALL, MAX)
    monkeypatch.setattr("engine.snapshot.statefile.KEY_HASH_VERSION", 2)
    with pytest.raises(CorruptSnapshot, match="written with key hash 1, but this Weir uses 2"):
        decode(data, ALL)


@given(st.data())
def test_a_truncated_file_or_one_flipped_bit_is_noticed(data) -> None:
    content = bytes(encode(TABLE.slice(0, 20), ["k"], ALL, MAX))
    store = MemoryStore()
    expected = checksum(content)
    if data.draw(st.booleans()):
        store.write("f", content[: data.draw(st.integers(0, len(content) - 1))])
    else:
        bit = data.draw(st.integers(0, len(content) * 8 - 1))
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        store.write("f", bytes(changed))
    with pytest.raises(CorruptSnapshot):
        EpochLog(store, JobPaths("job")).read_checked("f", expected)


@pytest.mark.promise("D7")
def test_restore_reads_only_the_files_whose_key_groups_are_wanted() -> None:
    store = MemoryStore()
    log = EpochLog(store, JobPaths("job"))
    log.claim("me")
    states = []
    for index in range(2):
        groups = range_of(index, 2, MAX)
        data = encode(owned(TABLE, ["k"], groups), ["k"], groups, MAX)
        store.write(f"f{index}", data)
        file = StateFile("pv", "panes", f"f{index}", len(data), checksum(data), 1, groups.start, groups.end)
        states.append(SubtaskState(SubtaskId("v", index), [file], {"pv": {"watermark": index}}))
    ref = log.write_manifest(Manifest("job", 1, 1, AttemptId(1, 1), 0, MAX, states, [], [], {}))
    store.delete("f1")  # not needed by the first subtask of two, but by both subtasks of three together
    first = Wanted(SubtaskId("v", 0), "pv", range_of(0, 2, MAX), 2)
    restored = restore(log, ref, [first, Wanted(SubtaskId("v", 0), "other", ALL, 2)])
    assert restored.inline == {"pv": [{"watermark": 0}, {"watermark": 1}]}
    ((name, table),) = restored.tables[SubtaskId("v", 0), "pv"]
    assert name == "panes"
    assert table.num_rows == owned(TABLE, ["k"], first.groups).num_rows
    with pytest.raises(CorruptSnapshot, match="f1 is missing"):
        restore(log, ref, [Wanted(SubtaskId("v", 1), "pv", range_of(1, 3, MAX), 3)])
