"""Text files: many lines are parsed at once, and bad lines are searched for only if that fails.

A split has the lines that begin in its range. Invariant: every line that is not blank is one record, good or bad, so a
position (byte offset of a chunk, records of it handed out) does not depend on how chunks are cut.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from engine.connectors.files.listing import FileError, FileSplit, unreadable
from engine.connectors.files.readahead import BadRecord, Chunk, ChunkReader, Position
from engine.connectors.files.source import FileSource
from engine.core.durations import Duration
from engine.core.failed_records import POLICIES, Policy
from engine.core.sources import MALFORMED, SourceContext

SPLIT_BYTES = 32 << 20
CHUNK_BYTES = 4 << 20
RECORD_BYTES = 64 << 20
"""The longest record. A longer one is malformed and is never held in memory as a whole."""

SHOWN_BYTES = 64 << 10
"""How much of a record that is too long is kept, to be shown."""

HEADER_BYTES = 1 << 20

BOM = b"\xef\xbb\xbf"


class LineFormat(Protocol):
    """Parses the lines of one file."""

    skip_bytes: int
    """Bytes before the first record, such as a header."""

    def parse(self, lines: bytes) -> pa.RecordBatch:
        """Returns rows of the declared schema; raises ValueError (Arrow's is a subclass) if a line does not fit."""

    def ends(self, data: bytes, quoted: bool = False) -> tuple[np.ndarray, bool]:
        """Returns the offset after each line end in `data`, and whether the end of `data` is inside quotes.

        `data` begins at the start of a line, or inside of one: `quoted` then says whether that is inside quotes.
        """

    def blank(self, line: bytes) -> bool:
        """True if the line is empty and so not a record."""

    def reason(self, error: Exception) -> str:
        """Returns why a line could not be parsed."""


class TextSource(FileSource):
    """A source of lines. `malformed`: what to do with a record that does not fit the declared schema.

    "fail" fails the job, "skip" only counts the record, "dead_letter" sends it to the side output `MALFORMED`.
    """

    def __init__(self, path: str, watch: Duration | None, malformed: Policy, splittable: bool = True) -> None:
        super().__init__(path, watch)
        if malformed not in POLICIES:
            raise ValueError(f"malformed={malformed!r}: write 'fail', 'skip' or 'dead_letter'")
        self.malformed = malformed
        self.side_outputs = (MALFORMED,) if malformed == "dead_letter" else ()
        self._splittable = splittable

    def splits_of(self, path: Path, file: FileSplit) -> list[FileSplit]:
        if not self._splittable or _compression(path):
            return [file]
        starts = range(0, max(1, file.size), SPLIT_BYTES)
        return [msgspec.structs.replace(file, start=s, end=min(s + SPLIT_BYTES, file.size)) for s in starts]

    def chunks(self, path: Path, split: FileSplit, start: Position | None, context: SourceContext) -> ChunkReader:
        with _opened(path) as stream:
            head = stream.read(HEADER_BYTES)
        form = self.format(path, head, context.schema)
        return _Chunks(_Lines(path, split, start, form), form, context.schema, self.malformed == "fail")

    @abstractmethod
    def format(self, path: Path, head: bytes, schema: pa.Schema) -> LineFormat:
        """Returns the format of one file, which begins with `head`."""


@dataclass(frozen=True)
class _LongLine:
    """A line that is too long: its beginning, and its length."""

    beginning: bytes
    size: int


class _Lines:
    """Reads the lines of a split. `offset`: where the next line begins."""

    def __init__(self, path: Path, split: FileSplit, start: Position | None, form: LineFormat) -> None:
        self.path = path
        self._form = form
        self._end = split.end if split.end is not None or _compression(path) else split.size
        self._stream = _opened(path)
        self._carry = b""
        self._eof = False
        between = start is None and split.start > form.skip_bytes
        self.offset = start[0] if start else split.start - 1 if between else form.skip_bytes
        self._seek(self.offset)
        if between:  # the first line belongs to the previous split, even if it ends exactly here
            self._fill(CHUNK_BYTES)
            self._pass_line(self._end)

    def next(self) -> tuple[bytes, np.ndarray] | _LongLine:
        """Returns the next lines that begin in the split, and where each ends; empty at the end."""
        left = None if self._end is None else self._end - self.offset
        if left is not None and left <= 0:
            return b"", np.array([], np.int64)
        self._fill(CHUNK_BYTES if left is None else min(left, CHUNK_BYTES))
        if not self._has_first_line():
            beginning, at = self._carry[:SHOWN_BYTES], self.offset
            self._pass_line(None)
            return _LongLine(beginning, self.offset - at)
        ends, _ = self._form.ends(self._carry)
        if self._eof and (not len(ends) or ends[-1] < len(self._carry)):
            ends = np.append(ends, len(self._carry))  # the last line need not end with a newline
        if left is not None:
            ends = ends[: np.searchsorted(ends, left) + 1]
        return self._cut(int(ends[-1]) if len(ends) else 0), ends

    @property
    def ended(self) -> bool:
        return (self._eof and not self._carry) or (self._end is not None and self.offset >= self._end)

    def before(self, offset: int) -> int:
        """Returns how many lines end before the offset."""
        found = 0
        with _opened(self.path) as stream:
            while offset > 0 and (data := stream.read(min(offset, CHUNK_BYTES))):
                found += data.count(b"\n")
                offset -= len(data)
        return found

    def close(self) -> None:
        self._stream.close()

    def _seek(self, offset: int) -> None:
        if not _compression(self.path):
            self._stream.seek(offset)
            return
        while offset > 0 and (passed := self._stream.read(min(offset, CHUNK_BYTES))):  # compressed streams can't seek
            offset -= len(passed)

    def _has_first_line(self) -> bool:
        """Reads on until the first line ends. Returns False if that line is too long."""
        while not self._eof and not len(self._form.ends(self._carry)[0]):
            if len(self._carry) > RECORD_BYTES:
                return False
            self._fill(len(self._carry) + CHUNK_BYTES)
        return True

    def _pass_line(self, until: int | None) -> None:
        """Passes over the first line, holding one chunk of it at a time. Stops early at the offset `until`."""
        quoted = False
        while True:
            ends, quoted = self._form.ends(self._carry, quoted)
            self._cut(int(ends[0]) if len(ends) else len(self._carry))
            if len(ends) or self._eof or (until is not None and self.offset >= until):
                return
            self._fill(CHUNK_BYTES)

    def _fill(self, size: int) -> None:
        while len(self._carry) < size and not self._eof:
            data = self._stream.read(CHUNK_BYTES)
            self._eof = not data
            self._carry += data

    def _cut(self, size: int) -> bytes:
        lines, self._carry = self._carry[:size], self._carry[size:]
        self.offset += size
        return lines


class _Chunks(ChunkReader):
    """Parses the lines of a split into chunks."""

    def __init__(self, lines: _Lines, form: LineFormat, schema: pa.Schema, fail: bool) -> None:
        self._lines = lines
        self._form = form
        self._schema = schema
        self._fail = fail
        self._counted: tuple[int, int] | None = None  # an offset, and the number of lines that end before it

    def read(self) -> Chunk:
        at = self._lines.offset
        try:
            found = self._lines.next()
        except (OSError, pa.ArrowException) as error:
            raise unreadable(f"{self._lines.path}, byte {at}: {error}", error) from error
        if isinstance(found, _LongLine):
            reason = f"the record has {found.size} bytes, more than {RECORD_BYTES >> 20} MiB"
            rows, bad = self._no_rows(), [self._bad(0, self._line(at, b"", 0), found.beginning, reason)]
            self._counted = None  # the line may have newlines in quotes
        else:
            rows, bad = self._parse(at, *found)
            if self._counted is not None:
                self._line(at, found[0], len(found[0]))
        return Chunk(rows, [at, 0], None if self._lines.ended else [self._lines.offset, 0], bad)

    def _no_rows(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([], schema=self._schema)

    def _parse(self, at: int, data: bytes, ends: np.ndarray) -> tuple[pa.RecordBatch, list[BadRecord]]:
        """Parses all lines at once; if that fails, halves of them, down to the single bad lines."""
        if data and isinstance(rows := self._rows(data, len(ends)), pa.RecordBatch):
            return rows, []
        starts = np.concatenate([[0], ends[:-1]]) if data else ends
        places = zip(starts.tolist(), ends.tolist(), strict=True)
        records = [(begin, end) for begin, end in places if not self._form.blank(data[begin:end])]
        good, bad, before = [self._no_rows()], [], 0
        todo = [(0, len(records))] if records else []
        while todo:
            first, last = todo.pop()
            begin, end = records[first][0], records[last - 1][1]
            rows = self._rows(data[begin:end], last - first)
            if isinstance(rows, pa.RecordBatch):
                good.append(rows)
                before += rows.num_rows
            elif last - first == 1:
                line = self._line(at, data, begin)
                bad.append(self._bad(before, line, data[begin:end], self._form.reason(rows)))
            else:
                middle = (first + last) // 2
                todo += [(middle, last), (first, middle)]
        return pa.concat_batches(good), bad

    def _rows(self, lines: bytes, records: int) -> pa.RecordBatch | Exception:
        try:
            rows = self._form.parse(lines)
        except ValueError as error:
            return error
        return rows if rows.num_rows == records else ValueError(f"{rows.num_rows} records, expected {records}")

    def _bad(self, before: int, line: int, record: bytes, reason: str) -> BadRecord:
        text = record.rstrip(b"\r\n").decode("utf-8", "replace")
        bad = BadRecord(before, str(self._lines.path), line, text, reason)
        if self._fail:
            shown = text if len(text) <= 200 else text[:197] + "..."
            raise FileError(
                f"{bad.file}, line {bad.line}: {bad.reason}; the line is {shown!r}. Mend the file and start a "
                'job with another name, or give the source malformed="skip" or malformed="dead_letter"'
            )
        return bad

    def _line(self, at: int, data: bytes, begin: int) -> int:
        """Returns the number of the line at `at + begin`, counting on from the previous call."""
        offset, lines = self._counted or (at, self._lines.before(at))
        lines += data.count(b"\n", offset - at, begin)
        self._counted = (at + begin, lines)
        return lines + 1

    def close(self) -> None:
        self._lines.close()


def _compression(path: Path) -> str | None:
    return {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}.get(path.suffix)


def _opened(path: Path) -> Any:
    try:
        return pa.input_stream(str(path), compression=_compression(path))
    except (OSError, pa.ArrowException) as error:
        raise unreadable(f"{path} can't be read: {error}", error) from error


def newlines(data: bytes) -> np.ndarray:
    """Returns the offset after each newline."""
    return np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n")) + 1


def overflowed(rows: pa.RecordBatch) -> list[str]:
    """Returns the columns with infinities: as Arrow reads them, numbers too large for their type are infinite."""
    return [
        field.name
        for field in rows.schema
        if pa.types.is_floating(field.type) and pc.any(pc.is_inf(rows.column(field.name))).as_py()
    ]


def out_of_range(column: str, schema: pa.Schema) -> ValueError:
    return ValueError(f"column {column!r} is out of the range of {schema.field(column).type}")


def conform(table: pa.Table, schema: pa.Schema) -> pa.RecordBatch:
    """Returns one batch of exactly the declared schema; raises if a value does not fit."""
    columns = []
    for field in schema:
        column = table.column(field.name).combine_chunks()
        if column.null_count and not field.nullable:
            raise ValueError(f"column {field.name!r} has no value, but is declared not null")
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
