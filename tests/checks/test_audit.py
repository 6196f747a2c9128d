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
from checks.plan import AGGREGATES, EPOCHS, EQUATIONS, EVIDENCE, FAULT, KEYS, ROWS, STRAY
from checks.results import AuditResult, CheckResult, Verdict
from checks.spec import AUDIT_CHECKS
from tests.checks import small, tampering
from tests.checks.small import RECORDS, SPEC, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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
    assert result.verdict is Verdict.PASSED and (result.evaluated, result.expected, result.epoch) == (12, 12, 12)
    assert result.figures["rows"] == result.figures["records"] == RECORDS and result.figures["aggregates"] == 66
    assert heard[-1].startswith("passed: 12 of 12 expectations") and shares == sorted(shares) and shares[-1] == 1
    assert msgspec.json.decode((drill / "audit.json").read_bytes(), type=AuditResult) == result
    assert spark.catalog.listTables() == [], "the session is left as it was"

    index = Path(result.data_docs)
    pages = list(index.parent.rglob("*.html"))
    assert len([page for page in pages if "validations" in page.parts]) == 4, "views, pv, epochs, files"
    for page in pages:
        assert not docs._REMOTE.search(page.read_text()), f"{page} loads something from elsewhere"
    addresses: list[str] = []
    ready = threading.Event()
    told = lambda url: (addresses.append(url), ready.set())  # noqa: E731
    threading.Thread(target=docs.serve, args=(index.parent, 0, docs.INDEX, told), daemon=True).start()
    assert ready.wait(60) and addresses[0].startswith("http://127.0.0.1:")
    served = urllib.request.urlopen(addresses[0], timeout=60).read().decode()
    assert "no_lost_duplicate_phantom_rows" in served and "passed" in served and "12 of 12" in served


def test_an_audit_of_what_is_no_drill_is_neither_pass_nor_fail(tmp_path: Path) -> None:
    result = run_audit(SPEC, tmp_path)
    assert verdicts(result) == dict.fromkeys(AUDIT_CHECKS, Verdict.COULD_NOT_RUN)
    assert result.verdict is Verdict.COULD_NOT_RUN and (result.evaluated, result.expected) == (0, 12)
    assert "there is no ledger" in summary(result, ROWS) and "no verdict" in summary(result, FAULT)


@pytest.mark.promise("H3")
def test_a_damaged_ledger_is_red_and_rows_are_compared_with_the_source_itself(drill: Path, spark: SparkSession) -> None:
    """The table and the ledger were changed together, and the ledger's plain checksums made again."""
    tampering.table_and_ledger(drill)
    result = run_audit(SPEC, drill, spark=spark)
    assert [name for name, verdict in verdicts(result).items() if verdict is not Verdict.PASSED] == [
        ROWS,
        EPOCHS,
        EVIDENCE,
    ]
    assert summary(result, ROWS) == "views: 1 differs" and "record 757 is" in summary(result, EVIDENCE)


@pytest.mark.promise("H3")
def test_a_hole_in_the_history_is_red_and_what_needs_it_could_not_run(drill: Path, spark: SparkSession) -> None:
    tampering.history_cut(drill)
    result = run_audit(SPEC, drill, spark=spark)
    wanted = dict.fromkeys(AUDIT_CHECKS, Verdict.COULD_NOT_RUN)
    assert verdicts(result) == wanted | {EVIDENCE: Verdict.FAILED, FAULT: Verdict.PASSED}
    assert "no record of epoch 5" in summary(result, EQUATIONS) and "epoch 5" in summary(result, EVIDENCE)
    assert result.verdict is Verdict.FAILED


@pytest.mark.promise("H3")
def test_a_copy_of_a_store_whose_original_is_gone_passes_and_a_stray_file_only_warns(
    drill: Path, tmp_path: Path, spark: SparkSession
) -> None:
    tampering.stray_file(drill)
    result = run_audit(SPEC, drill.rename(tmp_path / "elsewhere"), spark=spark)
    wanted = dict.fromkeys(AUDIT_CHECKS, Verdict.PASSED) | {STRAY: Verdict.FAILED}
    assert verdicts(result) == wanted, result.checks
    assert result.verdict is Verdict.PASSED and "table views, what part-00000-copied.parquet" in summary(result, STRAY)
    assert [check.name for check in result.checks if check.only_warns] == [STRAY]


def test_a_broken_query_says_so_and_blames_no_data(drill: Path, spark: SparkSession) -> None:
    broken = replace(SPEC, recomputation="SELECT app_id, ts AS window_start, ts AS window_end, 1 AS pv FROM {ledger}")
    result = run_audit(broken, drill, spark=spark)
    others = dict.fromkeys(set(AUDIT_CHECKS) - {AGGREGATES}, Verdict.PASSED)
    assert verdicts(result) == others | {AGGREGATES: Verdict.COULD_NOT_RUN}
    assert result.verdict is Verdict.COULD_NOT_RUN and (result.evaluated, result.expected) == (11, 12)
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
    red = {ROWS, AGGREGATES, KEYS, EPOCHS, STRAY}
    wanted = {check: Verdict.FAILED if check in red else Verdict.PASSED for check in AUDIT_CHECKS}
    assert verdicts(result) == wanted, result.checks
    assert result.verdict is Verdict.FAILED and result.figures["aggregates_lost"] == 66
    assert summary(result, KEYS) == "1 rows against: views: view_id is never NULL"


@pytest.mark.promise("H3")
def test_a_file_that_readers_can_not_read_is_failed_and_its_rows_are_lost(drill: Path, spark: SparkSession) -> None:
    """Readers have lost data. That is no problem of the audit."""
    tampering.file_truncated(drill)
    tampering.table_record_missing(drill)
    result = run_audit(SPEC, drill, spark=spark)
    red = {ROWS, EPOCHS, STRAY}
    wanted = {check: Verdict.FAILED if check in red else Verdict.PASSED for check in AUDIT_CHECKS}
    assert verdicts(result) == wanted, result.checks
    assert result.figures["lost"] == small.PER_EPOCH // 2 + small.PER_EPOCH, "of epoch 4 one file of two, and epoch 11"
    assert "table views, epoch 4" in summary(result, EPOCHS)


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
    assert (result.evaluated, result.expected) == (9 + kept, 12)
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
    warned = CheckResult("stray", Verdict.FAILED, "", warning=True)
    passed = CheckResult("rows", Verdict.PASSED, "")
    assert AuditResult("job", 1, [passed, warned], 2, 2, {}).verdict is Verdict.PASSED
    assert AuditResult("job", 1, [warned], 1, 1, {}).verdict is Verdict.COULD_NOT_RUN
