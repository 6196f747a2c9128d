"""`DeltaSink` writes a Delta Lake table: its subtasks write Parquet files, which the committer adds by whole epochs."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from engine.connectors.extras import needs_extra
from engine.connectors.lake.columns import check_fit, lake_schema, missing_columns
from engine.connectors.lake.writer import LakeWriter
from engine.core.paths import JobPaths
from engine.core.ports import Store
from engine.core.sinks import Committer, Guarantee, Sink, SinkWriter, WriterContext
from engine.store.bucket import is_bucket
from engine.store.opening import address_of, open_store


class DeltaSink(Sink):
    """Writes a Delta Lake table, and creates it if there is none.

    `path`: a folder ('/lake/orders') or a place in a bucket ('s3://bucket/lake/orders'). Other writers may use the
    table, too, each job under its own name in the log. Columns are found by name; new ones are added to the table.
    """

    guarantee = Guarantee.EXACTLY_ONCE
    gains_columns = True

    def __init__(self, path: str) -> None:
        needs_extra("deltalake", "delta", "DeltaSink")
        if not isinstance(path, str) or not (path.startswith("/") or is_bucket(path)):
            raise ValueError(
                f"DeltaSink({path!r}): write the path of a folder, as in DeltaSink('/lake/orders'), or of a place in a "
                "bucket, as in DeltaSink('s3://bucket/lake/orders')"
            )
        self.path = address_of(path).rstrip("/")

    @property
    def target(self) -> str:
        return f"the Delta table {self.path!r}"

    def writer(self, context: WriterContext) -> SinkWriter:
        columns = lake_schema(context.schema, self.target, narrow_ints=True)

        def describe(rows: pa.Table) -> dict[str, Any]:
            from engine.connectors.delta.statistics import statistics

            return {"stats": statistics(rows)}

        return LakeWriter(context, columns, self._prepare, describe)

    def committer(self, store: Store, paths: JobPaths) -> Committer:
        from engine.connectors.delta.committer import DeltaCommitter

        return DeltaCommitter(self.path, *self._place())

    def _prepare(self, columns: pa.Schema) -> tuple[Store, str]:
        """Looks whether the rows fit before the first file is written: an epoch that is published must be committed."""
        from engine.connectors.delta.committer import DeltaFolder

        folder = DeltaFolder(self.path)
        if not folder.refresh():
            folder.create(columns)
            folder.refresh()
        check_fit(self.target, folder.unfit)
        missing_columns(folder.columns, columns, self.target)
        return self._place()

    def _place(self) -> tuple[Store, str]:
        parent, _, name = self.path.rpartition("/")
        return open_store(parent or "/"), name
