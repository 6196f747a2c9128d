"""When a barrier has come on every channel: which channels wait, and what newer and aborted checkpoints change."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.protocol.alignment.aligned import AlignedBarriers
from engine.protocol.alignment.aligner import Aligned, Superseded


@pytest.mark.promise("D2")
def test_an_operator_with_one_input_never_waits() -> None:
    aligner = AlignedBarriers(1)
    for checkpoint in (1, 2, 5):
        assert aligner.on_barrier(0, checkpoint, 7.0) == [Aligned(checkpoint, 0.0)]
        assert not aligner.blocked(0)


@pytest.mark.promise("D2")
def test_exactly_the_channels_whose_barrier_has_come_are_blocked() -> None:
    aligner = AlignedBarriers(3)
    assert aligner.on_barrier(2, 1, 10.0) == []
    assert [aligner.blocked(channel) for channel in range(3)] == [False, False, True]
    assert aligner.on_barrier(0, 1, 14.0) == []
    assert [aligner.blocked(channel) for channel in range(3)] == [True, False, True]
    assert aligner.on_barrier(1, 1, 25.0) == [Aligned(1, 15.0)]
    assert not any(aligner.blocked(channel) for channel in range(3))


@pytest.mark.promise("D2")
@given(st.integers(1, 6), st.randoms(use_true_random=False))
def test_whatever_the_order_of_barriers_each_checkpoint_is_aligned_once_when_the_last_has_come(
    channels, random
) -> None:
    aligner = AlignedBarriers(channels)
    left = {channel: [1, 2, 3] for channel in range(channels)}
    aligned = []
    while any(left.values()):
        # A gate takes only from channels that are not blocked.
        channel = random.choice([c for c, barriers in left.items() if barriers and not aligner.blocked(c)])
        outcomes = aligner.on_barrier(channel, left[channel].pop(0), 0.0)
        aligned += [outcome.checkpoint for outcome in outcomes]
        for c, barriers in left.items():
            assert aligner.blocked(c) == (len(barriers) == 3 - len(aligned) - 1)
    assert aligned == [1, 2, 3]


def test_a_newer_barrier_supersedes_the_checkpoint_under_way() -> None:
    aligner = AlignedBarriers(2)
    aligner.on_barrier(0, 1, 0.0)
    assert aligner.on_barrier(1, 2, 3.0) == [Superseded(1)]
    assert [aligner.blocked(channel) for channel in range(2)] == [False, True]
    assert aligner.on_barrier(0, 2, 5.0) == [Aligned(2, 2.0)]


def test_a_late_barrier_of_a_superseded_checkpoint_means_nothing() -> None:
    aligner = AlignedBarriers(3)
    aligner.on_barrier(0, 1, 0.0)
    aligner.on_barrier(1, 2, 0.0)
    assert aligner.on_barrier(2, 1, 0.0) == []
    assert not aligner.blocked(2)


@pytest.mark.promise("D4")
def test_an_abort_releases_the_channels_that_waited() -> None:
    aligner = AlignedBarriers(2)
    aligner.on_barrier(0, 1, 0.0)
    aligner.on_abort(1)
    assert not aligner.blocked(0)
    assert aligner.on_barrier(1, 1, 0.0) == []
    assert not aligner.blocked(1)


@pytest.mark.promise("D4")
def test_a_checkpoint_aborted_before_its_first_barrier_is_never_aligned() -> None:
    aligner = AlignedBarriers(2)
    aligner.on_abort(1)
    assert aligner.on_barrier(0, 1, 0.0) == []
    assert aligner.on_barrier(1, 1, 0.0) == []
    assert not aligner.blocked(0)
    aligner.on_barrier(0, 2, 0.0)
    assert aligner.on_barrier(1, 2, 0.0) == [Aligned(2, 0.0)]


def test_an_abort_of_an_older_checkpoint_leaves_the_one_under_way_alone() -> None:
    aligner = AlignedBarriers(2)
    aligner.on_barrier(0, 2, 0.0)
    aligner.on_abort(1)
    assert aligner.blocked(0)
    assert aligner.on_barrier(1, 2, 0.0) == [Aligned(2, 0.0)]


def test_an_abort_of_a_newer_checkpoint_leaves_the_one_under_way_alone() -> None:
    aligner = AlignedBarriers(2)
    aligner.on_barrier(0, 1, 0.0)
    aligner.on_abort(2)
    assert aligner.on_barrier(1, 1, 0.0) == [Aligned(1, 0.0)]


def test_a_channel_read_while_it_is_blocked_is_a_fault_of_the_gate() -> None:
    aligner = AlignedBarriers(2)
    aligner.on_barrier(0, 1, 0.0)
    with pytest.raises(AssertionError, match="channel 0 was read while it was blocked"):
        aligner.on_barrier(0, 2, 0.0)
