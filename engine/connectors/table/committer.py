"""`TableCommitter` publishes the epochs of a Weir table, and claims the table for its job.

The JobMaster alone publishes an epoch, by one record of the table's log that names all of its files (`log.py`). What is
in a record depends only on the epochs up to it, so a repeated commit makes one that names the same rows. A compact
record also puts folded files in place of those that they replace (`folds.py`).
A table may get columns and loses none, and their types stay; a job that would change that is refused at its start.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from engine.connectors.table import log as table_log
from engine.connectors.table.folder import TableFolder
from engine.connectors.table.folds import FoldLog, applied
from engine.connectors.table.log import Entries, TableLog, file_name, is_compact, made
from engine.connectors.table.rows import without
from engine.core.columns import stored_columns
from engine.core.errors import StoreError, TargetTaken
from engine.core.ports import Store
from engine.core.sinks import Committer, Found, Tidied, Withheld
from engine.protocol.checkpoint import CommitPermit
from engine.protocol.ids import AttemptId
from engine.protocol.job_description import Column
from engine.protocol.manifest import Committable
from engine.store.failpoints import Point, failpoint

MARKER = "_spark_metadata/weir.json"
"""Names the table's owner. It exists before the first data file: without `_spark_metadata` Spark would read that."""

DEAD_LETTER = "_dead_letter"
"""Ends the name of the table that has the rows which a gate refused."""

SPLIT_FROM = "split_from"
"""In the payload of a dead letter: the file that its rows were in."""

_BRING_BACK = (
    "Bring back the table's copy of the same time, too; or let another job go on from here with a table at another "
    "path: --fork NAME"
)

_FILE_NAME = re.compile(r"(?P<job_id>[0-9a-f]+)-(?P<generation>\d+)-(?P<attempt>\d+)-\d+-\d+(-kept)?\.parquet")


def file_name_of(job_id: str, attempt: AttemptId, subtask: int, number: int) -> str:
    """Returns the name of a file that a subtask writes. No name is used twice."""
    name = f"{job_id}-{attempt.generation:04d}-{attempt.attempt:04d}-{subtask:04d}-{number:06d}.parquet"
    assert _FILE_NAME.fullmatch(name)
    return name


def kept_name_of(name: str) -> str:
    """Returns the name of the file with those rows of another one that a gate lets pass."""
    kept = f"{name.removesuffix('.parquet')}-kept.parquet"
    assert _FILE_NAME.fullmatch(kept)
    return kept


def as_plain(dead_letter: Committable) -> Committable:
    """Returns a dead letter as its own table sees it."""
    payload = {name: value for name, value in dead_letter.payload.items() if name != SPLIT_FROM}
    return msgspec.structs.replace(dead_letter, payload=payload)


class _Owner(msgspec.Struct, frozen=True):
    """The content of the marker. `job` and `store` are for messages: a store that was moved keeps its tables.

    `first_epoch` is the first epoch that this folder may hold: the table may have been deleted and begun anew.
    """

    job_id: str
    job: str
    store: str
    first_epoch: int = 1


class TableCommitter(Committer):
    """Publishes epochs of one table, which belongs to one job. `home`: the store of that job, for messages.

    `fold_bytes`: the size of folded files; None: nothing is folded. `keep_ms`: how long replaced files stay.
    """

    def __init__(
        self,
        store: Store,
        table: str,
        job: str = "",
        home: str = "",
        fold_bytes: int | None = None,
        keep_ms: float = 0.0,
    ) -> None:
        self._store = store
        self._table = table
        self._job = job
        self._home = home
        self._fold_bytes = fold_bytes
        self._keep_ms = keep_ms
        self._log = TableLog(store, table)
        self._folds = FoldLog(store, table)
        self._folder: TableFolder | None = None
        self._job_id: str | None = None
        self._first_epoch = 1

    # --- the owner ---

    def look(self, job_id: str, epoch: int) -> Found:
        owner = self._checked_owner(job_id)
        return Found(claimed=False) if owner is None else Found(columns=self._published_columns(epoch))

    def claim(self, job_id: str, next_epoch: int) -> None:
        """Looks first and then creates the marker; a folder with anything else in it is left as it is.

        The marker is created again on every claim, which makes its name durable if an earlier create did not. A table
        that is ahead of the job's log is refused: the job would write files under names that are published already.
        """
        self._checked_owner(job_id)
        if self._log.has(next_epoch - 1):
            raise self._ahead(next_epoch - 1)
        marker = f"{self._table}/{MARKER}"
        made(self._store, marker, msgspec.json.encode(_Owner(job_id, self._job, self._home, next_epoch)))
        owner = self._checked_owner(job_id)
        if owner is None:
            raise StoreError(f"{marker} exists and can't be found")
        self._job_id = job_id
        self._first_epoch = owner.first_epoch

    def _ahead(self, epoch: int) -> TargetTaken:
        return TargetTaken(
            f"the table {self._store.uri(self._table)} has epochs after {epoch}, with which the log of job "
            f"{self._job!r} ends: an older copy of the job's folder was brought back. Nothing was changed in the "
            f"table. {_BRING_BACK}"
        )

    def _checked_owner(self, job_id: str) -> _Owner | None:
        """Returns the content of the marker, None if there is none. Raises TargetTaken if it is not the job's place."""
        owner = self._owner()
        strange = [] if owner is not None else self._strange_files(job_id)
        if strange:  # unless the store was away when the marker was looked for
            owner = self._owner()
            strange = strange if owner is None else []
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
        """Returns the columns of the published files. Columns only come, so the newest files have them all.

        Reads the newest file that a subtask wrote, the newest that is folded, and the smallest one that is there.
        """
        files = {file_name(file["path"]): int(file["size"]) for file in map(json.loads, self._until(epoch).lines)}
        written = [name for name in files if _FILE_NAME.fullmatch(name)]
        folded = [name for name in files if name not in written]
        columns: dict[str, Column] = {}
        for name in {*sorted(written)[-1:], *sorted(folded)[-1:]}:
            columns |= {column.name: column for column in self._columns_of(name)}
        smallest_first = sorted(files, key=lambda name: files[name])
        some = next((found for name in smallest_first if (found := self._columns_of(name))), [])
        return list((columns | {column.name: column for column in some}).values())

    def _columns_of(self, name: str) -> list[Column]:
        """Returns the columns of a file; none if it is lost or damaged, which an audit reports."""
        try:
            return stored_columns(pq.read_schema(pa.BufferReader(self._store.read(f"{self._table}/{name}"))))
        except (FileNotFoundError, pa.ArrowInvalid):
            return []

    def _owner(self) -> _Owner | None:
        marker = f"{self._table}/{MARKER}"
        try:
            return msgspec.json.decode(self._store.read(marker), type=_Owner)
        except FileNotFoundError:
            return None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._log.not_as_written(marker, f"it names no owner ({error})") from error

    def _strange_files(self, job_id: str) -> list[str]:
        """Returns the files of the folder that neither this job nor a table below this one has written."""
        files = self._store.list(self._table)
        known = tuple(file.removesuffix(MARKER) for file in files if file.endswith(f"/{MARKER}"))
        return [file for file in files if not file.startswith((*known, f"{self._table}/{job_id}-"))]

    # --- epochs ---

    def check(self, committables: Sequence[Committable]) -> None:
        """Looks for the files and for the marker. Without that one, a restart would take the table for another's."""
        marker = f"{self._table}/{MARKER}"
        written = {payload["path"]: payload["size"] for payload in (one.payload for one in committables)}
        paths = [marker, *written]
        for path, found in zip(paths, self._store.sizes(paths), strict=True):
            if found is None:
                raise StoreError(f"{self._store.uri(path)} is gone: was the store away when it was written?")
            if path != marker and found != written[path]:
                raise StoreError(f"{self._store.uri(path)} has {found} bytes, and {written[path]} were written")

    def withhold(self, committables: Sequence[Committable], refused: Mapping[str, Sequence[int]] | None) -> Withheld:
        assert refused is None, "only a committer with a dead letter table splits files"
        return without(self._store, committables)

    @failpoint(after=Point.AFTER_TABLE)
    def commit(self, permit: CommitPermit, committables: Sequence[Committable]) -> None:
        if aside := [one for one in committables if SPLIT_FROM in one.payload]:
            self._commit_dead_letters(permit, aside)
            committables = [one for one in committables if SPLIT_FROM not in one.payload]
        if permit.epoch < self._first_epoch:
            return
        number = permit.epoch - 1  # Spark counts from 0
        lines = [self._log.line(c.payload["path"], c.payload["size"]) for c in committables]
        if not is_compact(number):
            self._log.create(number, Entries(lines, sealed=True))
            return
        before = self._log.below(number)
        folded = applied(self._folds.newest(), before.lines, self._log, self._table)
        self._log.create(number, Entries(folded + lines, before.sealed), self._folds.canonical)

    def _commit_dead_letters(self, permit: CommitPermit, aside: Sequence[Committable]) -> None:
        """Commits dead letters of an epoch that was made when the sink had another gate than it has now."""
        assert self._job_id is not None, "a table is claimed before anything is committed to it"
        table = TableCommitter(self._store, f"{self._table}{DEAD_LETTER}", self._job, self._home)
        table.claim(self._job_id, permit.epoch + 1)
        table.begin(permit.epoch)
        table.commit(permit, [as_plain(one) for one in aside])

    def begin(self, next_epoch: int) -> None:
        """Makes the log one that Spark can read from `next_epoch` on: Spark asks for the records before it, too.

        Spark reads from the last compact record, and takes the distance between the last two of these as their
        interval. So both are written, if they are missing, with all that the table has published until now, and empty
        records after them. The last record is written last: if it is there, so are the others.
        """
        first = next_epoch - 1
        if first <= 0 or self._log.has(first - 1):
            return
        entries = self._until(first)
        last = table_log.base_of(first)
        for number in (last - table_log.COMPACT_EVERY, *range(last, first)):
            if number >= 0 and not self._log.has(number):
                self._log.create(number, entries if is_compact(number) else Entries([], sealed=True))

    def prepare_rewind(self, to_epoch: int, generation: int) -> None:
        """Stops the folders of older JobMasters first: they might delete what the older epoch is read from."""
        newest = self._folds.fence(generation)
        if to_epoch <= newest.records_from:
            raise TargetTaken(
                f"the table {self._store.uri(self._table)} can't hide the output after epoch {to_epoch}: its oldest "
                f"record is of epoch {newest.records_from + 1}. Start the job with --fork NAME or --allow-replay"
            )

    def rewind(self, permit: CommitPermit, to_epoch: int) -> None:
        """Writes a record that repeats all up to `to_epoch`; readers begin at it, so the epochs between are hidden."""
        assert permit.epoch % table_log.COMPACT_EVERY == 0 and permit.epoch > to_epoch
        if permit.epoch < self._first_epoch:
            return
        there = self._log.find(permit.epoch - 1)
        if there is not None and there.sealed:
            return  # committed before: what it was read from may be deleted since
        self.begin(permit.epoch - table_log.COMPACT_EVERY + 1)  # the compact record before it
        self._log.create(permit.epoch - 1, self._until(to_epoch))

    def rewind_epoch(self, at_least: int) -> int:
        """Returns the next epoch whose record is compact: only such a record can leave files out."""
        return -(-at_least // table_log.COMPACT_EVERY) * table_log.COMPACT_EVERY

    def pass_over(self, permit: CommitPermit) -> None:
        number = permit.epoch - 1
        if permit.epoch < self._first_epoch or self._log.has(number):
            return
        self.begin(permit.epoch)
        entries = self._log.below(number) if is_compact(number) else Entries([], sealed=True)
        self._log.create_if_missing(number, entries)

    def files(self, epoch: int) -> list[dict[str, Any]]:
        """Returns every file that a reader of this epoch sees."""
        return [json.loads(line) for line in self._log.below(epoch).lines]

    def _until(self, epoch: int) -> Entries:
        newest = self._folds.newest()
        if newest is not None and 0 < epoch <= newest.records_from:
            raise TargetTaken(
                f"the table {self._store.uri(self._table)} has no records of epoch {epoch} any more, and the job's log "
                f"has no later epoch: was an older copy of the job's folder brought back? {_BRING_BACK}"
            )
        return self._log.until(epoch)

    def abort_unknown(self, permit: CommitPermit | None, attempt: AttemptId) -> None:
        """Deletes nothing if a record has no seal: it may have lost the names of published files.

        Nor if there is a later epoch: another JobMaster has taken over, or the job's log is an older copy. Files that
        were folded stay for their time (`TableFolder`).
        """
        assert self._job_id is not None, "a table is claimed before anything is deleted in it"
        epoch = permit.epoch if permit else 0
        entries = self._log.below(epoch)
        if not entries.sealed or self._log.has(epoch):
            return
        # Compared by name, which is unique within a table: the address of a file changes when its store is moved.
        known = {*entries.names, *self._folds.canonical(entries.names)}
        known |= {name for fold in self._folds.kept().values() for of in fold.folded for name in of.replaces}
        for path in self._store.list(self._table):
            written = _FILE_NAME.fullmatch(path.removeprefix(f"{self._table}/"))  # skips tables in subfolders
            if written is None or written["job_id"] != self._job_id or file_name(path) in known:
                continue
            if AttemptId(int(written["generation"]), int(written["attempt"])) < attempt:
                self._store.delete(path)

    # --- in the background ---

    def tidy(self, generation: int, epoch: int, kept_from: int, now_ms: float) -> Tidied:
        assert self._job_id is not None, "a table is claimed before anything is folded in it"
        if self._fold_bytes is None or epoch < self._first_epoch:
            return Tidied()
        if self._folder is None:
            self._folder = TableFolder(
                self._store, self._table, self._job_id, self._first_epoch, self._fold_bytes, self._keep_ms
            )
        return self._folder.tidy(generation, epoch, max(kept_from, 1), now_ms)
