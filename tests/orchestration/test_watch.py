"""Goal: the sensor reports each checkpoint once, reports the job's health, and starts the job again if it is gone."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import msgspec
import pytest

from engine.core.paths import JobPaths
from engine.host.run_folder import LastHeartbeat, MasterExit
from engine.host.upgrade_record import UpgradeRecord
from engine.jobmaster.actions import Outcome
from engine.jobmaster.events import Aborted, AnyEvent, AttemptFailed, Claimed, Running
from engine.jobmaster.status import Checkpoints, JobStatus, SinkStatus
from engine.observe.client import JobClient
from engine.protocol.upgrading import Phase, Progress
from engine.snapshot.epoch_log import EpochLog
from engine.store.directory import DirectoryStore
from orchestration import streams, watch
from orchestration.lineage import lineage_of
from orchestration.pruning import prune
from orchestration.reporting import own_checkpoint
from orchestration.resources import metadata_of
from orchestration.spec import AlertLimits
from tests.orchestration.jobs import NUMBERS, FakeJob, Ticker, definitions, now_ms
from tests.seen import running

TABLE = NUMBERS.table_key("sums")
STATUS = running("numbers", {"out": SinkStatus(rows=30, watermark_ms=1_700_000_000_000, lag_ms=5)})


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeJob:
    monkeypatch.setattr(JobClient, "status", lambda self: STATUS)
    return FakeJob(tmp_path)


def metadata(events: list[Any], kind: type, key: dg.AssetKey = NUMBERS.checkpoints_key) -> list[dict[str, Any]]:
    found = [e for e in events if isinstance(e, kind) and e.asset_key == key]
    return [{name: v.value for name, v in e.metadata.items()} for e in found]


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
    assert [(m["epoch"], m["rows_read"], m["rows_committed"]) for m in first] == [("1", 100, 10), ("2", 150, 20)]
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
    assert second["epoch"] == "2" and second["rows_read"] == 200


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
    assert [(m["epoch"], m["rows_read"]) for m in found] == [("2", 20), ("3", 30)]


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
    job.completes(1, read=5, committed=5, at_ms=9 * 60_000)
    (again,) = metadata(ticker.tick().asset_events, dg.AssetMaterialization)
    assert again["epoch"] == "1" and again["rows_read"] == 5


def test_a_table_is_materialized_with_its_rows_watermark_and_lag(job: FakeJob, instance: dg.DagsterInstance) -> None:
    job.wanted()
    job.beats()
    job.completes(1, read=1, committed=1)
    (seen,) = [e for e in Ticker(job.store, instance).tick().asset_events if e.asset_key == TABLE]
    seen = {name: value.value for name, value in seen.metadata.items()}
    assert seen["rows"] == 1 and seen["new_rows"] == 1 and seen["lag_s"] > 0 and seen["watermark"] == 1_700_000_000.0


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


@pytest.mark.promise("F3")
def test_the_checkpoints_of_a_minute_are_one_event_with_each_of_them_in_its_table(
    job: FakeJob, instance: dg.DagsterInstance
) -> None:
    job.wanted()
    job.beats()
    for number in range(1, 7):
        job.completes(number, 100 * number, 10 * number, at_ms=60_000 + 9_000 * number, duration_ms=10.0 * number)
    job.completes(7, 1000, 100, at_ms=130_000)
    ticker = Ticker(job.store, instance)
    first, second = metadata(ticker.tick().asset_events, dg.AssetMaterialization)
    assert (first["checkpoints"], first["epoch"], first["duration_ms"]) == (6, "6", 60.0), "the slowest one is plotted"
    assert (first["rows_read"], first["rows_committed"], first["failed"]) == (600, 60, 0)
    rows = [record.data for record in first["each"].records] if hasattr(first["each"], "records") else first["each"]
    assert [row["duration_ms"] for row in rows] == [10.0, 20.0, 30.0, 40.0, 50.0, 60.0]
    assert (second["checkpoints"], second["rows_read"]) == (1, 400)


def test_a_minute_is_reported_when_it_is_over_and_whole(
    job: FakeJob, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.wanted()
    job.beats()
    minute = now_ms() // 60_000 * 60_000
    job.completes(1, read=1, committed=1, at_ms=minute)
    clock = minute + 1_000
    monkeypatch.setattr(watch.time, "time_ns", lambda: clock * 1_000_000)
    ticker = Ticker(job.store, instance)
    assert not metadata(ticker.tick().asset_events, dg.AssetMaterialization)
    job.completes(2, read=2, committed=2, at_ms=minute + 59_000)
    clock = minute + 69_000
    assert not metadata(ticker.tick().asset_events, dg.AssetMaterialization), "a line of it may still be under way"
    clock = minute + 70_000
    (whole,) = metadata(ticker.tick().asset_events, dg.AssetMaterialization)
    assert whole["checkpoints"] == 2


def test_a_checkpoint_that_a_run_has_reported_is_not_reported_again(job: FakeJob, instance: dg.DagsterInstance) -> None:
    job.wanted()
    job.beats()
    for number in (1, 2, 3):
        job.completes(number, read=10 * number, committed=number, at_ms=60_000 + number)
    client = JobClient(str(job.store), "numbers")
    event = own_checkpoint(instance, NUMBERS, client, 2)
    assert event is not None and event.metadata["rows_read"].value == 10
    instance.report_runless_asset_event(event)
    assert own_checkpoint(instance, NUMBERS, client, 2) is None, "nor by another run"
    (rest,) = metadata(Ticker(job.store, instance).tick().asset_events, dg.AssetMaterialization)
    assert (rest["checkpoints"], rest["rows_read"]) == (2, 20)


@pytest.mark.promise("F2")
def test_restarts_and_failed_checkpoints_reach_dagster_with_their_causes_once(
    job: FakeJob, instance: dg.DagsterInstance
) -> None:
    job.wanted()
    job.beats()
    notes: list[AnyEvent] = [
        Claimed(at_ms=60_000, generation=1),
        Aborted(at_ms=61_000, generation=1, checkpoint=4, why="expired", detail="it took 60 s"),
        AttemptFailed(at_ms=62_000, generation=1, attempt="1.1", cause="slot_lost", detail="slot 1: SIGKILL"),
        Running(at_ms=64_000, generation=1, attempt="1.2"),
    ]
    for note in notes:
        job.writes(msgspec.json.encode(note).decode() + "\n")
    job.completes(5, read=5, committed=5, at_ms=125_000)
    ticker = Ticker(job.store, instance)
    events = ticker.tick(keep_cursor=False).asset_events
    (restart,) = metadata(events, dg.AssetMaterialization, NUMBERS.restarts_key)
    assert (restart["restarts"], restart["recovery_ms"], restart["cause"]) == (1, 2000, "slot_lost")
    (failed,) = metadata(events, dg.AssetObservation)
    assert failed["failed"] == 1 and "it took 60 s" in failed["why_failed"]
    again = ticker.tick().asset_events
    assert not metadata(again, dg.AssetMaterialization, NUMBERS.restarts_key)
    assert not [event for event in again if event.asset_key == TABLE], "nor is a table"


def health_of(events: list[Any]) -> dg.AssetCheckEvaluation:
    (check,) = [e for e in events if isinstance(e, dg.AssetCheckEvaluation)]
    return check


def test_a_watermark_that_stands_still_while_records_are_read_makes_the_job_red(
    job: FakeJob, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.wanted()
    clock = now_ms()
    read = 0

    def status(self: JobClient) -> JobStatus:
        return msgspec.structs.replace(STATUS, read_rows={"a": read}, checkpoints=Checkpoints(None, 0, 0, None, []))

    monkeypatch.setattr(JobClient, "status", status)
    monkeypatch.setattr(watch.time, "time_ns", lambda: clock * 1_000_000)
    ticker = Ticker(job.store, instance)

    def tick_after(seconds: int) -> dg.AssetCheckEvaluation:
        nonlocal clock
        clock += 1000 * seconds
        job.folder.write_heartbeat(LastHeartbeat(clock, 1, "running"))
        return health_of(ticker.tick().asset_events)

    assert tick_after(1).passed
    assert tick_after(400).passed, "nothing was read: the source is idle"
    read = 1000
    assert not (late := tick_after(61)).passed and "watermark stands still" in (late.description or "")


def test_a_job_that_beats_but_completes_no_checkpoint_is_red(
    job: FakeJob, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.wanted()
    clock = now_ms()
    monkeypatch.setattr(watch.time, "time_ns", lambda: clock * 1_000_000)
    ticker = Ticker(job.store, instance)
    for seconds, red in ((0, False), (61, True)):  # its interval is a second: three of them, and half a minute
        clock += 1000 * seconds
        job.folder.write_heartbeat(LastHeartbeat(clock, 1, "running"))
        check = health_of(ticker.tick().asset_events)
        assert check.passed is not red and ("checkpoint overdue" in (check.description or "")) is red


def test_a_job_that_restarts_again_and_again_is_red_and_the_check_names_the_cause(
    job: FakeJob, instance: dg.DagsterInstance
) -> None:
    job.wanted()
    job.beats()
    job.writes(msgspec.json.encode(Claimed(at_ms=now_ms() - 60_000, generation=1)).decode() + "\n")
    for number in (3, 2, 1):
        at_ms, attempt = now_ms() - 1000 * number, f"1.{4 - number}"
        failed = AttemptFailed(at_ms=at_ms, generation=1, attempt=attempt, cause="slot_lost", detail="slot 1: SIGKILL")
        running = Running(at_ms=at_ms + 500, generation=1, attempt=attempt)
        job.writes("".join(msgspec.json.encode(note).decode() + "\n" for note in (failed, running)))
    check = health_of(Ticker(job.store, instance).tick().asset_events)
    assert not check.passed and "restart loop: 3 restarts" in (check.description or "")
    assert "slot 1: SIGKILL" in (check.description or "")


def test_a_store_that_is_full_makes_the_job_red(
    job: FakeJob, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.wanted()
    job.beats()
    limits = AlertLimits(store_free_mb=1e12)
    check = health_of(Ticker(job.store, instance, spec=dataclasses.replace(NUMBERS, alerts=limits)).tick().asset_events)
    assert not check.passed and "store full" in (check.description or "") and check.severity.value == "ERROR"


def test_what_the_sensor_reported_long_ago_is_deleted_but_the_newest(job: FakeJob, tmp_path: Path) -> None:
    (home := tmp_path / "home").mkdir()
    outputs = lineage_of(NUMBERS).outputs
    with dg.DagsterInstance.local_temp(str(home)) as instance:
        job.wanted()
        job.beats()
        for number in range(1, 31):
            job.completes(number, read=number, committed=number)
        Ticker(job.store, instance).tick()

        def kept() -> dict[str, int]:
            keys = (NUMBERS.checkpoints_key, TABLE)
            return {k.path[0]: len(instance.fetch_materializations(k, limit=99).records) for k in keys}

        found = instance.fetch_materializations(NUMBERS.checkpoints_key, limit=99).records
        assert len(found) == 30 and prune(instance, NUMBERS, outputs, now_ms()) == 0, "they are new"
        in_eight_days = now_ms() + 8 * 86_400_000
        assert prune(instance, NUMBERS, outputs, in_eight_days) == 29
        assert kept() == {"checkpoints": 1, "tables": 1}
        latest = instance.get_latest_materialization_event(NUMBERS.checkpoints_key)
        assert metadata_of(latest)["epoch"] == "30"
