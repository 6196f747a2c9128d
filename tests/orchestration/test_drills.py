"""Goal: Dagster shows a drill's verdict: each check passed, failed or could not run. Drill and audit are faked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

import checks.audit
import checks.drill
from assets.pageviews.drill import DRILL
from checks.results import AuditResult, CheckResult, DrillResult, Verdict
from checks.spec import AUDIT_CHECKS, WARNINGS
from orchestration.drills import CHECKS, READER
from orchestration.metadata import rows_table
from tests.orchestration.jobs import NUMBERS, definitions

SPEC = replace(NUMBERS, drill=DRILL)
LOST = {"label": "lost", "view_id": 7}


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


def drilled(store: Path, violations: list[str]) -> DrillResult:
    return DrillResult("numbers", str(store / "drills/numbers/1"), 200_000, 1, 1.25, 1, 12, 40, violations, 1, 60.0)


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
    for name in ("lost", "duplicated", "recovery_s"):
        assert isinstance(seen[name], dg.FloatMetadataValue), name
    assert seen["verdict"].value == "passed"


def test_rows_with_different_columns_fit_one_table() -> None:
    table = rows_table([{"a": 1}, {"b": "x", "a": 2}])
    assert [column.name for column in table.schema.columns] == ["a", "b"]
    assert [column.type for column in table.schema.columns] == ["int", "string"]
    assert table.records[0].data == {"a": 1, "b": None}
