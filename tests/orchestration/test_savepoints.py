"""Goal: runs in Dagster take savepoints, keep as many as the spec says, and stop a job. The job's answers are faked."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import dagster as dg
import pytest

from engine.core.errors import NotRunning, StoreError, WeirError
from engine.host.run_folder import MasterExit
from engine.jobmaster.actions import Outcome
from engine.observe.client import JobClient
from engine.observe.savepoints import SavepointRecord, SavepointState
from engine.process.from_savepoint import delete_savepoint
from orchestration import savepoints
from orchestration.resources import WeirStore
from tests.orchestration.jobs import NUMBERS, FakeJob, definitions
from tests.seen import running as running_status

SPEC = dataclasses.replace(NUMBERS, savepoint_cron="0 2 * * *", savepoints_kept=2)


class Savepoints:
    """The savepoints of a job that answers."""

    def __init__(self) -> None:
        self.records: list[SavepointRecord] = []
        self.asked: list[tuple[str | None, str | None]] = []
        self.deleted: list[str] = []

    def take(self, name: str, state: SavepointState = SavepointState.COMPLETED, **over: Any) -> SavepointRecord:
        record = SavepointRecord(
            savepoint=name, place=f"/store/{name}", state=state, bytes=10, epoch=5, duration_ms=7.0
        )
        self.records.insert(0, record)
        return record


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Savepoints:
    found = Savepoints()

    def savepoint(client: JobClient, name: str | None = None, to: str | None = None) -> str:
        found.asked.append((name, to))
        return found.take(name or "by-hand").savepoint

    def delete(store: str, place: str) -> None:
        found.deleted.append(place)
        found.records = [record for record in found.records if record.place != place]

    monkeypatch.setattr(JobClient, "savepoint", savepoint)
    monkeypatch.setattr(JobClient, "savepoints", lambda client: list(found.records))
    monkeypatch.setattr(JobClient, "wait_for_savepoint", lambda client, name, timeout_s: found.records[0])
    monkeypatch.setattr(JobClient, "status", lambda client: running_status("numbers"))
    monkeypatch.setattr(savepoints, "delete_savepoint", delete)
    return found


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


def execute(store: Path, instance: dg.DagsterInstance, job: str, op: str, config: dict[str, Any] | None = None) -> Any:
    found = definitions(store, SPEC).resolve_job_def(job)
    ops = {"ops": {op: {"config": config}}} if config is not None else None
    return found.execute_in_process(instance=instance, raise_on_error=False, run_config=ops)


def metadata(instance: dg.DagsterInstance) -> dict[str, Any]:
    event = instance.get_latest_materialization_event(SPEC.savepoints_key)
    assert event is not None and event.asset_materialization is not None
    return {name: value.value for name, value in event.asset_materialization.metadata.items()}


@pytest.mark.promise("D5", "F1")
def test_a_savepoint_is_a_materialization_with_size_epoch_and_duration(
    tmp_path: Path, held: Savepoints, instance: dg.DagsterInstance
) -> None:
    config = {"name": "before-v2", "to": "/backups"}
    assert execute(tmp_path, instance, "numbers_savepoint", "savepoints__numbers", config).success
    assert held.asked == [("before-v2", "/backups")]
    said = metadata(instance)
    assert (said["savepoint"], said["epoch"], said["bytes"], said["duration_ms"]) == ("before-v2", "5", 10, 7.0)
    assert said["place"] == "/store/before-v2"


@pytest.mark.promise("D5")
def test_the_oldest_savepoints_of_the_schedule_are_deleted_and_those_of_users_never(
    tmp_path: Path, held: Savepoints, instance: dg.DagsterInstance
) -> None:
    held.take("scheduled-1")
    held.take("mine")
    held.take("scheduled-2", SavepointState.FAILED)
    held.take("scheduled-3")
    config = {"name": "scheduled-4"}
    assert execute(tmp_path, instance, "numbers_savepoint", "savepoints__numbers", config).success
    assert held.deleted == ["/store/scheduled-1"]
    assert metadata(instance)["deleted"] == 1
    assert {record.savepoint for record in held.records} == {"scheduled-4", "scheduled-3", "scheduled-2", "mine"}


@pytest.mark.promise("D5")
def test_an_old_savepoint_that_can_not_be_deleted_is_told_and_the_new_one_is_a_materialization(
    tmp_path: Path, held: Savepoints, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    def delete(store: str, place: str) -> None:
        if place == "/store/scheduled-2":
            raise StoreError("no connection to the server")
        held.deleted.append(place)

    monkeypatch.setattr(savepoints, "delete_savepoint", delete)
    for number in (1, 2, 3):
        held.take(f"scheduled-{number}")
    config = {"name": "scheduled-4"}
    assert execute(tmp_path, instance, "numbers_savepoint", "savepoints__numbers", config).success
    assert held.deleted == ["/store/scheduled-1"]
    said = metadata(instance)
    assert (said["savepoint"], said["deleted"]) == ("scheduled-4", 1)


@pytest.mark.promise("D5", "F1")
def test_the_schedule_names_its_savepoints_by_their_time_and_skips_while_the_job_does_not_run(
    tmp_path: Path, held: Savepoints
) -> None:
    job = FakeJob(tmp_path)
    job.wanted()
    job.beats()
    repository = definitions(tmp_path, SPEC).get_repository_def()
    schedule = repository.get_schedule_def("numbers_savepoints")
    at = dt.datetime(2026, 11, 17, 2, tzinfo=dt.UTC)

    def tick(instance: dg.DagsterInstance) -> Any:
        weir = {"weir": WeirStore(path=str(tmp_path))}
        with dg.build_schedule_context(
            instance, repository_def=repository, resources=weir, scheduled_execution_time=at
        ) as context:
            return schedule.evaluate_tick(context)

    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        (request,) = tick(instance).run_requests
        assert request.run_config["ops"]["savepoints__numbers"]["config"]["name"] == "scheduled-20261117-020000"
        job.folder.want_stopped("cli")
        assert "stopped on purpose" in tick(instance).skip_message


@pytest.mark.promise("D6", "F1")
def test_a_stop_leaves_its_savepoint_as_a_materialization(
    tmp_path: Path, held: Savepoints, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, ...]] = []

    def stop(client: JobClient, *given: Any) -> str:
        asked.append(given)
        return held.take("last").savepoint

    monkeypatch.setattr(JobClient, "stop", stop)
    end = MasterExit(Outcome.STOPPED, "behind epoch 5")
    monkeypatch.setattr(JobClient, "wait_until_stopped", lambda client, timeout_s: end)
    assert execute(tmp_path, instance, "numbers_stop", "stop_numbers", {"drain": True}).success
    assert asked == [(True, True, None, None)] and metadata(instance)["savepoint"] == "last"


def test_a_stop_that_fails_fails_the_run_and_says_that_the_job_goes_on(
    tmp_path: Path, held: Savepoints, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    def goes_on(client: JobClient, timeout_s: float) -> MasterExit:
        raise WeirError("job 'numbers' is not stopped and goes on: no space")

    monkeypatch.setattr(JobClient, "stop", lambda client, *given: "last")
    monkeypatch.setattr(JobClient, "wait_until_stopped", goes_on)
    result = execute(tmp_path, instance, "numbers_stop", "stop_numbers")
    (event,) = [e for e in result.all_events if e.event_type_value == "STEP_FAILURE"]
    assert "goes on: no space" in event.step_failure_data.user_failure_data.description


def test_stopping_what_does_not_run_succeeds(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_running(client: JobClient, *given: Any) -> str:
        raise NotRunning("it is not running")

    monkeypatch.setattr(JobClient, "stop", not_running)
    assert execute(tmp_path, instance, "numbers_stop", "stop_numbers").success


class Deleted(NamedTuple):
    name: str
    job: str = "numbers"
    state_bytes: int = 10


@pytest.mark.promise("D5", "F1")
@pytest.mark.parametrize("named", ["mine", "/store/mine"])
def test_a_savepoint_is_deleted_by_its_name_or_its_place(
    tmp_path: Path, held: Savepoints, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    deleted: list[str] = []

    def delete(store: str, place: str) -> tuple[str, Deleted]:
        deleted.append(place)
        return place, Deleted("mine")

    monkeypatch.setattr(savepoints, "delete_savepoint", delete)
    held.take("other")
    held.take("mine")
    op = "delete_savepoint_numbers"
    assert execute(tmp_path, instance, "numbers_delete_savepoint", op, {"savepoint": named}).success
    assert deleted == ["/store/mine"]


def test_a_savepoint_that_is_not_there_fails_the_run_and_names_those_that_are(
    tmp_path: Path, held: Savepoints, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(savepoints, "delete_savepoint", delete_savepoint)
    held.take("mine")
    held.take("failed", SavepointState.FAILED)
    for wrong in ("your", "failed"):
        op = "delete_savepoint_numbers"
        result = execute(tmp_path, instance, "numbers_delete_savepoint", op, {"savepoint": wrong})
        (event,) = [e for e in result.all_events if e.event_type_value == "STEP_FAILURE"]
        said = event.step_failure_data.user_failure_data.description
        assert f" or {tmp_path}/numbers/savepoints/{wrong}. numbers has mine" in said
