"""Checks of the columns that aggregates take, made when the job is written."""

from __future__ import annotations

import pyarrow as pa

from engine.core.errors import JobError
from engine.core.event_time import EVENT_TIME, described
from engine.core.nearest import nearest


def check_number(what: str, column: str, schema: pa.Schema) -> None:
    """Raises a `JobError` if there is no such column, or if it can't be added up."""
    kind = _type_of(what, column, schema)
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        raise JobError(f"{what} needs a number; {column!r} is {kind}")


def check_ordered(what: str, column: str, schema: pa.Schema) -> None:
    """Raises a `JobError` if there is no such column, or if its values have no order."""
    kind = _type_of(what, column, schema)
    if pa.types.is_nested(kind):
        raise JobError(f"{what} needs values that have an order; {column!r} is {kind}")


def check_column(what: str, column: str, schema: pa.Schema) -> None:
    """Raises a `JobError` if there is no such column."""
    _type_of(what, column, schema)


def _type_of(what: str, column: str, schema: pa.Schema) -> pa.DataType:
    if not isinstance(column, str):
        raise JobError(f"{what} takes the name of a column, not {column!r}")
    if column not in schema.names or column == EVENT_TIME:
        guess = nearest(column, [name for name in schema.names if name != EVENT_TIME])
        raise JobError(f"{what}: there is no column {column!r}; the stream has ({described(schema)}){guess}")
    return schema.field(column).type
