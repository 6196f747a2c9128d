"""What the processes of a job, and whoever looks after it, leave for each other in its folder."""

from __future__ import annotations

import errno
import itertools
import os
import stat
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from engine.core.errors import NotRunning, StoreError, WeirError
from engine.host import run_folder
from engine.host.launch import LaunchOptions, MasterLaunch
from engine.host.run_folder import Deaths, LastHeartbeat, MasterAddress, MasterExit, RunFolder, SupervisorSign
from engine.jobmaster.actions import Outcome
from engine.observe.client import JobClient
from engine.process import submit, supervisor
from engine.process.submit import plan_launch, start_detached
from engine.protocol.failures import Fault
from engine.protocol.remedy import Stage
from engine.protocol.scaling import Scaling
from engine.store.directory import DirectoryStore
from tests.fakes import while_it_sleeps


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path, "numbers")
    made.prepare()
    return made


@pytest.fixture
def launch(tmp_path: Path) -> MasterLaunch:
    path, params = "tests.cluster.jobs:endless", {"rate": "7"}
    return MasterLaunch(path=path, name="numbers", params=params, store=str(tmp_path), max_slots=4)


@pytest.mark.promise("F1")
def test_what_should_run_is_remembered_with_how_it_was_started(folder: RunFolder, launch: MasterLaunch) -> None:
    assert folder.read_desired() is None
    folder.want_running(launch, "cli")
    desired = folder.read_desired()
    assert desired is not None and desired.running and desired.launch == launch and desired.by == "cli"
    path = folder.folder.parent / "desired.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    folder.want_stopped("http")
    stopped = folder.read_desired()
    assert stopped is not None and not stopped.running and stopped.launch == launch and stopped.by == "http"


@pytest.mark.promise("H8")
def test_the_sign_of_a_store_is_the_last_start_in_it(folder: RunFolder, launch: MasterLaunch) -> None:
    store = DirectoryStore(launch.store)
    assert store.sizes([folder.sign]) == [None]
    folder.begin(launch)
    assert store.sizes([folder.sign]) == [folder.launch_file.stat().st_size]


@pytest.mark.promise("F2", "D7")
@pytest.mark.parametrize("lost", ["gone", "cut"])
def test_a_launch_file_that_is_lost_comes_back_with_the_parallelism_of_the_last_rescale(
    folder: RunFolder, launch: MasterLaunch, lost: str
) -> None:
    """Its supervisor knows the start as it was before the rescale."""
    folder.begin(launch)
    folder.want_running(launch, "cli")
    folder.rescaled(launch, Scaling(3))
    if lost == "gone":
        folder.launch_file.unlink()
    else:
        folder.launch_file.write_bytes(folder.launch_file.read_bytes()[:-9])
    folder.mend_launch(launch)
    assert folder.read_launch() == msgspec.structs.replace(launch, scaling=Scaling(3))


@pytest.mark.promise("F2")
def test_a_launch_file_that_is_lost_comes_back_without_what_another_start_was_asked_for(
    folder: RunFolder, launch: MasterLaunch
) -> None:
    folder.want_running(msgspec.structs.replace(launch, id="another", max_slots=9), "cli")
    folder.mend_launch(launch)
    assert folder.read_launch() == launch
    folder.mend_launch(msgspec.structs.replace(launch, max_slots=5))
    assert folder.read_launch() == launch, "one that is there is left alone"


@pytest.mark.promise("F2")
def test_a_start_is_known_before_the_end_of_the_one_before_it_is_forgotten(
    folder: RunFolder, launch: MasterLaunch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a process of the earlier start that looks in between takes the folder, without an end, for its own."""
    folder.begin(launch)
    folder.write_exit(MasterExit(Outcome.FAILED, "no"), launch)
    cleared: list[bool] = []
    clear = RunFolder.clear

    def watched(self: RunFolder) -> None:
        cleared.append(self.belongs_to(launch))
        clear(self)

    monkeypatch.setattr(RunFolder, "clear", watched)
    folder.begin(msgspec.structs.replace(launch, id="later"))
    assert cleared == [False]


def test_cancelling_a_job_that_does_not_run_says_so_and_is_remembered(folder: RunFolder, launch: MasterLaunch) -> None:
    folder.want_running(launch, "cli")
    with pytest.raises(NotRunning):
        JobClient(launch.store, "numbers").cancel()
    desired = folder.read_desired()
    assert desired is not None and not desired.running


def test_cancelling_a_job_that_never_was_makes_no_folder(tmp_path: Path) -> None:
    with pytest.raises(NotRunning, match="there is no job"):
        JobClient(str(tmp_path), "nobody").cancel()
    assert not (tmp_path / "nobody").exists()


@pytest.mark.promise("F2")
def test_a_fenced_jobmaster_does_not_take_its_successor_s_address_away(folder: RunFolder, launch: MasterLaunch) -> None:
    folder.write_address(MasterAddress("http://127.0.0.1:1", 1, 2, "token"))
    folder.write_exit(MasterExit(Outcome.FENCED, "another JobMaster runs this job"), launch)
    assert folder.read_exit() is None and folder.read_address() is not None
    folder.write_exit(MasterExit(Outcome.CANCELLED, "cancelled"), launch)
    assert folder.read_exit() is not None and folder.read_address() is None


@pytest.mark.promise("F2")
def test_a_jobmaster_that_slept_through_a_later_start_leaves_the_folder_alone(
    folder: RunFolder, launch: MasterLaunch
) -> None:
    """As found with a JobMaster that was stopped, replaced, and failed when it woke up: its slots had gone."""
    folder.write_launch(msgspec.structs.replace(launch, id="later"))
    folder.write_exit(MasterExit(Outcome.FAILED, "a slot's process ended"), launch)
    assert folder.read_exit() is None and not folder.belongs_to(launch)


@pytest.mark.promise("D8", "F2")
def test_an_end_that_is_written_behind_a_later_start_is_not_taken_for_its_end(
    folder: RunFolder, launch: MasterLaunch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever writes it looks whose the folder is, and writes a moment later."""
    launch = msgspec.structs.replace(launch, id="first")
    folder.write_launch(launch)
    belongs_to = RunFolder.belongs_to

    def then_started_anew(self: RunFolder, asked: MasterLaunch) -> bool:
        found = belongs_to(self, asked)
        folder.write_launch(msgspec.structs.replace(launch, id="later"))
        folder.clear()
        return found

    monkeypatch.setattr(RunFolder, "belongs_to", then_started_anew)
    folder.write_exit(MasterExit(Outcome.STOPPED, "stopped"), launch)
    assert folder.read_exit() is None


def test_an_end_that_an_earlier_weir_has_written_counts(folder: RunFolder, launch: MasterLaunch) -> None:
    folder.write_launch(launch)
    (folder.folder / "exit.json").write_bytes(b'{"outcome":"finished","reason":"done","raised":null}')
    assert folder.read_exit() == MasterExit(Outcome.FINISHED, "done")


def test_the_last_heartbeat_survives_a_restart_so_that_its_age_counts(folder: RunFolder, launch: MasterLaunch) -> None:
    folder.write_heartbeat(LastHeartbeat(1000, 3, "running"))
    folder.write_exit(MasterExit(Outcome.FAILED, "why"), launch)
    folder.clear()
    assert folder.read_heartbeat() == LastHeartbeat(1000, 3, "running") and folder.read_exit() is None


@pytest.mark.promise("F3")
def test_prometheus_finds_the_jobmaster_that_answers_now(folder: RunFolder, launch: MasterLaunch) -> None:
    targets = folder.folder / "targets.json"
    for port in (4711, 4712):
        folder.write_address(MasterAddress(f"http://127.0.0.1:{port}", 1, 2, f"token of {port}"))
        assert (folder.folder / "token").read_text() == f"token of {port}"
        assert msgspec.json.decode(targets.read_bytes()) == [{"targets": [f"127.0.0.1:{port}"]}]
    folder.write_exit(MasterExit(Outcome.FINISHED, "done"), launch)
    assert not targets.exists() and not (folder.folder / "token").exists()


def test_one_that_is_ending_is_waited_for_until_it_says_how(folder: RunFolder, launch: MasterLaunch) -> None:
    """As found with a cancel from Dagster: between its last answer and its exit a JobMaster waits for its slots."""
    answers: list[int] = []

    class Ends(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answers.append(1)
            if len(answers) == 3:
                folder.write_exit(MasterExit(Outcome.CANCELLED, "cancelled"), launch)
            self.send_response(503)
            self.end_headers()
            self.wfile.write(b'{"error": "the job has ended"}')

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Ends) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        folder.write_launch(launch)
        folder.write_address(MasterAddress(f"http://127.0.0.1:{server.server_port}", 1, 1, "token"))
        JobClient(launch.store, "numbers").cancel()  # somebody else cancelled it before: that is no error
        ended = JobClient(launch.store, "numbers").wait_until_ended(60)
        server.shutdown()
    assert ended == MasterExit(Outcome.CANCELLED, "cancelled") and len(answers) == 3


def sign(number: int, stage: Stage | None = None) -> SupervisorSign:
    return SupervisorSign("", number, 0, stage, 9)


@pytest.mark.promise("F1", "H8")
def test_between_two_jobmasters_a_job_says_why_and_can_be_cancelled(
    folder: RunFolder, launch: MasterLaunch, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = JobClient(launch.store, "numbers")
    folder.write_launch(launch)
    folder.want_running(launch, "cli")
    folder.write_deaths(Deaths(9, 4, Fault.WEIR, "KeyError: 'x'", 0, 2**60))
    folder.write_supervisor(sign(1))
    with pytest.raises(NotRunning, match=r"died 4 times without an epoch .* last by: KeyError: 'x' \(a defect of Weir"):
        client.status()
    while_it_sleeps(monkeypatch, lambda: folder.write_supervisor(sign(2)))
    assert client.looked_after() == "waiting before the next start"
    folder.write_supervisor(sign(1))
    client.cancel()
    desired = folder.read_desired()
    assert desired is not None and not desired.running


def test_a_cancel_that_the_supervisor_carries_out_before_the_jobmaster_is_asked_is_no_error(
    folder: RunFolder, launch: MasterLaunch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As found on a busy machine: the job had ended, as wished, before the request was sent."""
    folder.write_launch(launch)
    folder.want_running(launch, "cli")
    wish = RunFolder.want_stopped_here

    def seen_at_once(self: RunFolder, by: str) -> None:
        wish(self, by)
        folder.write_exit(MasterExit(Outcome.CANCELLED, "cancelled"), launch)

    monkeypatch.setattr(RunFolder, "want_stopped_here", seen_at_once)
    client = JobClient(launch.store, "numbers")
    client.cancel()
    assert client.wait_until_ended(60) == MasterExit(Outcome.CANCELLED, "cancelled")
    with pytest.raises(NotRunning, match="it is cancelled"):
        client.cancel()  # it had ended before


@pytest.mark.promise("F1")
def test_a_job_that_only_starts_says_what_it_does_and_is_not_started_twice(
    folder: RunFolder, launch: MasterLaunch, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write_launch(launch)
    folder.write_supervisor(sign(1, Stage.PREPARING))
    client = JobClient(launch.store, "numbers")
    with pytest.raises(NotRunning, match="its supervisor showed: writing the job's DataFrames for 9 s"):
        client.status()
    numbers = itertools.count(2)
    while_it_sleeps(monkeypatch, lambda: folder.write_supervisor(sign(next(numbers), Stage.PREPARING)))
    options = LaunchOptions(path=launch.path, name="numbers")
    with pytest.raises(
        WeirError, match=r"being started already \(writing the job's DataFrames for 9 s\) .*weir cancel"
    ):
        plan_launch(options, launch.store)
    monkeypatch.undo()
    monkeypatch.setattr(run_folder, "SIGN_PATIENCE_S", 0.05)
    assert plan_launch(options, launch.store).name == "numbers", "its supervisor is dead"


@pytest.mark.promise("H8")
def test_who_stood_still_while_it_looked_takes_no_supervisor_for_dead(
    folder: RunFolder, launch: MasterLaunch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine that stood still for longer than the patience, the supervisor had no turn, either."""
    folder.write_launch(launch)
    folder.write_supervisor(sign(1, Stage.DECIDING))
    now_s = [0.0]

    def sleep(_: float) -> None:
        now_s[0] += 60.0
        if now_s[0] == 180.0:
            folder.write_supervisor(sign(2, Stage.DECIDING))

    clock = SimpleNamespace(monotonic=lambda: now_s[0], sleep=sleep, time_ns=time.time_ns)
    monkeypatch.setattr(run_folder, "time", clock)
    assert folder.live_supervisor() == sign(2, Stage.DECIDING)
    assert folder.live_supervisor() is None, "one that gives no further sign is dead all the same"


def test_two_starts_at_the_same_time_have_one_supervisor_that_goes_on(
    folder: RunFolder, launch: MasterLaunch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As found with two submits within 100 ms: both supervisors read the second one's file, and took it for theirs."""
    started: list[list[str]] = []
    monkeypatch.setattr(submit.subprocess, "Popen", lambda command, **_: started.append(command))
    for _ in range(2):
        start_detached(launch, "cli")
    (_, _, _, path, first), (*_, last) = started
    assert first != last
    seen: list[str] = []
    monkeypatch.setattr(supervisor, "Supervisor", lambda launch, _: seen.append(launch.id) or Ended())
    monkeypatch.setattr(supervisor.signal, "signal", lambda *_: None)
    for identity in (first, last):
        monkeypatch.setattr(sys, "argv", ["supervisor", path, identity])
        supervisor.main()
    assert seen == [last]


class Ended:
    def poll(self) -> MasterExit:
        return MasterExit(Outcome.FENCED, "for the test")


@pytest.mark.parametrize("content", [b"", b'{"at_ms": 1', b"[]", b"\xff"])
@pytest.mark.parametrize("name", ["heartbeat", "deaths", "master", "exit", "supervisor", "launch", "../desired"])
def test_a_file_that_a_power_cut_left_damaged_counts_as_absent(
    folder: RunFolder, launch: MasterLaunch, name: str, content: bytes
) -> None:
    folder.write_launch(launch)
    folder.want_running(launch, "test")
    (folder.folder / f"{name}.json").write_bytes(content)
    assert folder.read_heartbeat() is folder.read_deaths() is folder.read_address() is folder.read_exit() is None
    assert folder.read_supervisor() is None
    assert folder.belongs_to(launch)
    if name == "../desired":
        assert folder.read_desired() is None
    folder.want_running(launch, "test")
    assert folder.read_desired() is not None


def test_what_decides_about_a_job_survives_a_power_cut(
    folder: RunFolder, launch: MasterLaunch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their content is on the disk before their names are."""
    synced: list[str] = []
    sync, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: (synced.append("content"), sync(descriptor)))
    monkeypatch.setattr(Path, "replace", lambda self, to: (synced.append(Path(to).name), replace(self, to)))
    folder.write_launch(launch)
    folder.want_running(launch, "test")
    folder.write_exit(MasterExit(Outcome.FINISHED, "all is read"), launch)
    assert synced == ["content", "launch.json", "content", "desired.json", "content", "exit.json"]


@pytest.mark.promise("D7", "F2")
def test_a_rescale_is_what_every_later_jobmaster_and_every_later_start_of_the_same_kind_reads(
    folder: RunFolder, launch: MasterLaunch
) -> None:
    launch = msgspec.structs.replace(launch, id="first")
    folder.write_launch(launch)
    folder.want_running(launch, "cli")
    folder.rescaled(launch, Scaling(3))
    read, desired = folder.read_launch(), folder.read_desired()
    assert read is not None and (read.id, read.scaling, read.params) == ("first", Scaling(3), {"rate": "7"})
    assert desired is not None and desired.launch == read and desired.running and desired.by == "cli"


def test_a_rescale_of_an_earlier_start_changes_nothing(folder: RunFolder, launch: MasterLaunch) -> None:
    later = msgspec.structs.replace(launch, id="later")
    folder.write_launch(later)
    folder.want_running(later, "cli")
    folder.rescaled(msgspec.structs.replace(launch, id="earlier"), Scaling(3))
    desired = folder.read_desired()
    assert folder.read_launch() == later and desired is not None and desired.launch == later


def test_a_jobmaster_finishes_what_a_power_cut_left_of_a_rescale(folder: RunFolder, launch: MasterLaunch) -> None:
    """`launch.json` was written, `desired.json` was not."""
    folder.want_running(launch, "cli")
    rescaled = msgspec.structs.replace(launch, scaling=Scaling(None, {"pv": 3}))
    folder.write_launch(rescaled)
    folder.repeat_launch(rescaled)
    desired = folder.read_desired()
    assert desired is not None and desired.launch == rescaled and desired.running


def test_two_threads_of_a_process_that_write_the_same_file_at_once_leave_a_whole_one(
    folder: RunFolder, launch: MasterLaunch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deciding thread cancels the job while another one hears of a wish on another machine."""
    sync, replaced = os.fsync, threading.Event()

    def beside(descriptor: int) -> None:
        sync(descriptor)
        if not replaced.is_set():
            replaced.set()
            other = threading.Thread(target=lambda: folder.want_running(launch, "a much longer name than the first"))
            other.start()
            other.join()

    monkeypatch.setattr(os, "fsync", beside)
    folder.want_running(launch, "first")
    desired = folder.read_desired()
    assert desired is not None and desired.by == "first"
    assert [path.name for path in folder.folder.parent.iterdir() if path.is_file()] == ["desired.json"]


@pytest.mark.promise("D7")
def test_a_rescale_is_saved_once_the_file_that_decides_is_written(
    folder: RunFolder, launch: MasterLaunch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it raised then, the job would go on as before, and its next JobMaster at the parallelism that was given up."""
    folder.write_launch(launch)
    folder.want_running(launch, "test")

    def full(desired: object) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(folder, "_write_desired", full)
        folder.rescaled(launch, Scaling(3))
    saved = folder.read_launch()
    assert saved is not None and saved.scaling == Scaling(3)
    folder.repeat_launch(saved)  # as the next JobMaster does
    desired = folder.read_desired()
    assert desired is not None and desired.launch.scaling == Scaling(3)


@pytest.mark.promise("F1")
def test_a_cancel_on_a_full_disk_names_the_file_and_leaves_no_other(
    folder: RunFolder, launch: MasterLaunch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen on Spark: `weir cancel` said only "No space left on device". `POST /cancel` ended the deciding thread."""

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    folder.want_running(launch, "test")
    there = sorted(folder.folder.parent.iterdir())
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match=r"can't be cancelled: .*desired.json can't be written \(No space left"):
        folder.want_stopped_here("cli")
    with pytest.raises(OSError, match=r"No space left on device: '.*launch.json'"):
        folder.write_launch(launch)
    desired = folder.read_desired()
    assert desired is not None and desired.running and sorted(folder.folder.parent.iterdir()) == there
