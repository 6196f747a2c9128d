"""`TimerQueue`: one timer per key and timestamp, in order of time, against a plain set; also through snapshot files."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.snapshot.statefile import decode, encode
from engine.state.key_groups import KeyGroupRange
from engine.state.timers import LEFT_OVER, TimerQueue

FIELDS = [pa.field("k", pa.string()), pa.field("_timer_ms", pa.int64())]
EVERYTHING = KeyGroupRange(0, 128)


def key(number: int) -> tuple[Any, ...]:
    return (None if number == 0 else f"k{number}", number % 2)


def through_files(queue: TimerQueue, ranges: list[KeyGroupRange]) -> TimerQueue:
    """Writes a snapshot, and reads it as subtasks of several key group ranges would."""
    data = encode(queue.freeze()(), [field.name for field in FIELDS], EVERYTHING, 128)
    restored = TimerQueue(FIELDS)
    for groups in ranges:
        restored.load(decode(data, groups), iter)
    return restored


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("register"), st.integers(0, 3), st.integers(0, 5)),
        st.tuples(st.just("delete"), st.integers(0, 3), st.integers(0, 5)),
        st.tuples(st.just("fire"), st.integers(0, 3), st.integers(1, 3)),
        st.tuples(st.just("restore"), st.integers(1, 127), st.just(0)),
    ),
    max_size=60,
)


@pytest.mark.promise("B8", "D7")
@given(STEPS)
@settings(max_examples=300, deadline=None)
def test_the_queue_holds_what_a_plain_set_holds(steps: list[Any]) -> None:
    queue, model = TimerQueue(FIELDS), set[tuple[int, Any]]()
    for what, number, of in steps:
        match what:
            case "register":
                queue.register(number, key(of))
                model.add((number, key(of)))
            case "delete":
                queue.delete(number, key(of))
                model.discard((number, key(of)))
            case "fire":
                for _ in range(of):
                    due = queue.pop(number)
                    assert (due is None) == all(at > number for at, _ in model)
                    if due is not None:
                        assert due[0] == min(at for at, _ in model)
                        model.remove(due)
            case "restore":
                queue = through_files(queue, [KeyGroupRange(0, number), KeyGroupRange(number, 128)])
        assert len(queue) == len(model)
        assert queue.next_ms() == min((at for at, _ in model), default=None)


@pytest.mark.promise("B8")
def test_timers_of_one_time_are_counted_once_whatever_is_registered_or_deleted_again() -> None:
    """A queue that counts none leaves its timers out of the snapshot."""
    queue = TimerQueue(FIELDS)
    for number in (1, 2, 2):
        queue.register(7, key(number))
    assert len(queue) == 2
    queue.delete(7, key(3))
    assert len(queue) == 2
    for _ in range(2):
        queue.delete(7, key(1))
    assert len(queue) == 1 and queue.pop(7) == (7, key(2)) and len(queue) == 0


@pytest.mark.promise("B8")
def test_later_changes_do_not_show_in_a_snapshot() -> None:
    queue = TimerQueue(FIELDS)
    for number in range(4):
        queue.register(7, key(number))
    table = queue.freeze()
    queue.pop(7)
    queue.delete(7, key(0))
    queue.register(8, key(1))
    assert sorted(table().column("_timer_ms_").to_pylist()) == [7, 7, 7, 7]


@pytest.mark.promise("B8")
def test_a_timer_that_is_moved_with_every_record_leaves_little_behind() -> None:
    queue = TimerQueue(FIELDS)
    for at in range(100_000):
        queue.register(at + 1000, key(1))
        queue.delete(at + 999, key(1))
    assert len(queue) == 1
    assert len(queue._heap) <= LEFT_OVER + 3


@pytest.mark.promise("B8")
def test_timers_fire_in_their_order_after_most_of_them_were_deleted() -> None:
    """The heap is built anew then, from timestamps that were registered in any order."""
    queue = TimerQueue(FIELDS)
    last = 10 * LEFT_OVER
    for number in range(1, last + 1):
        queue.register(number * 100 % (last + 1), key(1))
    for at in range(1, last + 1):
        if at % 9:
            queue.delete(at, key(1))
    assert len(queue._heap) < last, "it was built anew"
    assert [queue.pop(last) for _ in range(len(queue))] == [(at, key(1)) for at in range(9, last + 1, 9)]


@pytest.mark.promise("B8")
def test_a_time_whose_timers_were_all_deleted_has_none() -> None:
    queue = TimerQueue(FIELDS)
    for of in (1, 2):
        queue.register(5, key(of))
    for of in (1, 2):
        queue.delete(5, key(of))
    assert (len(queue), queue.next_ms(), queue.pop(9)) == (0, None, None)
    queue.register(5, key(3))
    assert (queue.pop(9), queue.pop(9)) == ((5, key(3)), None)
