"""Goal: an audit passes only on proof. A check that could not be evaluated neither passes nor fails, and says why."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from checks import docs
from checks.audit import run_audit
from checks.expectations import Evaluated, Expectation
from checks.plan import AGGREGATES, EPOCHS, EQUATIONS, KEYS, ROWS
from checks.results import AuditResult, CheckResult, Verdict
from checks.spec import AUDIT_CHECKS
from tests.checks import small
from tests.checks.small import RECORDS, SPEC, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def drill(tmp_path: Path) -> Path:
    small.build(tmp_path / "drill")
    return tmp_path / "drill"


def verdicts(result: AuditResult) -> dict[str, Verdict]:
    return {check.name: check.verdict for check in result.checks}


def summary(result: AuditResult, check: str) -> str:
    return next(one.summary for one in result.checks if one.name == check)


@pytest.mark.promise("H3")
def test_a_drill_without_faults_passes_and_its_data_docs_need_no_internet(drill: Path, spark: SparkSession) -> None:
    heard: list[str] = []
    shares: list[float] = []
    result = run_audit(SPEC, drill, spark=spark, progress=heard.append, share=shares.append)
    assert verdicts(result) == dict.fromkeys(AUDIT_CHECKS, Verdict.PASSED), result.checks
    assert result.verdict is Verdict.PASSED and (result.evaluated, result.expected, result.epoch) == (8, 8, 12)
    assert result.figures["rows"] == result.figures["records"] == RECORDS and result.figures["aggregates"] == 66
    assert heard[-1].startswith("passed: 8 of 8 expectations") and shares == sorted(shares) and shares[-1] == 1
    assert msgspec.json.decode((drill / "audit.json").read_bytes(), type=AuditResult) == result
    assert spark.catalog.listTables() == [], "the session is left as it was"

    index = Path(result.data_docs)
    pages = list(index.parent.rglob("*.html"))
    assert len([page for page in pages if "validations" in page.parts]) == 3, "views, pv, epochs"
    for page in pages:
        assert not docs._REMOTE.search(page.read_text()), f"{page} loads something from elsewhere"
    addresses: list[str] = []
    ready = threading.Event()
    told = lambda url: (addresses.append(url), ready.set())  # noqa: E731
    threading.Thread(target=docs.serve, args=(index.parent, 0, told), daemon=True).start()
    assert ready.wait(60) and addresses[0].startswith("http://127.0.0.1:")
    served = urllib.request.urlopen(addresses[0], timeout=60).read().decode()
    assert "no_lost_duplicate_phantom_rows" in served and "passed" in served and "8 of 8" in served


def test_an_audit_without_a_ledger_is_neither_pass_nor_fail(drill: Path) -> None:
    (drill / "ledger" / "_seal.json").unlink()
    result = run_audit(SPEC, drill)
    assert verdicts(result) == dict.fromkeys(AUDIT_CHECKS, Verdict.COULD_NOT_RUN)
    assert result.verdict is Verdict.COULD_NOT_RUN and (result.evaluated, result.expected) == (0, 8)
    assert "there is no ledger" in summary(result, ROWS)


def test_a_damaged_ledger_is_not_compared_with(drill: Path) -> None:
    file = drill / "ledger" / "records-00000.parquet"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    result = run_audit(SPEC, drill)
    assert result.verdict is Verdict.COULD_NOT_RUN
    assert "is not what was written" in summary(result, ROWS)


def test_a_hole_in_the_history_is_said(drill: Path) -> None:
    events = drill / small.PATHS.history("events.jsonl")
    lines = events.read_text().splitlines()
    events.write_text("\n".join([*lines[:4], *lines[5:]]) + "\n")
    result = run_audit(SPEC, drill)
    assert result.verdict is Verdict.COULD_NOT_RUN
    assert "no record of epoch 5" in summary(result, EQUATIONS)


def test_a_broken_query_says_so_and_blames_no_data(drill: Path, spark: SparkSession) -> None:
    broken = replace(SPEC, recomputation="SELECT app_id, ts AS window_start, ts AS window_end, 1 AS pv FROM {ledger}")
    result = run_audit(broken, drill, spark=spark)
    others = dict.fromkeys(set(AUDIT_CHECKS) - {AGGREGATES}, Verdict.PASSED)
    assert verdicts(result) == others | {AGGREGATES: Verdict.COULD_NOT_RUN}
    assert result.verdict is Verdict.COULD_NOT_RUN and (result.evaluated, result.expected) == (7, 8)
    assert "bytes" in summary(result, AGGREGATES), "the error's own text names the missing column"


def test_a_recomputation_that_is_no_sql_spoils_no_other_check(drill: Path, spark: SparkSession) -> None:
    result = run_audit(replace(SPEC, recomputation="SELECT nothing FROM nowhere"), drill, spark=spark)
    others = dict.fromkeys(set(AUDIT_CHECKS) - {AGGREGATES}, Verdict.PASSED)
    assert verdicts(result) == others | {AGGREGATES: Verdict.COULD_NOT_RUN}
    assert "nowhere" in summary(result, AGGREGATES)


@pytest.mark.promise("H3")
def test_a_lost_row_is_red_even_if_the_other_table_is_gone(drill: Path, spark: SparkSession) -> None:
    Table(drill, SPEC.rows).rewrite(4, small.changed(7, "view_id", None))
    metadata = Table(drill, SPEC.aggregates).folder / "_spark_metadata"
    metadata.rename(metadata.with_name("elsewhere"))
    result = run_audit(SPEC, drill, spark=spark)
    assert verdicts(result) == {
        ROWS: Verdict.FAILED,
        AGGREGATES: Verdict.COULD_NOT_RUN,
        KEYS: Verdict.FAILED,
        EPOCHS: Verdict.COULD_NOT_RUN,
        EQUATIONS: Verdict.PASSED,
    }
    assert result.verdict is Verdict.FAILED and "there is no Weir table 'pv'" in summary(result, KEYS)


def test_a_table_that_is_gone_or_unreadable_could_not_be_audited(drill: Path, spark: SparkSession) -> None:
    views = Table(drill, SPEC.rows)
    next(views.folder.glob("*.parquet")).write_bytes(b"not Parquet")
    metadata = Table(drill, SPEC.aggregates).folder / "_spark_metadata"
    metadata.rename(metadata.with_name("elsewhere"))
    result = run_audit(SPEC, drill, spark=spark)
    wanted = dict.fromkeys((ROWS, AGGREGATES, KEYS, EPOCHS), Verdict.COULD_NOT_RUN) | {EQUATIONS: Verdict.PASSED}
    assert verdicts(result) == wanted
    assert "there is no Weir table 'pv'" in summary(result, AGGREGATES)
    assert (result.evaluated, result.expected) == (1, 8)


@pytest.mark.parametrize("kept", [0, 2], ids=["an empty suite", "a suite that skips one"])
def test_expectations_that_were_not_evaluated_are_missed(
    kept: int, drill: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    from checks._gx import Suites

    whole = Suites.validate

    def validate(self: Any, name: str, frame: DataFrame, expectations: Sequence[Expectation]) -> list[Evaluated]:
        if name != SPEC.rows.name:
            return whole(self, name, frame, expectations)
        return whole(self, name, frame, expectations[:kept])

    monkeypatch.setattr(Suites, "validate", validate)
    result = run_audit(SPEC, drill, spark=spark)
    assert (result.evaluated, result.expected) == (5 + kept, 8)
    assert result.verdict is Verdict.COULD_NOT_RUN
    assert verdicts(result)[EPOCHS] is Verdict.COULD_NOT_RUN and "not evaluated" in summary(result, EPOCHS)
    assert verdicts(result)[ROWS] is (Verdict.PASSED if kept else Verdict.COULD_NOT_RUN)


def test_a_failed_check_makes_the_verdict_failed_even_if_another_could_not_run() -> None:
    def audit(*found: Verdict, evaluated: int = 2) -> Verdict:
        checks = [CheckResult(str(n), verdict, "") for n, verdict in enumerate(found)]
        return AuditResult("job", 1, checks, evaluated, 2, {}).verdict

    assert audit(Verdict.PASSED, Verdict.PASSED) is Verdict.PASSED
    assert audit(Verdict.PASSED, Verdict.FAILED) is Verdict.FAILED
    assert audit(Verdict.PASSED, Verdict.COULD_NOT_RUN) is Verdict.COULD_NOT_RUN
    assert audit(Verdict.FAILED, Verdict.COULD_NOT_RUN) is Verdict.FAILED
    assert audit(Verdict.PASSED, Verdict.PASSED, evaluated=1) is Verdict.COULD_NOT_RUN
    assert audit(evaluated=0) is Verdict.COULD_NOT_RUN
