"""At least once: barriers are counted, no channel waits."""

import pytest

from engine.protocol.alignment.aligner import Aligned, Superseded
from engine.protocol.alignment.tracked import TrackedBarriers


def test_at_least_once_never_blocks_a_channel() -> None:
    aligner = TrackedBarriers(2)
    assert aligner.on_barrier(0, 1, 0.0) == []
    assert not aligner.blocked(0)
    assert aligner.on_barrier(1, 1, 9.0) == [Aligned(1, 9.0)]


def test_at_least_once_follows_several_checkpoints_at_a_time() -> None:
    aligner = TrackedBarriers(2)
    assert aligner.on_barrier(0, 1, 0.0) == []
    assert aligner.on_barrier(0, 2, 1.0) == []
    assert aligner.on_barrier(1, 1, 2.0) == [Aligned(1, 2.0)]
    assert aligner.on_barrier(1, 2, 3.0) == [Aligned(2, 2.0)]


def test_at_least_once_a_complete_checkpoint_supersedes_older_ones() -> None:
    aligner = TrackedBarriers(2)
    aligner.on_barrier(0, 1, 0.0)
    aligner.on_barrier(0, 2, 0.0)
    assert aligner.on_barrier(1, 2, 0.0) == [Superseded(1), Aligned(2, 0.0)]
    assert aligner.on_barrier(1, 1, 0.0) == []


@pytest.mark.promise("D4")
def test_at_least_once_an_aborted_checkpoint_is_never_reported() -> None:
    aligner = TrackedBarriers(2)
    aligner.on_barrier(0, 1, 0.0)
    aligner.on_abort(1)
    assert aligner.on_barrier(1, 1, 0.0) == []
    aligner.on_barrier(0, 2, 0.0)
    assert Aligned(2, 0.0) in aligner.on_barrier(1, 2, 0.0)


@pytest.mark.promise("D4")
def test_at_least_once_a_checkpoint_that_was_aborted_before_its_barriers_came_is_never_reported() -> None:
    aligner = TrackedBarriers(2)
    aligner.on_abort(1)
    assert aligner.on_barrier(0, 1, 0.0) == aligner.on_barrier(1, 1, 0.0) == []
