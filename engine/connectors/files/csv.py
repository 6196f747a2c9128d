"""CSV files: columns are found by name if there is a header; otherwise they are the declared ones in order."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from engine.connectors.files.listing import FileError
from engine.connectors.files.text import (
    BOM,
    LineFormat,
    TextSource,
    conform,
    newlines,
    out_of_range,
    overflowed,
)
from engine.core.durations import Duration
from engine.core.failed_records import Policy

_ZONED = r":\d\d(\.\d+)?\s?(Z|[+-]\d\d(:?\d\d)?)$"


@dataclass(frozen=True)
class _Dialect:
    header: bool
    delimiter: str
    quote: str
    null: str
    multiline: bool


class CsvSource(TextSource):
    """Reads CSV. `null`: the text of a missing value. `multiline`: allows newlines in quotes; files are not split."""

    def __init__(
        self,
        path: str,
        *,
        header: bool = True,
        delimiter: str = ",",
        quote: str = '"',
        null: str = "",
        multiline: bool = False,
        watch: Duration | None = None,
        malformed: Policy = "fail",
    ) -> None:
        super().__init__(path, watch, malformed, splittable=not multiline)
        for name, given in (("delimiter", delimiter), ("quote", quote)):
            if not isinstance(given, str) or len(given.encode()) != 1:
                unused = "; for files without quotes take one that no value contains, such as quote='\\x01'"
                raise ValueError(
                    f"CsvSource, {name}={given!r}: it has to be one ASCII character{unused if name == 'quote' else ''}"
                )
        self._dialect = _Dialect(header, delimiter, quote, null, multiline)

    def check(self, schema: pa.Schema) -> None:
        for field in schema:
            if pa.types.is_nested(field.type) or pa.types.is_binary(field.type):
                raise FileError(f"CSV can't be read as {field.type} (column {field.name!r}): declare a string")

    def format(self, path: Path, head: bytes, schema: pa.Schema) -> LineFormat:
        return _Csv(path, head, schema, self._dialect)


class _Csv:
    def __init__(self, path: Path, head: bytes, schema: pa.Schema, dialect: _Dialect) -> None:
        self._schema = schema
        self._dialect = dialect
        self.skip_bytes = len(BOM) if head.startswith(BOM) else 0
        self._names = schema.names
        if dialect.header and head:
            first = head[self.skip_bytes :].split(b"\n", 1)[0]
            self.skip_bytes = min(len(head), self.skip_bytes + len(first) + 1)
            self._names = self._header(path, first)
        self._options = pyarrow.csv.ParseOptions(
            delimiter=dialect.delimiter, quote_char=dialect.quote, newlines_in_values=dialect.multiline
        )
        self._types = {field.name: field.type for field in schema}
        self._instants = [f.name for f in schema if pa.types.is_timestamp(f.type) and f.type.tz is not None]

    def _header(self, path: Path, line: bytes) -> list[str]:
        text = line.decode("utf-8", "replace").rstrip("\r")
        names = next(csv.reader([text], delimiter=self._dialect.delimiter, quotechar=self._dialect.quote), [])
        for name in self._schema.names:
            if names.count(name) != 1:
                times = f"{names.count(name)} columns" if name in names else "no column"
                raise FileError(
                    f"{path} has {times} {name!r}; its header is {text!r}. Declare the columns it has, or give "
                    "header=False if its first line is a record"
                )
        return names

    def parse(self, lines: bytes) -> pa.RecordBatch:
        self._check_closed(lines)
        rows = self._rows(lines)
        if infinite := overflowed(rows):
            self._check_written(lines, rows, infinite)
        return rows

    def _check_written(self, lines: bytes, rows: pa.RecordBatch, infinite: list[str]) -> None:
        """Raises if a number is infinite that is not written as infinity."""
        texts = self._read(lines, {**self._types, **dict.fromkeys(infinite, pa.string())})
        for name in infinite:
            written = pc.match_substring_regex(texts.column(name).combine_chunks(), r"(?i)^\s*[+-]?inf")
            if pc.any(pc.and_not(pc.is_inf(rows.column(name)), written)).as_py():
                raise out_of_range(name, self._schema)

    def _rows(self, lines: bytes) -> pa.RecordBatch:
        try:
            return conform(self._read(lines, self._types), self._schema)
        except pa.ArrowInvalid:
            if not self._instants:
                raise
        # Arrow parses a column only if all instants have a zone or none has. Note what the file has for the next chunk.
        table = self._read(lines, {**self._types, **dict.fromkeys(self._instants, pa.string())})
        for name in self._instants:
            declared = self._schema.field(name).type
            place = table.schema.get_field_index(name)
            zoned = pc.match_substring_regex(table.column(name), _ZONED)
            table = table.set_column(place, name, _instants(table.column(name), zoned, declared))
            self._types[name] = declared if pc.any(zoned).as_py() else pa.timestamp(declared.unit)
        return conform(table, self._schema)

    def _check_closed(self, lines: bytes) -> None:
        """Raises if a quote is still open at the end: Arrow closes it there, but not if more lines follow."""
        quote = self._dialect.quote.encode()
        last = lines if self._dialect.multiline else lines[lines.rfind(b"\n", 0, -1) + 1 :]
        if last.count(quote) % 2 == 0:
            return
        twice = last.rstrip(b"\r\n") + b"\n"
        strings = dict.fromkeys(self._schema.names, pa.string())
        if self._dialect.multiline or self._read(2 * twice, strings).num_rows != 2:
            raise ValueError("a quote is not closed")

    def _read(self, lines: bytes, types: dict[str, pa.DataType]) -> pa.Table:
        return pyarrow.csv.read_csv(
            pa.BufferReader(lines),
            pyarrow.csv.ReadOptions(use_threads=False, block_size=len(lines) + 1, column_names=self._names),
            self._options,
            pyarrow.csv.ConvertOptions(
                column_types=types,
                include_columns=self._schema.names,
                null_values=[self._dialect.null],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )

    def ends(self, data: bytes, quoted: bool = False) -> tuple[np.ndarray, bool]:
        if not self._dialect.multiline:
            return newlines(data), False
        octets = np.frombuffer(data, np.uint8)
        inside = np.bitwise_xor.accumulate(octets == ord(self._dialect.quote)) ^ quoted
        return np.flatnonzero((octets == ord("\n")) & ~inside) + 1, bool(inside[-1]) if len(inside) else quoted

    def blank(self, line: bytes) -> bool:
        return not line.rstrip(b"\r\n")

    def reason(self, error: Exception) -> str:
        """Returns Arrow's message with the column's name, and without the row number, which is always the first."""
        text = str(error)
        if found := re.match(r"In CSV column #(\d+): (?:Row #1: )?CSV conversion error to (.*)", text, re.DOTALL):
            return f"column {self._names[int(found[1])]!r} is not of type {found[2]}"
        if found := re.search(r"Expected (\d+) columns, got (\d+)", text):
            return f"expected {found[1]} columns, got {found[2]}"
        return text.removeprefix("CSV parse error: ")


def _instants(values: pa.ChunkedArray, zoned: pa.ChunkedArray, declared: pa.DataType) -> pa.ChunkedArray:
    """Parses ISO 8601 and Spark's variant of it; instants without a zone are UTC."""
    missing = pa.scalar(None, pa.string())
    with_zone = pc.if_else(zoned, values, missing).cast(declared)
    without = pc.if_else(zoned, missing, values).cast(pa.timestamp(declared.unit)).cast(declared)
    return pc.coalesce(with_zone, without)
