"""Operator state dealt out anew: nothing is lost, nothing doubled, at any parallelism."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.protocol.redistribution import Distribution, shares

LISTS = st.lists(st.integers(0, 5), min_size=1, max_size=5)
PARALLELISM = st.integers(1, 6)


def taken(distribution: Distribution, items: list[int], parallelism: int) -> list[list[tuple[int, int]]]:
    """Per subtask the (writer, item) pairs that it gets."""
    return [
        [
            (writer, item)
            for writer, share in enumerate(shares(distribution, items, subtask, parallelism))
            for item in share
        ]
        for subtask in range(parallelism)
    ]


@pytest.mark.promise("C1", "D7")
@given(LISTS, PARALLELISM)
def test_split_gives_each_item_to_exactly_one_subtask_in_even_shares(items, parallelism) -> None:
    everything = [(writer, item) for writer, count in enumerate(items) for item in range(count)]
    got = taken(Distribution.SPLIT, items, parallelism)
    assert [pair for one in got for pair in one] == everything
    if parallelism != len(items):
        sizes = [len(one) for one in got]
        assert max(sizes) - min(sizes) <= 1


@given(LISTS)
def test_at_an_unchanged_parallelism_each_subtask_gets_its_own_back(items) -> None:
    for subtask, got in enumerate(taken(Distribution.SPLIT, items, len(items))):
        assert got == [(subtask, item) for item in range(items[subtask])]


@pytest.mark.promise("C1", "D7")
@given(LISTS, PARALLELISM)
def test_union_gives_everything_to_everyone(items, parallelism) -> None:
    everything = [(writer, item) for writer, count in enumerate(items) for item in range(count)]
    assert taken(Distribution.UNION, items, parallelism) == [everything] * parallelism


@pytest.mark.promise("C1", "D7")
@given(LISTS, PARALLELISM)
def test_broadcast_gives_everyone_one_copy(items, parallelism) -> None:
    for subtask, got in enumerate(taken(Distribution.BROADCAST, items, parallelism)):
        writer = subtask % len(items)
        assert got == [(writer, item) for item in range(items[writer])]
