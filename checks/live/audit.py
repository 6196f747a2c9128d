"""The audit of a job's live tables. It changes nothing of them, and needs neither the job's code nor its end.

Spark reads which files readers see, and how many rows of each; the rows are digested from the same files. Great
Expectations judge the facts that were found. What was seen is kept only if they have judged: an audit that could not
run is done again by the next one.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec

from checks import queries
from checks.audit import Answers, judge
from checks.docs import finish_docs
from checks.expectations import NoRows
from checks.facts import Fact
from checks.live.ledger import JobLedger, NothingToAudit, read_ledger
from checks.live.look import EPOCHS, FILES, LEDGER, LIVE_CHECKS, SCHEMA, SPARK, WITHIN, Looked, TableAudit
from checks.live.record import AuditRecord, Memory, RecordChanged, RecordStore
from checks.live.table import LiveTable
from checks.needs import need_great_expectations
from checks.results import AuditResult
from checks.session import session
from engine.connectors.table.log import DamagedTable
from engine.core.errors import StoreError
from engine.core.paths import JobPaths
from engine.core.ports import Store
from engine.graph.description import table_place
from engine.host.places import local_folder
from engine.protocol.job_description import SinkDescription
from engine.snapshot.epoch_log import EpochLog
from engine.store.directory import DirectoryStore
from engine.store.opening import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLASSES = {
    FILES: "ExpectFilesToBeWhole",
    EPOCHS: "ExpectEpochsAsCounted",
    SCHEMA: "ExpectSchemaAsDeclared",
    SPARK: "ExpectSparkToReadTheSame",
    LEDGER: "ExpectLedgerToBeUnchanged",
}
"""The class of the expectation of each check."""
AUDITS_KEPT = 10
"""The folders of this many audits of a job are kept."""
RESULT = "audit.json"
SPARK_FILES = 1_000
"""Spark counts the rows of at most so many new files."""
SPARK_TRIES = 3

Say = Callable[[str], None]
Share = Callable[[float], None]


@dataclass
class _Table:
    """A table to audit. `changed`: why its record can't be used."""

    name: str
    sinks: list[SinkDescription]
    live: LiveTable
    records: RecordStore
    before: AuditRecord | None = None
    changed: str = ""
    looked: Looked | None = None
    facts: list[Fact] = field(default_factory=list)


def run_live_audit(
    store: str,
    job: str,
    *,
    within: int = WITHIN,
    full: bool = False,
    spark: SparkSession | None = None,
    progress: Say = lambda text: None,
    share: Share = lambda done: None,
) -> AuditResult:
    """Audits the live tables of a job, which may run or not. Raises NothingToAudit.

    New epochs are always audited. Of older files each is read again within `within` audits; with `full` all are now.
    It does not raise for problems of the data, the store or the machine: they are part of the verdict.
    """
    started = time.monotonic()
    need_great_expectations("an audit")
    answers, docs, epoch = Answers(), "", 0
    folder = _new_folder(local_folder(store) / "audits" / job)
    names: Sequence[str] = ()
    try:
        tables, ledger = look(store, job, within=within, full=full, progress=progress)
        names, epoch = [table.name for table in tables], ledger.newest
        share(0.5)
        progress("starting Spark and Great Expectations")
        with session(spark, folder / "audit.log", compiled=False) as running:
            for table in tables:
                table.facts += list(_as_spark_reads(running, table))
            share(0.8)
            docs = _judge(running, folder / "data_docs", [f for table in tables for f in table.facts], answers)
        answers.figures |= _figures(tables)
        if not answers.problems:
            _remember(tables, ledger, progress)
    except NothingToAudit:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    except Exception as error:
        for check in LIVE_CHECKS:
            answers.could_not_run(check, error)
    said = ", ".join(names)
    checks = [judge(check, answers, f"{said}: {meaning}") for check, meaning in LIVE_CHECKS.items()]
    evaluated = sum(1 for _, one in answers.evaluated if not one.error)
    result = AuditResult(job, epoch, checks, evaluated, len(LIVE_CHECKS), answers.figures, docs)
    if docs:
        finish_docs(Path(docs).parent, result, f"Audit of the live tables of {job}, epoch {epoch}")
    (folder / RESULT).write_bytes(msgspec.json.format(msgspec.json.encode(result)))
    share(1.0)
    progress(f"{result.verdict.value}: {evaluated} of {len(LIVE_CHECKS)} checks, {time.monotonic() - started:.0f} s")
    return result


def _new_folder(parent: Path) -> Path:
    parent.mkdir(parents=True, exist_ok=True)
    folder = parent / f"{datetime.now(UTC):%Y%m%dT%H%M%S.%f}"[:-3]
    folder.mkdir()
    for old in sorted(path for path in parent.iterdir() if path.is_dir())[:-AUDITS_KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return folder


# --- looking, without Spark ---


def look(
    store: str, job: str, *, within: int = WITHIN, full: bool = False, progress: Say = lambda text: None
) -> tuple[list[_Table], JobLedger]:
    """Compares each table with the ledger and with its record. What is wrong is a fact of the table."""
    opened, paths = open_store(store), JobPaths(job)
    ledger = read_ledger(store, job)
    tables = list(_tables(opened, paths, ledger))
    if not tables:
        raise NothingToAudit(f"job {job!r} writes no Weir table: there is nothing to audit")
    for rewind in [rewind for table in tables if table.before for rewind in table.before.rewinds]:
        if rewind.epoch not in {known.epoch for known in ledger.rewinds}:  # logs of earlier versions forget them
            ledger.rewinds.append(rewind)
    for table in tables:
        _look_at(table, ledger, EpochLog(opened, paths), within, full)
        if table.looked is not None:
            figures = table.looked.figures
            progress(
                f"{table.name}: epochs up to {table.looked.until}; {figures['rows_read']:,.0f} new rows; "
                f"{figures['files_read']:.0f} of {figures['files']:.0f} files read"
            )
    return tables, ledger


def _tables(store: Store, paths: JobPaths, ledger: JobLedger) -> Iterator[_Table]:
    """Yields the tables of the job's sinks, and those of which only the records of audits know any more."""
    sinks: dict[str, list[SinkDescription]] = {sink.table: [sink] for sink in ledger.sinks if sink.table}
    folders = {paths.audit(name): name for name in sinks}
    there = {path.rpartition("/")[0] for path in store.list(paths.audits())}
    for folder in sorted({*folders, *there}):
        records = RecordStore(store, folder)
        before, changed = None, ""
        try:
            before = records.newest()
        except RecordChanged as error:
            changed = str(error)
        name = folders.get(folder) or (before.table if before is not None else "")
        if not name:
            continue
        if before is not None and before.job_id != ledger.job_id:
            before = None  # the store was emptied, and the job begun anew
        of = {sink.uid: sink for sink in (before.sinks if before is not None else [])}
        of |= {sink.uid: sink for sink in sinks.get(name, [])}
        place, path = table_place(SinkDescription("", "", "", name, [], 1), store, paths)
        live = LiveTable(place, path)
        # A JobMaster claims the table of each sink before it publishes an epoch.
        written = any(sink.first_epoch <= ledger.newest for sink in sinks.get(name, []))
        if live.exists or before is not None or written:
            yield _Table(name, list(of.values()), live, records, before, changed)


def _look_at(table: _Table, ledger: JobLedger, log: EpochLog, within: int, full: bool) -> None:
    _check_record(table, ledger)
    if not table.live.exists:
        log.check_here()  # or else the store is away, and nobody has lost anything
        table.facts.append(Fact(FILES, table.name, None, "the table", "there", "missing"))
        return
    audit = TableAudit(
        table.name, table.live, table.records, table.before, ledger, table.sinks, within=within, full=full
    )
    try:
        table.looked = audit.look()
        table.facts += table.looked.facts
        table.facts += _ahead(table.name, table.looked.snapshot.newest, ledger, log)
    except RecordChanged as error:
        table.facts.append(Fact(LEDGER, table.name, None, "the record of earlier audits", "as written", str(error)))
    except (DamagedTable, StoreError) as error:
        log.check_here()
        table.facts.append(Fact(FILES, table.name, None, "the table's log", "as written", str(error)))


def _ahead(table: str, newest: int, ledger: JobLedger, log: EpochLog) -> Iterator[Fact]:
    """Yields a fact if readers see an epoch that the job has not published. Its records come before the table's."""
    if newest > ledger.newest:
        last = log.last()  # epochs may have been published since the ledger was read
        published = last.newest.epoch if last is not None and last.newest is not None else 0
        if newest > published:
            said = f"epoch {published} or earlier, as the job has published"
            yield Fact(FILES, table, newest, "the newest record of the table's log", said, f"epoch {newest}")


def _check_record(table: _Table, ledger: JobLedger) -> None:
    """Compares the record with what this machine remembers: an older one would hide what was done since."""
    last = Memory().last(ledger.job_id, table.name)
    number = table.before.number if table.before is not None else 0
    said = table.changed or (f"audit {number}" if number else "none")
    fine = not table.changed and number >= last
    expected = f"of audit {last} or later" if last else "as written, or none yet"
    table.facts.append(
        Fact(LEDGER, table.name, None, "the record of earlier audits", expected, expected if fine else said)
    )


def _remember(tables: Sequence[_Table], ledger: JobLedger, say: Say) -> None:
    memory = Memory()
    for table in tables:
        if table.looked is None:
            continue
        record = table.looked.record
        if table.records.append(record):
            memory.remember(ledger.job_id, table.name, record.number)
        else:
            say(f"{table.name}: another audit has finished meanwhile, and has kept what it has seen")


# --- Spark and Great Expectations ---


def _as_spark_reads(spark: SparkSession, table: _Table) -> Iterator[Fact]:
    """Yields what plain Spark reads of a table, compared with its log. Of a bucket our Spark can't read anything."""
    looked, live = table.looked, table.live
    if looked is None or not looked.snapshot.files or not isinstance(live.store, DirectoryStore):
        yield Fact(SPARK, table.name, None, "tables that Spark reads here", "as its log says", "as its log says")
        return
    folder = live.store.root / live.path
    for left in reversed(range(SPARK_TRIES)):
        try:
            files = {unquote(uri.rpartition("/")[2]) for uri in spark.read.parquet(str(folder)).inputFiles()}
            fresh = dict(list(looked.fresh.items())[-SPARK_FILES:])
            counted = _counted(spark, folder, [name for name in fresh if looked.fresh[name]])
            break
        except Exception as error:
            if left and live.newest() != looked.snapshot.newest:
                continue  # files were folded and deleted meanwhile
            said = " ".join(str(error).split())[:300]
            yield Fact(SPARK, table.name, None, "spark.read.parquet", "reads the table", said)
            return
    if live.read_as_spark(files, looked.snapshot) is None:
        there = set(looked.snapshot.files)
        for name in sorted(files ^ there):
            sides = ("read", "not read") if name in there else ("not published", "read")
            yield Fact(SPARK, table.name, None, name, *sides)
    for name, rows in counted.items():
        yield Fact(SPARK, table.name, None, name, f"{fresh[name]} rows", f"{rows} rows")
    yield Fact(SPARK, table.name, None, "the files that Spark reads", "as published", "as published")


def _counted(spark: SparkSession, folder: Path, names: Sequence[str]) -> dict[str, int]:
    there = [name for name in names if (folder / name).is_file()]  # others were folded and deleted meanwhile
    if not there:
        return {}
    paths = [str(folder / name) for name in there]
    counted = spark.read.parquet(*paths).groupBy("_metadata.file_name").count().collect()
    return dict.fromkeys(there, 0) | {unquote(row[0]): int(row[1]) for row in counted}


def _judge(spark: SparkSession, docs: Path, facts: Sequence[Fact], answers: Answers) -> str:
    """Lets Great Expectations judge the facts. Returns the path of their pages."""
    from checks._gx import Suites

    known = {fact.check for fact in facts}
    for check in LIVE_CHECKS:
        if check not in known:
            answers.could_not_run(check, "there is nothing to compare")
    planned = {
        check: NoRows(queries.false_facts(check), meaning, CLASSES[check]) for check, meaning in LIVE_CHECKS.items()
    }
    columns = "check string, table string, epoch long, what string, expected string, found string"
    frame = spark.createDataFrame(
        [(f.check, f.table, f.epoch, f.what, f.expected, f.found) for f in facts], columns
    ).persist()
    validator = Suites(docs, docs.parent.name)
    try:
        results = validator.validate("live tables", frame, list(planned.values()))
    finally:
        with contextlib.suppress(Exception):
            spark.catalog.dropTempView(queries.BATCH)
            frame.unpersist()
    for check, expectation in planned.items():
        answered = [one for one in results if one.expectation is expectation]
        if len(answered) != 1:
            answers.could_not_run(check, f"not evaluated: {expectation.meaning}")
        answers.evaluated += [(check, one) for one in answered]
    with contextlib.suppress(Exception):  # the pages do not change the verdict
        return str(validator.write_docs())
    return ""


def _figures(tables: Sequence[_Table]) -> dict[str, Any]:
    total: dict[str, float] = {}
    for table in tables:
        for name, value in (table.looked.figures if table.looked is not None else {}).items():
            total[name] = total.get(name, 0) + value
    wrong = {f.epoch for table in tables for f in table.facts if f.check == EPOCHS and not f.holds and f.epoch}
    return total | {"wrong_epochs": len(wrong)}
