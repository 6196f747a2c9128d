"""Beginning from a savepoint in the epoch log: behind an earlier start, beside another one, or once more.

Topology: a savepoint in memory, and the log of a job that has begun before, without an epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from engine.core.errors import StoreError
from engine.core.paths import JobPaths
from engine.protocol.epoch_records import Claimed, Created, epoch_after
from engine.protocol.ids import AttemptId
from engine.protocol.manifest import Manifest, ManifestRef
from engine.snapshot.beginning import begin, begun_from, delete_claimed, is_newest_epoch
from engine.snapshot.epoch_log import EpochLog
from engine.snapshot.savepoints import Origin, Savepoint, SavepointFolder
from engine.store.directory import DirectoryStore
from tests.fakes import MemoryStore

NEW = JobPaths("new")


def manifest(epoch: int = 4, checkpoint: int = 7) -> Manifest:
    return Manifest("job", epoch, checkpoint, AttemptId(1, 1), 1_700, 128, [], [], [], {})


def savepoint(*, stopped: bool = False) -> tuple[SavepointFolder, Savepoint]:
    log = EpochLog(MemoryStore(), JobPaths("job"))
    folder = SavepointFolder(MemoryStore())
    return folder, folder.write("s", manifest(), Origin(log, "1d", 4), stopped=stopped)


def started(store: MemoryStore | None = None) -> EpochLog:
    """The log of a job that was started once, and has no epoch."""
    log = EpochLog(store if store is not None else MemoryStore(), NEW)
    assert log.claim("earlier") is not None
    return log


@pytest.mark.promise("D5", "F2")
def test_a_job_that_was_started_before_keeps_its_id_and_its_earlier_jobmaster_is_fenced() -> None:
    log = started()
    earlier = log.last()
    assert earlier is not None
    begin(savepoint()[0], log, "me", lambda: None, claim=False)
    last = log.last()
    assert last is not None and last.newest is not None and last.newest.epoch == 0
    assert (last.number, last.generation, last.job_id) == (2, earlier.generation + 1, earlier.job_id)
    assert last.next_checkpoint > last.newest.checkpoint, "no checkpoint writes into the folder of the copy"
    assert list(log.epochs()) == [last.newest], "a JobMaster that takes over keeps the state that the job began with"


class Raced(MemoryStore):
    """A store in which others are quicker: they work right before a record is created, or right after it."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Callable[[], None] | None = None
        self.after: Callable[[], None] | None = None

    def create(self, path: str, data: bytes) -> Created:
        before, self.before = self.before, None
        if before is not None:
            before()
        created, after = super().create(path, data), self.after
        self.after = None
        if after is not None:
            after()
        return created


@pytest.mark.promise("F2")
@pytest.mark.parametrize("trimmed", [False, True])
def test_a_job_that_another_process_has_started_meanwhile_does_not_begin_from_the_savepoint(trimmed: bool) -> None:
    """Also if the other one has gone on so far that the record in the place of the fence is deleted."""
    store = Raced()
    log = started(store)

    def publish() -> None:
        record = log.last()
        for epoch in (1, 2, 3):
            assert record is not None
            record = epoch_after(record, ManifestRef(f"new/{epoch}", "", epoch, epoch))
            assert log.append(record) is Created.CREATED
        if trimmed:
            store.delete(NEW.log_record(2))

    store.before = publish
    with pytest.raises(StoreError, match="another process has just started job 'new'"):
        begin(savepoint()[0], log, "me", lambda: None, claim=True)
    last = log.last()
    assert last is not None and last.newest is not None and last.newest.epoch == 3
    assert not [path for path in store.files if path.endswith("claimed.json")]


@pytest.mark.promise("D5", "F2")
def test_a_jobmaster_that_goes_on_right_behind_the_fence_finds_the_state_that_it_names() -> None:
    """The copy was deleted, because the fence was not the newest record any more, although the log names the copy."""
    store = Raced()
    log = started(store)
    store.after = lambda: claims.append(log.claim("another"))
    claims: list[Claimed | None] = []
    with pytest.raises(StoreError, match="another process has just started job 'new'"):
        begin(savepoint()[0], log, "me", lambda: None, claim=False)
    last = log.last()
    assert claims and last is not None and last.owner == "another" and last.newest is not None
    assert log.read_manifest(last.newest).epoch == 0


@pytest.mark.promise("D9")
def test_a_claim_is_durable_when_the_job_has_begun() -> None:
    store = MemoryStore()
    begin(savepoint()[0], EpochLog(store, NEW), "me", lambda: None, claim=True)
    assert [path for path in store.synced if path.endswith("claimed.json")]


@pytest.mark.promise("D5", "D9")
@pytest.mark.parametrize("replaced", [False, True])
def test_a_claimed_savepoint_goes_with_its_job_but_not_another_one_that_has_taken_its_place(
    replaced: bool, tmp_path: Path
) -> None:
    folder, store = SavepointFolder(DirectoryStore(tmp_path)), MemoryStore()
    origin = Origin(EpochLog(MemoryStore(), JobPaths("job")), "1d", 4)
    folder.write("s", manifest(), origin, stopped=False)
    begin(folder, EpochLog(store, NEW), "me", lambda: None, claim=True)
    if replaced:
        folder.delete()
        folder.write("s", manifest(checkpoint=9), origin, stopped=False)
    delete_claimed(store, list(store.files))
    assert folder.exists() is replaced


def test_only_the_savepoint_that_a_job_has_begun_from_is_the_same_one() -> None:
    folder, head = savepoint()
    log = EpochLog(MemoryStore(), NEW)
    begin(folder, log, "me", lambda: None, claim=False)
    assert begun_from(log, head)
    assert not begun_from(log, msgspec.structs.replace(head, created_ms=head.created_ms + 1))
    assert not begun_from(log, msgspec.structs.replace(head, checkpoint=head.checkpoint + 1))


def test_a_savepoint_is_the_newest_epoch_only_of_the_job_that_stopped_with_it() -> None:
    """Two jobs may both be at epoch 4, behind checkpoint 7."""
    log = started()
    record = log.last()
    assert record is not None
    record = msgspec.structs.replace(
        record, number=2, newest=ManifestRef("new/m", "", 4, 7), next_checkpoint=8, checksum=""
    )
    assert log.append(record) is Created.CREATED
    _, head = savepoint(stopped=True)
    own = msgspec.structs.replace(head, job_id=record.job_id)
    assert is_newest_epoch(log, own) and not is_newest_epoch(log, head)
    assert not is_newest_epoch(log, msgspec.structs.replace(own, stopped=False))
    assert not is_newest_epoch(log, msgspec.structs.replace(own, checkpoint=6))
    assert not is_newest_epoch(log, msgspec.structs.replace(own, epoch=3))
