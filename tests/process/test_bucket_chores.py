"""What a JobMaster and its supervisor do about a store in a bucket, without Spark.

Topology: a real MinIO server, a supervisor, and JobMaster processes that are killed before they start Spark; another
machine is another state folder. Faults: a JobMaster that dies while another machine starts or cancels the job.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from engine.core.errors import StoreError
from engine.host.launch import MasterLaunch
from engine.host.run_folder import MasterExit, RunFolder
from engine.jobmaster import events
from engine.jobmaster.actions import Outcome
from engine.observe.history import History
from engine.process.bucket_chores import FLUSH_MS, HEAR_MS, BucketChores
from engine.process.supervisor import Supervisor
from tests.fakes import FakeOffload
from tests.servers.minio import MinioServer


@pytest.fixture
def launch(minio_server: MinioServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> MasterLaunch:
    minio_server.use(monkeypatch)
    monkeypatch.setenv("WEIR_STATE", str(tmp_path / "one"))
    store = f"s3://weir/{tmp_path.name}"
    return MasterLaunch(path="tests.cluster.jobs:endless", name="endless", store=store, max_slots=2, id="first")


def on_another_machine(launch: MasterLaunch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> RunFolder:
    with monkeypatch.context() as there:
        there.setenv("WEIR_STATE", str(tmp_path / "two"))
        return RunFolder(launch.store, launch.name)


def ended(supervisor: Supervisor) -> MasterExit:
    deadline = time.monotonic() + 180
    while (end := supervisor.poll()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return end


def killed_while_loading(supervisor: Supervisor) -> None:
    supervisor.start()
    assert supervisor.master_pid is not None
    os.kill(supervisor.master_pid, signal.SIGKILL)


def test_a_jobmaster_that_dies_is_not_replaced_after_another_machine_has_started_the_job(
    launch: MasterLaunch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    supervisor = Supervisor(launch, lambda line: None)
    killed_while_loading(supervisor)
    there = on_another_machine(launch, monkeypatch, tmp_path)
    there.prepare()
    there.write_launch(MasterLaunch(path="", name="endless", store=launch.store, max_slots=2, id="second"))
    assert ended(supervisor) == MasterExit(Outcome.FENCED, "the job was started anew meanwhile")
    here = RunFolder(launch.store, launch.name)
    assert here.heard_elsewhere() is not None and here.read_exit() is None
    assert "Spark" not in here.log_file.read_text(), "no Spark was started"


def test_a_jobmaster_that_dies_is_not_replaced_after_another_machine_has_cancelled_the_job(
    launch: MasterLaunch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    supervisor = Supervisor(launch, lambda line: None)
    RunFolder(launch.store, launch.name).folder.mkdir(parents=True)
    RunFolder(launch.store, launch.name).want_running(launch, "cli")
    killed_while_loading(supervisor)
    on_another_machine(launch, monkeypatch, tmp_path).want_stopped("cli")
    assert ended(supervisor).outcome is Outcome.CANCELLED


def test_history_is_written_each_second_and_never_twice_at_a_time(launch: MasterLaunch) -> None:
    history, offload = History(launch.store, launch.name), FakeOffload()
    folder = RunFolder(launch.store, launch.name)
    chores = BucketChores(launch, folder, history, offload)
    chores.poll(0.0)
    assert len(offload.waiting) == 2, "the history, and other machines"
    chores.poll(FLUSH_MS * 50)
    assert len(offload.waiting) == 2, "both still run"
    history.append(events.stamped(events.Triggered(7, "1.1"), 1000, 1))
    offload.run()
    assert [event.kind for event in History(launch.store, launch.name).events()] == ["triggered"]
    chores.poll(FLUSH_MS * 50)
    assert len(offload.waiting) == 2
    offload.run()
    chores.poll(FLUSH_MS * 51)
    assert len(offload.waiting) == 1, f"other machines are heard of every {HEAR_MS} ms"


def test_an_event_that_says_why_an_attempt_ended_is_written_at_once(launch: MasterLaunch) -> None:
    """A JobMaster killed half a second after a restart had lost its cause: only the second's flush wrote it."""
    history, offload = History(launch.store, launch.name), FakeOffload()
    chores = BucketChores(launch, RunFolder(launch.store, launch.name), history, offload)
    chores.poll(0.0)
    offload.run()

    def note(event: events.AnyEvent) -> None:
        history.append(events.stamped(event, 1000, 1))
        chores.noted(event)

    note(events.Triggered(7, "1.1"))
    chores.poll(1.0)
    assert offload.waiting == [], "the events of a checkpoint wait for their second"
    note(events.AttemptFailed("1.1", "slot_lost", ""))
    chores.poll(2.0)
    assert len(offload.waiting) == 1
    note(events.Running("1.2"))
    chores.poll(3.0)
    assert len(offload.waiting) == 1, "never twice at a time"
    offload.run()
    chores.poll(4.0)
    assert len(offload.waiting) == 1, "the event that came meanwhile is written right after"


def test_a_chore_that_fails_is_tried_again_and_nothing_is_lost(
    launch: MasterLaunch, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    history, offload = History(launch.store, launch.name), FakeOffload()
    chores = BucketChores(launch, RunFolder(launch.store, launch.name), history, offload)
    history.append(events.stamped(events.Triggered(7, "1.1"), 1000, 1))

    def away(self: object, path: str, data: bytes) -> None:
        raise StoreError("the bucket is away")

    with monkeypatch.context() as broken:
        broken.setattr("engine.store.s3.S3Store.write", away)
        chores.poll(0.0)
        offload.run()
    assert "the job's history can't be written now: the bucket is away" in caplog.text
    chores.poll(FLUSH_MS)
    offload.run()
    assert [event.kind for event in History(launch.store, launch.name).events()] == ["triggered"]


def test_a_store_in_a_directory_has_no_chores(launch: MasterLaunch, tmp_path: Path) -> None:
    offload = FakeOffload()
    here = MasterLaunch(path="", name="job", store=str(tmp_path), max_slots=1)
    BucketChores(here, RunFolder(tmp_path, "job"), History(tmp_path, "job"), offload).poll(0.0)
    assert offload.waiting == []
