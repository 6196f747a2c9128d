"""A supervisor replaces JobMasters that die or hang. Small scripts stand in for their processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.host.launch import MasterLaunch
from engine.host.locks import held
from engine.host.run_folder import MasterAddress, MasterExit, RunFolder, SupervisorSign
from engine.jobmaster.actions import Outcome
from engine.process import child, supervisor
from engine.process.submit import start_detached
from engine.process.supervisor import Supervisor
from engine.protocol import supervision
from engine.protocol.failures import Fault
from engine.protocol.remedy import Stage
from engine.protocol.restart import ExponentialDelay
from engine.protocol.scaling import Scaling

BEGIN = """
import os, signal, sys, time
from engine.host.lifeline import Lifeline
from engine.protocol.failures import Fault
from engine.protocol.remedy import Stage
lifeline = Lifeline.inherited()
"""
DECIDES = BEGIN + "\nwhile True: lifeline.show(Stage.DECIDING, 5); time.sleep(0.05)"
CRASHES = BEGIN + "\nlifeline.show(Stage.DECIDING, 5); lifeline.last_words(Fault.OUTSIDE, 'no Spark'); os._exit(70)"

STOPS = BEGIN + "\nlifeline.show(Stage.ENDING, 5)"

STOPS_ON_A_FULL_DISK = (
    BEGIN
    + """
from engine.host.run_folder import MasterExit
from engine.jobmaster.actions import Outcome
lifeline.show(Stage.ENDING, 5)
lifeline.tell_end(MasterExit(Outcome.STOPPED, "stopped behind epoch 5"))
lifeline.last_words(Fault.OUTSIDE, "OSError: No space left on device")
os._exit(70)
"""
)

PUBLISHES = BEGIN + "\nfor epoch in range(6, 10_000): lifeline.show(Stage.DECIDING, epoch); time.sleep(0.05)"

FAILS_FOR_ITS_OWN_FAULT = (
    BEGIN
    + """
from engine.host.launch import MasterLaunch
from engine.host.run_folder import MasterExit, RunFolder
from engine.jobmaster.actions import Outcome
from engine.protocol.failures import Raised
launch = MasterLaunch(path="", name="numbers", store=os.environ["STORE"], max_slots=1, id="first")
ended = MasterExit(Outcome.FAILED, "x" * 5000, Raised("KeyError", "user"))
RunFolder(launch.store, launch.name).write_exit(ended, launch)
lifeline.tell_end(MasterExit(Outcome.FAILED, "x" * 5000))
os._exit(1)
"""
)

FENCED = BEGIN + "\nlifeline.show(Stage.DECIDING, 5); os._exit(71)"


def _plain_signals() -> None:
    """A child inherits signals that are blocked or ignored here, as another test's library may have left them."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


class Watched:
    """A supervisor whose JobMasters are the given scripts, one after the other; the last one stays in use."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *scripts: str) -> None:
        self.launch = MasterLaunch(path="", name="numbers", store=str(folder), max_slots=1, id="first")
        self.folder = RunFolder(folder, "numbers")
        self.said: list[str] = []
        self.started: list[list[str]] = []
        self._scripts = list(scripts)
        popen = subprocess.Popen

        def start(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
            self.started.append(command)
            script = self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]
            return popen([sys.executable, "-c", script], preexec_fn=_plain_signals, **options)

        monkeypatch.setattr(child.subprocess, "Popen", start)
        monkeypatch.setattr(supervision, "BACK_OFF", ExponentialDelay(initial_ms=50, max_ms=60_000, multiplier=2))
        self.supervisor = Supervisor(self.launch, self.said.append, lambda: 0.5)

    def until(self, condition: Callable[[], Any]) -> MasterExit | None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            ended = self.supervisor.poll()
            if ended is not None or condition():
                return ended
            time.sleep(0.02)
        raise AssertionError(f"it did not happen: {self.said}\n{self.folder.log_file.read_text()}")


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Watched]]:
    made: list[Watched] = []

    def make(*scripts: str) -> Watched:
        made.append(Watched(tmp_path, monkeypatch, *scripts))
        made[-1].supervisor.start()
        return made[-1]

    yield make
    for one in made:
        one.supervisor.stop()


@pytest.mark.promise("F2", "H8")
def test_more_than_four_deaths_without_an_epoch_do_not_end_a_job(watched: Callable[..., Watched]) -> None:
    job = watched(*[CRASHES] * 6, DECIDES)
    assert job.until(lambda: len(job.said) == 6) is None
    assert job.said[0] == "the JobMaster died (no Spark); starting another"
    deaths = job.folder.read_deaths()
    assert deaths is not None and (deaths.total, deaths.in_a_row, deaths.fault) == (6, 6, Fault.OUTSIDE)
    assert "died 6 times without an epoch in between, last by: no Spark" in deaths.in_words(deaths.at_ms)
    assert "the next one starts in 2 s" in deaths.in_words(deaths.at_ms)


@pytest.mark.promise("F2")
def test_a_stopped_jobmaster_is_killed_after_its_time_out_and_replaced(watched: Callable[..., Watched]) -> None:
    job = watched(DECIDES)
    job.until(lambda: job.supervisor._supervision.stage is not None)
    first = job.supervisor.master_pid
    assert first is not None
    os.kill(first, signal.SIGSTOP)
    assert job.supervisor._supervision._silent_ms == 1000 * job.launch.jobmaster_timeout_s
    job.supervisor._supervision._silent_ms = 1000.0  # only now: a busy machine may keep a live one silent for long
    job.until(lambda: job.supervisor.master_pid not in (None, first))
    assert re.search(r"it gave no sign of life for [12] s while it was running the job, and was killed", job.said[0])


@pytest.mark.promise("F2")
def test_a_jobmaster_stopped_for_less_than_its_time_out_goes_on(watched: Callable[..., Watched]) -> None:
    job = watched(DECIDES)
    job.until(lambda: job.supervisor._supervision.stage is not None)
    first, silence = job.supervisor.master_pid, job.supervisor._supervision._silence
    assert first is not None
    os.kill(first, signal.SIGSTOP)
    job.until(lambda: silence.length_ms > 1000)
    os.kill(first, signal.SIGCONT)
    job.until(lambda: silence.length_ms < 1000)
    later = time.monotonic() + 0.5
    job.until(lambda: time.monotonic() > later)
    assert job.supervisor.master_pid == first and job.said == []


@pytest.mark.promise("F2")
def test_what_a_dead_jobmaster_leaves_stopped_is_ended(watched: Callable[..., Watched], tmp_path: Path) -> None:
    """As with a JVM that was stopped before its JobMaster was killed: it can't notice that its pipe is closed."""
    note = tmp_path / "child"
    child = BEGIN + "\nimport pathlib, subprocess\nchild = subprocess.Popen(['sleep', '600'])\n"
    child += f"os.kill(child.pid, signal.SIGSTOP); pathlib.Path({str(note)!r}).write_text(str(child.pid)); os._exit(70)"
    job = watched(child, DECIDES)
    job.until(lambda: len(job.started) == 2)
    left = Path(f"/proc/{note.read_text()}/cmdline")
    job.until(lambda: not left.exists() or not left.read_bytes())


@pytest.mark.promise("H8")
def test_a_job_whose_code_ends_the_process_while_it_is_loaded_ends(watched: Callable[..., Watched]) -> None:
    job = watched(BEGIN + "\nlifeline.show(Stage.LOADING); os._exit(3)")
    ended = job.until(lambda: False)
    assert ended is not None and ended.outcome is Outcome.FAILED
    assert "the job's code ended the JobMaster's process (exit code 3)" in ended.reason


@pytest.mark.promise("H8")
def test_the_job_s_own_fault_ends_it_even_if_the_outcome_could_not_be_written(watched: Callable[..., Watched]) -> None:
    job = watched(BEGIN + "\nlifeline.last_words(Fault.JOB, 'no module x'); os._exit(1)")
    assert job.until(lambda: False) == MasterExit(Outcome.FAILED, "no module x")


@pytest.mark.promise("F2")
def test_a_supervisor_that_slept_through_a_later_start_starts_nothing(watched: Callable[..., Watched]) -> None:
    job = watched(CRASHES)
    job.folder.write_launch(msgspec.structs.replace(job.launch, id="later"))
    (job.folder.folder / "nonce-1").touch()
    job.folder.write_address(MasterAddress("http://127.0.0.1:1", 1, 2, "token"))
    ended = job.until(lambda: False)
    assert ended is not None and ended.outcome is Outcome.FENCED
    assert len(job.started) == 1 and (job.folder.folder / "nonce-1").exists(), "the folder is not its own"
    assert job.folder.read_address() is not None and job.folder.read_deaths() is None
    assert job.started[0][-1] == "first", "its JobMaster knows by which start it was started"


@pytest.mark.promise("F2", "H8")
def test_a_fenced_jobmaster_is_replaced_as_long_as_the_folder_is_its_supervisor_s(
    watched: Callable[..., Watched],
) -> None:
    """As found with a tool that appended a fence: the supervisor left, and a job that should run ran nowhere."""
    job = watched(FENCED, FENCED, DECIDES)
    assert job.until(lambda: len(job.started) == 3) is None
    assert "another process took the job over" in job.said[0]


@pytest.mark.promise("F2")
def test_of_two_supervisors_whose_jobmasters_fence_each_other_only_the_later_start_s_goes_on(
    watched: Callable[..., Watched],
) -> None:
    """A replacement does not take the folder over, so the earlier supervisor leaves and never comes back."""
    job = watched(FENCED)
    job.until(lambda: len(job.started) == 2)
    later = Supervisor(msgspec.structs.replace(job.launch, id="later"), job.said.append, lambda: 0.5)
    later.start()
    started = len(job.started)
    ended = job.until(lambda: False)
    assert ended is not None and ended.outcome is Outcome.FENCED and "started anew" in ended.reason
    for _ in range(100):
        assert later.poll() is None
        time.sleep(0.02)
    assert {command[-1] for command in job.started[started:]} == {"later"}
    later.stop()


@pytest.mark.promise("F3", "H8")
def test_a_supervisor_shows_every_second_what_its_jobmaster_does_and_that_it_waits(
    watched: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "LOOK_EVERY_S", 0.05)
    job = watched(BEGIN + "\nlifeline.show(Stage.PREPARING); time.sleep(600)", CRASHES)

    def shown() -> SupervisorSign:
        found = job.folder.read_supervisor()
        assert found is not None
        return found

    job.until(lambda: job.folder.read_supervisor() and shown().stage is Stage.PREPARING)
    first = shown().number
    job.until(lambda: shown().number > first + 3)
    assert job.supervisor.master_pid is not None
    os.kill(job.supervisor.master_pid, signal.SIGKILL)
    job.until(lambda: shown().stage is None)
    job.folder.write_launch(msgspec.structs.replace(job.launch, id="later"))
    job.folder.write_supervisor(SupervisorSign("later", 1, 0, None, 0))
    assert job.until(lambda: False) is not None
    assert shown() == SupervisorSign("later", 1, 0, None, 0), "the folder is not its own any more"


@pytest.mark.promise("F1")
def test_a_job_can_be_cancelled_while_no_jobmaster_runs(watched: Callable[..., Watched]) -> None:
    job = watched(CRASHES)
    job.folder.want_running(job.launch, "cli")
    job.until(lambda: len(job.said) == 4)
    job.folder.want_stopped("cli")
    ended = job.until(lambda: False)
    assert ended is not None and ended.outcome is Outcome.CANCELLED


@pytest.mark.promise("H8")
def test_a_process_that_can_not_be_started_is_tried_again(
    watched: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = watched(CRASHES, DECIDES)
    log = job.folder.log_file

    def died(line: str) -> None:
        """At the first death, before another process can be started, the store begins to fail."""
        job.said.append(line)
        if len(job.said) == 1:
            log.unlink()
            log.mkdir()

    monkeypatch.setattr(job.supervisor, "_on_crash", died)
    job.until(lambda: len(job.said) == 3)
    assert "its process could not be started" in job.said[2] and "Is a directory" in job.said[2]
    log.rmdir()
    job.until(lambda: job.supervisor.master_pid is not None)


@pytest.mark.promise("F1")
def test_a_job_that_is_cancelled_while_its_jobmaster_starts_ends(
    watched: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "LOOK_EVERY_S", 0.05)
    job = watched(BEGIN + "\nlifeline.show(Stage.STARTING); time.sleep(600)")
    job.folder.want_running(job.launch, "test")
    job.until(lambda: job.supervisor._supervision.stage is not None)
    job.folder.want_stopped("test")
    ended = job.until(lambda: False)
    assert ended is not None and ended.outcome is Outcome.CANCELLED
    assert len(job.started) == 1


@pytest.mark.promise("D8", "F2")
@pytest.mark.parametrize("before", ["prepare", "write_launch", "clear", "forget_deaths", "want_running"])
def test_a_start_right_behind_a_stop_hears_nothing_of_the_supervisor_before(
    watched: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    """Seen on Spark: an upgrade was given up, as the old supervisor looked while the new start cleared the folder.

    It found no outcome of its JobMaster, took that for a death, saw that the job was to stop, and wrote "cancelled".
    """
    job = watched(STOPS)
    job.folder.want_running(job.launch, "test")
    master = job.supervisor._master
    assert master is not None and master.wait(60)
    job.folder.want_stopped_here("stop")
    job.folder.write_exit(MasterExit(Outcome.STOPPED, "behind epoch 5"), job.launch)
    taken = getattr(RunFolder, before)

    def interrupted(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(RunFolder, before, taken)
        ended = job.supervisor.poll() or job.supervisor.poll()
        assert ended is not None and supervisor._written(job.folder, ended, job.launch)
        return taken(*arguments, **options)

    monkeypatch.setattr(RunFolder, before, interrupted)
    start_detached(job.launch, "test", "second")
    launch = job.folder.read_launch()
    assert launch is not None and launch.id == "second" and job.said == []
    assert job.folder.read_exit() is None and job.folder.read_deaths() is None


@pytest.mark.promise("H7")
def test_a_job_whose_leash_nobody_holds_any_more_ends_also_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(supervisor, "LOOK_EVERY_S", 0.05)
    job = Watched(tmp_path, monkeypatch, DECIDES)
    job.launch = msgspec.structs.replace(job.launch, leash=str(tmp_path / "leash"))
    job.supervisor = Supervisor(job.launch, job.said.append, lambda: 0.5)
    try:
        with held(tmp_path / "leash"):
            job.supervisor.start()
            later = time.monotonic() + 1.0
            assert job.until(lambda: time.monotonic() > later) is None and job.said == []
        monkeypatch.setattr(RunFolder, "write_supervisor", full)
        ended = job.until(lambda: False)
        assert ended is not None and ended.outcome is Outcome.CANCELLED and len(job.started) == 1
    finally:
        job.supervisor.stop()


@pytest.mark.promise("D6", "H8")
def test_a_stop_that_could_not_be_written_down_for_want_of_space_is_no_death(watched: Callable[..., Watched]) -> None:
    """Seen on Spark with a full run folder: the stop had its epoch and its savepoint, and became "cancelled".

    With the whole store full, the JobMaster would be replaced instead, and the stopped job would go on.
    """
    job = watched(STOPS_ON_A_FULL_DISK)
    job.folder.want_running(job.launch, "test")
    ended = job.until(lambda: False)
    assert ended == MasterExit(Outcome.STOPPED, "stopped behind epoch 5") and job.said == []
    assert supervisor._written(job.folder, ended, job.launch)
    desired = job.folder.read_desired()
    assert desired is not None and not desired.running, "the next boot would start it again"
    assert job.folder.read_exit() == ended


@pytest.mark.promise("F2", "H8")
@pytest.mark.parametrize("damage", [lambda file: file.write_bytes(b""), lambda file: file.unlink()])
def test_a_launch_file_that_is_emptied_or_lost_is_written_again_with_the_last_parallelism(
    watched: Callable[..., Watched], damage: Callable[[Path], None]
) -> None:
    """Each JobMaster died at reading it, for ever, although its supervisor knew what it said."""
    job = watched(CRASHES, DECIDES)
    job.folder.want_running(job.launch, "test")
    job.folder.rescaled(job.launch, Scaling(3))
    damage(job.folder.launch_file)
    job.until(lambda: len(job.started) == 2)
    launch = job.folder.read_launch()
    assert launch is not None and (launch.id, launch.scaling) == ("first", Scaling(3))


@pytest.mark.promise("F2")
def test_a_wish_to_stop_an_earlier_start_does_not_end_this_one(
    watched: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "LOOK_EVERY_S", 0.05)
    job = watched(DECIDES)
    job.folder.want_running(msgspec.structs.replace(job.launch, id="earlier"), "test")
    job.folder.want_stopped_here("test")
    job.until(lambda: job.supervisor._supervision.stage is not None)
    later = time.monotonic() + 0.5
    assert job.until(lambda: time.monotonic() > later) is None and len(job.started) == 1


@pytest.mark.promise("F2", "H8")
def test_a_store_that_does_not_say_whose_the_folder_is_ends_no_job(
    watched: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> bool:
        raise OSError("input/output error")

    job = watched(CRASHES, CRASHES, DECIDES)
    monkeypatch.setattr(RunFolder, "belongs_to", fails)
    assert job.until(lambda: len(job.started) == 3) is None


@pytest.mark.promise("F2", "F3")
def test_nobody_finds_the_address_of_a_jobmaster_that_died_and_the_next_epoch_ends_the_row_of_deaths(
    watched: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = watched(CRASHES, CRASHES, CRASHES, PUBLISHES)
    address = MasterAddress("http://127.0.0.1:1", 1, 2, "token")
    found: list[MasterAddress | None] = []

    def died(line: str) -> None:
        """Looks at each death, before another process can be started; then one wakes up once more."""
        job.said.append(line)
        found.append(job.folder.read_address())
        job.folder.write_address(address)

    monkeypatch.setattr(job.supervisor, "_on_crash", died)
    job.until(lambda: len(job.started) == 3)
    job.folder.write_address(address)  # as a JobMaster does
    job.until(lambda: len(job.said) == 3)
    assert found == [None] * 3
    deaths = job.folder.read_deaths()
    assert deaths is not None and (deaths.total, deaths.in_a_row) == (3, 3)
    job.until(lambda: len(job.started) == 4)
    assert job.folder.read_address() is None, "a replacement begins with a clean folder"

    def row_is_over() -> bool:
        found = job.folder.read_deaths()
        return found is not None and (found.total, found.in_a_row) == (3, 0)

    job.until(row_is_over)


@pytest.mark.promise("F3")
def test_the_outcome_that_a_jobmaster_wrote_counts_more_than_the_short_one_that_it_told(
    watched: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("STORE", str(tmp_path))
    ended = watched(FAILS_FOR_ITS_OWN_FAULT).until(lambda: False)
    assert ended is not None and ended.raised is not None and len(ended.reason) == 5000


@pytest.mark.promise("F2")
def test_a_supervisor_s_process_leaves_the_launch_file_of_a_later_start_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Watched(tmp_path, monkeypatch, DECIDES)
    job.folder.prepare()
    job.folder.write_launch(msgspec.structs.replace(job.launch, id="later"))
    monkeypatch.setattr(sys, "argv", ["", str(job.folder.launch_file), "first"])
    monkeypatch.setattr(supervisor, "Supervisor", lambda *_: pytest.fail("it looks after a job that is not its own"))
    supervisor.main()


@pytest.mark.promise("D6", "F2")
def test_a_stop_that_a_late_supervisor_writes_down_does_not_stop_the_start_after_it(
    watched: Callable[..., Watched],
) -> None:
    job = watched(DECIDES)
    later = msgspec.structs.replace(job.launch, id="later")
    job.folder.write_launch(later)
    job.folder.want_running(later, "test")
    assert supervisor._written(job.folder, MasterExit(Outcome.STOPPED, "behind epoch 5"), job.launch)
    desired = job.folder.read_desired()
    assert desired is not None and desired.running and job.folder.read_exit() is None


def test_a_process_that_can_not_be_started_leaves_no_open_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError("cannot allocate memory")

    monkeypatch.setattr(child.subprocess, "Popen", full)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(OSError, match="cannot allocate"):
            child.MasterChild([], tmp_path / "log")
    assert len(os.listdir("/proc/self/fd")) == before
