"""The watermark of each key group: it never goes back, whatever the parallelism of a restore (B7, D7)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.protocol.signals import MIN_WATERMARK
from engine.state.group_clock import GroupClock
from engine.state.key_groups import KeyGroupRange, range_of

ALL = KeyGroupRange(0, 8)
EACH = np.arange(8, dtype=np.uint64)  # as max_parallelism is 8, these hashes are also the key groups


def test_a_new_clock_has_no_time_and_is_saved_as_one_range() -> None:
    clock = GroupClock(ALL, 8)
    assert clock.now_ms == MIN_WATERMARK
    assert clock.snapshot() == [[0, 8, MIN_WATERMARK]]
    assert not clock.ahead(5)


def test_a_clock_moves_forward_only() -> None:
    clock = GroupClock(ALL, 8)
    assert clock.advance(5)
    assert not clock.advance(5)
    assert not clock.advance(4)
    assert clock.snapshot() == [[0, 8, 5]]


@pytest.mark.promise("B7", "D7")
def test_joined_groups_keep_their_own_watermarks_and_the_clock_is_the_lowest() -> None:
    clock = GroupClock(ALL, 8, [[[0, 4, 100]], [[4, 8, 50]]])
    assert clock.now_ms == 50
    assert clock.of_rows(EACH).tolist() == [100] * 4 + [50] * 4
    assert clock.ahead(51) and clock.ahead(100) and not clock.ahead(50) and not clock.ahead(101)
    clock.advance(60)
    assert clock.of_rows(EACH).tolist() == [100] * 4 + [60] * 4
    assert clock.snapshot() == [[0, 4, 100], [4, 8, 60]]
    clock.advance(100)
    assert not clock.ahead(100)
    assert clock.snapshot() == [[0, 8, 100]]


@pytest.mark.promise("D7")
def test_a_subtask_takes_only_the_watermarks_of_its_own_groups() -> None:
    clock = GroupClock(KeyGroupRange(3, 6), 8, [[[0, 4, 100]], [[4, 5, 50], [5, 8, 70]]])
    assert clock.of_rows(EACH[3:6]).tolist() == [100, 50, 70]
    assert clock.snapshot() == [[3, 4, 100], [4, 5, 50], [5, 6, 70]]


def test_groups_that_no_snapshot_names_have_no_time() -> None:
    assert GroupClock(ALL, 8, [[[0, 4, 100]]]).now_ms == MIN_WATERMARK


@pytest.mark.promise("B7", "D7")
@given(st.lists(st.tuples(st.integers(1, 8), st.lists(st.integers(0, 50), min_size=8, max_size=8)), max_size=6))
def test_no_group_goes_back_over_any_rescaling(steps: list[tuple[int, list[int]]]) -> None:
    saved: list[list[list[int]]] = []
    expected = np.full(8, MIN_WATERMARK, np.int64)
    for parallelism, times in steps:
        written = []
        for subtask in range(parallelism):
            groups = range_of(subtask, parallelism, 8)
            clock = GroupClock(groups, 8, saved)
            clock.advance(times[subtask])
            mine = slice(groups.start, groups.end)
            expected[mine] = np.maximum(expected[mine], times[subtask])
            assert clock.of_rows(EACH[mine]).tolist() == expected[mine].tolist()
            assert clock.now_ms == expected[mine].min()
            written.append(clock.snapshot())
        saved = written
