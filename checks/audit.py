"""The audit of a drill: Great Expectations on Spark hold the job's tables against the source-side ledger.

Every check is PASSED, FAILED, or COULD_NOT_RUN; the last says nothing about the data. An expectation counts as
evaluated only if Great Expectations returned a result for it without an exception, and all planned ones must be: an
empty suite, or one that skipped something, is no proof.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from checks import queries
from checks.expectations import Evaluated, Expectation, NoRows, NotNull
from checks.history import EpochTotals, equations, per_epoch, read_epochs
from checks.ledger import Seal, open_ledger
from checks.results import AuditResult, CheckResult, Verdict
from checks.spec import AUDIT_CHECKS, LEDGER, AuditedTable, DrillSpec
from checks.tablelog import epoch_files
from engine.protocol import ledger
from engine.runtime.errors import WeirError
from engine.snapshot.paths import JobPaths

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS, AGGREGATES, KEYS, EPOCHS, EQUATIONS = AUDIT_CHECKS
EXAMPLES = 20
"""Rows shown of what is wrong."""
COMPILE_FROM = 1_000_000
"""Records from which Spark's compiled code is worth its price."""

FIGURES = {
    queries.LOST: "lost",
    queries.DUPLICATE: "duplicated",
    queries.PHANTOM: "phantom",
    queries.DIFFERS: "differing",
}
"""By label: how many rows of the raw table; for the aggregates with `aggregates_` before it."""

Say = Callable[[str], None]
Share = Callable[[float], None]


class AuditImpossible(WeirError):
    """Something that the audit needs is not there."""


@dataclass(frozen=True)
class Planned:
    """One expectation, and the check that it speaks for."""

    check: str
    expectation: Expectation


@dataclass
class Answers:
    """What became of each check's expectations."""

    planned: int = 0
    evaluated: list[tuple[str, Evaluated]] = field(default_factory=list)
    problems: dict[str, list[str]] = field(default_factory=dict)

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
    """Audit a drill; `store` is the drill's own folder (`DrillResult.store`).

    Without `spark`, and where none is running in this process, it starts one and stops it. It does not raise for what
    the data, the store or the machine is like: that is a verdict.
    """
    folder = Path(store).absolute()
    answers, epoch, docs = Answers(), 0, ""
    figures: dict[str, float] = {}
    started = time.monotonic()
    try:
        seal, files = open_ledger(folder)
        epochs = read_epochs(folder, spec.job)
        epoch = epochs[-1].epoch
        figures |= {"records": seal.records, "epochs": epoch}
        progress(f"ledger of {seal.records:,} records, {epoch} epochs; starting Spark and Great Expectations")
        share(0.05)
        with _session(spark, folder / "audit.log", compiled=seal.records > COMPILE_FROM) as session:
            audit = _Audit(spec, folder, seal, files, epochs, session, answers, figures, progress, share)
            try:
                docs = str(audit.run())
            finally:
                audit.forget()
    except Exception as error:
        for check in AUDIT_CHECKS:
            answers.could_not_run(check, error)
    answers.planned = answers.planned or _expected_count(spec)
    evaluated = sum(1 for _, one in answers.evaluated if not one.error)
    checks = [_judge(check, answers) for check in AUDIT_CHECKS]
    result = AuditResult(spec.job, epoch, checks, evaluated, answers.planned, figures, docs)
    if docs:
        from checks.docs import finish_docs

        finish_docs(Path(docs).parent, result)
    if folder.is_dir():
        (folder / "audit.json").write_bytes(msgspec.json.format(msgspec.json.encode(result)))
    share(1.0)
    progress(
        f"{result.verdict.value}: {evaluated} of {answers.planned} expectations, {time.monotonic() - started:.0f} s"
    )
    return result


class _Audit:
    def __init__(
        self,
        spec: DrillSpec,
        folder: Path,
        seal: Seal,
        files: Sequence[Path],
        epochs: list[EpochTotals],
        spark: SparkSession,
        answers: Answers,
        figures: dict[str, float],
        say: Say,
        share: Share,
    ) -> None:
        self._spec = spec
        self._folder = folder
        self._seal = seal
        self._files = files
        self._epochs = epochs
        self._spark = spark
        self._answers = answers
        self._figures = figures
        self._say = say
        self._share = share
        self._cached: list[DataFrame] = []

    def run(self) -> Path:
        from checks._gx import Suites

        spec, docs = self._spec, self._folder / "data_docs"
        shutil.rmtree(docs, ignore_errors=True)
        suites = Suites(docs)
        self._share(0.4)
        self._view(LEDGER, self._spark.read.schema(spec.rows.schema).parquet(*map(str, self._files)))
        self._view(queries.EXPECTED, self._spark.sql(spec.recomputation_sql()))
        rows = differences_of(spec.rows, ROWS, LEDGER)
        aggregates = differences_of(spec.aggregates, AGGREGATES, queries.EXPECTED)
        self._validate(suites, spec.rows.name, lambda: self._table(spec.rows), rows)
        self._share(0.6)
        self._validate(suites, spec.aggregates.name, lambda: self._table(spec.aggregates), aggregates)
        self._share(0.8)
        self._validate(suites, "epochs", self._equations, ledger_expectations())
        self._share(0.9)
        return suites.write_docs()

    def forget(self) -> None:
        """Leave a session that is not ours as it was."""
        for view in (LEDGER, queries.EXPECTED, queries.EPOCH_FILES, "tmp_view"):
            self._spark.catalog.dropTempView(view)
        for frame in self._cached:
            frame.unpersist()

    def _validate(self, suites: Any, name: str, frame: Callable[[], DataFrame], planned: Sequence[Planned]) -> None:
        """Whatever goes wrong here is a problem of the checks planned, and of no other."""
        self._answers.planned += len(planned)
        self._say(f"{name}: {', '.join(dict.fromkeys(plan.check for plan in planned))}")
        try:
            data = self._kept(frame())
            results = suites.validate(name, data, [plan.expectation for plan in planned])
            self._count(name, data, planned, results)
        except Exception as error:
            for plan in planned:
                self._answers.could_not_run(plan.check, error)
            return
        for plan in planned:
            answered = [one for one in results if one.expectation is plan.expectation]
            if len(answered) != 1:
                self._answers.could_not_run(plan.check, f"not evaluated: {plan.expectation.meaning}")
            self._answers.evaluated += [(plan.check, one) for one in answered]

    def _count(self, name: str, data: DataFrame, planned: Sequence[Planned], results: Sequence[Evaluated]) -> None:
        """Figures: how many rows there are, and how many of them are wrong in which way."""
        counted = {self._spec.rows.name: ("rows", ""), self._spec.aggregates.name: ("aggregates", "aggregates_")}
        if name not in counted:
            return
        total, prefix = counted[name]
        self._figures[total] = data.count()
        labels = {label: prefix + figure for label, figure in FIGURES.items()}
        compared = next((one for one in results if one.expectation is planned[0].expectation), None)
        if compared is None or compared.error or not isinstance(compared.expectation, NoRows):
            return
        self._figures.update(dict.fromkeys(labels.values(), 0))
        if not compared.success:
            data.createOrReplaceTempView("tmp_view")
            for row in self._spark.sql(queries.by_label(compared.expectation.query, "tmp_view")).collect():
                self._figures[labels[row["label"]]] = int(row["rows"])

    def _table(self, table: AuditedTable) -> DataFrame:
        from checks.spark import read_published

        folder = self._folder / JobPaths(self._spec.job).table(table.name)
        if not (folder / "_spark_metadata").is_dir():
            raise AuditImpossible(f"there is no Weir table {table.name!r} in {folder}")
        self._view(queries.EPOCH_FILES, self._epoch_files(table, folder))
        return read_published(self._spark, str(folder), table).selectExpr("*", "_metadata.file_name AS file")

    def _epoch_files(self, table: AuditedTable, folder: Path) -> DataFrame:
        counted = [(epoch, None, added.get(ledger.sink_rows(table.uid), 0)) for epoch, added in per_epoch(self._epochs)]
        published = [(epoch, name, None) for epoch, names in epoch_files(folder).items() for name in names]
        return self._spark.createDataFrame([*counted, *published], "epoch long, file string, rows long")

    def _equations(self) -> DataFrame:
        found = equations(self._spec, self._epochs, self._seal.records)
        rows = [(one.epoch, one.what, one.left, one.right) for one in found]
        return self._spark.createDataFrame(rows, "epoch long, what string, left long, right long")

    def _view(self, name: str, frame: DataFrame) -> None:
        self._kept(frame).createOrReplaceTempView(name)

    def _kept(self, frame: DataFrame) -> DataFrame:
        self._cached.append(frame.persist())
        return frame


def differences_of(table: AuditedTable, check: str, expected: str) -> list[Planned]:
    """What is expected of a table; the comparison comes first."""
    return [
        Planned(check, NoRows(queries.differences(table, expected), AUDIT_CHECKS[check])),
        *(Planned(KEYS, NotNull(key)) for key in table.keys),
        Planned(EPOCHS, NoRows(queries.partial_epochs(), f"{table.name}: {AUDIT_CHECKS[EPOCHS]}")),
    ]


def ledger_expectations() -> list[Planned]:
    query = "SELECT epoch, what, left, right FROM {batch} WHERE left <> right ORDER BY epoch, what"
    return [Planned(EQUATIONS, NoRows(query, AUDIT_CHECKS[EQUATIONS]))]


def _expected_count(spec: DrillSpec) -> int:
    return sum(2 + len(table.keys) for table in spec.tables) + 1


def _judge(check: str, answers: Answers) -> CheckResult:
    mine = [one for name, one in answers.evaluated if name == check]
    problems = [*answers.problems.get(check, []), *(_first_lines(one.error) for one in mine if one.error)]
    if problems or not mine:
        return CheckResult(check, Verdict.COULD_NOT_RUN, "; ".join(dict.fromkeys(problems)) or "it was not evaluated")
    unexpected = sum(one.unexpected for one in mine)
    if all(one.success for one in mine):
        return CheckResult(check, Verdict.PASSED, AUDIT_CHECKS[check])
    rows = [_plain(row) for one in mine for row in one.rows[:EXAMPLES]]
    said = [_said(one) for one in mine if not one.success]
    return CheckResult(check, Verdict.FAILED, "; ".join(said), unexpected, rows)


def _said(one: Evaluated) -> str:
    """A red expectation in a few words: by label where there are labels."""
    labels = [row["label"] for row in one.rows if "label" in row]
    if labels and len(one.rows) == one.unexpected:
        return ", ".join(f"{labels.count(label)} {label}" for label in dict.fromkeys(labels))
    if labels:
        return f"{one.unexpected} keys: {', '.join(dict.fromkeys(labels))}, …"
    if rows := one.rows:
        more = f" and {one.unexpected - 1} more" if one.unexpected > 1 else ""
        return ", ".join(f"{name} {value}" for name, value in rows[0].items()) + more
    return f"{one.unexpected} rows against: {one.expectation.meaning}"


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """For JSON: what is no number, text or truth becomes text."""
    return {k: v if isinstance(v, int | float | str | bool | None) else str(v) for k, v in row.items()}


def _first_lines(text: str, limit: int = 600) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    short = " ".join(lines[:3])
    return short if len(short) <= limit else short[:limit] + " …"


@contextmanager
def _session(given: SparkSession | None, log: Path, *, compiled: bool) -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    from checks.spark import reading_session

    running = given or SparkSession.getActiveSession()
    if running is not None:
        yield running
        return

    session = reading_session("weir audit", compiled=compiled, log=log)
    try:
        yield session
    finally:
        session.stop()
