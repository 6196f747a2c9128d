"""The status of a vertex is put together from what its subtasks report."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.api import StreamEnvironment
from engine.connectors.table import TableSink
from engine.jobmaster.status import VertexStatus, describe_vertex, guarantee
from engine.protocol import ledger
from engine.protocol.config import CheckpointingMode
from engine.protocol.messages import SubtaskTotals
from engine.protocol.signals import MAX_WATERMARK, MIN_WATERMARK
from tests.observe.answering import AnsweringRun

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
