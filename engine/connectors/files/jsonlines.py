"""JSON lines: one object per line, fields by name. Missing fields are null; undeclared fields are ignored."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.json

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

logger = logging.getLogger("weir.files")

_LOOK_LINES = 1000


class JsonSource(TextSource):
    """Reads JSON, one object per line. Fields that are missing are null; those that are not declared are ignored."""

    def __init__(self, path: str, *, watch: Duration | None = None, malformed: Policy = "fail") -> None:
        super().__init__(path, watch, malformed)
        self._told: set[str] = set()  # declared fields of which a warning says that records do not have them

    def check(self, schema: pa.Schema) -> None:
        for field in schema:
            parsed_as(field.type)

    def format(self, path: Path, head: bytes, schema: pa.Schema) -> LineFormat:
        return _Json(head, schema, str(path), self._told)


class _Json:
    def __init__(self, head: bytes, schema: pa.Schema, path: str, told: set[str]) -> None:
        self._path = path
        self._told = told
        self._looked = False
        self.skip_bytes = len(BOM) if head.startswith(BOM) else 0
        self._schema = schema
        self._options = pyarrow.json.ParseOptions(
            explicit_schema=pa.schema([pa.field(field.name, parsed_as(field.type)) for field in schema]),
            unexpected_field_behavior="ignore",
        )

    def parse(self, lines: bytes) -> pa.RecordBatch:
        check_utf8(lines)
        whole = pyarrow.json.ReadOptions(use_threads=False, block_size=len(lines) + 1)
        rows = conform(pyarrow.json.read_json(pa.BufferReader(lines), whole, self._options), self._schema)
        for column in overflowed(rows):  # JSON has no infinity
            raise out_of_range(column, self._schema)
        if not self._looked and rows.num_rows:
            self._looked = True
            self._look_for_missing_fields(lines, rows)
        return rows

    def _look_for_missing_fields(self, lines: bytes, rows: pa.RecordBatch) -> None:
        """Warns of declared fields that no record at the beginning of the file has: a misspelled name reads as null."""
        empty = [name for name in rows.schema.names if rows.column(name).null_count == rows.num_rows]
        if self._told.issuperset(empty):
            return
        found: dict[str, None] = {}
        try:
            for line in lines.splitlines()[:_LOOK_LINES]:
                if line.strip():
                    found |= dict.fromkeys(json.loads(line))
        except (RecursionError, ValueError):  # Arrow reads deeper values and longer numbers than Python does
            return
        missing = [name for name in empty if name not in found and name not in self._told]
        if missing:
            self._told.update(missing)
            logger.warning(
                "%s: no record at its beginning has the declared field %s, which is null then; the records have %s",
                self._path,
                ", ".join(map(repr, missing)),
                ", ".join(map(repr, found)),
            )

    def ends(self, data: bytes, quoted: bool = False) -> tuple[np.ndarray, bool]:
        return newlines(data), False

    def blank(self, line: bytes) -> bool:
        return not line.strip()

    def reason(self, error: Exception) -> str:
        return reason_of(error)


def reason_of(error: Exception) -> str:
    """Returns Arrow's message without the row number, which is always the first."""
    text = re.sub(r" in row \d+$", "", str(error)).removeprefix("JSON parse error: ")
    if found := re.match(r"Column\((.*)\) changed from (\w+) to (\w+)", text):
        return f"{found[1] or 'the record'} has the type {found[3]}, not {found[2]}"
    return text


def check_utf8(lines: bytes) -> None:
    """Raises if the lines are not UTF-8. Arrow's JSON reader would make strings of them that nobody can read."""
    offsets = pa.py_buffer(np.array([0, len(lines)], np.int64))
    try:
        pa.Array.from_buffers(pa.large_string(), 1, [None, offsets, pa.py_buffer(lines)]).validate(full=True)
    except pa.ArrowInvalid as error:
        raise ValueError("it is not UTF-8") from error


def parsed_as(declared: pa.DataType) -> pa.DataType:
    """Returns the type to parse as: Arrow's JSON reader knows timestamps but no dates, and no maps or bytes at all."""
    types = pa.types
    if types.is_date(declared):
        return pa.timestamp("s")
    if types.is_list(declared):
        return pa.list_(pa.field(declared.value_field.name, parsed_as(declared.value_type)))
    if types.is_struct(declared):
        return pa.struct([pa.field(field.name, parsed_as(field.type)) for field in declared])
    if types.is_map(declared) or types.is_binary(declared):
        raise FileError(f"JSON can't be read as {declared}: declare a struct or a string")
    return declared
