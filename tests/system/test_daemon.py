"""Goal: Dagster runs, watches and restarts a job correctly with a real daemon and real run workers.

Topology: webserver, daemon, code servers, a detached JobMaster on real Spark whose job has no checkpoint interval.
Faults: kill -9 of a run worker and of the job's supervisor; SIGSTOP of its JobMaster; a stop of all of Dagster.
Checks: the schedule alone commits epochs, actions never overlap, a killed run frees its pool, the job outlives Dagster
and is started again by it, an upgrade is switched to only after a green rehearsal, Great
Expectations can be imported in a run worker.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import msgspec
import pytest

from engine.connectors.table import read_table
from engine.core.errors import WeirError
from engine.core.paths import JobPaths
from engine.observe.savepoints import SavepointState
from engine.store.directory import DirectoryStore
from tests.cluster.harness import session_processes
from tests.system.harness import System, alive, eventually

JOB = "by_hand"
UPGRADE_S = 900


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with System(tmp_path_factory.mktemp("system"), "tests.system.definitions") as made:
        made.client(JOB)
        config = {"master": "local[6]", "conf": {"spark.ui.retainedJobs": "7"}, "slot_memory_mb": 3000, "max_slots": 6}
        made.succeeds(f"{JOB}_start", {"ops": {f"streams__{JOB}": {"config": config}}})
        yield made


def reported_epochs(system: System) -> list[int]:
    """Returns the epochs of all checkpoints that Dagster knows, whether a run or the sensor reported them."""
    found = system.materializations("checkpoints", JOB)
    return [int(str(record.data["epoch"])) for metadata in found for record in metadata["each"].records]


def green(system: System) -> dg.AssetCheckEvaluation | None:
    check = system.check("healthy", "streams", JOB)
    return check if check is not None and check.passed else None


@pytest.mark.promise("F1")
def test_a_job_without_an_interval_is_checkpointed_by_its_schedule_alone(system: System) -> None:
    status = system.client(JOB).status()
    assert status.running and status.checkpoints.interval_ms is None
    first = eventually("a checkpoint in Dagster", lambda: next(iter(system.materializations("checkpoints", JOB)), None))
    assert int(first["epoch"]) >= 1 and first["rows_read"] > 0 and first["duration_ms"] > 0
    runs = system.instance.get_runs(dg.RunsFilter(job_name=f"{JOB}_checkpoint"))
    assert runs and all(run.tags.get("dagster/schedule_name") == f"{JOB}_checkpoints" for run in runs)
    rows = read_table(DirectoryStore(system.store), JobPaths(JOB).table("sums")).num_rows
    assert rows >= first["rows_committed"], "what the checkpoint says is in the table"
    records = system.instance.fetch_materializations(dg.AssetKey(["checkpoints", JOB]), limit=100).records
    reported_by = {record.event_log_entry.run_id for record in records}
    assert reported_by & {run.run_id for run in runs}, "the run reports its checkpoint itself"


@pytest.mark.promise("F1")
def test_the_sensor_reports_the_health_of_the_stream_and_the_rows_of_its_table(system: System) -> None:
    check = eventually(
        "a green check", lambda: c if (c := system.check("healthy", "streams", JOB)) and c.passed else None
    )
    assert "running" in (check.description or "")
    seen = eventually("rows of the table", lambda: next(iter(system.materializations("tables", JOB, "sums")), None))
    assert seen["rows"] >= seen["new_rows"] > 0 and {"epoch", "watermark", "lag_s", "table"} <= set(seen)


def test_actions_of_a_job_never_overlap_and_a_killed_run_frees_its_pool(system: System) -> None:
    holder = system.launch("hold")
    pid_file = system.store / "holder.pid"
    pid = int(eventually("the pool is held", lambda: pid_file.read_text() if pid_file.exists() else None))
    waiting = system.launch(f"{JOB}_checkpoint")
    time.sleep(8)
    assert system.status(waiting) is dg.DagsterRunStatus.QUEUED, "it waits in the queue, not in a process"
    assert system.status(holder) is dg.DagsterRunStatus.STARTED
    os.kill(pid, signal.SIGKILL)
    assert system.finished(holder) is dg.DagsterRunStatus.FAILURE
    assert system.finished(waiting) is dg.DagsterRunStatus.SUCCESS, system.story(waiting)


def test_great_expectations_can_be_imported_in_a_run_worker(system: System) -> None:
    run_id = system.succeeds("gx_import")
    steps = [e for e in system.instance.all_logs(run_id) if e.dagster_event and e.dagster_event.is_step_success]
    assert len(steps) == 1, "a worker that ends with exit code 0 in the middle of a step is no success"


@pytest.mark.promise("F1", "F2")
def test_the_job_outlives_dagster_and_what_happened_meanwhile_is_reported(system: System) -> None:
    client = system.client(JOB)
    before = client.status()
    epochs = reported_epochs(system)
    system.services.stop()
    made = client.wait_for_checkpoint(client.trigger_checkpoint(), 180)
    after = client.status()
    assert after.generation == before.generation and made.epoch > max(epochs)
    system.restart()

    def caught_up() -> bool | None:
        found = reported_epochs(system)
        return True if made.epoch in found and len(found) == len(set(found)) else None

    assert eventually("the checkpoint is in Dagster, once", caught_up)


@pytest.mark.promise("F2")
def test_a_job_whose_supervisor_was_killed_is_started_again_and_goes_on(system: System) -> None:
    client = system.client(JOB)
    address = client.folder.read_address()
    assert address is not None
    epoch, before = client.status().epoch, client.folder.read_launch()
    parent = int(Path(f"/proc/{address.pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    os.kill(parent, signal.SIGKILL)

    def replaced() -> int | None:
        found = client.folder.read_address()
        return found.generation if found is not None and found.generation > address.generation else None

    assert eventually("Dagster starts it again", replaced) > address.generation
    assert client.wait_until_running(180) is None and client.status().epoch >= epoch
    assert not alive(address.pid)
    assert eventually("green again", lambda: green(system))
    after = client.folder.read_launch()
    assert before is not None and after is not None and after.spark_master == "local[6]" and after.conf
    assert msgspec.structs.replace(after, id=before.id) == before, "it is the same job: master, conf, memory and slots"


@pytest.mark.promise("F2")
def test_a_jobmaster_that_hangs_is_seen_by_its_heartbeat_replaced_and_fenced(system: System) -> None:
    client = system.client(JOB)
    hung = client.folder.read_address()
    assert hung is not None
    os.kill(hung.pid, signal.SIGSTOP)
    try:
        eventually("a red check", lambda: None if green(system) else True)

        def replaced() -> int | None:
            found = client.folder.read_address()
            return found.generation if found is not None and found.generation > hung.generation else None

        generation = eventually("Dagster starts another", replaced)
        assert client.wait_until_running(180) is None
    finally:
        with contextlib.suppress(ProcessLookupError):  # its supervisor may have killed it
            os.kill(hung.pid, signal.SIGCONT)
    eventually("the old one ends when it wakes up", lambda: None if session_processes(hung.pid) else True, 60)
    restart = eventually(
        "the restart is in Dagster", lambda: next(iter(system.materializations("restarts", JOB)), None)
    )
    assert restart["restarts"] >= 1 and restart["cause"]
    assert client.status().generation == generation and client.ended() is None, "and leaves the new one alone"
    assert client.wait_for_checkpoint(client.trigger_checkpoint(), 180).epoch


@pytest.mark.promise("D5", "F1")
def test_savepoints_are_taken_in_runs_and_only_the_newest_of_the_schedule_are_kept(system: System) -> None:
    for name in ("scheduled-1", "mine", "scheduled-2", "scheduled-3"):
        config = {"ops": {f"savepoints__{JOB}": {"config": {"name": name}}}}
        system.succeeds(f"{JOB}_savepoint", config)
    newest, *_ = system.materializations("savepoints", JOB)
    assert newest["savepoint"] == "scheduled-3" and newest["bytes"] > 0 and newest["duration_ms"] > 0
    there = [one.savepoint for one in system.client(JOB).savepoints() if one.state is SavepointState.COMPLETED]
    assert there == ["scheduled-3", "scheduled-2", "mine"]


@pytest.mark.promise("F1", "H6")
def test_a_running_job_is_rescaled_by_a_run_and_its_pause_is_observed(system: System) -> None:
    before = system.client(JOB).status()
    wanted = before.parallelism + 1
    system.succeeds(f"{JOB}_rescale", {"ops": {f"rescale_{JOB}": {"config": {"parallelism": wanted}}}})
    after = system.client(JOB).status()
    assert (after.parallelism, after.generation) == (wanted, before.generation), "the same JobMaster goes on"
    (record,) = system.instance.fetch_observations(dg.AssetKey(["streams", JOB]), limit=1).records
    assert record.asset_observation is not None
    assert float(str(record.asset_observation.metadata["pause_ms"].value)) > 0


def upgrades(system: System, to: str) -> str:
    """Launches an upgrade. The job has no interval, so checkpoints are triggered beside the rehearsal, as users may."""
    run_id = system.launch(f"{JOB}_upgrade", {"to": f"tests.system.jobs:{to}", "checkpoints": 3})
    client, deadline = system.client(JOB), time.monotonic() + UPGRADE_S
    while time.monotonic() < deadline:
        run = system.instance.get_run_by_id(run_id)
        if run is not None and run.is_finished:
            break
        with contextlib.suppress(WeirError):  # it is being stopped and started in between
            client.trigger_checkpoint()
        time.sleep(1)
    return run_id


def steps_of(system: System, run_id: str) -> list[str | None]:
    events = [entry.dagster_event for entry in system.instance.all_logs(run_id)]
    return [event.step_key for event in events if event is not None and event.is_step_success]


@pytest.mark.promise("D8", "F1", "H7")
def test_a_red_rehearsal_is_reported_with_its_rows_and_the_old_version_runs_on(system: System) -> None:
    before = system.client(JOB).status()
    run_id = upgrades(system, "without_a_key")
    assert system.status(run_id) is dg.DagsterRunStatus.FAILURE, system.story(run_id)
    assert steps_of(system, run_id) == [f"dry_run_{JOB}"]
    check = system.check("same_output", "rehearsals", JOB)
    assert check is not None and not check.passed, system.story(run_id)
    rows = check.metadata["rows"]
    assert isinstance(rows, dg.TableMetadataValue)
    assert {(record.data["label"], record.data["key"]) for record in rows.records} >= {("only in the old", 3)}
    after = system.client(JOB).status()
    assert (after.generation, after.restarts) == (before.generation, before.restarts), "nobody touched the job"


@pytest.mark.promise("D8", "F1", "H7")
def test_a_job_is_upgraded_by_a_run_after_a_green_rehearsal_and_started_again_with_its_new_version(
    system: System,
) -> None:
    run_id = upgrades(system, "with_largest")
    assert system.status(run_id) is dg.DagsterRunStatus.SUCCESS, system.story(run_id)
    assert steps_of(system, run_id) == [f"dry_run_{JOB}", f"rehearse_{JOB}", f"switch_{JOB}"]
    check = system.check("same_output", "rehearsals", JOB)
    assert check is not None and check.passed
    newest, *_ = system.materializations("savepoints", JOB)
    assert str(newest["savepoint"]).startswith("upgrade-") and newest["bytes"] > 0
    client = system.client(JOB)
    made = client.wait_for_checkpoint(client.trigger_checkpoint(), 180)
    assert (
        made.epoch and "largest" in read_table(DirectoryStore(system.store), JobPaths(JOB).table("sums")).column_names
    )
    system.succeeds(f"{JOB}_cancel")
    system.succeeds(f"{JOB}_start")
    launch = client.folder.read_launch()
    assert launch is not None and launch.path == "tests.system.jobs:with_largest", "and not the version of the spec"


@pytest.mark.promise("D6", "F1")
def test_a_job_stopped_from_dagster_leaves_a_savepoint_and_the_next_start_goes_on_from_its_epoch(
    system: System,
) -> None:
    client = system.client(JOB)
    system.succeeds(f"{JOB}_stop", {"ops": {f"stop_{JOB}": {"config": {"name": "last"}}}})
    ended = client.ended()
    assert ended is not None and ended.outcome == "stopped"
    newest, *_ = system.materializations("savepoints", JOB)
    assert newest["savepoint"] == "last"
    system.succeeds(f"{JOB}_start")
    assert client.status().epoch == int(newest["epoch"])


@pytest.mark.promise("F1")
def test_a_job_cancelled_from_dagster_stays_cancelled(system: System) -> None:
    client = system.client(JOB)
    system.succeeds(f"{JOB}_cancel")
    ended = client.ended()
    assert ended is not None and ended.outcome == "cancelled"
    starts = len(system.instance.get_runs(dg.RunsFilter(job_name=f"{JOB}_start")))
    check = eventually(
        "it is said to be stopped",
        lambda: c if (c := system.check("healthy", "streams", JOB)) and "stopped" in (c.description or "") else None,
    )
    time.sleep(12)
    assert check.passed and len(system.instance.get_runs(dg.RunsFilter(job_name=f"{JOB}_start"))) == starts
