"""`StaticTable`: the side of a join that every subtask holds as a whole, as slots read it from the store."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from engine.core.errors import WeirError
from engine.core.paths import JobPaths
from engine.core.ports import Store

DONE = "_SUCCESS"
"""Spark writes this file last: a version without it is not complete."""


@dataclass
class StaticTable:
    """Versions of a table, as Parquet files. `refresh_ms`: how often there may be a newer one; None: never."""

    schema: pa.Schema
    refresh_ms: int | None

    def versions(self, uid: str, store: Store, paths: JobPaths) -> list[int]:
        """Returns those that are complete, in order."""
        folder = paths.static_tables(uid)
        parts = [path.removeprefix(f"{folder}/").split("/") for path in store.list(folder)]
        return sorted(int(version) for version, *rest in parts if rest == [DONE])

    def read(self, uid: str, version: int, store: Store, paths: JobPaths) -> pa.Table:
        folder = paths.static_table(uid, version)
        files = [path for path in sorted(store.list(folder)) if path.endswith(".parquet")]
        parts = [pq.read_table(pa.BufferReader(store.read(path))) for path in files]
        try:
            tables = [part.select(self.schema.names).cast(self.schema) for part in parts]
        except (KeyError, pa.ArrowException) as error:
            raise WeirError(f"the static table {uid!r} is not what the job declares: {error}") from error
        return pa.concat_tables([self.schema.empty_table(), *tables])
