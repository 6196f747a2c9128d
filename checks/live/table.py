"""What readers see of a table now, as plain Spark finds it: the files, and which rows of them belong to which epoch."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from checks.live.spans import Layout
from engine.connectors.table.committer import MARKER
from engine.connectors.table.folds import FoldLog
from engine.connectors.table.log import TableLog, base_of
from engine.core.errors import StoreError
from engine.core.ports import Store


@dataclass(frozen=True)
class PublishedFile:
    """An entry of the table's log. `address` is the folder that it names."""

    name: str
    address: str
    size: int


@dataclass(frozen=True)
class Snapshot:
    """What the record of epoch `newest` shows to readers. They read files that are named `twice` as often."""

    newest: int
    files: Mapping[str, PublishedFile]
    twice: frozenset[str] = frozenset()


class LiveTable:
    """A table, as its readers find it. `path` is its path in the store."""

    def __init__(self, store: Store, path: str) -> None:
        self.store = store
        self.path = path
        self._log = TableLog(store, path)

    @property
    def exists(self) -> bool:
        return self.store.sizes([f"{self.path}/{MARKER}"]) != [None]

    @property
    def first_epoch(self) -> int:
        """Returns the first epoch that this folder may hold."""
        return int(json.loads(self.store.read(f"{self.path}/{MARKER}")).get("first_epoch", 1))

    def newest(self) -> int:
        """Returns the newest epoch with a record; 0 if there is none. A list may lack new records."""
        number = max(self._log.numbers(), default=-1)
        while self._log.has(number + 1):
            number += 1
        return number + 1

    def snapshot(self, epoch: int) -> Snapshot:
        """Returns what readers see after this epoch's record. Raises a StoreError if a record is not as written."""
        files: dict[str, PublishedFile] = {}
        twice: set[str] = set()
        for number in range(max(0, base_of(epoch)), epoch):
            for line in self._log.read(number).lines:
                entry = json.loads(line)
                address, _, name = str(entry["path"]).rpartition("/")
                if name in files:
                    twice.add(name)
                files[name] = PublishedFile(name, address, int(entry["size"]))
        return Snapshot(epoch, files, frozenset(twice))

    @property
    def own_address(self) -> str:
        return self.store.uri(self.path)

    def sizes(self, names: Sequence[str]) -> dict[str, int | None]:
        return dict(zip(names, self.store.sizes([f"{self.path}/{name}" for name in names]), strict=True))

    def read(self, name: str) -> bytes:
        return self.store.read(f"{self.path}/{name}")

    def layouts(self, names: Collection[str], snapshot: Snapshot, seen: int) -> dict[str, Layout | None]:
        """Returns which rows of these files belong to which epoch; None if nothing tells it.

        A file's index tells, or the newest fold, or else the first record that names the file. `seen`: the epoch up to
        which the last audit has seen all files, so that no older record is asked unless it has to be.
        """
        folds = FoldLog(self.store, self.path)
        fold = folds.newest()
        found: dict[str, Layout | None] = {}
        for name in names:
            index = folds.index(name) if fold is not None else None
            if index is not None:
                found[name] = [(span.epoch, span.rows) for span in index]
            elif fold is not None and name in fold.born:
                found[name] = [(fold.born[name], None)]
        oldest = max(0, fold.records_from + 1) if fold is not None else 0
        for begin, end in ((max(oldest, seen), snapshot.newest), (oldest, min(seen, snapshot.newest))):
            for number in range(begin, end):
                if all(name in found for name in names):
                    break
                self._learn(number, names, found)
        return found | {name: None for name in names if name not in found}

    def _learn(self, number: int, names: Collection[str], found: dict[str, Layout | None]) -> None:
        there = self._log.find(number)  # a log has gaps where the job had no sink for the table
        for name in there.names if there is not None else ():
            if name in names and name not in found:
                found[name] = [(number + 1, None)]

    def read_as_spark(self, files: Collection[str], snapshot: Snapshot) -> Snapshot | None:
        """Returns the snapshot that has these files: this one, or a later one if epochs were published meanwhile."""
        for epoch in range(snapshot.newest, self.newest() + 1):
            try:
                later = snapshot if epoch == snapshot.newest else self.snapshot(epoch)
            except StoreError:  # its record is deleted by now
                continue
            if set(later.files) == set(files):
                return later
        return None
