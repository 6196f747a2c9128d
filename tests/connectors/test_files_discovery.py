"""Which files are read: the same by everybody, or as they appear; and never one that is not what was listed."""

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from engine.connectors.files import CsvSource, JsonSource, ParquetSource
from engine.connectors.files.discovery import owner
from engine.connectors.files.listing import FileError, FileSplit, Location
from engine.connectors.table import TableCommitter
from engine.core.errors import StoreError, fault_of
from engine.core.sources import Discovery, Source
from engine.protocol.epoch_records import Created
from engine.protocol.failures import Fault
from engine.protocol.manifest import Committable
from engine.store.directory import DirectoryStore
from tests.connectors.reading import Reading
from tests.connectors.test_table import permit
from tests.fakes import ATTEMPT, FakeClock, FakeOffload, MemoryStore, source_context

SCHEMA = pa.schema([("n", pa.int64())])


def put(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text('{"n": 1}\n')


def names(path: str | Path) -> list[str]:
    return [file.path for file in Location(str(path)).files()]


# --- listing ---


def test_a_folder_is_its_files_by_name_without_those_that_are_not_there_yet(tmp_path: Path) -> None:
    put(tmp_path, "b", "a", ".hidden", "_marker", "c.tmp", "below/d")
    assert names(tmp_path) == ["a", "b"]


def test_a_file_and_a_glob_are_what_they_name(tmp_path: Path) -> None:
    put(tmp_path, "x/1.json", "x/2.csv", "y/3.json", "y/_z/4.json", "5.json")
    assert names(tmp_path / "x/2.csv") == ["2.csv"]
    assert names(tmp_path / "*/*.json") == ["x/1.json", "y/3.json"]
    assert names(tmp_path / "**/*.json") == ["5.json", "x/1.json", "y/3.json"]
    assert Location(str(tmp_path / "x/*.json")).base == tmp_path / "x"


def test_nothing_to_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="there is no file or folder"):
        names(tmp_path / "nowhere")
    with pytest.raises(FileError, match="there are no files to read in"):
        Reading(JsonSource(str(tmp_path)), SCHEMA)


def test_of_a_weir_table_only_published_files_are_read(tmp_path: Path) -> None:
    """The folder has three files; an epoch names two of them."""
    put(tmp_path, *(f"t/{attempt:04d}-0001-0000-000001.parquet" for attempt in (1, 2, 3)))
    committables = [
        Committable("out", 0, ATTEMPT, 1, n, {"path": f"t/{n:04d}-0001-0000-000001.parquet", "size": 9, "rows": 1})
        for n in (1, 3)
    ]
    (tmp_path / "t/_spark_metadata").mkdir()
    assert names(tmp_path / "t") == []
    TableCommitter(DirectoryStore(tmp_path), "t").commit(permit(1), committables)
    assert names(tmp_path / "t") == ["0001-0001-0000-000001.parquet", "0003-0001-0000-000001.parquet"]


# --- read once ---


class Subtasks:
    """Discoveries of all subtasks of a source over one store."""

    def __init__(
        self,
        source: Source,
        parallelism: int,
        store: MemoryStore,
        known: list[str] | None = None,
        restored: bool = False,
    ) -> None:
        self.offload = FakeOffload()
        self.clock = FakeClock()
        self.discoveries: list[Discovery] = []
        for subtask in range(parallelism):
            context = source_context(
                SCHEMA, self.clock, offload=self.offload, store=store, subtask=subtask, parallelism=parallelism
            )
            self.discoveries.append(source.discovery(replace(context, restored=restored), known or []))

    def found(self) -> list[list[str]]:
        """The paths each of them finds now."""
        early = [discovery.poll() for discovery in self.discoveries]
        self.offload.run()
        return [
            [FileSplit.of(split).path for split in [*first, *discovery.poll()]]
            for first, discovery in zip(early, self.discoveries, strict=True)
        ]


@pytest.mark.promise("G1")
def test_the_first_listing_counts_for_all_subtasks_and_attempts(tmp_path: Path) -> None:
    put(tmp_path, *"abcde")
    store = MemoryStore()
    assert Subtasks(JsonSource(str(tmp_path)), 2, store).found() == [["a", "c", "e"], ["b", "d"]]
    put(tmp_path, "aa")
    again = Subtasks(JsonSource(str(tmp_path)), 3, store)
    assert again.found() == [["a", "d"], ["b", "e"], ["c"]]
    assert all(discovery.finished and discovery.ready for discovery in again.discoveries)
    assert list(store.files) == ["job/sources/src.json"]


@pytest.mark.promise("G1")
def test_whoever_loses_the_create_takes_the_winner_s_listing(tmp_path: Path) -> None:
    put(tmp_path, "a")
    store = MemoryStore()
    Subtasks(JsonSource(str(tmp_path)), 1, store).found()
    winner = store.files.pop("job/sources/src.json")
    put(tmp_path, "b")

    def create(path: str, data: bytes) -> Created:
        store.files[path] = winner
        return Created.EXISTS

    store.create = create  # type: ignore[method-assign]
    assert Subtasks(JsonSource(str(tmp_path)), 1, store).found() == [["a"]]


def test_a_store_that_does_not_say_fails_the_attempt(tmp_path: Path) -> None:
    put(tmp_path, "a")
    store = MemoryStore()
    store.answers = [(Created.UNKNOWN, False)]
    subtasks = Subtasks(JsonSource(str(tmp_path)), 1, store)
    with pytest.raises(StoreError, match=r"did not say whether job/sources/src.json was created"):
        subtasks.found()


@pytest.mark.promise("G1", "D7")
def test_the_snapshot_s_splits_need_no_listing(tmp_path: Path) -> None:
    """So a fork, whose own folder in the store has no listing, reads the same files."""
    known = [FileSplit(path, 1, 1).id for path in ("c", "a", "b")]
    assert Subtasks(JsonSource(str(tmp_path / "gone")), 2, MemoryStore(), known).found() == [["a", "c"], ["b"]]


@pytest.mark.promise("G1")
@pytest.mark.parametrize("change", ["vanish", "grow", "touch"])
def test_a_file_that_is_not_what_was_listed_is_told(tmp_path: Path, change: str) -> None:
    put(tmp_path, "a.json")
    reading = Reading(JsonSource(str(tmp_path)), SCHEMA)
    file = tmp_path / "a.json"
    if change == "vanish":
        file.unlink()
        said = "a.json can't be read any more .*put it back"
    else:
        file.write_text('{"n": 1}\n{"n": 2}\n') if change == "grow" else os.utime(file, (1, 1))
        said = "a.json has changed since it was listed"
    with pytest.raises(FileError, match=said) as error:
        reading.all(reading.splits[0])
    assert fault_of(error.value) is (Fault.OUTSIDE if change == "vanish" else Fault.JOB)


@pytest.mark.promise("G1")
def test_files_of_the_job_s_own_may_be_copies_but_no_others(tmp_path: Path) -> None:
    """A fork gets copies of the DataFrames that the job reads, and goes on in them."""
    put(tmp_path, "a.json")
    own = Location(str(tmp_path), own=True)
    (split,) = own.files()
    os.utime(tmp_path / "a.json", (1, 1))
    assert own.checked(split) == tmp_path / "a.json"
    (tmp_path / "a.json").write_text('{"n": 17}\n')
    with pytest.raises(FileError, match=r"a.json has changed since it was listed"):
        own.checked(split)


# --- watched ---


@pytest.mark.promise("G1")
def test_new_files_are_found_each_interval_each_by_one_subtask(tmp_path: Path) -> None:
    put(tmp_path, "a", "b")
    subtasks = Subtasks(CsvSource(str(tmp_path), watch="2 s"), 2, MemoryStore())
    assert not any(discovery.ready for discovery in subtasks.discoveries)
    assert sorted(path for paths in subtasks.found() for path in paths) == ["a", "b"]
    put(tmp_path, "c", "d", "e", "_f", "g.tmp")
    assert subtasks.found() == [[], []]
    assert subtasks.discoveries[0].wakeup_ms == 2000.0
    subtasks.clock.pass_ms(2000)
    found = subtasks.found()
    assert sorted(path for paths in found for path in paths) == ["c", "d", "e"]
    assert all(owner(path, 2) == subtask for subtask, paths in enumerate(found) for path in paths)
    assert not any(discovery.finished for discovery in subtasks.discoveries)


@pytest.mark.promise("G1", "D7")
@pytest.mark.parametrize("parallelism", [1, 2, 3, 5])
def test_what_the_snapshot_knows_is_found_once_at_any_parallelism(tmp_path: Path, parallelism: int) -> None:
    put(tmp_path, *"abcdefgh")
    known = [file.id for file in Location(str(tmp_path)).files()[:5]]
    put(tmp_path, "a")  # a file that changes after it was read is not read again
    subtasks = Subtasks(ParquetSource(str(tmp_path), watch=10), parallelism, MemoryStore(), known)
    assert sorted(path for paths in subtasks.found() for path in paths) == list("abcdefgh")


def test_a_folded_file_in_a_folder_that_is_no_table_is_an_error_and_no_row_is_read_twice(tmp_path: Path) -> None:
    """A folded file is a new name for rows that the job has read. At the first look it is a file like any other."""
    put(tmp_path, "1d-0001-fold1-0000000001-0001.parquet", "1d-0001-0001-0000-000001.parquet")
    subtasks = Subtasks(ParquetSource(str(tmp_path), watch=10), 1, MemoryStore())
    assert len(subtasks.found()[0]) == 2
    put(tmp_path, "1d-0001-fold1-0000000002-0001.parquet")
    subtasks.clock.pass_ms(10)
    with pytest.raises(FileError, match=r"is a folded file of a Weir table.*watch the folder of the table itself"):
        for _ in range(2):
            subtasks.found()


def test_files_are_read_in_the_order_in_which_they_appeared(tmp_path: Path) -> None:
    put(tmp_path, *"abc")
    for name, at in (("a", 3), ("b", 1), ("c", 2)):
        os.utime(tmp_path / name, (at, at))
    assert Subtasks(JsonSource(str(tmp_path), watch=10), 1, MemoryStore()).found() == [["b", "c", "a"]]


@pytest.mark.promise("H8")
def test_a_watched_folder_that_was_never_there_is_the_job_s_fault_and_one_that_vanishes_the_world_s(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "new"
    for path in (folder, folder / "*.json"):
        with pytest.raises(FileError, match="there is no file or folder") as never:
            Subtasks(JsonSource(str(path), watch=10), 1, MemoryStore()).found()
        assert fault_of(never.value) is Fault.JOB
        with pytest.raises(FileError, match=r"there is no file or folder .* It was there before") as later:
            Subtasks(JsonSource(str(path), watch=10), 1, MemoryStore(), restored=True).found()
        assert fault_of(later.value) is Fault.OUTSIDE
    folder.mkdir()
    subtasks = Subtasks(JsonSource(str(folder), watch=10), 1, MemoryStore())
    assert subtasks.found() == [[]]
    folder.rmdir()
    subtasks.clock.pass_ms(10)
    with pytest.raises(FileError) as vanished:
        subtasks.found()
    assert fault_of(vanished.value) is Fault.OUTSIDE


@pytest.mark.promise("G1", "H8")
@pytest.mark.parametrize("path", ["", "*", "*/*", "**/*.json", "**/b/*"])
def test_a_folder_that_can_t_be_listed_is_never_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    put(tmp_path, "a/b/1.json", "a/2.json", "3.json")
    closed = tmp_path / ("a" if "/" in path else "")
    fails = _failing(closed)
    monkeypatch.setattr(os, "listdir", fails(os.listdir))
    monkeypatch.setattr(os, "scandir", fails(os.scandir))
    with pytest.raises(FileError, match=r"can't be listed \(Permission denied\)") as error:
        names(tmp_path / path if path else tmp_path)
    assert fault_of(error.value) is Fault.OUTSIDE


def _failing(closed: Path) -> Any:
    """The tests may run as root, who may read everything."""

    def of(call: Any) -> Any:
        def instead(folder: Any) -> Any:
            if Path(folder) == closed:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
            return call(folder)

        return instead

    return of


def test_a_glob_skips_what_is_hidden_and_finds_each_file_once(tmp_path: Path) -> None:
    put(tmp_path, "a/b/1.json", "a/2.json", "3.json", ".x/4.json", "a/_y/5.json", "a/b/6.tmp", "c.tmp/7.json")
    (tmp_path / "a" / "again").symlink_to(tmp_path / "a" / "b")
    assert names(tmp_path / "**/**/*.json") == ["3.json", "a/2.json", "a/b/1.json", "c.tmp/7.json"]
    assert names(tmp_path / "[a-c]/?/*.json") == ["a/b/1.json"]
    assert names(tmp_path / "**") == []
    assert names(tmp_path / "a/*/1.json") == ["again/1.json", "b/1.json"]


def test_a_stored_listing_that_was_damaged_is_named_with_what_to_do(tmp_path: Path) -> None:
    put(tmp_path, "a.json")
    store = MemoryStore()
    store.write("job/sources/src.json", b"")
    with pytest.raises(FileError, match=r"job/sources/src\.json .* is no listing .* delete it") as error:
        Subtasks(JsonSource(str(tmp_path)), 1, store).found()
    assert fault_of(error.value) is Fault.JOB
