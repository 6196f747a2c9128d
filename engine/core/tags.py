"""`OutputTag` names a side output. An edge with a tag carries only the records emitted under that tag (A8)."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from engine.core.ddl import parse_ddl
from engine.core.schema_rules import SchemaError


@dataclass(frozen=True)
class OutputTag:
    """Names a side output and gives the schema of its records: a `pa.Schema`, or DDL such as `"n long"`."""

    name: str
    schema: pa.Schema

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise SchemaError(f'OutputTag({self.name!r}, ...): a tag needs a name, as in OutputTag("late", "n long")')
        if isinstance(self.schema, str):
            object.__setattr__(self, "schema", parse_ddl(self.schema))
        if not isinstance(self.schema, pa.Schema):
            raise SchemaError(
                f"OutputTag({self.name!r}): its schema is a pyarrow.Schema or a Spark DDL string such as "
                f'"n long, key string", not {self.schema!r}'
            )
