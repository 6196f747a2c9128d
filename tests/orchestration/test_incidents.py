"""Goal: each incident gives one message when it begins and one when it is over; what passes by itself gives none."""

from __future__ import annotations

from typing import Any

import pytest

from engine.observe.timeline import RestartRecord
from orchestration.health import Health, State
from orchestration.incidents import CHECK, CHECKPOINT, FAILED, RECOVERY, RESTARTS, SILENT, Facts, Message, due, in_words
from orchestration.spec import AlertLimits

NOW_MS = 10_000_000
LIMITS = AlertLimits(restarts=3, within_s=600, recovery_s=60)


def seconds_ago(age_s: float) -> int:
    return NOW_MS - int(1000 * age_s)


def restart(age_s: float, recovery_s: float | None = 1.0, cause: str = "a slot was lost") -> RestartRecord:
    recovery_ms = None if recovery_s is None else int(1000 * recovery_s)
    return RestartRecord(seconds_ago(age_s), "1.1", "slot_lost", cause, "pid 7", recovery_ms=recovery_ms)


def facts(state: State = State.RUNNING, detail: str = "so it is", **over: Any) -> Facts:
    known: dict[str, Any] = {
        "heartbeat_ms": NOW_MS,
        "restarts": [],
        "started_ms": 0,
        "completed_ms": NOW_MS,
        "interval_ms": 1000,
    }
    return Facts(Health(state, detail), **{**known, **over})


def look(
    found: Facts, known: dict[str, int] | None = None, running_s: float | None = 3600, **over: Any
) -> list[Message]:
    running_ms = None if running_s is None else seconds_ago(running_s)
    return due(found, over.get("limits", LIMITS), known or {}, over.get("looked_ms", NOW_MS), running_ms, NOW_MS)


def kinds(messages: list[Message]) -> list[tuple[str, bool, bool]]:
    return [(message.kind, message.opens, message.closes) for message in messages]


@pytest.mark.parametrize("state", list(State))
def test_a_job_in_any_state_is_an_incident_only_if_it_failed_or_gives_no_sign_of_life(state: State) -> None:
    wanted = {State.FAILED: FAILED, State.SILENT: SILENT, State.GONE: SILENT}
    assert kinds(look(facts(state))) == ([(wanted[state], True, False)] if state in wanted else [])


def test_an_incident_is_said_once_and_its_end_once() -> None:
    found = facts(State.FAILED, "value 777 is not allowed\n  line 3")
    (message,) = look(found)
    assert message.text == "the job failed: value 777 is not allowed line 3"
    known = {FAILED: seconds_ago(180)}
    assert look(found, known) == []
    (over,) = look(facts(), known)
    assert over.closes and over.text == "over after 3 min: the job failed"


def test_three_restarts_within_ten_minutes_are_a_loop_that_names_the_last_cause() -> None:
    two = [restart(10, cause="the newest"), restart(599)]
    assert look(facts(restarts=[*two, restart(601)])) == []
    (loop,) = look(facts(restarts=[*two, restart(600)]))
    assert loop.text == "restart loop: 3 restarts within 10 min; the last one: the newest: pid 7"
    (over,) = look(facts(restarts=two), {RESTARTS: seconds_ago(601)})
    assert over.closes and over.kind == RESTARTS


def test_restarts_of_an_earlier_start_do_not_count() -> None:
    restarts = [restart(50), restart(60, None), restart(70, None), restart(80)]
    assert look(facts(restarts=restarts, started_ms=seconds_ago(55))) == []


def test_a_recovery_above_its_target_is_said_while_it_lasts_and_again_when_it_is_over() -> None:
    lasting = facts(State.RECOVERING, restarts=[restart(2, None), restart(61, None)])
    (slow,) = look(lasting, running_s=None)
    assert slow.opens and slow.text.startswith("slow recovery: it has taken 61 s, above the target of 60 s; cause: ")
    known = {RECOVERY: NOW_MS}
    assert look(lasting, known, running_s=None) == []
    assert kinds(look(facts(restarts=[restart(5, 4), restart(64, 63)]), known)) == [(RECOVERY, False, True)]


def test_restarts_that_recovered_one_by_one_are_several_short_outages() -> None:
    limits = AlertLimits(restarts=99, recovery_s=60)
    each = [restart(40, 39), restart(80, 39), restart(120, 39)]
    assert look(facts(restarts=each), looked_ms=0, limits=limits) == []
    at_once = [restart(40, 30), restart(80, 70)]
    assert kinds(look(facts(restarts=at_once), looked_ms=0, limits=limits)) == [(RECOVERY, True, True)]


def test_a_slow_recovery_between_two_looks_is_one_message_and_is_not_found_again_at_the_next() -> None:
    found = facts(restarts=[restart(100, 90)])
    (message,) = look(found, looked_ms=seconds_ago(30))
    assert message.text.startswith("slow recovery, over by now: it took 90 s, above the target of 60 s")
    assert look(found, looked_ms=seconds_ago(10)) == [], "it ended 10 s ago, and was seen then"


def test_a_jobmaster_that_is_being_replaced_counts_from_its_last_heartbeat() -> None:
    dying = facts(State.RECOVERING, "the JobMaster died once, last by: signal 9", heartbeat_ms=seconds_ago(70))
    (slow,) = look(dying, running_s=None)
    assert slow.kind == RECOVERY and "signal 9" in slow.text
    assert look(facts(State.RECOVERING, heartbeat_ms=seconds_ago(59)), running_s=None) == []
    assert look(facts(State.RECOVERING, heartbeat_ms=None), running_s=None) == []


def test_a_checkpoint_is_overdue_after_three_intervals_and_half_a_minute() -> None:
    assert look(facts(completed_ms=seconds_ago(33))) == []
    (overdue,) = look(facts(completed_ms=seconds_ago(34)))
    assert overdue.text == "checkpoint overdue: no checkpoint was completed for 34 s; one is due every 1 s"
    own = AlertLimits(checkpoint_age_s=10)
    assert kinds(look(facts(completed_ms=seconds_ago(11)), limits=own)) == [(CHECKPOINT, True, False)]
    assert look(facts(completed_ms=seconds_ago(9)), limits=own) == []


def test_a_job_without_an_interval_or_that_runs_only_for_a_moment_has_no_overdue_checkpoint() -> None:
    assert look(facts(completed_ms=0, interval_ms=None)) == []
    assert look(facts(completed_ms=seconds_ago(900)), running_s=30) == []
    (overdue,) = look(facts(completed_ms=0), running_s=40)
    assert "no checkpoint was completed yet" in overdue.text


@pytest.mark.parametrize("state", [State.STARTING, State.RECOVERING, State.SILENT])
def test_what_can_not_be_judged_while_the_job_is_down_is_not_called_over(state: State) -> None:
    known = {CHECKPOINT: NOW_MS, RESTARTS: NOW_MS, RECOVERY: NOW_MS, SILENT: NOW_MS}
    closed = {message.kind for message in look(facts(state), known, running_s=None)}
    assert closed == (set() if state is State.SILENT else {SILENT})


def test_a_job_that_is_stopped_on_purpose_ends_its_incidents() -> None:
    known = {CHECKPOINT: NOW_MS, RESTARTS: NOW_MS}
    assert kinds(look(facts(State.STOPPED, restarts=[restart(1)] * 3), known, running_s=None)) == [
        (CHECKPOINT, False, True),
        (RESTARTS, False, True),
    ]


def test_a_red_check_is_over_when_it_passes_and_not_while_it_runs_again() -> None:
    name = "drills/numbers epochs_whole"
    (red,) = look(facts(checks={name: "epoch 7 lacks a row"}))
    assert red.text == "red check drills/numbers epochs_whole: epoch 7 lacks a row"
    known = {CHECK + name: seconds_ago(7200)}
    assert look(facts(unsure=frozenset({name})), known) == []
    (over,) = look(facts(), known)
    assert over.text == "over after 2 h: red check drills/numbers epochs_whole"


def test_long_texts_are_cut() -> None:
    (message,) = look(facts(State.FAILED, "x" * 5000))
    assert len(message.text) < 600 and message.text.endswith(" …")


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0 s"), (1500, "1.5 s"), (61_000, "61 s"), (180_000, "3 min"), (7_200_000, "2 h"), (172_800_000, "2 d")],
)
def test_durations_have_one_number(ms: int, text: str) -> None:
    assert in_words(ms) == text


@pytest.mark.parametrize("name", ["restarts", "within_s", "recovery_s", "checkpoint_age_s"])
def test_limits_that_would_never_or_always_alert_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is 0, but must be more than 0"):
        AlertLimits(**{name: 0})
