"""Brings columns into the one form in which equal values are equal to Arrow as well, for grouping and joining.

It also turns numbers into doubles, for aggregates that compute with them.
"""

from __future__ import annotations

from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

Column: TypeAlias = "pa.Array | pa.ChunkedArray"


def plain(column: Column) -> Column:
    """Decodes dictionaries and views: the dictionaries of two batches could differ, and Arrow can't take of views."""
    kind = plain_type(column.type)
    return column if kind == column.type else column.cast(kind)


def plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_binary_view(kind):
        return pa.binary()
    return kind


def as_doubles(column: Column) -> Column:
    """Returns numbers as doubles: integers that no double holds exactly are rounded."""
    return column.cast(pa.float64(), safe=False)


def canonical(key: Column) -> Column:
    """Makes -0.0 and 0.0 one key, and all NaNs, as the key hash does. Arrow would group them by their bits."""
    if not (pa.types.is_float32(key.type) or pa.types.is_float64(key.type)):
        return key
    return pc.if_else(pc.is_nan(key), pa.scalar(float("nan"), key.type), pc.add(key, pa.scalar(0.0, key.type)))
