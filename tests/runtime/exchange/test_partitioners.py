"""Which subtask gets which rows: same key, same subtask (A3), and what each exchange promises (A4)."""

from collections import Counter
from datetime import date, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.errors import UserFunctionError
from engine.runtime.exchange.partitioners import (
    BroadcastPartitioner,
    CustomPartitioner,
    FirstPartitioner,
    HashPartitioner,
    Partitioner,
    RebalancePartitioner,
    ShufflePartitioner,
)
from engine.state.key_groups import range_of, subtask_of
from engine.state.key_hash import hash_key

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


# --- without keys ---


def numbered(first: int, rows: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(range(first, first + rows), pa.int64())})


def sent(partitioner: Partitioner, sizes: list[int]) -> dict[int, list[int]]:
    """What each target gets of batches of these sizes, whose rows are numbered."""
    got: dict[int, list[int]] = {}
    first = 0
    for size in sizes:
        for target, part in partitioner.split(numbered(first, size)):
            got.setdefault(target, []).extend(part.column("n").to_pylist())
        first += size
    return got


@pytest.mark.promise("A4")
@given(st.lists(st.integers(0, 40), max_size=12), st.integers(1, 7), st.integers(0, 9))
def test_rebalance_gives_everyone_the_same_up_to_one_row_after_every_batch(sizes, targets, sender) -> None:
    for batches in range(len(sizes) + 1):
        got = sent(RebalancePartitioner(targets, sender), sizes[:batches])
        assert sorted(n for rows in got.values() for n in rows) == list(range(sum(sizes[:batches])))
        assert all(rows == sorted(rows) for rows in got.values())
        counts = [len(got.get(target, [])) for target in range(targets)]
        assert max(counts) - min(counts) <= 1


@pytest.mark.promise("A4")
def test_rebalance_copies_nothing_and_single_rows_go_round() -> None:
    batch = numbered(0, 10)
    whole = batch.column("n").buffers()[1].address
    for _, part in RebalancePartitioner(3, 0).split(batch):
        assert part.column("n").buffers()[1].address == whole
    for sender in range(3):
        partitioner = RebalancePartitioner(3, sender)
        turns = [target for n in range(4) for target, _ in partitioner.split(numbered(n, 1))]
        assert turns == [(sender + n) % 3 for n in range(4)], "senders begin at different targets"


@pytest.mark.promise("A4")
def test_shuffle_is_uniform_repeats_itself_and_differs_between_senders() -> None:
    rows, targets = 60_000, 5
    got = sent(ShufflePartitioner(targets, 0), [rows])
    expected = rows / targets
    chi_squared = sum((len(got[target]) - expected) ** 2 / expected for target in range(targets))
    assert chi_squared < 20, "99.95 % of truly random ones are below, at 4 degrees of freedom"
    target_of = {n: target for target, numbers in got.items() for n in numbers}
    pairs = Counter((target_of[n], target_of[n + 1]) for n in range(rows - 1))
    assert all(abs(pairs[a, b] - rows / 25) < 300 for a in range(5) for b in range(5)), "neighbours are independent"
    assert sent(ShufflePartitioner(targets, 0), [rows // 2, 1, rows // 2 - 1]) == got, "whatever the batches are"
    other = sent(ShufflePartitioner(targets, 1), [rows])
    same = sum(len(set(got[target]) & set(other[target])) for target in range(targets))
    assert abs(same - expected) < 400


@pytest.mark.promise("A4")
@given(st.lists(st.integers(0, 40), max_size=6), st.integers(1, 7), st.integers(0, 9))
def test_shuffle_sends_every_row_once_and_keeps_the_order_per_target(sizes, targets, sender) -> None:
    got = sent(ShufflePartitioner(targets, sender), sizes)
    assert sorted(n for rows in got.values() for n in rows) == list(range(sum(sizes)))
    assert all(rows == sorted(rows) for rows in got.values())


@pytest.mark.promise("A4")
def test_broadcast_gives_every_row_to_everyone_and_forward_and_global_to_the_first() -> None:
    assert sent(BroadcastPartitioner(3), [2, 1]) == {target: [0, 1, 2] for target in range(3)}
    assert sent(FirstPartitioner(), [2, 1]) == {0: [0, 1, 2]}


# --- by the user's function ---


@pytest.mark.promise("A4")
@given(st.lists(KEYS, max_size=40), st.integers(1, 5))
def test_a_custom_partitioner_is_asked_once_per_distinct_key_and_decides(keys, targets) -> None:
    asked: list[tuple[str | None, int | None]] = []

    def choose(key: tuple[str | None, int | None], partitions: int) -> int:
        assert partitions == targets
        asked.append(key)
        return len(key[0] or "") % partitions

    partitioner = CustomPartitioner(choose, ["k", "g"], targets, "op", 0)
    got = {n: t for t, part in partitioner.split(batch_of(keys)) for n in part.column("n").to_pylist()}
    assert got == {n: len(k or "") % targets for n, (k, _) in enumerate(keys)}
    assert sorted(asked, key=repr) == sorted(set(keys), key=repr)


@pytest.mark.promise("A4")
@pytest.mark.parametrize(
    "values",
    [
        ["a", None, "b", "a"],
        [1, None, 2],
        [0.5, float("inf"), None],
        [True, False, None],
        [Decimal("1.10"), None],
        [b"x", b"y"],
        [date(2026, 1, 2), None],
        [datetime(2026, 1, 2), None],
        [timedelta(seconds=3), None],
        [None, None],
        pa.array(["a", None, "b", "a"]).dictionary_encode(),
    ],
    ids=lambda values: str(pa.array(values).type),
)
def test_the_key_of_one_column_is_its_plain_value(values) -> None:
    array = pa.array(values)
    asked: list[object] = []
    partitioner = CustomPartitioner(lambda key, partitions: asked.append(key) or 0, ["k"], 2, "op", 0)
    ((target, part),) = partitioner.split(pa.record_batch({"k": array}))
    assert target == 0 and part.num_rows == len(array)
    assert len(asked) == len(set(asked)) and set(asked) == set(array.to_pylist())


@pytest.mark.promise("A4")
@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda key, partitions: 3, "ValueError: the function returned 3; partitions are 0 to 2"),
        (lambda key, partitions: -1, "ValueError: the function returned -1; partitions are 0 to 2"),
        (lambda key, partitions: "0", "TypeError: 'str' object cannot be interpreted as an integer"),
        (lambda key, partitions: 1 // 0, "ZeroDivisionError"),
    ],
)
def test_a_custom_partitioner_that_chooses_no_partition_is_named_with_the_key(function, says: str) -> None:
    with pytest.raises(
        UserFunctionError, match=rf"operator 'clean', subtask 1, partition_custom of the key 'a': {says}"
    ):
        list(CustomPartitioner(function, ["k"], 3, "clean", 1).split(batch_of([("a", 1)])))
