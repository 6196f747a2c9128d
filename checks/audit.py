"""The audit of a drill: Great Expectations on Spark compare the job's tables with the source-side ledger.

Every check is PASSED, FAILED or COULD_NOT_RUN; the last says nothing about the data. An expectation counts as
evaluated only if Great Expectations returned a result for it without an exception. An audit passes only if all planned
expectations were evaluated: an empty suite, or one that skipped an expectation, proves nothing.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from checks import queries
from checks.docs import finish_docs
from checks.expectations import Evaluated, NoRows
from checks.history import EpochTotals, equations, per_epoch, read_epochs
from checks.ledger import open_ledger
from checks.needs import need_great_expectations
from checks.plan import AGGREGATES, HISTORY, Planned, plan
from checks.results import AuditResult, CheckResult, Verdict
from checks.session import session
from checks.spec import AUDIT_CHECKS, LEDGER, AuditedTable, DrillSpec
from checks.tablelog import epoch_rows
from engine.core.errors import WeirError
from engine.core.paths import JobPaths
from engine.protocol import ledger

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from checks._gx import Suites

EXAMPLES = 20
"""How many wrong rows a failed expectation shows."""
COMPILE_FROM = 1_000_000
"""Above this number of records Spark's code generation saves more time than it costs."""

FIGURES = {
    queries.LOST: "lost",
    queries.DUPLICATE: "duplicated",
    queries.PHANTOM: "phantom",
    queries.DIFFERS: "differing",
}
"""The figure that counts the rows of each label in the raw table. The aggregates' figures begin with `aggregates_`."""

Say = Callable[[str], None]
Share = Callable[[float], None]


class AuditImpossible(WeirError):
    """Something that the audit needs is missing."""


@dataclass
class Answers:
    """The results of all expectations, by check. `problems` says why some could not be evaluated."""

    evaluated: list[tuple[str, Evaluated]] = field(default_factory=list)
    problems: dict[str, list[str]] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)

    def could_not_run(self, check: str, why: object) -> None:
        known = self.problems.setdefault(check, [])
        text = _first_lines(str(why) or type(why).__name__)
        if text not in known:
            known.append(text)


def run_audit(
    spec: DrillSpec,
    store: str | Path,
    *,
    spark: SparkSession | None = None,
    progress: Say = lambda text: None,
    share: Share = lambda done: None,
) -> AuditResult:
    """Audits a drill; `store` is the drill's own folder (`DrillResult.store`).

    Without `spark` it uses the session of this process; if there is none, it starts one and stops it at the end. It
    does not raise for problems of the data, the store or the machine: they are part of the verdict.
    """
    folder, started = Path(store).absolute(), time.monotonic()
    answers, suites = Answers(), plan(spec)
    expected = sum(len(planned) for planned in suites.values())
    epoch, docs = 0, ""
    try:
        need_great_expectations("an audit")
        seal, files = open_ledger(folder)
        epochs = read_epochs(folder, spec.job)
        epoch = epochs[-1].epoch
        answers.figures |= {"records": seal.records, "epochs": epoch}
        progress(f"ledger of {seal.records:,} records, {epoch} epochs; starting Spark and Great Expectations")
        share(0.05)
        with session(spark, folder / "audit.log", compiled=seal.records > COMPILE_FROM) as running:
            audit = _Audit(spec, folder, seal.records, files, epochs, running, answers, progress, share)
            docs = audit.run(suites)
    except Exception as error:
        for check in AUDIT_CHECKS:
            answers.could_not_run(check, error)
    evaluated = sum(1 for _, one in answers.evaluated if not one.error)
    checks = [judge(check, answers, meaning) for check, meaning in AUDIT_CHECKS.items()]
    result = AuditResult(spec.job, epoch, checks, evaluated, expected, answers.figures, docs)
    if docs:
        finish_docs(Path(docs).parent, result)
    if folder.is_dir():
        (folder / "audit.json").write_bytes(msgspec.json.format(msgspec.json.encode(result)))
    share(1.0)
    progress(f"{result.verdict.value}: {evaluated} of {expected} expectations, {time.monotonic() - started:.0f} s")
    return result


class _Audit:
    """Validates each suite against its DataFrame, and collects the answers."""

    def __init__(
        self,
        spec: DrillSpec,
        folder: Path,
        records: int,
        files: Sequence[Path],
        epochs: list[EpochTotals],
        spark: SparkSession,
        answers: Answers,
        say: Say,
        share: Share,
    ) -> None:
        self._spec = spec
        self._folder = folder
        self._records = records
        self._files = files
        self._epochs = epochs
        self._spark = spark
        self._answers = answers
        self._say = say
        self._share = share
        self._cached: list[DataFrame] = []

    def run(self, suites: dict[str, list[Planned]]) -> str:
        """Returns the path of the Data Docs; empty if they could not be written, which does not change the verdict."""
        from checks._gx import Suites

        docs = self._folder / "data_docs"
        shutil.rmtree(docs, ignore_errors=True)
        validator = Suites(docs)
        frames = {
            self._spec.rows.name: lambda: self._table(self._spec.rows),
            self._spec.aggregates.name: lambda: self._table(self._spec.aggregates),
            HISTORY: self._equations,
        }
        try:
            self._prepare()
            for number, (name, planned) in enumerate(suites.items()):
                self._share(0.4 + 0.5 * number / len(suites))
                self._say(f"{name}: {', '.join(dict.fromkeys(one.check for one in planned))}")
                self._validate(validator, name, frames[name], planned)
            self._share(0.9)
            return self._write_docs(validator)
        finally:
            with contextlib.suppress(Exception):
                self._forget()

    def _write_docs(self, validator: Suites) -> str:
        try:
            return str(validator.write_docs())
        except Exception as error:
            self._say(f"the Data Docs could not be written: {error}")
            return ""

    def _prepare(self) -> None:
        self._view(LEDGER, self._spark.read.schema(self._spec.rows.schema).parquet(*map(str, self._files)))
        try:
            self._view(queries.EXPECTED, self._spark.sql(self._spec.recomputation_sql()))
        except Exception as error:
            self._answers.could_not_run(AGGREGATES, error)

    def _forget(self) -> None:
        """Removes the audit's views and caches, since the session may be the caller's."""
        for view in (LEDGER, queries.EXPECTED, queries.EPOCH_FILES, queries.BATCH):
            self._spark.catalog.dropTempView(view)
        for frame in self._cached:
            frame.unpersist()

    def _validate(
        self, validator: Suites, name: str, frame: Callable[[], DataFrame], planned: Sequence[Planned]
    ) -> None:
        """Evaluates one suite. An error is a problem of this suite's checks only."""
        try:
            data = self._kept(frame())
            results = validator.validate(name, data, [one.expectation for one in planned])
        except Exception as error:
            for one in planned:
                self._answers.could_not_run(one.check, error)
            return
        for one in planned:
            answered = [result for result in results if result.expectation is one.expectation]
            if len(answered) != 1:
                self._answers.could_not_run(one.check, f"not evaluated: {one.expectation.meaning}")
            self._answers.evaluated += [(one.check, result) for result in answered]
        with contextlib.suppress(Exception):  # without figures the verdict stands
            self._count(name, data, [result for result in results if result.expectation is planned[0].expectation])

    def _count(self, name: str, data: DataFrame, compared: Sequence[Evaluated]) -> None:
        """Counts the rows of a table, and the wrong ones by label, for the figures."""
        counted = {self._spec.rows.name: ("rows", ""), self._spec.aggregates.name: ("aggregates", "aggregates_")}
        if name not in counted:
            return
        total, prefix = counted[name]
        self._answers.figures[total] = data.count()
        labels = {label: prefix + figure for label, figure in FIGURES.items()}
        for result in compared:
            if result.error or not isinstance(result.expectation, NoRows):
                continue
            self._answers.figures.update(dict.fromkeys(labels.values(), 0))
            if not result.success:
                data.createOrReplaceTempView(queries.BATCH)
                for row in self._spark.sql(queries.by_label(result.expectation.query)).collect():
                    self._answers.figures[labels[row["label"]]] = int(row["rows"])

    def _table(self, table: AuditedTable) -> DataFrame:
        from checks.spark import read_published

        folder = self._folder / JobPaths(self._spec.job).table(table.name)
        if not (folder / "_spark_metadata").is_dir():
            raise AuditImpossible(f"there is no Weir table {table.name!r} in {folder}")
        self._view(queries.EPOCH_FILES, self._epoch_files(table, folder))
        return read_published(self._spark, str(folder), table).selectExpr(
            "*", "_metadata.file_name AS file", "_metadata.row_index AS row_index"
        )

    def _epoch_files(self, table: AuditedTable, folder: Path) -> DataFrame:
        name = ledger.sink_rows(table.uid)
        counted = [(epoch, None, None, None, added.get(name, 0)) for epoch, added in per_epoch(self._epochs)]
        published = [
            (part.epoch, part.file, part.first, None if part.rows is None else part.first + part.rows, None)
            for part in epoch_rows(folder)
        ]
        columns = "epoch long, file string, first long, behind long, rows long"
        return self._spark.createDataFrame([*counted, *published], columns)

    def _equations(self) -> DataFrame:
        found = equations(self._spec, self._epochs, self._records)
        rows = [(one.epoch, one.what, one.left, one.right) for one in found]
        return self._spark.createDataFrame(rows, "epoch long, what string, left long, right long")

    def _view(self, name: str, frame: DataFrame) -> None:
        self._kept(frame).createOrReplaceTempView(name)

    def _kept(self, frame: DataFrame) -> DataFrame:
        self._cached.append(frame.persist())
        return frame


def judge(check: str, answers: Answers, meaning: str) -> CheckResult:
    """Returns FAILED if one of the check's expectations failed, PASSED only if all passed, else COULD_NOT_RUN.

    `meaning` is what the check says when it passes.
    """
    mine = [one for name, one in answers.evaluated if name == check]
    failed = [one for one in mine if not one.success and not one.error]
    problems = [*answers.problems.get(check, []), *(_first_lines(one.error) for one in mine if one.error)]
    if failed:
        rows = [_plain(row) for one in failed for row in one.rows[:EXAMPLES]]
        said = "; ".join([*(_said(one) for one in failed), *problems])
        return CheckResult(check, Verdict.FAILED, said, sum(one.unexpected for one in failed), rows)
    if problems or not mine:
        return CheckResult(check, Verdict.COULD_NOT_RUN, "; ".join(dict.fromkeys(problems)) or "it was not evaluated")
    return CheckResult(check, Verdict.PASSED, meaning)


def _said(one: Evaluated) -> str:
    """Describes a failed expectation in a few words, by label if its rows have labels."""
    labels = [row["label"] for row in one.rows if "label" in row]
    if labels and len(one.rows) == one.unexpected:
        return ", ".join(f"{labels.count(label)} {label}" for label in dict.fromkeys(labels))
    if labels:
        return f"{one.unexpected} keys: {', '.join(dict.fromkeys(labels))}, …"
    if one.rows:
        more = f" and {one.unexpected - 1} more" if one.unexpected > 1 else ""
        return ", ".join(f"{name} {value}" for name, value in one.rows[0].items()) + more
    return f"{one.unexpected} rows against: {one.expectation.meaning}"


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Returns the row with values that JSON can hold; all others become text."""
    return {k: v if isinstance(v, int | float | str | bool | None) else str(v) for k, v in row.items()}


def _first_lines(text: str, limit: int = 600) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    short = " ".join(lines[:3])
    return short if len(short) <= limit else short[:limit] + " …"
