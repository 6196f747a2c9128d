"""Reads a Weir table without Spark: its files, its rows, and which rows belong to which epoch."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from engine.connectors.table.committer import MARKER, TableCommitter
from engine.connectors.table.folds import FoldLog
from engine.connectors.table.log import TableLog, file_name
from engine.core.paths import JobPaths
from engine.core.ports import Store
from engine.store.directory import DirectoryStore
from engine.store.opening import open_store, shown


@dataclass(frozen=True)
class EpochRows:
    """The rows of an epoch in one file: from `first` (counted from 0), `rows` of them; None: all of the file."""

    epoch: int
    file: str
    first: int = 0
    rows: int | None = None


def is_table(store: Store, table: str) -> bool:
    """Returns whether a job has begun this table. It may have no epoch yet."""
    try:
        store.read(f"{table}/{MARKER}")
    except FileNotFoundError:
        return False
    return True


def tables_of(store: str, job: str) -> list[tuple[str, str]]:
    """Returns name and address of each table in the job's part of a store; in a bucket not of those in subfolders."""
    opened, tables = open_store(store), JobPaths(job).table("")
    if isinstance(opened, DirectoryStore):
        found = sorted(path.parent for path in (opened.root / tables).glob("**/_spark_metadata"))
        return [(path.name, str(path)) for path in found]
    names = [name for name in opened.folders(tables.rstrip("/")) if is_table(opened, tables + name)]
    return [(name, shown(opened, tables + name)) for name in names]


def published(store: Store, table: str) -> list[str] | None:
    """Returns the names of a table's published files; None if it has no epoch yet. `table`: its path in the store."""
    newest = max(TableLog(store, table).numbers(), default=None)
    if newest is None:
        return None
    return [file_name(file["path"]) for file in TableCommitter(store, table).files(newest + 1)]


def read_table(store: Store, table: str) -> pa.Table:
    """Returns the published rows, as `spark.read.parquet` would, without Spark."""
    names = published(store, table)
    if names is None:
        raise FileNotFoundError(f"{table} is not a Weir table, or nothing was published to it yet")
    parts = [pq.read_table(pa.BufferReader(store.read(f"{table}/{name}"))) for name in names]
    return pa.concat_tables(parts, promote_options="default") if parts else pa.table({})


def epoch_rows(store: Store, table: str) -> list[EpochRows]:
    """Returns where the rows of each epoch are, of all files that a reader sees.

    The index of a file tells it, or else the first record that names the file.
    """
    log, folds = TableLog(store, table), FoldLog(store, table)
    visible = published(store, table) or []
    fold = folds.newest()
    born = dict(fold.born) if fold is not None else {}
    for number in log.numbers():
        if fold is None or number > fold.records_from:
            for name in log.read(number).names:
                born.setdefault(name, number + 1)
    found: list[EpochRows] = []
    for name in visible:
        index = folds.index(name) if fold is not None else None
        if index is None:
            found.append(EpochRows(born[name], name))
            continue
        first = 0
        for span in index:
            found.append(EpochRows(span.epoch, name, first, span.rows))
            first += span.rows
    return found
