"""Filing by key group: every row in the order of its group, and no copy of rows that lie in order."""

from itertools import pairwise
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.state import group_order
from engine.state.group_order import filed, groups_of_rows, in_group_order
from engine.state.key_groups import KeyGroupRange, key_groups
from engine.state.key_hash import hash_columns

MAX = 16


def rows(keys: list[int], chunks: int = 1) -> pa.Table:
    table = pa.table({"k": pa.array(keys, pa.int64()), "n": pa.array(range(len(keys)), pa.int64())})
    bounds = np.linspace(0, len(keys), chunks + 1).astype(int)
    return pa.concat_tables([table.slice(a, b - a) for a, b in pairwise(bounds)])


def groups(table: pa.Table) -> np.ndarray:
    return key_groups(hash_columns([table.column("k").combine_chunks()]), MAX)


def memory(table: pa.Table) -> set[int]:
    """Returns the addresses of the buffers of a table; slices of it share them."""
    return {
        buffer.address for column in table.columns for chunk in column.chunks for buffer in chunk.buffers() if buffer
    }


@given(
    st.lists(st.lists(st.integers(0, 200), max_size=30), min_size=1, max_size=4),
    st.integers(1, 5),
    st.sampled_from([0, 1 << 30]),
)
def test_rows_are_filed_by_group_and_those_of_a_group_keep_their_order(stretches, chunks, least) -> None:
    ordered = [in_group_order(rows(keys), ["k"], MAX) for keys in stretches]
    keys = [key for table in ordered for key in table.column("k").to_pylist()]
    table = rows(keys, chunks)
    with patch.object(group_order, "LEAST_SLICE", least):
        found = filed(table, groups_of_rows(table, ["k"], MAX))
    order = np.argsort(groups(table), kind="stable") if keys else np.zeros(0, np.int64)
    assert found.equals(table.take(pa.array(order)))


@given(st.lists(st.integers(0, 200), max_size=60), st.integers(1, 9))
def test_the_groups_of_rows_are_those_of_their_hashes_whatever_blocks_are_hashed(keys, block) -> None:
    table = rows(keys, 3)
    with patch.object(group_order, "_BLOCK", block):
        found = groups_of_rows(table, ["k"], MAX)
    of_row = groups(table) if keys else np.zeros(0, np.int32)
    assert found.of_row.tolist() == of_row.tolist()
    assert found.counts.tolist() == np.bincount(of_row, minlength=MAX).tolist()
    assert found.within(KeyGroupRange(0, MAX))
    assert found.offsets(KeyGroupRange(0, MAX))[-1] == len(keys)


@pytest.mark.parametrize(("start", "end", "within"), [(0, 16, True), (5, 6, True), (6, 16, False), (0, 5, False)])
def test_rows_outside_a_range_of_groups_are_noticed(start: int, end: int, within: bool) -> None:
    candidates = rows(list(range(1000)))
    table = candidates.filter(pa.array(groups(candidates) == 5))
    assert table.num_rows
    assert groups_of_rows(table, ["k"], MAX).within(KeyGroupRange(start, end)) is within


def test_rows_in_order_are_not_copied() -> None:
    table = in_group_order(rows(list(range(1000))), ["k"], MAX)
    assert in_group_order(table, ["k"], MAX) is table
    assert filed(table, groups_of_rows(table, ["k"], MAX)) is table


def test_several_stretches_in_order_are_not_copied_if_their_slices_are_large() -> None:
    old = in_group_order(rows(list(range(200_000))), ["k"], MAX)
    new = in_group_order(rows(list(range(500, 700))), ["k"], MAX)
    table = pa.concat_tables([old, new])
    found = filed(table, groups_of_rows(table, ["k"], MAX))
    assert memory(found) <= memory(table)
    assert (np.diff(groups(found)) >= 0).all()
    small = pa.concat_tables([new, new])
    assert not memory(filed(small, groups_of_rows(small, ["k"], MAX))) & memory(small), "crumbs are copied instead"
