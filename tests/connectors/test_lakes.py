"""Lake tables (Delta, Iceberg), written exactly once.

Goal: each record is in the table once, whatever dies. Topology: a source with two splits → the sink.
Faults: every process dies at each step of the four verbs, a JobMaster sleeps in the middle of a commit through its own
replacement, others commit in between, the parallelism and the columns change. Checks: the rows as the table's own
library reads them, and one commit per epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from engine.api import StreamEnvironment
from engine.connectors.lake import publishing, writer
from engine.connectors.lake.columns import lake_schema, missing_columns, schema_of_text, schema_text
from engine.connectors.lake.publishing import Conflict, LakeCommitter, LakeFile, is_published
from engine.core.errors import IncompatibleJob, SchemaMismatch, StoreError
from engine.core.paths import JobPaths
from engine.core.sinks import Sink
from engine.protocol.checkpoint import CommitPermit
from engine.protocol.ids import AttemptId
from engine.protocol.manifest import ManifestRef
from engine.snapshot.epoch_log import EpochLog
from engine.store.directory import DirectoryStore
from engine.testing import Checkpoint, Crash, JobFailed, ListSource, LocalRun, run
from tests.connectors.dying import Died, die_once
from tests.connectors.lakes import LAKES, Lake

Job = Callable[[StreamEnvironment], None]


@pytest.fixture(params=sorted(LAKES))
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return LAKES[request.param](tmp_path)


def numbers(*items: Sequence[Any]) -> ListSource:
    return ListSource(*([item if not isinstance(item, int) else {"n": item} for item in split] for split in items))


def writing(sink: Sink, source: ListSource, schema: str = "n long") -> Job:
    def job(env: StreamEnvironment) -> None:
        env.enable_checkpointing("1 min")
        env.from_source(source, schema, uid="numbers").sink_to(sink, uid="out")

    return job


def two_splits() -> ListSource:
    return numbers([1, Checkpoint(), 2, Checkpoint(), 3], [11, Checkpoint(), 12, Checkpoint(), 13])


ALL = [1, 2, 3, 11, 12, 13]


STEPS = {
    "begin": (writer.LakeWriter, "begin"),
    "write": (writer.LakeWriter, "write"),
    "pre_commit": (writer.LakeWriter, "pre_commit"),
    "persist": (writer._LakeFile, "persist"),
    "check": ("committer", "check"),
    "commit": ("committer", "commit"),
    "publish": ("committer", "_publish"),
    "sync": ("committer", "_make_durable"),
    "claim": ("committer", "claim"),
    "abort": ("committer", "abort_unknown"),
}


@pytest.mark.promise("D11")
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("call", [1, 2, 3])
@pytest.mark.parametrize("step", STEPS)
def test_all_processes_die_at_any_step_of_the_four_verbs_and_each_row_is_there_once(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, step: str, call: int, before: bool
) -> None:
    of, name = STEPS[step]
    source = two_splits()
    first = LocalRun(writing(lake.sink(), source), 2, {})
    with monkeypatch.context() as patch:
        die_once(patch, lake.committer if isinstance(of, str) else of, name, call, before)
        if step in ("claim", "abort") and call > 1:
            first.run()  # the JobMaster calls these once in its life
        else:
            with pytest.raises(Died):
                first.run()
    run(writing(lake.sink(), source), parallelism=2, after=first)
    assert lake.numbers() == ALL
    epochs = lake.epochs()
    assert epochs == sorted(set(epochs)), "one commit per epoch"


@pytest.mark.promise("D11")
def test_a_slot_that_dies_leaves_no_rows_of_what_it_had_not_published(lake: Lake) -> None:
    source = numbers([1, Checkpoint(), 2, Crash(), 3, Checkpoint(), 4], [11, Checkpoint(), 12, Crash(), 13])
    done = run(writing(lake.sink(), source), parallelism=2)
    assert done.restarts >= 1
    assert lake.numbers() == [1, 2, 3, 4, 11, 12, 13]


@pytest.mark.promise("D11")
@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_job_goes_on_at_another_parallelism(lake: Lake, parallelism: int) -> None:
    source = two_splits()
    first = run(writing(lake.sink(), source), parallelism=2, until=lambda run: run.epochs >= 1)
    run(writing(lake.sink(), source), parallelism=parallelism, after=first)
    assert lake.numbers() == ALL


def at_publish(monkeypatch: pytest.MonkeyPatch, lake: Lake, call: int, meanwhile: Callable[[], None]) -> list[str]:
    """Lets something happen after a commit has read the table and before it writes. Returns how its tries ended."""
    real = lake.committer._publish
    calls = 0
    outcomes: list[str] = []

    def publish(self: LakeCommitter, epoch: int, files: Sequence[LakeFile]) -> None:
        nonlocal calls
        calls += 1
        mine = calls >= call
        if calls == call:
            meanwhile()
        try:
            real(self, epoch, files)
        except Conflict:
            outcomes.append("refused")
            raise
        if mine:
            outcomes.append("published")

    monkeypatch.setattr(lake.committer, "_publish", publish)
    return outcomes


@pytest.mark.promise("D11", "F2")
@pytest.mark.parametrize("call", [1, 2])
def test_a_job_master_that_sleeps_in_a_commit_through_its_own_replacement_publishes_nothing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    """The zombie has read the table, and found that its epoch is not there. Its successor publishes that epoch and all
    later ones. Then the zombie wakes up and commits."""
    source = two_splits()
    first = LocalRun(writing(lake.sink(), source), 2, {})
    real = lake.committer._publish

    def replaced() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lake.committer, "_publish", real)
            run(writing(lake.sink(), source), parallelism=2, after=first)

    outcomes = at_publish(monkeypatch, lake, call, replaced)
    with pytest.raises(JobFailed):
        first.run()
    assert outcomes == ["refused"]
    assert lake.numbers() == ALL


@pytest.mark.promise("D11")
def test_what_others_commit_in_between_makes_a_commit_try_again(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = at_publish(monkeypatch, lake, 2, lambda: lake.append(pa.table({"n": [100]})))
    run(writing(lake.sink(), two_splits()), parallelism=2)
    assert outcomes[:2] == ["refused", "published"] and "refused" not in outcomes[1:]
    assert lake.numbers() == [*ALL, 100]


@pytest.mark.promise("D11")
def test_two_jobs_write_to_one_table_each_under_its_own_name(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    run(writing(lake.sink(), two_splits()), parallelism=2)
    monkeypatch.setattr("engine.protocol.epoch_records.job_id_from", lambda owner: "b0b")
    run(writing(lake.sink(), numbers([21, Checkpoint(), 22])))
    assert lake.numbers() == [*ALL, 21, 22]


@pytest.mark.promise("D11")
def test_epochs_without_rows_leave_no_commit(lake: Lake) -> None:
    done = run(writing(lake.sink(), numbers([1, Checkpoint(), Checkpoint(), Checkpoint(), 2])))
    assert done.epochs > len(lake.epochs()) == 2


@pytest.mark.promise("D8")
def test_new_columns_come_by_name_and_are_null_in_older_rows(lake: Lake) -> None:
    before = numbers([1, Checkpoint(), 2])
    first = run(writing(lake.sink(), before), until=lambda run: run.epochs >= 1)
    items = [{"n": 1}, Checkpoint(), {"n": 2, "city": "Bern", "ts": None}, {"n": 3, "city": None, "ts": None}]
    run(writing(lake.sink(), ListSource(items), "city string, ts timestamp, n long"), after=first)
    assert [(row["n"], row["city"]) for row in lake.rows()] == [(1, None), (2, "Bern"), (3, None)]


@pytest.mark.promise("D8")
@pytest.mark.parametrize(
    "kind", ["timestamp_ntz", "short", "array<string>", "map<string,int>", "struct<a long>", "decimal(10,2)", "binary"]
)
def test_a_new_column_may_be_of_any_type(lake: Lake, kind: str) -> None:
    first = run(writing(lake.sink(), numbers([1, Checkpoint(), 2])), until=lambda run: run.epochs >= 1)
    items = [{"n": 1}, Checkpoint(), {"n": 2, "new": None}]
    run(writing(lake.sink(), ListSource(items), f"n long, new {kind}"), after=first)
    assert [(row["n"], row["new"]) for row in lake.rows()] == [(1, None), (2, None)]


@pytest.mark.promise("D8")
def test_a_column_that_the_job_no_longer_writes_is_refused_before_anything_starts(lake: Lake) -> None:
    first = run(
        writing(
            lake.sink(),
            ListSource([{"n": 1, "city": "Bern"}, Checkpoint(), {"n": 2, "city": "Bern"}]),
            "n long, city string",
        ),
        until=lambda run: run.epochs >= 1,
    )
    with pytest.raises((JobFailed, IncompatibleJob), match="no longer has the column city"):
        run(writing(lake.sink(), numbers([1, Checkpoint(), 2])), after=first)


@pytest.mark.promise("D8")
def test_rows_that_do_not_fit_to_the_table_of_others_end_the_job_before_a_file_is_written(lake: Lake) -> None:
    lake.append(pa.table({"n": ["text"]}))
    with pytest.raises(JobFailed, match=r"the column n of .* is string, and the job writes int64: cast it"):
        run(writing(lake.sink(), two_splits()))
    assert lake.numbers() == ["text"] and lake.epochs() == []


def test_a_partitioned_table_of_others_is_refused_before_a_file_is_written(lake: Lake) -> None:
    """A bug: the rows of a Delta table were there with a null as the value of the partition."""
    lake.create_partitioned(pa.schema([("n", pa.int64()), ("city", pa.string())]), "city")
    with pytest.raises(JobFailed, match=r"is partitioned by .*city.*, and Weir writes plain files: choose another"):
        run(writing(lake.sink(), ListSource([{"n": 1, "city": "Bern"}]), "n long, city string"))
    assert lake.numbers() == [] and not list(lake.folder.rglob("*.parquet"))


def test_columns_that_others_have_added_are_null_in_the_rows_of_the_job(lake: Lake) -> None:
    lake.append(pa.table({"n": [0], "note": ["by hand"]}))
    run(writing(lake.sink(), numbers([1])))
    assert [(row["n"], row["note"]) for row in lake.rows()] == [(0, "by hand"), (1, None)]


@pytest.mark.promise("D11")
def test_a_table_that_is_ahead_of_the_log_of_its_job_is_refused(lake: Lake) -> None:
    """An older copy of the job's folder was brought back: its next epochs would be taken for published ones."""
    source = two_splits()
    first = run(writing(lake.sink(), source), parallelism=2, until=lambda run: run.epochs >= 1)
    older = dict(first.store.files)
    run(writing(lake.sink(), source), parallelism=2, after=first)
    first.store.files = older
    with pytest.raises(JobFailed, match="an older copy of the job's folder was brought back"):
        run(writing(lake.sink(), source), parallelism=2, after=first)
    assert lake.numbers() == ALL


def committed(lake: Lake, source: ListSource) -> tuple[LakeCommitter, LocalRun]:
    """A job that has ended, and its committer as its next JobMaster makes it."""
    done = run(writing(lake.sink(), source))
    committer = lake.sink().committer(done.store, JobPaths("test"))
    assert isinstance(committer, LakeCommitter)
    last = EpochLog(done.store, done.paths).last()
    assert last is not None
    committer.claim(last.job_id, done.epochs + 1)
    return committer, done


def permit(epoch: int) -> CommitPermit:
    return CommitPermit.issue(ManifestRef("", "", epoch, epoch))


@pytest.mark.promise("D11")
def test_an_epoch_that_was_passed_over_can_not_be_published_any_more(lake: Lake) -> None:
    committer, done = committed(lake, numbers([1]))
    epoch = done.epochs + 1
    committer.pass_over(permit(epoch))
    committer.pass_over(permit(epoch))
    assert lake.epochs()[-1] == epoch
    assert is_published(committer._last(), epoch)
    assert lake.numbers() == [1]


@pytest.mark.promise("D11")
def test_an_epoch_that_is_found_is_made_durable(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its publisher may have died before it did."""
    committer, done = committed(lake, numbers([1]))
    synced: list[list[str]] = []
    real = DirectoryStore.sync
    monkeypatch.setattr(DirectoryStore, "sync", lambda self, paths: (synced.append(paths), real(self, paths))[1])
    for times in (1, 2):
        before = len(synced)
        committer.pass_over(permit(done.epochs + 1))
        assert len(synced) > before, times


def test_others_that_are_always_faster_make_the_job_wait(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    committer, done = committed(lake, numbers([1]))

    def refused(*_: Any) -> None:
        raise Conflict

    monkeypatch.setattr(lake.committer, "_publish", refused)
    with pytest.raises(StoreError, match=f"first, {publishing.TRIES} times in a row"):
        committer.pass_over(permit(done.epochs + 1))


def test_files_that_are_gone_are_noticed_before_their_epoch_is_published(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[Sequence[Any]] = []
    real = lake.committer.check
    monkeypatch.setattr(lake.committer, "check", lambda self, all_of: (checked.append(all_of), real(self, all_of))[1])
    committer, _ = committed(lake, numbers([1]))
    written = next(all_of for all_of in checked if all_of)
    store, folder = committer._place()
    store.delete(f"{folder}/{written[0].payload['name']}")
    with pytest.raises(StoreError, match="is gone: was the store away, or did a vacuum delete it"):
        committer.check(written)


@pytest.mark.parametrize(("last", "epoch", "there"), [(None, 1, False), (1, 1, True), (1, 2, False), (7, 3, True)])
def test_an_epoch_is_published_if_it_or_a_later_one_is_in_the_table(last: int | None, epoch: int, there: bool) -> None:
    assert is_published(last, epoch) is there


def test_columns_are_stored_as_types_that_lake_tables_know() -> None:
    given = pa.schema(
        [
            pa.field("small", pa.uint8(), nullable=False),
            ("word", pa.dictionary(pa.int32(), pa.large_string())),
            ("at", pa.timestamp("ns", "Europe/Berlin")),
            ("day", pa.date64()),
            ("deep", pa.list_(pa.struct([("m", pa.map_(pa.string_view(), pa.uint32()))]))),
            ("byte", pa.int8()),
        ]
    )
    assert lake_schema(given, "t", narrow_ints=True) == pa.schema(
        [
            ("small", pa.int16()),
            ("word", pa.string()),
            ("at", pa.timestamp("us", "UTC")),
            ("day", pa.date32()),
            ("deep", pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.int64()))]))),
            ("byte", pa.int8()),
        ]
    )
    assert lake_schema(given, "t", narrow_ints=False).field("byte").type == pa.int32()


@pytest.mark.parametrize("kind", [pa.uint64(), pa.time64("us"), pa.duration("s"), pa.null(), pa.float16()])
def test_a_type_that_lake_tables_do_not_know_is_named_with_what_to_do(kind: pa.DataType) -> None:
    with pytest.raises(SchemaMismatch, match=r"can't store the column a\.b of type .*: cast it to"):
        lake_schema(pa.schema([("a", pa.struct([("b", kind)]))]), "the table t", narrow_ints=True)


def test_columns_are_compared_by_name() -> None:
    table = pa.schema([("a", pa.int64()), ("b", pa.large_string()), ("l", pa.large_list(pa.field("x", pa.int64())))])
    rows = pa.schema([("c", pa.float64()), ("l", pa.list_(pa.int64())), ("b", pa.string())])
    assert missing_columns(table, rows, "t") == [pa.field("c", pa.float64())]
    with pytest.raises(SchemaMismatch, match="the column B is b in t"):
        missing_columns(table, pa.schema([("B", pa.string())]), "t")
    with pytest.raises(SchemaMismatch, match="the column a of t is int64, and the job writes int32"):
        missing_columns(table, pa.schema([("a", pa.int32())]), "t")
    with pytest.raises(SchemaMismatch, match="the column k of t must not be null"):
        missing_columns(pa.schema([pa.field("k", pa.int64(), nullable=False)]), rows, "t")


def test_the_columns_of_a_file_travel_as_text() -> None:
    schema = pa.schema([("a b", pa.list_(pa.struct([("x", pa.decimal128(10, 2))]))), ("t", pa.timestamp("us", "UTC"))])
    assert schema_of_text(schema_text(schema)) == schema


def test_the_names_of_files_are_those_of_their_attempt(lake: Lake) -> None:
    """Two attempts never write a file of the same name, and what one of them wrote is never replaced."""
    source = numbers([1, Checkpoint(), 2, Crash(), 3])
    run(writing(lake.sink(), source))
    names = [path.name for path in lake.folder.rglob("*.parquet")]
    attempts = {AttemptId(*map(int, name.split("-")[1:3])) for name in names}
    assert len(attempts) == 2
