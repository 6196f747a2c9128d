"""`TableSink` writes a Weir table: its subtasks write Parquet files, which the committer publishes by whole epochs.

Timestamps are stored in microseconds, Spark's unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from engine.connectors.table.committer import DEAD_LETTER, TableCommitter, file_name_of
from engine.connectors.table.dead_letters import DeadLetterCommitter
from engine.connectors.table.rows import encoded
from engine.core.durations import Duration, to_ms
from engine.core.gates import Gate
from engine.core.names import check_name
from engine.core.paths import JobPaths
from engine.core.ports import Store
from engine.core.sinks import Committer, GatheringWriter, Guarantee, Piece, Sink, SinkWriter, WriterContext
from engine.protocol.gate import OnFail
from engine.store.bucket import Bucket, is_bucket
from engine.store.failpoints import Point, failpoint
from engine.store.opening import address_of, open_store


class TableSink(Sink):
    """Writes a Weir table.

    `path`: within the job's part of the store ('pv', 'daily/pv'), or anywhere ('/lake/pv', 's3://bucket/lake/pv').
    The JobMaster folds small files into files of about `fold_mb` megabytes; None: it folds nothing. Files that were
    folded stay for `keep_replaced`: a query that began before and takes longer fails (docs/retention.md).
    `gate`: decides on the rows of each epoch before readers see them (docs/gates.md).
    """

    guarantee = Guarantee.EXACTLY_ONCE
    can_rewind = True
    gains_columns = True

    def __init__(
        self, path: str, *, fold_mb: int | None = 128, keep_replaced: Duration = "1 h", gate: Gate | None = None
    ) -> None:
        if not isinstance(path, str):
            raise ValueError(f"TableSink({path!r}): the path of a table is a text, as in TableSink('pv')")
        path = address_of(path) if is_bucket(path) else path
        within = Bucket.parse(path).prefix if is_bucket(path) else path.removeprefix("/")
        if any(part in ("", ".", "..") for part in within.split("/")):
            raise ValueError(
                f"{path!r} is not a valid table path: write one such as 'pv', 'daily/pv', '/lake/pv' or "
                "'s3://bucket/lake/pv'"
            )
        self.in_store = not path.startswith("/") and not is_bucket(path)
        if self.in_store:
            for part in path.split("/"):
                check_name("table", part)
        if fold_mb is not None and fold_mb < 1:
            raise ValueError(f"fold_mb={fold_mb} is no size of files: write 1 or more, or None to fold nothing")
        if gate is not None and not isinstance(gate, Gate):
            raise ValueError(f"gate={gate!r} is no gate: write Gate.sql('pv >= 0') or Gate.judge('MODULE:FUNCTION')")
        self.path = path
        self.gate = gate
        self._fold_bytes = None if fold_mb is None else fold_mb * 1_000_000
        self._keep_ms = to_ms(keep_replaced, "keep_replaced")

    @property
    def target(self) -> str:
        return f"the table {self.path!r}"

    @property
    def targets(self) -> Sequence[str]:
        dead_letters = self.gate is not None and self.gate.on_fail is OnFail.DEAD_LETTER
        return (self.target, f"the table {self.path + DEAD_LETTER!r}") if dead_letters else (self.target,)

    def writer(self, context: WriterContext) -> SinkWriter:
        return _TableWriter(context, *self.place(context.store, context.paths))

    def committer(self, store: Store, paths: JobPaths) -> Committer:
        of, table = self.place(store, paths)
        passed = self._committer(of, table, store, paths)
        if self.gate is None or self.gate.on_fail is not OnFail.DEAD_LETTER:
            return passed
        dead = f"{table}{DEAD_LETTER}"
        return DeadLetterCommitter(of, table, dead, passed, self._committer(of, dead, store, paths))

    def _committer(self, of: Store, table: str, home: Store, paths: JobPaths) -> TableCommitter:
        return TableCommitter(of, table, paths.job, home.uri(""), self._fold_bytes, self._keep_ms)

    def address(self, home: str) -> str:
        """Returns the address of the store that `place` opens, where `home` is that of the job's store."""
        return home if self.in_store else self.path.rpartition("/")[0] or "/"

    def place(self, store: Store, paths: JobPaths) -> tuple[Store, str]:
        """Returns the store of the table, and its path there."""
        if self.in_store:
            return store, paths.table(self.path)
        parent, _, name = self.path.rpartition("/")
        return open_store(parent or "/"), name


class _TableWriter(GatheringWriter):
    def __init__(self, context: WriterContext, store: Store, table: str) -> None:
        super().__init__()
        self._context = context
        self._store = store
        self._table = table

    def _piece(self, batches: list[pa.RecordBatch], number: int, size: int) -> Piece:
        context = self._context
        name = file_name_of(context.job_id, context.attempt, context.subtask, number)
        rows = pa.Table.from_batches(batches, context.schema)
        return _ParquetFile(self._store, f"{self._table}/{name}", rows, size)


@dataclass
class _ParquetFile(Piece):
    store: Store
    path: str
    rows: pa.Table
    size: int

    @failpoint(after=Point.AFTER_TABLE_FILE)
    def persist(self) -> dict[str, Any]:
        data = encoded(self.rows)
        self.store.write(self.path, data)
        self.store.sync([self.path])
        return {"path": self.path, "size": len(data), "rows": self.rows.num_rows}
