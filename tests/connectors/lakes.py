"""The kinds of lake tables as their tests use them: each is written by a sink, and read by its own library."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import Catalog, load_catalog

from engine.connectors.delta import DeltaSink
from engine.connectors.delta.committer import DeltaCommitter
from engine.connectors.iceberg import IcebergSink
from engine.connectors.iceberg.committer import IcebergCommitter
from engine.connectors.lake.publishing import LakeCommitter
from engine.core.sinks import Sink


class Lake(ABC):
    """One table. `committer` is the class whose steps a test can break."""

    committer: type[LakeCommitter]

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def sink(self) -> Sink: ...

    @abstractmethod
    def read(self) -> pa.Table:
        """Returns all rows, as the library of the table reads them."""

    @abstractmethod
    def epochs(self) -> list[int]:
        """Returns the epochs that commits of Weir name, oldest first."""

    @abstractmethod
    def append(self, rows: pa.Table) -> None:
        """Writes rows as another program does. It makes the table if there is none."""

    @abstractmethod
    def create_partitioned(self, schema: pa.Schema, column: str) -> None:
        """Makes an empty table with a partition for each value of a column."""

    def rows(self) -> list[dict[str, Any]]:
        return sorted(self.read().to_pylist(), key=lambda row: row["n"])

    def numbers(self) -> list[int]:
        return [row["n"] for row in self.rows()]


class DeltaLake(Lake):
    committer = DeltaCommitter

    @property
    def path(self) -> str:
        return str(self.folder / "orders")

    def sink(self) -> Sink:
        return DeltaSink(self.path)

    def read(self) -> pa.Table:
        return DeltaTable(self.path).to_pyarrow_table()

    def epochs(self) -> list[int]:
        history = DeltaTable(self.path).history()
        return [int(commit["weir.epoch"]) for commit in reversed(history) if "weir.epoch" in commit]

    def append(self, rows: pa.Table) -> None:
        write_deltalake(self.path, rows, mode="append")

    def create_partitioned(self, schema: pa.Schema, column: str) -> None:
        DeltaTable.create(self.path, schema, partition_by=[column])


class IcebergLake(Lake):
    committer = IcebergCommitter

    @property
    def properties(self) -> dict[str, str]:
        return {"type": "sql", "uri": f"sqlite:///{self.folder}/catalog.db", "warehouse": f"file://{self.folder}/lake"}

    @property
    def catalog(self) -> Catalog:
        return load_catalog("default", **self.properties)

    def sink(self) -> Sink:
        return IcebergSink("shop.orders", properties=self.properties)

    def read(self) -> pa.Table:
        return self.catalog.load_table("shop.orders").scan().to_arrow()

    def epochs(self) -> list[int]:
        snapshots = [one.summary for one in self.catalog.load_table("shop.orders").snapshots() if one.summary]
        return [int(epoch) for summary in snapshots if (epoch := summary.additional_properties.get("weir.epoch"))]

    def append(self, rows: pa.Table) -> None:
        self.catalog.create_namespace_if_not_exists("shop")
        self.catalog.create_table_if_not_exists("shop.orders", rows.schema).append(rows)

    def create_partitioned(self, schema: pa.Schema, column: str) -> None:
        self.catalog.create_namespace_if_not_exists("shop")
        table = self.catalog.create_table("shop.orders", schema)
        with table.update_spec() as spec:
            spec.add_identity(column)


LAKES: dict[str, Callable[[Path], Lake]] = {"delta": DeltaLake, "iceberg": IcebergLake}
