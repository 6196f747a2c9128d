"""The audit of a drill: Great Expectations on Spark compare the job's tables with the source-side ledger.

The files of the tables and of the drill are looked at first, without Spark (`facts.py`, `seal.py`): a file that is
gone or was changed is a wrong row of its check, also if Spark can't read the table.

Every check is PASSED, FAILED or COULD_NOT_RUN; the last says nothing about the data. An expectation counts as
evaluated only if Great Expectations returned a result for it without an exception. An audit passes only if all planned
expectations were evaluated: an empty suite, or one that skipped an expectation, proves nothing.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from checks import queries
from checks.docs import finish_docs
from checks.expectations import Evaluated, NoRows
from checks.facts import AGGREGATES, EPOCHS, EVIDENCE, FAULT, ROWS, SCHEMA, STRAY, Fact, TableState, inspect_table
from checks.faults import happened, why_no_verdict
from checks.history import EpochTotals, equations, per_epoch, read_epochs
from checks.ledger import LedgerUnusable, compared_with_source, open_ledger, write_truth
from checks.needs import need_great_expectations
from checks.plan import FILES, HISTORY, Planned, plan
from checks.results import AuditResult, CheckResult, DrillResult, Verdict
from checks.seal import RESULT, NoKey, read_seal, seal_facts
from checks.session import session
from checks.spec import AUDIT_CHECKS, LEDGER, WARNINGS, AuditedTable, DrillSpec
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
        with tempfile.TemporaryDirectory(prefix="weir-audit-") as scratch:
            looked = look(spec, folder, Path(scratch), answers)
            epoch = len(looked.epochs)
            answers.figures |= {"records": looked.records, "epochs": epoch}
            progress(f"ledger of {looked.records:,} records, {epoch} epochs; starting Spark and Great Expectations")
            share(0.05)
            with session(spark, folder / "audit.log", compiled=looked.records > COMPILE_FROM) as running:
                docs = _Audit(spec, folder, looked, running, answers, progress, share).run(suites)
    except Exception as error:
        for check in AUDIT_CHECKS:
            answers.could_not_run(check, error)
    evaluated = sum(1 for _, one in answers.evaluated if not one.error)
    checks = [
        fault_happened(spec, folder, meaning) if check == FAULT else judge(check, answers, f"{tables}: {meaning}")
        for check, meaning, tables in ((check, AUDIT_CHECKS[check], _tables(spec, check)) for check in AUDIT_CHECKS)
    ]
    result = AuditResult(spec.job, epoch, checks, evaluated, expected, answers.figures, docs)
    if docs:
        finish_docs(Path(docs).parent, result)
    if folder.is_dir():
        (folder / "audit.json").write_bytes(msgspec.json.format(msgspec.json.encode(result)))
    share(1.0)
    progress(f"{result.verdict.value}: {evaluated} of {expected} expectations, {time.monotonic() - started:.0f} s")
    return result


def _tables(spec: DrillSpec, check: str) -> str:
    """Returns the names of the tables that a check is about."""
    return {ROWS: spec.rows.name, AGGREGATES: spec.aggregates.name}.get(
        check, ", ".join(table.name for table in spec.tables)
    )


@dataclass
class Looked:
    """What was found without Spark. `epochs` is empty if the history is not complete; `why` then says so."""

    records: int
    truth: list[Path]
    epochs: list[EpochTotals]
    why: str
    facts: list[Fact]
    tables: dict[str, TableState]


def look(spec: DrillSpec, folder: Path, scratch: Path, answers: Answers) -> Looked:
    """Looks at all files of a drill. If the ledger can't be used, the truth is written to `scratch`."""
    records = _records(folder)
    facts, truth = _ledger_facts(spec, folder, records)
    if not truth:
        truth = write_truth(spec, scratch, records)
    try:
        facts += seal_facts(spec, folder)
    except NoKey as error:
        answers.could_not_run(EVIDENCE, error)
    try:
        epochs, why = read_epochs(folder, spec.job), ""
    except WeirError as error:
        return Looked(records, truth, [], str(error), facts, {})
    sealed = read_seal(folder)
    made = Path(sealed.folder) if sealed is not None else folder
    places = {table: JobPaths(spec.job).table(table.name) for table in spec.tables}
    tables = {table.name: inspect_table(table, folder / at, made / at, epochs) for table, at in places.items()}
    facts += [fact for state in tables.values() for fact in state.facts]
    return Looked(records, truth, epochs, why, facts, tables)


def _records(folder: Path) -> int:
    """Returns how many records the job had to read, from any of the papers that say so."""
    sealed = read_seal(folder)
    if sealed is not None:
        return sealed.records
    with contextlib.suppress(LedgerUnusable):
        return open_ledger(folder)[0].records
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode((folder / RESULT).read_bytes(), type=DrillResult).records
    raise AuditImpossible(f"there is no ledger in {folder}: only a drill can be audited (weir drill JOB)")


def _ledger_facts(spec: DrillSpec, folder: Path, records: int) -> tuple[list[Fact], list[Path]]:
    """Returns the facts about the ledger, and its files if they are what the source makes."""
    what, good = "the source-side ledger", "as the source makes it"
    try:
        files = open_ledger(folder)[1]
        wrong = compared_with_source(spec, files, records)
    except LedgerUnusable as error:
        wrong = str(error)
    return [Fact(EVIDENCE, spec.rows.name, None, what, good, wrong or good)], [] if wrong else files


def fault_happened(spec: DrillSpec, folder: Path, meaning: str) -> CheckResult:
    """Without its fault a drill proves nothing: the check passes or could not run, it never fails."""
    try:
        drilled = msgspec.json.decode((folder / RESULT).read_bytes(), type=DrillResult)
        why = why_no_verdict(drilled.faults, happened(folder, spec.job))
    except (OSError, msgspec.MsgspecError) as error:
        why = f"the result of the drill can't be read: {error}"
    if why:
        return CheckResult(FAULT, Verdict.COULD_NOT_RUN, f"no verdict: {why}")
    return CheckResult(FAULT, Verdict.PASSED, f"{meaning}: {', '.join(map(str, drilled.faults))}")


class _Audit:
    """Validates each suite against its DataFrame, and collects the answers."""

    def __init__(
        self,
        spec: DrillSpec,
        folder: Path,
        looked: Looked,
        spark: SparkSession,
        answers: Answers,
        say: Say,
        share: Share,
    ) -> None:
        self._spec = spec
        self._folder = folder
        self._looked = looked
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
        validator = Suites(docs, self._folder.name)
        frames = {
            self._spec.rows.name: lambda: self._table(self._spec.rows),
            self._spec.aggregates.name: lambda: self._table(self._spec.aggregates),
            HISTORY: self._equations,
            FILES: self._facts,
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
        self._view(LEDGER, self._spark.read.schema(self._spec.rows.schema).parquet(*map(str, self._looked.truth)))
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

        if self._looked.why:
            raise AuditImpossible(self._looked.why)
        folder, state = self._folder / JobPaths(self._spec.job).table(table.name), self._looked.tables[table.name]
        self._view(queries.EPOCH_FILES, self._epoch_files(table, folder))
        # What readers can't read is lost. A copy's log names the files of the original, which Spark would read.
        files = [str(folder)] if state.plain else [str(path) for path in state.files]
        if not files:
            return self._spark.createDataFrame([], f"{table.schema}, file string, row_index long")
        return read_published(self._spark, files, table).selectExpr(
            "*", "_metadata.file_name AS file", "_metadata.row_index AS row_index"
        )

    def _epoch_files(self, table: AuditedTable, folder: Path) -> DataFrame:
        name = ledger.sink_rows(table.uid)
        counted = [(epoch, None, None, None, added.get(name, 0)) for epoch, added in per_epoch(self._looked.epochs)]
        parts = epoch_rows(folder) if self._looked.tables[table.name].files else []
        published = [
            (part.epoch, part.file, part.first, None if part.rows is None else part.first + part.rows, None)
            for part in parts
        ]
        columns = "epoch long, file string, first long, behind long, rows long"
        return self._spark.createDataFrame([*counted, *published], columns)

    def _equations(self) -> DataFrame:
        if self._looked.why:
            raise AuditImpossible(self._looked.why)
        found = equations(self._spec, self._looked.epochs, self._looked.records)
        rows = [(one.epoch, one.what, one.left, one.right) for one in found]
        return self._spark.createDataFrame(rows, "epoch long, what string, left long, right long")

    def _facts(self) -> DataFrame:
        """Returns the facts. A check without any could not run: no fact of it would differ."""
        known = {fact.check for fact in self._looked.facts}
        for check in (EPOCHS, SCHEMA, EVIDENCE, STRAY):
            if check not in known:
                self._answers.could_not_run(check, self._looked.why or "there is nothing to compare")
        rows = [(f.check, f.table, f.epoch, f.what, f.expected, f.found) for f in self._looked.facts]
        columns = "check string, table string, epoch long, what string, expected string, found string"
        return self._spark.createDataFrame(rows, columns)

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
        unexpected = sum(one.unexpected for one in failed)
        return CheckResult(check, Verdict.FAILED, said, unexpected, rows, warning=check in WARNINGS)
    if problems or not mine:
        return CheckResult(check, Verdict.COULD_NOT_RUN, "; ".join(dict.fromkeys(problems)) or "it was not evaluated")
    return CheckResult(check, Verdict.PASSED, meaning)


def _said(one: Evaluated) -> str:
    """Describes a failed expectation in a few words, by label if its rows have labels."""
    labels = [row["label"] for row in one.rows if "label" in row]
    table = f"{one.rows[0]['table']}: " if labels and "table" in one.rows[0] else ""
    if labels and len(one.rows) == one.unexpected:
        return table + ", ".join(f"{labels.count(label)} {label}" for label in dict.fromkeys(labels))
    if labels:
        return f"{table}{one.unexpected} keys: {', '.join(dict.fromkeys(labels))}, …"
    if one.rows:
        more = f" and {one.unexpected - 1} more" if one.unexpected > 1 else ""
        return ", ".join(f"{name} {value}" for name, value in one.rows[0].items() if value is not None) + more
    return f"{one.unexpected} rows against: {one.expectation.meaning}"


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Returns the row with values that JSON can hold; all others become text."""
    return {k: v if isinstance(v, int | float | str | bool | None) else str(v) for k, v in row.items()}


def _first_lines(text: str, limit: int = 600) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    short = " ".join(lines[:3])
    return short if len(short) <= limit else short[:limit] + " …"
