"""Decides which columns a lake table gets, and how the columns of a job fit to those of a table. By name, never by
position. Pure: nothing here reads a table.
"""

from __future__ import annotations

import base64

import pyarrow as pa

from engine.core.errors import SchemaMismatch

_UNSIGNED = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64()}
_AS_THEY_ARE = {
    pa.bool_(),
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.binary(),
    pa.date32(),
}
_NARROW = {pa.int8(), pa.int16()}


def lake_schema(schema: pa.Schema, target: str, *, narrow_ints: bool) -> pa.Schema:
    """Returns the columns as the table stores them; every value of the stream's type fits.

    `narrow_ints`: the table knows integers of 8 and 16 bits. Raises SchemaMismatch for a type that it can't store.
    """
    return pa.schema([_field(field, field.name, target, narrow_ints) for field in schema])


def _field(field: pa.Field, path: str, target: str, narrow_ints: bool) -> pa.Field:
    """All columns may be null: a table that may get columns has older rows without them."""
    return pa.field(field.name, _stored(field.type, path, target, narrow_ints))


def _stored(kind: pa.DataType, path: str, target: str, narrow_ints: bool) -> pa.DataType:
    def inner(of: pa.DataType) -> pa.DataType:
        return _stored(of, path, target, narrow_ints)

    kind = _UNSIGNED.get(kind, kind)
    if kind in _NARROW and not narrow_ints:
        return pa.int32()
    if kind in _AS_THEY_ARE or pa.types.is_decimal128(kind):
        return kind
    if pa.types.is_dictionary(kind):
        return inner(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if pa.types.is_date64(kind):
        return pa.date32()
    if pa.types.is_map(kind):
        return pa.map_(inner(kind.key_type), inner(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([_field(field, f"{path}.{field.name}", target, narrow_ints) for field in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(inner(kind.value_type))
    hint = "decimal(20,0) or long" if pa.types.is_uint64(kind) else "a type such as long, double, string or timestamp"
    raise SchemaMismatch(f"{target} can't store the column {path} of type {kind}: cast it to {hint} before the sink")


def check_fit(target: str, unfit: str) -> None:
    """Raises SchemaMismatch if the table is one that Weir can't write; `unfit` says why, and is empty otherwise."""
    if unfit:
        raise SchemaMismatch(
            f"{target} {unfit}, and Weir writes plain files: choose another table, and let a job of Spark or a query "
            "carry the rows over"
        )


def missing_columns(table: pa.Schema, rows: pa.Schema, target: str) -> list[pa.Field]:
    """Returns the columns that the table has to get. What it has and the rows lack is null in these rows.

    Raises SchemaMismatch if the rows can't be part of the table. Both schemas are as tables store them.
    """
    known = {field.name.lower(): field for field in table}
    missing = []
    for field in rows:
        there = known.get(field.name.lower())
        if there is None:
            missing.append(field)
        elif there.name != field.name:
            raise SchemaMismatch(
                f"the column {field.name} is {there.name} in {target}, which does not tell upper from lower case: "
                "rename it before the sink"
            )
        elif not _same(there.type, field.type):
            kind = _plain(there.type)
            raise SchemaMismatch(
                f"the column {field.name} of {target} is {kind}, and the job writes {field.type}: cast it to {kind} "
                "before the sink, or write to another table"
            )
    written = {field.name for field in rows}
    for field in table:
        if not field.nullable and field.name not in written:
            raise SchemaMismatch(
                f"the column {field.name} of {target} must not be null, and the job does not write it: add it before "
                "the sink, or write to another table"
            )
    return missing


def _same(one: pa.DataType, other: pa.DataType) -> bool:
    """Compares types. Names of the items of lists, and what may be null, are no difference."""
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        names = {field.name for field in one}
        return names == {field.name for field in other} and all(
            _same(one.field(name).type, other.field(name).type) for name in names
        )
    if pa.types.is_map(one) and pa.types.is_map(other):
        return _same(one.key_type, other.key_type) and _same(one.item_type, other.item_type)
    if _is_list(one) and _is_list(other):
        return _same(one.value_type, other.value_type)
    return bool(_plain(one) == _plain(other))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _plain(kind: pa.DataType) -> pa.DataType:
    """Libraries give the types of a table in encodings of their own: those of long texts, and UTC in two words."""
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_timestamp(kind) and kind.tz:
        return pa.timestamp(kind.unit, "UTC")
    return kind


def schema_text(schema: pa.Schema) -> str:
    """Returns a schema as a text for the payload of a committable."""
    return base64.b64encode(schema.remove_metadata().serialize().to_pybytes()).decode()


def schema_of_text(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
