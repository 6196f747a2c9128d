"""Checks for `join_static`, made when a job is written: the table, the keys, and the columns of the result."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from engine.api.dataframes import dataframe_schema
from engine.connectors.dataframe import DataFrameLike, DataFrameTable
from engine.core.durations import Duration, to_ms
from engine.core.errors import JobError
from engine.core.event_time import EVENT_TIME
from engine.state.key_hash import hash_columns


def static_table(
    frame: DataFrameLike, declared: pa.Schema | str | None, refresh: Duration | None, uid: str
) -> DataFrameTable:
    """Returns the table side of the join, or raises a `JobError` if it cannot be read as asked."""
    what = f"join_static {uid!r}"
    refresh_ms = None if refresh is None else to_ms(refresh, "join_static, refresh")
    if refresh_ms is not None and refresh_ms < 1000:
        raise JobError(f"{what}: refresh={refresh!r} is too often for Spark; refresh at most once a second")
    if refresh_ms is not None and not callable(frame):
        raise JobError(
            f"{what}: refresh needs a function that makes the DataFrame anew, such as lambda spark: spark.read...: "
            "a DataFrame lists its files only once"
        )
    return DataFrameTable(dataframe_schema(frame, declared, what), refresh_ms, frame)


def joined_schema(stream: pa.Schema, static: pa.Schema, keys: Sequence[str], how: str, what: str) -> pa.Schema:
    """Returns the columns of the stream, followed by those of the table that are not keys. `what` begins messages."""
    if how not in ("inner", "left"):
        raise JobError(f"{what}: how must be 'inner' or 'left', not {how!r}")
    if not keys:
        raise JobError(f"{what}: on=... needs at least one column")
    for key in keys:
        _check_key(key, stream, static, what)
    added = [field for field in static if field.name not in keys]
    for field in added:
        if field.name in stream.names:
            raise JobError(f"{what}: both sides have a column {field.name!r}; rename one with select(...)")
    own = [field for field in stream if field.name != EVENT_TIME]
    time = [field for field in stream if field.name == EVENT_TIME]
    return pa.schema([*own, *(field.with_nullable(True) for field in added), *time])


def _check_key(key: str, stream: pa.Schema, static: pa.Schema, what: str) -> None:
    for side, schema in (("stream", stream), ("table", static)):
        if key not in schema.names or key == EVENT_TIME:
            raise JobError(f"{what}: the {side} has no column {key!r}; it has ({', '.join(schema.names)})")
    ours, theirs = stream.field(key).type, static.field(key).type
    if ours != theirs and not (pa.types.is_integer(ours) and pa.types.is_integer(theirs)):
        raise JobError(f"{what}: {key!r} is {ours} in the stream and {theirs} in the table: cast one of them")
    try:
        hash_columns([pa.nulls(0, ours)])
    except TypeError as error:
        raise JobError(f"{what}, on {key!r}: {error}") from error
