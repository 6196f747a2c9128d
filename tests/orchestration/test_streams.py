"""Goal: runs in Dagster start, leave alone, cancel and checkpoint a job correctly. The job's answers are faked."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from engine.host.launch import LaunchOptions, MasterLaunch
from engine.observe.client import JobClient
from engine.protocol.scaling import Scaling
from orchestration import streams
from orchestration.resources import WeirStore
from orchestration.streams import StreamConfig
from tests.orchestration.jobs import NUMBERS, FakeJob, definitions
from tests.seen import running as running_status

RUNNING = running_status("numbers")


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeJob:
    monkeypatch.setattr(JobClient, "status", lambda self: RUNNING)
    job = FakeJob(tmp_path)
    job.wanted()
    job.beats()
    return job


def execute(store: Path, instance: dg.DagsterInstance, job: str, config: dict[str, Any] | None = None) -> Any:
    found = definitions(store).resolve_job_def(job)
    ops = {"ops": {"streams__numbers": {"config": config}}} if config else None
    return found.execute_in_process(instance=instance, raise_on_error=False, run_config=ops)


def failure(result: Any) -> str:
    (event,) = [e for e in result.all_events if e.event_type_value == "STEP_FAILURE"]
    return str(event.step_failure_data.user_failure_data.description)


def test_a_job_that_runs_is_left_as_it_is(running: FakeJob, instance: dg.DagsterInstance) -> None:
    assert execute(running.store, instance, "numbers_start").success
    event = instance.get_latest_materialization_event(NUMBERS.stream_key)
    assert event is not None and event.asset_materialization is not None
    said = {name: value.value for name, value in event.asset_materialization.metadata.items()}
    assert "nothing to do" in said["outcome"] and said["store"] == str(running.store) and said["epoch"] == 5


def test_a_job_that_runs_otherwise_than_asked_for_is_not_touched(
    running: FakeJob, instance: dg.DagsterInstance
) -> None:
    result = execute(running.store, instance, "numbers_start", {"parallelism": 2, "params": {"rate": "9"}})
    said = failure(result)
    assert not result.success and "rate is '7'" in said and "its parallelism is 3" in said and "numbers_cancel" in said


def test_a_job_that_runs_on_another_spark_than_asked_for_is_not_touched(
    running: FakeJob, instance: dg.DagsterInstance
) -> None:
    asked = {"master": "spark://host:7077", "conf": {"spark.a": "1"}, "slot_memory_mb": 512, "max_slots": 9}
    result = execute(running.store, instance, "numbers_start", asked)
    said = failure(result)
    assert not result.success and "Spark's master is not set; slot_memory_mb is not set; max_slots is 4" in said
    assert "spark.a has another value" in said


def test_a_job_that_does_not_run_is_started_detached_and_its_wish_is_written_down(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[MasterLaunch] = []

    def start(launch: MasterLaunch, by: str) -> JobClient:
        started.append(launch)
        monkeypatch.setattr(JobClient, "status", lambda self: RUNNING)
        return JobClient(launch.store, launch.name)

    monkeypatch.setattr(streams, "start_detached", start)
    elsewhere = tmp_path / "elsewhere"
    config = {"params": {"rate": "9"}, "parallelism": 1, "store": str(elsewhere)}
    assert execute(tmp_path, instance, "numbers_start", config).success
    (launch,) = started
    assert (launch.name, launch.params, launch.parallelism, launch.store) == (
        "numbers",
        {"rate": "9"},
        1,
        str(elsewhere),
    )
    assert definitions(tmp_path).get_repository_def()  # later actions find the job where it was started
    assert WeirStore(path=str(tmp_path)).of(instance, NUMBERS) == str(elsewhere)


def test_a_wrong_parameter_is_said_in_words_before_anything_starts(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    result = execute(tmp_path, instance, "numbers_start", {"params": {"speed": "9"}})
    assert not result.success and "has no parameter speed" in failure(result)


def test_cancelling_what_does_not_run_succeeds_and_is_remembered(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    job = FakeJob(tmp_path)
    job.wanted()
    assert execute(tmp_path, instance, "numbers_cancel").success
    desired = job.folder.read_desired()
    assert desired is not None and not desired.running and desired.by == "dagster"


def test_a_checkpoint_of_what_does_not_run_fails_with_the_reason(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    result = execute(tmp_path, instance, "numbers_checkpoint")
    assert not result.success and "there is no job 'numbers'" in failure(result)


def test_the_schedule_skips_while_the_job_does_not_run(running: FakeJob) -> None:
    repository = definitions(running.store).get_repository_def()
    schedule = repository.get_schedule_def("numbers_checkpoints")
    weir = {"weir": WeirStore(path=str(running.store))}

    def tick(instance: dg.DagsterInstance) -> Any:
        with dg.build_schedule_context(instance, repository_def=repository, resources=weir) as context:
            return schedule.evaluate_tick(context)

    with dg.DagsterInstance.local_temp(str(running.store)) as instance:
        assert len(tick(instance).run_requests) == 1
        running.folder.want_stopped("cli")
        skipped = tick(instance)
    assert not skipped.run_requests and "stopped on purpose (by cli)" in skipped.skip_message


def test_the_config_of_a_start_is_read_back_from_a_launch() -> None:
    launch = MasterLaunch(path="a:b", name="numbers", params={"rate": "1"}, parallelism=4, store="/store", max_slots=4)
    assert StreamConfig.of(launch) == StreamConfig(path="a:b", parallelism=4, params={"rate": "1"}, store="/store")


def test_a_start_has_the_options_of_its_spec_and_a_config_goes_before_them() -> None:
    spec = dataclasses.replace(NUMBERS, params={"rate": "1", "rows": "5"}, parallelism=2)
    asked = StreamConfig(params={"rate": "9"}).over(spec.options)
    assert (asked.path, asked.name) == (NUMBERS.path, "numbers")
    assert (asked.params, asked.parallelism) == ({"rate": "9", "rows": "5"}, 2)
    assert StreamConfig(parallelism=4).over(spec.options).parallelism == 4


def test_a_start_has_the_spark_of_its_spec_and_a_config_goes_before_it() -> None:
    spec = dataclasses.replace(
        NUMBERS, master="spark://one:7077", conf={"a": "1", "b": "2"}, slot_memory_mb=512, max_slots=3
    )

    def spark(config: StreamConfig) -> tuple[str, dict[str, str], int | None, int | None]:
        asked = config.over(spec.options)
        return asked.spark_master, asked.conf, asked.slot_memory_mb, asked.max_slots

    assert spark(StreamConfig()) == ("spark://one:7077", {"a": "1", "b": "2"}, 512, 3)
    other = StreamConfig(master="spark://two:7077", conf={"b": "3"}, slot_memory_mb=1024, max_slots=5)
    assert spark(other) == ("spark://two:7077", {"a": "1", "b": "3"}, 1024, 5)


@pytest.mark.promise("D7")
def test_a_job_that_was_rescaled_is_started_again_at_the_new_parallelism() -> None:
    scaling = Scaling(3, {"pv": 4})
    launch = MasterLaunch(path="a:job", name="job", store="/store", max_slots=4, scaling=scaling)
    assert StreamConfig.of(launch).over(LaunchOptions(path="a:job")).scaling == scaling
