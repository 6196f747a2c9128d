"""Goal: whatever a file holds, the source's policy for malformed records applies, file and line are named, and memory
stays bounded.

Files are read in a process of their own, so that a crash of a native parser and a hunger for memory are seen. Bounds
are made smaller for the tests; what is tested is that they hold.
"""

from __future__ import annotations

import bz2
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from engine.api.schema import parse_schema
from engine.connectors.files import CsvSource, JsonSource, ParquetSource, text
from engine.connectors.files.listing import FileError
from tests.connectors.reading import Reading

SCHEMA = "n long, name string, x double, f float, i int"
MIB = 1 << 20

PROGRAM = """
import json, resource, sys
from engine.api.schema import parse_schema
from engine.connectors.files import CsvSource, JsonSource, text
from tests.connectors.reading import Reading

text.RECORD_BYTES, text.CHUNK_BYTES, text.SPLIT_BYTES = 4 << 20, 1 << 20, 8 << 20
options = json.loads(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for path in sys.argv[2:]:
    kind = CsvSource if ".csv" in path else JsonSource
    reading = Reading(kind(path, malformed="skip", **options), parse_schema("SCHEMA"))
    rows = [row["n"] for split in reading.splits for row in reading.all(split)]
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    bad = [[r["line"], r["reason"], len(r["text"])] for r in reading.malformed]
    print(json.dumps([rows, bad, grown // 1024]), flush=True)
""".replace("SCHEMA", SCHEMA)

Read = tuple[list[int], list[list[Any]], int]


def read(*paths: Path, **options: Any) -> list[Read]:
    """Returns for each file its good rows, its bad lines (number, reason, length), and by how many MiB memory grew."""
    command = [sys.executable, "-c", PROGRAM, json.dumps(options), *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"after {len(done.stdout.splitlines())} files: {done.stderr[-2000:]}"
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def lines(form: str, *records: bytes) -> bytes:
    return b"\n".join([b"n,name,x,f,i", *records] if form == "csv" else records) + b"\n"


GOOD = {"csv": b"%d,ok,,,", "json": b'{"n": %d, "name": "ok"}'}
LONG = 60 * MIB


def with_a_long_line(form: str) -> bytes:
    long = {"csv": b"7," + b"x" * LONG + b",,,", "json": b'{"n": 7, "name": "' + b"x" * LONG + b'"}'}
    return lines(form, GOOD[form] % 1, long[form], GOOD[form] % 2, b"bad", GOOD[form] % 3)


@pytest.mark.parametrize("form", ["csv", "json"])
def test_a_line_far_longer_than_allowed_is_one_malformed_record_and_is_never_held_in_memory(
    tmp_path: Path, form: str
) -> None:
    """The compressed files are bombs: some kilobytes that are 60 MiB in one line."""
    content, header = with_a_long_line(form), form == "csv"
    size = len(content.splitlines()[1 + header]) + 1
    plain = tmp_path / f"a.{form}"
    plain.write_bytes(content)
    (tmp_path / f"a.{form}.gz").write_bytes(gzip.compress(content, 1))
    (tmp_path / f"a.{form}.bz2").write_bytes(bz2.compress(content, 1))
    with pa.CompressedOutputStream(str(tmp_path / f"a.{form}.zst"), "zstd") as out:
        out.write(content)
    for rows, bad, grown_mib in read(*sorted(tmp_path.iterdir())):
        assert rows == [1, 2, 3]
        assert [line for line, *_ in bad] == [2 + header, 4 + header]
        assert bad[0][1] == f"the record has {size} bytes, more than 4 MiB" and bad[0][2] <= text.SHOWN_BYTES
        assert grown_mib < 40, "the line has 60 MiB"


def test_a_quote_that_is_never_closed_is_one_malformed_record_to_the_end_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(lines("csv", b"1,ok,,,", b'2,"' + b"x\n" * (10 * MIB)))
    ((rows, bad, grown_mib),) = read(tmp_path / "a.csv", multiline=True)
    assert rows == [1] and [line for line, *_ in bad] == [3] and grown_mib < 60


def test_with_the_policy_to_fail_a_long_line_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "CHUNK_BYTES", 65536)
    monkeypatch.setattr(text, "RECORD_BYTES", MIB)
    (tmp_path / "a.json").write_bytes(b'{"n": 1}\n' + b"x" * (2 * MIB))
    reading = Reading(JsonSource(str(tmp_path)), parse_schema(SCHEMA))
    with pytest.raises(FileError, match=r"a\.json, line 2: the record has 2097152 bytes, more than 1 MiB; the line is"):
        reading.all(reading.splits[0])


NESTED = b"[" * 100_000 + b"]" * 100_000


BAD = [
    ("csv", b"1,\xff\xfe,,,", "column 'name' is not of type string: invalid UTF8 data"),
    ("csv", b"\x00,a,,,", "column 'n' is not of type int64: invalid value '\x00'"),
    ("csv", b"99999999999999999999,a,,,", "column 'n' is not of type int64: invalid value '99999999999999999999'"),
    ("csv", b"1,a,,,3000000000", "column 'i' is not of type int32: invalid value '3000000000'"),
    ("csv", b"1,a,1e400,,", "column 'x' is out of the range of double"),
    ("csv", b"1,a,,-1e39,", "column 'f' is out of the range of float"),
    ("csv", b"1,a" + b",z" * 100_000, "expected 5 columns, got 100002"),
    ("csv", b'1,"a,,,', "a quote is not closed"),
    ("json", b'{"n": 1, "name": "\xff\xfe"}', "it is not UTF-8"),
    ("json", b'{"n\xff": 1}', "it is not UTF-8"),
    ("json", b'{"n": 1, "name": "\\ud800"}', "The surrogate pair in string is invalid."),
    ("json", b'{"n": 1, "name": "a\x00b"}', "Missing a closing quotation mark in string."),
    ("json", b"\x00", "The document is empty."),
    (
        "json",
        b'{"n": 99999999999999999999}',
        "Failed to convert JSON to int64, couldn't parse:99999999999999999999",
    ),
    ("json", b'{"i": 3000000000}', "Failed to convert JSON to int32, couldn't parse:3000000000"),
    ("json", b'{"x": 1e400}', "Number too big to be stored in double."),
    ("json", b'{"f": 1e39}', "column 'f' is out of the range of float"),
    ("json", b'{"name": ' + NESTED + b"}", "/name has the type array, not string"),
    ("json", NESTED, "the record has the type array, not object"),
    ("json", b"[" * 200_000, "the record has the type array, not object"),
    ("json", b'{"n": 1, "n": 2}', "Column(/n) was specified twice"),
]


@pytest.mark.parametrize("form", ["csv", "json"])
def test_what_is_no_record_is_told_with_its_line_and_harms_no_other(tmp_path: Path, form: str) -> None:
    cases = [(record, reason) for of, record, reason in BAD if of == form]
    paths = [tmp_path / f"{number:02}.{form}" for number in range(len(cases))]
    for path, (record, _) in zip(paths, cases, strict=True):
        path.write_bytes(lines(form, GOOD[form] % 1, record, GOOD[form] % 2))
    found = read(*paths)
    assert [rows for rows, *_ in found] == [[1, 2]] * len(cases)
    told = [[(line, why) for line, why, _ in bad] for _, bad, _ in found]
    assert told == [[(2 + (form == "csv"), reason)] for _, reason in cases]


def test_fields_that_nobody_declared_may_be_as_deep_as_they_like(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b'{"n": 1, "other": ' + NESTED + b'}\n{"n": 2}\n')
    ((rows, bad, _),) = read(tmp_path / "a.json")
    assert rows == [1, 2] and not bad


def test_an_infinity_that_is_written_as_one_is_a_number(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n,x\n1,inf\n2,-Infinity\n3,1e5\n")
    reading = Reading(CsvSource(str(tmp_path)), parse_schema("n long, x double"))
    assert [row["x"] for row in reading.all(reading.splits[0])] == [float("inf"), float("-inf"), 1e5]


def test_line_numbers_of_many_malformed_records_are_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file was read from its beginning for every chunk with a bad line."""
    monkeypatch.setattr(text, "CHUNK_BYTES", 100)
    (tmp_path / "a.csv").write_text("n\n" + "1\nx\n" * 2000)
    counted: list[int] = []
    before = text._Lines.before
    monkeypatch.setattr(text._Lines, "before", lambda self, offset: counted.append(offset) or before(self, offset))
    reading = Reading(CsvSource(str(tmp_path), malformed="skip"), parse_schema("n long"))
    reading.all(reading.splits[0])
    assert [record["line"] for record in reading.malformed] == list(range(3, 4003, 2))
    assert len(counted) <= 1


# --- Parquet ---


def parquet(path: Path, rows: int, start: int = 0, group: int = 1000) -> None:
    pq.write_table(pa.table({"n": range(start, start + rows)}), path, row_group_size=group)


@pytest.mark.parametrize("damage", ["cut", "flipped", "only its end"])
def test_a_damaged_parquet_file_is_an_error_that_names_it(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "a.parquet"
    parquet(path, 10_000)
    whole = path.read_bytes()
    reading = Reading(ParquetSource(str(path)), parse_schema("n long"))
    stat = path.stat()
    path.write_bytes(
        {
            "cut": whole[: len(whole) // 2].ljust(len(whole), b"\0"),
            "flipped": bytes(octet ^ 0xA5 for octet in whole[:20_000]) + whole[20_000:],
            "only its end": whole[-200:].rjust(len(whole), b"\0"),
        }[damage]
    )
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with pytest.raises(FileError, match=r"a\.parquet"):
        for split in reading.splits:
            reading.all(split)


@pytest.mark.parametrize("how", ["renamed over", "overwritten"])
def test_a_parquet_file_that_is_replaced_while_it_is_read_ends_the_job_and_is_never_mixed(
    tmp_path: Path, how: str
) -> None:
    path = tmp_path / "a.parquet"
    parquet(path, 50_000)
    reading = Reading(ParquetSource(str(path)), parse_schema("n long"))
    (split,) = reading.splits
    reader = reading.source.reader(split, None, reading.context)
    reading.some(reader, 1000, 500)
    new = tmp_path / "_new" if how == "renamed over" else path
    parquet(new, 50_000, start=100_000)
    new.rename(path)
    seen: list[int] = []
    with pytest.raises(FileError, match=r"a\.parquet has changed since it was listed"):
        while True:
            seen += [row["n"] for row in reading.some(reader, 1, 500)]
    assert all(n < 50_000 for n in seen)
    with pytest.raises(FileError, match=r"a\.parquet has changed since it was listed"):
        reading.all(split, reader.position)


def test_a_file_that_is_deleted_while_it_is_read_is_read_to_its_end(tmp_path: Path) -> None:
    parquet(tmp_path / "a.parquet", 5000)
    reading = Reading(ParquetSource(str(tmp_path)), parse_schema("n long"))
    reader = reading.source.reader(reading.splits[0], None, reading.context)
    first = reading.some(reader, 1000, 500)
    (tmp_path / "a.parquet").unlink()
    assert [row["n"] for row in first + reading.some(reader, None, 500)] == list(range(5000))


def test_a_parquet_bomb_is_read_in_bounded_pieces(tmp_path: Path) -> None:
    """Some kilobytes that are 800 MB of one number: batches stay small."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": pa.repeat(7, 50_000_000)}), path, row_group_size=50_000_000)
    assert path.stat().st_size < MIB
    program = """
import resource, sys
from engine.api.schema import parse_schema
from engine.connectors.files import ParquetSource
from tests.connectors.reading import Reading
reading = Reading(ParquetSource(sys.argv[1]), parse_schema("n long"))
reader = reading.source.reader(reading.splits[0], None, reading.context)
reading.offload.run(); reader.poll(10)
before, rows = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, 0
while not reader.finished:
    batch = reader.poll(100_000)
    rows += batch.num_rows if batch is not None else 0
    reading.offload.run()
print(rows, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    rows, grown_mib = map(int, done.stdout.split())
    assert 49_999_000 < rows <= 50_000_000 and grown_mib < 100
