"""A job whose store is a bucket, seen from two machines.

Topology: a real MinIO server, and two machines, which are two state folders. Faults: both start the job; one cancels
what the other runs; the bucket does not answer.
"""

from __future__ import annotations

import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.core.errors import NotRunning, StoreError, WeirError
from engine.host.launch import MasterLaunch
from engine.host.run_folder import MasterExit, RunFolder
from engine.host.starts import SharedStart
from engine.jobmaster.actions import Outcome
from engine.observe.client import JobClient, known_jobs
from engine.process.resume import Wanted, look
from engine.protocol.scaling import Scaling
from engine.store.opening import open_store
from engine.store.s3 import S3Store
from tests.servers.minio import MinioServer

Machine = Callable[[str], RunFolder]


@pytest.fixture
def store(minio_server: MinioServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    minio_server.use(monkeypatch)
    monkeypatch.setenv("WEIR_STATE", str(tmp_path / "here"))
    return f"s3://weir/{tmp_path.name}"


@pytest.fixture
def machine(store: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    def on(name: str) -> RunFolder:
        monkeypatch.setenv("WEIR_STATE", str(tmp_path / name))
        monkeypatch.setattr(socket, "gethostname", lambda: name)
        return RunFolder(store, "job")

    return on


def launch(store: str, number: int) -> MasterLaunch:
    return MasterLaunch(path="jobs:job", name="job", store=store, max_slots=2, id=f"start-{number}")


@pytest.mark.promise("H8")
def test_the_sign_of_a_bucket_is_the_last_start_in_it(machine: Machine, store: str) -> None:
    folder, bucket = machine("one"), open_store(store)
    assert bucket.sizes([folder.sign]) == [None]
    start(folder, launch(store, 1))
    assert bucket.sizes([folder.sign]) != [None]


def start(folder: RunFolder, launched: MasterLaunch) -> None:
    folder.prepare()
    folder.clear()
    folder.write_launch(launched)
    folder.want_running(launched, "cli")


def test_what_a_machine_needs_to_go_on_with_a_job_is_in_the_bucket(store: str, machine: Machine) -> None:
    start(machine("one"), launch(store, 1))
    folder = machine("two")
    assert folder.read_launch() is None
    desired = folder.read_desired()
    assert desired is not None and desired.running and desired.launch == launch(store, 1)
    assert known_jobs(store) == ["job"]
    assert folder.started_elsewhere() == "one"


def test_the_machine_of_the_last_start_is_not_elsewhere(store: str, machine: Machine) -> None:
    folder = machine("one")
    start(folder, launch(store, 1))
    assert folder.started_elsewhere() is None


def test_a_jobmaster_hears_of_a_later_start_on_another_machine_and_leaves(store: str, machine: Machine) -> None:
    first, second = machine("one"), machine("two")
    start(first, launch(store, 1))
    first.hear_elsewhere(launch(store, 1))
    assert first.belongs_to(launch(store, 1)), "nothing has happened yet"
    start(second, launch(store, 2))
    first.hear_elsewhere(launch(store, 1))
    assert not first.belongs_to(launch(store, 1)), "its supervisor must not start another JobMaster"
    here = first.read_desired_here()
    assert here is not None and not here.running, "nor may Dagster on this machine start the job again"
    second.hear_elsewhere(launch(store, 2))
    assert second.belongs_to(launch(store, 2))


def test_a_jobmaster_never_takes_the_folder_from_a_later_start_on_its_own_machine(store: str, machine: Machine) -> None:
    """The old JobMaster still runs while the job is started anew; it reads the bucket late."""
    folder = machine("one")
    start(folder, launch(store, 1))
    start(folder, launch(store, 2))
    folder.hear_elsewhere(launch(store, 1))
    assert folder.belongs_to(launch(store, 2))


def test_a_job_is_cancelled_from_another_machine(store: str, machine: Machine) -> None:
    first, second = machine("one"), machine("two")
    start(first, launch(store, 1))
    second.want_stopped("cli")
    seen = first.read_desired_here()
    assert seen is not None and seen.running, "nobody has heard of it yet"
    first.hear_elsewhere(launch(store, 1))
    seen = first.read_desired_here()
    assert seen is not None and not seen.running, "the supervisor ends the job now"


@pytest.mark.promise("D8", "F1")
def test_a_cancel_from_another_machine_is_heard_of_also_while_nothing_runs(store: str, machine: Machine) -> None:
    """An upgrade on the first machine is between its two versions: the old one has stopped, and says so itself."""
    first, second = machine("one"), machine("two")
    folder = machine("one")
    start(first, launch(store, 1))
    folder.want_stopped_here("stop")
    folder.share_desired()
    assert folder.cancelled_elsewhere() is None, "that is the stop of the upgrade"
    machine("two")
    second.want_stopped("cli")
    machine("one")
    assert folder.cancelled_elsewhere() == "cli on two"
    start(first, launch(store, 2))
    assert folder.cancelled_elsewhere() is None, "a later start"
    folder.want_stopped("cli")
    assert folder.cancelled_elsewhere() is None, "a cancel on this machine reaches the upgrade by a file here"


def test_a_jobmaster_that_was_replaced_by_another_machine_tells_the_bucket_nothing(
    store: str, machine: Machine
) -> None:
    """It is rescaled and cancelled before it has heard of the other machine."""
    first, second = machine("one"), machine("two")
    start(first, launch(store, 1))
    start(second, launch(store, 2))
    first.want_stopped_here("http")
    first.share_desired()
    first.rescaled(launch(store, 1), Scaling(3))
    desired = second.read_desired()
    assert desired is not None and desired.running and desired.launch == launch(store, 2)
    second.hear_elsewhere(launch(store, 2))
    assert second.belongs_to(launch(store, 2))


def test_a_start_on_another_machine_in_the_middle_of_a_rescale_stays_the_last_one(
    store: str, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other machine starts the job after the first one has looked whether it still owns it."""
    first, second = machine("one"), machine("two")
    start(first, launch(store, 1))
    belongs_to = RunFolder.belongs_to

    def overtaken(folder: RunFolder, launched: MasterLaunch) -> bool:
        owned = belongs_to(folder, launched)
        if folder is first and owned:
            monkeypatch.setattr(RunFolder, "belongs_to", belongs_to)
            start(second, launch(store, 2))
        return owned

    monkeypatch.setattr(RunFolder, "belongs_to", overtaken)
    first.rescaled(launch(store, 1), Scaling(3))
    first.share_desired()
    desired = second.read_desired()
    assert desired is not None and desired.running and desired.launch == launch(store, 2)
    second.hear_elsewhere(launch(store, 2))
    assert second.belongs_to(launch(store, 2)), "its JobMaster goes on"
    first.hear_elsewhere(launch(store, 1))
    assert not first.belongs_to(launch(store, 1)), "the first one hears of it, and leaves"


def test_a_wish_to_stop_an_earlier_start_does_not_hide_that_the_later_one_should_run(
    store: str, machine: Machine
) -> None:
    """The first machine tells the bucket at the same moment as the second one starts the job."""
    first, second = machine("one"), machine("two")
    start(first, launch(store, 1))
    first.want_stopped_here("http")
    here = first.read_desired_here()
    assert here is not None
    start(second, launch(store, 2))
    first._share(here)  # it had looked before
    desired = second.read_desired()
    assert desired is not None and desired.running and desired.launch.id == "start-2"
    assert first.read_desired() == desired, "the first machine, whose own start was stopped, knows it as well"


def test_a_job_that_was_cancelled_while_the_bucket_was_away_is_not_resumed(store: str, machine: Machine) -> None:
    """The JobMaster tells the bucket once, when it ends. If that fails, the bucket says for ever that it should run."""
    folder = machine("one")
    start(folder, launch(store, 1))
    folder.want_stopped_here("cli")
    folder.write_exit(MasterExit(Outcome.CANCELLED, "cancelled"), launch(store, 1))
    found = look(JobClient(store, "job"))
    assert found.verdict is Wanted.STOPPED, "the next boot would start it again"
    folder.want_stopped("cli")
    machine("two")
    there = RunFolder(store, "job").read_desired()
    assert there is not None and not there.running, "who cancels again still tells the bucket"


@pytest.mark.parametrize("after", range(1, 6))
def test_two_starts_at_once_leave_the_wish_of_the_last_one(
    store: str, machine: Machine, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """The second one begins in the middle of the first one, after each of its requests in turn."""
    first, second = machine("one"), machine("two")
    start(first, launch(store, 1))
    asked: list[str] = []

    def overtaken(name: str) -> None:
        method = getattr(S3Store, name)

        def ask(bucket: S3Store, path: str, *data: bytes) -> Any:
            answer = method(bucket, path, *data)
            asked.append(path)
            if len(asked) == after:
                start(second, launch(store, 3))
            return answer

        monkeypatch.setattr(S3Store, name, ask)

    for name in ("write", "list", "delete"):
        overtaken(name)
    start(first, launch(store, 2))
    assert len(asked) > after, "the second one has begun in the middle of the first one"
    last, desired = SharedStart(open_store(store), "job").read(), second.read_desired()
    assert last is not None and desired is not None, f"nobody knows that {last} should run"
    assert desired.running and desired.launch.id == last.launch.id


def test_a_rescale_is_known_to_other_machines(store: str, machine: Machine) -> None:
    first, second = machine("one"), machine("two")
    start(first, launch(store, 1))
    first.rescaled(launch(store, 1), Scaling(3))
    desired = second.read_desired()
    assert desired is not None and desired.launch.scaling == Scaling(3) and first.belongs_to(launch(store, 1))


def test_an_older_wish_to_stop_does_not_stop_a_later_start(store: str, machine: Machine) -> None:
    folder = machine("one")
    start(folder, launch(store, 1))
    folder.want_stopped("cli")
    later = launch(store, 2)
    folder.write_launch(later)
    folder.hear_elsewhere(later)
    assert folder.belongs_to(later)


def test_whoever_cancels_a_job_of_another_machine_is_told_where_it_runs(store: str, machine: Machine) -> None:
    start(machine("one"), launch(store, 1))
    machine("two")
    with pytest.raises(NotRunning, match="was started last on one, which is asked through the store to end it"):
        JobClient(store, "job").cancel()
    with pytest.raises(NotRunning, match="does not run on this machine; it was started last on one"):
        JobClient(store, "job").status()


def test_the_machine_that_lost_a_job_knows_where_it_went_until_it_starts_the_job_again(
    store: str, machine: Machine
) -> None:
    first, second = machine("one"), machine("two")
    start(first, launch(store, 1))
    start(second, launch(store, 2))
    first = machine("one")
    first.hear_elsewhere(launch(store, 1))
    assert first.started_elsewhere() == first.heard_elsewhere() == "two"
    with pytest.raises(NotRunning, match="it was started last on two: look there"):
        JobClient(store, "job").status()
    start(first, launch(store, 3))
    assert first.started_elsewhere() is None


def test_a_client_of_a_job_of_its_machine_asks_no_bucket(
    store: str, machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`weir submit` asks five times a second whether the job runs; `weir cancel` works while the bucket is away."""
    folder = machine("one")
    start(folder, launch(store, 1))
    place, endpoint = folder.folder.parent.parent, "http://127.0.0.1:1"
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    place.rename(RunFolder(store, "job").folder.parent.parent)
    asked: list[str] = []
    with monkeypatch.context() as running:
        running.setattr(JobClient, "_call", lambda client, method, path: asked.append(path))
        JobClient(store, "job").cancel()
    desired = RunFolder(store, "job").read_desired_here()
    assert asked == ["/cancel"] and desired is not None and not desired.running
    assert not JobClient(store, "job").alive()
    assert JobClient(store, "job").looked_after() is None


def test_the_wish_to_stop_a_running_job_never_waits_for_the_bucket(
    store: str, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deciding thread of the JobMaster, and the supervisor, use these."""
    folder = machine("one")
    start(folder, launch(store, 1))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.setblocking(False)
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        away = RunFolder(store, "job")
        away.folder, away._desired, away.launch_file = folder.folder, folder._desired, folder.launch_file
        away.want_stopped_here("http")
        desired = away.read_desired_here()
        assert desired is not None and not desired.running
        assert away.belongs_to(launch(store, 1))
        with pytest.raises(BlockingIOError):
            silent.accept()  # nobody has asked it anything
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(StoreError):
        RunFolder(store, "job").share_desired()


def test_a_start_that_can_not_tell_the_bucket_changes_nothing_here(
    store: str, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = machine("one")
    start(folder, launch(store, 1))
    folder._shared = None
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    refused = RunFolder(store, "job")
    with pytest.raises(WeirError, match="AWS_SECRET_ACCESS_KEY"):
        refused.write_launch(launch(store, 2))
    assert refused.belongs_to(launch(store, 1))


def test_only_the_user_can_read_the_run_folder_of_a_bucket(store: str, machine: Machine) -> None:
    folder = machine("one")
    start(folder, launch(store, 1))
    assert stat.S_IMODE(folder.folder.stat().st_mode) == stat.S_IMODE(folder.folder.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(folder.launch_file.stat().st_mode) == 0o600
