"""The source of `from_elements`: given records, in one split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from engine.core.errors import SchemaMismatch
from engine.core.sources import FixedSource, SourceContext, SplitReader


class ElementsSource(FixedSource):
    """Reads given records. Every record needs all fields of the schema, and no others."""

    def __init__(self, rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> None:
        if isinstance(rows, Mapping):
            raise SchemaMismatch("the elements are a dict: write a list of records, as in [{...}, {...}]")
        for position, row in enumerate(rows):
            if not isinstance(row, Mapping):
                raise SchemaMismatch(f"element {position} is {row!r}: a record is a dict, as in {_example(schema)}")
            if set(row) != set(schema.names):
                raise SchemaMismatch(f"element {position} has the fields {sorted(row)}, the schema has {schema.names}")
            for field in schema:
                value = row[field.name]
                # Arrow would cut off the fraction without an error.
                if pa.types.is_integer(field.type) and isinstance(value, float) and not value.is_integer():
                    raise SchemaMismatch(
                        f"the elements do not fit the schema: {field.name} {field.type} can't be {value}"
                    )
        try:
            self._batch = pa.RecordBatch.from_pylist([dict(row) for row in rows], schema=schema)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise SchemaMismatch(f"the elements do not fit the schema: {error}") from error

    def splits(self) -> Sequence[str]:
        return ["0"]

    def reader(self, split: str, position: Any, context: SourceContext) -> SplitReader:
        return _Reader(self._batch, int(position or 0))


def _example(schema: pa.Schema) -> str:
    return "{" + ", ".join(f"{name!r}: ..." for name in schema.names) + "}"


class _Reader(SplitReader):
    def __init__(self, batch: pa.RecordBatch, position: int) -> None:
        self._batch = batch
        self._position = position

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        if self.finished:
            return None
        rows = self._batch.slice(self._position, max_rows)
        self._position += rows.num_rows
        return rows

    @property
    def position(self) -> int:
        return self._position

    @property
    def finished(self) -> bool:
        return self._position >= int(self._batch.num_rows)
