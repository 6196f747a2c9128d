"""`DeltaCommitter` publishes epochs in a Delta table, with the library `deltalake`.

An epoch's number is in the `txn` action of its commit. The library is told not to repeat a commit by itself after a
conflict: the number has to be read again before.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, DeltaProtocolError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from engine.connectors.lake.columns import missing_columns
from engine.connectors.lake.publishing import Conflict, LakeCommitter, LakeFile, columns_of
from engine.core.errors import StoreError, TargetTaken
from engine.core.ports import Store
from engine.store.bucket import ACCESS_KEY, SECRET_KEY, Endpoint, is_bucket

_PLAIN = {
    "appendOnly",
    "changeDataFeed",
    "checkConstraints",
    "columnMapping",
    "deletionVectors",
    "domainMetadata",
    "invariants",
    "timestampNtz",
    "v2Checkpoint",
    "vacuumProtocolCheck",
}
"""The features of tables whose rows may be plain files. Constraints and mapped columns are looked for by themselves."""


class DeltaFolder:
    """A Delta table at a path. The errors of the library become Weir's here."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._table: DeltaTable | None = None

    @property
    def table(self) -> DeltaTable:
        assert self._table is not None, "a table is read first"
        return self._table

    @property
    def columns(self) -> pa.Schema:
        return pa.schema(self.table.schema().to_arrow())

    @property
    def unfit(self) -> str:
        """Says why plain files can't be rows of the table; empty: they can."""
        meta, features = self.table.metadata(), set(self.table.protocol().writer_features or ())
        if meta.partition_columns:
            return f"is partitioned by {', '.join(meta.partition_columns)}"
        if meta.configuration.get("delta.columnMapping.mode", "none") != "none":
            return "maps the names of its columns"
        if any(name.startswith("delta.constraints.") for name in meta.configuration):
            return "has constraints, which files are not checked against"
        if odd := sorted(features - _PLAIN):
            return f"has the feature {odd[0]}"
        return ""

    def refresh(self) -> bool:
        """Reads the newest version of the table. Returns False if there is none."""
        with self.errors():
            try:
                if self._table is None:
                    self._table = DeltaTable(self._path, storage_options=_options(self._path))
                else:
                    self._table.update_incremental()
            except TableNotFoundError:
                self._table = None
                return False
            return True

    def create(self, columns: pa.Schema) -> None:
        """Creates the table, unless there is one."""
        with self.errors():
            DeltaTable.create(
                self._path, Schema.from_arrow(columns), mode="ignore", storage_options=_options(self._path)
            )

    @contextmanager
    def errors(self) -> Iterator[None]:
        try:
            yield
        except DeltaProtocolError as error:
            raise TargetTaken(
                f"the Delta table {self._path} has a feature that the library deltalake can't write: {_line(error)}"
            ) from error
        except (DeltaError, OSError) as error:
            raise StoreError(f"the Delta table {self._path}: {_line(error)}") from error


class DeltaCommitter(LakeCommitter):
    def __init__(self, path: str, store: Store, folder: str) -> None:
        super().__init__(f"the Delta table {path}")
        self._delta = DeltaFolder(path)
        self._store = store
        self._folder = folder

    def _refresh(self) -> bool:
        return self._delta.refresh()

    def _last(self) -> int | None:
        with self._delta.errors():
            return self._delta.table.transaction_version(self._app)

    def _place(self) -> tuple[Store, str]:
        return self._store, self._folder

    def _publish(self, epoch: int, files: Sequence[LakeFile]) -> None:
        """New columns come by a commit of their own, just before: it publishes no rows, and is harmless alone."""
        table = self._delta.table
        with self._delta.errors(), _conflicts():
            if files and (new := missing_columns(self._delta.columns, columns_of(files), self._target)):
                table.alter.add_columns(
                    Schema.from_arrow(pa.schema(new)).fields, commit_properties=CommitProperties(max_commit_retries=0)
                )
            once = CommitProperties(
                app_transactions=[Transaction(self._app, epoch)],
                custom_metadata={"weir.epoch": str(epoch)},
                max_commit_retries=0,
            )
            now_ms = time.time_ns() // 1_000_000
            adds: list[AddAction | RemoveAction] = [
                AddAction(f.name, f.size, {}, now_ms, True, f.payload["stats"]) for f in files
            ]
            table.create_write_transaction(adds, "append", table.schema(), commit_properties=once)

    def _make_durable(self) -> None:
        """The library does not sync what it writes to a file system."""
        version = self._delta.table.version()
        self._store.sync([f"{self._folder}/_delta_log/{version:020d}.json"])


@contextmanager
def _conflicts() -> Iterator[None]:
    try:
        yield
    except CommitFailedError as error:
        raise Conflict(_line(error)) from error


def _options(path: str) -> dict[str, str]:
    """Returns what the library needs for a bucket. It takes the credentials from the environment by itself."""
    if not is_bucket(path):
        return {}
    endpoint = Endpoint.from_environment()
    return {
        "aws_endpoint": str(endpoint),
        "aws_region": endpoint.region,
        "aws_allow_http": "false" if endpoint.secure else "true",
        "aws_access_key_id": os.environ.get(ACCESS_KEY, ""),
        "aws_secret_access_key": os.environ.get(SECRET_KEY, ""),
        "aws_conditional_put": "etag",
    }


def _line(error: BaseException) -> str:
    """Returns the first line of an error: the library adds a trace of its own calls."""
    return str(error).strip().split("\n")[0]
