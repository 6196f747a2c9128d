"""Rows as COPY reads them (CSV), and whether they fit into the columns of a table. Pure, and by the column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv

from engine.core.errors import SchemaMismatch

_TEXTS = ("text", "varchar", "bpchar", "json", "jsonb", "uuid", "citext")
_FITS: dict[pa.DataType, tuple[str, ...]] = {
    pa.bool_(): ("bool",),
    pa.int8(): ("int2", "int4", "int8", "numeric"),
    pa.uint8(): ("int2", "int4", "int8", "numeric"),
    pa.int16(): ("int2", "int4", "int8", "numeric"),
    pa.uint16(): ("int4", "int8", "numeric"),
    pa.int32(): ("int4", "int8", "numeric"),
    pa.uint32(): ("int8", "numeric"),
    pa.int64(): ("int8", "numeric"),
    pa.uint64(): ("numeric",),
    pa.float32(): ("float4", "float8"),
    pa.float64(): ("float8",),
    pa.date32(): ("date",),
}
_NAMES = {
    "bool": "boolean",
    "int2": "smallint",
    "int4": "integer",
    "int8": "bigint",
    "float4": "real",
    "float8": "double precision",
    "timestamptz": "timestamp with time zone",
}


def fitting(kind: pa.DataType) -> tuple[str, ...]:
    """Returns the types of PostgreSQL that hold every value of this type, the usual one first."""
    if pa.types.is_dictionary(kind):
        return fitting(kind.value_type)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return _TEXTS
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return ("bytea",)
    if pa.types.is_timestamp(kind):
        return ("timestamptz",) if kind.tz else ("timestamp",)
    if pa.types.is_decimal(kind):
        return ("numeric",)
    return _FITS.get(kind, ())


def check_columns(schema: pa.Schema, table: Mapping[str, str], key: Sequence[str], target: str) -> None:
    """Raises SchemaMismatch unless the rows fit. `table`: the types of its columns; empty: there is no such table."""
    for field in schema:
        if not fitting(field.type):
            raise SchemaMismatch(
                f"{target} can't store the column {field.name} of type {field.type}: cast it to a type such as string, "
                "or write its parts to columns of their own"
            )
    if absent := [name for name in key if name not in schema.names]:
        raise SchemaMismatch(f"the key {absent[0]!r} of {target} is no column of the rows: {', '.join(schema.names)}")
    if not table:
        raise SchemaMismatch(f"{target} does not exist: create it, as in\n{creation(schema, key)}")
    for field in schema:
        kind = table.get(field.name)
        if kind is None:
            raise SchemaMismatch(
                f"{target} has no column {field.name}: leave it out before the sink, or add it, as in\n"
                f"ALTER TABLE … ADD COLUMN {_quoted(field.name)} {_column_type(field.type)};"
            )
        if kind not in fitting(field.type):
            raise SchemaMismatch(
                f"the column {field.name} of {target} is {_named(kind)}, which does not hold every {field.type}: cast "
                f"it before the sink, or make the column {_column_type(field.type)}"
            )


def creation(schema: pa.Schema, key: Sequence[str]) -> str:
    """Returns a statement that makes a table for these rows."""
    columns = [f"{_quoted(field.name)} {_column_type(field.type)}" for field in schema]
    if key:
        columns.append(f"PRIMARY KEY ({', '.join(map(_quoted, key))})")
    return f"CREATE TABLE … ({', '.join(columns)});"


def _column_type(kind: pa.DataType) -> str:
    if pa.types.is_decimal(kind):
        return f"numeric({kind.precision}, {kind.scale})"
    return _named(fitting(kind)[0])


def _named(kind: str) -> str:
    return _NAMES.get(kind, kind)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def encoded(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> bytes:
    """Returns rows as CSV for COPY: every value in quotes, and null as nothing at all."""
    rows = pa.Table.from_batches(batches, schema)
    columns = [_text(name, column.combine_chunks()) for name, column in zip(schema.names, rows.columns, strict=True)]
    out = pa.BufferOutputStream()
    options = pcsv.WriteOptions(include_header=False, quoting_style="all_valid")
    pcsv.write_csv(pa.Table.from_arrays(columns, names=schema.names), out, options)
    data: bytes = out.getvalue().to_pybytes()
    return data


def _text(name: str, column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Returns a column of a type whose CSV PostgreSQL reads."""
    if pa.types.is_dictionary(column.type):
        return _text(name, column.cast(column.type.value_type))
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        hexed = pl.Series(column).bin.encode("hex").to_arrow()
        return pc.binary_join_element_wise("\\x", hexed.cast(pa.string()), "")
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.timestamp("us", "UTC" if column.type.tz else None), safe=False)
    if pa.types.is_string_view(column.type):
        return _text(name, column.cast(pa.large_string()))
    if (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)) and _has_zero(column):
        raise SchemaMismatch(
            f"the column {name} has a text with the character U+0000, which PostgreSQL can't store: remove it before "
            "the sink"
        )
    return column


def _has_zero(column: pa.Array | pa.ChunkedArray) -> bool:
    return bool(pc.any(pc.match_substring(column, "\0")).as_py())
