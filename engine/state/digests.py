"""Digests of rows: the sum of the hashes of all rows, so it depends neither on their order nor on batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from engine.state.key_hash import hash_columns
from engine.state.state_digest import flat


def digested(schema: pa.Schema) -> list[str]:
    """Returns the columns that a digest covers: those whose values can be hashed, nested ones too."""
    return [field.name for field in schema if not pa.types.is_nested(field.type) or _hashable(field.type)]


def plain(schema: pa.Schema) -> list[str]:
    """Returns the columns that are not nested. The indexes of folded files have their digests, also in older stores."""
    return [field.name for field in schema if not pa.types.is_nested(field.type)]


def digest(columns: Sequence[pa.Array]) -> int:
    """Returns the digest of the rows of these columns; add it modulo 2**64 to that of other rows."""
    return int(np.add.reduce(hash_columns([flat(column) for column in columns]))) if columns else 0


def as_stored(column: pa.Array) -> pa.Array:
    """Returns a column as a table stores it, which has no nanoseconds: their hash would be that of no row in it."""
    kind = _stored(column.type)
    return column if kind == column.type else column.cast(kind, safe=False)


def _stored(kind: pa.DataType) -> pa.DataType:
    """Returns the type with microseconds in the place of nanoseconds, also within other types."""
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    if pa.types.is_dictionary(kind):
        return kind if _stored(kind.value_type) == kind.value_type else _stored(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_stored(field.type)) for field in kind])
    if pa.types.is_map(kind):
        key, item = kind.key_field, kind.item_field
        return pa.map_(key.with_type(_stored(key.type)), item.with_type(_stored(item.type)), kind.keys_sorted)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(_stored(kind.value_type)), kind.list_size)
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_stored(kind.value_type)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_stored(kind.value_type)))
    return kind


def _hashable(kind: pa.DataType) -> bool:
    """Says whether the values of a type, and all that is inside them, can be hashed."""
    if pa.types.is_union(kind) or pa.types.is_run_end_encoded(kind):
        return False
    if pa.types.is_nested(kind):
        return all(_hashable(kind.field(index).type) for index in range(kind.num_fields))
    try:
        hash_columns([pa.nulls(0, kind)])
    except TypeError:
        return False
    return True
