"""The log of a Weir table, in the format of Spark's file-sink log (`_spark_metadata`). Record n is epoch n + 1.

Every tenth record is compact: it repeats all before it, and readers begin at the last such record.

Invariants: record n exists before record n + 1 is made, each by create-if-absent. Two writers of the same record name
the same rows, if perhaps in other files (`folds.py`). A record is sealed by its checksum in a hidden file beside it,
which Spark ignores. Nothing is published or deleted on the word of a record that is not what was written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from engine.core.errors import StoreError, TargetTaken
from engine.core.ports import Store
from engine.protocol.epoch_records import Created
from engine.snapshot.statefile import checksum
from engine.store.failpoints import Point, failpoint

COMPACT_EVERY = 10
"""Every tenth record is compact (Spark's default)."""

Names = Sequence[str]
Canonical = Callable[[Names], Names]
"""Returns names that are the same for two records that name the same rows."""


class DamagedTable(TargetTaken):
    """A record of a table is not what was written. Only a person can mend it."""


@dataclass(frozen=True)
class Entries:
    """What records of the log say. `sealed`: each of them has its checksum, and is what was written."""

    lines: list[str]
    sealed: bool

    @property
    def names(self) -> list[str]:
        return [line_name(line) for line in self.lines]


class TableLog:
    """The records of one table. `table` is its path in the store."""

    def __init__(self, store: Store, table: str) -> None:
        self._store = store
        self._table = table

    def has(self, number: int) -> bool:
        return self._content(number) is not None

    def read(self, number: int) -> Entries:
        """Returns the entries of a record. Raises a StoreError if there is none."""
        found = self.find(number)
        if found is None:
            raise self._missing(number)
        return found

    def find(self, number: int) -> Entries | None:
        """Returns the entries of a record, after a look whether it is what was written; None if there is none."""
        data = self._content(number)
        if data is None:
            return None
        seal = self._seal_at(number)
        if seal is not None and seal != checksum(data).encode():
            raise self.damaged(number, f"the checksum of its {len(data)} bytes differs")
        version, *lines = data.decode(errors="replace").split("\n")
        if version != "v1" or (seal is None and not all(map(_is_entry, lines))):
            raise self.damaged(number, f"its {len(data)} bytes are no record")
        return Entries(lines, seal is not None)

    def below(self, before: int) -> Entries:
        """Returns the entries of all records below `before`, read from the last compact one."""
        records = [self.read(number) for number in range(max(0, base_of(before)), before)]
        lines = [self._addressed(line) for record in records for line in record.lines]
        return Entries(lines, all(record.sealed for record in records))

    def until(self, epoch: int) -> Entries:
        """Returns the entries of all epochs up to this one, of a table whose log may begin later or have a gap there.

        A log has a gap if the job had no sink for this table for some epochs.
        """
        newest = self._newest_below(epoch)
        return self.below(0 if newest is None else newest + 1)

    def _newest_below(self, before: int) -> int | None:
        """Returns the number of the newest record below `before`. It reads, because a list may lack new files.

        A log has no gap behind a compact record until it ends or jumps to a later compact one.
        """
        base = base_of(before)
        while base >= 0 and not self.has(base):
            base -= COMPACT_EVERY
        newest = base
        while newest + 1 < before and self.has(newest + 1):
            newest += 1
        return newest if newest >= 0 else None

    def create(self, number: int, entries: Entries, canonical: Canonical = lambda names: names) -> None:
        """Creates a record and seals it, unless it repeats one without a seal.

        A record that exists must name the same rows, if at other addresses (a store may be moved) or in other files.
        """
        data = record_of(entries.lines)
        if self._made(self.record(number), data) is not Created.CREATED:
            there, ours = self.read(number).names, entries.names
            if there != ours and sorted(canonical(there)) != sorted(canonical(ours)):
                raise self.damaged(number, "it names other files than this epoch's")
            data = self._there(number)
        if entries.sealed:
            self._seal(number, data)
        self._check_there(number)

    def create_if_missing(self, number: int, entries: Entries) -> None:
        """Creates a record and seals it. A record that exists is left as it is, whatever it names."""
        data = record_of(entries.lines)
        if self._made(self.record(number), data) is Created.CREATED and entries.sealed:
            self._seal(number, data)
        self._check_there(number)

    def numbers(self) -> list[int]:
        """Returns the numbers of the records that the store lists. New ones may be missing."""
        names = [
            file_name(path).removesuffix(".compact") for path in self._store.list(f"{self._table}/_spark_metadata")
        ]
        return sorted(int(name) for name in names if name.isdecimal())

    def delete(self, number: int) -> None:
        """Deletes a record, its seal first: a seal that is left without its record would say that this was damaged."""
        self._store.delete(self._seal_of(number))
        self._store.delete(self.record(number))

    def record(self, number: int) -> str:
        return f"{self._table}/_spark_metadata/{number}{'.compact' if is_compact(number) else ''}"

    def line(self, path: str, size: int) -> str:
        """Returns the entry of a file of the table."""
        entry = {
            "path": self._store.uri(path),
            "size": size,
            "isDir": False,
            "modificationTime": 0,
            "blockReplication": 1,
            "blockSize": 33_554_432,
            "action": "add",
        }
        return _entry(entry)

    def damaged(self, number: int, why: str) -> DamagedTable:
        return self.not_as_written(self.record(number), why)

    def not_as_written(self, path: str, why: str) -> DamagedTable:
        return DamagedTable(
            f"{self._store.uri(path)} is not what Weir wrote: {why}. Without it nobody knows which files of the table "
            "are published, so Weir publishes and deletes nothing there. Bring it back from a backup. If there is "
            f"none, move {self._store.uri(self._table)} away and start the job with --allow-non-restored-state: it "
            "then goes on with a new, empty table"
        )

    def _missing(self, number: int) -> StoreError:
        return StoreError(f"{self.record(number)} is missing, and the records after it need it")

    def _check_there(self, number: int) -> None:
        """Looks for a record that was created: it may have been, in an empty folder where the store was mounted."""
        if self._store.sizes([self.record(number)]) == [None]:
            raise self._missing(number)

    def _there(self, number: int) -> bytes:
        """Returns the bytes of a record. Raises a StoreError if there is none."""
        data = self._content(number)
        if data is None:
            raise self._missing(number)
        return data

    def _content(self, number: int) -> bytes | None:
        """Returns the bytes of a record, None if there is none. Raises if there was one: its seal is left."""
        for _ in range(2):  # the store may have been away for a moment
            try:
                return self._store.read(self.record(number))
            except FileNotFoundError:
                if self._seal_at(number) is None:
                    return None
        raise self.damaged(number, "it is missing")

    def _seal_at(self, number: int) -> bytes | None:
        """Returns the seal of a record. A crash may leave the last one without, until its epoch is committed again."""
        try:
            return self._store.read(self._seal_of(number))
        except FileNotFoundError:
            return None

    @failpoint(before=Point.BEFORE_SEAL)
    def _seal(self, number: int, data: bytes) -> None:
        if self._made(self._seal_of(number), checksum(data).encode()) is not Created.CREATED:
            self.read(number)

    def _seal_of(self, number: int) -> str:
        return f"{self._table}/_spark_metadata/.{number}.checksum"

    def _addressed(self, line: str) -> str:
        """Returns an entry with the file's address as it is now: its store may have been moved since."""
        begin = f'{{"path":"{self._store.uri(self._table)}/'
        if line.startswith(begin):
            return line
        entry = json.loads(line)
        return _entry({**entry, "path": self._store.uri(f"{self._table}/{file_name(entry['path'])}")})

    def _made(self, path: str, data: bytes) -> Created:
        return made(self._store, path, data)


def made(store: Store, path: str, data: bytes) -> Created:
    """Creates a file. Returns whether it is new or was there. If the store can't tell, a restart asks again."""
    outcome = store.create(path, data)
    if outcome is Created.UNKNOWN:
        raise StoreError(f"the store did not say whether {path} was created")
    return outcome


def is_compact(number: int) -> bool:
    """Returns whether the record of this number repeats all before it."""
    return (number + 1) % COMPACT_EVERY == 0


def base_of(before: int) -> int:
    """Returns the number of the last compact record below `before`; negative if there is none."""
    return before // COMPACT_EVERY * COMPACT_EVERY - 1


def record_of(lines: Sequence[str]) -> bytes:
    return "\n".join(["v1", *lines]).encode()


def _entry(entry: dict[str, Any]) -> str:
    return json.dumps(entry, separators=(",", ":"))


def _is_entry(line: str) -> bool:
    try:
        entry = json.loads(line)
    except ValueError:
        return False
    return isinstance(entry, dict) and isinstance(entry.get("path"), str) and isinstance(entry.get("size"), int)


def line_name(line: str) -> str:
    return file_name(json.loads(line)["path"])


def line_size(line: str) -> int:
    return int(json.loads(line)["size"])


def file_name(path: str) -> str:
    return path.rsplit("/", 1)[-1]
