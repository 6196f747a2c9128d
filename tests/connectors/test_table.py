"""The Weir table: files by subtasks, one record per epoch by the committer, in the format of Spark's file-sink log."""

import datetime as dt
import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from engine.connectors.table import TableCommitter, TableSink, read_table, tables_of
from engine.core.errors import StoreError, TargetTaken
from engine.core.paths import JobPaths
from engine.core.sinks import Committer, Found, SinkWriter, WriterContext
from engine.protocol.checkpoint import CommitPermit
from engine.protocol.epoch_records import Created
from engine.protocol.ids import AttemptId
from engine.protocol.job_description import Column
from engine.protocol.manifest import Committable, ManifestRef
from engine.store.directory import DirectoryStore
from engine.store.opening import open_store
from tests.fakes import ATTEMPT, JOB_ID, MemoryStore
from tests.servers.minio import MinioServer

SCHEMA = pa.schema([("a", pa.int64())])
TABLE = "job/tables/pv"


def claimed(store: MemoryStore | DirectoryStore, next_epoch: int = 1) -> TableCommitter:
    """A committer as a JobMaster uses it: it claims the table first."""
    committer = TableCommitter(store, TABLE)
    committer.claim(JOB_ID, next_epoch)
    return committer


def permit(epoch: int) -> CommitPermit:
    return CommitPermit.issue(ManifestRef("m", "00", epoch, epoch))


def writer(store: MemoryStore, subtask: int = 0, attempt: AttemptId = ATTEMPT) -> SinkWriter:
    made = TableSink("pv").writer(WriterContext(subtask, attempt, store, JobPaths("job"), SCHEMA, JOB_ID))
    made.begin()
    return made


def write(to: SinkWriter, *values: int) -> dict[str, object]:
    """One transaction, persisted; what `commit` needs."""
    to.write(pa.record_batch({"a": pa.array(values, pa.int64())}))
    piece = to.pre_commit()
    to.begin()
    assert piece is not None
    return piece.persist()


def committable(payload: dict[str, object], sequence: int = 1) -> Committable:
    return Committable("out", 0, ATTEMPT, 1, sequence, payload)


class Creates(MemoryStore):
    """Notes which files were to be created."""

    def __init__(self) -> None:
        super().__init__()
        self.created: list[str] = []

    def create(self, path: str, data: bytes) -> Created:
        self.created.append(path)
        return super().create(path, data)


def test_each_claim_creates_the_marker_again_because_its_name_may_not_be_durable_yet() -> None:
    store = Creates()
    for times in (1, 2):
        claimed(store)
        assert len(store.created) == times and len(set(store.created)) == 1


def data_files(store: MemoryStore | DirectoryStore) -> list[str]:
    return [path for path in store.list(TABLE) if "/_spark_metadata/" not in path]


def record(store: MemoryStore, name: str) -> list[dict[str, object]]:
    version, *lines = store.read(f"{TABLE}/_spark_metadata/{name}").decode().split("\n")
    assert version == "v1"
    return [json.loads(line) for line in lines]


def test_rows_become_a_durable_parquet_file_named_by_its_birth() -> None:
    store = MemoryStore()
    payload = write(writer(store, subtask=2, attempt=AttemptId(3, 4)), 1, 2, 3)
    path = f"{TABLE}/1d-0003-0004-0002-000001.parquet"
    assert payload == {"path": path, "size": len(store.files[path]), "rows": 3}
    assert store.synced == [path]
    assert pq.read_table(io.BytesIO(store.read(path))).to_pydict() == {"a": [1, 2, 3]}


def test_each_transaction_is_a_file_of_its_own_and_an_empty_one_is_none() -> None:
    store = MemoryStore()
    w = writer(store)
    assert w.pre_commit() is None
    w.begin()
    w.write(pa.record_batch({"a": pa.array([], pa.int64())}))
    assert w.pre_commit() is None
    assert write(w, 1)["path"] != write(w, 2)["path"]
    assert w.buffered_bytes == 0


def test_persisting_again_after_a_failed_write_gives_the_same_file() -> None:
    store = MemoryStore()
    w = writer(store)
    w.write(pa.record_batch({"a": [1]}))
    assert w.buffered_bytes == 8
    piece = w.pre_commit()
    assert piece is not None
    store.fail_writes = 1
    with pytest.raises(StoreError):
        piece.persist()
    first = piece.persist()
    assert piece.persist() == first
    assert len(store.files) == 1


@pytest.mark.promise("D11", "H8")
def test_a_file_or_a_marker_that_is_gone_is_noticed_before_its_epoch_is_published() -> None:
    """They went to a folder, or to a server, that was in the place of the store for a moment."""
    store = MemoryStore()
    committer = claimed(store)
    payload = write(writer(store), 1, 2, 3)
    written = [Committable("out", 0, ATTEMPT, 1, 0, payload)]
    committer.check(written)
    content = store.files[payload["path"]]
    store.files[payload["path"]] = content[:-1]
    with pytest.raises(StoreError, match=f"has {len(content) - 1} bytes, and {len(content)} were written"):
        committer.check(written)
    del store.files[payload["path"]]
    with pytest.raises(StoreError, match="is gone: was the store away when it was written"):
        committer.check(written)
    store.delete(f"{TABLE}/_spark_metadata/weir.json")
    with pytest.raises(StoreError, match=r"weir\.json is gone"):
        committer.check([])


@pytest.mark.promise("D11", "H8")
def test_a_record_that_went_to_an_empty_folder_in_the_place_of_the_store_is_no_commit() -> None:
    """A bug: the epoch counted as committed, and the table had no record of it when the store was back."""
    store = MemoryStore()
    committer = claimed(store)
    written = [Committable("out", 0, ATTEMPT, 1, 0, write(writer(store), 1, 2, 3))]
    permit = CommitPermit.issue(ManifestRef("", "", 1, 1))
    real = store.files
    create = store.create

    def elsewhere(path: str, data: bytes) -> Created:
        store.files = {}
        outcome = create(path, data)
        store.files = real
        return outcome

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "create", elsewhere)
        with pytest.raises(StoreError, match="_spark_metadata/0 is missing"):
            committer.commit(permit, written)
    committer.commit(permit, written)
    assert f"{TABLE}/_spark_metadata/0" in store.files


@pytest.mark.promise("D11", "H8")
def test_a_marker_that_can_not_be_seen_for_a_moment_does_not_make_the_table_another_s() -> None:
    class Away(MemoryStore):
        looks = 0

        def read(self, path: str) -> bytes:
            self.looks += 1
            if self.looks == 1:
                raise FileNotFoundError(path)
            return super().read(path)

    store = Away()
    store.looks = 1
    claimed(store)
    committer = claimed(store)
    committer.commit(permit(1), [])
    store.looks = 0
    claimed(store, next_epoch=2)


def test_timestamps_are_stored_in_the_unit_that_spark_reads() -> None:
    stamps = pa.array([1_700_000_000_123_456_789], pa.timestamp("ns", tz="UTC"))
    schema = pa.schema([("ns", stamps.type), ("s", pa.timestamp("s"))])
    store = MemoryStore()
    w = TableSink("pv").writer(WriterContext(0, ATTEMPT, store, JobPaths("job"), schema, JOB_ID))
    w.begin()
    w.write(pa.record_batch([stamps, pa.array([5], pa.timestamp("s"))], schema=schema))
    piece = w.pre_commit()
    assert piece is not None
    read = pq.read_table(io.BytesIO(store.read(str(piece.persist()["path"]))))
    assert [field.type.unit for field in read.schema] == ["us", "us"]
    assert read["s"].to_pylist() == [dt.datetime(1970, 1, 1, 0, 0, 5)]
    assert read["ns"].cast(pa.int64()).to_pylist() == [1_700_000_000_123_456]


@pytest.mark.promise("G1")
def test_an_epoch_is_one_record_that_names_its_files() -> None:
    store = MemoryStore()
    w = writer(store)
    committer = TableCommitter(store, TABLE)
    payloads = [write(w, 1), write(w, 2)]
    committer.commit(permit(1), [committable(p, n) for n, p in enumerate(payloads)])
    committer.commit(permit(2), [])
    assert [entry["path"] for entry in record(store, "0")] == [store.uri(str(p["path"])) for p in payloads]
    assert record(store, "0")[0] == {
        "path": store.uri(str(payloads[0]["path"])),
        "size": payloads[0]["size"],
        "isDir": False,
        "modificationTime": 0,
        "blockReplication": 1,
        "blockSize": 33_554_432,
        "action": "add",
    }
    assert record(store, "1") == []


@pytest.mark.promise("D11", "G1")
def test_committing_an_epoch_again_changes_nothing() -> None:
    store = MemoryStore()
    committer = TableCommitter(store, TABLE)
    w = writer(store)
    for epoch in range(1, 12):
        payload = write(w, epoch)
        committer.commit(permit(epoch), [committable(payload)])
        before = dict(store.files)
        committer.commit(permit(epoch), [committable(payload)])
        TableCommitter(store, TABLE).commit(permit(epoch), [committable(payload)])
        assert store.files == before


@pytest.mark.promise("G1")
def test_every_tenth_record_repeats_all_before_it() -> None:
    store = MemoryStore()
    committer = TableCommitter(store, TABLE)
    w = writer(store)
    for epoch in range(1, 32):
        committer.commit(permit(epoch), [committable(write(w, epoch))])
        assert len(committer.files(epoch)) == epoch
    names = {path.rsplit("/", 1)[1] for path in store.list(f"{TABLE}/_spark_metadata")}
    assert names == {f"{n}.compact" if n % 10 == 9 else str(n) for n in range(31)}
    assert [len(record(store, name)) for name in ("8", "9.compact", "10", "19.compact", "29.compact", "30")] == [
        1,
        10,
        1,
        20,
        30,
        1,
    ]
    assert [f["path"] for f in committer.files(31)] == sorted(f["path"] for f in committer.files(31))


def test_what_is_read_for_an_epoch_does_not_depend_on_later_ones() -> None:
    store = MemoryStore()
    committer = TableCommitter(store, TABLE)
    w = writer(store)
    for epoch in range(1, 13):
        committer.commit(permit(epoch), [committable(write(w, epoch))])
    assert [len(committer.files(epoch)) for epoch in range(13)] == list(range(13))


@pytest.mark.promise("D11")
def test_abort_unknown_removes_only_unknown_files_of_older_attempts() -> None:
    store = MemoryStore()
    committer = claimed(store)
    old = writer(store, attempt=AttemptId(1, 1))
    published, unknown = write(old, 1), write(old, 2)
    committer.commit(permit(1), [committable(published)])
    current = write(writer(store, attempt=AttemptId(1, 2)), 3)
    newer = write(writer(store, attempt=AttemptId(2, 0)), 4)
    store.write(f"{TABLE}/README.txt", b"not ours")
    committer.abort_unknown(permit(1), AttemptId(1, 2))
    left = set(data_files(store))
    assert left == {published["path"], current["path"], newer["path"], f"{TABLE}/README.txt"}
    assert unknown["path"] not in left


@pytest.mark.promise("G1")
def test_before_its_first_epoch_a_table_has_a_log_already_so_that_spark_sees_no_file(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    claimed(store)  # what a JobMaster does before it deploys
    assert (tmp_path / TABLE / "_spark_metadata").is_dir()
    write(writer(store), 1)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError, match="nothing was published to it yet"):
        read_table(store, TABLE)


def test_abort_unknown_leaves_a_table_below_this_one_alone() -> None:
    store = MemoryStore()
    TableCommitter(store, f"{TABLE}/daily").claim(JOB_ID, 1)
    below = TableSink("pv/daily").writer(WriterContext(0, ATTEMPT, store, JobPaths("job"), SCHEMA, JOB_ID))
    below.begin()
    payload = write(below, 1)
    claimed(store).abort_unknown(None, AttemptId(9, 9))
    assert data_files(store) == [payload["path"]]


def test_a_table_is_read_back_by_whole_epochs() -> None:
    store = MemoryStore()
    w = writer(store)
    with pytest.raises(FileNotFoundError, match="nothing was published to it yet"):
        read_table(store, TABLE)
    for epoch in range(1, 13):
        TableCommitter(store, TABLE).commit(permit(epoch), [committable(write(w, epoch))])
    write(w, 99)
    assert read_table(store, TABLE).to_pydict() == {"a": list(range(1, 13))}


@pytest.mark.promise("D11")
def test_without_an_epoch_everything_that_older_attempts_wrote_goes() -> None:
    store = MemoryStore()
    claimed(store)
    write(writer(store, attempt=AttemptId(1, 1)), 1)
    kept = write(writer(store, attempt=AttemptId(1, 2)), 1)
    claimed(store).abort_unknown(None, AttemptId(1, 2))
    assert data_files(store) == [kept["path"]]


def test_published_files_survive_an_abort_after_the_store_was_moved(tmp_path: Path) -> None:
    before = DirectoryStore(tmp_path / "before")
    claimed(before)
    payload = write(writer(before), 1)  # type: ignore[arg-type]
    TableCommitter(before, TABLE).commit(permit(1), [committable(payload)])
    (tmp_path / "before").rename(tmp_path / "after")
    after = DirectoryStore(tmp_path / "after")
    claimed(after, 2).abort_unknown(permit(1), AttemptId(9, 9))
    assert data_files(after) == [payload["path"]]
    assert read_table(after, TABLE).to_pydict() == {"a": [1]}


def test_a_table_whose_store_was_moved_goes_on_and_soon_names_its_files_where_they_are(tmp_path: Path) -> None:
    before, payloads = DirectoryStore(tmp_path / "before"), []
    for epoch in range(1, 4):
        payloads.append(write(writer(before, attempt=AttemptId(1, epoch)), epoch))  # type: ignore[arg-type]
        TableCommitter(before, TABLE).commit(permit(epoch), [committable(payloads[-1])])
    (tmp_path / "before").rename(tmp_path / "after")
    after = DirectoryStore(tmp_path / "after")
    for epoch in range(3, 11):  # the newest epoch is committed again
        TableCommitter(after, TABLE).commit(permit(epoch), [committable(payloads[2])] if epoch == 3 else [])
    places = [str(file["path"]) for file in TableCommitter(after, TABLE).files(10)]
    assert places == [after.uri(str(payload["path"])) for payload in payloads]
    compact = (tmp_path / "after" / TABLE / "_spark_metadata" / "9.compact").read_text()
    assert "/before/" not in compact


def test_looking_at_a_table_changes_nothing_and_tells_the_columns_of_what_is_published(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    assert TableCommitter(store, TABLE).look(JOB_ID, 0) == Found(claimed=False)
    assert not list(tmp_path.iterdir())
    claimed(store)
    first = write(writer(store), 1)  # type: ignore[arg-type]
    assert TableCommitter(store, TABLE).look(JOB_ID, 1) == Found(columns=[]), "nothing is published"
    TableCommitter(store, TABLE).commit(permit(1), [committable(first)])
    assert TableCommitter(store, TABLE).look(JOB_ID, 1) == Found(columns=[Column("a", "int64")])
    assert TableCommitter(store, TABLE).look(JOB_ID, 25) == Found(columns=[Column("a", "int64")])
    store.delete(str(first["path"]))
    assert TableCommitter(store, TABLE).look(JOB_ID, 1) == Found(columns=[]), "audits find what was deleted"
    with pytest.raises(TargetTaken):
        TableCommitter(store, TABLE).look("", 1)


def test_a_record_that_names_other_files_is_an_error_that_says_so() -> None:
    store = MemoryStore()
    w = writer(store)
    committer = TableCommitter(store, TABLE)
    committer.commit(permit(1), [committable(write(w, 1))])
    with pytest.raises(TargetTaken, match="0 is not what Weir wrote: it names other files than this epoch"):
        committer.commit(permit(1), [committable(write(w, 2))])


def test_a_commit_whose_answer_is_lost_fails_and_is_found_when_committed_again() -> None:
    store = MemoryStore()
    payload = write(writer(store), 1)
    committer = TableCommitter(store, TABLE)
    store.answers = [(Created.UNKNOWN, True)]
    with pytest.raises(StoreError, match="did not say whether"):
        committer.commit(permit(1), [committable(payload)])
    committer.commit(permit(1), [committable(payload)])
    assert len(record(store, "0")) == 1


def test_the_order_of_files_is_the_order_of_committables() -> None:
    store = MemoryStore()
    w = writer(store)
    payloads = [write(w, n) for n in range(5)]
    TableCommitter(store, TABLE).commit(permit(1), [committable(p) for p in reversed(payloads)])
    assert [e["path"] for e in record(store, "0")] == [store.uri(str(p["path"])) for p in reversed(payloads)]


@pytest.mark.parametrize("path", ["", "/", "/abs/../x", "../other", "a/../b", "a//b", "./a", "a/"])
def test_a_path_that_would_leave_the_job_s_directory_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="is not a valid table path"):
        TableSink(path)
    assert TableSink("daily/pv").path == "daily/pv"


def begun(sink: TableSink, store: DirectoryStore, job: str, job_id: str, next_epoch: int = 1) -> Committer:
    """A committer that has claimed its table, as a JobMaster does before it deploys."""
    committer = sink.committer(store, JobPaths(job))
    committer.claim(job_id, next_epoch)
    return committer


def written(sink: TableSink, store: DirectoryStore, job: str, job_id: str, value: int) -> dict[str, object]:
    made = sink.writer(WriterContext(0, ATTEMPT, store, JobPaths(job), SCHEMA, job_id))
    made.begin()
    return write(made, value)


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.promise("G1")
def test_a_table_at_an_absolute_path_belongs_to_one_job(tmp_path: Path) -> None:
    sink, store = TableSink(str(tmp_path / "lake" / "pv")), DirectoryStore(tmp_path / "store")
    ours = begun(sink, store, "ours", "1d")
    ours.commit(permit(1), [committable(written(sink, store, "ours", "1d", 7))])
    begun(sink, store, "ours", "1d", 2).abort_unknown(permit(1), AttemptId(9, 9))
    assert read_table(DirectoryStore(tmp_path / "lake"), "pv").to_pydict() == {"a": [7]}
    with pytest.raises(TargetTaken, match=r"belongs to job 'ours' of the store file://.*/store"):
        begun(sink, store, "a_fork", "2d")


@pytest.mark.promise("C2", "G1")
def test_a_table_may_be_in_a_bucket_while_the_store_is_a_directory(
    minio_server: MinioServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    minio_server.use(monkeypatch)
    lake = f"s3://weir/{tmp_path.name}"
    sink, store = TableSink(f"{lake}/pv"), DirectoryStore(tmp_path / "store")
    ours = begun(sink, store, "ours", "1d")
    writer = sink.writer(WriterContext(0, ATTEMPT, store, JobPaths("ours"), SCHEMA, "1d"))
    for epoch in range(1, 13):
        writer.begin()
        ours.commit(permit(epoch), [committable(write(writer, epoch))])
    begun(sink, store, "ours", "1d", 13).abort_unknown(permit(12), AttemptId(9, 9))
    assert sorted(read_table(open_store(lake), "pv").to_pydict()["a"]) == list(range(1, 13))
    assert not (tmp_path / "store").exists(), "nothing of the table is in the store"
    assert tables_of(lake.removesuffix(f"/{tmp_path.name}"), "none") == []
    with pytest.raises(TargetTaken, match=r"s3a://weir/.* belongs to job 'ours'"):
        begun(sink, store, "a_fork", "2d")


@pytest.mark.parametrize("path", ["s3://lake", "s3://lake/", "s3://lake/../pv"])
def test_a_bucket_alone_is_no_table(path: str) -> None:
    with pytest.raises((ValueError, StoreError), match=r"not a valid table path|not a path in a store"):
        TableSink(path)


@pytest.mark.promise("G1")
def test_a_job_of_the_same_name_in_another_store_is_another_owner_and_replaces_no_file(tmp_path: Path) -> None:
    sink = TableSink(str(tmp_path / "lake" / "pv"))
    one, two = DirectoryStore(tmp_path / "one"), DirectoryStore(tmp_path / "two")
    ours = begun(sink, one, "pageviews", "1d")
    ours.commit(permit(1), [committable(written(sink, one, "pageviews", "1d", 7))])
    with pytest.raises(TargetTaken, match="belongs to job 'pageviews' of the store"):
        begun(sink, two, "pageviews", "2d")
    written(sink, two, "pageviews", "2d", 8)  # a slot that nobody has stopped
    assert read_table(DirectoryStore(tmp_path / "lake"), "pv").to_pydict() == {"a": [7]}
    ours.abort_unknown(permit(1), AttemptId(9, 9))
    assert len(list((tmp_path / "lake" / "pv").glob("*.parquet"))) == 2, "only files with the job's own id are deleted"


def test_a_folder_with_files_of_others_is_no_table_to_write_to(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "part-0.parquet").write_bytes(b"")
    with pytest.raises(TargetTaken, match="holds files that this job did not write"):
        begun(TableSink(str(tmp_path / "theirs")), DirectoryStore(tmp_path), "j", "1d")
    assert [path.name for path in (tmp_path / "theirs").iterdir()] == ["part-0.parquet"]


@pytest.mark.promise("G1")
def test_a_table_of_somebody_else_s_spark_file_sink_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    for name in ("part-0.parquet", "_spark_metadata/0", "_spark_metadata/1", "date=1/part-1.parquet"):
        (theirs / name).parent.mkdir(parents=True, exist_ok=True)
        (theirs / name).write_bytes(name.encode())
    before = content(theirs)
    for _ in range(2):
        with pytest.raises(TargetTaken, match="holds files that this job did not write"):
            begun(TableSink(str(theirs)), DirectoryStore(tmp_path / "store"), "j", "1d")
    assert content(theirs) == before


def test_a_table_may_lie_below_another_one_of_its_job(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    below = TableSink(str(tmp_path / "lake" / "pv" / "daily"))
    begun(below, store, "j", "1d")
    written(below, store, "j", "1d", 1)
    begun(TableSink(str(tmp_path / "lake" / "pv")), store, "j", "1d")


def test_a_claim_holds_only_once_the_store_says_that_the_marker_is_there() -> None:
    store = MemoryStore()
    store.answers = [(Created.UNKNOWN, False), (Created.UNKNOWN, True)]
    for _ in range(2):  # a name that is visible need not be durable
        with pytest.raises(StoreError, match="did not say whether"):
            TableCommitter(store, TABLE).claim("1d", 1)
    TableCommitter(store, TABLE).claim("1d", 1)
    with pytest.raises(TargetTaken):
        TableCommitter(store, TABLE).claim("2d", 1)


def test_a_job_whose_marker_was_lost_with_its_host_claims_its_own_files_again() -> None:
    store = MemoryStore()
    store.write(f"{TABLE}/1d-0001-0001-0000-000001.parquet", b"")
    TableCommitter(store, TABLE).claim("1d", 1)
    other = MemoryStore()
    other.write(f"{TABLE}/1d-0001-0001-0000-000001.parquet", b"")
    with pytest.raises(TargetTaken, match="did not write"):
        TableCommitter(other, TABLE).claim("2d", 1)


class _StaleList(MemoryStore):
    """A store whose lists are empty: files that were made a moment ago may be missing in a list."""

    def list(self, prefix: str) -> list[str]:
        return []


def test_a_rewind_repeats_what_was_published_also_if_the_list_of_records_is_stale() -> None:
    store = _StaleList()
    committer = TableCommitter(store, TABLE)
    committer.claim("1d", 1)
    for epoch in range(1, 13):
        committer.commit(permit(epoch), [committable({"path": f"{TABLE}/{epoch}", "size": 1})])
    committer.rewind(permit(20), to_epoch=11)
    assert [str(file["path"]).rsplit("/", 1)[1] for file in committer.files(20)] == [str(n) for n in range(1, 12)]


# --- damaged logs ---


def twelve_epochs(store: MemoryStore) -> TableCommitter:
    committer = claimed(store)
    w = writer(store, attempt=AttemptId(1, 1))
    for epoch in range(1, 13):
        committer.commit(permit(epoch), [committable(write(w, epoch))])
    return committer


def cut(data: bytes) -> bytes:
    return data[: data.rindex(b"\n")]


DAMAGES = {"emptied": lambda data: b"", "cut": cut, "edited": lambda data: data.replace(b'"size":', b'"size": ')}


@pytest.mark.promise("D11", "G1")
@pytest.mark.parametrize("name", ["9.compact", "10", "11"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_record_stops_the_job_and_no_file_is_deleted(name: str, damage: str) -> None:
    store = MemoryStore()
    committer = twelve_epochs(store)
    path = f"{TABLE}/_spark_metadata/{name}"
    store.write(path, DAMAGES[damage](store.read(path)))
    before = dict(store.files)
    with pytest.raises(TargetTaken, match=f"{name} is not what Weir wrote: .* Bring it back from a backup"):
        committer.abort_unknown(permit(12), AttemptId(9, 9))
    with pytest.raises(TargetTaken, match=f"{name} is not what Weir wrote"):
        committer.look(JOB_ID, 12)
    assert store.files == before


def test_a_damaged_record_is_not_repeated_by_a_later_one() -> None:
    store = MemoryStore()
    committer = twelve_epochs(store)
    store.write(f"{TABLE}/_spark_metadata/10", b"v1")
    for epoch in range(13, 20):
        committer.commit(permit(epoch), [])
    with pytest.raises(TargetTaken, match="10 is not what Weir wrote"):
        committer.commit(permit(20), [])
    with pytest.raises(TargetTaken, match="10 is not what Weir wrote"):
        committer.rewind(permit(20), to_epoch=12)
    with pytest.raises(TargetTaken, match="10 is not what Weir wrote"):
        read_table(store, TABLE)


@pytest.mark.parametrize("name", ["9.compact", "10"])
def test_a_record_that_is_missing_stops_the_job_unless_the_whole_table_is_away(name: str) -> None:
    store = MemoryStore()
    committer = twelve_epochs(store)
    store.delete(f"{TABLE}/_spark_metadata/{name}")
    with pytest.raises(TargetTaken, match=f"{name} is not what Weir wrote: it is missing"):
        committer.abort_unknown(permit(12), AttemptId(9, 9))
    before = dict(store.files)
    with pytest.raises(TargetTaken, match=f"{name} is not what Weir wrote: it is missing"):
        committer.rewind(permit(20), to_epoch=12)
    assert store.files == before
    store.delete(TABLE)
    with pytest.raises(StoreError, match="is missing"):
        committer.abort_unknown(permit(12), AttemptId(9, 9))


@pytest.mark.parametrize("damage", [b"", b"v1\n{", b'v1\n"x"', b'{"path":"x","size":1}', b"\xff"])
def test_a_record_of_an_older_weir_has_no_checksum_and_must_at_least_be_a_record(damage: bytes) -> None:
    store = MemoryStore()
    committer = twelve_epochs(store)
    store.delete(f"{TABLE}/_spark_metadata/.10.checksum")
    store.write(f"{TABLE}/_spark_metadata/10", damage)
    with pytest.raises(TargetTaken, match=r"10 is not what Weir wrote: its .* are no record"):
        committer.abort_unknown(permit(12), AttemptId(9, 9))


def test_without_the_checksum_of_a_record_nothing_is_deleted_also_later() -> None:
    store = MemoryStore()
    committer = twelve_epochs(store)
    store.delete(f"{TABLE}/_spark_metadata/.9.checksum")
    path = f"{TABLE}/_spark_metadata/9.compact"
    store.write(path, cut(store.read(path)))
    for epoch in range(13, 32):
        committer.commit(permit(epoch), [])
    committer.abort_unknown(permit(31), AttemptId(9, 9))
    assert len(data_files(store)) == 12


@pytest.mark.promise("D11")
def test_a_record_whose_writer_died_before_its_checksum_gets_it_when_the_epoch_is_committed_again() -> None:
    store = MemoryStore()
    committer = claimed(store)
    w = writer(store)
    payload, unknown = write(w, 1), write(w, 2)
    store.answers = [(Created.CREATED, True), (Created.UNKNOWN, False)]
    with pytest.raises(StoreError, match=r"did not say whether .*checksum was created"):
        committer.commit(permit(1), [committable(payload)])
    committer.commit(permit(1), [committable(payload)])
    committer.abort_unknown(permit(1), AttemptId(9, 9))
    assert payload["path"] in data_files(store) and unknown["path"] not in data_files(store)


def test_files_of_an_epoch_that_the_job_s_log_lost_are_not_deleted() -> None:
    store = MemoryStore()
    committer = twelve_epochs(store)
    for older in (permit(11), None):  # somebody brought back an older copy of the log
        committer.abort_unknown(older, AttemptId(9, 9))
    with pytest.raises(TargetTaken, match="11 is not what Weir wrote: it names other files than this epoch's"):
        committer.commit(permit(12), [])
    assert len(data_files(store)) == 12
