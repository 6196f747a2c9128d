"""`PostgresSink` writes to a table of PostgreSQL, each row once; `AutoCommitPostgresSink` writes at least once.

The subtasks leave the rows in the job's store, as COPY reads them. The JobMaster sends those of an epoch to the server.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from engine.connectors.extras import needs_extra
from engine.connectors.postgres.rows import check_columns, encoded
from engine.connectors.table.committer import file_name_of
from engine.core.paths import JobPaths
from engine.core.ports import Store
from engine.core.sinks import (
    Committer,
    GatheringWriter,
    Guarantee,
    NothingToCommit,
    Piece,
    Sink,
    SinkWriter,
    WriterContext,
)

Persist = Callable[[Sequence[pa.RecordBatch], int], dict[str, Any]]
"""Makes rows durable, or writes them; the int is the number of the piece."""


class PostgresSink(Sink):
    """Appends rows to a table of PostgreSQL, or replaces those with the same `key`; each epoch in one transaction.

    `dsn`: 'host=db.example dbname=orders' or 'postgresql://db.example/orders'. Leave the password out: it is taken from
    PGPASSWORD or ~/.pgpass. `table`: 'orders' or 'sales.orders'; it has to exist. `key`: the columns of its primary key
    or of another unique index; of several rows with one key in an epoch the last one of a subtask counts.
    """

    guarantee = Guarantee.EXACTLY_ONCE

    def __init__(self, dsn: str, table: str, *, key: str | Sequence[str] = ()) -> None:
        needs_extra("psycopg", "postgres", type(self).__name__)
        if not isinstance(table, str) or not 1 <= len(parts := table.split(".")) <= 2 or not all(parts):
            raise ValueError(f"{table!r} is no name of a table: write one such as 'orders' or 'sales.orders'")
        self._dsn = dsn
        self.table = table
        self._key = [key] if isinstance(key, str) else list(key)

    @property
    def target(self) -> str:
        from engine.connectors.postgres.session import place_of

        return f"the Postgres table {self.table} of {place_of(self._dsn)}"

    def writer(self, context: WriterContext) -> SinkWriter:
        folder = self._outbox(context.paths)
        target = _Target(self._dsn, self.table, self._key, self.target, context.schema)

        def persist(batches: Sequence[pa.RecordBatch], number: int) -> dict[str, Any]:
            target.check()
            rows = encoded(batches, context.schema)
            name = (
                f"{file_name_of(context.job_id, context.attempt, context.subtask, number).removesuffix('.parquet')}.csv"
            )
            context.store.write(f"{folder}/{name}", rows)
            context.store.sync([f"{folder}/{name}"])
            return {"name": name, "size": len(rows), "columns": context.schema.names}

        return _PostgresWriter(persist)

    def committer(self, store: Store, paths: JobPaths) -> Committer:
        from engine.connectors.postgres.committer import PostgresCommitter

        return PostgresCommitter(self._dsn, self.table, self._key, self.target, store, self._outbox(paths))

    def _outbox(self, paths: JobPaths) -> str:
        """Two tables of one name in two databases have two folders, whatever their addresses are."""
        digest = hashlib.sha256(self.target.encode()).hexdigest()[:12]
        return paths.outbox(f"postgres-{self.table}-{digest}")


class AutoCommitPostgresSink(PostgresSink):
    """Appends rows to a table of PostgreSQL when a barrier comes, without waiting for the checkpoint to complete.

    Readers see rows sooner. After a restart the rows since the last checkpoint are in the table twice.
    """

    guarantee = Guarantee.AT_LEAST_ONCE

    def __init__(self, dsn: str, table: str) -> None:
        super().__init__(dsn, table)

    def writer(self, context: WriterContext) -> SinkWriter:
        target = _Target(self._dsn, self.table, (), self.target, context.schema)

        def persist(batches: Sequence[pa.RecordBatch], number: int) -> dict[str, Any]:
            target.check()
            target.append(encoded(batches, context.schema))
            return {}

        return _PostgresWriter(persist)

    def committer(self, store: Store, paths: JobPaths) -> Committer:
        return NothingToCommit()


@dataclass
class _Target:
    """The table as a subtask sees it. It is looked at once, beside the task thread, before the first rows."""

    dsn: str
    table: str
    key: Sequence[str]
    target: str
    schema: pa.Schema
    _checked: bool = False

    def check(self) -> None:
        """An epoch that is published must be committed: so rows that do not fit end the job before."""
        from engine.connectors.postgres import statements
        from engine.connectors.postgres.session import connected

        if self._checked:
            return
        with connected(self.dsn, self.target, "weir slot") as connection:
            name = statements.table_name(self.table).as_string(connection)
            found = connection.execute(statements.COLUMNS, (name,)).fetchall()
        check_columns(self.schema, {str(column): str(kind) for column, kind in found}, self.key, self.target)
        self._checked = True

    def append(self, rows: bytes) -> None:
        from engine.connectors.postgres import statements
        from engine.connectors.postgres.session import connected

        copying = statements.copy(statements.table_name(self.table), self.schema.names)
        with (
            connected(self.dsn, self.target, "weir slot") as connection,
            connection.cursor() as cursor,
            cursor.copy(copying) as copy,
        ):
            copy.write(rows)


class _PostgresWriter(GatheringWriter):
    def __init__(self, persist: Persist) -> None:
        super().__init__()
        self._persist = persist

    def _piece(self, batches: list[pa.RecordBatch], number: int, size: int) -> Piece:
        return _Rows(batches, self._persist, number, size)


@dataclass
class _Rows(Piece):
    batches: list[pa.RecordBatch]
    write: Persist
    number: int
    size: int

    def persist(self) -> dict[str, Any]:
        return self.write(self.batches, self.number)
