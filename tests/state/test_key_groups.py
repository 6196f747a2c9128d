import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.state.key_groups import (
    DEFAULT_MAX_PARALLELISM,
    MAX_PARALLELISM_LIMIT,
    KeyGroupRange,
    key_groups,
    range_of,
    subtask_of,
)


@st.composite
def parallelisms(draw: st.DrawFn) -> tuple[int, int]:
    max_parallelism = draw(st.integers(1, 512) | st.just(MAX_PARALLELISM_LIMIT))
    return draw(st.integers(1, min(max_parallelism, 600))), max_parallelism


@pytest.mark.promise("A3")
@given(parallelisms())
def test_every_key_group_belongs_to_exactly_one_subtask_and_ranges_agree_with_subtask_of(
    sizes: tuple[int, int],
) -> None:
    parallelism, max_parallelism = sizes
    owners = subtask_of(np.arange(max_parallelism, dtype=np.int32), parallelism, max_parallelism)
    ranges = [range_of(subtask, parallelism, max_parallelism) for subtask in range(parallelism)]
    assert [group for each in ranges for group in each] == list(range(max_parallelism))
    assert owners.tolist() == [subtask for subtask, each in enumerate(ranges) for _ in each]


@given(parallelisms(), st.data())
def test_the_scalar_and_the_vectorised_subtask_agree(sizes: tuple[int, int], data: st.DataObject) -> None:
    parallelism, max_parallelism = sizes
    group = data.draw(st.integers(0, max_parallelism - 1))
    owner = subtask_of(group, parallelism, max_parallelism)
    assert type(owner) is int
    assert owner == subtask_of(np.array([group], np.int32), parallelism, max_parallelism)[0]
    assert group in range_of(owner, parallelism, max_parallelism)


@given(parallelisms())
def test_no_subtask_owns_more_than_one_key_group_more_than_another(sizes: tuple[int, int]) -> None:
    parallelism, max_parallelism = sizes
    sizes_of_ranges = {len(range_of(subtask, parallelism, max_parallelism)) for subtask in range(parallelism)}
    assert max(sizes_of_ranges) - min(sizes_of_ranges) <= 1


@given(st.lists(st.integers(0, 2**64 - 1)), st.integers(1, MAX_PARALLELISM_LIMIT))
def test_the_key_group_is_the_hash_modulo_max_parallelism(hashes: list[int], max_parallelism: int) -> None:
    groups = key_groups(np.array(hashes, np.uint64), max_parallelism)
    assert groups.dtype == np.int32
    assert groups.tolist() == [each % max_parallelism for each in hashes]


@given(st.integers(0, 20), st.integers(1, 20), st.integers(0, 20), st.integers(1, 20))
def test_ranges_intersect_when_they_share_a_key_group(start: int, size: int, other_start: int, other_size: int) -> None:
    one, other = KeyGroupRange(start, start + size), KeyGroupRange(other_start, other_start + other_size)
    assert one.intersects(other) == other.intersects(one) == bool(set(one) & set(other))


def test_a_range_includes_its_start_and_excludes_its_end() -> None:
    groups = KeyGroupRange(3, 6)
    assert list(groups) == [3, 4, 5]
    assert len(groups) == 3
    assert 3 in groups and 5 in groups
    assert 2 not in groups and 6 not in groups
    assert str(groups) == "[3, 6)"


def test_ranges_are_values() -> None:
    assert KeyGroupRange(0, 4) == KeyGroupRange(0, 4)
    assert {KeyGroupRange(0, 4), KeyGroupRange(0, 4)} == {KeyGroupRange(0, 4)}
    with pytest.raises(AttributeError):
        KeyGroupRange(0, 4).start = 1  # type: ignore[misc]


@pytest.mark.parametrize(("start", "end"), [(4, 4), (5, 4), (-1, 4), (0, MAX_PARALLELISM_LIMIT + 1)])
def test_a_range_that_is_empty_or_out_of_bounds_is_refused(start: int, end: int) -> None:
    with pytest.raises(ValueError, match="not a range of key groups"):
        KeyGroupRange(start, end)


def test_the_default_of_128_key_groups_splits_in_halves_and_thirds_as_documented() -> None:
    assert [range_of(subtask, 2, DEFAULT_MAX_PARALLELISM) for subtask in range(2)] == [
        KeyGroupRange(0, 64),
        KeyGroupRange(64, 128),
    ]
    assert [range_of(subtask, 3, DEFAULT_MAX_PARALLELISM) for subtask in range(3)] == [
        KeyGroupRange(0, 43),
        KeyGroupRange(43, 86),
        KeyGroupRange(86, 128),
    ]


def test_more_subtasks_than_key_groups_are_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"parallelism 129 is more than max_parallelism 128.*lower the parallelism"):
        subtask_of(0, 129, 128)
    with pytest.raises(ValueError, match="parallelism 129 is more than max_parallelism 128"):
        range_of(0, 129, 128)


def test_numbers_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="parallelism is 0; it must be at least 1"):
        subtask_of(0, 0, 128)
    with pytest.raises(ValueError, match="max_parallelism is 0; it must be from 1 to 32768"):
        key_groups(np.zeros(1, np.uint64), 0)
    with pytest.raises(ValueError, match="max_parallelism is 32769"):
        range_of(0, 1, MAX_PARALLELISM_LIMIT + 1)
    with pytest.raises(ValueError, match="no subtask 2 at parallelism 2: subtasks are 0 to 1"):
        range_of(2, 2, 128)
    with pytest.raises(ValueError, match="no subtask -1"):
        range_of(-1, 2, 128)
