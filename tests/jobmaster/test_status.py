"""The status of a vertex is put together from what its subtasks report."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.api import StreamEnvironment
from engine.cli.liveview import lost_line
from engine.connectors.table import TableSink
from engine.jobmaster.status import VertexStatus, describe_vertex, guarantee
from engine.observe.metrics import exposition
from engine.protocol import ledger
from engine.protocol.config import CheckpointingMode
from engine.protocol.messages import SubtaskTotals
from engine.protocol.signals import MAX_WATERMARK, MIN_WATERMARK
from engine.testing import ListSource, run
from tests.observe.answering import AnsweringRun, view

WALL_MS = 10_000


def windows(folder: Path, first: SubtaskTotals, second: SubtaskTotals) -> VertexStatus:
    """Returns the status of a vertex of two subtasks that counted from zero to these totals within a second."""
    master = AnsweringRun(folder).master
    master.totals = {"pv[0]": first, "pv[1]": second}
    master.rates.add(dict.fromkeys(master.totals, SubtaskTotals()), 0.0)
    master.rates.add(master.totals, 1000.0)
    return describe_vertex(master, "pv", WALL_MS)


@pytest.mark.promise("E2", "F3")
def test_a_vertex_is_as_late_as_its_latest_subtask(tmp_path: Path) -> None:
    vertex = windows(tmp_path, SubtaskTotals(watermark_ms=4000), SubtaskTotals(watermark_ms=9000))
    assert [(s.watermark_ms, s.lag_ms) for s in vertex.subtasks] == [(4000, 6000), (9000, 1000)]
    assert (vertex.watermark_ms, vertex.lag_ms) == (4000, 6000)


def test_a_vertex_has_no_watermark_before_all_its_subtasks_have_one(tmp_path: Path) -> None:
    vertex = windows(tmp_path, SubtaskTotals(watermark_ms=4000), SubtaskTotals(watermark_ms=MIN_WATERMARK))
    assert [s.lag_ms for s in vertex.subtasks] == [6000, None]
    assert (vertex.watermark_ms, vertex.lag_ms) == (None, None)


def test_the_end_of_time_is_not_shown_as_a_watermark(tmp_path: Path) -> None:
    ended = SubtaskTotals(watermark_ms=MAX_WATERMARK)
    vertex = windows(tmp_path, ended, ended)
    assert [(s.watermark_ms, s.lag_ms) for s in (vertex, *vertex.subtasks)] == [(None, None)] * 3


@pytest.mark.promise("E2", "F3")
def test_rows_of_subtasks_are_added_and_their_shares_of_time_are_averaged(tmp_path: Path) -> None:
    vertex = windows(
        tmp_path,
        SubtaskTotals(rows_in=10, rows_out=4, busy_ms=1000.0),
        SubtaskTotals(rows_in=30, rows_out=6, back_pressured_ms=400.0, idle_ms=600.0),
    )
    assert (vertex.rows_in, vertex.rows_out, vertex.rows_in_per_s, vertex.rows_out_per_s) == (40, 10, 40.0, 10.0)
    assert (vertex.busy_ms, vertex.back_pressured_ms, vertex.idle_ms) == (1000.0, 400.0, 600.0)
    assert (vertex.busy, vertex.back_pressured, vertex.idle) == (0.5, 0.2, 0.3)


def test_a_vertex_has_finished_when_all_its_subtasks_have(tmp_path: Path) -> None:
    done, busy = SubtaskTotals(finished=True), SubtaskTotals()
    assert not windows(tmp_path, done, busy).finished and windows(tmp_path, done, done).finished


@pytest.mark.parametrize(
    ("mode", "printed", "says"),
    [
        (CheckpointingMode.EXACTLY_ONCE, False, "exactly once"),
        (CheckpointingMode.EXACTLY_ONCE, True, "at least once"),
        (CheckpointingMode.AT_LEAST_ONCE, False, "at least once"),
    ],
)
def test_a_job_guarantees_what_the_weakest_of_engine_and_sinks_does(
    mode: CheckpointingMode, printed: bool, says: str
) -> None:
    env = StreamEnvironment(parallelism=1)
    env.enable_checkpointing("1 s", mode=mode)
    rows = env.from_elements([{"x": 1}], "x long", uid="rows")
    rows.sink_to(TableSink("t"), uid="out")
    if printed:
        rows.print(uid="printed")
    assert guarantee(env.graph.translate("job", env.checkpoints, env.restart, env.max_parallelism, "")) == says


@pytest.mark.promise("A5")
def test_counters_and_gauges_of_functions_are_shown_by_operator(tmp_path: Path) -> None:
    answering = AnsweringRun(tmp_path)
    answering.master._publisher.ledger = {ledger.user_count("pv", "seen: all"): 3, ledger.user_count("gone", "x"): 1}
    answering.master.totals["pv[1]"] = SubtaskTotals(gauges={"pv": {"held": 2.5}})
    status = answering.status()
    assert status.user_counts == {"pv": {"seen: all": 3}}
    text = exposition(status).decode()
    assert 'weir_user_count_total{job="test",name="seen: all",operator="pv"} 3.0' in text
    assert 'weir_user_gauge{job="test",name="held",operator="pv",subtask="1"} 2.5' in text


def test_rows_that_windows_dropped_are_shown_by_operator(tmp_path: Path) -> None:
    answering = AnsweringRun(tmp_path)
    assert answering.status().late_rows == {}
    answering.master._publisher.ledger = {
        ledger.late_rows("pv"): 3,
        ledger.untimed_rows("pv"): 4,
        ledger.failed_rows("pv"): 5,
    }
    status = answering.status()
    assert (status.late_rows, status.untimed_rows, status.failed_rows) == ({"pv": 3}, {"pv": 4}, {"pv": 5})
    assert lost_line(status) == (
        "rows late, dropped by pv: 3; rows without an event time, dropped by pv: 4; "
        "rows that could not be processed, left out by pv: 5"
    )
    text = exposition(status).decode()
    assert 'weir_late_rows_total{job="test",operator="pv"} 3.0' in text
    assert 'weir_untimed_rows_total{job="test",operator="pv"} 4.0' in text
    assert 'weir_failed_rows_total{job="test",operator="pv"} 5.0' in text


def test_a_finished_job_that_is_started_again_says_that_there_is_nothing_new() -> None:
    def job(env: StreamEnvironment) -> None:
        env.from_source(ListSource([view("a", 1), view("b", 2)]), "app string, ts long", uid="views").print(uid="out")

    first = run(job)
    assert first.ended is not None and "all records are processed" in first.ended.reason
    again = run(job, after=first)
    assert again.ended is not None and again.ended.reason.startswith(
        "nothing new: its sources were read to their ends in epoch 1"
    )


def test_rows_read_malformed_and_committed_are_those_of_the_newest_epoch(tmp_path: Path) -> None:
    run = AnsweringRun(tmp_path)
    totals = {ledger.source_rows("views"): 9, ledger.malformed_rows("views"): 2, ledger.sink_rows("out"): 5}
    run.master._publisher.ledger = totals
    status = run.status()
    assert (status.read_rows, status.malformed_rows) == ({"views": 9}, {"views": 2})
    assert status.committed_rows == {"out": 5} and status.sinks["out"].rows == 5


def test_the_epoch_of_a_job_is_its_newest_and_0_before_the_first(tmp_path: Path) -> None:
    run = AnsweringRun(tmp_path)
    assert run.status().epoch == 0
    run.run(until=lambda: run.master.stats.checkpoints_completed == 1)
    assert run.status().epoch == run.epochs == 1


def test_the_uptime_of_a_job_begins_when_it_runs(tmp_path: Path) -> None:
    run = AnsweringRun(tmp_path)
    assert run.status().uptime_ms is None and not run.status().running
    run.run(until=lambda: run.master.stats.checkpoints_completed == 1)
    assert run.status().running and run.master.stats.running_since_ms is not None
    assert run.status().uptime_ms == run.wall_ms() - run.master.stats.running_since_ms
