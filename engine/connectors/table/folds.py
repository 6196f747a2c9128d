"""The fold log of a table, `<table>/_folds/`: which files hold the rows of many smaller ones, and their epochs.

    _folds/0000000012.json      a fold: each of its files replaces others. It stays until these are deleted
    _folds/<file>.epochs        which rows of a file belong to which epoch; exists before the fold that names it

A fold becomes visible when a compact record of the table's log names its files instead of those that they replace.

Invariants: fold n exists before fold n + 1, each by create-if-absent. The files and indexes that a fold names are
durable before it. A folder that sees a fold of a higher generation makes no more folds. Only the newest fold waits for
a compact record, so a fold that was made where an older one had been deleted is never used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec
import pyarrow as pa

from engine.connectors.table.log import TableLog, file_name, line_name, made
from engine.core.errors import StoreError
from engine.core.ports import Store
from engine.protocol.epoch_records import Created
from engine.snapshot.statefile import checksum

INDEX_SCHEMA = pa.schema([("epoch", pa.int64()), ("rows", pa.int64()), ("digest", pa.uint64())])
CACHED = 1_000
ALL_RECORDS = -1
"""`records_from` of a table of which no record may be deleted yet."""
_FOLDED = re.compile(r"(?P<job_id>[0-9a-f]+)-(?P<generation>\d+)-fold(?P<level>\d+)-(?P<fold>\d+)-\d+\.parquet")


class Folded(msgspec.Struct, frozen=True):
    """A file and those that it replaces. A file that replaces only itself was large enough, and got an index."""

    file: str
    size: int
    replaces: list[str]


class Fold(msgspec.Struct, frozen=True):
    """One fold. `records_from`: no rewind goes behind this record of the table's log, so older ones may be deleted.

    `born` has the epochs of files without an index that this record or a later one names, if no later one tells them.
    """

    number: int
    generation: int
    records_from: int
    born: dict[str, int]
    folded: list[Folded]

    @property
    def names(self) -> set[str]:
        """The files of the fold, and those that they replace."""
        return {name for of in self.folded for name in (*of.replaces, of.file)}


class Span(msgspec.Struct, frozen=True):
    """Consecutive rows of a file, all of one epoch, with the digest of their columns that can be hashed."""

    epoch: int
    rows: int
    digest: int


def folded_name(job_id: str, generation: int, level: int, fold: int, part: int) -> str:
    name = f"{job_id}-{generation:04d}-fold{level}-{fold:010d}-{part:04d}.parquet"
    assert _FOLDED.fullmatch(name)
    return name


def level_of(name: str) -> int:
    """Returns how often the rows of a file were folded; 0 for a file as its subtask wrote it."""
    folded = _FOLDED.fullmatch(name)
    return int(folded["level"]) if folded else 0


def maker_of(name: str) -> tuple[str, int, int] | None:
    """Returns (job id, generation, fold) of a folded file, or None for any other name."""
    folded = _FOLDED.fullmatch(name)
    return (folded["job_id"], int(folded["generation"]), int(folded["fold"])) if folded else None


def applied(fold: Fold | None, lines: Sequence[str], log: TableLog, table: str) -> list[str]:
    """Returns the entries with the fold's files in place of those that they replace.

    A file whose replaced files are not all there replaces nothing: a rewind has hidden some of them.
    """
    position = {line_name(line): at for at, line in enumerate(lines)} if fold is not None else {}
    result: list[str | None] = list(lines)
    for folded in fold.folded if fold is not None else ():
        if folded.file in position or not all(name in position for name in folded.replaces):
            continue
        first = min(position[name] for name in folded.replaces)
        for name in folded.replaces:
            result[position[name]] = None
        result[first] = log.line(f"{table}/{folded.file}", folded.size)
    return [line for line in result if line is not None]


def waits(fold: Fold, names: set[str]) -> bool:
    """Returns whether a file of the fold is to replace others in the next compact record."""
    return any(of.file not in names and names.issuperset(of.replaces) for of in fold.folded)


class FoldLog:
    """The folds of one table that are still kept, by number."""

    def __init__(self, store: Store, table: str) -> None:
        self._store = store
        self._table = table
        self._log = TableLog(store, table)
        self._known: dict[int, Fold] = {}
        self._newest = 0
        self._listed = False

    def newest(self) -> Fold | None:
        """Returns the newest fold. Costs one read if there is no new one."""
        if not self._listed:
            # The list only says where to look: it may lack the newest names.
            self._newest = max(self._numbers(), default=0)
            self._listed = True
        while self._read(self._newest + 1) is not None:
            self._newest += 1
        return self._read(self._newest)

    def kept(self) -> Mapping[int, Fold]:
        """Returns all folds that the store has. They have no gaps, since the oldest goes first."""
        self.newest()
        kept: dict[int, Fold] = {}
        number = self._newest
        while (fold := self._read(number)) is not None:
            kept[number] = fold
            number -= 1
        return kept

    def append(self, fold: Fold) -> bool:
        """Creates the next fold. Returns False if there is another one of this number.

        Raises if the outcome is unknown. The caller then repeats the same fold: it may exist, or appear later.
        """
        data, path = _sealed(fold), self._path(fold.number)
        if made(self._store, path, data) is not Created.CREATED and self._store.read(path) != data:
            return False
        self._newest = max(self._newest, fold.number)
        return True

    def fence(self, generation: int) -> Fold:
        """Makes sure that no folder of an older generation makes another fold, and returns the newest fold."""
        while True:
            newest = self.newest()
            if newest is not None and newest.generation >= generation:
                return newest
            before = newest or Fold(0, 0, ALL_RECORDS, {}, [])
            self.append(msgspec.structs.replace(before, number=before.number + 1, generation=generation, folded=[]))

    def stray(self) -> list[int]:
        """Returns the numbers of folds below the kept ones: a folder made them that was not seen to be replaced."""
        oldest = min(self.kept(), default=0)
        return [number for number in self._numbers() if number < oldest]

    def forget(self, number: int) -> None:
        """Deletes a fold that is not the newest. The oldest has to go first."""
        assert number < self._newest
        self._store.delete(self._path(number))
        self._known.pop(number, None)

    def replaced(self) -> dict[str, list[str]]:
        """Returns by folded file which files it replaces, as far as the kept folds tell."""
        return {of.file: of.replaces for fold in self.kept().values() for of in fold.folded if of.replaces != [of.file]}

    def canonical(self, names: Sequence[str]) -> list[str]:
        """Returns the names with each file of a kept fold replaced by those that it replaces, down to the last."""
        replaced = self.replaced()
        result: list[str] = []
        left = list(names)
        while left:
            name = left.pop()
            if name in replaced:
                left += replaced[name]
            else:
                result.append(name)
        return result

    # --- indexes ---

    def index(self, name: str) -> list[Span] | None:
        """Returns the index of a file, None if it has none."""
        path = self._index_path(name)
        try:
            data = self._store.read(path)
        except FileNotFoundError:
            return None
        seal, _, body = data.partition(b"\n")
        if seal != checksum(body).encode():
            raise self._log.not_as_written(path, "its checksum differs")
        columns = pa.ipc.open_file(pa.BufferReader(body)).read_all().to_pydict().values()
        return [Span(*row) for row in zip(*columns, strict=True)]

    def write_index(self, name: str, spans: Sequence[Span]) -> str:
        """Writes the index of a file, and returns its path. The caller makes it durable."""
        columns = zip(*((span.epoch, span.rows, span.digest) for span in spans), strict=True)
        table = pa.table(
            [pa.array(column, field.type) for column, field in zip(columns, INDEX_SCHEMA, strict=True)], INDEX_SCHEMA
        )
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, INDEX_SCHEMA, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_table(table)
        body = sink.getvalue().to_pybytes()
        path = self._index_path(name)
        self._store.write(path, checksum(body).encode() + b"\n" + body)
        return path

    def indexed(self) -> set[str]:
        """Returns the names of the files that have an index, as far as the store lists them."""
        return {file_name(path).removesuffix(".epochs") for path in self._listing() if path.endswith(".epochs")}

    def delete_index(self, name: str) -> None:
        self._store.delete(self._index_path(name))

    def _numbers(self) -> list[int]:
        names = [file_name(path).removesuffix(".json") for path in self._listing()]
        return [int(name) for name in names if name.isdecimal()]

    def _listing(self) -> list[str]:
        return self._store.list(f"{self._table}/_folds")

    def _index_path(self, name: str) -> str:
        return f"{self._table}/_folds/{name}.epochs"

    def _path(self, number: int) -> str:
        return f"{self._table}/_folds/{number:010d}.json"

    def _read(self, number: int) -> Fold | None:
        """Returns a fold, None if there is none. Folds never change, so each is read once."""
        if number in self._known:
            return self._known[number]
        path = self._path(number)
        try:
            data = self._store.read(path)
        except FileNotFoundError:
            return None
        seal, _, body = data.partition(b"\n")
        if seal != checksum(body).encode():
            raise self._log.not_as_written(path, f"the checksum of its {len(data)} bytes differs")
        fold = msgspec.json.decode(body, type=Fold)
        assert fold.number == number
        self._known[number] = fold
        if len(self._known) > CACHED:
            del self._known[min(self._known)]
        return fold


def _sealed(fold: Fold) -> bytes:
    body = msgspec.json.encode(fold)
    return checksum(body).encode() + b"\n" + body


def orphans(store: Store, table: str, job_id: str) -> list[str]:
    """Returns the folded files that no fold and no record names, of generations before that of the newest fold.

    Their folders can make no fold any more: the number that they would give it is taken. Any process may delete them.
    Raises a StoreError if the records can't be seen: the store may be away for a moment, as a mount may be.
    """
    log, folds = TableLog(store, table), FoldLog(store, table)
    newest = folds.newest()
    if newest is None:
        return []
    listed = [path for path in store.list(table) if maker_of(path.removeprefix(f"{table}/")) is not None]
    old = [path for path in listed if _older(path, job_id, newest.generation)]
    if not old:
        return []
    records = log.numbers()
    if not records:  # there is a fold, so there are the records whose files it has folded
        raise StoreError(f"{store.uri(table)} has folded files, but no record: is the store mounted?")
    known = {name for number in records for name in log.read(number).names}
    # A folded file that was folded again stays for its readers, as the fold says that has replaced it.
    known = known.union(*(fold.names for fold in folds.kept().values()))
    return [path for path in old if file_name(path) not in known]


def _older(path: str, job_id: str, generation: int) -> bool:
    maker = maker_of(file_name(path))
    return maker is not None and maker[0] == job_id and maker[1] < generation
