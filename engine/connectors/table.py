"""The Weir table: Parquet files that are published by whole epochs; plain `spark.read.parquet(table)` sees only those.

Subtasks write files. The JobMaster alone publishes an epoch, by one record that names all of its files, in the format
of Spark's file-sink log (`_spark_metadata`). Invariant: record n exists before record n + 1 is made, each by
create-if-absent and names files that depend only on the epochs up to it, so a repeated commit makes the same record.
A record is sealed by its checksum in a hidden file beside it, which Spark ignores. Nothing is published or deleted on
the word of a record that is not what was written.
All published files have the same columns; a job that would write others is refused before it starts.
Timestamps are stored in microseconds, Spark's unit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from engine.core.columns import stored_columns
from engine.core.errors import StoreError, TargetTaken
from engine.core.names import check_name
from engine.core.paths import JobPaths
from engine.core.ports import Store
from engine.core.sinks import Committer, Found, Guarantee, Piece, Sink, SinkWriter, WriterContext
from engine.protocol.checkpoint import CommitPermit
from engine.protocol.epoch_records import Created
from engine.protocol.ids import AttemptId
from engine.protocol.job_description import Column
from engine.protocol.manifest import Committable
from engine.snapshot.statefile import checksum
from engine.store.directory import DirectoryStore

COMPACT_EVERY = 10
"""Every tenth record repeats all before it (Spark's default); readers begin at the last such record."""

_MARKER = "_spark_metadata/weir.json"
"""Names the table's owner. It exists before the first data file: without `_spark_metadata` Spark would read that."""


class DamagedTable(TargetTaken):
    """A record of a table's log is not what was written. Only a person can mend it."""


_FILE_NAME = re.compile(r"(?P<job_id>[0-9a-f]+)-(?P<generation>\d+)-(?P<attempt>\d+)-\d+-\d+\.parquet")


class _Owner(msgspec.Struct, frozen=True):
    """The content of the marker. `job` and `store` are for messages: a store that was moved keeps its tables.

    `first_epoch` is the first epoch that this folder may hold: the table may have been deleted and begun anew.
    """

    job_id: str
    job: str
    store: str
    first_epoch: int = 1


@dataclass(frozen=True)
class _Entries:
    """What records of the log say. `sealed`: each of them has its checksum, and is what was written."""

    lines: list[str]
    sealed: bool


class TableSink(Sink):
    """Writes a Weir table. `path`: within the job's part of the store ('pv', 'daily/pv'), or absolute ('/lake/pv')."""

    guarantee = Guarantee.EXACTLY_ONCE
    can_rewind = True

    def __init__(self, path: str) -> None:
        if any(part in ("", ".", "..") for part in path.removeprefix("/").split("/")):
            raise ValueError(f"{path!r} is not a valid table path: write one such as 'pv', 'daily/pv' or '/lake/pv'")
        if not path.startswith("/"):
            for part in path.split("/"):
                check_name("table", part)
        self.path = path

    @property
    def target(self) -> str:
        return f"the table {self.path!r}"

    def writer(self, context: WriterContext) -> SinkWriter:
        return _TableWriter(context, *self._place(context.store, context.paths))

    def committer(self, store: Store, paths: JobPaths) -> Committer:
        return TableCommitter(*self._place(store, paths), job=paths.job, home=store.uri(""))

    def _place(self, store: Store, paths: JobPaths) -> tuple[Store, str]:
        if not self.path.startswith("/"):
            return store, paths.table(self.path)
        place = Path(self.path)
        return DirectoryStore(place.parent), place.name


class _TableWriter(SinkWriter):
    def __init__(self, context: WriterContext, store: Store, table: str) -> None:
        self._context = context
        self._store = store
        self._table = table
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0
        self._files = 0

    def begin(self) -> None:
        self._batches = []
        self._bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        self._batches.append(batch)
        self._bytes += batch.nbytes

    def pre_commit(self) -> Piece | None:
        if not self._batches:
            return None
        self._files += 1
        attempt = self._context.attempt
        born = f"{self._context.job_id}-{attempt.generation:04d}-{attempt.attempt:04d}"
        name = f"{born}-{self._context.subtask:04d}-{self._files:06d}.parquet"
        assert _FILE_NAME.fullmatch(name)
        rows = pa.Table.from_batches(self._batches, self._context.schema)
        return _ParquetFile(self._store, f"{self._table}/{name}", rows, self._bytes)

    @property
    def buffered_bytes(self) -> int:
        return self._bytes


@dataclass
class _ParquetFile(Piece):
    store: Store
    path: str
    rows: pa.Table
    size: int

    def persist(self) -> dict[str, Any]:
        out = pa.BufferOutputStream()
        pq.write_table(self.rows, out, compression="zstd", coerce_timestamps="us", allow_truncated_timestamps=True)
        data = out.getvalue().to_pybytes()
        self.store.write(self.path, data)
        self.store.sync([self.path])
        return {"path": self.path, "size": len(data), "rows": self.rows.num_rows}


class TableCommitter(Committer):
    """Publishes epochs of one table, which belongs to one job. `home`: the store of that job, for messages."""

    def __init__(self, store: Store, table: str, job: str = "", home: str = "") -> None:
        self._store = store
        self._table = table
        self._job = job
        self._home = home
        self._job_id: str | None = None
        self._first_epoch = 1

    def look(self, job_id: str, epoch: int) -> Found:
        owner = self._checked_owner(job_id)
        return Found(claimed=False) if owner is None else Found(columns=self._published_columns(epoch))

    def claim(self, job_id: str, next_epoch: int) -> None:
        """Looks first and then creates the marker; a folder with anything else in it is left as it is.

        The marker is created again on every claim, which makes its name durable if an earlier create did not.
        """
        self._checked_owner(job_id)
        marker = f"{self._table}/{_MARKER}"
        self._made(marker, msgspec.json.encode(_Owner(job_id, self._job, self._home, next_epoch)))
        owner = self._checked_owner(job_id)
        if owner is None:
            raise StoreError(f"{marker} exists and can't be found")
        self._job_id = job_id
        self._first_epoch = owner.first_epoch

    def _checked_owner(self, job_id: str) -> _Owner | None:
        """Returns the content of the marker, None if there is none. Raises TargetTaken if it is not the job's place."""
        owner = self._owner()
        strange = [] if owner is not None else self._strange_files(job_id)
        if strange:
            raise TargetTaken(
                f"{self._store.uri(self._table)} holds files that this job did not write, such as {strange[0]}: choose "
                "another path for this table, or move them away"
            )
        if owner is not None and owner.job_id != job_id:
            raise TargetTaken(
                f"the table {self._store.uri(self._table)} belongs to job {owner.job!r} of the store {owner.store} "
                f"(id {owner.job_id}, this job has {job_id or 'another'}): choose another path for this table"
            )
        return owner

    def _published_columns(self, epoch: int) -> list[Column]:
        """Returns the columns of the published files, read from the smallest one that is there: all have the same."""
        files = [json.loads(line) for line in self._until(epoch).lines]
        for file in sorted(files, key=lambda file: int(file["size"])):
            try:
                data = self._store.read(f"{self._table}/{_name(file['path'])}")
                return stored_columns(pq.read_schema(pa.BufferReader(data)))
            except (FileNotFoundError, pa.ArrowInvalid):
                continue  # an audit reports a file that was lost or damaged
        return []

    def _owner(self) -> _Owner | None:
        try:
            return msgspec.json.decode(self._store.read(f"{self._table}/{_MARKER}"), type=_Owner)
        except FileNotFoundError:
            return None

    def _strange_files(self, job_id: str) -> list[str]:
        """Returns the files of the folder that neither this job nor a table below this one has written."""
        files = self._store.list(self._table)
        known = tuple(file.removesuffix(_MARKER) for file in files if file.endswith(f"/{_MARKER}"))
        return [file for file in files if not file.startswith((*known, f"{self._table}/{job_id}-"))]

    def commit(self, permit: CommitPermit, committables: Sequence[Committable]) -> None:
        if permit.epoch < self._first_epoch:
            return
        number = permit.epoch - 1  # Spark counts from 0
        before = self._below(number) if _compact(number) else _Entries([], sealed=True)
        lines = [self._line(c.payload) for c in committables]
        self._create(number, _Entries(before.lines + lines, before.sealed))

    def begin(self, next_epoch: int) -> None:
        """Makes the log one that Spark can read from `next_epoch` on: Spark asks for the records before it, too.

        Spark reads from the last record that repeats everything, and takes the distance between the last two of these
        as their interval. So both are written, if they are missing, with all that the table has published until now,
        and empty records after them. The last record is written last: if it is there, so are the others.
        """
        first = next_epoch - 1
        if first <= 0 or self._has(first - 1):
            return
        entries = self._until(first)
        last = first // COMPACT_EVERY * COMPACT_EVERY - 1
        for number in (last - COMPACT_EVERY, *range(last, first)):
            if number >= 0 and not self._has(number):
                self._create(number, entries if _compact(number) else _Entries([], sealed=True))

    def rewind(self, permit: CommitPermit, to_epoch: int) -> None:
        """Writes a record that repeats all up to `to_epoch`; readers begin at it, so the epochs between are hidden."""
        assert permit.epoch % COMPACT_EVERY == 0 and permit.epoch > to_epoch
        if permit.epoch < self._first_epoch:
            return
        self.begin(permit.epoch - COMPACT_EVERY + 1)  # the record of this kind before it
        self._create(permit.epoch - 1, self._until(to_epoch))

    def rewind_epoch(self, at_least: int) -> int:
        """Returns the next epoch whose record repeats all before it: only such a record can leave files out."""
        return -(-at_least // COMPACT_EVERY) * COMPACT_EVERY

    def pass_over(self, permit: CommitPermit) -> None:
        number = permit.epoch - 1
        if permit.epoch < self._first_epoch or self._has(number):
            return
        self.begin(permit.epoch)
        entries = self._below(number) if _compact(number) else _Entries([], sealed=True)
        data = _record_of(entries.lines)
        if self._made(self._record(number), data) is Created.CREATED and entries.sealed:
            self._seal(number, data)

    def files(self, epoch: int) -> list[dict[str, Any]]:
        """Returns every file published up to this epoch."""
        return [json.loads(line) for line in self._below(epoch).lines]

    def abort_unknown(self, permit: CommitPermit | None, attempt: AttemptId) -> None:
        """Deletes nothing if a record has no seal: it may have lost the names of published files.

        Nor if there is a later epoch: another JobMaster has taken over, or the job's log is an older copy.
        """
        assert self._job_id is not None, "a table is claimed before anything is deleted in it"
        epoch = permit.epoch if permit else 0
        entries = self._below(epoch)
        if not entries.sealed or self._has(epoch):
            return
        # Compared by name, which is unique within a table: the address of a file changes when its store is moved.
        known = {_line_name(line) for line in entries.lines}
        for path in self._store.list(self._table):
            written = _FILE_NAME.fullmatch(path.removeprefix(f"{self._table}/"))  # skips tables in subfolders
            if written is None or written["job_id"] != self._job_id or _name(path) in known:
                continue
            if AttemptId(int(written["generation"]), int(written["attempt"])) < attempt:
                self._store.delete(path)

    def _until(self, epoch: int) -> _Entries:
        """Returns the entries of all epochs up to this one, of a table whose log may begin later or have a gap there.

        A log has a gap if the job had no sink for this table for some epochs.
        """
        newest = self._newest_below(epoch)
        return self._below(0 if newest is None else newest + 1)

    def _newest_below(self, before: int) -> int | None:
        """Returns the number of the newest record below `before`. It reads, because a list may lack new files.

        A log has no gap behind a record that repeats everything until it ends or jumps to a later such record.
        """
        base = before // COMPACT_EVERY * COMPACT_EVERY - 1
        while base >= 0 and not self._has(base):
            base -= COMPACT_EVERY
        newest = base
        while newest + 1 < before and self._has(newest + 1):
            newest += 1
        return newest if newest >= 0 else None

    def _has(self, number: int) -> bool:
        return self._content(number) is not None

    def _content(self, number: int) -> bytes | None:
        """Returns the bytes of a record, None if there is none. Raises if there was one: its seal is left."""
        for _ in range(2):  # the store may have been away for a moment
            try:
                return self._store.read(self._record(number))
            except FileNotFoundError:
                if self._seal_at(number) is None:
                    return None
        raise self._damaged(number, "it is missing")

    def _below(self, before: int) -> _Entries:
        """Returns the entries of all records below `before`, read from the last record that repeats everything."""
        first = max(0, before // COMPACT_EVERY * COMPACT_EVERY - 1)
        records = [self._read(number) for number in range(first, before)]
        lines = [self._addressed(line) for record in records for line in record.lines]
        return _Entries(lines, all(record.sealed for record in records))

    def _read(self, number: int) -> _Entries:
        """Returns the entries of a record, after a look whether it is what was written."""
        data = self._content(number)
        if data is None:
            raise StoreError(f"{self._record(number)} is missing, and the records after it need it")
        seal = self._seal_at(number)
        if seal is not None and seal != checksum(data).encode():
            raise self._damaged(number, f"the checksum of its {len(data)} bytes differs")
        version, *lines = data.decode(errors="replace").split("\n")
        if version != "v1" or (seal is None and not all(map(_is_entry, lines))):
            raise self._damaged(number, f"its {len(data)} bytes are no record")
        return _Entries(lines, seal is not None)

    def _seal_at(self, number: int) -> bytes | None:
        """Returns the seal of a record. A crash may leave the last one without, until its epoch is committed again."""
        try:
            return self._store.read(self._seal_of(number))
        except FileNotFoundError:
            return None

    def _damaged(self, number: int, why: str) -> DamagedTable:
        return DamagedTable(
            f"{self._store.uri(self._record(number))} is not what Weir wrote: {why}. It says which files of the table "
            "are published, so Weir publishes and deletes nothing there. Bring it back from a backup. If there is "
            f"none, move {self._store.uri(self._table)} away and start the job with --allow-non-restored-state: it "
            "then goes on with a new, empty table"
        )

    def _addressed(self, line: str) -> str:
        """Returns an entry with the file's address as it is now: its store may have been moved since."""
        begin = f'{{"path":"{self._store.uri(self._table)}/'
        if line.startswith(begin):
            return line
        entry = json.loads(line)
        return _entry({**entry, "path": self._store.uri(f"{self._table}/{_name(entry['path'])}")})

    def _record(self, number: int) -> str:
        return f"{self._table}/_spark_metadata/{number}{'.compact' if _compact(number) else ''}"

    def _seal_of(self, number: int) -> str:
        return f"{self._table}/_spark_metadata/.{number}.checksum"

    def _line(self, payload: dict[str, Any]) -> str:
        entry = {
            "path": self._store.uri(payload["path"]),
            "size": payload["size"],
            "isDir": False,
            "modificationTime": 0,
            "blockReplication": 1,
            "blockSize": 33_554_432,
            "action": "add",
        }
        return _entry(entry)

    def _made(self, path: str, data: bytes) -> Created:
        """Returns whether the file is new or was there. If the store can't tell, a restart asks again."""
        outcome = self._store.create(path, data)
        if outcome is Created.UNKNOWN:
            raise StoreError(f"the store did not say whether {path} was created")
        return outcome

    def _create(self, number: int, entries: _Entries) -> None:
        """Creates a record and seals it, unless it repeats one without a seal.

        A record that exists must name the same files, if at other addresses: a store may be moved.
        """
        data = _record_of(entries.lines)
        if self._made(self._record(number), data) is not Created.CREATED:
            data = self._store.read(self._record(number))
            there = self._read(number).lines
            if there != entries.lines and [*map(_line_name, there)] != [*map(_line_name, entries.lines)]:
                raise self._damaged(number, "it names other files than this epoch's")
        if entries.sealed:
            self._seal(number, data)

    def _seal(self, number: int, data: bytes) -> None:
        if self._made(self._seal_of(number), checksum(data).encode()) is not Created.CREATED:
            self._read(number)


def _compact(number: int) -> bool:
    """Returns whether the record of this number repeats all before it."""
    return (number + 1) % COMPACT_EVERY == 0


def _record_of(lines: Sequence[str]) -> bytes:
    return "\n".join(["v1", *lines]).encode()


def _entry(entry: dict[str, Any]) -> str:
    return json.dumps(entry, separators=(",", ":"))


def _is_entry(line: str) -> bool:
    try:
        entry = json.loads(line)
    except ValueError:
        return False
    return isinstance(entry, dict) and isinstance(entry.get("path"), str) and isinstance(entry.get("size"), int)


def _line_name(line: str) -> str:
    return _name(json.loads(line)["path"])


def _name(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def published(store: Store, table: str) -> list[str] | None:
    """Returns the names of a table's published files; None if it has no epoch yet. `table`: its path in the store."""
    names = [_name(path).removesuffix(".compact") for path in store.list(f"{table}/_spark_metadata")]
    newest = max((int(name) for name in names if name.isdecimal()), default=None)
    if newest is None:
        return None
    return [_name(file["path"]) for file in TableCommitter(store, table).files(newest + 1)]


def read_table(store: Store, table: str) -> pa.Table:
    """Returns the published rows, as `spark.read.parquet` would, without Spark."""
    names = published(store, table)
    if names is None:
        raise FileNotFoundError(f"{table} is not a Weir table, or nothing was published to it yet")
    parts = [pq.read_table(pa.BufferReader(store.read(f"{table}/{name}"))) for name in names]
    return pa.concat_tables(parts) if parts else pa.table({})
