"""Going back by hand: the newest intact state again under a new number, or in a job of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.connectors.table import TableCommitter
from engine.core.errors import StoreError
from engine.core.paths import JobPaths
from engine.protocol.checkpoint import CommitPermit
from engine.protocol.ids import AttemptId, SubtaskId
from engine.protocol.manifest import Committable, Manifest, StateFile, SubtaskState
from engine.snapshot.epoch_log import EpochLog
from engine.snapshot.rewind import NothingIntact, fork, go_back, newest_intact
from engine.snapshot.statefile import checksum
from engine.store.directory import DirectoryStore

ATTEMPT = AttemptId(1, 1)
SUBTASK = SubtaskId("v", 0)


@pytest.fixture
def log(tmp_path: Path) -> EpochLog:
    """A job with three epochs, each with a state file and a published table file."""
    log = EpochLog(DirectoryStore(tmp_path), JobPaths("job"))
    claimed = log.claim("first")
    assert claimed is not None
    last = claimed.record
    committer = TableCommitter(log.store, "job/tables/t")
    for epoch in (1, 2, 3):
        path = log.paths.state_file(ATTEMPT, epoch, "sum", SUBTASK, "state")
        log.store.write(path, f"state {epoch}".encode())
        file = StateFile("sum", "state", path, 7, checksum(f"state {epoch}".encode()), 1, 0, 128)
        payload = {"path": f"job/tables/t/{epoch}.parquet", "size": 1, "rows": 1}
        commits = [Committable("out", 0, ATTEMPT, epoch, 1, payload)]
        state = SubtaskState(SUBTASK, [file], {})
        manifest = Manifest("job", epoch, epoch, ATTEMPT, 0, 128, [state], commits, commits, {"sink:out": epoch})
        ref = log.write_manifest(manifest)
        record = log.publish(last, ref)
        assert record is not None
        last = record
        committer.commit(CommitPermit.issue(ref, 1), commits)
    return log


def damage(log: EpochLog, epoch: int) -> None:
    log.store.write(log.paths.state_file(ATTEMPT, epoch, "sum", SUBTASK, "state"), b"state X")


def test_the_newest_epoch_is_taken_unless_one_of_its_files_was_changed(log: EpochLog) -> None:
    assert newest_intact(log).epoch == 3
    damage(log, 3)
    assert newest_intact(log).epoch == 2
    damage(log, 2)
    damage(log, 1)
    with pytest.raises(NothingIntact, match=r"epoch 3: .*is not what was written.*epoch 1"):
        newest_intact(log)


def test_a_replay_publishes_the_older_state_under_the_next_number_and_hides_nothing(log: EpochLog) -> None:
    damage(log, 3)
    assert go_back(log, "cli", hide=False) == (2, 4)
    last = log.last()
    assert last is not None and last.newest is not None and last.generation == 2
    manifest = log.read_manifest(last.newest)
    assert manifest.rewound_to is None and manifest.commits == []
    assert log.store.read(manifest.subtasks[0].files[0].path) == b"state 2"
    assert manifest.checkpoint == 4


def test_a_rewind_hides_what_later_epochs_published(log: EpochLog) -> None:
    damage(log, 3)
    old, new = go_back(log, "cli", hide=True)
    assert (old, new) == (2, 10)
    last = log.last()
    assert last is not None and last.newest is not None
    committer = TableCommitter(log.store, "job/tables/t")
    permit = CommitPermit.issue(last.newest, last.generation)
    for _ in range(2):  # a JobMaster that restarts does it again
        committer.rewind(permit, old)
    names = [file["path"].rsplit("/", 1)[1] for file in committer.files(new)]
    assert names == ["1.parquet", "2.parquet"]


def test_a_running_jobmaster_is_fenced_by_going_back(log: EpochLog) -> None:
    before = log.last()
    assert before is not None and before.newest is not None
    go_back(log, "cli", hide=False)
    after = log.last()
    assert after is not None and after.generation == before.generation + 1


def test_a_fork_has_its_own_files_and_begins_to_count_epochs_anew(log: EpochLog) -> None:
    damage(log, 3)
    for path in ("sources/orders/part-0.parquet", "sources/orders/_SUCCESS", "static/prices/1/_SUCCESS"):
        log.store.write(f"job/{path}", path.encode())
    assert fork(log, "copy", "cli") == 2
    assert log.store.read("copy/sources/orders/part-0.parquet") == b"sources/orders/part-0.parquet"
    assert log.store.list("copy/static") == ["copy/static/prices/1/_SUCCESS"]
    other = EpochLog(log.store, JobPaths("copy"))
    last = other.last()
    assert last is not None and last.newest is not None and last.newest.epoch == 0
    manifest = other.read_manifest(last.newest)
    assert manifest.subtasks[0].files[0].path.startswith("copy/")
    assert log.last() == EpochLog(log.store, JobPaths("job")).last(), "the original is left alone"
    with pytest.raises(StoreError, match="choose another name"):
        fork(log, "copy", "cli")
