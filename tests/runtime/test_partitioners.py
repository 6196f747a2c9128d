"""Which subtask gets which rows: same key, same subtask (A3), and every row goes to exactly one."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.runtime.partitioners import ForwardPartitioner, HashPartitioner, RoundRobinPartitioner
from engine.state.keygroups import range_of, subtask_of
from engine.state.keyhash import hash_key

KEYS = st.tuples(st.none() | st.text(max_size=3), st.none() | st.integers(-3, 3))


def batch_of(keys: list[tuple[str | None, int | None]]) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "k": pa.array([k for k, _ in keys], pa.string()),
            "g": pa.array([g for _, g in keys], pa.int64()),
            "n": pa.array(range(len(keys)), pa.int64()),
        }
    )


@pytest.mark.promise("A3")
@given(st.lists(st.lists(KEYS, max_size=30), max_size=4), st.integers(1, 7))
def test_the_same_key_goes_to_the_same_subtask_always_and_its_rows_keep_their_order(batches, targets) -> None:
    target_of: dict[tuple[str | None, int | None], int] = {}
    for keys in batches:
        # A fresh partitioner each time: another sender, another attempt.
        parts = list(HashPartitioner(["k", "g"], targets, 128).split(batch_of(keys)))
        numbers = [n for _, part in parts for n in part.column("n").to_pylist()]
        assert sorted(numbers) == list(range(len(keys)))
        for target, part in parts:
            assert part.column("n").to_pylist() == sorted(part.column("n").to_pylist())
            for key in zip(part.column("k").to_pylist(), part.column("g").to_pylist(), strict=True):
                assert target_of.setdefault(key, target) == target


@pytest.mark.promise("A3")
@given(st.lists(KEYS, min_size=1, max_size=20), st.integers(1, 9))
def test_a_key_goes_to_the_subtask_that_owns_its_key_group(keys, targets) -> None:
    for target, part in HashPartitioner(["k", "g"], targets, 128).split(batch_of(keys)):
        for row in part.to_pylist():
            group = hash_key((row["k"], row["g"]), [pa.string(), pa.int64()]) % 128
            assert subtask_of(group, targets, 128) == target
            assert group in range_of(target, targets, 128)


@pytest.mark.promise("A3")
def test_the_encoding_of_a_key_column_does_not_matter() -> None:
    plain = pa.array(["a", "b", "c", None] * 10)
    encodings = [plain, plain.dictionary_encode(), plain.cast(pa.large_string())]
    found = []
    for column in encodings:
        batch = pa.record_batch({"k": column, "n": list(range(40))})
        found.append({t: p.column("n").to_pylist() for t, p in HashPartitioner(["k"], 3, 128).split(batch)})
    assert found[0] == found[1] == found[2]


def test_a_slice_is_split_by_its_own_rows() -> None:
    batch = batch_of([(str(n), n) for n in range(50)])
    whole = {n: t for t, part in HashPartitioner(["k"], 4, 128).split(batch) for n in part.column("n").to_pylist()}
    for target, part in HashPartitioner(["k"], 4, 128).split(batch.slice(13, 20)):
        assert all(whole[n] == target and 13 <= n < 33 for n in part.column("n").to_pylist())


def test_an_empty_batch_has_no_rows_for_anyone() -> None:
    assert all(part.num_rows == 0 for _, part in HashPartitioner(["k"], 3, 128).split(batch_of([])))


@pytest.mark.promise("A4")
def test_round_robin_spreads_whole_batches_and_senders_begin_at_different_targets() -> None:
    batch = batch_of([("a", 1)])
    for sender in range(3):
        partitioner = RoundRobinPartitioner(3, sender)
        assert [target for _ in range(4) for target, _ in partitioner.split(batch)] == [
            (sender + n) % 3 for n in range(4)
        ]


@pytest.mark.promise("A4")
def test_forward_has_one_channel() -> None:
    batch = batch_of([("a", 1)])
    assert list(ForwardPartitioner().split(batch)) == [(0, batch)]
