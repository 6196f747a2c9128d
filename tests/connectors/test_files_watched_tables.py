"""Jobs that watch a table which another job writes and folds.

Topology: rows → table (small folds, replaced files are deleted soon) → a job that watches the table → table. Both jobs
run in one process with clocks of their own; the table is in a real folder.
Faults: slots of the watching job die, it is stopped and goes on at another parallelism, it is too late.
Checks: each row arrives exactly once, or the job ends with an error that names the choice.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.api import FixedDelay, StreamEnvironment
from engine.connectors.files import ParquetSource
from engine.connectors.files.discovery import owner
from engine.connectors.files.listing import FileError, FileSplit, Location
from engine.connectors.table import TableSink, folder, planning, published, read_table
from engine.connectors.table.folds import FoldLog, level_of
from engine.core.errors import fault_of
from engine.core.sources import Discovery
from engine.protocol import ledger
from engine.protocol.failures import Fault
from engine.protocol.ids import AttemptId
from engine.store.directory import DirectoryStore
from engine.testing import Checkpoint, JobFailed, ListSource, LocalRun, Wait, run
from tests.connectors.reading import Reading
from tests.connectors.test_files_jobs import Dying
from tests.connectors.test_table_folding import HOUR_MS, SCHEMA, TABLE, Table, permit
from tests.fakes import ATTEMPT, FakeClock, FakeOffload, MemoryStore, source_context

TOO_LATE = r"behind, for longer than that\. Write the table with a longer TableSink\(…, keep_replaced=…\)"


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folds of few files, and records that go soon. No power fails here, so nothing is synced."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(planning, "FAN", 4)
    monkeypatch.setattr(folder, "RECORDS_DUE", 10)
    monkeypatch.setattr(folder, "RECORD_DELAY_MS", 0.0)


# --- two jobs ---


def writing(table: Path, epochs: int, keep_replaced: str) -> LocalRun:
    """A job that writes two rows in each epoch."""

    def job(env: StreamEnvironment) -> None:
        items: list[Any] = []
        for n in range(epochs):
            items += [{"n": 2 * n}, {"n": 2 * n + 1}, Checkpoint(), Wait("10 ms")]
        rows = env.from_source(ListSource(items), "n long", uid="rows")
        rows.sink_to(TableSink(str(table), fold_mb=1, keep_replaced=keep_replaced), uid="out")

    return LocalRun(job, 1, {})


def watching(table: Path, dying: Dying | None = None) -> Callable[[StreamEnvironment], None]:
    def job(env: StreamEnvironment) -> None:
        env.enable_checkpointing("7 ms")
        env.set_restart_strategy(FixedDelay(attempts=10, delay_ms=1))
        rows = env.from_source(ParquetSource(str(table), watch="20 ms"), "n long", uid="rows")
        rows.map_batches(dying or Dying()).sink_to(TableSink("out", fold_mb=None), uid="out")

    return job


def arrived(job: LocalRun) -> list[int]:
    try:
        return [row["n"] for row in job.rows("out")]
    except FileNotFoundError:
        return []


def reads_all(job: LocalRun, table: Path) -> None:
    """Runs a watching job until it has read what is published, and some looks longer."""
    rows = read_table(DirectoryStore(table.parent), table.name).column("n").to_pylist()
    job.run(until=lambda: job.master.ledger.get(ledger.sink_rows("out"), 0) >= len(rows))
    end_ms = job.now_ms() + 50
    job.run(until=lambda: job.now_ms() >= end_ms)
    assert len(set(rows)) == len(rows) and sorted(arrived(job)) == sorted(rows)


def files(table: Path) -> list[str]:
    return published(DirectoryStore(table.parent), table.name) or []


@pytest.mark.promise("G1", "A1", "D7")
def test_a_folded_table_is_watched_exactly_once_through_crashes_and_at_another_parallelism(tmp_path: Path) -> None:
    table = tmp_path / "pv"
    writer = writing(table, 260, "300 ms")
    writer.run(until=lambda: writer.epochs >= 5)
    reader = LocalRun(watching(table, Dying(4, 9, 31)), 3, {})
    reads_all(reader, table)
    for parallelism in (2, 1, 3):
        for _ in range(4):
            writer.run(until=lambda epoch=writer.epochs + 17: writer.epochs >= epoch)  # type: ignore[misc]
            reads_all(reader, table)
        reader = LocalRun(watching(table), parallelism, {}, after=reader)
    writer.run(until=lambda: writer.epochs >= 240)
    reads_all(reader, table)
    assert max(map(level_of, files(table))) >= 2, "folded files were folded"
    assert len(list(table.glob("*.parquet"))) < 240, "replaced files were deleted"


@pytest.mark.promise("G1")
def test_a_new_job_reads_a_table_whose_first_files_are_gone_and_goes_on(tmp_path: Path) -> None:
    table = tmp_path / "pv"
    writer = writing(table, 130, "50 ms")
    writer.run(until=lambda: writer.epochs >= 90)
    assert len(list(table.glob("*.parquet"))) < 60
    reader = LocalRun(watching(table, Dying(2)), 2, {})
    reads_all(reader, table)
    writer.run(until=lambda: writer.epochs >= 102)
    reads_all(reader, table)
    assert reader.restarts == 1


@pytest.mark.promise("G1")
def test_a_job_that_was_stopped_for_too_long_fails_and_says_what_to_do(tmp_path: Path) -> None:
    table = tmp_path / "pv"
    writer = writing(table, 130, "50 ms")
    writer.run(until=lambda: writer.epochs >= 15)
    reader = LocalRun(watching(table), 2, {})
    reads_all(reader, table)
    writer.run(until=lambda: writer.epochs >= 120)
    with pytest.raises(JobFailed, match=TOO_LATE):
        run(watching(table), parallelism=2, after=reader)


@pytest.mark.promise("G1")
def test_a_table_that_is_read_once_shows_each_row_once_although_replaced_files_are_there(tmp_path: Path) -> None:
    table = tmp_path / "pv"
    writer = writing(table, 40, "1 h")
    writer.run()
    assert any(map(level_of, files(table))) and len(list(table.glob("*.parquet"))) > 40

    def job(env: StreamEnvironment) -> None:
        rows = env.from_source(ParquetSource(str(table)), "n long", uid="rows")
        rows.sink_to(TableSink("out"), uid="out")

    assert sorted(arrived(run(job, parallelism=2))) == list(range(80))


# --- single looks ---


class Watchers:
    """Subtasks of one attempt that watch a table; each looks when it is told to."""

    def __init__(
        self,
        folder: Path,
        parallelism: int,
        store: MemoryStore,
        attempt: AttemptId = ATTEMPT,
        parts: list[tuple[list[str], Any]] | None = None,
    ) -> None:
        self.source = ParquetSource(str(folder), watch=10)
        self.clock = FakeClock()
        self.offloads = [FakeOffload() for _ in range(parallelism)]
        self.taken: list[list[str]] = [[] for _ in range(parallelism)]
        self.discoveries: list[Discovery] = []
        known = sorted(split for splits, _ in parts or [] for split in splits)
        for subtask, offload in enumerate(self.offloads):
            context = source_context(
                SCHEMA, self.clock, offload=offload, store=store, subtask=subtask, parallelism=parallelism
            )
            states = [state for _, state in parts or []]
            context = replace(context, attempt=attempt, restored=parts is not None, discovered=states)
            self.discoveries.append(self.source.discovery(context, known))
            self.taken[subtask] += self.discoveries[subtask].poll()

    def look(self, subtask: int) -> list[str]:
        """Returns the new files that a subtask finds."""
        self.clock.pass_ms(10)
        found = [*self.discoveries[subtask].poll()]
        self.offloads[subtask].run()
        found += self.discoveries[subtask].poll()
        self.taken[subtask] += found
        return [FileSplit.of(split).path for split in found]

    def part(self, subtask: int) -> tuple[list[str], Any]:
        assert self.discoveries[subtask].ready
        return self.taken[subtask], self.discoveries[subtask].state

    def parts(self) -> list[tuple[list[str], Any]]:
        return [self.part(subtask) for subtask in range(len(self.discoveries))]


def made(tmp_path: Path) -> tuple[Table, Path]:
    return Table(DirectoryStore(tmp_path), per_epoch=2), tmp_path / TABLE  # type: ignore[arg-type]


def fold(table: Table) -> None:
    """Folds what there is, and shows it."""
    table.commit(10 - table.epoch % 10)
    assert table.tidy().folded
    table.commit(10)


def let_go(table: Table) -> None:
    """Deletes what was folded, and the fold that tells of it."""
    for _ in range(6):
        table.commit(10)
        table.tidy()
        table.now_ms += HOUR_MS


@pytest.mark.promise("G1")
def test_the_first_look_of_a_job_is_the_same_for_all_subtasks_whenever_they_look(tmp_path: Path) -> None:
    table, path = made(tmp_path)
    table.commit(12)
    watchers = Watchers(path, 3, MemoryStore())
    first = watchers.look(0)
    fold(table)
    let_go(table)
    second = watchers.look(1)
    assert first and second and all(level_of(name) == 0 for name in (*first, *second))
    assert all(owner(name, 3) == 0 for name in first) and all(owner(name, 3) == 1 for name in second)


@pytest.mark.promise("G1")
def test_an_attempt_without_an_epoch_takes_a_first_look_of_its_own_and_deletes_the_last_one(tmp_path: Path) -> None:
    table, path = made(tmp_path)
    table.commit(12)
    store = MemoryStore()
    assert len(Watchers(path, 1, store).look(0)) == 24
    fold(table)
    assert any(map(level_of, Watchers(path, 1, store, AttemptId(1, 2)).look(0)))
    assert list(store.files) == ["job/sources/src.look-1.2.json"]


@pytest.mark.promise("G1", "D7")
def test_a_folded_file_counts_as_read_only_if_all_subtasks_of_the_snapshot_had_seen_what_is_in_it(
    tmp_path: Path,
) -> None:
    """One subtask has seen the fold, the other none of its files: what this one should have read is gone."""
    table, path = made(tmp_path)
    table.commit()
    watchers = Watchers(path, 2, MemoryStore())
    for subtask in (0, 1):
        watchers.look(subtask)
    late = watchers.part(1)[0][:], watchers.part(1)[1]
    fold(table)
    assert len(watchers.look(0)) + len(watchers.look(1)) == 2 * (table.epoch - 1)
    (folded,) = filter(level_of, files(path))
    assert [state for _, state in watchers.parts()] == [[folded], [folded]]
    both, one = watchers.parts(), [watchers.part(0), late]
    let_go(table)
    assert folded not in FoldLog(table.store, TABLE).replaced()
    with pytest.raises(FileError, match=TOO_LATE) as error:
        Watchers(path, 1, MemoryStore(), parts=one).look(0)
    assert fault_of(error.value) is Fault.JOB
    table.restart()
    seen = {FileSplit.of(split).path for splits, _ in both for split in splits}
    with pytest.raises(FileError, match=TOO_LATE):  # of files that were written, and deleted, since
        Watchers(path, 3, MemoryStore(), parts=both).look(0)
    assert len(seen) == 2 * 20


@pytest.mark.promise("G1")
def test_a_file_that_is_folded_and_deleted_before_it_is_read_is_an_error_that_names_the_choice(tmp_path: Path) -> None:
    table, path = made(tmp_path)
    table.commit(12)
    reading = Reading(ParquetSource(str(path)), SCHEMA)
    fold(table)
    assert reading.all(reading.splits[0]), "a replaced file stays for a while"
    let_go(table)
    with pytest.raises(FileError, match=TOO_LATE) as error:
        reading.all(reading.splits[0])
    assert fault_of(error.value) is Fault.JOB


@pytest.mark.promise("G1", "H8")
def test_a_published_file_that_is_missing_is_never_passed_over(tmp_path: Path) -> None:
    table, path = made(tmp_path)
    table.commit(2)
    (path / files(path)[1]).unlink()
    with pytest.raises(FileError, match=r"is missing, but the table names it: put it back") as error:
        Location(str(path)).files()
    assert fault_of(error.value) is Fault.OUTSIDE


@pytest.mark.promise("G1", "H8")
def test_a_watched_table_whose_log_is_away_is_no_folder_of_files(tmp_path: Path) -> None:
    table, path = made(tmp_path)
    table.commit(2)
    watchers = Watchers(path, 1, MemoryStore())
    watchers.look(0)
    for again in (watchers, Watchers(path, 1, MemoryStore(), parts=watchers.parts())):
        log = (path / "_spark_metadata").rename(path / "_away")
        with pytest.raises(FileError, match=r"\(_spark_metadata\) is away") as error:
            again.look(0)
        assert fault_of(error.value) is Fault.OUTSIDE
        log.rename(path / "_spark_metadata")


@pytest.mark.promise("G1")
def test_what_a_first_look_takes_in_folded_files_is_not_read_again_when_a_rewind_shows_the_small_ones(
    tmp_path: Path,
) -> None:
    table, path = made(tmp_path)
    table.commit(12)
    small = set(files(path))
    fold(table)
    watchers = Watchers(path, 2, MemoryStore())
    first = watchers.look(0) + watchers.look(1)
    assert any(map(level_of, first))
    restored = Watchers(path, 2, MemoryStore(), parts=watchers.parts())
    epoch = table.committer.rewind_epoch(table.epoch + 1)
    table.committer.prepare_rewind(19, table.generation)
    table.committer.rewind(permit(epoch), 19)
    assert small.issubset(files(path))
    assert [subtasks.look(subtask) for subtasks in (watchers, restored) for subtask in (0, 1)] == [[]] * 4
