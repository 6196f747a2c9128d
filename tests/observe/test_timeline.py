"""Checkpoints and restarts, put together from events: the same while they happen and when they are read later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.jobmaster.events import AnyEvent, OperatorFigures, SubtaskFigures
from engine.jobmaster.figures import Rates
from engine.jobmaster.status import CheckpointStatus
from engine.observe.history import History
from engine.observe.timeline import JOBMASTER_LOST, Timeline
from engine.protocol.messages import SubtaskTotals
from tests.observe.answering import NAME, AnsweringRun
from tests.seen import completed


def event(at_ms: int, kind: str, generation: int = 1, **data: Any) -> AnyEvent:
    return msgspec.convert({"at_ms": at_ms, "generation": generation, "kind": kind, **data}, AnyEvent)


def begun(generation: int = 1, at_ms: int = 0) -> list[AnyEvent]:
    attempt = f"{generation}.1"
    return [
        event(at_ms, "claimed", generation),
        event(at_ms + 5, "deploying", generation, attempt=attempt, epoch=None),
        event(at_ms + 10, "running", generation, attempt=attempt),
    ]


@pytest.mark.promise("F3")
def test_a_completed_checkpoint_tells_where_its_time_went_by_operator_and_subtask(tmp_path: Path) -> None:
    run = AnsweringRun(tmp_path)
    run.run()
    complete = [c for c in run.timeline.checkpoints if c.status is CheckpointStatus.COMPLETED]
    assert [c.epoch for c in complete] == [3, 2, 1] and complete[0].final
    detail = msgspec.to_builtins(complete[0].with_parts())
    assert [vertex["vertex"] for vertex in detail["vertices"]] == ["views", "pv"]
    source, windows = detail["vertices"]
    assert [subtask["subtask"] for subtask in windows["subtasks"]] == [0, 1]
    assert "views" in source["operators"] and windows["operators"].keys() >= {"pv", "out"}
    for figures in (detail, source, *windows["subtasks"]):
        assert figures["state_bytes"] >= 0
        assert all(figures[name] >= 0 for name in ("start_delay_ms", "alignment_ms", "sync_ms", "async_ms"))
    assert detail["duration_ms"] >= detail["async_ms"] > 0, "a turn of this clock is a millisecond"
    parts = [vertex.state_bytes for vertex in complete[1].with_parts().vertices]
    assert sum(parts) == complete[1].state_bytes


def test_a_vertex_has_the_longest_times_and_the_sum_of_the_bytes_of_its_subtasks() -> None:
    subtasks = [
        SubtaskFigures("pv", 0, 1.0, 2.0, 3.0, 9.0, 100, {"pv": OperatorFigures(3.0, 9.0, 100)}),
        SubtaskFigures("pv", 1, 4.0, 1.0, 5.0, 6.0, 30, {"pv": OperatorFigures(5.0, 6.0, 30)}),
    ]
    timeline = Timeline([*begun(), completed(1, {}, subtasks=subtasks)])
    (vertex,) = timeline.checkpoints[0].with_parts().vertices
    assert (vertex.start_delay_ms, vertex.alignment_ms, vertex.sync_ms, vertex.async_ms) == (4.0, 2.0, 5.0, 9.0)
    assert vertex.state_bytes == 130 and vertex.operators == {"pv": OperatorFigures(5.0, 9.0, 130)}


@pytest.mark.promise("F3")
def test_who_reads_the_history_later_sees_what_was_seen_at_the_time(tmp_path: Path) -> None:
    run = AnsweringRun(tmp_path)
    run.run()
    later = Timeline(History(tmp_path, NAME).events())
    assert later.checkpoints == run.timeline.checkpoints
    assert later.restarts == run.timeline.restarts


@pytest.mark.promise("F3")
def test_a_restart_has_its_cause_and_how_long_it_took(tmp_path: Path) -> None:
    run = AnsweringRun(tmp_path)
    run.run()
    (restart,) = run.timeline.restarts
    assert restart.cause == "slot_lost" and restart.slot is not None and "killed by a Crash" in restart.detail
    assert restart.attempt == "1.1" and restart.recovery_ms is not None and restart.recovery_ms >= 10
    assert run.timeline.restarts_since_start == 1


def test_a_failure_names_the_operator_even_where_it_is_not_the_users_function() -> None:
    timeline = Timeline(
        [
            *begun(),
            event(
                50,
                "attempt_failed",
                attempt="1.1",
                cause="runtime",
                detail="x",
                uid="pv",
                vertex="pv",
                subtask=1,
                slot=None,
            ),
        ]
    )
    (restart,) = timeline.restarts
    assert (restart.uid, restart.subtask, restart.text) == ("pv", 1, "a subtask failed")


@pytest.mark.promise("F2", "F3")
def test_a_jobmaster_that_died_is_a_restart_and_ends_what_it_had_triggered() -> None:
    timeline = Timeline(
        [
            *begun(),
            event(20, "triggered", checkpoint=1, attempt="1.1"),
            event(30, "published", checkpoint=1, epoch=1),
            event(40, "triggered", checkpoint=2, attempt="1.1"),
            event(900, "claimed", 2, last_seen_ms=50),
            event(905, "deploying", 2, attempt="2.1", epoch=1),
            event(950, "running", 2, attempt="2.1"),
        ]
    )
    (restart,) = timeline.restarts
    assert (restart.cause, restart.attempt, restart.at_ms, restart.recovery_ms) == (JOBMASTER_LOST, "1.1", 50, 900)
    second, first = timeline.checkpoints
    assert first.status is CheckpointStatus.COMPLETED and first.epoch == 1, "restoring has committed it"
    assert second.status is CheckpointStatus.ABORTED and second.why == JOBMASTER_LOST


def test_what_a_replaced_jobmaster_still_says_changes_nothing() -> None:
    timeline = Timeline([*begun(1), *begun(2, at_ms=100)])
    timeline.add(event(120, "stopped", 1, outcome="fenced", reason="another JobMaster runs this job"))
    timeline.add(event(130, "attempt_failed", 1, attempt="1.1", cause="slot_lost", detail="its slots are gone"))
    assert timeline.ended_at_ms is None and len(timeline.restarts) == 1


def test_a_job_that_was_cancelled_and_started_again_was_not_restarted() -> None:
    timeline = Timeline(
        [*begun(1), event(50, "stopped", outcome="cancelled", reason="cancelled"), *begun(2, at_ms=100)]
    )
    assert not timeline.restarts and timeline.started_at_ms == 100 and timeline.ended_at_ms is None


def test_a_failure_after_which_nothing_ran_is_listed_but_no_restart() -> None:
    timeline = Timeline(
        [
            *begun(),
            event(50, "attempt_failed", attempt="1.1", cause="slot_lost", detail="gone"),
            event(50, "stopped", outcome="failed", reason="gone"),
            *begun(2, at_ms=90_000),
        ]
    )
    (failure,) = timeline.restarts
    assert failure.recovery_ms is None and timeline.restarts_since_start == 0


def test_the_end_of_a_job_ends_the_checkpoints_that_were_under_way() -> None:
    timeline = Timeline(
        [
            *begun(),
            event(20, "triggered", checkpoint=1, attempt="1.1"),
            event(50, "stopped", outcome="cancelled", reason="cancelled"),
        ]
    )
    (record,) = timeline.checkpoints
    assert (record.status, record.detail, record.ended_at_ms) == (CheckpointStatus.ABORTED, "the job ended", 50)


@pytest.mark.promise("D4", "F3")
def test_an_aborted_checkpoint_keeps_its_reason_and_its_number_may_come_again() -> None:
    timeline = Timeline(
        [
            *begun(),
            event(20, "triggered", checkpoint=7, attempt="1.1"),
            event(90, "aborted", checkpoint=7, why="expired", detail="no acknowledgement from pv[1]"),
            event(200, "triggered", 2, checkpoint=7, attempt="2.1"),
        ]
    )
    again, first = timeline.checkpoints
    assert (first.status, first.why, first.duration_ms) == (CheckpointStatus.ABORTED, "expired", 70)
    assert timeline.checkpoint(7) is again and again.attempt == "2.1"


@pytest.mark.promise("E2", "F3")
def test_rates_are_of_the_last_seconds_and_begin_anew_with_a_deployment() -> None:
    def totals(rows: int, busy: float, idle: float) -> dict[str, SubtaskTotals]:
        return {"a[0]": SubtaskTotals(rows_in=rows, busy_ms=busy, idle_ms=idle)}

    rates = Rates()
    rates.add(totals(0, 0, 0), 0)
    assert rates.of("a[0]") is None and rates.of("b[0]") is None
    for second in range(1, 11):
        rows = 1000 * second if second <= 4 else 4000 + 200 * (second - 4)
        rates.add(totals(rows, 250.0 * second, 750.0 * second), 1000.0 * second)
    rate = rates.of("a[0]")
    assert rate is not None and rate.rows_in_per_s == 200, "the fast beginning is long ago"
    assert (rate.busy, rate.back_pressured, rate.idle) == (0.25, 0.0, 0.75)
    rates.add(totals(50, 10, 0), 10_500)
    assert rates.of("a[0]") is None
