"""Goal: runs, schedules and the autoscaler of Dagster rescale a job as its spec says. The job's answers are faked."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import msgspec
import pytest

from engine.jobmaster.status import JobStatus, VertexStatus
from engine.observe.client import JobClient
from engine.observe.rescales import RescaleRecord, RescaleState
from engine.protocol.autoscale import Bounds
from orchestration.resources import WeirStore
from orchestration.spec import RescaleAt
from tests.orchestration.jobs import NUMBERS, FakeJob, definitions
from tests.seen import running as running_status

SPEC = dataclasses.replace(
    NUMBERS, rescale=(RescaleAt("morning", "0 7 * * *", 4),), autoscale=Bounds(least=1, most=4, cool_down_ms=60_000)
)
COMPLETED = RescaleRecord(
    rescale="1-1",
    state=RescaleState.COMPLETED,
    started_at_ms=1,
    ended_at_ms=2,
    before={"sums": 3},
    after={"sums": 4},
    slots_before=3,
    slots_after=4,
    epoch=6,
    pause_ms=250.0,
    digest_before="00ff",
    digest_after="00ff",
    rows=10,
)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


def execute(store: Path, instance: dg.DagsterInstance, config: dict[str, Any]) -> Any:
    found = definitions(store, SPEC).resolve_job_def("numbers_rescale")
    ops = {"ops": {"rescale_numbers": {"config": config}}}
    return found.execute_in_process(instance=instance, raise_on_error=False, run_config=ops)


def failure(result: Any) -> str:
    (event,) = [e for e in result.all_events if e.event_type_value == "STEP_FAILURE"]
    return str(event.step_failure_data.user_failure_data.description)


@pytest.mark.promise("F1", "H6")
def test_a_rescale_is_observed_with_its_pause_and_the_digest_of_its_state(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(JobClient, "rescale", lambda client, *given: asked.append(given) or "1-1")
    monkeypatch.setattr(JobClient, "wait_for_rescale", lambda client, *given: COMPLETED)
    assert execute(tmp_path, instance, {"parallelism": 4, "operators": {"sums": 2}}).success
    assert asked == [(4, {"sums": 2})]
    (record,) = instance.fetch_observations(SPEC.stream_key, limit=5).records
    assert record.asset_observation is not None
    said = {name: value.value for name, value in record.asset_observation.metadata.items()}
    assert (said["slots"], said["pause_ms"], said["state_digest"]) == (4, 250.0, "00ff")


def test_a_job_that_has_this_parallelism_is_left_alone(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JobClient, "rescale", lambda client, *given: None)
    assert execute(tmp_path, instance, {"parallelism": 3}).success
    assert not instance.fetch_observations(SPEC.stream_key, limit=5).records


def test_a_rescale_that_fails_fails_the_run_with_the_reason(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = msgspec.structs.replace(COMPLETED, state=RescaleState.FAILED, reason="only 3 of 4 slots have registered")
    monkeypatch.setattr(JobClient, "rescale", lambda client, *given: "1-1")
    monkeypatch.setattr(JobClient, "wait_for_rescale", lambda client, *given: failed)
    assert "goes on as before: only 3 of 4 slots" in failure(execute(tmp_path, instance, {"parallelism": 4}))
    assert "the config names no parallelism" in failure(execute(tmp_path, instance, {}))


@pytest.mark.promise("F1")
def test_the_schedule_of_the_morning_rescales_a_job_that_runs(tmp_path: Path) -> None:
    job = FakeJob(tmp_path)
    job.wanted()
    repository = definitions(tmp_path, SPEC).get_repository_def()
    schedule = repository.get_schedule_def("numbers_rescale_morning")

    def tick(instance: dg.DagsterInstance) -> Any:
        weir = {"weir": WeirStore(path=str(tmp_path))}
        with dg.build_schedule_context(instance, repository_def=repository, resources=weir) as context:
            return schedule.evaluate_tick(context)

    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        job.folder.want_stopped("cli")
        assert "stopped on purpose" in tick(instance).skip_message
        job.wanted()
        job.beats()
        (request,) = tick(instance).run_requests
    assert request.run_config["ops"]["rescale_numbers"]["config"]["parallelism"] == 4


# --- the autoscaler ---


def status(busy: float, parallelism: int = 2, uptime_ms: int = 600_000) -> JobStatus:
    flow = dict.fromkeys(("rows_in", "rows_out"), 0) | dict.fromkeys(
        ("busy_ms", "back_pressured_ms", "idle_ms", "rows_in_per_s", "rows_out_per_s", "back_pressured", "idle"), 0.0
    )
    vertex = VertexStatus(
        **flow,
        busy=busy,
        watermark_ms=None,
        lag_ms=None,
        finished=False,
        id="sums",
        label="sums",
        operators=["sums"],
        parallelism=parallelism,
        subtasks=[],
    )
    return msgspec.structs.replace(
        running_status("numbers"), parallelism=parallelism, vertices=[vertex], uptime_ms=uptime_ms
    )


@pytest.mark.promise("F5")
@pytest.mark.parametrize(
    ("seen", "wanted"),
    [
        (status(0.95), 3),
        (status(0.1, 4), 1),
        (status(0.7), None),
        (status(0.95, uptime_ms=30_000), None),  # it started or was rescaled half a minute ago
        (status(0.99, 4), None),  # the upper bound
    ],
)
def test_the_autoscaler_asks_for_a_rescale_by_the_load_within_its_bounds(
    tmp_path: Path,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    seen: JobStatus,
    wanted: int | None,
) -> None:
    monkeypatch.setattr(JobClient, "status", lambda client: seen)
    monkeypatch.setattr(JobClient, "rescales", lambda client: [])
    repository = definitions(tmp_path, SPEC).get_repository_def()
    sensor = repository.get_sensor_def("numbers_autoscale")
    assert sensor.default_status is dg.DefaultSensorStatus.STOPPED
    weir = {"weir": WeirStore(path=str(tmp_path))}
    with dg.build_sensor_context(instance, repository_def=repository, resources=weir) as context:
        result = sensor.evaluate_tick(context)
    asked = [request.run_config["ops"]["rescale_numbers"]["config"]["parallelism"] for request in result.run_requests]
    assert asked == ([] if wanted is None else [wanted]), result.skip_message


@pytest.mark.promise("F5")
def test_the_autoscaler_waits_for_the_end_of_its_cool_down_after_a_rescale(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:

    just_now = msgspec.structs.replace(COMPLETED, ended_at_ms=time.time_ns() // 1_000_000 - 5_000)
    monkeypatch.setattr(JobClient, "status", lambda client: status(0.95))
    monkeypatch.setattr(JobClient, "rescales", lambda client: [just_now])
    repository = definitions(tmp_path, SPEC).get_repository_def()
    sensor = repository.get_sensor_def("numbers_autoscale")
    weir = {"weir": WeirStore(path=str(tmp_path))}
    with dg.build_sensor_context(instance, repository_def=repository, resources=weir) as context:
        result = sensor.evaluate_tick(context)
    assert not result.run_requests and "parallelism 2 stays" in result.skip_message
