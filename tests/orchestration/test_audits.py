"""Goal: Dagster shows the verdict of an audit of the live tables. The job is tests/checks/live.py, Spark is faked away.

The audit itself runs: its files, its record and its facts. Only Great Expectations and Spark are left out, by a judge
that takes the facts as they are; tests/checks/test_live_audit_on_spark.py has both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

import checks.live.audit
from checks.live.audit import look
from checks.live.look import LIVE_CHECKS
from checks.results import AuditResult, CheckResult, Verdict
from checks.seal import KEY
from orchestration.alerts import _checks
from orchestration.resources import WeirStore
from tests.checks.live import JOB, LiveJob
from tests.checks.small import without
from tests.orchestration.jobs import NUMBERS, definitions

SPEC = replace(NUMBERS, job=JOB, audit_cron="15 * * * *")


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dg.DagsterInstance]:
    (tmp_path / "dagster").mkdir()
    monkeypatch.setenv("WEIR_STATE", str(tmp_path / "state"))
    monkeypatch.setenv(KEY, "the key of the tests")
    monkeypatch.setattr(checks.live.audit, "run_live_audit", audited)
    with dg.DagsterInstance.local_temp(str(tmp_path / "dagster")) as made:
        yield made


def audited(store: str, job: str, *, within: int, full: bool, **_: Any) -> AuditResult:
    tables, ledger = look(store, job, within=within, full=full)
    wrong: dict[str, str] = {}
    for fact in (fact for table in tables for fact in table.facts if not fact.holds):
        wrong[fact.check] = f"{wrong.get(fact.check, '')}{fact} "
    found = [
        CheckResult(name, Verdict.FAILED if name in wrong else Verdict.PASSED, wrong.get(name, meaning))
        for name, meaning in LIVE_CHECKS.items()
    ]
    return AuditResult(job, ledger.newest, found, 5, 5, {"rows_read": 1.0})


def run(store: Path, instance: dg.DagsterInstance) -> tuple[bool, dict[str, bool]]:
    job = definitions(store, SPEC).resolve_job_def(f"{JOB}_audit")
    result = job.execute_in_process(instance=instance, raise_on_error=False)
    return result.success, {e.check_name: e.passed for e in result.get_asset_check_evaluations()}


@pytest.mark.promise("H4")
def test_an_audit_is_a_materialization_with_checks_and_a_red_one_fails_its_run_and_is_an_incident(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    job = LiveJob(tmp_path / "store")
    job.run(3)
    assert run(job.folder, instance) == (True, dict.fromkeys(LIVE_CHECKS, True))
    assert _checks(instance, SPEC)[0] == {}
    job.rewrite(job.files()[2], without(1))
    success, found = run(job.folder, instance)
    assert not success and set(found) == set(LIVE_CHECKS), "all checks are reported first"
    assert [name for name, passed in found.items() if not passed] == ["epochs_as_counted"]
    red, _ = _checks(instance, SPEC)
    assert list(red) == [f"audits/{JOB} epochs_as_counted"] and "epoch=2" in red[f"audits/{JOB} epochs_as_counted"]
    event = instance.get_latest_materialization_event(SPEC.audits_key)
    assert event is not None and event.asset_materialization is not None
    assert event.asset_materialization.metadata["epoch"].value == "3"


@pytest.mark.promise("H4")
def test_the_schedule_waits_for_the_first_epoch(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    job = LiveJob(tmp_path / "store")
    made = definitions(job.folder, SPEC)
    schedule, repository = made.resolve_schedule_def(f"{JOB}_audits"), made.get_repository_def()
    weir = {"weir": WeirStore(path=str(job.folder))}

    def tick() -> dg.ScheduleExecutionData:
        with dg.build_schedule_context(instance, repository_def=repository, resources=weir) as context:
            return schedule.evaluate_tick(context)

    assert not tick().run_requests
    job.run(1)
    launch = job.folder / JOB / "run" / "launch.json"
    launch.parent.mkdir(parents=True)
    launch.write_text("{}")
    assert len(tick().run_requests or ()) == 1
