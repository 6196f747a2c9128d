"""`PostgresCommitter` writes an epoch's rows in one transaction, together with the epoch's number: the marker.

Invariant: a row of an epoch is in the table if and only if the marker says so, since both come by one transaction. Two
JobMasters that commit the same epoch meet at the marker: the second one waits, and then finds the epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from engine.connectors.postgres import statements
from engine.connectors.postgres.session import connected
from engine.core.errors import StoreError, TargetTaken
from engine.core.ports import Store
from engine.core.sinks import Committer
from engine.protocol.checkpoint import CommitPermit
from engine.protocol.ids import AttemptId
from engine.protocol.manifest import Committable

CHUNK = 1 << 20


class PostgresCommitter(Committer):
    """`folder`: where the writers leave the rows, in the job's store. `key`: rows replace those with the same key."""

    def __init__(self, dsn: str, table: str, key: Sequence[str], target: str, store: Store, folder: str) -> None:
        self._dsn = dsn
        self._table = table
        self._key = key
        self._target = target
        self._store = store
        self._folder = folder
        self._job_id: str | None = None

    @property
    def _name(self) -> str:
        assert self._job_id is not None, "a table is claimed before anything is committed to it"
        return f"weir {self._job_id} {self._table}"[:63]  # the server cuts longer names

    def claim(self, job_id: str, next_epoch: int) -> None:
        """Ends the sessions of JobMasters that were replaced: one that sleeps would hold the marker for ever."""
        self._job_id = job_id
        with connected(self._dsn, self._target, self._name) as connection:
            connection.execute(statements.END_OTHERS, (self._name,))
            self._make_marker(connection)
            newest = self._newest(connection)
        if newest is not None and newest >= next_epoch:
            raise TargetTaken(
                f"{self._target} has epoch {newest} of this job, whose log ends with epoch {next_epoch - 1}: an older "
                "copy of the job's folder was brought back. Nothing was changed in the table. Bring the table back to "
                "the same time, too, or let another job go on from here: --fork NAME"
            )

    @staticmethod
    def _make_marker(connection: psycopg.Connection[Any]) -> None:
        """Looks first: a role that may not create tables can use one that was made for it."""
        if connection.execute("SELECT to_regclass('weir_epochs')").fetchone() == (None,):
            connection.execute("SELECT pg_advisory_xact_lock(hashtext('weir_epochs'))")  # two jobs may begin at once
            connection.execute(statements.EPOCHS)

    def _newest(self, connection: psycopg.Connection[Any]) -> int | None:
        found = connection.execute(statements.NEWEST, (self._job_id, self._table)).fetchone()
        return None if found is None else int(found[0])

    def check(self, committables: Sequence[Committable]) -> None:
        paths = [self._path(one) for one in committables]
        for path, one, found in zip(paths, committables, self._store.sizes(paths), strict=True):
            if found != one.payload["size"]:
                there = "is gone" if found is None else f"has {found} bytes, not {one.payload['size']}"
                raise StoreError(f"{self._store.uri(path)} {there}: was the store away when it was written?")

    def commit(self, permit: CommitPermit, committables: Sequence[Committable]) -> None:
        """Writes the rows and the marker. An epoch without rows leaves no trace in the database."""
        if not committables:
            return
        with connected(self._dsn, self._target, self._name) as connection:
            if self._mark(connection, permit.epoch):
                self._write(connection, committables)
        for one in committables:
            self._store.delete(self._path(one))

    def _mark(self, connection: psycopg.Connection[Any], epoch: int) -> bool:
        """Returns False if the epoch is in the table."""
        marked = connection.execute(statements.MARK, (self._job_id, self._table, epoch))
        return marked.fetchone() is not None

    def _write(self, connection: psycopg.Connection[Any], committables: Sequence[Committable]) -> None:
        table = statements.table_name(self._table)
        columns = committables[0].payload["columns"]
        into = table
        if self._key:
            into = statements.STAGED
            for statement in statements.stage(table, columns):
                connection.execute(statement)
        with connection.cursor() as cursor, cursor.copy(statements.copy(into, columns)) as copy:
            for one in committables:
                rows = memoryview(self._rows(one))
                for begin in range(0, len(rows), CHUNK):
                    copy.write(rows[begin : begin + CHUNK])
        if self._key:
            connection.execute(statements.upsert(table, columns, self._key))

    def _rows(self, one: Committable) -> bytes:
        try:
            return self._store.read(self._path(one))
        except FileNotFoundError as error:
            raise StoreError(
                f"{self._store.uri(self._path(one))} is gone, and its epoch is published: bring it back"
            ) from error

    def _path(self, one: Committable) -> str:
        return f"{self._folder}/{one.payload['name']}"

    def pass_over(self, permit: CommitPermit) -> None:
        """Marks the epoch: a JobMaster that was replaced can't write it later."""
        with connected(self._dsn, self._target, self._name) as connection:
            self._mark(connection, permit.epoch)

    def abort_unknown(self, permit: CommitPermit | None, attempt: AttemptId) -> None:
        """Deletes the rows of earlier attempts: those of the newest epoch are in the table, and no other comes."""
        for path in self._store.list(self._folder):
            _, generation, number, *_ = path.rsplit("/", 1)[-1].split("-")
            if AttemptId(int(generation), int(number)) < attempt:
                self._store.delete(path)
