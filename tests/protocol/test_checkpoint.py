"""The life of a checkpoint: what makes it complete, and that a CommitPermit can't be made by hand."""

import pytest

from engine.protocol.checkpoint import CommitPermit, CompletedCheckpoint, PendingCheckpoint
from engine.protocol.failures import AckOutcome, CheckpointFailure
from engine.protocol.ids import AttemptId, SubtaskId
from engine.protocol.manifest import ManifestRef, SubtaskState, Timings
from engine.protocol.messages import Acknowledge

A, B = SubtaskId("a", 0), SubtaskId("b", 0)
ATTEMPT = AttemptId(1, 1)


def ack(subtask: SubtaskId) -> Acknowledge:
    return Acknowledge(ATTEMPT, 3, SubtaskState(subtask, [], {}), [], {}, Timings())


def pending() -> PendingCheckpoint:
    return PendingCheckpoint(3, ATTEMPT, 0.0, 10.0, frozenset([B, A]))


def test_it_is_complete_when_all_that_it_expects_have_acknowledged() -> None:
    checkpoint = pending()
    assert checkpoint.acknowledge(ack(B)) is AckOutcome.SUCCESS
    assert not checkpoint.complete
    assert checkpoint.missing == [A]
    assert checkpoint.acknowledge(ack(A)) is AckOutcome.SUCCESS
    assert checkpoint.complete
    assert [a.subtask for a in CompletedCheckpoint.of(checkpoint, 7.0).acks] == [A, B]


def test_what_is_not_complete_can_not_be_completed() -> None:
    with pytest.raises(AssertionError, match="checkpoint 3 still waits"):
        CompletedCheckpoint.of(pending(), 7.0)


@pytest.mark.promise("D11")
def test_a_commit_permit_is_never_made_by_hand() -> None:
    ref = ManifestRef("path", "00", 4, 9)
    with pytest.raises(TypeError, match="never made by hand"):
        CommitPermit(object(), ref)
    with pytest.raises(TypeError, match="never made by hand"):
        CommitPermit(None, ref)
    permit = CommitPermit.issue(ref)
    assert permit.epoch == 4


@pytest.mark.promise("D4")
def test_the_reasons_that_count_are_those_of_the_list() -> None:
    assert {failure.code for failure in CheckpointFailure if not failure.counts} == {"subsumed", "attempt_ended"}
