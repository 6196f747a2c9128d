"""Parquet files: a split is a range of row groups; a position is (row group, row)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from engine.connectors.files.listing import FileError, FileSplit, unreadable
from engine.connectors.files.readahead import Chunk, ChunkReader, Position
from engine.connectors.files.source import FileSource
from engine.core.durations import Duration
from engine.core.sources import SourceContext

SPLIT_BYTES = 64 << 20
CHUNK_BYTES = 16 << 20
CHUNK_ROWS = 262_144
PLACE_BYTES = 6
"""A text that is a place in a dictionary takes no more bytes, its share of the dictionary included."""


class ParquetSource(FileSource):
    """Reads Parquet. Columns are found by name; a file that lacks one, or has another type for it, is refused."""

    def __init__(self, path: str, *, watch: Duration | None = None) -> None:
        super().__init__(path, watch)

    def splits_of(self, path: Path, file: FileSplit) -> list[FileSplit]:
        with _opened(path) as opened:
            metadata = opened.metadata
        splits, start, size = [], 0, 0
        for group in range(metadata.num_row_groups):
            size += metadata.row_group(group).total_byte_size
            if size >= SPLIT_BYTES or group + 1 == metadata.num_row_groups:
                splits.append(msgspec.structs.replace(file, start=start, end=group + 1))
                start, size = group + 1, 0
        return splits

    def chunks(self, path: Path, split: FileSplit, start: Position | None, context: SourceContext) -> ChunkReader:
        return _RowGroups(path, split, start, context)


class _RowGroups(ChunkReader):
    def __init__(self, path: Path, split: FileSplit, start: Position | None, context: SourceContext) -> None:
        self._path = path
        schema = _with_dictionaries(path, context)
        self._file = _opened(path, [field.name for field in schema if pa.types.is_dictionary(field.type)])
        _check(path, self._file.schema_arrow, schema)
        read = context.columns
        self._schema = schema if read is None else pa.schema([field for field in schema if field.name in read])
        self._group = start[0] if start else split.start
        self._end = self._file.num_row_groups if split.end is None else split.end
        self._row = 0
        self._batches: Iterator[pa.RecordBatch] = iter(())

    def read(self) -> Chunk:
        at = [self._group, self._row]
        if self._group >= self._end:
            return Chunk(pa.RecordBatch.from_pylist([], schema=self._schema), at, None)
        try:
            if not self._row:
                self._begin_group()
            rows = self._conform(next(self._batches, pa.RecordBatch.from_pylist([], schema=self._schema)))
        except (pa.ArrowException, OSError) as error:
            raise unreadable(f"{self._path}, row group {self._group}: {error}", error) from error
        self._row += rows.num_rows
        if self._row >= self._file.metadata.row_group(self._group).num_rows:
            self._group, self._row = self._group + 1, 0
        return Chunk(rows, at, None if self._group >= self._end else [self._group, self._row])

    def _begin_group(self) -> None:
        group = self._file.metadata.row_group(self._group)
        wide = self._bytes_of(group) // max(1, group.num_rows) + 1
        rows = max(1, min(CHUNK_ROWS, CHUNK_BYTES // wide))
        self._batches = self._file.iter_batches(rows, [self._group], self._schema.names, use_threads=False)

    def _bytes_of(self, group: pq.RowGroupMetaData) -> int:
        """Returns the size of the columns that are read. The path of a nested one begins with its name."""
        names, columns = set(self._schema.names), (group.column(place) for place in range(group.num_columns))
        return sum(
            column.total_uncompressed_size
            for column in columns
            if column.path_in_schema in names or column.path_in_schema.partition(".")[0] in names
        )

    def _conform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = []
        for field in self._schema:
            column = batch.column(field.name)
            if column.type != field.type:
                column = column.cast(field.type)
            if column.null_count and not field.nullable:
                raise FileError(f"{self._path}: column {field.name!r} has nulls, but the job declares it not null")
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def close(self) -> None:
        self._file.close()


def _opened(path: Path, as_dictionaries: Sequence[str] = ()) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path, read_dictionary=list(as_dictionaries))
    except (pa.ArrowException, OSError) as error:
        raise unreadable(f"{path} is not a Parquet file that can be read: {error}", error) from error


def _with_dictionaries(path: Path, context: SourceContext) -> pa.Schema:
    """Returns the declared schema, with a dictionary for each text column that is wanted so and that the file has so.

    A column that the file stores mostly text by text is read as texts: Arrow would have to look for equal ones.
    """
    schema = context.schema
    if not context.dictionaries:
        return schema
    with _opened(path) as opened:
        metadata = opened.metadata
    stored = {metadata.schema.column(place).path: place for place in range(metadata.num_columns)}
    for place, field in enumerate(schema):
        if field.name in context.dictionaries & stored.keys() and pa.types.is_string(field.type):
            groups = (metadata.row_group(group) for group in range(metadata.num_row_groups))
            if all(_in_dictionary(group.column(stored[field.name])) for group in groups):
                schema = schema.set(place, field.with_type(pa.dictionary(pa.int32(), field.type)))
    return schema


def _in_dictionary(column: pq.ColumnChunkMetaData) -> bool:
    """Says whether a column of a row group has mostly places in a dictionary, by the bytes of a value."""
    return bool(column.has_dictionary_page and column.total_uncompressed_size <= PLACE_BYTES * column.num_values)


def _check(path: Path, found: pa.Schema, declared: pa.Schema) -> None:
    for field in declared:
        place = found.get_field_index(field.name)
        if place < 0:
            raise FileError(f"{path} has no column {field.name!r}; it has: {', '.join(found.names)}")
        if not _fits(found.field(place).type, field.type):
            raise FileError(
                f"{path}: column {field.name!r} is {found.field(place).type}, but the job declares {field.type}"
            )


def _fits(found: pa.DataType, declared: pa.DataType) -> bool:
    """True if the declared type holds the same values: it is the same type, or one that Spark widens to."""
    types = pa.types
    if types.is_dictionary(found):
        return _fits(found.value_type, declared)
    if types.is_dictionary(declared):  # Arrow reads only strings and bytes as dictionaries
        values = declared.value_type
        return bool((types.is_string(values) or types.is_binary(values)) and _fits(found, values))
    if types.is_signed_integer(found) and types.is_signed_integer(declared):
        return bool(found.bit_width <= declared.bit_width)
    if types.is_floating(declared):
        exact = types.is_signed_integer(found) and found.bit_width <= 32 and declared.bit_width == 64
        return bool(exact or (types.is_floating(found) and found.bit_width <= declared.bit_width))
    if types.is_string(declared):
        return bool(types.is_string(found) or types.is_large_string(found) or types.is_string_view(found))
    if types.is_binary(declared):
        return bool(types.is_binary(found) or types.is_large_binary(found) or types.is_binary_view(found))
    if types.is_timestamp(declared):
        return bool(types.is_timestamp(found) and (found.tz is None) == (declared.tz is None))
    if types.is_decimal(declared):
        return bool(
            types.is_decimal(found)
            and found.precision - found.scale <= declared.precision - declared.scale
            and found.scale <= declared.scale
        )
    if types.is_nested(declared):
        if found.id != declared.id or found.num_fields != declared.num_fields:
            return False
        pairs = [(found.field(place), declared.field(place)) for place in range(found.num_fields)]
        named = not types.is_struct(declared) or all(one.name == other.name for one, other in pairs)
        return named and all(_fits(one.type, other.type) for one, other in pairs)
    return bool(found == declared)
