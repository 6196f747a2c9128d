"""`LakeWriter` writes the Parquet files of one subtask of a lake table. The committer names them in the table's log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from engine.connectors.lake.columns import schema_text
from engine.connectors.table.committer import file_name_of
from engine.connectors.table.rows import encoded
from engine.core.ports import Store
from engine.core.sinks import GatheringWriter, Piece, WriterContext

Prepare = Callable[[pa.Schema], tuple[Store, str]]
"""Makes the table if there is none, compares its columns with these, and returns where its files go. It may block."""
Describe = Callable[[pa.Table], dict[str, Any]]
"""Returns what the payload of a file holds beside its name, size, rows and columns."""


class LakeWriter(GatheringWriter):
    """`schema`: the columns as the table stores them."""

    def __init__(self, context: WriterContext, schema: pa.Schema, prepare: Prepare, describe: Describe) -> None:
        super().__init__()
        self._context = context
        self._schema = schema
        self._target = _Target(prepare, schema)
        self._describe = describe

    def _piece(self, batches: list[pa.RecordBatch], number: int, size: int) -> Piece:
        context = self._context
        name = file_name_of(context.job_id, context.attempt, context.subtask, number)
        rows = pa.Table.from_batches(batches, context.schema)
        return _LakeFile(self._target, name, rows, self._schema, self._describe, size)


@dataclass
class _Target:
    """Where the files of a writer go. It is looked at once, beside the task thread, before the first file."""

    prepare: Prepare
    schema: pa.Schema
    _found: tuple[Store, str] | None = None

    def place(self) -> tuple[Store, str]:
        if self._found is None:
            self._found = self.prepare(self.schema)
        return self._found


@dataclass
class _LakeFile(Piece):
    target: _Target
    name: str
    rows: pa.Table
    schema: pa.Schema
    describe: Describe
    size: int

    def persist(self) -> dict[str, Any]:
        store, folder = self.target.place()
        # Not checked for losses: each type fits into that of the table, and timestamps are cut to microseconds.
        rows = self.rows.cast(self.schema, safe=False)
        data = encoded(rows)
        path = f"{folder}/{self.name}"
        store.write(path, data)
        store.sync([path])
        return {
            "name": self.name,
            "size": len(data),
            "rows": rows.num_rows,
            "columns": schema_text(self.schema),
            **self.describe(rows),
        }
