"""`StaticTable`: the static side of a join, which every subtask reads from the store as a whole."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from engine.core.errors import WeirError
from engine.core.paths import JobPaths
from engine.core.ports import Store
from engine.runtime.written import Versions


@dataclass
class StaticTable:
    """The versions of a table, as Parquet files. `refresh_ms`: how often to look for a newer one; None: never."""

    schema: pa.Schema
    refresh_ms: int | None

    def versions(self, uid: str, store: Store, paths: JobPaths) -> list[int]:
        """Returns the complete versions, oldest first."""
        return Versions(store, paths.static_tables(uid)).known()

    def read(self, uid: str, version: int, store: Store, paths: JobPaths) -> pa.Table:
        folder = Versions(store, paths.static_tables(uid)).folder(version)
        files = [path for path in sorted(store.list(folder)) if path.endswith(".parquet")]
        parts = [pq.read_table(pa.BufferReader(store.read(path))) for path in files]
        try:
            tables = [part.select(self.schema.names).cast(self.schema) for part in parts]
        except (KeyError, pa.ArrowException) as error:
            raise WeirError(f"the static table {uid!r} does not fit the declared schema: {error}") from error
        return pa.concat_tables([self.schema.empty_table(), *tables])
