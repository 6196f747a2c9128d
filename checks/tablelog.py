"""Reads the log of a Weir table (`_spark_metadata`): which rows each epoch published. Record n is epoch n + 1.

It does not trust the seals of the records: an audit has to see what a reader sees. Of folded files their index tells
the epochs (`engine/connectors/table/folds.py`).
"""

from __future__ import annotations

import json
from pathlib import Path

from engine.connectors.table import EpochRows
from engine.connectors.table.folds import FoldLog, level_of
from engine.store.directory import DirectoryStore

COMPACT = ".compact"


def epoch_files(table: Path) -> dict[int, list[str]]:
    """Returns the names of each epoch's files, as its subtasks wrote them.

    A compact record repeats earlier files; they are not counted again. The epochs of files whose own records are
    deleted are in the newest fold.
    """
    fold = FoldLog(DirectoryStore(table.parent), table.name).newest()
    born = fold.born if fold is not None else {}
    published: dict[int, list[str]] = {}
    for name, epoch in born.items():
        published.setdefault(epoch, []).append(name)
    seen = set(born)
    for number, path in sorted(table_records(table).items()):
        if fold is not None and number <= fold.records_from:
            continue
        names = [json.loads(line)["path"].rsplit("/", 1)[-1] for line in path.read_text().splitlines()[1:]]
        published[number + 1] = [name for name in dict.fromkeys(names) if name not in seen and not level_of(name)]
        seen.update(names)
    return published


def epoch_rows(table: Path) -> list[EpochRows]:
    """Returns where the rows of each epoch are, in files of one epoch and in folded files."""
    folds = FoldLog(DirectoryStore(table.parent), table.name)
    indexed = folds.indexed()
    found = [EpochRows(epoch, name) for epoch, names in epoch_files(table).items() for name in set(names) - indexed]
    for name in sorted(indexed):
        first = 0
        for span in folds.index(name) or ():
            found.append(EpochRows(span.epoch, name, first, span.rows))
            first += span.rows
    return found


def records_from(table: Path) -> int:
    """Returns the number of the oldest record that must be there: folds let older ones be deleted."""
    fold = FoldLog(DirectoryStore(table.parent), table.name).newest()
    return max(0, fold.records_from) if fold is not None else 0


def folded_files(table: Path) -> set[str]:
    """Returns the files of all folds that are kept, and those that they replace: these stay for readers for a while."""
    kept = FoldLog(DirectoryStore(table.parent), table.name).kept()
    return {name for fold in kept.values() for name in fold.names}


def table_records(table: Path) -> dict[int, Path]:
    """Returns the records of the table's log, by number."""
    files = (table / "_spark_metadata").iterdir()
    return {int(stem): path for path in files if (stem := path.name.removesuffix(COMPACT)).isdigit()}
