"""Folding a table: small files become larger ones, readers see each row once at every moment, old records go.

The tables here have one or more small files per epoch. `Table` commits and tidies as a JobMaster does, on a store in
memory that can stop at any write, as the process does that is killed there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from engine.connectors.table import EpochRows, TableCommitter, TableSink, epoch_rows, folder, planning, read_table
from engine.connectors.table import log as table_log
from engine.connectors.table.folds import Fold, FoldLog, folded_name, level_of, maker_of, orphans
from engine.connectors.table.planning import Visible, choose
from engine.core.errors import StoreError, TargetTaken
from engine.core.paths import JobPaths
from engine.core.sinks import Tidied, WriterContext
from engine.protocol.checkpoint import CommitPermit
from engine.protocol.epoch_records import Created
from engine.protocol.ids import AttemptId
from engine.protocol.manifest import Committable, ManifestRef
from tests.fakes import JOB_ID, MemoryStore
from tests.spark_log import spark_reads
from tests.store.flickering import Flickering

TABLE = "job/tables/pv"
SCHEMA = pa.schema([("a", pa.int64()), ("ts", pa.timestamp("us"))])
HOUR_MS = 3_600_000.0
RETAINED = 3


class Killed(BaseException):
    """The process is killed at this call of the store."""


class Stopping(MemoryStore):
    """A store that kills its process at the nth change while it is `armed`; before the change, or right after it."""

    armed = False
    after = False
    left = 0

    def __init__(self) -> None:
        super().__init__()
        self.unsynced: set[str] = set()

    @contextmanager
    def _change(self) -> Iterator[None]:
        self.left -= self.armed
        kill = self.armed and self.left == 0
        if kill and not self.after:
            raise Killed
        yield
        if kill:
            raise Killed

    def write(self, path: str, data: bytes) -> None:
        with self._change():
            super().write(path, data)
            self.unsynced.add(path)

    def sync(self, paths: list[str]) -> None:
        with self._change():
            super().sync(paths)
            self.unsynced -= set(paths)

    def create(self, path: str, data: bytes) -> Created:
        with self._change():
            return super().create(path, data)

    def delete(self, path: str) -> None:
        with self._change():
            super().delete(path)

    def crash(self) -> None:
        """Forgets what was not synced."""
        for path in self.unsynced:
            self.files.pop(path, None)
        self.unsynced.clear()
        self.armed = False


class Swapped(MemoryStore):
    """A store that is away for the first writes of folded files, and back after their sync."""

    elsewhere: dict[str, bytes] | None = None
    goes = False

    def write(self, path: str, data: bytes) -> None:
        if self.goes and self.elsewhere is None:
            self.files, self.elsewhere = {}, self.files
        super().write(path, data)

    def sync(self, paths: list[str]) -> None:
        super().sync(paths)
        if self.elsewhere is not None:
            self.files, self.elsewhere, self.goes = self.elsewhere, None, False


class Table:
    """A table with `per_epoch` files of one row each in every epoch; the value of a row is its number."""

    def __init__(self, store: MemoryStore | None = None, per_epoch: int = 1, fold_bytes: int = 10_000_000) -> None:
        self.store = store or MemoryStore()
        self.epoch = 0
        self.generation = 0
        self.now_ms = 0.0
        self.due: dict[int, list[int]] = {}
        self._per_epoch = per_epoch
        self._fold_bytes = fold_bytes
        self._rows = 0
        self.restart()

    def restart(self) -> None:
        """Another JobMaster takes over."""
        self.generation += 1
        self.committer = TableCommitter(self.store, TABLE, "job", "", self._fold_bytes, HOUR_MS)
        self.committer.claim(JOB_ID, self.epoch + 1)

    def commit(self, epochs: int = 1, *, columns: pa.Schema = SCHEMA) -> None:
        for _ in range(epochs):
            committables = self.committed_next(columns)
            self.epoch += 1
            self.committer.commit(permit(self.epoch), committables)

    def committed_next(self, columns: pa.Schema = SCHEMA) -> list[Committable]:
        """Writes the files of the next epoch, and returns what its commit needs."""
        attempt = AttemptId(self.generation, self.epoch + 1)
        committables = []
        for subtask in range(self._per_epoch):
            self._rows += 1
            self.due.setdefault(self.epoch + 1, []).append(self._rows)
            committables.append(self._file(attempt, subtask, self._rows, columns))
        return committables

    def _file(self, attempt: AttemptId, subtask: int, value: int, columns: pa.Schema) -> Committable:
        context = WriterContext(subtask, attempt, self.store, JobPaths("job"), columns, JOB_ID)
        writer = TableSink("pv").writer(context)
        writer.begin()
        writer.write(pa.record_batch([pa.array([value]).cast(field.type) for field in columns], schema=columns))
        piece = writer.pre_commit()
        assert piece is not None
        return Committable("out", subtask, attempt, attempt.attempt, 1, piece.persist())

    def tidy(self) -> Tidied:
        kept_from = max(1, self.epoch - RETAINED + 1)
        return self.committer.tidy(self.generation, self.epoch, kept_from, self.now_ms)

    def live(self, epochs: int, epoch_ms: float = 1000.0) -> None:
        """Commits and tidies, one epoch after the other."""
        for _ in range(epochs):
            self.commit()
            self.tidy()
            self.now_ms += epoch_ms

    def remembered(self) -> int:
        """Returns how many names and numbers its JobMaster keeps in memory for folding."""
        folder = self.committer._folder
        assert folder is not None
        return sum(len(kept) for kept in vars(folder).values() if isinstance(kept, dict | set))

    # --- what readers see ---

    def spark_files(self) -> list[str]:
        prefix = f"{TABLE}/_spark_metadata/"
        names = [path.removeprefix(prefix) for path in self.store.list(prefix.rstrip("/"))]
        return spark_reads(names, lambda name: self.store.read(prefix + name)) or []

    def values(self, files: list[str] | None = None) -> list[int]:
        files = self.spark_files() if files is None else files
        opened = [pq.ParquetFile(pa.BufferReader(self.store.read(f"{TABLE}/{name}"))) for name in files]
        return sorted(value for file in opened for value in file.read(use_threads=False).column("a").to_pylist())

    def all_values(self) -> list[int]:
        return sorted(value for values in self.due.values() for value in values)

    def by_epoch(self) -> dict[int, list[int]]:
        """Returns the rows of each epoch as an audit finds them."""
        found: dict[int, list[int]] = {}
        values: dict[str, list[int]] = {}
        for part in epoch_rows(self.store, TABLE):
            if part.file not in values:
                data = pa.BufferReader(self.store.read(f"{TABLE}/{part.file}"))
                values[part.file] = pq.ParquetFile(data).read(use_threads=False).column("a").to_pylist()
            end = None if part.rows is None else part.first + part.rows
            found.setdefault(part.epoch, []).extend(values[part.file][part.first : end])
        return {epoch: sorted(values) for epoch, values in found.items()}

    def check(self) -> None:
        assert self.values() == self.all_values()
        assert self.by_epoch() == self.due


def permit(epoch: int) -> CommitPermit:
    return CommitPermit.issue(ManifestRef("m", "00", epoch, epoch))


def data_files(store: MemoryStore) -> list[str]:
    return [path for path in store.list(TABLE) if path.endswith(".parquet")]


def records(store: MemoryStore) -> list[str]:
    return [path for path in store.list(f"{TABLE}/_spark_metadata") if not path.endswith(".json")]


@pytest.fixture(autouse=True)
def _small_fan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "FAN", 4)


# --- which files are folded ---


def named(*sizes: int, level: int = 0) -> list[Visible]:
    form = "1d-0001-0001-0000-{:06d}.parquet" if not level else f"1d-0001-fold{level}-0000000001-{{:04d}}.parquet"
    return [Visible(form.format(number), size) for number, size in enumerate(sizes)]


def test_few_small_files_are_left_alone_and_many_become_one() -> None:
    assert choose(named(1, 1, 1), 100) == []
    assert [len(group) for group in choose(named(1, 1, 1, 1, 1), 100)] == [5]


def test_a_file_of_half_the_target_stays_as_it_is() -> None:
    chosen = choose(named(1, 50, 1, 1, 99, 1), 100)
    assert [[file.size for file in group] for group in chosen] == [[1, 1, 1, 1]]


def test_groups_are_cut_at_the_target_and_a_last_file_alone_waits() -> None:
    assert [len(group) for group in choose(named(*[40] * 7), 100)] == [3, 3]


def test_only_files_of_the_same_level_are_folded_together() -> None:
    assert choose([*named(9, 9, 9, level=1), *named(1, 1, 1)], 100) == []
    assert [len(group) for group in choose([*named(9, 9, 9, 9, level=1), *named(1, 1, 1)], 100)] == [4]


# --- folding ---


@pytest.mark.promise("C4", "G1")
def test_folded_files_replace_small_ones_with_the_next_compact_record() -> None:
    table = Table()
    table.commit(12)
    done = table.tidy()
    assert (done.folded, done.into, done.problems) == (12, 1, ())
    assert len(table.spark_files()) == 12, "readers see the fold only with a compact record"
    table.commit(7)
    assert len(table.spark_files()) == 19
    table.commit()
    assert [level_of(name) for name in table.spark_files()] == [1, *[0] * 8]
    table.check()
    assert read_table(table.store, TABLE).num_rows == 20


def test_an_audit_finds_the_rows_of_each_epoch_in_a_folded_file() -> None:
    table = Table(per_epoch=2)
    table.commit(11)
    table.tidy()
    table.commit(9)
    folded = next(name for name in table.spark_files() if level_of(name))
    parts = [part for part in epoch_rows(table.store, TABLE) if part.file == folded]
    assert parts == [EpochRows(epoch, folded, 2 * (epoch - 1), 2) for epoch in range(1, 12)]
    table.check()


def test_a_large_file_is_not_rewritten_and_its_epoch_stays_known() -> None:
    table = Table(fold_bytes=1)  # every file is large enough
    table.live(400, epoch_ms=10_000.0)
    assert all(level_of(name) == 0 for name in table.spark_files())
    assert len(records(table.store)) < 400
    table.restart()
    table.live(30)
    table.check()


@pytest.mark.promise("C4", "G1")
def test_files_records_and_folds_stay_few_however_long_a_job_runs() -> None:
    table = Table()
    table.live(700, epoch_ms=60_000.0)
    table.check()
    few = (len(table.spark_files()), len(data_files(table.store)), len(records(table.store)))
    table.live(700, epoch_ms=60_000.0)
    table.check()
    many = (len(table.spark_files()), len(data_files(table.store)), len(records(table.store)))
    assert many[0] <= few[0] + 12 and many[1] <= few[1] + 30 and many[2] <= few[2] + 20, (few, many)
    assert len(table.store.list(f"{TABLE}/_folds")) < 120
    assert table.remembered() < 500, "it was a name for each file that was ever folded: some GB a year"


def test_a_reader_that_began_before_a_fold_finds_its_files_for_the_time_that_they_are_kept() -> None:
    table = Table()
    table.commit(12)
    table.tidy()
    files = table.spark_files()
    table.live(100)
    assert set(files).isdisjoint(table.spark_files())
    assert table.values(files) == list(range(1, 13)), "100 s later"
    table.now_ms += HOUR_MS
    table.live(60)
    assert not {f"{TABLE}/{name}" for name in files} & set(data_files(table.store)), "an hour later they are gone"
    table.check()


def test_files_with_other_columns_are_folded_apart() -> None:
    wider = pa.schema([*SCHEMA, ("more", pa.int64())])
    table = Table()
    table.commit(6)
    table.commit(6, columns=wider)
    assert (table.tidy().folded, table.tidy().folded) == (12, 0)
    table.commit(8, columns=wider)
    table.check()
    assert sorted(level_of(name) for name in table.spark_files()) == [*[0] * 8, 1, 1]


def test_files_with_columns_in_another_order_are_folded_apart() -> None:
    table = Table()
    table.commit(6)
    table.commit(6, columns=pa.schema(reversed(list(SCHEMA))))
    done = table.tidy()
    assert (done.folded, done.into, done.problems) == (12, 2, ())
    table.commit(8)
    table.check()


# --- killed at every step ---


class Fsynced(Stopping):
    """Notes what was not durable when a fold named it."""

    def __init__(self) -> None:
        super().__init__()
        self.folds = 0
        self.lacking: set[str] = set()

    def create(self, path: str, data: bytes) -> Created:
        if path.startswith(f"{TABLE}/_folds/"):
            self.folds += 1
            self.lacking |= self.unsynced
        return super().create(path, data)


def test_a_folded_file_and_its_index_are_durable_before_a_fold_names_them() -> None:
    store = Fsynced()
    Table(store).live(60)
    assert store.folds and not store.lacking


def lives_through_a_kill(step: int, after: bool) -> bool:
    """Kills the JobMaster at this step of its tidying. Returns False if there are fewer steps."""
    store = Stopping()
    table = Table(store)
    store.left, store.after = step, after
    for _ in range(6):
        table.commit(3)
        store.armed = store.left > 0
        try:
            table.tidy()
        except Killed:
            store.crash()
            table.check()
            table.restart()
            table.committer.abort_unknown(permit(table.epoch), AttemptId(table.generation, 0))
        store.armed = False
        table.now_ms += HOUR_MS
    table.live(9, epoch_ms=HOUR_MS)
    table.check()
    assert not orphans(store, TABLE, JOB_ID)
    folds = FoldLog(store, TABLE)
    assert not folds.stray() and all(f"{TABLE}/{name}" in store.files for name in folds.indexed())
    return store.left <= 0


@pytest.mark.promise("C4", "D11", "G1")
@pytest.mark.parametrize("after", [False, True], ids=["before_the_step", "after_the_step"])
def test_a_folder_that_is_killed_at_any_step_harms_nothing(after: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: there is no step of folding and deleting at which a kill costs a row, or shows it twice.

    Topology: one table, whose JobMaster is killed and forgets what it had not synced; another one goes on.
    Faults: a kill at each write, sync, create and delete of six rounds, one run for each.
    Checks: readers (by Spark's rules) and an audit find each committed row once, right after the kill and later.
    """
    monkeypatch.setattr(table_log, "COMPACT_EVERY", 3)
    monkeypatch.setattr(folder, "RECORDS_DUE", 3)
    steps = 1
    while lives_through_a_kill(steps, after):
        steps += 1
    assert steps > 40, "each step was one at which it was killed"


# --- rewinds ---


@pytest.mark.promise("C4")
def test_a_rewind_to_each_epoch_that_is_kept_hides_what_came_after_it() -> None:
    for back in range(RETAINED):
        table = Table()
        table.live(57, epoch_ms=HOUR_MS)
        to = table.epoch - back
        table.committer.prepare_rewind(to, table.generation + 1)
        table.committer.rewind(permit(60), to)
        assert table.values() == list(range(1, to + 1))


@pytest.mark.promise("C4")
def test_the_table_can_be_rewound_to_the_oldest_epoch_that_is_kept_however_old_that_is() -> None:
    table = Table()
    for _ in range(57):
        table.commit()
        table.committer.tidy(1, table.epoch, min(table.epoch, 11), table.now_ms)
        table.now_ms += HOUR_MS
    table.committer.prepare_rewind(11, generation=2)
    table.committer.rewind(permit(60), 11)
    assert table.values() == list(range(1, 12))


@pytest.mark.promise("C4", "D8")
def test_a_table_can_be_rewound_to_an_epoch_in_which_the_job_had_no_sink_for_it() -> None:
    """The oldest epoch that is kept has no record, so it is read from the last compact one before the gap."""
    table = Table()
    table.live(25)
    table.epoch = 60
    table.restart()
    table.committer.begin(61)
    for _ in range(37):
        table.commit()
        table.committer.tidy(table.generation, table.epoch, 45, table.now_ms)
        table.now_ms += HOUR_MS
    table.committer.prepare_rewind(45, table.generation + 1)
    table.committer.rewind(permit(100), 45)
    assert table.values() == list(range(1, 26))


def test_a_rewind_behind_the_records_that_are_kept_is_refused_before_anything_is_published() -> None:
    table = Table()
    table.live(150, epoch_ms=HOUR_MS)
    with pytest.raises(TargetTaken, match=r"can't hide the output after epoch 40: .* --fork NAME or --allow-replay"):
        table.committer.prepare_rewind(40, 2)
    table.check()


def test_who_rewinds_stops_the_folder_of_the_jobmaster_that_he_fenced() -> None:
    table = Table()
    table.commit(12)
    table.committer.prepare_rewind(11, generation=2)
    assert table.tidy() == Tidied(), "its generation is 1"
    table.committer.rewind(permit(20), 11)
    assert table.values() == list(range(1, 12))


def test_the_first_epochs_of_a_table_that_was_rewound_stay_known() -> None:
    """A bug that the simulator found: who rewinds a table without folds wrote that its first record was not needed."""
    table = Table()
    table.commit(3)
    table.committer.prepare_rewind(2, generation=2)
    table.committer.rewind(permit(10), 2)
    table.epoch, table.due = 10, {1: [1], 2: [2]}
    table.check()
    table.restart()
    table.live(40)
    table.check()


def test_a_rewind_is_committed_again_after_the_records_that_it_read_from_may_go() -> None:
    """A JobMaster that starts commits the newest epoch again. If that is a rewind, its record has all that it needs."""
    table = Table()
    table.commit(10)
    table.committer.prepare_rewind(9, generation=2)
    table.committer.rewind(permit(20), 9)
    table.epoch, table.due = 20, {epoch: values for epoch, values in table.due.items() if epoch <= 9}
    table.restart()
    assert table.committer.tidy(table.generation, 20, kept_from=10, now_ms=0.0).folded == 9
    table.restart()
    table.committer.rewind(permit(20), 9)
    table.live(40)
    table.check()


def test_the_epochs_of_files_stay_known_that_were_folded_and_that_a_rewind_shows_again() -> None:
    """A bug: the record from which records are kept named the folded file, and the rewind the files that it replaced.

    Only deleted records told the epochs of these, so an audit took them for rows of the rewind.
    """
    table = Table()
    table.commit(12)
    assert table.tidy().folded == 12
    table.commit(8)  # record 19 names the folded file, record 9 its first ten files
    table.committer.prepare_rewind(18, generation=2)
    table.committer.rewind(permit(30), 18)
    table.epoch, table.due = 30, {epoch: values for epoch, values in table.due.items() if epoch <= 18}
    table.restart()
    table.committer.tidy(table.generation, 30, kept_from=30, now_ms=0.0)
    fold = FoldLog(table.store, TABLE).newest()
    assert fold is not None and fold.records_from == 19
    table.check()
    table.restart()
    table.live(40)
    table.check()


@pytest.mark.promise("C4", "G1", "H8")
def test_if_the_store_is_away_for_a_moment_no_published_file_is_taken_for_an_orphan() -> None:
    """Whoever collects garbage would delete it, and with it rows that were published."""
    store = Flickering()
    table = Table(store)
    table.live(30, epoch_ms=HOUR_MS)
    table.restart()
    FoldLog(store, TABLE).fence(table.generation)
    table.live(3, epoch_ms=HOUR_MS)
    makers = [maker[1] for name in table.spark_files() if (maker := maker_of(name)) is not None]
    assert 1 in makers, "files that an older generation has folded are published"
    store.calls = 0
    assert orphans(store, TABLE, JOB_ID) == []
    looks, published = store.calls, {f"{TABLE}/{name}" for name in table.spark_files()}
    for first in range(1, looks + 1):
        for calls in (1, 3, looks):
            store.calls, store.gone = 0, range(first, first + calls)
            with contextlib.suppress(StoreError):
                assert not published.intersection(orphans(store, TABLE, JOB_ID)), f"away from call {first} on"


@pytest.mark.promise("C4", "G1")
def test_a_folded_file_that_was_folded_again_is_no_orphan_for_the_time_that_it_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An earlier JobMaster has folded files, and its folds are forgotten. A later one folds the files again.

    A reader that began in between needs them longer than there are records that name them; weir gc runs meanwhile.
    """
    monkeypatch.setattr(planning, "FAN", 8)
    table = Table()
    table.live(70, epoch_ms=HOUR_MS)
    files = [name for name in table.spark_files() if level_of(name) == 1]
    assert min(FoldLog(table.store, TABLE).kept()) > 1, "the fold that made the first of them is forgotten"
    table.restart()
    while files[0] in table.spark_files():
        reading, values, began_ms = table.spark_files(), table.all_values(), table.now_ms
        table.live(1, epoch_ms=60_000.0)
    while table.now_ms - began_ms < HOUR_MS:
        table.live(1, epoch_ms=60_000.0)
        for path in orphans(table.store, TABLE, JOB_ID):
            table.store.delete(path)
        assert table.values(reading) == values, f"after {(table.now_ms - began_ms) / 60_000.0:.0f} minutes"
    table.live(20, epoch_ms=60_000.0)
    assert f"{TABLE}/{files[0]}" not in data_files(table.store), "later it is gone"


def test_a_folder_deletes_the_orphans_of_its_own_job_only() -> None:
    table = Table()
    own, others = (f"{TABLE}/{folded_name(job_id, 1, 1, 9, 1)}" for job_id in (JOB_ID, "ab"))
    for path in (own, others):
        table.store.write(path, b"rows")
    table.live(30)
    assert own not in table.store.files and others in table.store.files
    table.check()


def test_a_fold_of_rows_that_a_rewind_has_hidden_is_never_used() -> None:
    table = Table()
    table.commit(12)
    assert table.tidy().folded == 12
    table.committer.rewind(permit(20), 11)
    assert table.values() == list(range(1, 12))
    table.epoch, table.due = 20, {epoch: values for epoch, values in table.due.items() if epoch <= 11}
    table.restart()
    table.live(60, epoch_ms=HOUR_MS)
    table.check()
    assert not orphans(table.store, TABLE, JOB_ID)


# --- two JobMasters ---


def test_a_folder_that_was_replaced_makes_no_fold_and_deletes_nothing() -> None:
    table = Table()
    table.commit(12)
    old, old_generation = table.committer, table.generation
    table.restart()
    assert table.tidy().folded == 12
    table.commit(10)
    before = dict(table.store.files)
    assert old.tidy(old_generation, table.epoch, table.epoch, 10 * HOUR_MS) == Tidied()
    assert table.store.files == before


class Slow(MemoryStore):
    """A store in which another JobMaster comes in before the first fold is created."""

    between: Table | None = None

    def create(self, path: str, data: bytes) -> Created:
        if "/_folds/" in path and self.between is not None:
            table, self.between = self.between, None
            table.restart()
            assert table.tidy().folded == 12
        return super().create(path, data)


def test_of_two_folders_one_wins_and_the_files_of_the_other_are_deleted() -> None:
    store = Slow()
    table = Table(store)
    table.commit(12)
    store.between, old = table, table.committer
    assert old.tidy(1, table.epoch, table.epoch, 0.0).folded == 0
    table.live(40)
    table.check()
    assert all("1d-0001-fold" not in path for path in data_files(store))


def test_a_fold_whose_answer_was_lost_is_made_again_with_the_same_bytes() -> None:
    table = Table()
    table.commit(12)
    table.store.answers = [(Created.UNKNOWN, True)]
    with pytest.raises(StoreError, match="did not say whether"):
        table.tidy()
    table.live(30)
    assert max(level_of(name) for name in table.spark_files()) >= 1
    table.check()


class Late(MemoryStore):
    """A store that does not answer the first two creates of folds. The first one is made right before the third."""

    def __init__(self) -> None:
        super().__init__()
        self.creates: list[tuple[str, bytes]] = []

    def create(self, path: str, data: bytes) -> Created:
        if "/_folds/" in path:
            self.creates.append((path, data))
            if len(self.creates) < 3:
                return Created.UNKNOWN
            self.files.setdefault(*self.creates[0])
        return super().create(path, data)


def test_a_fold_that_is_created_after_two_lost_answers_shows_each_row_once() -> None:
    """Another fold of the same number would write other rows into the files of this one."""
    table = Table(Late())
    table.commit(12)
    for _ in range(2):
        with pytest.raises(StoreError, match="did not say whether"):
            table.tidy()
        table.commit(10)
    table.tidy()
    table.live(30)
    assert max(level_of(name) for name in table.spark_files()) >= 1
    table.check()


def test_a_long_log_is_read_in_parts_and_nothing_is_folded_before_all_of_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(folder, "SCAN_RECORDS", 5)
    table = Table()
    table.commit(12)
    assert [table.tidy() for _ in range(2)] == [Tidied(), Tidied()]
    done = table.tidy()
    assert (done.folded, done.problems) == (12, ())
    table.commit(8)
    table.check()


class Lagging(MemoryStore):
    """A store whose list lacks the files with this ending."""

    lacks = "nothing"

    def list(self, prefix: str) -> list[str]:
        return [path for path in super().list(prefix) if not path.endswith(self.lacks)]


def test_the_epoch_of_a_large_file_stays_known_where_the_list_lacks_its_index() -> None:
    store = Lagging()
    table = Table(store, fold_bytes=1)  # every file is large enough
    table.live(45)
    store.lacks = ".epochs"
    table.restart()
    table.live(25)
    table.check()


def test_an_epoch_that_is_committed_again_names_the_same_rows_if_a_fold_came_between() -> None:
    table = Table()
    table.commit(9)
    committables = table.committed_next()
    table.committer.commit(permit(10), committables)  # compact, without a fold
    table.epoch = 10
    assert table.tidy().folded == 10
    TableCommitter(table.store, TABLE).commit(permit(10), committables)  # of the next JobMaster
    table.commit(10)
    assert level_of(table.spark_files()[0]) == 1
    table.check()


# --- damage ---


def test_a_damaged_file_is_not_folded_and_a_damaged_fold_deletes_nothing() -> None:
    table = Table()
    table.commit(12)
    victim = f"{TABLE}/{table.spark_files()[5]}"
    table.store.files[victim] = table.store.files[victim][:-1]
    done = table.tidy()
    assert done.folded == 11 and "has" in done.problems[0] and "its record says" in done.problems[0]
    table.commit(8)
    assert victim.rsplit("/", 1)[1] in table.spark_files()


def test_nothing_is_deleted_on_the_word_of_a_fold_that_is_not_what_was_written() -> None:
    table = Table()
    table.live(25)
    path = next(path for path in table.store.list(f"{TABLE}/_folds") if path.endswith(".json"))
    table.store.files[path] = table.store.files[path].replace(b"replaces", b"replaced")
    before = set(data_files(table.store))
    table.restart()
    table.now_ms += 10 * HOUR_MS
    with pytest.raises(TargetTaken, match="is not what Weir wrote"):
        table.tidy()
    assert set(data_files(table.store)) == before


def test_without_a_seal_nothing_is_folded_or_deleted() -> None:
    table = Table()
    table.commit(11)
    table.store.delete(f"{TABLE}/_spark_metadata/.9.checksum")
    assert table.tidy() == Tidied()
    assert not table.store.list(f"{TABLE}/_folds")


@pytest.mark.parametrize("epochs", [25, 35])
def test_nothing_is_deleted_while_a_record_without_a_seal_may_lack_the_names_of_files(
    epochs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only record 19 names the file of epoch 20, which is folded since. It may be brought back from a backup.

    After 35 epochs it is the oldest record that is needed.
    """
    table = Table()
    table.live(epochs)
    monkeypatch.setattr(planning, "FAN", 1000)  # no fold says that record 19 is not needed any more
    newest = FoldLog(table.store, TABLE).newest()
    assert newest is not None and newest.records_from == (9 if epochs == 25 else 19)
    table.live(6)
    table.store.delete(f"{TABLE}/_spark_metadata/.19.checksum")
    table.store.write(f"{TABLE}/_spark_metadata/19.compact", b"v1")
    before = set(data_files(table.store))
    table.restart()
    table.live(30, epoch_ms=HOUR_MS)
    assert set(data_files(table.store)) >= before
    table.check()


def test_a_table_that_is_not_to_be_folded_is_left_as_it_is() -> None:
    table = Table()
    table.committer = TableCommitter(table.store, TABLE, fold_bytes=None)
    table.committer.claim(JOB_ID, 1)
    table.commit(40)
    before = dict(table.store.files)
    assert table.tidy() == Tidied() and table.store.files == before
    with pytest.raises(ValueError, match="fold_mb=0 is no size of files"):
        TableSink("pv", fold_mb=0)


def test_who_makes_a_fold_where_an_old_one_was_deleted_changes_nothing() -> None:
    """A JobMaster that slept for hours creates a fold whose number was used and deleted meanwhile."""
    table = Table()
    table.live(300, epoch_ms=60_000.0)
    numbers = [int(p.rsplit("/", 1)[1][:10]) for p in table.store.list(f"{TABLE}/_folds") if p.endswith(".json")]
    assert min(numbers) > 1
    FoldLog(table.store, TABLE).append(Fold(1, 1, 0, {}, []))
    table.restart()
    table.live(40, epoch_ms=60_000.0)
    table.check()
    assert min(int(p.rsplit("/", 1)[1][:10]) for p in table.store.list(f"{TABLE}/_folds") if p.endswith(".json")) > 1


@pytest.mark.promise("D4", "H8")
def test_a_fold_names_no_files_that_were_written_while_an_empty_folder_was_in_the_place_of_the_store() -> None:
    """A bug: the next compact record named them instead of the files with the rows."""
    table = Table(store := Swapped())
    table.commit(table_log.COMPACT_EVERY)
    store.goes = True
    with pytest.raises(StoreError, match="is gone: was the store away when it was written"):
        table.tidy()
    assert FoldLog(store, TABLE).newest() is None
    table.tidy()
    assert FoldLog(store, TABLE).newest() is not None
    table.commit(2 * table_log.COMPACT_EVERY)
    table.check()


@pytest.mark.promise("C4", "F2", "G1")
def test_a_file_that_a_replaced_jobmaster_has_folded_stays_until_that_one_can_make_no_fold_any_more() -> None:
    """It sleeps between its file and the fold that names it. It can't make that once its successor has made one."""
    table = Table()
    table.live(30, epoch_ms=HOUR_MS)
    newest = FoldLog(table.store, TABLE).newest()
    assert newest is not None and newest.generation == 1
    folded = f"{TABLE}/{folded_name(JOB_ID, 1, 1, newest.number + 1, 1)}"
    table.store.write(folded, b"rows")
    table.restart()
    seen: set[tuple[bool, bool]] = set()
    for _ in range(30):
        table.live(1, epoch_ms=HOUR_MS)
        last = FoldLog(table.store, TABLE).newest()
        assert last is not None
        seen.add((last.generation == 2, folded in table.store.files))
    assert seen == {(False, True), (True, False)}
    table.check()
