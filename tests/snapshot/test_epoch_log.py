"""The epoch log over a store: claiming a job, publishing, fencing, and answers that get lost."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from engine.core.errors import CorruptSnapshot, Fenced, ForeignSnapshot, StoreError, TargetTaken
from engine.core.paths import JobPaths
from engine.protocol.epoch_records import Created, RecordKind
from engine.protocol.ids import AttemptId, SubtaskId
from engine.protocol.manifest import Manifest, ManifestRef, StateFile, SubtaskState
from engine.snapshot.epoch_log import EpochLog
from engine.snapshot.rewind import newest_intact
from engine.snapshot.statefile import checksum
from engine.store.directory import DirectoryStore
from tests.fakes import MemoryStore, directory_store


def ref(epoch: int, checkpoint: int) -> ManifestRef:
    return ManifestRef(f"m{epoch}", "00", epoch, checkpoint)


@pytest.fixture
def log(tmp_path: Path) -> EpochLog:
    return EpochLog(directory_store(tmp_path), JobPaths("job"))


@pytest.mark.promise("F2")
def test_a_claim_takes_the_next_generation(log: EpochLog) -> None:
    first, second = log.claim("a"), log.claim("b")
    assert first is not None and second is not None
    assert (first.generation, second.generation) == (1, 2)
    assert log.last() == second.record


@pytest.mark.promise("F2")
def test_of_two_claimants_at_once_one_wins_and_the_other_goes_behind_it() -> None:
    store = MemoryStore()
    a, b = (EpochLog(store, JobPaths("job")) for _ in range(2))
    a.claim("old")
    last = a.last()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EpochLog, "last", lambda self: last)  # both looked at the same moment
        won, lost = a.claim("a"), b.claim("b")
    assert won is not None and won.generation == 2
    assert lost is None
    again = b.claim("b")
    assert again is not None and again.generation == 3


@pytest.mark.promise("F2", "D11")
def test_a_publisher_that_slept_through_its_replacement_is_fenced(log: EpochLog) -> None:
    old = log.claim("old")
    assert old is not None
    log.claim("new")
    with pytest.raises(Fenced, match="log record 2 belongs to another JobMaster"):
        log.publish(old.record, ref(1, 1))
    newest = log.last()
    assert newest is not None and newest.newest is None


def test_epochs_follow_each_other_and_survive_a_takeover(log: EpochLog) -> None:
    claimed = log.claim("a")
    assert claimed is not None
    first = log.publish(claimed.record, ref(1, 3))
    assert first is not None
    second = log.publish(first, ref(2, 4))
    assert second is not None and second.kind is RecordKind.EPOCH
    taken_over = log.claim("b")
    assert taken_over is not None
    assert taken_over.record.newest == ref(2, 4)
    assert taken_over.record.next_checkpoint == 5
    assert [Path(p).name for p in log.store.list("job/log")] == [f"{n:010d}.json" for n in (1, 2, 3, 4)]


@pytest.mark.parametrize("made", [True, False])
def test_an_unknown_outcome_is_repeated_with_the_same_bytes_until_it_is_definite(made: bool) -> None:
    store = MemoryStore()
    log = EpochLog(store, JobPaths("job"))
    claimed = log.claim("a")
    assert claimed is not None
    store.answers = [(Created.UNKNOWN, made), (Created.UNKNOWN, False)]
    assert log.publish(claimed.record, ref(1, 1)) is None
    assert log.publish(claimed.record, ref(1, 1)) is None
    record = log.publish(claimed.record, ref(1, 1))
    assert record is not None and record.newest == ref(1, 1)
    assert len(store.list("job/log")) == 2


@pytest.mark.promise("F2")
def test_an_unknown_outcome_that_somebody_else_decided_means_fenced() -> None:
    store = MemoryStore()
    log = EpochLog(store, JobPaths("job"))
    claimed = log.claim("a")
    assert claimed is not None
    store.answers = [(Created.UNKNOWN, False)]
    assert log.publish(claimed.record, ref(1, 1)) is None
    EpochLog(store, JobPaths("job")).claim("b")
    with pytest.raises(Fenced):
        log.publish(claimed.record, ref(1, 1))


def test_a_claim_whose_answer_was_lost_is_found_again() -> None:
    store = MemoryStore()
    log = EpochLog(store, JobPaths("job"))
    store.answers = [(Created.UNKNOWN, True)]
    assert log.claim("a") is None
    claimed = log.claim("a")
    assert claimed is not None and claimed.generation == 1
    assert len(store.list("job/log")) == 1


def test_a_claim_whose_answer_was_lost_is_not_found_again_if_another_process_claims_at_that_moment() -> None:
    class Raced(MemoryStore):
        """Another process claims right before this one makes the record durable."""

        raced = False

        def sync(self, paths: list[str]) -> None:
            raced, self.raced = self.raced, False
            if raced:
                assert EpochLog(self, JobPaths("job")).claim("b") is not None
            super().sync(paths)

    store = Raced()
    log = EpochLog(store, JobPaths("job"))
    store.answers = [(Created.UNKNOWN, True)]
    assert log.claim("a") is None
    store.raced = True
    assert log.claim("a") is None, "b owns the job"
    claimed = log.claim("a")
    assert claimed is not None and claimed.generation == 3


def test_a_store_that_can_not_write_is_an_error_and_not_an_unknown_outcome(log: EpochLog) -> None:
    log.store.write("job/log", b"a file where the directory should be")
    with pytest.raises(StoreError):
        log.claim("a")


def manifest(epoch: int = 1) -> Manifest:
    return Manifest("job", epoch, 5, AttemptId(1, 2), 0, 128, [], [], [], {"sent:e": 3})


def test_a_manifest_is_synced_before_anyone_can_refer_to_it() -> None:
    store = MemoryStore()
    written = EpochLog(store, JobPaths("job")).write_manifest(manifest())
    assert store.synced == [written.path]
    assert written.path == "job/gen-0001/chk-0000005/2/manifest.json"
    assert EpochLog(store, JobPaths("job")).read_manifest(written) == manifest()


def test_a_manifest_that_was_changed_or_lost_is_corrupt(log: EpochLog) -> None:
    log.claim("me")
    written = log.write_manifest(manifest())
    data = log.store.read(written.path)
    log.store.write(written.path, data.replace(b'"sent:e":3', b'"sent:e":4'))
    with pytest.raises(CorruptSnapshot, match="is not what was written: its checksum differs"):
        log.read_manifest(written)
    log.store.delete(written.path)
    with pytest.raises(CorruptSnapshot, match="is missing"):
        log.read_manifest(written)


@pytest.mark.promise("D8")
def test_a_manifest_of_another_version_of_weir_is_told_with_both_formats(log: EpochLog) -> None:
    log.claim("me")
    written = log.write_manifest(msgspec.structs.replace(manifest(), format=2))
    with pytest.raises(ForeignSnapshot, match="has format 2, and this version of Weir reads 1: use the version"):
        log.read_manifest(written)


@pytest.mark.promise("D8")
def test_a_folder_that_was_copied_or_renamed_is_told_as_that_of_another_job(log: EpochLog) -> None:
    """The records of a log name the files of their own job, wherever they are copied to."""
    log.claim("me")
    written = log.write_manifest(manifest())
    other = EpochLog(log.store, JobPaths("other"))
    with pytest.raises(ForeignSnapshot, match=r"the log of job 'other' is that of job 'job': .* --fork other"):
        other.read_manifest(written)


def test_read_checked_gives_the_bytes_that_were_written(log: EpochLog) -> None:
    log.store.write("x", b"abc")
    assert log.read_checked("x", checksum(b"abc")) == b"abc"


@pytest.mark.promise("H8")
def test_a_file_that_is_missing_because_the_store_is_away_is_not_corrupt(tmp_path: Path) -> None:
    log = EpochLog(DirectoryStore(tmp_path), JobPaths("job"))
    log.claim("me")
    written = log.write_manifest(manifest())
    (tmp_path / "job").rename(tmp_path / "unmounted")
    with pytest.raises(StoreError, match="is missing, and so is the first record of the job's log: is the store"):
        log.read_manifest(written)
    (tmp_path / "unmounted").rename(tmp_path / "job")
    assert log.read_manifest(written) == manifest()


@pytest.mark.promise("H8")
def test_a_file_that_is_missing_only_while_the_store_is_away_for_a_moment_is_read(
    log: EpochLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.claim("me")
    written = log.write_manifest(manifest())
    reads, read = [0], log.store.read

    def away_first(path: str) -> bytes:
        reads[0] += 1
        if reads[0] == 1:
            raise FileNotFoundError(path)
        return read(path)

    monkeypatch.setattr(log.store, "read", away_first)
    assert log.read_manifest(written) == manifest()


# --- what others put into the log's folder ---


def published(log: EpochLog, epochs: int) -> None:
    claimed = log.claim("me")
    assert claimed is not None
    record = claimed.record
    for epoch in range(1, epochs + 1):
        written = log.write_manifest(Manifest("job", epoch, epoch, AttemptId(1, 1), 0, 128, [], [], [], {}))
        appended = log.publish(record, written)
        assert appended is not None
        record = appended


@pytest.mark.parametrize("name", ["notes.txt", "0000000003.json.bak", "9999999999.json~", "x.json", "below/1.json"])
def test_other_files_beside_the_records_are_ignored(log: EpochLog, name: str) -> None:
    published(log, 2)
    log.store.write(f"job/log/{name}", b"x")
    last = log.last()
    assert last is not None and last.number == 3
    assert newest_intact(log).epoch == 2
    claimed = log.claim("next")
    assert claimed is not None and claimed.record.number == 4


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b"\xff"])
def test_a_record_that_can_t_be_read_is_corrupt_and_named_with_what_to_do(log: EpochLog, content: bytes) -> None:
    published(log, 2)
    log.store.write("job/log/0000000003.json", content)
    for read in (log.last, lambda: log.claim("next")):
        with pytest.raises(CorruptSnapshot, match=r"job/log/0000000003.json \(\d+ bytes\) is no record .*--fork"):
            read()
    assert newest_intact(log).epoch == 1, "a fork goes on from what can be read"


@pytest.mark.parametrize("damage", ["emptied", "deleted"])
def test_epochs_before_a_record_that_can_t_be_read_are_found(log: EpochLog, damage: str) -> None:
    published(log, 3)
    log.store.write("job/log/0000000003.json", b"") if damage == "emptied" else log.store.delete(
        "job/log/0000000003.json"
    )
    assert [ref.epoch for ref in log.epochs()] == [3, 1]
    claimed = log.claim("next")
    assert claimed is not None and claimed.record.newest is not None and claimed.record.newest.epoch == 3


def test_a_folder_in_the_place_of_the_next_record_is_told(tmp_path: Path) -> None:
    log = EpochLog(DirectoryStore(tmp_path), JobPaths("job"))
    published(log, 1)
    (tmp_path / "job/log/0000000003.json").mkdir()
    with pytest.raises(StoreError, match=r"0000000003\.json: a folder is in its place: move it away"):
        log.claim("next")


@pytest.mark.promise("D11")
def test_a_record_that_exists_and_can_t_be_read_may_be_our_own_so_the_outcome_is_unknown(
    log: EpochLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed = log.claim("me")
    assert claimed is not None and log.publish(claimed.record, ref(1, 1)) is not None
    for error in (StoreError("away"), FileNotFoundError("not listed yet")):
        with monkeypatch.context() as patched:
            patched.setattr(type(log.store), "read", _raising(error, log.store.read, log.paths.log_record(2)))
            assert log.publish(claimed.record, ref(1, 1)) is None, "asked again: it was created by an earlier try"
    record = log.publish(claimed.record, ref(1, 1))
    assert record is not None and record.newest == ref(1, 1)


def test_epochs_are_listed_newest_first_without_the_fences_between_them(log: EpochLog) -> None:
    assert list(log.epochs()) == []
    for epoch in (1, 2):
        claimed = log.claim(f"owner {epoch}")
        assert claimed is not None
        log.publish(claimed.record, ref(epoch, epoch))
    log.claim("last")
    assert [found.epoch for found in log.epochs()] == [2, 1]


class _StaleList(MemoryStore):
    """A store whose lists lack everything newer than `shown` files."""

    shown = 0

    def list(self, prefix: str) -> list[str]:
        return super().list(prefix)[: self.shown]


@pytest.mark.promise("F2")
@pytest.mark.parametrize("shown", range(5))
def test_a_list_that_lacks_the_newest_records_changes_nothing(shown: int) -> None:
    log = EpochLog(store := _StaleList(), JobPaths("job"))
    store.shown = 9
    for epoch in (1, 2):
        claimed = log.claim(f"owner {epoch}")
        assert claimed is not None
        log.publish(claimed.record, ref(epoch, epoch))
    store.shown = shown
    last = log.last()
    assert last is not None and last.number == 4 and [found.epoch for found in log.epochs()] == [2, 1]
    claimed = log.claim("next")
    assert claimed is not None and claimed.record.number == 5


def test_a_list_that_shows_a_record_which_the_store_has_forgotten_changes_nothing() -> None:
    log = EpochLog(store := MemoryStore(), JobPaths("job"))
    claimed = log.claim("a")
    assert claimed is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "list", lambda prefix: [log.paths.log_record(n) for n in (1, 2, 3)])
        assert log.last() == claimed.record


@pytest.mark.promise("F2")
def test_a_claim_makes_the_record_that_it_builds_on_durable_first() -> None:
    """A visible record may have a name that is not durable. Until that is synced, nothing is created behind it."""
    log = EpochLog(store := MemoryStore(), JobPaths("job"))
    store.answers = [(Created.UNKNOWN, True)]  # visible, and nobody knows whether it is durable
    assert log.claim("me") is None
    claimed = log.claim("me")
    assert claimed is not None and claimed.record.number == 1 and store.synced == [log.paths.log_record(1)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "sync", _failing)
        with pytest.raises(StoreError):
            log.claim("other")
    assert store.list("job/log") == [log.paths.log_record(1)]


def _failing(*_: object) -> None:
    raise StoreError("no connection to the server")


def _raising(error: Exception, read: Callable[[str], bytes], path: str) -> Callable[..., bytes]:
    def fails(_: object, of: str) -> bytes:
        if of == path:
            raise error
        return read(of)

    return fails


@pytest.mark.promise("D4", "H3")
def test_a_record_in_which_anything_was_changed_is_no_record_and_one_without_a_checksum_is_still_read() -> None:
    """As found by changing each bit: with another generation, files of two attempts had the same names."""
    log = EpochLog(store := MemoryStore(), JobPaths("job"))
    claimed = log.claim("me")
    assert claimed is not None and log.publish(claimed.record, ref(1, 1)) is not None
    path = log.paths.log_record(2)
    written = store.files[path]
    name = written.rindex(b'"checksum"')  # without its name there is no checksum; the record says the same
    for at in (*range(name), *range(name + len('"checksum"'), len(written))):
        store.files[path] = written[:at] + bytes([written[at] ^ 1]) + written[at + 1 :]
        with pytest.raises(CorruptSnapshot, match="is no record of the job's log"):
            log.last()
    sealed = msgspec.json.decode(written)
    del sealed["checksum"]
    store.files[path] = msgspec.json.encode(sealed)  # as earlier versions wrote it
    again = log.claim("next")
    assert again is not None and again.generation == 2


@pytest.mark.promise("D4", "H3")
def test_a_record_in_the_place_of_another_is_no_record() -> None:
    """As a backup leaves it that was brought back under the wrong name: the next record would be made a second time."""
    log = EpochLog(store := MemoryStore(), JobPaths("job"))
    claimed = log.claim("me")
    assert claimed is not None and log.publish(claimed.record, ref(1, 1)) is not None
    store.files[log.paths.log_record(3)] = store.files[log.paths.log_record(2)]
    with pytest.raises(CorruptSnapshot, match=r"0000000003\.json .* is no record of the job's log"):
        log.last()


@pytest.mark.promise("D4", "H8")
@pytest.mark.parametrize("there", [b"", b"stat", b"state and more", None])
def test_no_epoch_is_published_whose_state_file_is_not_as_long_as_it_was_written(there: bytes | None) -> None:
    log = EpochLog(store := MemoryStore(), JobPaths("job"))
    assert log.claim("me") is not None
    path = "job/gen-0001/chk-0000001/1/pv.0.panes.arrow"
    state = SubtaskState(SubtaskId("pv", 0), [StateFile("pv", "panes", path, 5, checksum(b"state"), 1)], {})
    manifest = Manifest("job", 1, 1, AttemptId(1, 1), 0, 128, [state], [], [], {})
    written = log.write_manifest(manifest)
    store.files[path] = b"state"
    log.check_files(written, manifest)
    store.delete(path)
    if there is not None:
        store.files[path] = there
    with pytest.raises(StoreError, match="is gone" if there is None else f"has {len(there)} bytes, and 5 were written"):
        log.check_files(written, manifest)


def empty_mount(log: EpochLog, tmp_path: Path) -> Path:
    """Puts an empty folder in the place of the store, as a mount that is gone leaves it. Returns where the store is."""
    root = tmp_path / "store"
    away = root.rename(tmp_path / "away")
    root.mkdir()
    return away


@pytest.mark.promise("H8", "F2")
def test_a_store_that_is_gone_at_the_claim_is_not_taken_for_a_new_job(log: EpochLog, tmp_path: Path) -> None:
    log.claim("a")
    begun = replace(log, begun=True)
    away = empty_mount(log, tmp_path)
    with pytest.raises(StoreError, match="record of its log is there: is the store mounted at"):
        begun.claim("b")
    assert list((tmp_path / "store").iterdir()) == [], "nothing is written where the store was"
    (tmp_path / "store").rmdir()
    away.rename(tmp_path / "store")
    claimed = begun.claim("b")
    assert claimed is not None and claimed.generation == 2


@pytest.mark.promise("H8")
def test_nothing_is_published_into_a_folder_from_which_the_log_is_gone(log: EpochLog, tmp_path: Path) -> None:
    """The epoch would be committed to targets outside of the store, and unknown when the store is back."""
    claimed = log.claim("a")
    assert claimed is not None
    away = empty_mount(log, tmp_path)
    with pytest.raises(StoreError, match="record 1 of the job's log is gone: is the store mounted at"):
        log.publish(claimed.record, ref(1, 1))
    (tmp_path / "store").rmdir()
    away.rename(tmp_path / "store")
    assert log.publish(claimed.record, ref(1, 1)) is not None


class Swapped(MemoryStore):
    """A store that goes away, or comes back, right before the call that `then` names. An empty one is in its place."""

    def __init__(self) -> None:
        super().__init__()
        self.then: list[str] = []
        self.elsewhere: dict[str, bytes] = {}

    def _before(self, call: str) -> None:
        if self.then and self.then[0] == call:
            self.then.pop(0)
            self.files, self.elsewhere = self.elsewhere, self.files

    def create(self, path: str, data: bytes) -> Created:
        self._before("create")
        return super().create(path, data)

    def sync(self, paths: list[str]) -> None:
        self._before("sync")
        for path in paths:
            if path not in self.files:
                raise StoreError(f"{path} is gone")
        super().sync(paths)

    def sizes(self, paths: list[str]) -> list[int | None]:
        self._before("sizes")
        return super().sizes(paths)


@pytest.mark.promise("H8", "F2")
def test_a_store_that_goes_while_a_claim_makes_the_last_record_durable_gets_no_record() -> None:
    """A bug: the claim created the last record once more, in the empty folder, and then its fence."""
    log = EpochLog(store := Swapped(), JobPaths("job"))
    assert log.claim("a") is not None
    store.then = ["sync"]
    assert log.claim("b") is None
    assert store.files == {}


@pytest.mark.promise("H8", "F2", "D11")
@pytest.mark.parametrize("back", [[], ["sizes"]], ids=["and is still away", "and is back at once"])
def test_a_record_that_was_created_while_the_store_was_away_does_not_count(back: list[str]) -> None:
    """A bug: the JobMaster took it for its own. The store has none, or one of somebody else's."""
    log = EpochLog(store := Swapped(), JobPaths("job"))
    claimed = log.claim("a")
    assert claimed is not None
    store.then = ["create", *back]
    assert log.publish(claimed.record, ref(1, 1)) is None, "the outcome is unknown"
    if not back:
        with pytest.raises(StoreError, match="is the store mounted at"):
            log.publish(claimed.record, ref(1, 1))
        store.files, store.elsewhere = store.elsewhere, store.files
    record = log.publish(claimed.record, ref(1, 1))
    assert record is not None and log.last() == record
    store.then = ["create", *back]
    assert log.claim("b") is None


@pytest.mark.promise("H8", "F2")
def test_a_record_that_is_left_in_the_folder_where_the_store_was_mounted_is_no_log() -> None:
    """It was created when the store went away for the first time, and is found there when it goes again."""
    log = EpochLog(store := Swapped(), JobPaths("job"))
    claimed = log.claim("a")
    store.then = ["create", "sizes"]
    assert claimed is not None and log.publish(claimed.record, ref(1, 1)) is None
    record = log.publish(claimed.record, ref(1, 1))
    assert record is not None and store.elsewhere == {log.paths.log_record(2): store.files[log.paths.log_record(2)]}
    store.files, store.elsewhere = store.elsewhere, store.files
    for call in (log.last, lambda: log.claim("b"), lambda: log.publish(record, ref(2, 2))):
        with pytest.raises(StoreError, match="is the store mounted at"):
            call()
    assert list(store.files) == [log.paths.log_record(2)]


@pytest.mark.promise("H8", "F2")
def test_a_job_begins_only_in_the_store_in_which_it_was_started() -> None:
    """A bug: a JobMaster that had found no log began one in the empty folder to which its store had changed since."""
    log = EpochLog(store := Swapped(), JobPaths("job"), sign=JobPaths("job").launch())
    with pytest.raises(StoreError, match="is the store mounted at"):
        log.claim("a")
    assert store.files == {}
    store.write(log.sign, b"")
    store.then = ["create"]
    assert log.claim("a") is None
    store.files, store.elsewhere = store.elsewhere, store.files
    claimed = log.claim("a")
    assert claimed is not None and claimed.generation == 1
    store.delete(log.sign)
    assert log.publish(claimed.record, ref(1, 1)) is not None, "from then on the first record is the sign"


@pytest.mark.promise("H8", "F2")
def test_a_jobmaster_whose_job_began_where_no_store_was_mounted_stops_when_the_store_is_mounted() -> None:
    """A bug: if both logs were equally long, it went on in the other one."""
    log, other = (EpochLog(MemoryStore(), JobPaths("job")) for _ in range(2))
    claimed, owner = log.claim("a"), other.claim("b")
    assert claimed is not None and owner is not None
    with pytest.raises(Fenced, match="log record 1 is another JobMaster's"):
        EpochLog(other.store, log.paths).publish(claimed.record, ref(1, 1))
    assert other.last() == owner.record


@pytest.mark.promise("D11")
def test_a_record_after_whose_creation_the_store_does_not_answer_may_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    log = EpochLog(store := MemoryStore(), JobPaths("job"))
    claimed = log.claim("a")
    assert claimed is not None
    with monkeypatch.context() as patch:
        real, looks = store.sizes, [0]

        def fails(paths: list[str]) -> list[int | None]:
            looks[0] += 1
            return real(paths) if looks[0] == 1 else _failing()  # type: ignore[return-value, func-returns-value]

        patch.setattr(store, "sizes", fails)
        assert log.publish(claimed.record, ref(1, 1)) is None
    assert log.publish(claimed.record, ref(1, 1)) is not None


@pytest.mark.promise("F2", "D11")
@pytest.mark.parametrize("replaced", [False, True])
def test_a_jobmaster_whose_successor_has_taken_a_table_is_fenced_and_one_whose_table_is_another_job_s_is_told(
    log: EpochLog, replaced: bool
) -> None:
    """The first one ends quietly: the job runs on. The second one can't run, and its user has to choose."""
    claimed = log.claim("a")
    assert claimed is not None
    if replaced:
        log.claim("b")
    with pytest.raises(Fenced if replaced else TargetTaken), log.owned_by(claimed.record):
        raise TargetTaken("the table is taken")
