"""`TableFolder` keeps a table small in the background: it folds small files into larger ones and deletes what is over.

It works beside the commits and shares nothing with them but the store. Steps: write the folded files and their indexes,
sync them, append the fold (`folds.py`). The committer's next compact record then names the folded files instead.

Invariants: a fold's files hold exactly the rows of those that they replace, as counted and digested after they were
written. Nothing is folded or deleted on the word of a record without a seal. A file is deleted only if a folded one
replaces it, no record names it that a reader or a rewind may begin at, and that was so for `keep_ms`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.parquet as pq

from engine.connectors.table import log as table_log
from engine.connectors.table.folds import (
    ALL_RECORDS,
    Fold,
    Folded,
    FoldLog,
    Span,
    folded_name,
    level_of,
    maker_of,
    waits,
)
from engine.connectors.table.log import Entries, TableLog, base_of, file_name, line_name, line_size
from engine.connectors.table.planning import Visible, choose, large
from engine.core.errors import StoreError
from engine.core.ports import Store
from engine.core.sinks import Tidied
from engine.state.digests import digest, plain

RECORDS_DUE = 100
"""After so many records that nobody needs any more, a fold is made to let them go, even if it folds no file."""
RECORD_DELAY_MS = 600_000.0
"""Records are deleted after this time, as Spark itself does: a reader that began at them has read them by then."""
SCAN_RECORDS = 5_000
"""The most records that one round reads, of a table that was never folded."""
ROW_GROUP_BYTES = 64 << 20


class _Unfit(Exception):
    """A file can't be folded: it is missing, or not what was written."""


@dataclass
class _Round:
    """What one round has found and done."""

    generation: int
    epoch: int
    entries: Entries
    named: set[str] = field(default_factory=set)  # by a record that a reader or a rewind may begin at
    done: Tidied = field(default_factory=Tidied)


class TableFolder:
    """Folds the files of one table. All calls come from one thread at a time."""

    def __init__(
        self, store: Store, table: str, job_id: str, first_epoch: int, target_bytes: int, keep_ms: float
    ) -> None:
        self._store = store
        self._table = table
        self._job_id = job_id
        self._first_epoch = first_epoch
        self._target_bytes = target_bytes
        self._keep_ms = keep_ms
        self._log = TableLog(store, table)
        self._folds = FoldLog(store, table)
        self._unsure: Fold | None = None  # the store did not say whether it exists
        self._tidied: int | None = None  # the compact record of the last whole round
        self._names: dict[int, frozenset[str]] = {}  # by number of a record that a rewind may need: the files it names
        self._unsealed: set[int] = set()
        self._scanned: int | None = None  # records below this number were read
        self._born: dict[str, int] = {}  # the epochs of files without an index
        self._indexed: set[str] = set()
        self._unfit: set[str] = set()
        self._unnamed: dict[str, float] = {}  # by name of a replaced file: since when no record names it
        self._orphans = True  # there may be some: of earlier JobMasters, or of a round of this one that failed
        self._trimmed = 0  # records below this number are deleted
        self._gone: set[str] = set()  # files of kept folds that are deleted
        self._seen: dict[int, float] = {}  # by number of a fold: since when this process knows it

    def tidy(self, generation: int, epoch: int, kept_from: int, now_ms: float) -> Tidied:
        """Does one round, if there is a compact record since the last one. `epoch` is committed.

        `kept_from` is the oldest epoch to which the job can go back.
        """
        base = base_of(epoch)
        if base < 0 or base == self._tidied:
            return Tidied()
        newest = self._settled()
        if newest is not None and newest.generation > generation:
            return Tidied()  # another JobMaster has taken over
        this = _Round(generation, epoch, self._log.below(epoch))
        if not this.entries.sealed:
            return Tidied()
        if self._scan(epoch, newest):
            if newest is None or not waits(newest, set(this.entries.names)):
                self._fold(this, newest, kept_from)
            self._clean(this, now_ms)
            self._tidied = base
        return this.done

    def _settled(self) -> Fold | None:
        """Returns the newest fold. One whose outcome is unknown is appended again until it is known."""
        if (fold := self._unsure) is not None:
            if self._folds.append(fold):
                self._indexed |= {of.file for of in fold.folded}
                self._born = {name: epoch for name, epoch in self._born.items() if name not in self._indexed}
            self._unsure = None
        return self._folds.newest()

    # --- which epoch a file belongs to ---

    def _scan(self, epoch: int, newest: Fold | None) -> bool:
        """Learns the epochs of files from the records. Returns False if there are more to read in the next round."""
        if self._scanned is None:
            self._scanned = self._begin(newest)
        end = min(epoch, self._scanned + SCAN_RECORDS)
        for number in range(self._scanned, end):
            for name in self._learn(number):
                if level_of(name) == 0 and name not in self._indexed:
                    self._born.setdefault(name, number + 1)
        self._scanned = max(self._scanned, end)
        return end == epoch

    def _begin(self, newest: Fold | None) -> int:
        """Takes what the newest fold says about older records; returns the first record to read after it."""
        if newest is None:
            return self._first_epoch - 1
        self._born = dict(newest.born)
        self._indexed = self._folds.indexed()
        # A list may lack new files, and only these two tell the epoch of a file in an older record.
        unsure = [name for name in self._learn(newest.records_from) if name not in self._indexed | self._born.keys()]
        self._indexed |= {name for name in unsure if self._folds.index(name) is not None}
        return max(newest.records_from + 1, self._first_epoch - 1)

    def _learn(self, number: int) -> frozenset[str]:
        """Returns the files that a record names; none where the log has a gap, because the table had no sink."""
        found = self._log.find(number)
        if found is None:
            return frozenset()
        self._names[number] = frozenset(found.names)
        if not found.sealed:
            self._unsealed.add(number)
        return self._names[number]

    # --- folding ---

    def _fold(self, this: _Round, newest: Fold | None, kept_from: int) -> None:
        """Makes the next fold, if there is anything to fold or many records may go."""
        files = [Visible(line_name(line), line_size(line)) for line in this.entries.lines]
        files = [file for file in files if file.name not in self._unfit]
        groups = choose(files, self._target_bytes)
        whole = [
            file for file in files if large(file, self._target_bytes) and file.name in self._born.keys() - self._indexed
        ]
        before = newest.records_from if newest is not None else ALL_RECORDS
        records_from = self._records_from(this.epoch, kept_from, before)
        if not groups and not whole and records_from - before < RECORDS_DUE:
            return
        number = newest.number + 1 if newest is not None else 1
        orphans, self._orphans = self._orphans, True
        folded = [*self._written(this, number, groups), *self._adopted(this, whole)]
        paths = [path for of in folded for path in (f"{self._table}/{of.file}", self._index_path(of.file))]
        self._store.sync(paths)
        self._check_there(paths)
        self._unsure = fold = Fold(number, this.generation, records_from, self._born_before(records_from), folded)
        if self._settled() != fold:
            return  # another JobMaster was faster, and deletes these files
        self._orphans = orphans
        replaced = [of for of in folded if of.replaces != [of.file]]
        this.done = replace(
            this.done,
            folded=sum(len(of.replaces) for of in replaced),
            into=len(replaced),
            written_bytes=sum(of.size for of in replaced),
        )

    def _check_there(self, paths: list[str]) -> None:
        """Looks for files before a fold names them: an empty folder in the place of the store may have taken them."""
        for path, found in zip(paths, self._store.sizes(paths), strict=True):
            if found is None:
                raise StoreError(f"{path} is gone: was the store away when it was written?")

    def _records_from(self, epoch: int, kept_from: int, before: int) -> int:
        """Returns the compact record from which the oldest epoch is read that the job can go back to.

        Two compact records stay in any case: Spark takes their distance as the interval.
        """
        step = table_log.COMPACT_EVERY
        number = min(base_of(kept_from), base_of(epoch) - step)
        while number > before and number not in self._names:
            number -= step
        return max(before, number)

    def _born_before(self, records_from: int) -> dict[str, int]:
        """Returns the epochs that only this record or an older one tells, of files that it or a later one names.

        A rewind may name a file again that was folded before: then `records_from` names the folded one.
        """
        named = set[str]().union(*(names for number, names in self._names.items() if number >= records_from))
        return {name: epoch for name, epoch in self._born.items() if name in named and epoch <= records_from + 1}

    def _written(self, this: _Round, number: int, groups: Iterable[Sequence[Visible]]) -> Iterator[Folded]:
        part = 0
        for group in groups:
            for same in self._alike(this, group):
                part += 1
                level = max(file.level for file in group) + 1
                name = folded_name(self._job_id, this.generation, level, number, part)
                try:
                    yield self._write(name, same)
                except _Unfit as error:
                    self._give_up(this, str(error), same)

    def _alike(self, this: _Round, group: Sequence[Visible]) -> Iterator[list[Visible]]:
        """Cuts a group where the columns change: a table may have got more of them. A file alone waits for others."""
        run: list[Visible] = []
        columns: pa.Schema | None = None
        for file in group:
            try:
                schema = self._opened(file).schema_arrow
            except _Unfit as error:
                self._give_up(this, str(error), [file])
                continue
            if columns is not None and not schema.equals(columns):
                yield from [run] if len(run) > 1 else []
                run = []
            run, columns = [*run, file], schema
        yield from [run] if len(run) > 1 else []

    def _give_up(self, this: _Round, why: str, files: Sequence[Visible]) -> None:
        """Leaves files as they are for good; an audit says what is wrong with them."""
        self._unfit |= {file.name for file in files}
        this.done = replace(this.done, problems=(*this.done.problems, why))

    def _write(self, name: str, files: Sequence[Visible]) -> Folded:
        """Writes one folded file and its index, and reads it back from memory to count and digest its rows."""
        out = pa.BufferOutputStream()
        spans: list[Span] = []
        with pq.ParquetWriter(out, self._opened(files[0]).schema_arrow, compression="zstd") as writer:
            waiting: list[pa.Table] = []
            for file in files:
                rows = self._opened(file).read(use_threads=False)
                _join(spans, self._spans(file, rows))
                waiting.append(rows)
                if sum(table.nbytes for table in waiting) >= ROW_GROUP_BYTES:
                    writer.write_table(pa.concat_tables(waiting))
                    waiting = []
            if waiting:
                writer.write_table(pa.concat_tables(waiting))
        data = out.getvalue()
        rows, found = _counted(pq.ParquetFile(data))
        if (rows, found) != (sum(s.rows for s in spans), sum(s.digest for s in spans) % (1 << 64)):
            raise _Unfit(f"the rows of {files[0].name} … {files[-1].name} are not what was written")
        self._store.write(f"{self._table}/{name}", data.to_pybytes())
        self._folds.write_index(name, spans)
        return Folded(name, data.size, [file.name for file in files])

    def _adopted(self, this: _Round, files: Sequence[Visible]) -> Iterator[Folded]:
        """Writes the indexes of files that are large already."""
        for file in files:
            try:
                rows, found = _counted(self._opened(file))
            except _Unfit as error:
                self._give_up(this, str(error), [file])
                continue
            self._folds.write_index(file.name, [Span(self._born[file.name], rows, found)])
            yield Folded(file.name, file.size, [file.name])

    def _spans(self, file: Visible, rows: pa.Table) -> list[Span]:
        if file.name in self._born:
            return [Span(self._born[file.name], rows.num_rows, _digest(rows))]
        spans = self._folds.index(file.name)
        if spans is None:
            raise _Unfit(f"the index of {file.name} is missing")
        return spans

    def _opened(self, file: Visible) -> pq.ParquetFile:
        try:
            data = self._store.read(f"{self._table}/{file.name}")
            if len(data) == file.size:
                return pq.ParquetFile(pa.BufferReader(data))
        except (FileNotFoundError, pa.ArrowInvalid) as error:
            raise _Unfit(f"{file.name} can't be read: {error}") from error
        raise _Unfit(f"{file.name} has {len(data)} bytes, and its record says {file.size}")

    def _index_path(self, name: str) -> str:
        return f"{self._table}/_folds/{name}.epochs"

    # --- deleting ---

    def _clean(self, this: _Round, now_ms: float) -> None:
        kept = self._folds.kept()
        newest = kept.get(max(kept, default=0))
        if newest is None or any(number >= newest.records_from for number in self._unsealed):
            return
        self._names = {number: names for number, names in self._names.items() if number >= newest.records_from}
        this.named = set().union(*self._names.values())
        self._born = {name: epoch for name, epoch in self._born.items() if name in this.named}
        self._unnamed = {name: since for name, since in self._unnamed.items() if name not in this.named}
        for number in kept:
            self._seen.setdefault(number, now_ms)
        needed = this.named | {of.file for of in newest.folded}
        waiting = [number for number in sorted(kept) if not self._is_over(this, kept[number], needed, now_ms)]
        for number in range(min(kept), min([*waiting, newest.number])):
            if now_ms - self._seen[number + 1] < self._keep_ms:
                break  # a list of folds may lack the next one, and must not be empty
            self._folds.forget(number)
            del self._seen[number]
            self._gone -= kept[number].names
        self._remember(this.named.union(*(fold.names for number, fold in kept.items() if number in self._seen)))
        if newest.generation == this.generation and self._orphans:
            self._delete_orphans(this)
            self._orphans = False
        self._delete_records(kept, now_ms)

    def _remember(self, known: set[str]) -> None:
        """Forgets all files that neither a record nor a fold names: a job may run for years."""
        self._unnamed = {name: since for name, since in self._unnamed.items() if name in known}
        self._indexed &= known
        self._unfit &= known

    def _is_over(self, this: _Round, fold: Fold, needed: set[str], now_ms: float) -> bool:
        """Deletes what no reader or rewind needs of a fold's files: replaced ones, or its own if they replace none.

        Returns False if some of it has to wait, or is still needed: then the fold is what tells that it was replaced.
        """
        over = not any(of.file in needed and needed.intersection(of.replaces) - {of.file} for of in fold.folded)
        for name in fold.names - needed - self._gone:
            if now_ms - self._unnamed.setdefault(name, now_ms) < self._keep_ms:
                over = False
                continue
            self._store.delete(f"{self._table}/{name}")
            self._folds.delete_index(name)
            self._gone.add(name)
            this.done = replace(this.done, deleted=this.done.deleted + 1)
        return over

    def _delete_orphans(self, this: _Round) -> None:
        """Deletes folded files and indexes that no fold names. Older generations can make no fold any more."""
        kept = self._folds.kept().values()
        known = this.named.union(*(fold.names for fold in kept))
        for path in self._store.list(self._table):
            maker = maker_of(path.removeprefix(f"{self._table}/"))  # skips tables in subfolders
            if maker is None or file_name(path) in known:
                continue
            if maker[0] == self._job_id and maker[1] <= this.generation:
                self._store.delete(path)
        for name in self._folds.indexed() - known:
            self._folds.delete_index(name)
        for number in self._folds.stray():
            self._folds.forget(number)

    def _delete_records(self, kept: Mapping[int, Fold], now_ms: float) -> None:
        seen = [fold for number, fold in kept.items() if now_ms - self._seen.get(number, now_ms) >= RECORD_DELAY_MS]
        due = max((fold.records_from for fold in seen), default=0)
        if due <= self._trimmed:
            return
        for number in self._log.numbers():
            if number < due:
                self._log.delete(number)
        self._trimmed = due


def _join(spans: list[Span], more: Sequence[Span]) -> None:
    """Adds spans. Two of the same epoch that meet become one."""
    for span in more:
        if spans and spans[-1].epoch == span.epoch:
            last = spans.pop()
            span = Span(span.epoch, last.rows + span.rows, (last.digest + span.digest) % (1 << 64))
        spans.append(span)


def _counted(file: pq.ParquetFile) -> tuple[int, int]:
    """Returns the number of rows of a file, and their digest."""
    rows = found = 0
    for group in range(file.num_row_groups):
        table = file.read_row_group(group, use_threads=False)
        rows += table.num_rows
        found += _digest(table)
    return rows, found % (1 << 64)


def _digest(table: pa.Table) -> int:
    return digest([table.column(name).combine_chunks() for name in plain(table.schema)]) if table.num_rows else 0
