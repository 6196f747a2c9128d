"""The statistics of a file in Delta's log: with these a reader skips files that can't hold what it looks for. Pure.

Invariant: no row lies outside of the bounds. A column whose bounds can't be told has none.
"""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

COLUMNS = 32
"""Delta's own default: the first columns have statistics, the others have none."""
TEXT = 32
"""Longer texts are cut, as Spark does."""
_AFTER_ALL = "\U0010ffff"
_JSON = msgspec.json.Encoder(decimal_format="number")


def statistics(rows: pa.Table) -> str:
    """Returns the statistics as JSON."""
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for field in list(rows.schema)[:COLUMNS]:
        if pa.types.is_nested(field.type):
            continue
        column = rows.column(field.name)
        nulls[field.name] = column.null_count
        bounds = _bounds(column)
        if bounds is not None:
            lowest[field.name], highest[field.name] = bounds
    found = {"numRecords": rows.num_rows, "minValues": lowest, "maxValues": highest, "nullCount": nulls}
    return _JSON.encode(found).decode()


def _bounds(column: pa.ChunkedArray) -> tuple[Any, Any] | None:
    kind = column.type
    if pa.types.is_boolean(kind) or pa.types.is_binary(kind) or column.null_count == len(column):
        return None
    if pa.types.is_floating(kind) and not pc.all(pc.is_finite(column)).as_py():
        return None  # NaN is greater than all for some readers, and JSON has no word for it
    found = pc.min_max(column)
    if pa.types.is_timestamp(kind):
        return _moments(found, kind)
    low, high = found["min"].as_py(), found["max"].as_py()
    if isinstance(low, str):
        return low[:TEXT], high if len(high) <= TEXT else high[:TEXT] + _AFTER_ALL
    if isinstance(low, dt.date):
        return low.isoformat(), high.isoformat()
    assert isinstance(low, int | float | decimal.Decimal), kind
    return low, high


def _moments(found: pa.StructScalar, kind: pa.DataType) -> tuple[str, str] | None:
    """Returns moments in milliseconds, Delta's unit here: the lower one is cut, the higher one is rounded up."""
    low, high = (found[bound].cast(pa.int64()).as_py() for bound in ("min", "max"))
    try:
        return _moment(low // 1000, kind), _moment(-(-high // 1000), kind)
    except OverflowError:
        return None  # a year that Python does not know


def _moment(ms: int, kind: pa.DataType) -> str:
    said = (dt.datetime(1970, 1, 1) + dt.timedelta(milliseconds=ms)).isoformat(timespec="milliseconds")
    return f"{said}Z" if kind.tz else said
