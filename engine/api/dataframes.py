"""Spark's DataFrames in a job: as a stream, and as the other side of a join."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from engine.api.schema import parse_schema
from engine.connectors.dataframe import DataFrameTable, Frame
from engine.core.durations import Duration, to_ms
from engine.core.errors import JobError
from engine.core.event_time import EVENT_TIME
from engine.state.key_hash import hash_columns

if TYPE_CHECKING:
    from engine.api.streams.data import DataStream


def schema_of(frame: Frame, declared: pa.Schema | str | None, what: str) -> pa.Schema:
    """A DataFrame has its schema; a function that makes one has it declared, since slots can't call it."""
    if declared is not None:
        return parse_schema(declared)
    if callable(frame):
        raise JobError(
            f"{what}: a function that makes a DataFrame needs schema=..., as in 'app_id string, name string'"
        )
    fields = [f"{field.name} {field.dataType.simpleString()}" for field in frame.schema.fields]
    try:
        return parse_schema(", ".join(fields))
    except JobError as error:
        raise JobError(f"{what}: {error}") from error


def static_table(frame: Frame, declared: pa.Schema | str | None, refresh: Duration | None, uid: str) -> DataFrameTable:
    what = f"join_static {uid!r}"
    refresh_ms = None if refresh is None else to_ms(refresh)
    if refresh_ms is not None and refresh_ms < 1000:
        raise JobError(f"{what}: refresh={refresh!r} would keep Spark busy; a second is the least")
    if refresh_ms is not None and not callable(frame):
        raise JobError(
            f"{what}: refresh needs a function that makes the DataFrame anew, such as lambda spark: spark.read...: "
            "a DataFrame keeps what it has listed"
        )
    return DataFrameTable(schema_of(frame, declared, what), refresh_ms, frame)


def joined_schema(stream: DataStream, static: pa.Schema, keys: Sequence[str], how: str, uid: str) -> pa.Schema:
    """The stream's columns, then those of the table that are no keys."""
    what = f"join_static {uid!r}"
    if how not in ("inner", "left"):
        raise JobError(f"{what}: how={how!r} is not known; it is 'inner' or 'left'")
    if not keys:
        raise JobError(f"{what}: on=... names no column")
    for key in keys:
        for side, schema in (("stream", stream.schema), ("table", static)):
            if key not in schema.names or key == EVENT_TIME:
                raise JobError(f"{what}: the {side} has no column {key!r}; it has ({', '.join(schema.names)})")
        ours, theirs = stream.schema.field(key).type, static.field(key).type
        if ours != theirs and not (pa.types.is_integer(ours) and pa.types.is_integer(theirs)):
            raise JobError(f"{what}: {key!r} is {ours} in the stream and {theirs} in the table: cast one of them")
        try:
            hash_columns([pa.array([], ours)])
        except TypeError as error:
            raise JobError(f"{what}, on {key!r}: {error}") from error
    added = [field for field in static if field.name not in keys]
    for field in added:
        if field.name in stream.schema.names:
            raise JobError(f"{what}: both sides have a column {field.name!r}; rename one with select(...)")
    own = [field for field in stream.schema if field.name != EVENT_TIME]
    time = [field for field in stream.schema if field.name == EVENT_TIME]
    return pa.schema([*own, *(field.with_nullable(True) for field in added), *time])
