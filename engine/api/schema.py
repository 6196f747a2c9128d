"""Schemas of streams: a job declares each as a `pa.Schema` or as a Spark DDL string."""

from __future__ import annotations

import pyarrow as pa

from engine.core.ddl import parse_ddl
from engine.core.event_time import EVENT_TIME, EVENT_TIME_FIELD
from engine.core.schema_rules import SchemaError, check_names


def parse_schema(schema: pa.Schema | str) -> pa.Schema:
    """Returns the Arrow schema that a job declares, as itself or as a DDL string such as `"app_id string, ts long"`."""
    if isinstance(schema, pa.Schema):
        check_names(schema.names)
        return schema
    if isinstance(schema, str):
        return parse_ddl(schema)
    told = f"the class {schema.__name__}" if isinstance(schema, type) else f"a {type(schema).__name__}"
    raise SchemaError(f'a schema is a pyarrow.Schema or a Spark DDL string such as "id long, name string", not {told}')


def out_schema(declared: pa.Schema | str | None, before: pa.Schema) -> pa.Schema:
    """Returns an operator's output schema: the declared one, or its input's (`before`). Event time is carried along."""
    if declared is None:
        return before
    parsed = parse_schema(declared)
    return parsed.append(EVENT_TIME_FIELD) if EVENT_TIME in before.names else parsed
