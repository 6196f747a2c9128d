"""`IcebergCommitter` publishes epochs in an Iceberg table, with the library `pyiceberg`.

An epoch's number is in the summary of its snapshot, for readers, and in a property of the table, which stays when
snapshots expire; the same commit writes both. The library is told not to repeat a commit by itself after a conflict: it
would put the snapshot on top of the newest one, without a look at the number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
    RESTError,
)
from pyiceberg.table import Table

from engine.connectors.lake.columns import missing_columns
from engine.connectors.lake.publishing import Conflict, LakeCommitter, LakeFile, columns_of
from engine.core.errors import StoreError, TargetTaken
from engine.core.ports import Store
from engine.store.bucket import is_bucket
from engine.store.opening import open_store

_RETRIES = "commit.retry.num-retries"
_OUTSIDE = (OSError, RESTError, CommitStateUnknownException)


class IcebergPlace:
    """An Iceberg table in a catalog. The errors of the library become Weir's here."""

    def __init__(self, table: str, catalog: str, properties: Mapping[str, str]) -> None:
        self._name = table
        self._catalog_name = catalog
        self._properties = properties
        self._catalog: Catalog | None = None
        self._table: Table | None = None

    @property
    def catalog(self) -> Catalog:
        if self._catalog is None:
            self._catalog = load_catalog(self._catalog_name, **self._properties)
        return self._catalog

    @property
    def table(self) -> Table:
        assert self._table is not None, "a table is read first"
        return self._table

    @property
    def columns(self) -> pa.Schema:
        return self.table.schema().as_arrow()

    @property
    def unfit(self) -> str:
        """Says why plain files can't be rows of the table; empty: they can."""
        names = ", ".join(field.name for field in self.table.spec().fields)
        return f"is partitioned by {names}" if names else ""

    def refresh(self) -> bool:
        """Reads the newest metadata of the table. Returns False if there is none."""
        with self.errors():
            try:
                self._table = self.catalog.load_table(self._name)
            except NoSuchTableError:
                self._table = None
                return False
            return True

    def create(self, columns: pa.Schema) -> None:
        """Creates the table and its namespace, unless they are there."""
        with self.errors():
            self.catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0])
            self.catalog.create_table_if_not_exists(self._name, columns)

    def files(self) -> tuple[Store, str]:
        """Returns the store of the data files, and their folder there."""
        parent, _, folder = self._address(self.table.location()).rpartition("/")
        return open_store(parent or "/"), f"{folder}/data"

    def sync(self) -> None:
        """Makes the newest metadata durable: the library does not sync what it writes to a file system."""
        written = [self.table.metadata_location]
        if snapshot := self.table.current_snapshot():
            with self.errors():
                made = [
                    one for one in snapshot.manifests(self.table.io) if one.added_snapshot_id == snapshot.snapshot_id
                ]
            written += [snapshot.manifest_list, *(manifest.manifest_path for manifest in made)]
        for location in written:
            folder, _, name = self._address(location).rpartition("/")
            open_store(folder).sync([name])

    def _address(self, location: str) -> str:
        if location.startswith("file:"):
            return "/" + location.removeprefix("file:").lstrip("/")
        if location.startswith("/") or is_bucket(location):
            return location.rstrip("/")
        raise TargetTaken(
            f"the Iceberg table {self._name} is at {location}: Weir writes files to folders and to places such as "
            "s3://bucket/lake"
        )

    @contextmanager
    def errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if isinstance(error, _OUTSIDE) or type(error).__module__.startswith("sqlalchemy."):
                raise StoreError(f"the Iceberg table {self._name}: {' '.join(str(error).split())}") from error
            raise


class IcebergCommitter(LakeCommitter):
    def __init__(self, table: str, catalog: str, properties: Mapping[str, str]) -> None:
        super().__init__(f"the Iceberg table {table}")
        self._iceberg = IcebergPlace(table, catalog, properties)

    def _refresh(self) -> bool:
        return self._iceberg.refresh()

    @property
    def _property(self) -> str:
        return f"{self._app}.epoch"

    def _last(self) -> int | None:
        said = self._iceberg.table.properties.get(self._property)
        return None if said is None else int(said)

    def _place(self) -> tuple[Store, str]:
        return self._iceberg.files()

    def _publish(self, epoch: int, files: Sequence[LakeFile]) -> None:
        """New columns, the files and the number come by one commit.

        Every commit makes a snapshot, one without files, too: that is what tells it that another one came before.
        """
        table = _without_retries(self._iceberg.table)
        summary = {"weir.job": self._app, "weir.epoch": str(epoch)}
        with self._iceberg.errors(), _conflicts(), table.transaction() as transaction:
            if not files:
                with transaction.update_snapshot(summary).fast_append():
                    pass
            else:
                columns = columns_of(files)
                if missing_columns(self._iceberg.columns, columns, self._target):
                    with transaction.update_schema() as update:
                        update.union_by_name(columns)
                folder = f"{table.location().rstrip('/')}/data"
                transaction.add_files([f"{folder}/{file.name}" for file in files], summary, check_duplicate_files=False)
            transaction.set_properties({self._property: str(epoch)})

    def _make_durable(self) -> None:
        if self._iceberg.refresh():
            self._iceberg.sync()


def _without_retries(table: Table) -> Table:
    """Changes what this process thinks of the table, not the table."""
    table.metadata = table.metadata.model_copy(update={"properties": {**table.metadata.properties, _RETRIES: "0"}})
    return table


@contextmanager
def _conflicts() -> Iterator[None]:
    try:
        yield
    except CommitFailedException as error:
        raise Conflict(str(error)) from error
