"""Tables as readers see them in a run, and what may be deleted of them and of the epoch log (`Checker` asks).

A reader that begins at any moment takes the files of Spark's log, and reads them for a while. So a file stays for
`keep_ms` after the log has stopped to name it. A person may rewind to each epoch that is retained, so the records from
which it is read stay, with their files.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq

from engine.connectors.table import epoch_rows, folder, planning
from engine.connectors.table import log as table_log
from engine.connectors.table.folds import level_of
from engine.jobmaster import housekeeping
from engine.snapshot import epoch_log
from engine.store.memory import MemoryStore
from tests.simulation.jobs import KEEP_MS
from tests.simulation.store import SimStore
from tests.simulation.world import Violation

KEPT_RECORDS = 8


@contextmanager
def small_bounds() -> Any:
    """Makes all bounds so small that a run of some epochs folds, and deletes."""
    with ExitStack() as stack:
        for target, name, value in (
            (table_log, "COMPACT_EVERY", 3),  # runs have few epochs; readers do not depend on the number
            (planning, "FAN", 2),
            (folder, "RECORDS_DUE", 6),
            (folder, "RECORD_DELAY_MS", 2.0),
            (epoch_log, "KEPT_RECORDS", KEPT_RECORDS),
            (housekeeping, "TRIM_EVERY", 2),
        ):
            stack.enter_context(patch.object(target, name, value))
        yield


class Tables:
    """The tables of one job, by the records of their logs that are durable."""

    def __init__(self, store: SimStore, job: str) -> None:
        self._store = store
        self._job = job
        self._left_ms: dict[str, float] = {}  # by path: when the log stopped to name the file
        self._seen: dict[str, list[str]] = {}
        self._rows: dict[str, Counter[tuple[Any, ...]]] = {}

    def numbers(self, table: str) -> dict[int, str]:
        prefix = f"{self._job}/tables/{table}/_spark_metadata/"
        names = [path.removeprefix(prefix) for path in self._store.durable if path.startswith(prefix)]
        return {int(n.removesuffix(".compact")): prefix + n for n in names if n[0].isdigit()}

    def view(self, table: str, number: int | None = None) -> list[str]:
        """Returns the paths of the files that a reader sees, or would have seen when this record was the last."""
        records = {n: path for n, path in self.numbers(table).items() if number is None or n <= number}
        first = max((n for n, path in records.items() if path.endswith(".compact")), default=0)
        files: list[str] = []
        for path in (path for n, path in sorted(records.items()) if n >= first):
            version, *lines = self._store.durable[path].decode().split("\n")
            if version != "v1":
                raise Violation("commit", f"{path} begins with {version!r}")
            files += [json.loads(line)["path"].removeprefix("mem:///") for line in lines]
        return files

    def on_record(self, table: str) -> list[str]:
        """Returns what readers see now, and notes which files they stopped to see."""
        now = self.view(table)
        for path in self._seen.get(table, ()):
            self._left_ms.setdefault(path, self._store.world.now_ms)
        for path in now:
            self._left_ms.pop(path, None)
            if path in self._store.cached or path not in self._store.durable:
                raise Violation("durable", f"readers of {table} miss {path}")
        self._seen[table] = now
        if any(level_of(path.rsplit("/", 1)[1]) for path in now):
            self._store.world.hits.add("table: readers see a folded file")
        return now

    def rows(self, paths: Iterable[str]) -> Counter[tuple[Any, ...]]:
        total: Counter[tuple[Any, ...]] = Counter()
        for path in paths:
            if path not in self._rows:
                data = self._store.content(path)
                assert data is not None, path
                table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
                self._rows[path] = Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))
            total += self._rows[path]
        return total

    # --- what may be deleted ---

    def check_deleted(self, path: str, kept_epochs: list[int]) -> None:
        """Raises a Violation if a reader, or a rewind to one of these epochs, needs this file or record of a table."""
        table, name = path.split("/")[2], path.rsplit("/", 1)[1]
        if "/_folds/" in path:
            return
        if "/_spark_metadata/" in path:
            self._check_record(table, path, name, kept_epochs)
            return
        if path in self._seen.get(table, ()):
            raise Violation("durable", f"{path} was published and is deleted")
        left_ms = self._left_ms.get(path)
        if left_ms is None:
            raise Violation("durable", f"{path} was published, no reader has seen it yet, and it is deleted")
        if self._store.world.now_ms - left_ms < KEEP_MS:
            raise Violation("reader", f"{path} is deleted, and readers saw it until {left_ms:.1f} ms")
        newest = max(self.numbers(table), default=-1)
        for epoch in kept_epochs:
            if epoch <= newest + 1 and path in self.view(table, epoch - 1):
                raise Violation("retained", f"{path} is deleted, and a rewind to epoch {epoch} needs it")
        self._store.world.hits.add("table: a replaced file is deleted")

    def _check_record(self, table: str, path: str, name: str, kept_epochs: list[int]) -> None:
        number = int(name.strip(".").split(".")[0])
        compacts = sorted(n for n, of in self.numbers(table).items() if of.endswith(".compact"))
        oldest = min((table_log.base_of(epoch) for epoch in kept_epochs), default=number + 1)
        if number >= min([oldest, *compacts[-2:-1]]):
            raise Violation("durable", f"{path} is deleted; readers begin at {compacts[-2:]}, rewinds at {oldest}")
        self._store.world.hits.add("table: an old record is deleted")

    # --- the end ---

    def check_epochs(self, table: str, due: dict[int, Counter[tuple[Any, ...]]]) -> None:
        """Checks that an audit finds the rows of each epoch, in folded files too."""
        store = MemoryStore()
        store.files = {**self._store.durable, **self._store.unnamed}
        found: dict[int, Counter[tuple[Any, ...]]] = {}
        for part in epoch_rows(store, f"{self._job}/tables/{table}"):
            data = store.files[f"{self._job}/tables/{table}/{part.file}"]
            rows = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
            rows = rows.slice(part.first, part.rows)
            found.setdefault(part.epoch, Counter()).update(zip(*(c.to_pylist() for c in rows.columns), strict=True))
        due = {epoch: rows for epoch, rows in due.items() if rows}
        if found != due:
            odd = sorted(epoch for epoch in found.keys() | due.keys() if found.get(epoch) != due.get(epoch))
            raise Violation("epoch_rows", f"an audit of {table} finds other rows of the epochs {odd}")
