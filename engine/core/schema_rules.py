"""The rules that the schema of every stream obeys: at least one column, unique names, and none of Weir's own names."""

from __future__ import annotations

from collections.abc import Sequence

from engine.core.errors import JobError

RESERVED_PREFIX = "_event_time"  # the hidden column that travels with each record, and names derived from it


class SchemaError(JobError, ValueError):
    """Says that a schema cannot be the schema of a stream; the message tells where, and what is allowed."""


def check_names(names: Sequence[str]) -> None:
    """Raises a `SchemaError` if these cannot be the column names of a stream."""
    if not names:
        raise SchemaError("the schema has no columns; a stream needs at least one")
    for name in names:
        if fault := fault_of_name(name):
            raise SchemaError(fault)
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise SchemaError(f"column {repeated[0]!r} occurs more than once; names must be unique")


def fault_of_name(name: str) -> str | None:
    """Returns what is wrong with a column name, or None."""
    if name.startswith(RESERVED_PREFIX):
        return f"column name {name!r} is reserved; choose one that does not start with {RESERVED_PREFIX!r}"
    return None
