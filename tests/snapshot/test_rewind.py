"""Going back by hand: the newest intact state again under a new number, or in a job of its own.

Each way may end between any two calls of the store, be repeated any number of times, and begin when the newest epoch is
published and not committed. Tables are read by Spark's own rules.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.connectors.table import TableCommitter
from engine.core.errors import Fenced, NothingIntact, StoreError, WeirError
from engine.core.paths import JobPaths
from engine.protocol.checkpoint import CommitPermit
from engine.protocol.epoch_records import Claimed, Created, LogRecord, RecordKind
from engine.protocol.ids import AttemptId, SubtaskId
from engine.protocol.job_description import JobDescription, SinkDescription
from engine.protocol.manifest import Committable, Manifest, StateFile, SubtaskState
from engine.snapshot.commits import commit_epoch
from engine.snapshot.epoch_log import EpochLog
from engine.snapshot.inputs import place_newest_inputs
from engine.snapshot.rewind import TRIES, as_forked, fork, go_back, newest_intact
from engine.snapshot.statefile import checksum
from engine.store.directory import DirectoryStore
from tests.spark_log import spark_reads

SUBTASK = SubtaskId("v", 0)
TABLE = "job/tables/t"


def committers(log: EpochLog) -> dict[str, TableCommitter]:
    return {"out": TableCommitter(log.store, f"{log.paths.job}/tables/t")}


def gone(sink: SinkDescription) -> None:
    raise AssertionError(f"the job has {sink.uid}")


def back(log: EpochLog, owner: str = "cli", *, hide: bool) -> tuple[int, int]:
    return go_back(log, committers(log), gone, owner, lambda: None, hide=hide)


def publish(log: EpochLog, *, commit: bool = True, owner: str = "") -> int:
    """A JobMaster takes over, commits what its predecessor published, publishes one epoch, and maybe commits it."""
    before = log.last()
    claimed = log.claim(owner or f"m{before.number + 1 if before else 1}")
    assert claimed is not None
    last = claimed.record
    for committer in committers(log).values():
        committer.claim(last.job_id, last.newest.epoch + 1 if last.newest else 1)
    if last.newest is not None:
        commit_epoch(committers(log), CommitPermit.issue(last.newest), log.read_manifest(last.newest))
    epoch, checkpoint = (last.newest.epoch if last.newest else 0) + 1, last.next_checkpoint
    attempt = AttemptId(last.generation, 1)
    path = log.paths.state_file(attempt, checkpoint, "sum", SUBTASK, "state")
    data = f"state {epoch}".encode()
    log.store.write(path, data)
    file = StateFile("sum", "state", path, len(data), checksum(data), 1, 0, 128)
    payload = {"path": f"{TABLE}/{epoch}.parquet", "size": 1, "rows": 1}
    commits = [Committable("out", 0, attempt, checkpoint, 1, payload)]
    state = SubtaskState(SUBTASK, [file], {})
    described = JobDescription(sinks=[SinkDescription("out", "TableSink", "the table 't'", "t", [], 1)])
    manifest = Manifest(
        "job", epoch, checkpoint, attempt, 0, 128, [state], commits, commits, {"sink:out": epoch}, described
    )
    ref = log.write_manifest(manifest)
    record = log.publish(last, ref)
    assert record is not None
    if commit:
        commit_epoch(committers(log), CommitPermit.issue(ref), manifest)
    return epoch


@pytest.fixture
def log(tmp_path: Path) -> EpochLog:
    """A job with three epochs, each with a state file and a published table file."""
    log = EpochLog(DirectoryStore(tmp_path), JobPaths("job"))
    for _ in range(3):
        publish(log)
    return log


def manifest_of(log: EpochLog, epoch: int) -> Manifest:
    return next(log.read_manifest(ref) for ref in log.epochs() if ref.epoch == epoch)


def damage(log: EpochLog, epoch: int) -> None:
    log.store.write(manifest_of(log, epoch).subtasks[0].files[0].path, b"state X")


def lose_manifest(log: EpochLog, epoch: int) -> None:
    log.store.delete(next(ref.path for ref in log.epochs() if ref.epoch == epoch))


def visible(log: EpochLog) -> list[int]:
    """The epochs whose output Spark reads."""
    folder = f"{TABLE}/_spark_metadata"
    names = [path.removeprefix(f"{folder}/") for path in log.store.list(folder)]
    files = spark_reads(names, lambda name: log.store.read(f"{folder}/{name}"))
    return [int(name.removesuffix(".parquet")) for name in files or []]


def state_of(log: EpochLog) -> bytes:
    """What a JobMaster would restore now."""
    last = log.last()
    assert last is not None and last.newest is not None
    file = log.read_manifest(last.newest).subtasks[0].files[0]
    assert checksum(log.store.read(file.path)) == file.checksum
    return log.store.read(file.path)


def test_the_newest_epoch_is_taken_unless_one_of_its_files_was_changed(log: EpochLog) -> None:
    assert newest_intact(log).epoch == 3
    damage(log, 3)
    assert newest_intact(log).epoch == 2
    damage(log, 2)
    damage(log, 1)
    with pytest.raises(NothingIntact, match=r"epoch 3: .*is not what was written.*epoch 1"):
        newest_intact(log)
    assert issubclass(NothingIntact, WeirError)


def test_a_job_that_can_t_go_back_is_not_fenced_for_it(tmp_path: Path) -> None:
    log = EpochLog(DirectoryStore(tmp_path), JobPaths("job"))
    with pytest.raises(NothingIntact, match="the job has no epoch yet"):
        back(log, hide=True)
    assert log.last() is None


def test_a_replay_publishes_the_older_state_under_the_next_number_and_hides_nothing(log: EpochLog) -> None:
    damage(log, 3)
    assert back(log, hide=False) == (2, 4)
    last = log.last()
    assert last is not None and last.newest is not None and last.generation == 4
    manifest = log.read_manifest(last.newest)
    assert manifest.rewound_to is None and manifest.commits == []
    assert state_of(log) == b"state 2" and manifest.checkpoint == 4
    assert visible(log) == [1, 2, 3]


def test_a_rewind_hides_what_later_epochs_published(log: EpochLog) -> None:
    damage(log, 3)
    assert back(log, hide=True) == (2, 10)
    assert visible(log) == [1, 2] and state_of(log) == b"state 2"
    assert publish(log) == 11
    assert visible(log) == [1, 2, 11]


@pytest.mark.parametrize("hide", [False, True])
def test_a_job_that_goes_back_goes_on_although_it_had_ended(log: EpochLog, hide: bool) -> None:
    back(log, hide=hide)
    last = log.last()
    assert last is not None and last.newest is not None
    manifest = log.read_manifest(last.newest)
    assert not manifest.final and manifest.commits == manifest.carried == []


@pytest.mark.promise("D11")
def test_the_files_of_the_new_epoch_are_durable_before_its_record_exists(
    log: EpochLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    durable: set[str] = set()
    missing: list[set[str]] = []
    sync, append = DirectoryStore.sync, EpochLog.append

    def synced(store: DirectoryStore, paths: list[str]) -> None:
        sync(store, paths)
        durable.update(paths)

    def appended(log: EpochLog, record: LogRecord) -> Created:
        if record.kind is RecordKind.REWIND:
            assert record.newest is not None
            manifest = log.read_manifest(record.newest)
            named = {file.path for state in manifest.subtasks for file in state.files}
            missing.append({record.newest.path, *named} - durable)
        return append(log, record)

    monkeypatch.setattr(DirectoryStore, "sync", synced)
    monkeypatch.setattr(EpochLog, "append", appended)
    back(log, hide=False)
    assert missing == [set()]


def test_a_running_jobmaster_is_fenced_by_going_back(log: EpochLog) -> None:
    before = log.last()
    assert before is not None and before.newest is not None
    back(log, hide=False)
    after = log.last()
    assert after is not None and after.generation == before.generation + 1


@pytest.mark.promise("D11")
@pytest.mark.parametrize("hide", [True, False])
@pytest.mark.parametrize("damaged", [True, False])
def test_an_epoch_that_was_published_and_not_committed_is_committed_first(
    log: EpochLog, hide: bool, damaged: bool
) -> None:
    publish(log, commit=False)
    if damaged:
        damage(log, 4)
    assert back(log, hide=hide) == (3 if damaged else 4, 10 if hide else 5)
    assert visible(log) == ([1, 2, 3] if damaged and hide else [1, 2, 3, 4])
    for _ in range(12):  # through records that repeat all before them
        publish(log)
    assert visible(log)[:3] == [1, 2, 3]


@pytest.mark.promise("D11")
@pytest.mark.parametrize("hide", [True, False])
@pytest.mark.parametrize("epochs", [3, 9, 10])
@pytest.mark.parametrize("committed", [True, False])
def test_an_epoch_whose_manifest_is_lost_leaves_no_gap(log: EpochLog, hide: bool, epochs: int, committed: bool) -> None:
    for _ in range(epochs - 3):
        publish(log)
    publish(log, commit=committed)
    lose_manifest(log, epochs + 1)
    old, new = back(log, hide=hide)
    assert old == epochs
    kept = list(range(1, epochs + 1)) + ([] if hide or not committed else [epochs + 1])
    assert visible(log) == kept
    for _ in range(12):
        publish(log)
    assert visible(log) == kept + list(range(new + 1, new + 13))


@pytest.mark.parametrize("ways", [(True, True), (False, False), (True, False), (False, True), (True, True, True)])
@pytest.mark.parametrize("between", ["nothing", "an epoch", "an epoch without its commit"])
def test_going_back_can_be_repeated(log: EpochLog, ways: tuple[bool, ...], between: str) -> None:
    damage(log, 3)
    expected = [1, 2, 3]
    for number, hide in enumerate(ways):
        old, _ = back(log, f"cli{number}", hide=hide)
        assert old == 2 or number
        if hide:
            expected = [epoch for epoch in expected if epoch <= old]
        assert visible(log) == expected and state_of(log) == b"state 2"
        if between != "nothing":
            expected.append(publish(log, commit=between == "an epoch"))
            damage(log, expected[-1])
    back(log, "last", hide=False)
    for _ in range(12):
        expected.append(publish(log))
    assert visible(log) == expected


def test_going_back_behind_a_change_of_sinks_leaves_no_gap(tmp_path: Path) -> None:
    """The table "old" had a sink until epoch 2, the table "new" has one from epoch 3 on; epoch 4 is damaged."""
    for hide in (False, True):
        log = EpochLog(DirectoryStore(tmp_path / str(hide)), JobPaths("job"))
        for epoch, name in enumerate(("old", "old", "new", "new"), 1):
            _publish_to(log, name, epoch)
        damage(log, 4)
        damage(log, 3)
        own = {"new": TableCommitter(log.store, "job/tables/new")}
        made = lambda sink: TableCommitter(log.store, f"job/tables/{sink.table}")  # noqa: B023, E731
        assert go_back(log, own, made, "cli", lambda: None, hide=hide) == (2, 10 if hide else 5)
        last = log.last()
        assert last is not None and last.newest is not None
        assert [sink.uid for sink in log.read_manifest(last.newest).description.sinks] == ["new"]
        assert _shown(log, "old") == [1, 2]
        assert _shown(log, "new") == ([] if hide else [3, 4])


def _publish_to(log: EpochLog, name: str, epoch: int) -> None:
    claimed = log.claim(f"m{epoch}")
    assert claimed is not None
    table, attempt = TableCommitter(log.store, f"job/tables/{name}"), AttemptId(epoch, 1)
    table.claim(claimed.record.job_id, epoch)
    table.begin(epoch)
    path = log.paths.state_file(attempt, epoch, "sum", SUBTASK, "state")
    data = f"state {epoch}".encode()
    log.store.write(path, data)
    state = SubtaskState(SUBTASK, [StateFile("sum", "state", path, len(data), checksum(data), 1, 0, 128)], {})
    payload = {"path": f"job/tables/{name}/{epoch}.parquet", "size": 1, "rows": 1}
    commits = [Committable(name, 0, attempt, epoch, 1, payload)]
    described = JobDescription(sinks=[SinkDescription(name, "TableSink", f"the table {name!r}", name, [], epoch)])
    manifest = Manifest("job", epoch, epoch, attempt, 0, 128, [state], commits, commits, {}, described)
    ref = log.write_manifest(manifest)
    assert log.publish(claimed.record, ref) is not None
    commit_epoch({name: table}, CommitPermit.issue(ref), manifest)


def _shown(log: EpochLog, name: str) -> list[int]:
    folder = f"job/tables/{name}/_spark_metadata"
    names = [path.removeprefix(f"{folder}/") for path in log.store.list(folder)]
    files = spark_reads(names, lambda record: log.store.read(f"{folder}/{record}"))
    return [int(file.removesuffix(".parquet")) for file in files or []]


class Crash(BaseException):
    pass


class Fused:
    """A store whose user dies before or after one of its changing calls."""

    def __init__(self, store: DirectoryStore, calls: int, after: bool) -> None:
        self._store, self._calls, self._after = store, calls, after

    def __getattr__(self, name: str) -> Any:
        method: Callable[..., Any] = getattr(self._store, name)
        if name not in ("write", "create", "sync", "delete"):
            return method

        def call(*arguments: Any) -> Any:
            self._calls -= 1
            if self._calls < 0 and not self._after:
                raise Crash
            result = method(*arguments)
            if self._calls < 0:
                raise Crash
            return result

        return call


@pytest.mark.promise("D11")
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("hide", [True, False])
def test_going_back_may_end_between_any_two_writes(tmp_path: Path, hide: bool, after: bool) -> None:
    ends, calls = 0, -1
    while ends == calls + 1:
        calls += 1
        log = EpochLog(DirectoryStore(tmp_path / str(calls)), JobPaths("job"))
        for _ in range(4):
            publish(log)
        publish(log, commit=False)
        damage(log, 5)
        damage(log, 4)
        broken = EpochLog(Fused(log.store, calls, after), log.paths)  # type: ignore[arg-type]
        try:
            back(broken, "first", hide=hide)
        except Crash:
            ends += 1
        back(log, "second", hide=hide)
        assert visible(log) == ([1, 2, 3] if hide else [1, 2, 3, 4, 5]), f"ended at call {calls}"
        assert state_of(log) == b"state 3"
        kept = visible(log)
        new = [publish(log) for _ in range(12)]
        assert visible(log) == kept + new
    assert ends > 6


@pytest.mark.parametrize("after", [False, True])
def test_a_fork_may_end_between_any_two_writes(tmp_path: Path, after: bool) -> None:
    ends, calls = 0, -1
    while ends == calls + 1:
        calls += 1
        log = EpochLog(DirectoryStore(tmp_path / str(calls)), JobPaths("job"))
        publish(log)
        log.store.write("job/sources/orders/part-0.parquet", b"orders")
        other = EpochLog(log.store, JobPaths("copy"))
        try:
            fork(EpochLog(Fused(log.store, calls, after), log.paths), "copy", "first", lambda: None)  # type: ignore[arg-type]
        except Crash:
            ends += 1
        if other.last() is None:
            fork(log, "copy", "second", lambda: None)
        place_newest_inputs(other)
        assert state_of(other) == b"state 1" and log.store.read("copy/sources/orders/part-0.parquet") == b"orders"
    assert ends > 4


def test_a_fork_that_was_killed_leaves_no_input_to_one_from_a_later_state(log: EpochLog) -> None:
    """The first one has copied its inputs, and dies before the record that makes them count."""
    log.store.write("job/static/prices/1.json", b"old")
    with pytest.raises(Crash):
        fork(EpochLog(Fused(log.store, 5, False), log.paths), "copy", "killed", lambda: None)  # type: ignore[arg-type]
    log.store.delete("job/static/prices/1.json")
    log.store.write("job/static/prices/2.json", b"new")
    fork(log, "copy", "second", lambda: None)
    other = EpochLog(log.store, JobPaths("copy"))
    place_newest_inputs(other)
    assert {path: log.store.read(path) for path in log.store.list("copy/static")} == {
        "copy/static/prices/2.json": b"new"
    }


def test_a_fork_that_goes_back_before_its_first_start_keeps_its_inputs(log: EpochLog) -> None:
    log.store.write("job/static/prices/1.json", b"prices")
    fork(log, "copy", "cli", lambda: None)
    other = EpochLog(log.store, JobPaths("copy"))
    back(other, hide=True)
    place_newest_inputs(other)
    assert log.store.read("copy/static/prices/1.json") == b"prices"


def test_who_goes_back_at_the_same_time_overwrites_nothing(log: EpochLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one is fenced in the middle: the second goes back to older state meanwhile, under the same number."""
    claim = EpochLog.claim

    def overtaken(self: EpochLog, owner: str) -> Claimed | None:
        claimed = claim(self, owner)
        if owner == "first":
            damage(log, 3)
            assert back(log, "second", hide=False) == (2, 4)
            log.store.write(manifest_of(log, 3).subtasks[0].files[0].path, b"state 3")
        return claimed

    monkeypatch.setattr(EpochLog, "claim", overtaken)
    with pytest.raises(Fenced):
        back(log, "first", hide=False)
    assert state_of(log) == b"state 2"


def test_an_unknown_outcome_is_asked_again_after_a_pause_and_not_for_ever(
    log: EpochLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[None] = []

    def pause() -> None:
        pauses.append(None)

    create, answers = DirectoryStore.create, [Created.UNKNOWN] * 3

    def unsure(self: DirectoryStore, path: str, data: bytes) -> Created:
        return answers.pop() if answers and "/log/" in path else create(self, path, data)

    monkeypatch.setattr(DirectoryStore, "create", unsure)
    go_back(log, committers(log), gone, "cli", pause, hide=False)
    assert len(pauses) == 3
    answers[:] = [Created.UNKNOWN] * 1000
    with pytest.raises(StoreError, match="run the same command again"):
        go_back(log, committers(log), gone, "other", pause, hide=False)
    with pytest.raises(StoreError, match="run the same command again"):
        fork(log, "copy", "other", pause)
    assert len(pauses) == 3 + 2 * (TRIES - 1)


def test_a_fork_has_its_own_files_and_begins_to_count_epochs_anew(log: EpochLog) -> None:
    damage(log, 3)
    for path in ("sources/orders/part-0.parquet", "sources/orders/_SUCCESS", "static/prices/1/_SUCCESS"):
        log.store.write(f"job/{path}", path.encode())
    assert fork(log, "copy", "cli", lambda: None) == 2
    place_newest_inputs(EpochLog(log.store, JobPaths("copy")))
    assert log.store.read("copy/sources/orders/part-0.parquet") == b"sources/orders/part-0.parquet"
    assert log.store.list("copy/static") == ["copy/static/prices/1/_SUCCESS"]
    other = EpochLog(log.store, JobPaths("copy"))
    last = other.last()
    assert last is not None and last.newest is not None and last.newest.epoch == 0
    manifest = other.read_manifest(last.newest)
    assert manifest.subtasks[0].files[0].path.startswith("copy/gen-0001/")
    assert last.newest.path.startswith("copy/gen-0001/") and manifest.attempt == AttemptId(1, 0)
    original = log.last()
    assert original is not None and last.job_id != original.job_id
    assert log.last() == EpochLog(log.store, JobPaths("job")).last(), "the original is left alone"
    with pytest.raises(StoreError, match="choose another name"):
        fork(log, "copy", "cli", lambda: None)


def test_a_fork_that_has_no_epoch_of_its_own_can_go_back_to_the_state_that_it_began_with(log: EpochLog) -> None:
    fork(log, "copy", "cli", lambda: None)
    other = EpochLog(log.store, JobPaths("copy"))
    assert back(other, hide=True) == (0, 10)
    assert state_of(other) == b"state 3"


def test_a_fork_takes_no_name_whose_folder_holds_inputs_of_another_job(log: EpochLog) -> None:
    log.store.write("job/sources/orders/part-0.parquet", b"ours")
    log.store.write("copy/sources/orders/part-1.parquet", b"theirs")
    with pytest.raises(StoreError, match=r"part-1.parquet is an input of another job 'copy': choose another name"):
        fork(log, "copy", "cli", lambda: None)
    assert log.store.list("copy") == ["copy/sources/orders/part-1.parquet"]


def test_a_fork_copies_the_record_of_an_input_after_the_files_that_it_speaks_of(
    log: EpochLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a fork that ended in between would count as one that has all of them."""
    for name in ("orders.json", "orders/part-0.parquet", "zebras/part-0.parquet"):
        log.store.write(f"job/sources/{name}", name.encode())
    written: list[str] = []
    write = DirectoryStore.write

    def noted(store: DirectoryStore, path: str, data: bytes) -> None:
        written.append(path)
        write(store, path, data)

    monkeypatch.setattr(DirectoryStore, "write", noted)
    fork(log, "copy", "cli", lambda: None)
    inputs = [path.partition("/inputs/sources/")[2] for path in written if "/inputs/sources/" in path]
    place_newest_inputs(EpochLog(log.store, JobPaths("copy")))
    placed = [path.removeprefix("copy/sources/") for path in written if path.startswith("copy/sources/")]
    assert placed == inputs
    assert inputs == ["orders/part-0.parquet", "zebras/part-0.parquet", "orders.json"]


@pytest.mark.promise("D11")
def test_a_fork_has_no_sinks_yet_so_that_each_begins_its_table_with_the_first_epoch(log: EpochLog) -> None:
    target = newest_intact(log)
    sink = SinkDescription("out", "TableSink", "the table 't'", "t", [], 1)
    described = msgspec.structs.replace(target.description, sinks=[sink])
    forked = as_forked(msgspec.structs.replace(target, description=described), "copy", {})
    assert forked.description.sinks == [] and forked.job == "copy" and forked.epoch == 0
