"""Jobs that begin from a savepoint, without Spark: who owns it, what is refused, and that nothing is changed by that.

Topology: source → window per key → table; the savepoint lies in a folder of its own.
Faults: folders that are moved, damaged, of another version or of another job. Checks: what `weir submit --from` says,
and what is in the stores afterwards.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.api import StreamEnvironment, TumblingEventTimeWindows, WatermarkStrategy, count
from engine.connectors.table import TableSink
from engine.core.errors import IncompatibleJob, NoSavepoint, StoreError, WeirError
from engine.core.paths import JobPaths
from engine.host.launch import MasterLaunch
from engine.host.run_folder import MasterExit, RunFolder
from engine.jobmaster import events
from engine.jobmaster.actions import Outcome
from engine.jobmaster.master import Phase
from engine.process.from_savepoint import begin_from, delete_savepoint, find_savepoint
from engine.process.going_on import goes_on
from engine.process.submit import FromSnapshot, choose_snapshot
from engine.protocol.epoch_records import Created, LogRecord
from engine.protocol.savepoint import SavepointRequest, StopRequest
from engine.snapshot.beginning import begin, delete_claimed
from engine.snapshot.epoch_log import EpochLog
from engine.snapshot.savepoints import SavepointFolder
from engine.store.directory import DirectoryStore
from engine.testing import ListSource, LocalRun

PATH = "tests.process.test_from_savepoint:job"


def job(env: StreamEnvironment) -> None:
    env.enable_checkpointing(interval=4)
    records = [{"app": f"a{n % 3}", "ts": 1000 * n} for n in range(60)]
    views = env.from_source(ListSource(records), "app string, ts long", uid="views")
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("ts")
    windows = views.assign_timestamps_and_watermarks(strategy).key_by("app").window(TumblingEventTimeWindows.of("10 s"))
    windows.aggregate(pv=count(), uid="pv").sink_to(TableSink("pv"), uid="out")


def narrow(env: StreamEnvironment) -> None:
    """The same job with fewer key groups."""
    env.max_parallelism = 16
    job(env)


@pytest.fixture
def savepoint(tmp_path: Path) -> Path:
    """A savepoint in a folder of its own, of a job that runs on."""
    run = LocalRun(job, 2, {})
    run.run(until=lambda: run.master.stats.checkpoints_completed > 0)
    run.carry_out(run.master.trigger_savepoint(SavepointRequest("s", str(tmp_path / "s")), run.now_ms())[1])
    run.run(until=lambda: any(isinstance(event, events.SavepointCompleted) for event in run.events))
    return tmp_path / "s"


def launch(tmp_path: Path, path: str = PATH, name: str = "new") -> MasterLaunch:
    return MasterLaunch(path=path, name=name, store=str(tmp_path / "store"), max_slots=4)


def log_of(of: MasterLaunch) -> EpochLog:
    return EpochLog(DirectoryStore(of.store), JobPaths(of.name))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.promise("D5", "D9")
def test_a_job_begins_from_a_savepoint_which_stays_as_it_is(tmp_path: Path, savepoint: Path) -> None:
    before, new = contents(savepoint), launch(tmp_path)
    assert begin_from(new, str(savepoint), claim=False) == "new begins from savepoint s of test"
    last = log_of(new).last()
    assert last is not None and last.newest is not None and last.newest.epoch == 0
    assert contents(savepoint) == before
    assert "has begun from this savepoint already" in begin_from(new, str(savepoint), claim=False)
    assert log_of(new).last() == last


@pytest.mark.promise("D9")
@pytest.mark.parametrize("claim", [False, True])
def test_a_savepoint_that_was_claimed_is_deleted_with_the_last_epoch_that_needs_it(
    tmp_path: Path, savepoint: Path, claim: bool
) -> None:
    class Begun:
        store = DirectoryStore(tmp_path / "store")
        nonce = "new"

    before = contents(savepoint)
    run = LocalRun(job, 2, {}, Begun())  # type: ignore[arg-type]
    begin(SavepointFolder(DirectoryStore(savepoint)), EpochLog(Begun.store, run.paths), "me", lambda: None, claim=claim)
    run.run(until=lambda: run.master.stats.checkpoints_completed == 1)
    assert contents(savepoint) == before  # three epochs are kept, and the state that the job began with is one of them
    run.run()
    assert run.epochs > 4
    assert contents(savepoint) == ({} if claim else before) and savepoint.exists() is not claim


@pytest.mark.promise("D9")
def test_a_claimed_savepoint_is_not_deleted_if_another_one_is_in_its_place(tmp_path: Path, savepoint: Path) -> None:
    new = launch(tmp_path)
    begin_from(new, str(savepoint), claim=True)
    head = savepoint / "savepoint.json"
    head.write_text(json.dumps({**json.loads(head.read_text()), "checksum": "of another one"}))
    store = DirectoryStore(new.store)
    delete_claimed(store, store.list("new"))
    assert head.exists()


@pytest.mark.promise("D9")
def test_who_dies_before_the_job_has_begun_owns_nothing_and_the_job_of_a_later_start_leaves_the_savepoint(
    tmp_path: Path, savepoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Begun:
        store = DirectoryStore(tmp_path / "store")
        nonce = "new"

    def killed(log: EpochLog, fence: LogRecord) -> Created:
        raise KeyboardInterrupt

    before, folder = contents(savepoint), SavepointFolder(DirectoryStore(savepoint))
    run = LocalRun(job, 2, {}, Begun())  # type: ignore[arg-type]
    log = EpochLog(Begun.store, run.paths)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(EpochLog, "append_fence", killed)
        begin(folder, log, "killed", lambda: None, claim=True)
    begin(folder, log, "me", lambda: None, claim=False)
    run.run()
    assert run.epochs > 4
    assert contents(savepoint) == before


@pytest.mark.promise("D9")
def test_a_savepoint_can_be_claimed_by_the_same_command_again_after_the_job_has_begun_from_it(
    tmp_path: Path, savepoint: Path
) -> None:
    new = launch(tmp_path)
    begin_from(new, str(savepoint), claim=False)
    assert "the job owns the savepoint now" in begin_from(new, str(savepoint), claim=True)
    store = DirectoryStore(new.store)
    delete_claimed(store, store.list("new"))
    assert contents(savepoint) == {}


@pytest.mark.promise("D5")
def test_a_job_that_has_epochs_is_refused_with_the_choices(tmp_path: Path, savepoint: Path) -> None:
    first = launch(tmp_path)
    begin_from(first, str(savepoint), claim=False)

    class Begun:
        store = DirectoryStore(first.store)
        nonce = "new"

    run = LocalRun(job, 2, {}, Begun())  # type: ignore[arg-type]
    run.run()  # under the name "test", in the same store
    other = launch(tmp_path, name="test")
    before = contents(tmp_path / "store")
    with pytest.raises(WeirError, match=r"job 'test' is at epoch \d+.*without --from.*or choose another --name"):
        begin_from(other, str(savepoint), claim=False)
    assert contents(tmp_path / "store") == before


@pytest.mark.promise("D6")
def test_the_savepoint_of_a_stop_is_the_newest_epoch_and_the_job_simply_goes_on(tmp_path: Path) -> None:
    class Begun:
        store = DirectoryStore(tmp_path / "store")
        nonce = "new"

    run = LocalRun(job, 2, {}, Begun())  # type: ignore[arg-type]
    run.run(until=lambda: run.master.phase is Phase.RUNNING)
    run.carry_out(run.master.stop(StopRequest(False, SavepointRequest("last")), run.now_ms())[1])
    run.run()
    again = launch(tmp_path, name="test")
    for text in ("last", "test/last", str(tmp_path / "store/test/savepoints/last")):
        said = f"goes on from epoch {run.epochs}, which is this savepoint"
        assert said in begin_from(again, text, claim=False)


@pytest.mark.promise("D6")
def test_a_job_that_was_drained_is_refused_before_spark_is_started(tmp_path: Path, savepoint: Path) -> None:
    class Begun:
        store = DirectoryStore(tmp_path / "store")
        nonce = "new"

    run = LocalRun(job, 2, {}, Begun())  # type: ignore[arg-type]
    run.run(until=lambda: run.master.phase is Phase.RUNNING)
    run.carry_out(run.master.stop(StopRequest(True, None), run.now_ms())[1])
    run.run()
    again = launch(tmp_path, name="test")
    assert goes_on(again.store, "test") == f"is refused: it was drained in epoch {run.epochs}, so it is over for good"
    with pytest.raises(WeirError, match=f"it was drained in epoch {run.epochs}: .* start it under another --name"):
        choose_snapshot(again, FromSnapshot.LAST)
    with pytest.raises(WeirError, match=r"published again\. Choose another --name, and a new job begins"):
        begin_from(again, str(savepoint), claim=False)  # to start it without --from would be refused, too


@pytest.mark.promise("D6", "D11", "F2")
def test_a_drained_job_that_was_killed_before_its_end_is_started_to_commit_its_last_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else would: a JobMaster and its supervisor may die together between the epoch's record and its commit."""

    class Begun:
        store = DirectoryStore(tmp_path / "store")
        nonce = "new"

    run = LocalRun(job, 2, {}, Begun())  # type: ignore[arg-type]
    run.run(until=lambda: run.master.phase is Phase.RUNNING)
    run.carry_out(run.master.stop(StopRequest(True, None), run.now_ms())[1])
    run.run()
    again = launch(tmp_path, name="test")
    folder = RunFolder(again.store, "test")
    folder.prepare()
    folder.begin(again)
    folder.want_running(again, "test")
    commits = f"only commits epoch {run.epochs}, in which the job was drained, and ends"
    assert goes_on(again.store, "test").startswith(commits)
    assert commits in choose_snapshot(again, FromSnapshot.LAST)
    with monkeypatch.context() as away:  # a bucket says what is desired, and may not answer

        def unanswered(self: RunFolder) -> None:
            raise StoreError("no connection")

        away.setattr(RunFolder, "read_desired", unanswered)
        assert goes_on(again.store, "test") == ""
    for outcome in (Outcome.CANCELLED, Outcome.FAILED):  # either may come before the commit
        folder.write_exit(MasterExit(outcome, "before the commit"), again)
        assert commits in choose_snapshot(again, FromSnapshot.LAST)
    folder.write_exit(MasterExit(Outcome.STOPPED, "drained"), again)
    with pytest.raises(WeirError, match=f"it was drained in epoch {run.epochs}: .* start it under another --name"):
        choose_snapshot(again, FromSnapshot.LAST)


@pytest.mark.promise("D6")
def test_no_job_begins_from_a_savepoint_that_was_drained(tmp_path: Path) -> None:
    run = LocalRun(job, 2, {})
    run.run(until=lambda: run.master.phase is Phase.RUNNING)
    drained = SavepointRequest("last", str(tmp_path / "drained"))
    run.carry_out(run.master.stop(StopRequest(True, drained), run.now_ms())[1])
    run.run()
    with pytest.raises(WeirError, match=r"was taken with --drain: .* Begin from one that was taken without it"):
        begin_from(launch(tmp_path), str(tmp_path / "drained"), claim=False)
    assert not (tmp_path / "store").exists()


def _damage(change: Callable[[Path], None]) -> Callable[[Path], None]:
    def of_state(folder: Path) -> None:
        change(next(path for path in sorted(folder.rglob("*.arrow"))))

    return of_state


def _manifest(folder: Path) -> None:
    path = next(folder.rglob("manifest.json"))
    path.write_bytes(path.read_bytes().replace(b'"job":"test"', b'"job":"tost"'))


def _head(**over: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        head = folder / "savepoint.json"
        head.write_text(json.dumps({**json.loads(head.read_text()), **over}))

    return change


@pytest.mark.promise("D5", "D8")
@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (_damage(Path.unlink), r"\.arrow is missing"),
        (_damage(lambda path: path.write_bytes(path.read_bytes()[:-8])), r"\.arrow is not what was written"),
        (_damage(lambda path: path.write_bytes(b"x" * path.stat().st_size)), r"\.arrow is not what was written"),
        (_manifest, r"manifest\.json is not what was written"),
        (_head(format=9), "has format 9, and this version of Weir reads 1: use the version that wrote it. Or begin"),
        (lambda folder: (folder / "savepoint.json").write_text("{"), r"savepoint\.json is damaged"),
    ],
)
def test_a_damaged_savepoint_is_told_by_its_file_and_nothing_is_changed(
    tmp_path: Path, savepoint: Path, damage: Callable[[Path], None], says: str
) -> None:
    damage(savepoint)
    with pytest.raises(WeirError, match=f"{says}.*Nothing was changed"):
        begin_from(launch(tmp_path), str(savepoint), claim=False)
    assert log_of(launch(tmp_path)).last() is None
    assert contents(tmp_path / "store") == {}


@pytest.mark.promise("D7", "D8")
@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("tests.process.test_from_savepoint:narrow", "max_parallelism was 128, is 16"),
        ("tests.cluster.jobs:windows", "no operator in common with test, of which the savepoint is"),
    ],
)
def test_a_job_that_does_not_fit_the_savepoint_is_refused_before_anything_is_written(
    tmp_path: Path, savepoint: Path, path: str, says: str
) -> None:
    new = launch(tmp_path, path)
    with pytest.raises(IncompatibleJob) as refused:
        begin_from(new, str(savepoint), claim=False)
    assert f"can't begin from the savepoint {savepoint}" in refused.value.summary
    assert says in " ".join(what for _, what, _ in refused.value.rows)
    assert contents(tmp_path / "store") == {}


def test_a_place_without_a_savepoint_says_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(NoSavepoint, match=r"weir savepoints JOB lists both"):
        find_savepoint(tmp_path, "pageviews/nightly")
    with pytest.raises(WeirError, match="is no address of a folder"):
        find_savepoint(tmp_path, "ftp://host/x")


@pytest.mark.promise("D5")
def test_only_delete_removes_a_savepoint_and_it_removes_nothing_else(tmp_path: Path, savepoint: Path) -> None:
    (savepoint / "notes.txt").write_text("mine")
    place, head = delete_savepoint(tmp_path, str(savepoint))
    assert (place, head.name, head.job) == (str(savepoint), "s", "test")
    assert contents(savepoint) == {"notes.txt": b"mine"}
    with pytest.raises(NoSavepoint):
        delete_savepoint(tmp_path, str(savepoint))
