"""A savepoint's folder: what is in it, who may write it, what a damaged or a moved one does.

Topology: a job's store and another place, both in memory or in a directory.
Faults: writes that fail, answers that are lost, two writers, files that are missing, cut or changed.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.core.errors import CorruptSnapshot, ForeignSnapshot, NoSavepoint, SavepointExists, StoreError
from engine.core.paths import JobPaths
from engine.protocol.epoch_records import Created, LogRecord
from engine.protocol.ids import AttemptId, SubtaskId
from engine.protocol.manifest import Manifest, StateFile, SubtaskState
from engine.snapshot.beginning import begin
from engine.snapshot.copying import copy_files
from engine.snapshot.epoch_log import EpochLog
from engine.snapshot.inputs import place_inputs, place_newest_inputs
from engine.snapshot.savepoints import Origin, SavepointFolder
from engine.snapshot.statefile import checksum
from engine.store.below import Below
from engine.store.directory import DirectoryStore
from tests.fakes import MemoryStore

JOB = JobPaths("job")
STATE = {"job/gen-0001/chk-0000007/1/pv.0.panes.arrow": b"zero", "job/gen-0001/chk-0000007/1/pv.1.panes.arrow": b"one"}
INPUTS = {"job/sources/orders/part-0.parquet": b"rows", "job/sources/orders.json": b"{}", "job/static/apps/a": b"apps"}


FIRST, SECOND = AttemptId(1, 1), AttemptId(2, 1)


def manifest(attempt: AttemptId = FIRST) -> Manifest:
    subtasks = [
        SubtaskState(
            SubtaskId("pv", index), [StateFile("pv", "panes", path, len(data), checksum(data), 1)], {"pv": {"n": index}}
        )
        for index, (path, data) in enumerate(STATE.items())
    ]
    return Manifest("job", 4, 7, attempt, 1_700, 128, subtasks, [], [], {"source:rows": 9})


def origin(store: MemoryStore | None = None) -> Origin:
    store = store or MemoryStore()
    store.files |= {**STATE, **INPUTS, JOB.log_record(1): b""}
    return Origin(EpochLog(store, JOB), "1d", 4)


@pytest.mark.promise("D5")
def test_a_savepoint_says_what_it_is() -> None:
    """Its state lies behind epoch 4, and would be epoch 5."""
    folder = SavepointFolder(MemoryStore())
    made = folder.write("nightly", msgspec.structs.replace(manifest(), epoch=5), origin(), stopped=False)
    assert folder.head() == made
    assert (made.name, made.job, made.epoch, made.checkpoint, made.stopped) == ("nightly", "job", 4, 7, False)
    assert made.state_bytes == 7


@pytest.mark.promise("D5")
def test_a_savepoint_holds_everything_that_the_job_needs() -> None:
    """The origin is gone afterwards."""
    target, store = MemoryStore(), MemoryStore()
    folder = SavepointFolder(target)
    folder.write("nightly", manifest(), origin(store), stopped=False)
    store.files.clear()
    copied = folder.copy_to(store, "other/gen-0001/chk-0000007/copy-me")
    assert [store.read(file.path) for state in copied.subtasks for file in state.files] == [b"zero", b"one"]
    assert [state.inline for state in copied.subtasks] == [{"pv": {"n": 0}}, {"pv": {"n": 1}}]
    assert copied.ledger == {"source:rows": 9}
    assert not store.list("other/sources") and not store.list("other/static"), "the log does not name them yet"
    place_inputs(EpochLog(store, JobPaths("other")), copied)
    for path, data in INPUTS.items():
        assert store.read(path.replace("job/", "other/")) == data


@pytest.mark.promise("D5")
@pytest.mark.parametrize("damage", ["a state file is gone", "a state file is cut", "an input is gone", "all is gone"])
def test_no_savepoint_is_made_of_files_that_went_after_they_were_copied(damage: str) -> None:
    """Somebody deleted the folder while the epoch of a stop was published. The savepoint was told as complete."""
    target = MemoryStore()
    folder, source = SavepointFolder(target), origin()
    draft = folder.prepare(manifest(), source)
    files = {"state": draft.subtasks[0].files[0].path, "input": next(iter(draft.inputs))}
    match damage:
        case "a state file is gone":
            del target.files[files["state"]]
        case "a state file is cut":
            target.files[files["state"]] = b"ze"
        case "an input is gone":
            del target.files[files["input"]]
        case _:
            target.files.clear()
    with pytest.raises(StoreError, match=r"are gone, or not what was written.*did somebody delete"):
        folder.finish(draft, "nightly", manifest(), 5, stopped=True)
    assert not folder.exists() and not target.files, "what is left of it is deleted"


def test_files_of_two_folders_that_share_a_name_stay_apart() -> None:
    """A state file of an older checkpoint may be part of a snapshot."""
    files = {f"job/gen-0001/chk-000000{n}/1/pv.0.panes.arrow": f"of {n}".encode() for n in (6, 7)}
    subtasks = [
        SubtaskState(SubtaskId("pv", n), [StateFile("pv", "panes", path, len(data), checksum(data), 1)], {})
        for n, (path, data) in enumerate(files.items())
    ]
    store, folder = MemoryStore(), SavepointFolder(MemoryStore())
    source = origin(store)
    store.files |= files
    folder.write("nightly", msgspec.structs.replace(manifest(), subtasks=subtasks), source, stopped=False)
    copied = folder.copy_to(store, "other/copy")
    assert [store.read(file.path) for state in copied.subtasks for file in state.files] == [b"of 6", b"of 7"]


@pytest.mark.promise("D5")
def test_inputs_are_put_in_their_place_once_and_what_an_earlier_start_left_there_goes() -> None:
    store, folder = MemoryStore(), SavepointFolder(MemoryStore())
    folder.write("nightly", manifest(), origin(), stopped=False)
    other = EpochLog(store, JobPaths("other"))
    copied = folder.copy_to(store, "other/gen-0001/chk-0000007/copy-me")
    store.files["other/static/prices/9.json"] = b"of a start that came to no epoch"
    place_inputs(other, copied)
    placed = {path: data for path, data in store.files.items() if path.split("/")[1] in ("sources", "static")}
    assert placed == {path.replace("job/", "other/"): data for path, data in INPUTS.items()}
    store.files["other/static/prices/2.json"] = b"a refresh since"
    place_inputs(other, copied)
    assert store.files["other/static/prices/2.json"] == b"a refresh since"


@pytest.mark.promise("D5")
def test_a_record_of_inputs_is_copied_behind_the_files_of_its_version() -> None:
    """Whoever finds the record reads those files. The process may be killed between any two writes."""
    written: list[str] = []

    class Noting(MemoryStore):
        def write(self, path: str, data: bytes) -> None:
            written.append(path)
            super().write(path, data)

    names = {"job/static/apps/2/a.parquet": "to/a.parquet", "job/static/apps/2.json": "to/2.json", "job/x": "to/x"}
    copy_files(lambda path: path.encode(), Noting(), names)
    assert sorted(written) == sorted(names.values())
    assert written[-1] == "to/2.json"


@pytest.mark.promise("D5")
def test_a_source_may_have_the_name_of_the_folder_that_its_copy_is_in() -> None:
    source, store, folder = origin(), MemoryStore(), SavepointFolder(MemoryStore())
    source.log.store.write("job/sources/inputs/part-0.parquet", b"of a source called inputs")
    folder.write("nightly", manifest(), source, stopped=False)
    place_inputs(EpochLog(store, JobPaths("other")), folder.copy_to(store, "other/gen-0001/chk-0000007/copy-me"))
    assert store.read("other/sources/inputs/part-0.parquet") == b"of a source called inputs"
    assert store.read("other/sources/orders/part-0.parquet") == b"rows"


@pytest.mark.promise("D5")
@pytest.mark.parametrize("how", ["killed", "lost"])
def test_a_start_that_came_to_no_record_leaves_no_input_to_one_from_another_savepoint(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first command copies its savepoint, and is killed before the record, or another one is faster."""
    store, other = MemoryStore(), JobPaths("other")
    first, second = SavepointFolder(MemoryStore()), SavepointFolder(MemoryStore())
    first.write("first", manifest(), origin(), stopped=False)
    changed = origin()
    changed.log.store.files |= {**dict.fromkeys(INPUTS, b"changed"), "job/static/new/1.json": b"new"}  # type: ignore[attr-defined]
    second.write("second", manifest(), changed, stopped=False)
    append = EpochLog.append_fence

    def interrupted(log: EpochLog, fence: LogRecord) -> Created:
        monkeypatch.setattr(EpochLog, "append_fence", append)
        begin(second, EpochLog(store, other), "second", lambda: None, claim=False)
        if how == "killed":
            raise KeyboardInterrupt
        return append(log, fence)

    monkeypatch.setattr(EpochLog, "append_fence", interrupted)
    with pytest.raises(KeyboardInterrupt if how == "killed" else StoreError):
        begin(first, EpochLog(store, other), "first", lambda: None, claim=False)
    place_newest_inputs(EpochLog(store, other))
    read = {path: data for path, data in store.files.items() if path.split("/")[1] in ("sources", "static")}
    wanted = {path.replace("job/", "other/"): b"changed" for path in INPUTS}
    assert read == {**wanted, "other/static/new/1.json": b"new"}
    assert any("copy-first" in path for path in store.files) is (how == "killed")


@pytest.mark.promise("D5")
def test_a_savepoint_that_was_moved_can_be_read_at_its_new_place(tmp_path: Path) -> None:
    folder = SavepointFolder(DirectoryStore(tmp_path / "here"))
    folder.write("nightly", manifest(), origin(), stopped=True)
    shutil.move(tmp_path / "here", tmp_path / "elsewhere" / "deep")
    moved = SavepointFolder(DirectoryStore(tmp_path / "elsewhere" / "deep"))
    assert moved.head().stopped
    store = MemoryStore()
    copied = moved.copy_to(store, "job/copy")
    assert len([store.read(file.path) for state in copied.subtasks for file in state.files]) == 2


@pytest.mark.promise("D5")
def test_all_files_are_durable_before_the_savepoint_exists() -> None:
    synced: list[set[str]] = []

    class Watched(MemoryStore):
        def create(self, path: str, data: bytes) -> Created:
            synced.append({file for file in self.files.keys() - set(self.synced) if not file.endswith(".seal")})
            return super().create(path, data)

    SavepointFolder(Watched()).write("nightly", manifest(), origin(), stopped=False)
    assert synced == [set(), set()], "before the seal, which is created durably, and before the head"


@pytest.mark.promise("D5")
@pytest.mark.parametrize(
    "edit", [{"checkpoint": 99}, {"epoch": 0}, {"inputs": {"x": "1"}}, {"inputs": {}}, {"job_id": ""}]
)
def test_a_head_that_was_edited_is_named_and_one_of_an_earlier_version_is_read(edit: dict[str, Any]) -> None:
    """Other inputs in `savepoint.json` ended the start with an IndexError, or began the job without its inputs."""
    target = MemoryStore()
    folder = SavepointFolder(target)
    head = folder.write("nightly", manifest(), origin(), stopped=False)
    target.files["savepoint.json"] = msgspec.json.encode(msgspec.structs.replace(head, **edit))
    with pytest.raises(CorruptSnapshot, match=r"savepoint.json is not what was written: its checksum differs"):
        folder.copy_to(MemoryStore(), "other/copy")
    target.files["savepoint.json"] = msgspec.json.encode(msgspec.structs.replace(head, seal=""))
    assert folder.head().checkpoint == head.checkpoint


def test_a_savepoint_is_never_replaced() -> None:
    folder = SavepointFolder(MemoryStore())
    first = folder.write("nightly", manifest(), origin(), stopped=False)
    with pytest.raises(SavepointExists, match="choose another name, or delete it with weir savepoint delete"):
        folder.write("nightly", manifest(SECOND), origin(), stopped=False)
    assert folder.head() == first


def test_of_two_writers_one_makes_the_savepoint_and_the_other_leaves_nothing() -> None:
    target = MemoryStore()
    folder = SavepointFolder(target)

    class Raced(MemoryStore):
        """Another writer is quicker: it makes the savepoint while this one reads its inputs."""

        def list(self, prefix: str) -> list[str]:
            if prefix == "job/static":
                folder.write("nightly", manifest(SECOND), origin(), stopped=False)
            return super().list(prefix)

    with pytest.raises(SavepointExists):
        folder.write("nightly", manifest(FIRST), origin(Raced()), stopped=False)
    assert folder.head().manifest == "1d-0002-0001-0000007/manifest.json"
    assert [path for path in target.files if path.startswith("1d-0001")] == []
    assert len(folder.manifest().subtasks) == 2


@pytest.mark.parametrize("of", ["seal", "head"])
@pytest.mark.parametrize("made", [True, False])
def test_a_lost_answer_is_asked_for_again(made: bool, of: str) -> None:
    target = MemoryStore()
    lost = (Created.UNKNOWN, made)
    target.answers = [lost] if of == "seal" else [(Created.CREATED, True), lost]
    folder = SavepointFolder(target)
    folder.write("nightly", manifest(), origin(), stopped=False)
    assert folder.head().name == "nightly"
    assert len(folder.manifest().subtasks) == 2
    folder.copy_to(MemoryStore(), "copy")


def test_a_store_that_never_answers_is_told_and_the_files_stay_if_the_savepoint_exists() -> None:
    target = MemoryStore()
    sealed = (Created.CREATED, True)
    target.answers = [sealed, (Created.UNKNOWN, True)] + [(Created.UNKNOWN, False)] * 9
    folder = SavepointFolder(target)
    with pytest.raises(StoreError, match="look with weir savepoints"):
        folder.write("nightly", manifest(), origin(), stopped=False)
    assert len(folder.manifest().subtasks) == 2


def test_a_savepoint_that_was_made_without_an_answer_keeps_its_files_if_the_store_then_fails() -> None:
    class Failing(MemoryStore):
        def create(self, path: str, data: bytes) -> Created:
            if path.endswith(".seal"):
                return super().create(path, data)
            if path in self.files:
                raise StoreError("no connection")
            super().create(path, data)
            return Created.UNKNOWN

    folder = SavepointFolder(Failing())
    with pytest.raises(StoreError, match="no connection"):
        folder.write("nightly", manifest(), origin(), stopped=False)
    assert len(folder.manifest().subtasks) == 2


def test_a_create_that_is_carried_out_after_the_last_look_finds_its_files() -> None:
    """The store may still make `savepoint.json` after it was asked in vain: then the savepoint has to be whole."""
    sent: list[bytes] = []

    class Late(MemoryStore):
        def create(self, path: str, data: bytes) -> Created:
            if path.endswith(".seal"):
                return super().create(path, data)
            sent.append(data)
            return Created.UNKNOWN

    late = Late()
    folder = SavepointFolder(late)
    with pytest.raises(StoreError, match="look with weir savepoints"):
        folder.write("nightly", manifest(), origin(), stopped=False)
    late.files["savepoint.json"] = sent[-1]
    assert len(folder.manifest().subtasks) == 2
    folder.copy_to(MemoryStore(), "copy")


def test_a_create_that_is_carried_out_after_the_store_could_not_be_reached_finds_its_files() -> None:
    """The first try has no answer, the second finds no server: the first one may still be carried out."""
    sent: list[bytes] = []

    class Late(MemoryStore):
        def create(self, path: str, data: bytes) -> Created:
            if path.endswith(".seal"):
                return super().create(path, data)
            sent.append(data)
            if len(sent) > 1:
                raise StoreError("no connection")
            return Created.UNKNOWN

    late = Late()
    folder = SavepointFolder(late)
    with pytest.raises(StoreError, match="no connection"):
        folder.write("nightly", manifest(), origin(), stopped=False)
    late.files["savepoint.json"] = sent[0]
    assert len(folder.manifest().subtasks) == 2
    folder.copy_to(MemoryStore(), "copy")


@pytest.mark.parametrize("file", ["0.pv.0.panes.arrow", "orders.json", "manifest.json"])
def test_a_write_that_fails_leaves_no_savepoint_and_no_files(file: str) -> None:
    class Full(MemoryStore):
        def write(self, path: str, data: bytes) -> None:
            if path.endswith(file):
                raise StoreError("no space left")
            super().write(path, data)

    target = Full()
    folder = SavepointFolder(target)
    with pytest.raises(StoreError):
        folder.write("nightly", manifest(), origin(), stopped=False)
    assert not folder.exists() and target.files == {}


def test_a_snapshot_whose_file_was_changed_becomes_no_savepoint() -> None:
    store = MemoryStore()
    source = origin(store)
    store.files[list(STATE)[-1]] = b"other"
    target = MemoryStore()
    folder = SavepointFolder(target)
    with pytest.raises(CorruptSnapshot, match="its checksum differs"):
        folder.write("nightly", manifest(), source, stopped=False)
    assert not folder.exists() and target.files == {}


def in_a_directory(folder: Path) -> Origin:
    store = DirectoryStore(folder)
    for path, data in {**STATE, **INPUTS, JOB.log_record(1): b""}.items():
        store.write(path, data)
    return Origin(EpochLog(store, JOB), "1d", 4)


@pytest.mark.promise("D5")
def test_a_snapshot_whose_file_was_cut_becomes_no_savepoint_also_if_its_files_are_only_linked(tmp_path: Path) -> None:
    """Nobody reads a file that is linked. Its size was not compared either: the savepoint could not be restored."""
    source, folder = in_a_directory(tmp_path / "store"), SavepointFolder(DirectoryStore(tmp_path / "saved"))
    cut = next(iter(STATE))
    (tmp_path / "store" / cut).write_bytes(b"zer")
    with pytest.raises(CorruptSnapshot, match=f"{cut} is not what was written: it has 3 bytes instead of 4"):
        folder.write("nightly", manifest(), source, stopped=False)
    assert not folder.exists() and folder.store.list("") == []


@pytest.mark.promise("D5")
def test_a_linked_file_that_was_changed_is_found_when_the_savepoint_is_restored_and_nothing_of_it_counts(
    tmp_path: Path,
) -> None:
    """The checkpoint and its savepoint share the content of the file: a fault of the disk damages both."""
    source, folder = in_a_directory(tmp_path / "store"), SavepointFolder(DirectoryStore(tmp_path / "saved"))
    folder.write("nightly", manifest(), source, stopped=False)
    linked = next((tmp_path / "saved").rglob("0.pv.0.panes.arrow"))
    assert linked.samefile(tmp_path / "store" / next(iter(STATE)))
    linked.write_bytes(b"ZERO")
    new = EpochLog(DirectoryStore(tmp_path / "other"), JobPaths("new"))
    with pytest.raises(CorruptSnapshot, match=r"0\.pv\.0\.panes\.arrow is not what was written: its checksum differs"):
        begin(folder, new, "me", lambda: None, claim=False)
    assert new.last() is None


@pytest.mark.parametrize("damage", ["missing", "cut", "changed"])
@pytest.mark.parametrize("file", ["manifest.json", "0.pv.0.panes.arrow", "orders/part-0.parquet"])
def test_a_damaged_savepoint_is_told_by_the_name_of_its_file(damage: str, file: str) -> None:
    target = MemoryStore()
    folder = SavepointFolder(target)
    folder.write("nightly", manifest(), origin(), stopped=False)
    path = next(path for path in target.files if path.endswith(file))
    match damage:
        case "missing":
            del target.files[path]
        case "cut":
            target.files[path] = target.files[path][:-1]
        case _:
            target.files[path] = b"x" * len(target.files[path])
    with pytest.raises(CorruptSnapshot, match=file):
        folder.copy_to(MemoryStore(), "job/copy")


@pytest.mark.promise("D5", "C4")
def test_a_damaged_savepoint_leaves_nothing_of_a_job_that_was_to_begin_from_it() -> None:
    """Its first file is copied before the second is found damaged. It may be as large as the job's state."""
    target, store = MemoryStore(), MemoryStore()
    folder = SavepointFolder(target)
    folder.write("nightly", manifest(), origin(), stopped=False)
    target.files[next(path for path in target.files if path.endswith("1.pv.1.panes.arrow"))] = b"other"
    with pytest.raises(CorruptSnapshot, match="its checksum differs"):
        begin(folder, EpochLog(store, JobPaths("other")), "me", lambda: None, claim=False)
    assert store.files == {}


def test_a_folder_without_a_savepoint_says_so() -> None:
    target = MemoryStore()
    target.write("other.txt", b"")
    with pytest.raises(NoSavepoint, match=r"there is no savepoint in .*: it has no savepoint\.json"):
        SavepointFolder(target).head()


def test_a_damaged_head_and_another_format_are_told_apart() -> None:
    target = MemoryStore()
    folder = SavepointFolder(target)
    made = folder.write("nightly", manifest(), origin(), stopped=False)
    target.files["savepoint.json"] = msgspec.json.encode(msgspec.structs.replace(made, format=9))
    with pytest.raises(ForeignSnapshot, match="has format 9, and this version of Weir reads 1"):
        folder.head()
    target.files["savepoint.json"] = b'{"name": '
    with pytest.raises(CorruptSnapshot, match="is damaged"):
        folder.head()


@pytest.mark.promise("D5")
def test_delete_removes_the_savepoint_and_nothing_else() -> None:
    target = MemoryStore()
    target.write("mine/notes.txt", b"")
    folder = SavepointFolder(target)
    folder.write("nightly", manifest(), origin(), stopped=False)
    folder.delete()
    assert list(target.files) == ["mine/notes.txt"]
    with pytest.raises(NoSavepoint):
        folder.delete()


def test_a_delete_that_dies_leaves_no_savepoint() -> None:
    class Dying(MemoryStore):
        def delete(self, path: str) -> None:
            if path != "savepoint.json":
                raise StoreError("dead")
            super().delete(path)

    folder = SavepointFolder(Dying())
    folder.write("nightly", manifest(), origin(), stopped=False)
    with pytest.raises(StoreError):
        folder.delete()
    assert not folder.exists()


def test_a_place_that_can_not_be_written_is_named_and_not_the_file_that_was_tried(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError) as told:
        SavepointFolder(Below(DirectoryStore(tmp_path), "file/p2")).check_new()
    assert str(told.value) == f"can't write {tmp_path}/file/p2: Not a directory"
