"""A year of a job in virtual time: everything that it keeps stays within the bounds of docs/retention.md.

Topology: a table with one small file per epoch, and the epoch log of its job; one epoch an hour, 8,760 of them, with
the real committer, folder and log, on a store in memory.
Faults: the JobMaster is replaced every tenth day.
Checks: after each month the number of files, records and bytes, and the store calls of a commit, are those of the first
months, except one small record per JobMaster; at the end an audit finds every row, in its epoch.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from engine.core.paths import JobPaths
from engine.protocol.epoch_records import LogRecord, epoch_after, fence_after
from engine.protocol.manifest import ManifestRef
from engine.snapshot.epoch_log import KEPT_RECORDS, EpochLog
from tests.connectors.test_table_folding import HOUR_MS, TABLE, Table, data_files, records
from tests.fakes import MemoryStore

DAYS = 365
PATHS = JobPaths("job")


class Counting(MemoryStore):
    """Counts the calls, and the bytes that were read and created."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.moved = 0

    def read(self, path: str) -> bytes:
        self.calls += 1
        data = super().read(path)
        self.moved += len(data)
        return data

    def create(self, path: str, data: bytes):  # type: ignore[no-untyped-def]
        self.calls += 1
        self.moved += len(data)
        return super().create(path, data)


@dataclass(frozen=True)
class Month:
    visible: int
    files: int
    records: int
    record_bytes: int
    folds: int
    epoch_records: int
    calls: int
    """The calls of the store in the slowest commit of the last ten."""
    moved: int


class Year:
    def __init__(self) -> None:
        self.store = Counting()
        self.table = Table(self.store, fold_bytes=128_000_000)
        self.log = EpochLog(self.store, PATHS)
        self.record: LogRecord | None = None
        self.restart()

    def restart(self) -> None:
        self.record = fence_after(self.record, f"owner{self.table.generation}")
        self.log.append(self.record)

    def day(self) -> tuple[int, int]:
        """Lives a day; returns the most calls and bytes of its commits."""
        most = (0, 0)
        for _ in range(24):
            assert self.record is not None
            epoch = self.table.epoch + 1
            self.record = epoch_after(self.record, ManifestRef("m", "00", epoch, epoch))
            self.log.append(self.record)
            calls, moved = self.store.calls, self.store.moved
            self.table.commit()
            most = max(most, (self.store.calls - calls, self.store.moved - moved))
            self.table.tidy()
            self.table.now_ms += HOUR_MS
        self.log.trim(self.table.epoch - 2)
        return most

    def month(self, most: tuple[int, int]) -> Month:
        found = records(self.store)
        return Month(
            len(self.table.spark_files()),
            len(data_files(self.store)),
            len(found),
            sum(len(self.store.files[path]) for path in found),
            len(self.store.list(f"{TABLE}/_folds")),
            len(self.store.list("job/log")),
            *most,
        )


@pytest.mark.promise("C4")
def test_what_a_job_keeps_is_bounded_for_a_year() -> None:
    year, months = Year(), []
    for day in range(1, DAYS + 1):
        most = year.day()
        if day % 10 == 0:
            year.table.restart()
            year.restart()
        if day % 30 == 5:
            months.append(year.month(most))
    year.table.check()
    print(*months, sep="\n")
    settled, last = months[3], months[-1]
    jobmasters = year.table.generation
    assert all(month.visible <= 32 * 4 and month.files <= month.visible + 80 for month in months)
    assert last.records <= settled.records + 20 and last.folds <= settled.folds + 40
    assert last.record_bytes <= 2 * settled.record_bytes
    assert last.epoch_records <= KEPT_RECORDS + 30 + jobmasters
    assert last.calls <= settled.calls + 10 and last.moved <= 2 * settled.moved
