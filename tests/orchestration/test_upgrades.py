"""Goal: a run in Dagster looks, rehearses and switches, in this order, and ends at the first step that says no.

Topology: a job that has run once, in a real store, so that the dry run is the real one. Rehearsal and switch are faked.
Checks: what each step reports to Dagster, and which steps follow; the version with which a job is started afterwards.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import msgspec
import pytest

import checks.rehearsal
from checks.results import AuditResult, CheckResult, Verdict
from engine.api import StreamEnvironment, count, mean
from engine.core.paths import JobPaths
from engine.graph.description import describe
from engine.host.launch import MasterLaunch
from engine.host.upgrade_record import UpgradeRecord
from engine.observe.client import JobClient
from engine.observe.savepoints import SavepointRecord, SavepointState
from engine.process import upgrading
from engine.process.loading import load
from engine.process.rehearsing import RehearsalFailed
from engine.protocol.failures import Raised
from engine.protocol.ids import AttemptId
from engine.protocol.job_description import JobDescription
from engine.protocol.manifest import Manifest
from engine.protocol.upgrading import Phase, Progress
from engine.snapshot.epoch_log import EpochLog
from engine.store.directory import DirectoryStore
from orchestration.health import State, look
from orchestration.resources import WeirStore
from orchestration.streams import StreamConfig, current_options
from orchestration.upgrades import SAME_OUTPUT, UpgradeConfig, rehearsal_check
from tests.orchestration.jobs import NUMBERS, FakeJob, definitions
from tests.seen import running as running_status
from tests.system.jobs import sums

OLD, NEW = "tests.system.jobs:by_hand", "tests.system.jobs:with_largest"
SPEC = dataclasses.replace(NUMBERS, path=OLD, params={"rate": "5"})
DIFFERS = [
    {"label": "only in the old", "key": 3, "old": '{"rows":100}', "new": None},
    {"label": "changed", "key": 4, "old": '{"rows":100}', "new": '{"rows":99}'},
]


def other_type(env: StreamEnvironment) -> None:
    """A version that gives a column of the table another type."""
    sums(env, rows=count(), sum=mean("value"))


def rehearsed(verdict: Verdict, rows: list[dict[str, Any]] | None = None) -> AuditResult:
    found = [
        CheckResult("out: only in the old", verdict, f"it is {verdict.value}", len(rows or []), rows or []),
        CheckResult("out: only in the new", Verdict.PASSED, "every row of the new version is in the old one's table"),
    ]
    return AuditResult("numbers", 4, found, 2, 2, {"out: rows of the old": 20, "out: rows of the new": 20})


class World:
    """A job with one epoch, whose next version is rehearsed and switched to as a test says."""

    def __init__(self, store: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store, self.instance = store, instance
        self.fake = FakeJob(store)
        self.fake.launch = msgspec.structs.replace(self.fake.launch, path=OLD, params={}, id="0a")
        self.fake.wanted()
        self.client = JobClient(str(store), "numbers")
        self.rehearsal: AuditResult | Exception = rehearsed(Verdict.PASSED)
        self.ends = Progress(Phase.UPGRADED, 1)
        self.did: list[str] = []
        self._publish()
        monkeypatch.setattr(checks.rehearsal, "run_rehearsal", self._rehearse)
        monkeypatch.setattr(upgrading, "carry_on", self._carry_on)
        monkeypatch.setattr(JobClient, "alive", lambda client: True)
        monkeypatch.setattr(JobClient, "status", lambda client: running_status("numbers"))
        monkeypatch.setattr(JobClient, "savepoints", lambda client: self._savepoints())

    def _publish(self) -> None:
        log = EpochLog(DirectoryStore(self.store), JobPaths("numbers"))
        claimed = log.claim("me")
        assert claimed is not None
        graph = load(self.fake.launch)
        for _, sink in graph.sinks:
            sink.committer(log.store, log.paths).claim(claimed.record.job_id, 1)
        description = describe(graph, JobDescription(), 1)
        manifest = Manifest("numbers", 1, 1, AttemptId(1, 1), 0, graph.max_parallelism, [], [], [], {}, description)
        log.publish(claimed.record, log.write_manifest(manifest))

    def _rehearse(self, client: JobClient, launch: MasterLaunch, checkpoints: int, say: Any) -> AuditResult:
        self.did.append(f"rehearsed {launch.path} for {checkpoints}")
        if isinstance(self.rehearsal, Exception):
            raise self.rehearsal
        return self.rehearsal

    def _carry_on(self, client: JobClient, record: UpgradeRecord, say: Any, patience_s: float) -> UpgradeRecord:
        self.did.append(f"switched to {record.new.path} by {record.by}, patience {patience_s:.0f} s")
        done = msgspec.structs.replace(record, progress=self.ends)
        client.folder.write_upgrade(done)
        client.folder.write_launch(done.new)
        return done

    def _savepoints(self) -> list[SavepointRecord]:
        record = self.client.folder.read_upgrade()
        assert record is not None
        return [
            SavepointRecord(
                savepoint=record.savepoint,
                place="/s",
                state=SavepointState.COMPLETED,
                bytes=10,
                epoch=2,
                duration_ms=7.0,
            )
        ]

    def run(self, config: dict[str, Any], only: list[str] | None = None) -> Any:
        job = definitions(self.store, SPEC).resolve_job_def("numbers_upgrade")
        return job.execute_in_process(
            instance=self.instance, raise_on_error=False, run_config=config, op_selection=only
        )

    def check(self) -> dg.AssetCheckEvaluation | None:
        key = dg.AssetCheckKey(SPEC.rehearsals_key, SAME_OUTPUT)
        found = self.instance.event_log_storage.get_latest_asset_check_execution_by_key([key]).get(key)
        if found is None or found.event is None or found.event.dagster_event is None:
            return None
        return found.event.dagster_event.asset_check_evaluation_data

    def made(self, key: dg.AssetKey) -> dict[str, Any]:
        event = self.instance.get_latest_materialization_event(key)
        if event is None or event.asset_materialization is None:
            return {}
        return {name: value.value for name, value in event.asset_materialization.metadata.items()}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield World(tmp_path, instance, monkeypatch)


def steps(result: Any, kind: str = "STEP_SUCCESS") -> list[str]:
    return [event.step_key for event in result.all_events if event.event_type_value == kind]


def failure(result: Any) -> Any:
    (event,) = [e for e in result.all_events if e.event_type_value == "STEP_FAILURE"]
    return event.step_failure_data.user_failure_data


@pytest.mark.promise("D8", "F1", "H7")
def test_an_upgrade_is_a_dry_run_then_a_rehearsal_then_the_switch(world: World) -> None:
    result = world.run({"to": NEW, "checkpoints": 3, "timeout_s": 60.0})
    assert result.success and steps(result) == ["dry_run_numbers", "rehearse_numbers", "switch_numbers"]
    assert world.did == [f"rehearsed {NEW} for 3", f"switched to {NEW} by dagster, patience 60 s"]
    shown = next(e.step_output_data for e in result.all_events if e.is_successful_output)
    plan = {record.data["operator"]: record.data["state"] for record in shown.metadata["plan"].records}
    assert (plan["numbers"], plan["out"]) == ("restored", "migrated")
    check = world.check()
    assert check is not None and check.passed
    assert check.description == (
        "both versions wrote the same rows; out: rows of the old version: 20; out: rows of the new version: 20"
    )
    assert world.made(SPEC.rehearsals_key)["verdict"] == "passed"
    assert world.made(SPEC.rehearsals_key)["out: rows of the old"] == 20
    saved = world.made(SPEC.savepoints_key)
    assert saved["savepoint"].startswith("upgrade-") and (saved["bytes"], saved["epoch"]) == (10, "2")
    stream = world.made(SPEC.stream_key)
    assert stream["store"] == str(world.store) and stream["savepoint"] == saved["savepoint"]
    assert stream["outcome"] == f"upgraded from {OLD} to {NEW} behind epoch 1"


@pytest.mark.promise("D8", "H7")
def test_a_red_rehearsal_is_reported_with_its_rows_and_the_run_ends_before_the_switch(world: World) -> None:
    world.rehearsal = rehearsed(Verdict.FAILED, DIFFERS)
    result = world.run({"to": NEW})
    assert not result.success and steps(result) == ["dry_run_numbers"]
    assert world.did == [f"rehearsed {NEW} for 5"]
    check = world.check()
    assert check is not None and not check.passed and check.severity is dg.AssetCheckSeverity.ERROR
    rows = check.metadata["rows"]
    assert isinstance(rows, dg.TableMetadataValue)
    assert [record.data for record in rows.records] == [{"table": "out", **row} for row in DIFFERS]
    assert check.metadata["unexpected"].value == 2
    why = failure(result)
    assert "was not switched" in why.description and "set switch_if_different" in why.description
    assert why.metadata["rows"] == rows
    assert not world.made(SPEC.stream_key)


def test_rows_that_are_meant_to_differ_are_a_warning_and_the_switch_follows(world: World) -> None:
    world.rehearsal = rehearsed(Verdict.FAILED, DIFFERS)
    assert world.run({"to": NEW, "switch_if_different": True}).success
    check = world.check()
    assert check is not None and not check.passed and check.severity is dg.AssetCheckSeverity.WARN
    assert len(world.did) == 2


def test_a_rehearsal_that_could_not_be_judged_is_neither_green_nor_red_and_nothing_is_switched(world: World) -> None:
    world.rehearsal = rehearsed(Verdict.COULD_NOT_RUN)
    result = world.run({"to": NEW, "switch_if_different": True})
    assert not result.success and len(world.did) == 1 and world.check() is None
    assert "could not be judged" in failure(result).description


def test_a_version_that_fails_in_its_rehearsal_is_a_red_check_with_the_authors_line(world: World) -> None:
    world.rehearsal = RehearsalFailed(
        "the new version failed in the rehearsal", Raised("KeyError", "'user'", traceback="job.py:7")
    )
    result = world.run({"to": NEW, "switch_if_different": True})
    assert not result.success and len(world.did) == 1
    check = world.check()
    assert check is not None and not check.passed and "job.py:7" in (check.description or "")


@pytest.mark.promise("D8")
def test_a_version_that_can_not_take_over_is_refused_with_the_plan_before_anything_starts(world: World) -> None:
    result = world.run({"to": f"{__name__}:other_type"})
    assert not result.success and not world.did
    why = failure(result)
    assert "can't take over from numbers: nothing was changed" in why.description and "What to do" in why.description
    assert "refused" in {record.data["state"] for record in why.metadata["plan"].records}


def test_no_checkpoints_to_rehearse_means_no_rehearsal_and_no_check(world: World) -> None:
    assert world.run({"to": NEW, "checkpoints": 0}).success
    assert world.did == [f"switched to {NEW} by dagster, patience 300 s"] and world.check() is None


def test_the_dry_run_alone_is_an_op_selection(world: World) -> None:
    assert world.run({"to": NEW}, ["dry_run_numbers"]).success and not world.did


@pytest.mark.promise("H7", "F1")
def test_the_rehearsal_without_the_switch_is_an_op_selection(world: World) -> None:
    assert world.run({"to": NEW, "checkpoints": 3}, ["dry_run_numbers", "rehearse_numbers"]).success
    assert world.did == [f"rehearsed {NEW} for 3"] and world.check() is not None


@pytest.mark.promise("D8")
def test_an_upgrade_that_went_back_fails_the_run_and_leaves_its_savepoint(world: World) -> None:
    raised = Raised("KeyError", "'user'", traceback="job.py:7")
    world.ends = Progress(Phase.BACK, 1, "the new version failed: it raised", raised)
    result = world.run({"to": NEW})
    said = failure(result).description
    assert not result.success and "numbers runs the old version again: the new version failed" in said
    assert "job.py:7" in said and world.made(SPEC.savepoints_key) and not world.made(SPEC.stream_key)


@pytest.mark.promise("D8")
def test_a_run_that_was_killed_in_the_switch_is_carried_on_by_the_next_one(world: World) -> None:
    launch = upgrading.new_launch(world.client, upgrading.NewVersion(NEW))
    record = upgrading.begin(world.client, launch, "dagster")
    world.client.folder.write_upgrade(msgspec.structs.replace(record, progress=Progress(Phase.STARTING, 1)))
    world.fake.folder.want_stopped("dagster")
    health = look(world.client.folder, 30.0)
    assert health.state is State.RECOVERING and not health.healthy and "carries it on" in health.detail
    assert "is not done yet" in failure(world.run({"to": "elsewhere:job"})).description
    assert world.run({"to": NEW}).success
    assert world.did == [f"switched to {NEW} by dagster, patience 300 s"]


@pytest.mark.promise("D8", "F2")
def test_a_job_that_was_upgraded_is_started_again_with_its_new_version(world: World) -> None:
    """As found when the upgrade came to Dagster: a plain start and the sensor went back to the version of the spec."""
    assert current_options(SPEC, world.client).path == OLD
    assert world.run({"to": NEW, "parallelism": 2}).success
    options = current_options(SPEC, world.client)
    assert (options.path, options.params, options.parallelism) == (NEW, {}, 2)
    last = world.client.folder.read_launch()
    assert last is not None
    again = StreamConfig.of(last).over(SPEC.options)
    assert (again.path, again.params) == (NEW, {}), "parameters of the spec are for its own version"
    asked = StreamConfig(path=OLD, params={"rate": "7"}).over(SPEC.options)
    assert (asked.path, asked.params) == (OLD, {"rate": "7"})
    same = dataclasses.replace(SPEC, path=NEW)
    assert current_options(same, world.client) == same.options, "the spec was changed, too"


def test_the_check_by_hand_shows_the_newest_rehearsal_again(world: World) -> None:
    folder = world.store / "rehearsals" / "numbers" / "20261117-030000"
    folder.mkdir(parents=True)
    (folder / "rehearsal.json").write_bytes(msgspec.json.encode(rehearsed(Verdict.FAILED, DIFFERS)))
    key = dg.AssetCheckKey(SPEC.rehearsals_key, SAME_OUTPUT)
    result = dg.materialize(
        [rehearsal_check(SPEC)],
        instance=world.instance,
        resources={"weir": WeirStore(path=str(world.store))},
        selection=dg.AssetSelection.checks(key),
    )
    (evaluation,) = result.get_asset_check_evaluations()
    assert not evaluation.passed and isinstance(evaluation.metadata["rows"], dg.TableMetadataValue)


def test_the_config_is_typed() -> None:
    with pytest.raises(ValueError, match="greater than or equal to 0"):
        UpgradeConfig(checkpoints=-1)
    assert UpgradeConfig(to=NEW, parallelism=3).version == upgrading.NewVersion(NEW, {}, 3, False)
