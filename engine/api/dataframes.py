"""The schema of a DataFrame that a job takes, in `from_spark` and `join_static`."""

from __future__ import annotations

import pyarrow as pa

from engine.api.schema import parse_schema
from engine.connectors.dataframe import DataFrameLike
from engine.core.errors import JobError


def dataframe_schema(frame: DataFrameLike, declared: pa.Schema | str | None, what: str) -> pa.Schema:
    """Returns the declared schema, or that of the DataFrame. `what` names the call in messages.

    A function that makes a DataFrame needs a declared schema: slots have no Spark session to call it with.
    """
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
