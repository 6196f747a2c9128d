"""Goal: the audit of production says on real Spark and Great Expectations what its facts say, and changes no table.

Topology: a job in this process (tests/checks/live.py), one Spark. Faults: a row altered, a file deleted, a stray entry.
Checks: verdicts, what is shown, the record, the exit codes of the command.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from checks import cli
from checks.live.audit import AUDITS_KEPT, run_live_audit
from checks.live.look import EPOCHS, FILES, LIVE_CHECKS, SPARK
from checks.results import AuditResult, Verdict
from engine.core.errors import WeirError
from tests.checks.live import JOB, ROWS, LiveJob
from tests.checks.small import changed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LiveJob:
    monkeypatch.setenv("WEIR_STATE", str(tmp_path / "state"))
    made = LiveJob(tmp_path / "store")
    made.run(12)
    return made


def red(result: AuditResult) -> set[str]:
    return {check.name for check in result.checks if check.verdict is Verdict.FAILED}


@pytest.mark.promise("H4")
def test_the_audit_of_a_live_table_is_green_then_red_when_a_row_was_altered_and_again_green(
    spark: SparkSession, job: LiveJob
) -> None:
    result = run_live_audit(str(job.folder), JOB, spark=spark)
    assert result.verdict is Verdict.PASSED, [check.summary for check in result.checks]
    assert (result.evaluated, result.expected, result.epoch) == (len(LIVE_CHECKS), len(LIVE_CHECKS), 12)
    assert result.figures["rows_read"] == 12 * ROWS and Path(result.data_docs).exists()
    path = job.files()[4]
    good = path.read_bytes()
    job.rewrite(path, changed(1, "n", -5))
    result = run_live_audit(str(job.folder), JOB, full=True, spark=spark)
    assert result.verdict is Verdict.FAILED and EPOCHS in red(result)
    (row,) = next([r for r in check.rows if r["epoch"]] for check in result.checks if check.name == EPOCHS)
    assert (row["table"], row["epoch"]) == ("pv", 3) and path.name in row["what"]
    assert result.figures["wrong_epochs"] == 1 and "epoch 3" in Path(result.data_docs).read_text()
    job.rewrite(path, changed(1, "n", pq.read_table(pa.BufferReader(good)).column("n")[1].as_py()))
    assert run_live_audit(str(job.folder), JOB, full=True, spark=spark).figures["wrong_epochs"] == 0
    assert len(list((job.folder / "audits" / JOB).iterdir())) == 3 <= AUDITS_KEPT


@pytest.mark.promise("H4")
def test_a_missing_file_is_failed_and_not_could_not_run(spark: SparkSession, job: LiveJob) -> None:
    assert run_live_audit(str(job.folder), JOB, spark=spark).verdict is Verdict.PASSED
    assert run_live_audit(str(job.folder), JOB, spark=spark).verdict is Verdict.PASSED, "also without a new file"
    job.files()[0].unlink()
    result = run_live_audit(str(job.folder), JOB, spark=spark)
    assert result.verdict is Verdict.FAILED and red(result) >= {FILES, EPOCHS}


@pytest.mark.promise("H4")
def test_what_spark_sees_is_compared_with_the_log_also_while_epochs_are_published(
    spark: SparkSession, job: LiveJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    from checks.live import audit

    looked = audit.look

    def then_more(*args: object, **options: object) -> object:
        found = looked(*args, **options)  # type: ignore[arg-type]
        job.run(11)
        return found

    monkeypatch.setattr(audit, "look", then_more)
    assert run_live_audit(str(job.folder), JOB, spark=spark).verdict is Verdict.PASSED

    def then_a_strange_one(*args: object, **options: object) -> object:
        found = looked(*args, **options)  # type: ignore[arg-type]
        job.drop(job.files()[-1])
        return found

    monkeypatch.setattr(audit, "look", then_a_strange_one)
    assert red(run_live_audit(str(job.folder), JOB, spark=spark)) == {SPARK}


@pytest.mark.promise("H4")
def test_the_command_says_so_with_its_exit_code(
    spark: SparkSession, job: LiveJob, capsys: pytest.CaptureFixture[str]
) -> None:
    import typer

    with pytest.raises(WeirError, match="no job"):
        cli.audit(JOB, str(job.folder), live=True)
    launch = job.folder / JOB / "run" / "launch.json"
    launch.parent.mkdir(parents=True)
    launch.write_text("{}")
    for code in (0, 1):
        with pytest.raises(typer.Exit) as ended:
            cli.audit(JOB, str(job.folder), live=True, full=True)
        assert ended.value.exit_code == code
        job.files()[0].unlink(missing_ok=True)
    assert "live: failed" in capsys.readouterr().out
    with pytest.raises(WeirError, match="add --live"):
        cli.audit(JOB, str(job.folder), full=True)
