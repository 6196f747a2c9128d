"""The coordinator alone, with a clock set by hand: when it triggers, what completes, what is aborted."""

import pytest

from engine.protocol.checkpoint import CompletedCheckpoint
from engine.protocol.config import CheckpointConfig, CheckpointingMode
from engine.protocol.coordinator import (
    AbortCheckpoint,
    CheckpointCoordinator,
    CoordinatorAction,
    DiscardLateAck,
    PublishCheckpoint,
    StoreSavepoint,
    TooManyFailures,
    TriggerSources,
)
from engine.protocol.failures import AckOutcome, CheckpointFailure
from engine.protocol.ids import AttemptId, SubtaskId
from engine.protocol.manifest import SubtaskState, Timings
from engine.protocol.messages import Acknowledge, Decline
from engine.protocol.savepoint import SavepointRequest, StopRequest

ATTEMPT = AttemptId(1, 1)
SUBTASKS = [SubtaskId("source", 0), SubtaskId("source", 1), SubtaskId("sink", 0)]


def coordinator(**config: object) -> CheckpointCoordinator:
    options = {"interval_ms": 1000, **config}
    return CheckpointCoordinator(CheckpointConfig(**options), ATTEMPT, SUBTASKS, next_checkpoint=1, now_ms=0.0)


def ack(checkpoint: int, subtask: SubtaskId, attempt: AttemptId = ATTEMPT) -> Acknowledge:
    return Acknowledge(attempt, checkpoint, SubtaskState(subtask, [], {}), [], {}, Timings())


def acknowledge_all(c: CheckpointCoordinator, checkpoint: int, now_ms: float) -> list[CoordinatorAction]:
    actions = []
    for subtask in SUBTASKS:
        outcome, more = c.on_acknowledge(ack(checkpoint, subtask), now_ms)
        assert outcome is AckOutcome.SUCCESS
        actions += more
    return actions


def triggered(actions: list[CoordinatorAction]) -> list[int]:
    return [a.checkpoint for a in actions if isinstance(a, TriggerSources)]


def aborted(actions: list[CoordinatorAction]) -> list[tuple[int, CheckpointFailure]]:
    return [(a.checkpoint, a.failure) for a in actions if isinstance(a, AbortCheckpoint)]


def completed(actions: list[CoordinatorAction]) -> list[CompletedCheckpoint]:
    return [a.completed for a in actions if isinstance(a, PublishCheckpoint)]


@pytest.mark.promise("D3")
def test_the_defaults_are_those_of_the_list() -> None:
    config = CheckpointConfig()
    assert config.interval_ms is None
    assert config.mode is CheckpointingMode.EXACTLY_ONCE
    assert config.timeout_ms == 600_000
    assert (config.min_pause_ms, config.max_concurrent, config.tolerable_failed, config.retained) == (0, 1, 0, 3)


@pytest.mark.promise("D3")
@pytest.mark.parametrize(
    "wrong",
    [
        {"interval_ms": 0},
        {"timeout_ms": 0},
        {"min_pause_ms": -1},
        {"max_concurrent": 0},
        {"retained": 0},
        {"tolerable_failed": -1},
    ],
)
def test_a_config_that_can_not_work_is_refused_by_its_name(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"interval" if "interval_ms" in wrong else next(iter(wrong))):
        CheckpointConfig(**wrong)


@pytest.mark.promise("D3")
def test_without_an_interval_nothing_is_triggered() -> None:
    c = coordinator(interval_ms=None)
    assert c.wakeup_ms() is None
    assert c.on_tick(1e9) == []


@pytest.mark.promise("D3")
def test_the_interval_runs_from_trigger_to_trigger() -> None:
    c = coordinator()
    assert c.wakeup_ms() == 1000
    assert c.on_tick(999) == []
    assert triggered(c.on_tick(1000)) == [1]
    acknowledge_all(c, 1, 1400)
    c.on_publication_over(1, 1400)
    assert c.wakeup_ms() == 2000
    assert triggered(c.on_tick(2000)) == [2]


@pytest.mark.promise("D3")
def test_min_pause_is_counted_from_completion() -> None:
    c = coordinator(min_pause_ms=500)
    c.on_tick(1000)
    acknowledge_all(c, 1, 1800)
    c.on_publication_over(1, 1900)
    assert c.wakeup_ms() == 2400
    assert c.on_tick(2399) == []
    assert triggered(c.on_tick(2400)) == [2]


@pytest.mark.promise("D3")
def test_no_more_than_max_concurrent_are_under_way_and_publishing_counts() -> None:
    c = coordinator(max_concurrent=2)
    assert triggered(c.on_tick(1000)) == [1]
    assert triggered(c.on_tick(2000)) == [2]
    assert c.on_tick(3000) == []
    acknowledge_all(c, 1, 3100)
    assert c.on_tick(3200) == []  # acknowledged, but not published yet
    c.on_publication_over(1, 3300)
    assert triggered(c.on_tick(3300)) == [3]


@pytest.mark.promise("D3")
def test_one_asked_for_by_hand_does_not_wait_for_the_interval() -> None:
    c = coordinator(interval_ms=None)
    assert triggered(c.trigger(5)) == [1]
    assert triggered(c.trigger(6)) == [2]


def test_a_checkpoint_completes_when_every_subtask_has_acknowledged() -> None:
    c = coordinator()
    c.on_tick(1000)
    assert c.pending[0].missing == sorted(SUBTASKS)
    assert c.on_acknowledge(ack(1, SUBTASKS[0]), 1001) == (AckOutcome.SUCCESS, [])
    assert c.on_acknowledge(ack(1, SUBTASKS[1]), 1002) == (AckOutcome.SUCCESS, [])
    outcome, actions = c.on_acknowledge(ack(1, SUBTASKS[2]), 1003)
    assert outcome is AckOutcome.SUCCESS
    (done,) = completed(actions)
    assert (done.checkpoint, done.triggered_ms, done.completed_ms, done.final) == (1, 1000, 1003, False)
    assert [a.subtask for a in done.acks] == sorted(SUBTASKS)


@pytest.mark.promise("D4")
def test_a_checkpoint_that_is_not_complete_in_time_is_aborted_and_announced_once() -> None:
    c = coordinator(timeout_ms=300, tolerable_failed=9)
    c.on_tick(1000)
    c.on_acknowledge(ack(1, SUBTASKS[0]), 1100)
    assert c.wakeup_ms() == 1300
    actions = c.on_tick(1300)
    assert aborted(actions) == [(1, CheckpointFailure.EXPIRED)]
    assert "sink[0], source[1]" in next(a.detail for a in actions if isinstance(a, AbortCheckpoint))
    assert aborted(c.on_tick(1301)) == []
    assert c.on_decline(Decline(ATTEMPT, 1, SUBTASKS[1], False, "late")) == []
    assert c.end_attempt("over") == []


@pytest.mark.promise("D4")
def test_a_late_acknowledgement_is_discarded_with_its_files_and_does_no_harm() -> None:
    c = coordinator(timeout_ms=300, tolerable_failed=9)
    c.on_tick(1000)
    c.on_tick(1300)
    late = ack(1, SUBTASKS[0])
    assert c.on_acknowledge(late, 1400) == (AckOutcome.DISCARDED, [DiscardLateAck(late)])
    c.on_tick(2000)
    assert len(completed(acknowledge_all(c, 2, 2100))) == 1


@pytest.mark.promise("D4")
def test_an_acknowledgement_may_repeat() -> None:
    c = coordinator()
    c.on_tick(1000)
    c.on_acknowledge(ack(1, SUBTASKS[0]), 1001)
    assert c.on_acknowledge(ack(1, SUBTASKS[0]), 1002) == (AckOutcome.DUPLICATE, [])
    for subtask in SUBTASKS[1:]:
        c.on_acknowledge(ack(1, subtask), 1003)
    assert c.on_acknowledge(ack(1, SUBTASKS[0]), 1004) == (AckOutcome.DUPLICATE, [])


@pytest.mark.promise("D4")
def test_an_acknowledgement_that_repeats_after_publication_does_not_delete_the_published_files() -> None:
    c = coordinator()
    c.on_tick(1000)
    acknowledge_all(c, 1, 1001)
    c.on_publication_over(1, 1002)
    outcome, actions = c.on_acknowledge(ack(1, SUBTASKS[0]), 1003)
    assert actions == []
    assert outcome is AckOutcome.DUPLICATE


@pytest.mark.promise("D4")
def test_acknowledgements_of_strangers_and_of_other_attempts_are_unknown() -> None:
    c = coordinator()
    c.on_tick(1000)
    assert c.on_acknowledge(ack(1, SubtaskId("nobody", 0)), 1001) == (AckOutcome.UNKNOWN, [])
    assert c.on_acknowledge(ack(1, SUBTASKS[0], AttemptId(1, 0)), 1001) == (AckOutcome.UNKNOWN, [])
    assert len(c.pending[0].acks) == 0


@pytest.mark.promise("D4")
def test_a_newer_completed_checkpoint_subsumes_older_pending_ones_and_that_is_no_failure() -> None:
    c = coordinator(max_concurrent=3)
    for now in (1000, 2000, 3000):
        c.on_tick(now)
    actions = acknowledge_all(c, 2, 3100)
    assert aborted(actions) == [(1, CheckpointFailure.SUBSUMED)]
    assert [done.checkpoint for done in completed(actions)] == [2]
    assert isinstance(actions[-1], PublishCheckpoint)
    assert c.consecutive_failures == 0
    assert [pending.checkpoint for pending in c.pending] == [3]


@pytest.mark.promise("D4")
@pytest.mark.parametrize(
    ("written", "failure"), [(False, CheckpointFailure.DECLINED), (True, CheckpointFailure.WRITE_FAILED)]
)
def test_declined_and_failed_to_write_count(written: bool, failure: CheckpointFailure) -> None:
    c = coordinator(tolerable_failed=1)
    c.on_tick(1000)
    actions = c.on_decline(Decline(ATTEMPT, 1, SUBTASKS[1], written, "no space"))
    assert aborted(actions) == [(1, failure)]
    assert c.consecutive_failures == 1
    assert not any(isinstance(a, TooManyFailures) for a in actions)
    c.on_tick(2000)
    actions = c.on_decline(Decline(ATTEMPT, 2, SUBTASKS[1], written, "no space"))
    assert any(isinstance(a, TooManyFailures) and "source[1]: no space" in a.detail for a in actions)


@pytest.mark.promise("D4")
def test_failed_to_finalise_counts_and_is_announced() -> None:
    c = coordinator()
    c.on_tick(1000)
    acknowledge_all(c, 1, 1001)
    actions = c.on_not_published(1, CheckpointFailure.FINALIZE_FAILED, "disk full")
    assert aborted(actions) == [(1, CheckpointFailure.FINALIZE_FAILED)]
    assert isinstance(actions[-1], TooManyFailures)


@pytest.mark.promise("D4")
def test_a_success_resets_the_count_of_failures() -> None:
    c = coordinator(tolerable_failed=1)
    c.on_tick(1000)
    c.on_decline(Decline(ATTEMPT, 1, SUBTASKS[0], False, "x"))
    c.on_tick(2000)
    acknowledge_all(c, 2, 2001)
    assert c.consecutive_failures == 1  # acknowledged by all is not published
    c.on_publication_over(2, 2002)
    assert c.consecutive_failures == 0


@pytest.mark.promise("D4")
def test_checkpoints_that_expire_together_end_the_attempt_once() -> None:
    c = coordinator(max_concurrent=2, timeout_ms=5000)
    c.on_tick(1000)
    c.on_tick(2000)
    actions = c.on_tick(60_000)  # the JobMaster itself was stopped for a while
    assert [checkpoint for checkpoint, _ in aborted(actions)] == [1, 2]
    assert len([a for a in actions if isinstance(a, TooManyFailures)]) == 1


@pytest.mark.promise("D4")
def test_the_end_of_an_attempt_aborts_what_is_pending_but_not_what_is_being_published() -> None:
    c = coordinator(max_concurrent=2)
    c.on_tick(1000)
    acknowledge_all(c, 1, 1001)
    c.on_tick(2000)
    assert aborted(c.end_attempt("slot lost")) == [(2, CheckpointFailure.ATTEMPT_ENDED)]
    assert c.consecutive_failures == 0
    c.on_publication_over(1, 2001)


@pytest.mark.promise("A1")
def test_a_final_checkpoint_is_triggered_without_an_interval_and_repeated_until_one_completes() -> None:
    c = coordinator(interval_ms=None, tolerable_failed=9, timeout_ms=100)
    c.want_final()
    assert triggered(c.on_tick(10)) == [1]
    assert triggered(c.on_tick(11)) == []
    actions = c.on_tick(110)
    assert aborted(actions) == [(1, CheckpointFailure.EXPIRED)]
    assert triggered(actions) == [2]
    (done,) = completed(acknowledge_all(c, 2, 120))
    assert done.final


@pytest.mark.promise("A1")
def test_a_checkpoint_under_way_when_the_last_subtask_finishes_is_not_the_final_one() -> None:
    c = coordinator()
    c.on_tick(1000)
    c.want_final()
    assert c.on_tick(1001) == []
    (done,) = completed(acknowledge_all(c, 1, 1002))
    assert not done.final
    assert c.on_tick(1003) == []
    c.on_publication_over(1, 1004)
    assert triggered(c.on_tick(1005)) == [2]


def test_ids_go_on_where_the_last_attempt_ended() -> None:
    c = CheckpointCoordinator(CheckpointConfig(interval_ms=1), AttemptId(2, 5), SUBTASKS, next_checkpoint=43, now_ms=0)
    assert triggered(c.on_tick(1)) == [43]
    assert c.next_checkpoint == 44


# --- savepoints ---

SAVEPOINT = SavepointRequest("nightly")


def stored(actions: list[CoordinatorAction]) -> list[int]:
    return [a.completed.checkpoint for a in actions if isinstance(a, StoreSavepoint)]


@pytest.mark.promise("D5")
def test_a_savepoint_waits_neither_for_min_pause_nor_for_max_concurrent() -> None:
    c = coordinator(min_pause_ms=5_000)
    assert triggered(c.on_tick(1000.0)) == [1]
    assert triggered(c.trigger_savepoint(SAVEPOINT, 1001.0)) == [2]
    acknowledge_all(c, 1, 1100.0)
    c.on_publication_over(1, 1100.0)
    assert triggered(c.trigger_savepoint(SAVEPOINT, 1101.0)) == [3]


@pytest.mark.promise("D5")
def test_a_savepoint_under_way_does_not_hold_up_the_next_checkpoint() -> None:
    c = coordinator()
    c.trigger_savepoint(SAVEPOINT, 900.0)
    assert triggered(c.on_tick(1000.0)) == [2]


@pytest.mark.promise("D5")
def test_a_completed_savepoint_is_stored_and_no_epoch() -> None:
    c = coordinator()
    c.trigger_savepoint(SAVEPOINT, 0.0)
    actions = acknowledge_all(c, 1, 50.0)
    assert (stored(actions), completed(actions)) == ([1], [])
    assert actions[0].request == SAVEPOINT


@pytest.mark.promise("D5")
def test_a_savepoint_is_never_subsumed_and_subsumes_nothing() -> None:
    c = coordinator(max_concurrent=2)
    c.trigger_savepoint(SAVEPOINT, 0.0)
    c.on_tick(1000.0)
    c.trigger_savepoint(SAVEPOINT, 1001.0)
    assert aborted(acknowledge_all(c, 3, 1002.0)) == []
    actions = acknowledge_all(c, 2, 1003.0)
    assert (aborted(actions), [one.checkpoint for one in completed(actions)]) == ([], [2])
    assert stored(acknowledge_all(c, 1, 1004.0)) == [1]


@pytest.mark.promise("D5")
def test_a_failed_savepoint_is_aborted_and_does_not_count() -> None:
    c = coordinator(timeout_ms=500)
    c.trigger_savepoint(SAVEPOINT, 0.0)
    assert c.on_tick(500.0) == [
        AbortCheckpoint(1, CheckpointFailure.EXPIRED, "no acknowledgement from sink[0], source[0], source[1]", True)
    ]
    c.trigger_savepoint(SAVEPOINT, 500.0)
    actions = c.on_decline(Decline(ATTEMPT, 2, SUBTASKS[0], True, "disk full"))
    assert aborted(actions) == [(2, CheckpointFailure.WRITE_FAILED)]
    assert c.consecutive_failures == 0 and not [a for a in actions if isinstance(a, TooManyFailures)]


@pytest.mark.promise("D6")
@pytest.mark.parametrize("savepoint", [SAVEPOINT, None])
def test_a_stop_that_fails_is_an_epoch_that_was_aborted_and_does_not_count(savepoint: SavepointRequest | None) -> None:
    c = coordinator()
    c.hold()
    c.trigger_stop(StopRequest(False, savepoint), 0.0)
    actions = c.on_decline(Decline(ATTEMPT, 1, SUBTASKS[0], True, "disk full"))
    (abort,) = actions
    assert isinstance(abort, AbortCheckpoint) and abort.failure is CheckpointFailure.WRITE_FAILED
    assert not abort.savepoint, "it would have been an epoch, so the history shows it"
    assert c.consecutive_failures == 0


def test_a_savepoint_that_expires_does_not_hide_a_checkpoint_that_expires_with_it() -> None:
    c = coordinator(timeout_ms=500)
    c.on_tick(1000.0)
    c.trigger_savepoint(SAVEPOINT, 1000.0)
    actions = c.on_tick(1500.0)
    assert [number for number, _ in aborted(actions)] == [1, 2]
    assert [a for a in actions if isinstance(a, TooManyFailures)]


@pytest.mark.promise("D5")
def test_savepoints_do_not_move_the_next_checkpoint() -> None:
    c = coordinator()
    c.trigger_savepoint(SAVEPOINT, 900.0)
    acknowledge_all(c, 1, 950.0)
    assert triggered(c.on_tick(999.0)) == []
    assert triggered(c.on_tick(1000.0)) == [2]


def test_the_final_checkpoint_waits_for_a_savepoint_that_is_under_way() -> None:
    c = coordinator()
    c.trigger_savepoint(SAVEPOINT, 0.0)
    c.want_final()
    assert triggered(c.on_tick(2000.0)) == []
    acknowledge_all(c, 1, 2001.0)
    assert triggered(c.on_tick(2002.0)) == [2]


def test_the_end_of_an_attempt_aborts_its_savepoints() -> None:
    c = coordinator()
    c.trigger_savepoint(SAVEPOINT, 0.0)
    assert aborted(c.end_attempt("slot lost")) == [(1, CheckpointFailure.ATTEMPT_ENDED)]


def on_probation() -> CheckpointCoordinator:
    config = CheckpointConfig(interval_ms=1000)
    return CheckpointCoordinator(config, ATTEMPT, SUBTASKS, next_checkpoint=1, now_ms=0.0, probation_ms=5000.0)


@pytest.mark.promise("D8")
def test_on_probation_the_first_checkpoint_waits_for_a_record() -> None:
    """Else a version that fails at its first record may publish an epoch, and the old one could not take over."""
    c = on_probation()
    assert not triggered(c.on_tick(3000.0)) and c.wakeup_ms() == 5000.0
    c.on_records()
    assert triggered(c.on_tick(3000.0)) == [1]


@pytest.mark.promise("D8")
def test_the_probation_ends_without_a_record_and_the_final_checkpoint_does_not_wait_for_it() -> None:
    assert triggered(on_probation().on_tick(5000.0)) == [1]
    c = on_probation()
    c.want_final()
    assert triggered(c.on_tick(1.0)) == [1]
    assert triggered(on_probation().trigger(1.0)) == [1], "somebody has asked for it"
