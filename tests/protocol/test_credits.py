"""Credits (E1): a sender never exceeds them, the receiver's memory is bounded, and data can always go on.

Model: senders with frames to send, a gate that queues them and consumes them in any order; grants may be delayed.
"""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.protocol.credits import CHANNEL_BYTES, MAX_FRAME_BYTES, GateCredit, SenderCredit

pytestmark = pytest.mark.promise("E1")

HOLD = CHANNEL_BYTES // 4


def test_a_sender_without_a_grant_may_send_nothing() -> None:
    credit = SenderCredit()
    assert credit.available == 0
    with pytest.raises(AssertionError, match="1 bytes sent with a credit of 0"):
        credit.use(1)


def test_grants_are_running_totals_so_repeated_and_late_ones_do_no_harm() -> None:
    credit = SenderCredit()
    credit.grant(100)
    credit.use(70)
    credit.grant(60)
    credit.grant(100)
    assert credit.available == 30


def test_each_channel_is_first_granted_its_own_share() -> None:
    gate = GateCredit(3)
    assert gate.grants(1) == [(0, CHANNEL_BYTES), (1, CHANNEL_BYTES), (2, CHANNEL_BYTES)]
    assert gate.grants(1) == []


def test_the_floating_share_goes_where_the_backlog_is() -> None:
    gate = GateCredit(2)
    gate.grants(1)
    gate.on_frame(0, backlog=30 << 20)
    gate.on_frame(1, backlog=10 << 20)
    grants = dict(gate.grants(1))
    assert grants[0] - CHANNEL_BYTES == 3 * (grants[1] - CHANNEL_BYTES) == 6 << 20
    assert gate.outstanding(0) + gate.outstanding(1) == gate.capacity


def test_what_a_channel_wants_is_the_backlog_of_its_newest_frame() -> None:
    gate = GateCredit(2)
    gate.grants(1)
    for backlog in (80 << 20, 60 << 20, 30 << 20):
        gate.on_frame(0, backlog)
    gate.on_frame(1, backlog=10 << 20)
    grants = dict(gate.grants(1))
    assert grants[0] - CHANNEL_BYTES == 3 * (grants[1] - CHANNEL_BYTES) == 6 << 20


def test_a_channel_gets_no_more_of_the_floating_share_than_its_backlog() -> None:
    gate = GateCredit(2)
    gate.grants(1)
    gate.on_frame(0, backlog=1000)
    assert gate.grants(1) == [(0, CHANNEL_BYTES + 1000)]


def test_small_grants_are_held_back_until_they_are_worth_a_message() -> None:
    gate = GateCredit(1)
    gate.grants(1)
    gate.on_consumed(0, HOLD - 1)
    assert gate.grants(HOLD) == []
    gate.on_consumed(0, 1)
    assert gate.grants(HOLD) == [(0, CHANNEL_BYTES + HOLD)]


def bounded() -> GateCredit:
    """A gate of two channels that has granted all it may, and is then found to consume slowly."""
    gate = GateCredit(2)
    for channel in range(2):
        gate.on_frame(channel, backlog=CHANNEL_BYTES)
    gate.grants(1)
    gate.bound(4 * HOLD)
    return gate


def test_a_gate_that_is_found_slow_grants_nothing_until_its_channels_hold_less_than_their_new_shares() -> None:
    """The bytes beyond a channel's new share are lent, whoever was granted them: they count against the rest."""
    gate = bounded()
    assert gate.grants(1) == []
    gate.on_consumed(0, gate.outstanding(0))
    (grant,) = gate.grants(1)
    assert grant[0] == 0 and gate.outstanding(0) == HOLD, "its own share; the floating one is lent to channel 1"


def test_a_gate_that_is_found_fast_again_grants_its_whole_shares_at_once() -> None:
    gate = bounded()
    for channel in range(2):
        gate.on_frame(channel, backlog=0)
        gate.on_consumed(channel, gate.outstanding(channel))
    gate.grants(1)
    gate.bound(1 << 40)
    gate.grants(1)
    assert [gate.outstanding(channel) for channel in range(2)] == [CHANNEL_BYTES] * 2


def test_the_last_step_up_to_the_whole_share_is_taken_however_small_it_is() -> None:
    gate = GateCredit(1)
    for quarters in (1, 3, 4):
        gate.bound(2 * CHANNEL_BYTES * quarters // 4)
    gate.grants(1)
    assert gate.outstanding(0) == CHANNEL_BYTES


class Channel:
    def __init__(self, frames: list[int]) -> None:
        self.credit = SenderCredit()
        self.frames = deque(frames)
        self.queued: deque[int] = deque()
        self.grants: deque[int] = deque()  # under way to the sender

    def send(self) -> int | None:
        """One frame if the credit allows it; returns the backlog behind it."""
        if not self.frames or self.frames[0] > self.credit.available:
            return None
        size = self.frames.popleft()
        self.credit.use(size)
        self.queued.append(size)
        return sum(self.frames)


FRAMES = st.lists(st.integers(0, MAX_FRAME_BYTES) | st.just(MAX_FRAME_BYTES), max_size=25)


@given(st.lists(FRAMES, min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_memory_is_bounded_and_every_frame_gets_through_in_any_order_of_events(frames, random) -> None:
    channels = [Channel(sizes) for sizes in frames]
    gate = GateCredit(len(channels))

    def grant(hold: int) -> None:
        for index, total in gate.grants(hold):
            channels[index].grants.append(total)

    grant(1)
    while any(channel.frames or channel.queued for channel in channels):
        moves = []
        for index, channel in enumerate(channels):
            if channel.grants:
                moves.append((index, "grant"))
            if channel.frames and channel.frames[0] <= channel.credit.available:
                moves.append((index, "send"))
            if channel.queued:
                moves.append((index, "consume"))
        assert moves, "nothing can go on although data waits"
        index, move = random.choice(moves)
        channel = channels[index]
        if move == "grant":
            channel.credit.grant(channel.grants.popleft())
        elif move == "send":
            backlog = channel.send()
            assert backlog is not None
            gate.on_frame(index, backlog)
        else:
            size = channel.queued.popleft()
            if size:
                gate.on_consumed(index, size)
                grant(HOLD)
        assert sum(sum(c.queued) for c in channels) <= gate.capacity
        assert sum(gate.outstanding(i) for i in range(len(channels))) <= gate.capacity


@given(st.lists(st.integers(1, MAX_FRAME_BYTES), min_size=1, max_size=30))
def test_a_stuck_receiver_holds_no_more_than_its_capacity(sizes) -> None:
    channel, gate = Channel(sizes * 5), GateCredit(1)
    for _ in range(len(sizes) * 5):
        for _, total in gate.grants(1):
            channel.credit.grant(total)
        backlog = channel.send()
        if backlog is not None:
            gate.on_frame(0, backlog)
    assert sum(channel.queued) <= gate.capacity == 2 * CHANNEL_BYTES
