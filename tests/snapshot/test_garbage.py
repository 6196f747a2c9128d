"""Garbage of a job: what replaced JobMasters left. Epochs, savepoints and the newest generation are never garbage."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from engine.connectors.table.folds import ALL_RECORDS, Fold, FoldLog, folded_name
from engine.connectors.table.log import Entries, TableLog
from engine.core.errors import CorruptSnapshot, SavepointExists, StoreError
from engine.core.paths import JobPaths
from engine.jobmaster.collecting import collect
from engine.protocol.epoch_records import Created, LogRecord, RecordKind, fence_after
from engine.protocol.ids import AttemptId, SubtaskId
from engine.protocol.job_description import JobDescription, SinkDescription
from engine.protocol.manifest import Manifest, StateFile, SubtaskState
from engine.snapshot import epoch_log as log_module
from engine.snapshot.epoch_log import EpochLog
from engine.snapshot.garbage import find_garbage, settle_savepoints
from engine.snapshot.retention import Needs, disposable
from engine.snapshot.savepoints import DeletedMeanwhile, Origin, SavepointFolder, writer_of
from engine.snapshot.statefile import checksum
from tests.fakes import MemoryStore
from tests.store.flickering import Flickering

PATHS = JobPaths("job")


class Job:
    """A job whose JobMasters publish epochs, and leave checkpoints that they did not publish."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        self.store = store or MemoryStore()
        self.log = EpochLog(self.store, PATHS)
        self.record: LogRecord | None = None
        self.restart()

    @property
    def id(self) -> str:
        assert self.record is not None
        return self.record.job_id

    def restart(self) -> None:
        self.record = fence_after(self.record, f"owner{self.record.generation + 1 if self.record else 1}")
        assert self.log.append(self.record) is Created.CREATED

    def checkpoint(self, shared: list[StateFile] | None = None) -> Manifest:
        """Writes the files of the next checkpoint; nobody has published it."""
        assert self.record is not None
        number, attempt = self.record.next_checkpoint, AttemptId(self.record.generation, 1)
        path = PATHS.state_file(attempt, number, "pv", SubtaskId("pv", 0), "panes")
        self.store.write(path, b"state")
        file = StateFile("pv", "panes", path, 5, checksum(b"state"), 1)
        state = SubtaskState(SubtaskId("pv", 0), [file, *(shared or [])], {})
        epoch = self.record.newest.epoch + 1 if self.record.newest else 1
        return Manifest("job", epoch, number, attempt, 0, 128, [state], [], [], {})

    def publish(self, shared: list[StateFile] | None = None) -> Manifest:
        assert self.record is not None
        manifest = self.checkpoint(shared)
        self.record = self.log.publish(self.record, self.log.write_manifest(manifest))
        return manifest


def killed(folder: SavepointFolder, writer: str, head: bytes) -> bool:
    raise KeyboardInterrupt


def killed_right_before_its_head(monkeypatch: pytest.MonkeyPatch) -> tuple[Job, SavepointFolder]:
    """Returns a job whose JobMaster was replaced, and its savepoint, of which only the head is missing."""
    job = Job()
    manifest = job.publish()
    folder = SavepointFolder(job.store.below(PATHS.savepoint("nightly")))
    with monkeypatch.context() as died:
        died.setattr(SavepointFolder, "_made", killed)
        with pytest.raises(KeyboardInterrupt):
            folder.write("nightly", manifest, Origin(job.log, job.id, 1), stopped=False)
    job.restart()
    return job, folder


def folders(job: Job) -> list[str]:
    return [one.path for one in find_garbage(job.log)]


@pytest.mark.promise("C4")
def test_a_checkpoint_of_a_fenced_generation_that_no_epoch_names_is_garbage() -> None:
    job = Job()
    job.publish()
    job.checkpoint()
    assert folders(job) == [], "the JobMaster may still publish it"
    job.restart()
    assert folders(job) == ["job/gen-0001/chk-0000002"]
    kept = set(job.store.files) - {"job/gen-0001/chk-0000002/1/pv.0.panes.arrow"}
    dry = collect(job.store, "job", dry_run=True)
    assert set(job.store.files) > kept
    assert collect(job.store, "job", dry_run=False).collected == dry.collected
    assert set(job.store.files) == kept and dry.bytes == 5
    assert collect(job.store, "job", dry_run=False).collected == []


@pytest.mark.promise("C4")
def test_the_bytes_of_garbage_are_counted_without_reading_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket would send all of it, only to say how much it is."""
    job = Job()
    job.checkpoint()
    job.restart()
    read = job.store.read

    def records_only(path: str) -> bytes:
        assert path.endswith(".json"), path
        return read(path)

    monkeypatch.setattr(job.store, "read", records_only)
    assert collect(job.store, "job", dry_run=True).bytes == 5


def test_a_checkpoint_whose_files_a_later_epoch_uses_is_needed() -> None:
    job = Job()
    first = job.checkpoint()
    job.restart()
    job.publish(shared=first.subtasks[0].files)
    job.restart()
    assert folders(job) == []


@pytest.mark.promise("D9")
def test_a_snapshot_that_was_claimed_with_a_savepoint_is_left_to_the_jobmaster_which_deletes_both() -> None:
    job = Job()
    job.publish()
    job.checkpoint()
    job.store.write("job/gen-0001/chk-0000002/copy-x/claimed.json", b"{}")
    job.restart()
    assert folders(job) == []


@pytest.mark.promise("C4")
def test_a_running_job_and_gc_need_the_same_snapshots() -> None:
    """An epoch needs the snapshots that its files lie in, whoever asks."""
    job = Job()
    first = job.checkpoint()
    job.restart()
    job.publish()
    shared = job.publish(shared=first.subtasks[0].files)
    last = job.log.last()
    assert last is not None and last.newest is not None
    fresh, remembers = Needs(job.log), Needs(job.log)
    remembers.add(last.newest, shared)
    assert fresh.of([last.newest]) == remembers.of([last.newest]) == {(1, 1), (2, 2)}
    files = job.store.list("job")
    assert disposable(PATHS, files, [last.newest], fresh.of([last.newest]), 2) == ["job/gen-0002/chk-0000001"]


def test_if_a_record_or_a_manifest_is_damaged_nothing_is_garbage() -> None:
    for damaged in ("job/log/0000000002.json", "job/gen-0001/chk-0000001/1/manifest.json"):
        job = Job()
        job.publish()
        job.checkpoint()
        job.restart()
        job.store.files[damaged] += b"x"
        with pytest.raises(CorruptSnapshot):
            find_garbage(job.log)
        found = collect(job.store, "job", dry_run=False)
        assert found.collected == [] and damaged in found.problems[0]


@pytest.mark.promise("C4", "H8")
def test_if_the_store_is_away_for_a_moment_no_epoch_s_snapshot_is_garbage() -> None:
    """A mount that is gone leaves an empty folder: then no record is found, and no epoch seems to need anything."""
    for first in range(1, 40):
        for calls in (1, 2, 5, 40):
            store = Flickering()
            job = Job(store)
            job.publish()
            job.publish()
            job.restart()
            kept = set(store.files)
            store.calls, store.gone = 0, range(first, first + calls)
            collect(store, "job", dry_run=False)
            assert set(store.files) == kept, f"away from call {first} on, for {calls}"


def test_a_damaged_table_is_told_as_a_problem_of_its_job_and_holds_up_no_other_job() -> None:
    job = Job()
    manifest = job.checkpoint()
    sink = SinkDescription("out", "table", "pv", "pv", [], 1)
    manifest = msgspec.structs.replace(manifest, description=JobDescription(sinks=[sink]))
    assert job.record is not None
    job.record = job.log.publish(job.record, job.log.write_manifest(manifest))
    job.store.write("job/tables/pv/_folds/0000000001.json", b"damaged")
    found = collect(job.store, "job", dry_run=False)
    assert found.collected == [] and "0000000001.json is not what Weir wrote" in found.problems[0]


def test_a_folded_file_that_no_fold_names_is_deleted_but_not_in_a_dry_run() -> None:
    job = Job()
    sink = SinkDescription("out", "table", "pv", "pv", [], 1)
    manifest = msgspec.structs.replace(job.checkpoint(), description=JobDescription(sinks=[sink]))
    assert job.record is not None
    job.record = job.log.publish(job.record, job.log.write_manifest(manifest))
    assert job.record is not None
    TableLog(job.store, "job/tables/pv").create(0, Entries([], sealed=True))
    FoldLog(job.store, "job/tables/pv").append(Fold(1, 2, ALL_RECORDS, {}, []))
    orphan = f"job/tables/pv/{folded_name(job.record.job_id, 1, 1, 1, 1)}"
    others = f"job/tables/pv/{folded_name('ab', 1, 1, 1, 1)}"
    for path in (orphan, others):
        job.store.write(path, b"rows")
    assert [one.path for one in collect(job.store, "job", dry_run=True).collected] == [orphan]
    assert orphan in job.store.files
    collect(job.store, "job", dry_run=False)
    assert orphan not in job.store.files
    assert others in job.store.files, "another job has made it"


def test_without_a_log_nothing_is_garbage_because_a_fork_may_be_under_way() -> None:
    store = MemoryStore()
    store.write("job/gen-0001/chk-0000001/copy-x/manifest.json", b"")
    assert find_garbage(EpochLog(store, PATHS)) == []


@pytest.mark.promise("D5")
def test_a_savepoint_is_never_garbage_and_what_its_replaced_writer_left_is() -> None:
    job = Job()
    manifest = job.publish()
    folder = SavepointFolder(job.store.below(PATHS.savepoint("nightly")))
    folder.write("nightly", manifest, Origin(job.log, job.id, 1), stopped=False)
    left = [f"job/savepoints/half/{job.id}-0001-0001-0000009", f"job/savepoints/nightly/{job.id}-0001-0002-0000009"]
    for writer in (*left, "job/savepoints/half/0ther-0001-0001-0000003"):
        job.store.write(f"{writer}/0.pv.arrow", b"state")
    assert folders(job) == []
    job.restart()
    assert folders(job) == left, "another job writes its savepoint here, and nobody knows whether that writer died"
    collect(job.store, "job", dry_run=False)
    assert folder.manifest().epoch == 1
    assert job.store.list("job/savepoints/half") == [
        "job/savepoints/half/0ther-0001-0001-0000003/0.pv.arrow",
        f"{left[0]}.seal",
    ]


@pytest.mark.promise("D5", "F2")
def test_a_jobmaster_that_sleeps_while_its_savepoint_is_collected_makes_none_of_deleted_files() -> None:
    """It is stopped (SIGSTOP) before the last step of a savepoint; another takes over; weir gc runs; it wakes up."""
    job = Job()
    manifest = job.publish()
    folder, origin = SavepointFolder(job.store.below(PATHS.savepoint("nightly"))), Origin(job.log, job.id, 1)
    draft = folder.prepare(manifest, origin)
    job.restart()
    (found,) = collect(job.store, "job", dry_run=True).collected
    assert collect(job.store, "job", dry_run=False).collected == [found]
    with pytest.raises(StoreError, match="another JobMaster runs the job"):
        folder.finish(draft, "nightly", manifest, 1, stopped=False)
    assert not folder.exists()
    assert collect(job.store, "job", dry_run=False).collected == []


@pytest.mark.promise("D5", "F2")
def test_a_savepoint_whose_writer_is_about_to_make_it_is_not_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The JobMaster that was replaced sleeps in the very last step, and wakes up after weir gc."""
    job = Job()
    manifest = job.publish()
    folder = SavepointFolder(job.store.below(PATHS.savepoint("nightly")))
    made = SavepointFolder._made

    def slept(self: SavepointFolder, writer: str, data: bytes) -> bool:
        monkeypatch.setattr(SavepointFolder, "_made", made)
        job.restart()
        assert collect(job.store, "job", dry_run=False).collected == []
        return made(self, writer, data)

    monkeypatch.setattr(SavepointFolder, "_made", slept)
    folder.write("nightly", manifest, Origin(job.log, job.id, 1), stopped=False)
    assert folder.manifest().epoch == 1
    assert folder.copy_to(MemoryStore(), "new/copy").epoch == 1


@pytest.mark.promise("D5", "F2", "C4")
@pytest.mark.parametrize("wakes_up", [False, True], ids=["killed", "asleep"])
def test_a_savepoint_whose_writer_was_killed_right_before_its_head_is_completed_and_can_be_deleted(
    monkeypatch: pytest.MonkeyPatch, wakes_up: bool
) -> None:
    """Its files stayed for good: neither weir gc nor weir savepoint delete removed them."""
    job = Job()
    manifest = job.publish()
    folder, origin = SavepointFolder(job.store.below(PATHS.savepoint("nightly"))), Origin(job.log, job.id, 1)
    draft = folder.prepare(manifest, origin)

    with monkeypatch.context() as died:
        died.setattr(SavepointFolder, "_made", killed)
        with pytest.raises(KeyboardInterrupt):
            folder.finish(draft, "nightly", manifest, 1, stopped=False)
    assert collect(job.store, "job", dry_run=False).completed == [], "its JobMaster may run"
    job.restart()
    before = set(job.store.files)
    dry = collect(job.store, "job", dry_run=True)
    assert (dry.completed, dry.collected) == (["job/savepoints/nightly"], []) and set(job.store.files) == before
    done = collect(job.store, "job", dry_run=False)
    assert (done.completed, done.collected, done.problems) == (dry.completed, [], [])
    assert folder.head().name == "nightly" and folder.copy_to(MemoryStore(), "new/copy").epoch == 1
    if wakes_up:
        assert folder.finish(draft, "nightly", manifest, 1, stopped=False) == folder.head(), "it finds its own"
    assert collect(job.store, "job", dry_run=False).completed == []
    folder.delete()
    assert job.store.list(PATHS.savepoints()) == []


@pytest.mark.promise("D5", "F2", "C4")
def test_a_writer_that_was_killed_right_before_its_head_loses_to_a_later_savepoint_of_the_same_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = Job()
    manifest = job.publish()
    folder, origin = SavepointFolder(job.store.below(PATHS.savepoint("nightly"))), Origin(job.log, job.id, 1)
    draft = folder.prepare(manifest, origin)
    with monkeypatch.context() as died:
        died.setattr(SavepointFolder, "_made", killed)
        with pytest.raises(KeyboardInterrupt):
            folder.finish(draft, "nightly", manifest, 1, stopped=False)
    job.restart()
    later = job.publish()
    folder.write("nightly", later, Origin(job.log, job.id, 2), stopped=False)
    left = f"job/savepoints/nightly/{draft.writer}"
    assert [one.path for one in collect(job.store, "job", dry_run=True).collected] == [left]
    assert [one.path for one in collect(job.store, "job", dry_run=False).collected] == [left]
    assert folder.manifest().epoch == 2 and not job.store.list(left)
    with pytest.raises(StoreError, match="another JobMaster runs the job"):
        folder.finish(draft, "nightly", manifest, 1, stopped=False)


@pytest.mark.promise("D5", "C4")
@pytest.mark.parametrize("lost", ["manifest.json", "0.pv.0.panes.arrow"])
def test_a_savepoint_without_a_head_of_which_a_file_is_gone_is_not_completed(
    monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    job, folder = killed_right_before_its_head(monkeypatch)
    (path,) = [path for path in job.store.list(PATHS.savepoints()) if path.endswith(lost)]
    job.store.delete(path)
    listed = collect(job.store, "job", dry_run=True).collected
    done = collect(job.store, "job", dry_run=False)
    assert done.completed == [] and not folder.exists()
    assert done.collected == listed and len(listed) == 1, "what can't be completed is garbage"
    assert [path for path in job.store.list(PATHS.savepoints()) if not path.endswith(".seal")] == []


@pytest.mark.promise("C4", "D5")
@pytest.mark.parametrize(
    ("head", "said"),
    [
        (b'{"name": ', r"savepoints/a/savepoint.json is damaged .*: bring it back from a backup, or delete the folder"),
        (b'{"format": 9}', r"has format 9, and this version of Weir reads 1: use the version that wrote it$"),
    ],
)
def test_a_savepoint_whose_head_is_damaged_or_of_another_version_keeps_its_folder_and_nothing_else(
    head: bytes, said: str
) -> None:
    """`weir gc` gave up at it, and deleted nothing of the job from then on. It advised a backup for another version."""
    job = Job()
    folder = SavepointFolder(job.store.below(PATHS.savepoint("a")))
    folder.write("a", job.publish(), Origin(job.log, job.id, 1), stopped=False)
    job.store.files["job/savepoints/a/savepoint.json"] = head
    for name in "ab":
        job.store.write(f"job/savepoints/{name}/{job.id}-0001-0002-0000009/0.pv.arrow", b"state")
    job.restart()
    before = {path for path in job.store.files if path.startswith("job/savepoints/a/")}
    done = collect(job.store, "job", dry_run=False)
    assert [one.path for one in done.collected] == [f"job/savepoints/b/{job.id}-0001-0002-0000009"]
    (problem,) = done.problems
    assert re.search(said, problem)
    assert before <= set(job.store.files)


@pytest.mark.promise("C4")
def test_a_probe_that_a_killed_jobmaster_left_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job()
    job.publish()
    folder = SavepointFolder(job.store.below(PATHS.savepoint("nightly")))
    with monkeypatch.context() as died:
        died.setattr(MemoryStore, "delete", lambda store, path: killed(folder, "", b""))
        with pytest.raises(KeyboardInterrupt):
            folder.check_new()
    assert job.store.list(PATHS.savepoints())
    (found,) = collect(job.store, "job", dry_run=False).collected
    assert "whether it may write there" in found.why and job.store.list(PATHS.savepoints()) == []


@pytest.mark.promise("D5")
def test_the_state_of_an_operator_whose_uid_begins_like_a_probe_stays_in_its_savepoint() -> None:
    job = Job()
    manifest = job.publish()
    into = f"{PATHS.savepoint('nightly')}/{writer_of(job.id, manifest.attempt, 1)}"
    path = PATHS.state_file(manifest.attempt, 1, "probe-pv", SubtaskId("pv", 0), "panes", into=into)
    job.store.write(path, b"state")  # as slots do
    file = StateFile("probe-pv", "panes", path, 5, checksum(b"state"), 1)
    state = SubtaskState(SubtaskId("pv", 0), [file], {})
    folder = SavepointFolder(job.store.below(PATHS.savepoint("nightly")))
    folder.write(
        "nightly", msgspec.structs.replace(manifest, subtasks=[state]), Origin(job.log, job.id, 1), stopped=False
    )
    made = job.store.list(PATHS.savepoints())
    assert any(name.rsplit("/", 1)[-1].startswith("probe-") for name in made)
    job.restart()
    settle_savepoints(job.log)
    assert collect(job.store, "job", dry_run=False).collected == [] and job.store.list(PATHS.savepoints()) == made


class Refusing:
    """A store that deletes nothing whose path has this text in it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
        delete = MemoryStore.delete

        def deletes(store: MemoryStore, path: str) -> None:
            if text in path:
                raise StoreError(f"can't delete {path}: Operation not permitted")
            delete(store, path)

        monkeypatch.setattr(MemoryStore, "delete", deletes)


@pytest.mark.promise("C4")
@pytest.mark.parametrize("by_jobmaster", [True, False])
def test_a_savepoint_that_can_not_be_deleted_keeps_no_other_one(
    monkeypatch: pytest.MonkeyPatch, by_jobmaster: bool
) -> None:
    job = Job()
    job.publish()
    writer = f"{job.id}-0001-0001-0000001"
    for name in ("a", "b"):
        job.store.write(f"{PATHS.savepoint(name)}/{writer}/pv.arrow", b"state")
    job.restart()
    Refusing(monkeypatch, f"{PATHS.savepoint('a')}/")
    if by_jobmaster:
        with pytest.raises(StoreError, match="not permitted"):
            settle_savepoints(job.log)
    else:
        (problem,) = collect(job.store, "job", dry_run=False).problems
        assert "not permitted" in problem
    left = [path for path in job.store.list(PATHS.savepoints()) if path.endswith(".arrow")]
    assert left == [f"{PATHS.savepoint('a')}/{writer}/pv.arrow"]


@pytest.mark.promise("D5")
def test_while_a_seal_can_neither_be_written_nor_deleted_no_file_of_its_savepoint_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise a writer that sleeps right before its head would find its seal, and make a savepoint without files."""
    job, folder = killed_right_before_its_head(monkeypatch)
    before = dict(job.store.files)
    (writer,) = {path.split("/")[3] for path in before if path.startswith(PATHS.savepoints()) and path.count("/") > 3}
    write = MemoryStore.write

    def writes(store: MemoryStore, path: str, data: bytes) -> None:
        if path.endswith(".seal"):
            raise StoreError("no space left on device")
        write(store, path, data)

    Refusing(monkeypatch, ".seal")
    monkeypatch.setattr(MemoryStore, "write", writes)
    folder.forget(writer)
    assert job.store.files == before


class Sleeping:
    """Lets something happen once, right before or after a process creates a file whose name ends like this."""

    def __init__(
        self, patch: pytest.MonkeyPatch, name: str, happens: Callable[[], None], *, after: bool = False
    ) -> None:
        create = MemoryStore.create

        def created(store: MemoryStore, path: str, data: bytes) -> Created:
            if not path.endswith(name):
                return create(store, path, data)
            patch.setattr(MemoryStore, "create", create)
            if not after:
                happens()
            outcome = create(store, path, data)
            if after:
                happens()
            return outcome

        patch.setattr(MemoryStore, "create", created)


@pytest.mark.promise("D5", "F2")
@pytest.mark.parametrize("after", [False, True], ids=["before its head", "behind its head"])
@pytest.mark.parametrize("died", [0, 1, 2, 3], ids=lambda n: f"{n} deletes")
def test_a_savepoint_that_is_deleted_while_its_writer_sleeps_does_not_come_back_without_files(
    monkeypatch: pytest.MonkeyPatch, after: bool, died: int
) -> None:
    """Its JobMaster is replaced, `weir gc` completes the savepoint, a person deletes it; then the JobMaster wakes up.

    The person's command may die on the way, before each of its deletes. If it dies before the first one, `weir gc` has
    made a savepoint that is whole: it stays, and the person deletes it again.
    """
    job = Job()
    manifest = job.publish()
    folder = SavepointFolder(job.store.below(PATHS.savepoint("nightly")))

    def meanwhile() -> None:
        job.restart()
        assert bool(collect(job.store, "job", dry_run=False).completed) != after
        delete, left = MemoryStore.delete, iter([True] * died)

        def dying(store: MemoryStore, path: str) -> None:
            if not next(left, False):
                raise StoreError("dead")
            delete(store, path)

        with monkeypatch.context() as patch, suppress(StoreError):
            patch.setattr(MemoryStore, "delete", dying)
            folder.delete()

    Sleeping(monkeypatch, "savepoint.json", meanwhile, after=after)
    with pytest.raises(DeletedMeanwhile, match="somebody has deleted the files"):
        folder.write("nightly", manifest, Origin(job.log, job.id, 1), stopped=False)
    assert folder.exists() == (died == 0 and not after)
    if folder.exists():
        assert folder.copy_to(MemoryStore(), "new/copy").epoch == 1
        folder.delete()
    assert collect(job.store, "job", dry_run=False).completed == []
    assert not any(path.endswith(".arrow") for path in job.store.list(PATHS.savepoints()))
    later = job.publish()
    folder.write("nightly", later, Origin(job.log, job.id, 2), stopped=False)
    assert folder.copy_to(MemoryStore(), "new/copy").epoch == 2, "the name is free again"


@pytest.mark.promise("D5", "F2")
def test_of_two_collectors_the_slower_one_does_not_bring_back_a_savepoint_that_was_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job, folder = killed_right_before_its_head(monkeypatch)

    def meanwhile() -> None:
        assert collect(job.store, "job", dry_run=False).completed == ["job/savepoints/nightly"]
        folder.delete()

    Sleeping(monkeypatch, "savepoint.json", meanwhile)
    done = collect(job.store, "job", dry_run=False)
    assert (done.completed, done.problems) == ([], [])
    assert not folder.exists() and job.store.list(PATHS.savepoints()) == []


@pytest.mark.promise("D5", "F2")
@pytest.mark.parametrize("call", ["exists", "_take_seal_away"])
@pytest.mark.parametrize("after", [False, True])
def test_a_writer_that_fails_while_its_savepoint_is_completed_leaves_a_whole_one_or_none(
    monkeypatch: pytest.MonkeyPatch, call: str, after: bool
) -> None:
    """Its store answers the last step with an error. It deletes its files, and `weir gc` completes meanwhile."""
    job = Job()
    manifest = job.publish()
    folder = SavepointFolder(job.store.below(PATHS.savepoint("nightly")))
    draft = folder.prepare(manifest, Origin(job.log, job.id, 1))
    meant = getattr(SavepointFolder, call)

    def beside(self: SavepointFolder, *args: str) -> Any:
        monkeypatch.setattr(SavepointFolder, call, meant)
        result = meant(self, *args) if after else None
        job.restart()
        collect(job.store, "job", dry_run=False)
        return result if after else meant(self, *args)

    def refuses(self: SavepointFolder, writer: str, head: bytes) -> bool:
        monkeypatch.setattr(SavepointFolder, "_made", made)
        monkeypatch.setattr(SavepointFolder, call, beside)
        raise StoreError("500")

    made = SavepointFolder._made
    monkeypatch.setattr(SavepointFolder, "_made", refuses)
    with pytest.raises(StoreError, match="500"):
        folder.finish(draft, "nightly", manifest, 1, stopped=False)
    if folder.exists():
        assert folder.copy_to(MemoryStore(), "new/copy").epoch == 1
    else:
        collect(job.store, "job", dry_run=False)
        assert not any(path.endswith(".arrow") for path in job.store.list(PATHS.savepoints()))


@pytest.mark.promise("D5", "C4")
@pytest.mark.parametrize("full", [False, True])
def test_what_a_delete_that_died_has_left_of_a_savepoint_is_garbage(
    monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    """It dies before each of its deletes in turn. The files are as large as the job's state.

    If the store is full, nothing can be noted for `weir gc`: the seal, from which it could be completed, goes first.
    """

    def no_space(store: MemoryStore, path: str, data: bytes) -> None:
        raise StoreError("No space left on device")

    for deletes in range(4 if full else 3):
        job = Job()
        folder = SavepointFolder(job.store.below(PATHS.savepoint("nightly")))
        folder.write("nightly", job.publish(), Origin(job.log, job.id, 1), stopped=False)
        job.restart()
        delete, left = MemoryStore.delete, iter([True] * deletes)

        def dying(store: MemoryStore, path: str, delete: Any = delete, left: Iterator[bool] = left) -> None:
            if not next(left, False):
                raise StoreError("dead")
            delete(store, path)

        with monkeypatch.context() as died:
            died.setattr(MemoryStore, "delete", dying)
            if full:
                died.setattr(MemoryStore, "write", no_space)
            with pytest.raises(StoreError, match="dead"):
                folder.delete()
        assert collect(job.store, "job", dry_run=False).completed == [], "what somebody deletes does not come back"
        states = [path for path in job.store.list(PATHS.savepoints()) if path.endswith(".arrow")]
        assert bool(states) == folder.exists() == (deletes <= full), f"after {deletes} deletes"


@pytest.mark.promise("D5", "C4")
def test_what_a_writer_leaves_that_was_slower_and_died_while_it_deleted_its_files_is_garbage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has sealed its files as written by then. They are as large as the job's state."""
    job = Job()
    folder = SavepointFolder(job.store.below(PATHS.savepoint("nightly")))
    manifest, origin = job.publish(), Origin(job.log, job.id, 1)
    slower = folder.prepare(manifest, origin)
    again = msgspec.structs.replace(manifest, attempt=AttemptId(1, 2))
    folder.write("nightly", again, origin, stopped=False)
    job.restart()

    def dying(store: MemoryStore, path: str) -> None:
        raise StoreError("dead")

    with monkeypatch.context() as died:
        died.setattr(MemoryStore, "delete", dying)
        with pytest.raises(SavepointExists):
            folder.finish(slower, "nightly", manifest, 1, stopped=False)
    left = f"{PATHS.savepoint('nightly')}/{slower.writer}"
    assert job.store.list(left)
    assert [one.path for one in collect(job.store, "job", dry_run=False).collected] == [left]
    assert not job.store.list(left)
    assert folder.manifest().attempt == AttemptId(1, 2)


# --- the epoch log ---


@pytest.fixture
def _few_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "KEPT_RECORDS", 5)


@pytest.mark.promise("C4", "F2")
@pytest.mark.usefixtures("_few_records")
def test_old_epoch_records_go_and_every_fence_stays_so_that_a_zombie_loses_whenever_it_wakes_up() -> None:
    job = Job()
    zombies = []
    for _ in range(4):
        for _ in range(6):
            manifest = job.publish()
        assert job.record is not None
        zombies.append((job.record, manifest))
        job.restart()
    assert job.log.trim(kept_from=23) == 19
    left = [job.log._record(number) for number in job.log._listed()]
    fences = [record.number for record in left if record is not None and record.kind is RecordKind.FENCE]
    assert fences == [1, 8, 15, 22, 29]
    assert [ref.epoch for ref in job.log.epochs()] == [24, 23, 22, 21, 20]
    for record, manifest in zombies:
        late = msgspec.structs.replace(manifest, epoch=manifest.epoch + 1, checkpoint=manifest.checkpoint + 1)
        with pytest.raises(log_module.Fenced):
            job.log.publish(record, job.log.write_manifest(late))


@pytest.mark.promise("F2", "C4")
@pytest.mark.usefixtures("_few_records")
@pytest.mark.parametrize("published", [0, 1])
def test_a_fence_that_comes_so_late_that_the_record_in_its_place_is_deleted_claims_nothing(published: int) -> None:
    """A bug: a JobMaster that slept in its claim took over from an epoch that retention had deleted, or from none."""
    job = Job()
    for _ in range(published):
        job.publish()
    seen = job.log.last()
    for _ in range(12):
        job.publish()
    job.log.trim(kept_from=12)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EpochLog, "last", lambda self: seen)  # the late one looked long ago
        assert job.log.claim("late") is None
    assert job.publish().epoch == published + 13, "the JobMaster that publishes was not replaced"
    claimed = job.log.claim("late")
    assert claimed is not None and claimed.generation == 2
    assert claimed.record.newest is not None and claimed.record.newest.epoch == published + 13


@pytest.mark.usefixtures("_few_records")
def test_a_trimmed_log_goes_on_and_keeps_the_epochs_that_are_retained() -> None:
    job = Job()
    for _ in range(30):
        job.publish()
    assert job.log.trim(kept_from=3) == 2, "epochs 3 and later are kept, and so is the first record"
    assert job.log.trim(kept_from=30) == 22
    job.restart()
    assert job.publish().epoch == 31
    assert [ref.epoch for ref in job.log.epochs()][:3] == [31, 30, 29]


@pytest.mark.usefixtures("_few_records")
def test_a_record_that_cannot_be_read_is_not_deleted() -> None:
    job = Job()
    for _ in range(12):
        job.publish()
    job.store.files["job/log/0000000003.json"] = b"{"
    job.log.trim(kept_from=12)
    assert "job/log/0000000003.json" in job.store.files and "job/log/0000000004.json" not in job.store.files
