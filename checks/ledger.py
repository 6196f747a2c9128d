"""The source-side ledger: every record that a drill's job will read, written before the job starts.

The records come only from the source's pure function of the record number, never from the sink. A seal with the number
of records and a checksum per file is written last, so that an audit never compares with part of a ledger. An audit
makes the records again and compares them with the ledger: the source is the truth, not the files.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from checks.spec import DrillSpec
from engine.core.errors import WeirError

RECORDS_PER_FILE = 250_000
_SEAL = "_seal.json"  # Spark does not read files whose names begin with _ as data


class LedgerUnusable(WeirError):
    """The ledger is missing or was changed, so nothing can be said about the sink."""


class LedgerFile(msgspec.Struct, frozen=True):
    name: str
    records: int
    checksum: str


class Seal(msgspec.Struct, frozen=True):
    job: str
    records: int
    files: list[LedgerFile]


def ledger_folder(store: Path) -> Path:
    return store / "ledger"


def write_ledger(spec: DrillSpec, store: Path, records: int) -> Seal:
    """Writes records 0 to `records` - 1, with the columns of the raw table, and the seal."""
    if records < 1:
        raise ValueError(f"a ledger of {records} records proves nothing")
    folder = ledger_folder(store)
    folder.mkdir(parents=True)
    files = []
    for number, first in enumerate(range(0, records, RECORDS_PER_FILE)):
        path = folder / f"records-{number:05d}.parquet"
        last = min(records, first + RECORDS_PER_FILE)
        pq.write_table(expected_records(spec, first, last), path, compression="zstd")
        files.append(LedgerFile(path.name, last - first, _checksum(path)))
    seal = Seal(spec.job, records, files)
    draft = folder / f".{_SEAL}"
    draft.write_bytes(msgspec.json.format(msgspec.json.encode(seal)))
    draft.replace(folder / _SEAL)
    return seal


def expected_records(spec: DrillSpec, first: int, last: int) -> pa.Table:
    """Returns the records with the numbers first ≤ n < last, as the source makes them."""
    columns = spec.make(np.arange(first, last, dtype=np.int64))
    schema = spec.rows.arrow_schema
    missing = [name for name in schema.names if name not in columns]
    if missing:
        raise LedgerUnusable(
            f"the records of job {spec.job!r} have no column {missing[0]!r}; they have {list(columns)}"
        )
    return pa.table({field.name: _as(columns[field.name], field.type) for field in schema}, schema=schema)


def open_ledger(store: Path) -> tuple[Seal, list[Path]]:
    """Checks that every byte of the ledger is as it was written, and returns its seal and files."""
    folder = ledger_folder(store)
    try:
        seal = msgspec.json.decode((folder / _SEAL).read_bytes(), type=Seal)
    except FileNotFoundError as error:
        raise LedgerUnusable(f"there is no ledger in {store}: only a drill can be audited (weir drill JOB)") from error
    except msgspec.MsgspecError as error:
        raise LedgerUnusable(f"the ledger's seal {folder / _SEAL} can't be read: {error}") from error
    for file in seal.files:
        path = folder / file.name
        if not path.exists():
            raise LedgerUnusable(f"the ledger's file {path} is missing")
        if _checksum(path) != file.checksum:
            raise LedgerUnusable(f"the ledger's file {path} is not what was written: its checksum differs")
    if seal.records < 1 or sum(file.records for file in seal.files) != seal.records:
        raise LedgerUnusable(f"the ledger in {folder} is for {seal.records} records, but its files hold another number")
    return seal, [folder / file.name for file in seal.files]


def compared_with_source(spec: DrillSpec, files: Sequence[Path], records: int) -> str:
    """Makes the records again and compares. Returns what is wrong with the ledger; empty if it is what it should be."""
    first = 0
    for path in files:
        try:
            there = pq.ParquetFile(path).read()
        except (pa.ArrowException, OSError) as error:
            return f"{path.name} can't be read: {error}"
        last = first + there.num_rows
        made = expected_records(spec, first, last)
        if there.schema.remove_metadata() != made.schema.remove_metadata():
            return f"{path.name} has other columns than the source"
        if not there.equals(made):
            number = next(n for n in range(there.num_rows) if there.slice(n, 1) != made.slice(n, 1))
            return f"record {first + number} is {there.slice(number, 1).to_pylist()[0]}"
        first = last
    return "" if first == records else f"it has {first} records of {records}"


def write_truth(spec: DrillSpec, folder: Path, records: int) -> list[Path]:
    """Writes the records as the source makes them, for an audit that can't use the ledger."""
    files = []
    for first in range(0, records, RECORDS_PER_FILE):
        files.append(folder / f"records-{first:012d}.parquet")
        pq.write_table(expected_records(spec, first, min(records, first + RECORDS_PER_FILE)), files[-1])
    return files


def _as(values: object, kind: pa.DataType) -> pa.Array:
    array = values if isinstance(values, pa.Array) else pa.array(values)
    if pa.types.is_timestamp(kind) and pa.types.is_int64(array.type):
        return array.view(kind)  # the source gives timestamps as integers in the timestamp's own unit
    return array.cast(kind)


def _checksum(path: Path) -> str:
    return xxhash.xxh3_128_hexdigest(path.read_bytes())
