"""`IcebergSink` writes an Iceberg table: its subtasks write Parquet files, which the committer adds by whole epochs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from engine.connectors.extras import needs_extra
from engine.connectors.lake.columns import check_fit, lake_schema, missing_columns
from engine.connectors.lake.writer import LakeWriter
from engine.core.paths import JobPaths
from engine.core.ports import Store
from engine.core.sinks import Committer, Guarantee, Sink, SinkWriter, WriterContext


class IcebergSink(Sink):
    """Writes an Iceberg table, and creates it if there is none.

    `table`: its name with that of its namespace, such as 'shop.orders'. `catalog` and `properties`: as in pyiceberg's
    `load_catalog`; what they leave out is taken from its configuration (PYICEBERG_CATALOG__…, or .pyiceberg.yaml).
    Other writers may use the table, too. Columns are found by name; new ones are added to the table.
    """

    guarantee = Guarantee.EXACTLY_ONCE
    gains_columns = True

    def __init__(self, table: str, catalog: str = "default", properties: Mapping[str, str] | None = None) -> None:
        needs_extra("pyiceberg", "iceberg", "IcebergSink")
        if not isinstance(table, str) or "." not in table or not all(table.split(".")):
            raise ValueError(f"{table!r} is no name of an Iceberg table: write one such as 'shop.orders'")
        self.table = table
        self._catalog = catalog
        self._properties = dict(properties or {})

    @property
    def target(self) -> str:
        return f"the Iceberg table {self.table} of the catalog {self._catalog}"

    def writer(self, context: WriterContext) -> SinkWriter:
        columns = lake_schema(context.schema, self.target, narrow_ints=False)
        return LakeWriter(context, columns, self._prepare, _nothing_more)

    def committer(self, store: Store, paths: JobPaths) -> Committer:
        from engine.connectors.iceberg.committer import IcebergCommitter

        return IcebergCommitter(self.table, self._catalog, self._properties)

    def _prepare(self, columns: pa.Schema) -> tuple[Store, str]:
        """Looks whether the rows fit before the first file is written: an epoch that is published must be committed."""
        from engine.connectors.iceberg.committer import IcebergPlace

        place = IcebergPlace(self.table, self._catalog, self._properties)
        if not place.refresh():
            place.create(columns)
            place.refresh()
        check_fit(self.target, place.unfit)
        missing_columns(place.columns, columns, self.target)
        return place.files()


def _nothing_more(rows: pa.Table) -> dict[str, Any]:
    """The committer reads the bounds of columns from the files themselves."""
    return {}
