"""Goal: Dagster shows a drill's verdict: each check passed, failed or could not run. Drill and audit are faked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import msgspec
import pytest

import checks.audit
import checks.drill
from assets.pageviews.drill import DRILL
from checks.catalogue import CATALOGUE, RANDOM
from checks.drilled import DrillFailed
from checks.records import read_records
from checks.report import REPORT
from checks.results import AuditResult, CheckResult, DrillResult, Struck, Verdict
from checks.spec import AUDIT_CHECKS, WARNINGS
from engine.host.launch import LaunchOptions
from orchestration.drills import CHECKS, READER, last_drill, proves
from orchestration.metadata import rows_table
from tests.orchestration.jobs import NUMBERS, definitions

SPEC = replace(NUMBERS, drill=DRILL)
LOST = {"label": "lost", "view_id": 7}


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


def drilled(store: Path, violations: list[str]) -> DrillResult:
    faults = [Struck(0, 4711, 1, 2, "1.1", recovery_s=1.25, after="1.2", cause="slot_lost: slot process 4711")]
    folder = str(store / "drills/numbers/1")
    return DrillResult("numbers", folder, 200_000, 1.25, 1, 12, 40, violations, 1, 60.0, 7, faults)


def audited(verdicts: dict[str, Verdict]) -> AuditResult:
    found = []
    for name in AUDIT_CHECKS:
        verdict = verdicts.get(name, Verdict.PASSED)
        rows = [LOST] if verdict is Verdict.FAILED else []
        warning = name in WARNINGS
        found.append(CheckResult(name, verdict, f"{name} {verdict.value}", len(rows), rows, warning))
    return AuditResult("numbers", 12, found, 9, 9, {"lost": 1.0, "duplicated": 0.0})


def drill(
    store: Path,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    verdicts: dict[str, Verdict] | None = None,
    violations: list[str] | None = None,
) -> tuple[bool, dict[str, dg.AssetCheckEvaluation]]:
    monkeypatch.setattr(checks.drill, "run_drill", lambda *_, **__: drilled(store, violations or []))
    monkeypatch.setattr(checks.audit, "run_audit", lambda *_, **__: audited(verdicts or {}))
    job = definitions(store, SPEC).resolve_job_def("numbers_drill")
    result = job.execute_in_process(instance=instance, raise_on_error=False)
    return result.success, {e.check_name: e for e in result.get_asset_check_evaluations()}


def test_a_drill_that_came_through_makes_every_check_green(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    success, found = drill(tmp_path, instance, monkeypatch)
    assert success and set(found) == set(CHECKS) and all(check.passed for check in found.values())


def test_a_lost_row_makes_its_own_check_red_and_shows_the_row(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    success, found = drill(tmp_path, instance, monkeypatch, {"no_lost_duplicate_phantom_rows": Verdict.FAILED})
    assert not success, "whoever watches runs hears of a red audit"
    assert set(found) == set(CHECKS), "all checks are reported first"
    assert [name for name, check in found.items() if not check.passed] == ["no_lost_duplicate_phantom_rows"]
    red = found["no_lost_duplicate_phantom_rows"].metadata
    assert isinstance(red["rows"], dg.TableMetadataValue) and red["rows"].records[0].data == LOST
    assert red["lost"].value == 1.0 and red["recovery_s"].value == 1.25
    verdicts = red["verdicts"]
    assert isinstance(verdicts, dg.TableMetadataValue) and len(verdicts.records) == len(CHECKS)


def test_a_warning_is_shown_as_one_and_fails_no_run(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    success, found = drill(tmp_path, instance, monkeypatch, {"no_stray_files": Verdict.FAILED})
    warned = found["no_stray_files"]
    assert success and not warned.passed and warned.severity is dg.AssetCheckSeverity.WARN


def test_a_check_that_could_not_run_is_neither_green_nor_red(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    success, found = drill(tmp_path, instance, monkeypatch, {"epochs_whole": Verdict.COULD_NOT_RUN})
    assert not success and "epochs_whole" not in found
    assert len(found) == len(CHECKS) - 1 and all(check.passed for check in found.values())


def test_a_reader_that_saw_half_an_epoch_is_a_red_check(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    success, found = drill(tmp_path, instance, monkeypatch, violations=["read 7 saw part of epoch 3"])
    assert not success and set(found) == set(CHECKS)
    assert not found[READER].passed and found[READER].description == "read 7 saw part of epoch 3"


def test_the_figures_plot_on_the_asset_from_drill_to_drill(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    drill(tmp_path, instance, monkeypatch)
    (observed,) = instance.fetch_observations(SPEC.drills_key, limit=5).records
    seen: Any = observed.asset_observation.metadata
    for name in ("lost", "duplicated", "recovery_s", "recovery_s: slot-killed"):
        assert isinstance(seen[name], dg.FloatMetadataValue), name
    assert seen["verdict"].value == "passed"


def proved(instance: dg.DagsterInstance) -> tuple[str, str]:
    key = dg.AssetCheckKey(SPEC.stream_key, "drilled")
    record = instance.event_log_storage.get_latest_asset_check_execution_by_key([key])[key]
    assert record.event is not None and record.event.asset_check_evaluation is not None
    return record.status.value, record.event.asset_check_evaluation.severity.value


@pytest.mark.promise("H2")
def test_what_a_drill_has_proved_is_a_check_of_the_stream(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not proves(SPEC, None).passed and proves(SPEC, None).severity is dg.AssetCheckSeverity.WARN
    drill(tmp_path, instance, monkeypatch)
    assert proved(instance)[0] == "SUCCEEDED"
    drill(tmp_path, instance, monkeypatch, {"no_lost_duplicate_phantom_rows": Verdict.FAILED})
    assert proved(instance) == ("FAILED", "ERROR")


@pytest.mark.promise("F1")
def test_a_drill_runs_on_the_spark_of_its_job_unless_its_config_says_otherwise(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[LaunchOptions] = []

    def run(*_: Any, spark: LaunchOptions, **__: Any) -> DrillResult:
        asked.append(spark)
        return drilled(tmp_path, [])

    monkeypatch.setattr(checks.drill, "run_drill", run)
    monkeypatch.setattr(checks.audit, "run_audit", lambda *_, **__: audited({}))
    spec = replace(SPEC, master="spark://one:7077", conf={"a": "1"}, slot_memory_mb=512, max_slots=3)
    job = definitions(tmp_path, spec).resolve_job_def("numbers_drill")
    for config in ({}, {"master": "local[2]", "conf": {"b": "2"}, "slot_memory_mb": 256, "max_slots": 2}):
        assert job.execute_in_process(
            instance=instance, run_config={"ops": {"drills__numbers": {"config": config}}}
        ).success
    shown = [(one.spark_master, one.conf, one.slot_memory_mb, one.max_slots) for one in asked]
    assert shown == [
        ("spark://one:7077", {"a": "1"}, 512, 3),
        ("local[2]", {"a": "1", "b": "2"}, 256, 2),
    ]


@pytest.mark.promise("H2")
def test_the_launchpad_chooses_the_faults_and_the_record_shows_their_victims(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def run(*_: Any, faults: list[str], **__: Any) -> DrillResult:
        asked.append(faults)
        return drilled(tmp_path, [])

    monkeypatch.setattr(checks.drill, "run_drill", run)
    monkeypatch.setattr(checks.audit, "run_audit", lambda *_, **__: audited({}))
    job = definitions(tmp_path, SPEC).resolve_job_def("numbers_drill")
    for config in ({}, {"faults": ["jvm-killed", "random"]}):
        assert job.execute_in_process(
            instance=instance, run_config={"ops": {"drills__numbers": {"config": config}}}
        ).success
    assert asked == [["slot-killed"], ["jvm-killed", "random"]]
    event = instance.get_latest_materialization_event(SPEC.drills_key)
    assert event is not None and event.asset_materialization is not None
    seen = event.asset_materialization.metadata
    assert seen["faults"].value == "slot-killed" and "slot 0 (process 4711" in str(seen["victims"].value)
    assert seen["recovery_s: slot-killed"] == dg.FloatMetadataValue(1.25), "Dagster plots it"
    assert isinstance(seen["struck"], dg.TableMetadataValue)
    assert seen["struck"].records[0].data["cause"] == "slot_lost: slot process 4711"


@pytest.mark.promise("H2")
def test_each_fault_is_a_partition_which_drills_that_fault(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def run(*_: Any, faults: list[str], **__: Any) -> DrillResult:
        asked.append(faults)
        return drilled(tmp_path, [])

    monkeypatch.setattr(checks.drill, "run_drill", run)
    monkeypatch.setattr(checks.audit, "run_audit", lambda *_, **__: audited({}))
    made = definitions(tmp_path, replace(SPEC, drill_cron="0 3 * * *"))
    asset = made.resolve_asset_graph().get(SPEC.drills_key)
    assert asset.partitions_def is not None and asset.partitions_def.get_partition_keys() == [*CATALOGUE, RANDOM]
    job = made.resolve_job_def("numbers_drill")
    for name in ("slots-cut", "random"):
        assert job.execute_in_process(instance=instance, partition_key=name).success
    assert asked == [["slots-cut"], ["random"]]
    assert instance.get_materialized_partitions(SPEC.drills_key) == {"slots-cut", "random"}
    with dg.build_schedule_context(instance=instance, repository_def=made.get_repository_def()) as context:
        ticked = made.resolve_schedule_def("numbers_drills").evaluate_tick(context)
    assert ticked.run_requests is not None and [one.partition_key for one in ticked.run_requests] == [RANDOM]


@pytest.mark.promise("H2")
def test_each_drill_of_dagster_is_in_the_report_with_its_run(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    drill(tmp_path, instance, monkeypatch)

    def impossible(*_: Any, **__: Any) -> DrillResult:
        raise DrillFailed("no verdict: the JVM went on")

    monkeypatch.setattr(checks.drill, "run_drill", impossible)
    job = definitions(tmp_path, SPEC).resolve_job_def("numbers_drill")
    failed = job.execute_in_process(instance=instance, partition_key="jvm-hung", raise_on_error=False)
    assert not failed.success
    first, second = read_records(tmp_path, "numbers")
    assert (first.verdict, first.lost, first.faults) == (Verdict.PASSED, 1, ["slot-killed"]) and first.run
    assert (second.verdict, second.faults, second.run) == (Verdict.COULD_NOT_RUN, ["jvm-hung"], failed.run_id)
    page = (tmp_path / "drills" / "numbers" / REPORT).read_text()
    assert f'href="/runs/{first.run}"' in page and "no verdict: the JVM went on" in page
    (observed,) = instance.fetch_observations(SPEC.drills_key, limit=5).records
    seen: Any = observed.asset_observation
    assert str(seen.metadata["report"].value).endswith(f"drills/numbers/{REPORT}")


def test_an_audit_is_of_the_drill_of_its_own_run(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    drill(tmp_path, instance, monkeypatch)
    (own,) = instance.fetch_materializations(dg.AssetRecordsFilter(asset_key=SPEC.drills_key), limit=2).records
    other = replace_store(drilled(tmp_path, []), "another")
    metadata = {"drill": dg.MetadataValue.json(msgspec.to_builtins(other))}
    instance.report_runless_asset_event(dg.AssetMaterialization(SPEC.drills_key, metadata=metadata))
    assert last_drill(instance, SPEC, own.run_id).store == drilled(tmp_path, []).store
    assert last_drill(instance, SPEC, "of nobody").store == "another"


def replace_store(result: DrillResult, store: str) -> DrillResult:
    return msgspec.structs.replace(result, store=store)


def test_rows_with_different_columns_fit_one_table() -> None:
    table = rows_table([{"a": 1}, {"b": "x", "a": 2}])
    assert [column.name for column in table.schema.columns] == ["a", "b"]
    assert [column.type for column in table.schema.columns] == ["int", "string"]
    assert table.records[0].data == {"a": 1, "b": None}
