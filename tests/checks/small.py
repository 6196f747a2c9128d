"""Builds the store of a small drill: 3,000 page views in 12 epochs, written by the real writers and committers.

It also spoils its tables afterwards, as a faulty sink, disk or person would.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from assets.pageviews.drill import DRILL
from assets.pageviews.source import page_views
from checks.history import read_epochs
from checks.ledger import expected_records, write_ledger
from checks.reader import Read, digest_of, visible_states
from checks.results import DrillResult, Struck
from checks.seal import READS, RESULT, seal_drill
from checks.spec import AuditedTable
from checks.tablelog import epoch_files
from engine.connectors.table import TableCommitter, TableSink
from engine.core.paths import JobPaths
from engine.core.sinks import WriterContext
from engine.jobmaster.events import AttemptFailed
from engine.protocol import ledger
from engine.protocol.checkpoint import CommitPermit
from engine.protocol.failures import AttemptFailure
from engine.protocol.ids import AttemptId
from engine.protocol.manifest import Committable, Manifest
from engine.snapshot.epoch_log import EpochLog
from engine.snapshot.statefile import checksum
from engine.store.directory import DirectoryStore
from tests.seen import completed

SPEC = replace(DRILL, make=lambda n: page_views(n, 100))
"""The drill with a hundred views per second of event time, so that a few thousand fill several windows."""

RECORDS = 3_000
EPOCHS = 12  # more than ten: the tenth epoch's record is compacted and repeats all files before it
PER_EPOCH = RECORDS // EPOCHS
ATTEMPT = AttemptId(1, 1)
JOB_ID = "1d"
VICTIM = Struck(1, 4711, 6_500, 6, "1.1", recovery_s=1.5)
KILLED = AttemptFailed(
    attempt="1.1",
    cause=AttemptFailure.SLOT_LOST.code,
    detail="slot process 4711: its process ended (killed, or crashed)",
    slot=1,
    at_ms=6_600,
    generation=1,
)
PATHS = JobPaths(SPEC.job)


def build(folder: Path) -> None:
    """Writes what a drill of a job without faults leaves in its folder."""
    folder.mkdir(parents=True)
    write_ledger(SPEC, folder, RECORDS)
    store = DirectoryStore(folder)
    log = EpochLog(store, PATHS)
    claimed = log.claim("test")
    assert claimed is not None
    record = claimed.record
    views, windows = _Table(store, SPEC.rows), _Table(store, SPEC.aggregates)
    totals: dict[str, int] = {}
    events = folder / PATHS.history("events.jsonl")
    events.parent.mkdir(parents=True)
    for epoch in range(1, EPOCHS + 1):
        batch = expected_records(SPEC, (epoch - 1) * PER_EPOCH, epoch * PER_EPOCH)
        # Windows come out in two late epochs and the last one.
        fired = windowed()[{8: slice(0, 30), 11: slice(30, 50), 12: slice(50, None)}.get(epoch, slice(0, 0))]
        committed = {"raw": views.write(batch, epoch), "out": windows.write(fired, epoch)}
        ledger.add(totals, _counters(batch, fired))
        manifest = Manifest(
            SPEC.job, epoch, epoch, ATTEMPT, 1000 * epoch, 128, [], [], [], dict(totals), final=epoch == EPOCHS
        )
        published = log.publish(record, log.write_manifest(manifest))
        assert published is not None and published.newest is not None
        record = published
        permit = CommitPermit.issue(published.newest)
        views.committer.commit(permit, committed["raw"])
        windows.committer.commit(permit, committed["out"])
        with events.open("ab") as file:
            file.write(msgspec.json.encode(completed(epoch, totals)) + b"\n")
            if epoch == VICTIM.epoch:
                file.write(msgspec.json.encode(KILLED) + b"\n")
    finish(folder)


def copied(made: Path, folder: Path) -> Path:
    """Copies a drill as if it had been made in `folder`: building one takes seconds."""
    shutil.copytree(made, folder)
    for table in SPEC.tables:
        there = Table(folder, table)
        there.change_entries(lambda entry: entry | {"path": (there.folder / _name(entry)).as_uri()})  # noqa: B023
    finish(folder)
    return folder


def finish(folder: Path) -> None:
    """Writes the reads of a reader, the seal and the result of the drill."""
    epochs = read_epochs(folder, SPEC.job)
    reads = [
        Read(table.name, 1000 * number, 5, rows, digest, last=number == EPOCHS)
        for table in SPEC.tables
        for number, (rows, digest) in enumerate(visible_states(table.uid, epochs))
    ]
    (folder / READS).write_bytes(b"".join(msgspec.json.encode(read) + b"\n" for read in reads))
    drilled = DrillResult(SPEC.job, str(folder), RECORDS, 1.5, 1, EPOCHS, len(reads), [], 0, 9.0, 7, [VICTIM])
    written = msgspec.json.format(msgspec.json.encode(drilled))
    seal_drill(SPEC, folder, RECORDS, epochs, written)
    (folder / RESULT).write_bytes(written)


def _counters(batch: pa.Table, fired: pa.Table) -> dict[str, int]:
    rows, out = SPEC.rows, SPEC.aggregates
    counted = {
        ledger.source_rows(SPEC.source_uid): batch.num_rows,
        ledger.source_digest(SPEC.source_uid): digest_of(batch, rows.arrow_schema),
    }
    for edge, count in (("views->raw", batch.num_rows), ("pv.combine->pv", 7)):
        counted |= {ledger.sent(edge): count, ledger.received(edge): count}
    for table, data in ((rows, batch), (out, fired)):
        digest = digest_of(data, table.arrow_schema)
        counted |= {ledger.sink_rows(table.uid): data.num_rows, ledger.sink_digest(table.uid): digest}
    return counted


def windowed() -> pa.Table:
    """Returns the page views per app and ten seconds, computed by Arrow."""
    records = expected_records(SPEC, 0, RECORDS)
    starts = pc.floor_temporal(records.column("ts"), 10, unit="second")
    table = records.append_column("window_start", starts)
    grouped = table.group_by(["app_id", "window_start"]).aggregate([([], "count_all"), ("bytes", "sum")])
    ends = pa.array([start.as_py().timestamp() + 10 for start in grouped.column("window_start")])
    columns = {
        "app_id": grouped.column("app_id"),
        "window_start": grouped.column("window_start"),
        "window_end": pc.cast(pc.multiply(ends, 1_000_000).cast(pa.int64()), pa.timestamp("us", tz="UTC")),
        "pv": grouped.column("count_all"),
        "bytes": grouped.column("bytes_sum"),
    }
    result = pa.table(columns, schema=SPEC.aggregates.arrow_schema)
    return result.sort_by([("window_start", "ascending"), ("app_id", "ascending")])


class _Table:
    """Two subtasks' writers of a table, and its committer."""

    def __init__(self, store: DirectoryStore, table: AuditedTable) -> None:
        sink = TableSink(table.name)
        self._uid = table.uid
        self._writers = [
            sink.writer(WriterContext(subtask, ATTEMPT, store, PATHS, table.arrow_schema, JOB_ID)) for subtask in (0, 1)
        ]
        for writer in self._writers:
            writer.begin()
        self.committer = TableCommitter(store, PATHS.table(table.name))

    def write(self, rows: pa.Table, epoch: int) -> list[Committable]:
        committables = []
        half = rows.num_rows // 2
        for subtask, part in enumerate((rows.slice(0, half), rows.slice(half))):
            writer = self._writers[subtask]
            for batch in part.to_batches():
                writer.write(batch)
            piece = writer.pre_commit()
            writer.begin()
            if piece is not None:
                committables.append(Committable(self._uid, subtask, ATTEMPT, epoch, epoch, piece.persist()))
        return committables


# --- spoiling ---


class Table:
    """A table of a finished drill, to be spoiled."""

    def __init__(self, folder: Path, table: AuditedTable) -> None:
        self.folder = folder / PATHS.table(table.name)

    def rewrite(self, epoch: int, change: Callable[[pa.Table], pa.Table]) -> None:
        """Changes the rows of the epoch's first file, and its size in the log: Spark could not read it otherwise."""
        name = epoch_files(self.folder)[epoch][0]
        path = self.folder / name
        pq.write_table(change(pq.read_table(path)), path, compression="zstd")
        self.change_entries(lambda entry: entry | {"size": path.stat().st_size} if _name(entry) == name else entry)

    def change_entries(self, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
        """Changes entries of the table's log, or drops them, and seals the records again: their seals have no key."""
        for record in self.records():
            head, *lines = record.read_text().split("\n")
            entries = [changed for line in lines if (changed := change(json.loads(line))) is not None]
            self.write_record(record, "\n".join([head, *(json.dumps(entry) for entry in entries)]))

    @staticmethod
    def write_record(record: Path, text: str) -> None:
        record.write_text(text)
        seal = record.with_name(f".{record.name.removesuffix('.compact')}.checksum")
        seal.write_text(checksum(text.encode()))

    def file(self, epoch: int) -> Path:
        """Returns the first file of an epoch."""
        return self.folder / epoch_files(self.folder)[epoch][0]

    def publish_again(self, epoch: int) -> None:
        """Commits an epoch's rows once more under new names: in files of a later attempt, with a new record."""
        entries = []
        for name in epoch_files(self.folder)[epoch]:
            copy = self.folder / name.replace("0001-0001", "0001-0002", 1)
            copy.write_bytes((self.folder / name).read_bytes())
            entries.append({"path": copy.as_uri(), "size": copy.stat().st_size, "isDir": False, "action": "add"})
        filled = {"modificationTime": 0, "blockReplication": 1, "blockSize": 33_554_432}
        lines = [json.dumps(entry | filled) for entry in entries]
        self.write_record(self.folder / "_spark_metadata" / str(EPOCHS), "\n".join(["v1", *lines]))

    def forget_files(self) -> None:
        for record in self.records():
            self.write_record(record, "v1")

    def records(self) -> list[Path]:
        return sorted((self.folder / "_spark_metadata").glob("[0-9]*"))


def _name(entry: dict[str, Any]) -> str:
    return str(entry["path"]).rpartition("/")[2]


def without(position: int) -> Callable[[pa.Table], pa.Table]:
    return lambda rows: pa.concat_tables([rows.slice(0, position), rows.slice(position + 1)])


def doubled(position: int) -> Callable[[pa.Table], pa.Table]:
    return lambda rows: pa.concat_tables([rows, rows.slice(position, 1)])


def changed(position: int, column: str, value: object) -> Callable[[pa.Table], pa.Table]:
    """Changes one value; `value` may be a function of the old one."""

    def change(rows: pa.Table) -> pa.Table:
        values = rows.column(column).to_pylist()
        values[position] = value(values[position]) if callable(value) else value
        at = rows.schema.get_field_index(column)
        return rows.set_column(at, rows.schema.field(column), pa.array(values, rows.schema.field(column).type))

    return change


def both(*changes: Callable[[pa.Table], pa.Table]) -> Callable[[pa.Table], pa.Table]:
    def change(rows: pa.Table) -> pa.Table:
        for one in changes:
            rows = one(rows)
        return rows

    return change


def with_rows(*more: Sequence[object]) -> Callable[[pa.Table], pa.Table]:
    """Adds rows that are not in the ledger."""

    def change(rows: pa.Table) -> pa.Table:
        columns = [
            pa.array(column, field.type) for column, field in zip(zip(*more, strict=True), rows.schema, strict=True)
        ]
        return pa.concat_tables([rows, pa.table(columns, schema=rows.schema)])

    return change
