"""The input gate: watermarks are the minimum over inputs (B2), channels take turns, blocked ones wait (D2)."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.ports import Element, Frame
from engine.protocol.alignment.aligned import AlignedBarriers
from engine.protocol.alignment.aligner import Aligned
from engine.protocol.alignment.tracked import TrackedBarriers
from engine.protocol.credits import LEAST_BYTES
from engine.protocol.ids import ChannelId
from engine.protocol.signals import MAX_WATERMARK, Barrier, EndOfData, StreamStatus, Watermark
from engine.runtime.exchange.gate import Ended, InputGate
from tests.fakes import ATTEMPT, FakeTransport


class Gate:
    """A gate with senders that number their frames."""

    def __init__(self, channels: int, tracked: bool = False) -> None:
        self.transport = FakeTransport()
        self.ids = [ChannelId("a->b", sender, 0) for sender in range(channels)]
        aligner = TrackedBarriers(channels) if tracked else AlignedBarriers(channels)
        self.gate = InputGate(ATTEMPT, self.ids, aligner, self.transport)
        self._sequence = [0] * channels

    def send(self, channel: int, element: Element, backlog: int = 0) -> None:
        self._sequence[channel] += 1
        size = element.nbytes if isinstance(element, pa.RecordBatch) else 0
        self.gate.receive(self.ids[channel], Frame(self._sequence[channel], element, size, backlog))

    def poll(self, max_rows: int = 1000) -> object:
        taken = self.gate.poll(max_rows, 0.0)
        return taken.to_pydict()["n"] if isinstance(taken, pa.RecordBatch) else taken

    def drain(self) -> list[object]:
        found = []
        while (taken := self.poll()) is not None:
            found.append(taken)
        return found


def rows(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(numbers, pa.int64())})


@pytest.mark.promise("B2")
def test_the_clock_is_the_minimum_of_the_inputs_watermarks() -> None:
    gate = Gate(2)
    gate.send(0, Watermark(10))
    assert gate.poll() is None
    gate.send(1, Watermark(4))
    assert gate.poll() == Watermark(4)
    gate.send(1, Watermark(20))
    assert gate.poll() == Watermark(10)
    gate.send(1, Watermark(MAX_WATERMARK))
    assert gate.poll() is None
    gate.send(0, Watermark(MAX_WATERMARK))
    assert gate.poll() == Watermark(MAX_WATERMARK)


@pytest.mark.promise("B2")
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-50, 50)), max_size=40))
def test_the_clock_never_goes_back_and_is_never_ahead_of_an_input(sent: list[tuple[int, int]]) -> None:
    gate = Gate(3)
    highest: list[int | None] = [None] * 3
    clock: int | None = None
    for channel, timestamp in sent:
        gate.send(channel, Watermark(timestamp))
        known = highest[channel]
        highest[channel] = timestamp if known is None else max(known, timestamp)
        for taken in gate.drain():
            assert isinstance(taken, Watermark)
            assert clock is None or taken.timestamp_ms > clock
            clock = taken.timestamp_ms
        expected = None if None in highest else min(h for h in highest if h is not None)
        assert clock == expected


def test_a_watermark_stays_behind_the_rows_before_it() -> None:
    gate = Gate(1)
    gate.send(0, rows(1))
    gate.send(0, Watermark(5))
    gate.send(0, rows(2))
    assert gate.drain() == [[1], Watermark(5), [2]]


def test_channels_take_turns_so_that_none_starves() -> None:
    gate = Gate(3)
    for n in range(4):
        for channel in (0, 2):
            gate.send(channel, rows(10 * channel + n))
    gate.send(1, rows(10))
    assert gate.drain() == [[0], [10], [20], [1], [21], [2], [22], [3], [23]]


@pytest.mark.promise("D2")
def test_a_channel_whose_barrier_has_come_is_not_read_until_all_have_come() -> None:
    gate = Gate(2)
    gate.send(0, rows(1))
    gate.send(0, Barrier(1, 100))
    gate.send(0, rows(2))
    gate.send(1, rows(11))
    assert gate.drain() == [[1], [11]]
    gate.send(1, rows(12))
    assert gate.drain() == [[12]]
    gate.send(1, Barrier(1, 100))
    gate.send(1, rows(13))
    assert gate.drain() == [Aligned(1, 0.0), [2], [13]]
    assert gate.gate.barrier(1).triggered_at_ms == 100


@pytest.mark.promise("D2")
def test_with_one_input_nothing_waits() -> None:
    gate = Gate(1)
    for element in (rows(1), Barrier(1, 0), rows(2)):
        gate.send(0, element)
    assert gate.drain() == [[1], Aligned(1, 0.0), [2]]


def test_at_least_once_reads_on_behind_the_barrier() -> None:
    gate = Gate(2, tracked=True)
    gate.send(0, Barrier(1, 0))
    gate.send(0, rows(2))
    assert gate.drain() == [[2]]
    gate.send(1, Barrier(1, 0))
    assert gate.drain() == [Aligned(1, 0.0)]


@pytest.mark.promise("D4")
def test_an_abort_lets_the_waiting_channel_go_on() -> None:
    gate = Gate(2)
    gate.send(0, Barrier(1, 0))
    gate.send(0, rows(1))
    assert gate.drain() == []
    gate.gate.on_abort(1)
    assert gate.drain() == [[1]]


def test_the_end_comes_once_all_have_ended_and_barriers_still_come_after_it() -> None:
    gate = Gate(2)
    gate.send(0, EndOfData())
    gate.send(0, Barrier(1, 0))
    gate.send(1, rows(1))
    assert gate.drain() == [[1]]
    gate.send(1, Barrier(1, 0))
    assert gate.drain() == [Aligned(1, 0.0)]
    gate.send(1, EndOfData())
    assert gate.drain() == [Ended()]
    for channel in (0, 1):
        gate.send(channel, Barrier(2, 0))
    assert gate.drain() == [Aligned(2, 0.0)]


def test_rows_are_counted_when_they_are_handed_out() -> None:
    gate = Gate(2)
    gate.send(0, rows(*range(10)))
    gate.send(1, Barrier(1, 0))
    gate.send(1, rows(1, 2, 3))
    assert gate.poll(max_rows=4) == [0, 1, 2, 3]
    assert gate.gate.rows_received == {"a->b": 4}
    gate.drain()
    assert gate.gate.rows_received == {"a->b": 10}


@pytest.mark.promise("E1")
def test_credit_is_granted_at_the_start_and_again_when_enough_was_consumed() -> None:
    gate = Gate(1)
    gate.gate.start()
    first = LEAST_BYTES
    assert gate.transport.grants == [(gate.ids[0], first)]
    large = pa.record_batch({"n": pa.array(range(first // 8 // 2), pa.int64())})
    gate.send(0, large)
    assert len(gate.transport.grants) == 1  # received is not consumed
    gate.poll(max_rows=10_000_000)
    assert gate.transport.grants[1:] == [(gate.ids[0], first + large.nbytes)]


# --- idle inputs ---


@pytest.mark.promise("B2")
def test_an_idle_input_does_not_hold_the_clock_back_and_an_active_one_does_again() -> None:
    gate = Gate(2)
    gate.send(0, Watermark(10))
    gate.send(1, Watermark(4))
    assert gate.drain() == [Watermark(4)]
    gate.send(1, StreamStatus(idle=True))
    assert gate.drain() == [Watermark(10)]
    gate.send(0, Watermark(20))
    assert gate.drain() == [Watermark(20)]
    gate.send(1, StreamStatus(idle=False))
    gate.send(0, Watermark(30))
    assert gate.drain() == []  # input 1 is behind, and has rows again
    gate.send(1, Watermark(25))
    assert gate.drain() == [Watermark(25)]


@pytest.mark.promise("B2")
def test_when_all_are_idle_so_is_the_subtask_and_the_clock_is_the_highest_whoever_fell_idle_first() -> None:
    for order in ((0, 1), (1, 0)):
        gate = Gate(2)
        gate.send(0, Watermark(10))
        gate.send(1, Watermark(4))
        gate.drain()
        for channel in order:
            gate.send(channel, StreamStatus(idle=True))
        assert gate.drain() == [Watermark(10), StreamStatus(idle=True)]
        gate.send(0, StreamStatus(idle=False))
        assert gate.drain() == [StreamStatus(idle=False)]


@pytest.mark.promise("B2")
def test_an_input_that_has_ended_does_not_end_the_time_of_one_that_is_idle() -> None:
    gate = Gate(2)
    gate.send(0, Watermark(10))
    gate.send(1, Watermark(7))
    gate.send(1, StreamStatus(idle=True))
    assert gate.drain() == [Watermark(7), Watermark(10)]
    gate.send(0, Watermark(MAX_WATERMARK))
    assert gate.drain() == [StreamStatus(idle=True)]
    gate.send(1, StreamStatus(idle=False))
    gate.send(1, Watermark(12))
    assert gate.drain() == [StreamStatus(idle=False), Watermark(12)]
    gate.send(1, Watermark(MAX_WATERMARK))
    assert gate.drain() == [Watermark(MAX_WATERMARK)]


@pytest.mark.promise("B2")
@given(st.lists(st.tuples(st.integers(0, 2), st.one_of(st.booleans(), st.integers(-50, 50))), max_size=60))
def test_with_idle_inputs_the_clock_never_goes_back_and_is_never_ahead_of_an_active_one_unless_it_was_already(
    sent: list[tuple[int, int | bool]],
) -> None:
    gate = Gate(3)
    marks: list[float] = [float("-inf")] * 3
    idle = [False] * 3
    clock = float("-inf")
    told_idle = False
    for channel, what in sent:
        if isinstance(what, bool):
            idle[channel] = what
            gate.send(channel, StreamStatus(what))
        else:
            marks[channel] = max(marks[channel], what)
            gate.send(channel, Watermark(what))
        before = clock
        for taken in gate.drain():
            if isinstance(taken, StreamStatus):
                assert taken.idle != told_idle
                told_idle = taken.idle
            else:
                assert isinstance(taken, Watermark) and taken.timestamp_ms > clock
                clock = taken.timestamp_ms
        active = [mark for mark, off in zip(marks, idle, strict=True) if not off]
        assert told_idle == (not active)
        assert clock == max(before, min(active) if active else max(marks))


@pytest.mark.promise("E1")
def test_a_channel_whose_sender_has_a_backlog_is_granted_more_than_one_without() -> None:
    """Both have sent the same: the floating share goes to the one that needs it."""
    gate = Gate(2)
    gate.gate.start()
    full = pa.record_batch({"n": pa.array([0] * (LEAST_BYTES // 8), pa.int64())})
    gate.send(0, full, backlog=1 << 20)
    gate.send(1, full)
    gate.drain()
    granted = dict(gate.transport.grants)  # the last running total of each channel
    assert granted[gate.ids[0]] > granted[gate.ids[1]]
