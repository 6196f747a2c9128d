"""Goal: the sensor reports each checkpoint once, reports the job's health, and starts the job again if it is gone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import msgspec
import pytest

from engine.core.paths import JobPaths
from engine.host.run_folder import MasterExit
from engine.host.upgrade_record import UpgradeRecord
from engine.jobmaster.actions import Outcome
from engine.jobmaster.status import SinkStatus
from engine.observe.client import JobClient
from engine.protocol.upgrading import Phase, Progress
from engine.snapshot.epoch_log import EpochLog
from engine.store.directory import DirectoryStore
from orchestration import streams, watch
from tests.orchestration.jobs import NUMBERS, FakeJob, Ticker, definitions
from tests.seen import running

STATUS = running("numbers", {"out": SinkStatus(rows=30, watermark_ms=1_700_000_000_000, lag_ms=5)})


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeJob:
    monkeypatch.setattr(JobClient, "status", lambda self: STATUS)
    return FakeJob(tmp_path)


def metadata(events: list[Any], kind: type) -> list[dict[str, Any]]:
    return [{name: v.value for name, v in e.metadata.items()} for e in events if isinstance(e, kind)]


def test_a_job_that_was_never_started_is_left_alone(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    result = Ticker(tmp_path, instance).tick()
    assert not result.asset_events and not result.run_requests and "never started" in result.skip_message


@pytest.mark.promise("F3")
def test_each_completed_checkpoint_is_one_materialization_with_numbers_that_plot(
    job: FakeJob, instance: dg.DagsterInstance
) -> None:
    job.wanted()
    job.beats()
    job.completes(1, read=100, committed=10)
    job.writes('{"kind": "restarting", "at_ms": 1}\n')
    job.completes(2, read=250, committed=30)
    first = metadata(Ticker(job.store, instance).tick().asset_events, dg.AssetMaterialization)
    assert [(m["checkpoint"], m["rows_read"], m["rows_committed"]) for m in first] == [("1", 100, 10), ("2", 150, 20)]
    for name in ("duration_ms", "state_bytes", "alignment_ms", "sync_ms", "async_ms", "rows_read", "rows_committed"):
        assert isinstance(first[0][name], int | float), name


def test_what_was_reported_is_not_reported_again_even_if_the_cursor_was_lost(
    job: FakeJob, instance: dg.DagsterInstance
) -> None:
    job.wanted()
    job.beats()
    job.completes(1, read=100, committed=10)
    ticker = Ticker(job.store, instance)
    assert len(metadata(ticker.tick(keep_cursor=False).asset_events, dg.AssetMaterialization)) == 1
    assert not metadata(ticker.tick().asset_events, dg.AssetMaterialization)
    job.completes(2, read=300, committed=20)
    (second,) = metadata(ticker.tick().asset_events, dg.AssetMaterialization)
    assert second["checkpoint"] == "2" and second["rows_read"] == 200


def test_a_line_that_is_still_being_written_waits_for_its_end(job: FakeJob, instance: dg.DagsterInstance) -> None:
    job.wanted()
    job.beats()
    ticker = Ticker(job.store, instance)
    job.completes(1, read=1, committed=1)
    whole = job.history.read_text()
    job.history.write_text(whole + whole[:20])
    assert len(metadata(ticker.tick().asset_events, dg.AssetMaterialization)) == 1
    job.history.write_text(whole + "torn by a crash\n")
    job.completes(2, read=2, committed=2)
    assert len(metadata(ticker.tick().asset_events, dg.AssetMaterialization)) == 1


def test_a_backlog_comes_in_portions(
    job: FakeJob, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "MOST_A_TICK", 3)
    job.wanted()
    job.beats()
    for number in range(1, 8):
        job.completes(number, read=number * 10, committed=number)
    ticker = Ticker(job.store, instance)
    ticks = [metadata(ticker.tick().asset_events, dg.AssetMaterialization) for _ in range(4)]
    assert [len(tick) for tick in ticks] == [3, 3, 1, 0]
    assert [m["rows_read"] for tick in ticks for m in tick] == [10] * 7


def test_history_that_begins_a_new_file_between_two_ticks_is_read_on(
    job: FakeJob, instance: dg.DagsterInstance
) -> None:
    job.wanted()
    job.beats()
    job.completes(1, read=10, committed=1)
    ticker = Ticker(job.store, instance)
    ticker.tick()
    job.completes(2, read=30, committed=2)
    job.history.rename(job.history.with_name("events.jsonl.1"))
    job.completes(3, read=60, committed=3)
    found = metadata(ticker.tick().asset_events, dg.AssetMaterialization)
    assert [(m["checkpoint"], m["rows_read"]) for m in found] == [("2", 20), ("3", 30)]


def test_of_an_old_job_whose_first_checkpoints_are_not_kept_the_first_one_read_has_no_rows(
    job: FakeJob, instance: dg.DagsterInstance
) -> None:
    job.wanted()
    job.beats()
    job.completes(7, read=1000, committed=100)
    job.completes(8, read=1010, committed=101)
    first, second = metadata(Ticker(job.store, instance).tick().asset_events, dg.AssetMaterialization)
    assert "rows_read" not in first and second["rows_read"] == 10


def test_a_job_that_was_deleted_and_begun_anew_is_read_from_its_beginning(
    job: FakeJob, instance: dg.DagsterInstance
) -> None:
    job.wanted()
    job.beats()
    for number in (1, 2, 3):
        job.completes(number, read=number, committed=number)
    ticker = Ticker(job.store, instance)
    ticker.tick()
    job.history.unlink()
    job.completes(1, read=5, committed=5, completed_at_ms=9000)
    (again,) = metadata(ticker.tick().asset_events, dg.AssetMaterialization)
    assert again["checkpoint"] == "1" and again["rows_read"] == 5


def test_the_sinks_are_observed_with_rows_watermark_and_lag(job: FakeJob, instance: dg.DagsterInstance) -> None:
    job.wanted()
    job.beats()
    job.completes(1, read=1, committed=1)
    (seen,) = metadata(Ticker(job.store, instance).tick().asset_events, dg.AssetObservation)
    assert seen["rows"] == 30 and seen["lag_s"] > 0 and seen["watermark"] == 1_700_000_000.0


@pytest.mark.parametrize(
    ("age_s", "phase", "passed", "severity"),
    [(0, "running", True, "ERROR"), (0, "restarting", False, "WARN"), (40, "running", False, "ERROR")],
)
def test_health_is_a_check_of_the_stream(
    job: FakeJob, instance: dg.DagsterInstance, age_s: float, phase: str, passed: bool, severity: str
) -> None:
    job.wanted()
    job.beats(age_s, phase)
    launched = job.folder.read_desired()
    assert launched is not None
    job.folder._write_desired(type(launched)(True, job.launch, "cli", launched.at_ms - 3_600_000))
    (check,) = [e for e in Ticker(job.store, instance).tick().asset_events if isinstance(e, dg.AssetCheckEvaluation)]
    assert check.asset_key == NUMBERS.stream_key and check.check_name == "healthy"
    assert (check.passed, check.severity.value) == (passed, severity)


def test_a_green_check_is_said_again_every_minute_and_a_change_at_once(
    job: FakeJob, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.wanted()
    ticker = Ticker(job.store, instance)

    def said() -> list[bool]:
        return [e.passed for e in ticker.tick().asset_events if isinstance(e, dg.AssetCheckEvaluation)]

    assert said() == [], "it starts: neither good nor bad"
    job.beats()
    assert said() == [True] and said() == []
    job.beats(phase="restarting")
    assert said() == [False] and said() == []
    monkeypatch.setattr(watch, "SAY_AGAIN_MS", 0)
    job.beats()
    assert said() == [True] and said() == [True]


def test_a_job_that_should_run_and_is_gone_is_started_again_as_it_was(
    job: FakeJob, instance: dg.DagsterInstance
) -> None:
    job.wanted()
    job.folder.write_exit(MasterExit(Outcome.CANCELLED, "cancelled"), job.launch)
    ticker = Ticker(job.store, instance)
    (request,) = ticker.tick().run_requests
    config = request.run_config["ops"]["streams__numbers"]["config"]
    assert config["params"] == {"rate": "7"} and config["parallelism"] == 3 and config["store"] == str(job.store)
    (again,) = ticker.tick().run_requests
    assert again.run_key == request.run_key, "one run for one death"


@pytest.mark.promise("D8", "F2")
def test_a_job_that_is_gone_in_the_middle_of_an_upgrade_is_not_started_plainly(
    job: FakeJob, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain start left the upgrade without a way back, and ran the files instead of the code of the last start."""
    plain: list[str] = []
    monkeypatch.undo()  # nobody answers
    monkeypatch.setattr(streams, "plan_launch", lambda options, store: plain.append(options.path))
    job.launch = msgspec.structs.replace(job.launch, path="no.such.module:job", id="0d", code="/nowhere/0a.zip")
    job.wanted()
    job.folder.write_exit(MasterExit(Outcome.CANCELLED, "its supervisor has died"), job.launch)
    start = msgspec.structs.replace(job.launch, id="0a")
    job.folder.write_upgrade(
        UpgradeRecord(
            id="1f",
            progress=Progress(Phase.STARTING, 1),
            old=start,
            new=msgspec.structs.replace(start, id="0b"),
            back=msgspec.structs.replace(start, id="0c"),
            savepoint="upgrade-1f",
            by="dagster",
            began_ms=0,
            changed_ms=0,
        )
    )
    log = EpochLog(DirectoryStore(job.store), JobPaths("numbers"))
    assert log.claim("a JobMaster") is not None
    (request,) = Ticker(job.store, instance).tick().run_requests
    found = definitions(job.store).resolve_job_def("numbers_start")
    done = found.execute_in_process(instance=instance, raise_on_error=False, run_config=request.run_config)
    assert not done.success and plain == []
    (failed,) = [event for event in done.all_events if event.event_type_value == "STEP_FAILURE"]
    assert "there is no module 'no.such.module'" in str(failed.step_failure_data.user_failure_data.description)
    record = job.folder.read_upgrade()
    assert record is not None and record.progress.phase is Phase.KEPT, "somebody else has started it since: it is over"


def test_a_job_that_was_stopped_on_purpose_is_not_started_again(job: FakeJob, instance: dg.DagsterInstance) -> None:
    job.wanted()
    job.folder.want_stopped("cli")
    ticker = Ticker(job.store, instance)
    first, second = ticker.tick(), ticker.tick()
    assert not first.run_requests and len(first.asset_events) == 1, "that it is stopped is said once"
    assert not second.asset_events
