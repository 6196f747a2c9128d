"""Savepoints whose place is a bucket (`--to s3://…`, `--from s3://…`), without Spark, on a real MinIO server.

Topology: that of test_from_savepoint.py; the savepoint, or the store of the new job, is in a bucket. Faults: a bucket
that does not exist, a wrong key, a file that is missing, a name that is taken. Checks: what is said, what the new job
publishes, and what is in the bucket afterwards.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.core.errors import NoSavepoint, SavepointExists, StoreError, WeirError
from engine.core.paths import JobPaths
from engine.host.launch import MasterLaunch
from engine.jobmaster import events
from engine.jobmaster.savepoints import check_new_savepoint
from engine.process.from_savepoint import begin_from, delete_savepoint
from engine.protocol.savepoint import SavepointRequest
from engine.snapshot.epoch_log import EpochLog
from engine.store.opening import open_store
from engine.store.places import open_place
from engine.testing import LocalRun
from tests.process.test_from_savepoint import PATH, job
from tests.servers.minio import MinioServer


@pytest.fixture
def bucket(minio_server: MinioServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    minio_server.use(monkeypatch)
    monkeypatch.setenv("WEIR_STATE", str(tmp_path / "state"))
    return f"s3://weir/{tmp_path.name}"


def saved(place: str) -> LocalRun:
    """A job that has taken a savepoint to this place, and runs on."""
    run = LocalRun(job, 2, {})
    run.run(until=lambda: run.master.stats.checkpoints_completed > 0)
    run.carry_out(run.master.trigger_savepoint(SavepointRequest("s", place), run.now_ms())[1])
    run.run(until=lambda: any(isinstance(event, events.SavepointCompleted) for event in run.events))
    return run


def launch(store: str) -> MasterLaunch:
    return MasterLaunch(path=PATH, name="test", store=store, max_slots=4)


def rows(run: LocalRun) -> list[tuple[str, int, int]]:
    return sorted((row["app"], row["window_start"], row["pv"]) for row in run.rows("pv"))


class Begun:
    nonce = "new"

    def __init__(self, address: str) -> None:
        self.store = open_store(address)


def went_on(address: str) -> LocalRun:
    """Runs the job of this store to its end, from where it has begun."""
    run = LocalRun(job, 2, {}, Begun(address))  # type: ignore[arg-type]
    run.run()
    return run


def files(place: str) -> list[str]:
    return open_place(place).list("")


def check_goes_on(new: LocalRun, old: LocalRun) -> None:
    """The new job fires each window that was open in the savepoint, with all of its records, and no earlier one."""
    old.run()
    got = rows(new)
    first = min(start for _, start, _ in got)
    assert got == [row for row in rows(old) if row[1] >= first]
    assert len(got) < len(rows(old)), "a window had fired before the savepoint"


@pytest.mark.promise("C2", "D5")
def test_a_savepoint_in_a_bucket_is_moved_within_it_and_a_job_in_a_directory_begins_from_it(
    bucket: str, tmp_path: Path
) -> None:
    old = saved(f"{bucket}/s")
    there, moved = open_place(f"{bucket}/s"), open_place(f"{bucket}/moved")
    for path in there.list(""):
        moved.write(path, there.read(path))
    delete_savepoint(str(tmp_path), f"{bucket}/s")
    assert files(f"{bucket}/s") == []
    store = str(tmp_path / "store")
    assert begin_from(launch(store), f"{bucket}/moved", claim=False) == "test begins from savepoint s of test"
    check_goes_on(went_on(store), old)
    assert files(f"{bucket}/moved"), "nobody has claimed it"


@pytest.mark.promise("C2", "D5")
def test_a_job_in_a_bucket_begins_from_a_savepoint_in_a_folder(bucket: str, tmp_path: Path) -> None:
    old = saved(str(tmp_path / "s"))
    begin_from(launch(f"{bucket}/store"), str(tmp_path / "s"), claim=False)
    check_goes_on(went_on(f"{bucket}/store"), old)


@pytest.mark.promise("C2", "D9")
@pytest.mark.parametrize("claim", [False, True])
def test_a_savepoint_in_a_bucket_is_deleted_only_by_the_job_that_claimed_it(
    bucket: str, tmp_path: Path, claim: bool
) -> None:
    saved(f"{bucket}/s")
    store = str(tmp_path / "store")
    begin_from(launch(store), f"{bucket}/s", claim=claim)
    assert went_on(store).epochs > 4
    assert bool(files(f"{bucket}/s")) is not claim


@pytest.mark.promise("C2", "D5")
def test_a_savepoint_in_a_bucket_is_never_replaced(bucket: str) -> None:
    run = saved(f"{bucket}/s")
    before = files(f"{bucket}/s")
    with pytest.raises(SavepointExists, match=rf"{bucket}/s already holds a savepoint: choose another name"):
        check_new_savepoint(EpochLog(run.store, run.paths), SavepointRequest("s", f"{bucket}/s"), open_place)
    assert files(f"{bucket}/s") == before


@pytest.mark.promise("C2", "D5")
def test_a_bucket_that_can_not_hold_a_savepoint_is_said_and_the_job_goes_on(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = LocalRun(job, 2, {})
    run.run(until=lambda: run.master.stats.checkpoints_completed > 0)
    log = EpochLog(run.store, run.paths)
    with pytest.raises(StoreError, match="the bucket does not exist: create it, or choose another one"):
        check_new_savepoint(log, SavepointRequest("s", "s3://no-such-bucket/s"), open_place)
    request = SavepointRequest("late", f"{bucket}/late")
    check_new_savepoint(log, request, open_place)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")  # between the check and the copy
    run.carry_out(run.master.trigger_savepoint(request, run.now_ms())[1])
    run.run()
    (failed,) = [event for event in run.events if isinstance(event, events.SavepointFailed)]
    assert "is AWS_SECRET_ACCESS_KEY right?" in str(failed)
    assert sum(pv for *_, pv in rows(run)) == 60


@pytest.mark.promise("C2", "D5", "D8")
def test_a_file_of_a_savepoint_that_a_bucket_has_lost_is_named_and_nothing_is_changed(
    bucket: str, tmp_path: Path
) -> None:
    saved(f"{bucket}/s")
    there = open_place(f"{bucket}/s")
    there.delete(next(path for path in there.list("") if path.endswith(".arrow")))
    with pytest.raises(WeirError, match=rf"{bucket}/s/.*\.arrow is missing.*Nothing was changed"):
        begin_from(launch(str(tmp_path / "store")), f"{bucket}/s", claim=False)
    assert EpochLog(open_store(str(tmp_path / "store")), JobPaths("test")).last() is None
    with pytest.raises(NoSavepoint, match=rf"there is no savepoint in {bucket}/none"):
        begin_from(launch(str(tmp_path / "store")), f"{bucket}/none", claim=False)
