"""Facts about the files of a drill, found without Spark: what each has to be, and what it is.

Great Expectations judge them: a fact whose two sides differ is a wrong row, which names table, epoch and file. So a
table that Spark can't read at all is *failed* and not "could not run": its readers have lost data.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from checks.history import EpochTotals, per_epoch
from checks.reader import digest_of
from checks.spec import AUDIT_CHECKS, AuditedTable
from checks.tablelog import COMPACT, epoch_files, epoch_rows, folded_files, records_from, table_records
from engine.connectors.table import EpochRows
from engine.core.errors import WeirError
from engine.protocol import ledger
from engine.snapshot.statefile import checksum

ROWS, AGGREGATES, KEYS, EPOCHS, SCHEMA, EQUATIONS, EVIDENCE, FAULT, STRAY = AUDIT_CHECKS


@dataclass(frozen=True)
class Fact:
    """`table` and `epoch` say what the fact is about; they are empty if it is about the whole drill."""

    check: str
    table: str
    epoch: int | None
    what: str
    expected: str
    found: str

    @property
    def holds(self) -> bool:
        return self.expected == self.found


@dataclass
class TableState:
    """The facts about a table. `plain`: Spark can read it as readers do. If not, the audit reads the sound `files`."""

    facts: list[Fact] = field(default_factory=list)
    plain: bool = True
    files: list[Path] = field(default_factory=list)


@dataclass(frozen=True)
class _Entry:
    """An entry of the table's log that readers follow. `address` is the folder that it names."""

    name: str
    address: str
    size: int


def inspect_table(table: AuditedTable, folder: Path, made: Path, epochs: Sequence[EpochTotals]) -> TableState:
    """Reads every file of a table that readers see, and compares the rows of each epoch with what was counted.

    `made`: the folder in which the job wrote the table; `folder` may be a copy of it.
    """
    state = TableState()
    try:
        entries = _log(table, folder, made, len(epochs), state)
        found = _read(table, folder, entries, state)
    except (WeirError, OSError, ValueError, LookupError, TypeError) as error:
        state.plain, state.files, found = False, [], {}
        said = " ".join(str(error).split())[:300] or type(error).__name__
        state.facts.append(Fact(EPOCHS, table.name, None, "the table's log", "can be read", said))
    _compare(table, list(epochs), found, state)
    _stray(table, folder, state)
    return state


def _log(table: AuditedTable, folder: Path, made: Path, newest: int, state: TableState) -> list[_Entry]:
    """Returns the entries that readers follow: those of the last compact record, and of the records after it."""
    records = table_records(folder)
    for number in range(records_from(folder), newest):
        path = records.get(number)
        said = "missing" if path is None else _as_written(path, number)
        state.plain &= said == "as written"
        state.facts.append(
            Fact(EPOCHS, table.name, number + 1, f"record {number} of the table's log", "as written", said)
        )
    begin = max((number for number, path in records.items() if path.name.endswith(COMPACT)), default=0)
    entries = []
    for number, path in sorted(records.items()):
        if number >= begin:
            for line in path.read_text().splitlines()[1:]:
                entry = json.loads(line)
                address, _, name = str(entry["path"]).rpartition("/")
                entries.append(_Entry(name, address, int(entry["size"])))
    addresses = {entry.address for entry in entries}
    state.plain &= addresses <= {folder.as_uri()}  # in a copy the log still names the files of the original
    own = "its own folder"
    elsewhere = addresses - {folder.as_uri()} if len(addresses) > 1 else addresses - {folder.as_uri(), made.as_uri()}
    said = ", ".join(sorted(elsewhere)) or own
    state.facts.append(Fact(EPOCHS, table.name, None, "the table's log names files in", own, said))
    return entries


def _as_written(path: Path, number: int) -> str:
    """Compares a record with its seal. Only a crash leaves the last record without one."""
    seal = path.with_name(f".{number}.checksum")
    return "as written" if not seal.exists() or seal.read_text() == checksum(path.read_bytes()) else "changed"


def _read(
    table: AuditedTable, folder: Path, entries: Sequence[_Entry], state: TableState
) -> dict[int, tuple[int, int]]:
    """Returns rows and digest of each epoch as they are in the files."""
    parts: dict[str, list[EpochRows]] = defaultdict(list)
    for part in epoch_rows(folder):
        parts[part.file].append(part)
    found: dict[int, tuple[int, int]] = {}
    declared = _columns(table.arrow_schema)
    for entry in entries:
        mine = parts[entry.name]
        epoch = mine[0].epoch
        rows, said = _content(folder / entry.name, entry.size)
        state.facts.append(Fact(EPOCHS, table.name, epoch, entry.name, "can be read", said))
        if rows is None:
            state.plain = False
            continue
        state.files.append(folder / entry.name)
        state.facts.append(Fact(SCHEMA, table.name, epoch, entry.name, declared, _columns(rows.schema)))
        try:
            indexed = sum(part.rows or 0 for part in mine)
            if mine[0].rows is not None:
                said = f"{rows.num_rows} rows"
                state.facts.append(Fact(EPOCHS, table.name, epoch, entry.name, f"{indexed} rows", said))
            for part in mine:
                span = rows.slice(part.first, part.rows)
                count, digest = found.get(part.epoch, (0, 0))
                more = digest_of(span, table.arrow_schema)
                found[part.epoch] = count + span.num_rows, (digest + more) % (1 << 64)
        except (pa.ArrowException, KeyError) as error:  # a column is gone, or has another type
            said = " ".join(str(error).split())[:200]
            state.facts.append(Fact(EPOCHS, table.name, epoch, entry.name, "has the table's columns", said))
            state.plain, _ = False, state.files.pop()
    if not entries:
        state.facts.append(Fact(SCHEMA, table.name, None, "files", declared, declared))
    return found


def _content(path: Path, size: int) -> tuple[pa.Table | None, str]:
    """Returns the rows of a file, None if a reader can't read it, and what was found."""
    if not path.is_file():
        return None, "missing"
    if path.stat().st_size != size:
        return None, f"{path.stat().st_size} bytes, but published with {size}"
    try:
        return pq.ParquetFile(path).read(), "can be read"
    except (pa.ArrowException, OSError) as error:
        return None, f"no Parquet file: {' '.join(str(error).split())[:200]}"


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{column.name} {column.type}" for column in schema)


def _compare(
    table: AuditedTable, epochs: list[EpochTotals], found: dict[int, tuple[int, int]], state: TableState
) -> None:
    counted = {
        epoch: (added.get(ledger.sink_rows(table.uid), 0), added.get(ledger.sink_digest(table.uid), 0))
        for epoch, added in per_epoch(epochs)
    }
    for epoch in sorted({*counted, *found}):
        want, have = counted.get(epoch, (0, 0)), found.get(epoch, (0, 0))
        state.facts.append(Fact(EPOCHS, table.name, epoch, "rows in files", _said(want), _said(have)))


def _said(rows: tuple[int, int]) -> str:
    return f"{rows[0]} rows with digest {rows[1]:016x}"


def _stray(table: AuditedTable, folder: Path, state: TableState) -> None:
    """Looks for data files that no epoch has published. Plain Spark does not read them; other tools may."""
    try:
        known = {name for names in epoch_files(folder).values() for name in names}
        known |= {part.file for part in epoch_rows(folder)} | folded_files(folder)
    except (WeirError, OSError, ValueError, LookupError, TypeError):
        known = {path.name for path in state.files}
    stray = sorted(_data_files(folder) - known)
    for name in stray:
        state.facts.append(Fact(STRAY, table.name, None, name, "published by an epoch", "published by none"))
    if not stray:
        state.facts.append(Fact(STRAY, table.name, None, "files that no epoch published", "0", "0"))


def _data_files(folder: Path) -> set[str]:
    """Returns the Parquet files in the folder and below. Names that begin with `_` or `.` are no data for Spark."""
    names = (path.relative_to(folder) for path in folder.rglob("*.parquet") if path.is_file())
    return {name.as_posix() for name in names if not any(part.startswith(("_", ".")) for part in name.parts)}


def broken(facts: Sequence[Fact]) -> Iterator[Fact]:
    return (fact for fact in facts if not fact.holds)
