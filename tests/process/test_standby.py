"""A supervisor keeps a standby ready, and lets it take over. Small scripts stand in for the processes.

A script is told apart by its last argument, as a JobMaster process is: `standby`, or the id of the start.
"""

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

import pytest

from engine.host.launch import MasterLaunch
from engine.host.run_folder import MasterExit, RunFolder, StandbySign
from engine.jobmaster.actions import Outcome
from engine.process import child, supervisor
from engine.process.supervisor import Supervisor
from engine.protocol import supervision
from engine.protocol.remedy import Stage
from engine.protocol.restart import ExponentialDelay
from engine.protocol.supervision import Supervision

BEGIN = """
import os, pathlib, signal, sys, time
from engine.host.lifeline import Lifeline
from engine.host.run_folder import MasterExit, RunFolder
from engine.host.launch import read_launch
from engine.host.takeover import Order
from engine.jobmaster.actions import Outcome
from engine.protocol.failures import Fault
from engine.protocol.remedy import Stage
lifeline = Lifeline.inherited()
def decide():
    while not lifeline.broken:
        lifeline.show(Stage.DECIDING, 5)
        time.sleep(0.02)
    os._exit(70)
"""
DECIDES = BEGIN + "decide()"
WAITS = (
    BEGIN
    + """
order = Order.inherited()
while not order.given and not lifeline.broken:
    lifeline.show(Stage.STANDING_BY)
    time.sleep(0.02)
decide()
"""
)
HANGS_AFTER_THE_ORDER = (
    BEGIN
    + """
order = Order.inherited()
while not order.given and not lifeline.broken:
    lifeline.show(Stage.STANDING_BY)
    time.sleep(0.02)
time.sleep(600)
"""
)
TIMEOUT_S = 60.0
CAN_NOT_START = ""
"""No script: the system refuses to start the process."""
STILL_STARTS = BEGIN + "\norder = Order.inherited()\nlifeline.show(Stage.STARTING)\ntime.sleep(1)\n"
STILL_STARTS += "while not order.given: time.sleep(0.02)\ndecide()"
DIES = BEGIN + "\nlifeline.show(Stage.STARTING); lifeline.last_words(Fault.JOB, 'it does not build'); os._exit(70)"


def _plain_signals() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


class Kept:
    """A supervisor with a standby. `masters` and `standbys` are their scripts; the last of each stays in use."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, masters: list[str], standbys: list[str]) -> None:
        self.launch = MasterLaunch(
            path="",
            name="numbers",
            store=str(folder),
            max_slots=1,
            id="first",
            standby=True,
            jobmaster_timeout_s=TIMEOUT_S,
        )
        self.folder = RunFolder(folder, "numbers")
        self.said: list[str] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        popen = subprocess.Popen

        def start(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
            scripts = standbys if command[-1] == child.STANDBY else masters
            script = scripts.pop(0) if len(scripts) > 1 else scripts[0]
            if script == CAN_NOT_START:
                raise OSError("cannot allocate memory")
            self.processes.append(popen([sys.executable, "-c", script], preexec_fn=_plain_signals, **options))
            return self.processes[-1]

        monkeypatch.setattr(child.subprocess, "Popen", start)
        monkeypatch.setattr(supervision, "BACK_OFF", ExponentialDelay(initial_ms=50, max_ms=60_000, multiplier=2))
        monkeypatch.setattr(supervisor, "LOOK_EVERY_S", 0.02)
        self.supervisor = Supervisor(self.launch, self.said.append, lambda: 0.5)

    def until(self, condition: Callable[[], Any]) -> MasterExit | None:
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline:
            ended = self.supervisor.poll()
            if ended is not None or condition():
                return ended
            time.sleep(0.02)
        raise AssertionError(f"it did not happen: {self.said}\n{self.folder.log_file.read_text()}")

    def sign(self) -> StandbySign | None:
        sign = self.folder.read_supervisor()
        return sign.standby if sign is not None else None

    def both_run(self) -> bool:
        keeper = self.supervisor
        decides = keeper.master_pid is not None and keeper._supervision.stage is Stage.DECIDING
        return decides and keeper.standby_pid is not None

    def ready(self) -> bool:
        sign = self.sign()
        return sign is not None and sign.ready


def impatient(supervision: Supervision) -> None:
    """Shortens the patience with a process that hangs now. Before, a busy machine may keep a live one silent for long.

    That is far less than the time that a start may take, and than this test waits.
    """
    assert supervision._silent_ms == 1000 * TIMEOUT_S
    supervision._silent_ms = 2000.0


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Kept]]:
    made: list[Kept] = []

    def make(masters: list[str], standbys: list[str]) -> Kept:
        made.append(Kept(tmp_path, monkeypatch, masters, standbys))
        made[-1].supervisor.start()
        return made[-1]

    yield make
    for one in made:
        one.supervisor.stop()
        assert all(process.poll() is not None for process in one.processes), "a process is left behind"


@pytest.mark.promise("F2")
def test_a_standby_takes_over_when_the_jobmaster_is_killed_and_another_standby_is_started(
    kept: Callable[..., Kept],
) -> None:
    job = kept([DECIDES], [WAITS])
    job.until(job.ready)
    master, standby = job.supervisor.master_pid, job.supervisor.standby_pid
    assert master is not None and standby is not None
    os.kill(master, signal.SIGKILL)
    job.until(lambda: job.supervisor.master_pid == standby)
    assert job.said == ["the JobMaster died (signal SIGKILL while it was running the job); its standby takes over"]
    job.until(job.ready)
    assert job.supervisor.standby_pid not in (None, standby)
    assert job.supervisor.master_pid == standby and len(job.processes) == 3


@pytest.mark.promise("F2")
def test_a_standby_takes_over_from_a_jobmaster_that_hangs(kept: Callable[..., Kept]) -> None:
    job = kept([DECIDES], [WAITS])
    job.until(job.ready)
    master, standby = job.supervisor.master_pid, job.supervisor.standby_pid
    assert master is not None
    os.kill(master, signal.SIGSTOP)
    impatient(job.supervisor._supervision)
    job.until(lambda: job.supervisor.master_pid == standby)
    assert re.search(r"it gave no sign of life for [23] s while it was running the job, and was killed", job.said[0])


@pytest.mark.promise("F2")
def test_a_standby_that_still_starts_takes_over_as_soon_as_it_can(kept: Callable[..., Kept]) -> None:
    job = kept([DECIDES], [STILL_STARTS, WAITS])
    job.until(lambda: job.supervisor.standby_pid is not None)
    master, standby = job.supervisor.master_pid, job.supervisor.standby_pid
    assert master is not None
    os.kill(master, signal.SIGKILL)
    job.until(lambda: job.supervisor.master_pid == standby and job.supervisor._supervision.stage is Stage.DECIDING)
    assert len(job.said) == 1


@pytest.mark.promise("F2", "H8")
def test_a_standby_that_dies_is_replaced_and_the_job_goes_on(kept: Callable[..., Kept]) -> None:
    """Also one whose code does not build any more: the JobMaster runs the code that it was started with."""
    job = kept([DECIDES], [DIES, DIES, WAITS])
    shown: set[str] = set()

    def seen() -> bool:
        sign = job.sign()
        shown.add(sign.in_words() if sign is not None else "")
        return job.ready()

    assert job.until(seen) is None and job.said == []
    assert any("the last one died by: it does not build" in words for words in shown), shown
    assert len(job.processes) == 4
    sign = job.sign()
    assert sign is not None and sign.deaths == 0, "one that is ready ends the row of deaths"


@pytest.mark.promise("F2")
def test_a_standby_that_hangs_is_replaced(kept: Callable[..., Kept]) -> None:
    job = kept([DECIDES], [WAITS])
    job.until(job.ready)
    first, keeper = job.supervisor.standby_pid, job.supervisor._standby
    assert first is not None and keeper is not None
    os.kill(first, signal.SIGSTOP)
    impatient(keeper._supervision._process)
    job.until(lambda: job.supervisor.standby_pid not in (None, first) and job.ready())
    assert job.said == []


@pytest.mark.promise("F1")
def test_the_end_of_a_job_is_the_end_of_its_standby(kept: Callable[..., Kept]) -> None:
    job = kept([DECIDES], [WAITS])
    job.folder.want_running(job.launch, "test")
    job.until(job.ready)
    job.folder.want_stopped("test")
    ended = job.until(lambda: False)
    assert ended is not None and ended.outcome is Outcome.CANCELLED
    assert all(process.poll() is not None for process in job.processes)


@pytest.mark.promise("F2")
def test_a_standby_whose_supervisor_is_killed_ends_and_does_not_take_over(kept: Callable[..., Kept]) -> None:
    """The end of the pipe is no order: with its supervisor gone, nobody would stop what takes over."""
    job = kept([DECIDES], [WAITS])
    job.until(job.ready)
    standby = job.processes[1]
    keeper = job.supervisor._standby
    assert keeper is not None and keeper._child is not None
    keeper._child.close()  # as the system does with the descriptors of a killed supervisor
    keeper._child = None
    assert standby.wait(60) == 70


@pytest.mark.promise("H8")
def test_jobmasters_that_die_as_soon_as_they_take_over_are_slowed_down(kept: Callable[..., Kept]) -> None:
    job = kept([DECIDES], [WAITS])
    for number in range(1, 4):
        job.until(job.both_run)
        master = job.supervisor.master_pid
        assert master is not None
        os.kill(master, signal.SIGKILL)
        job.until(lambda number=number: len(job.said) == number)
    deaths = job.folder.read_deaths()
    assert deaths is not None and deaths.in_a_row == 3 and deaths.again_at_ms - deaths.at_ms == 200


@pytest.mark.promise("F2")
def test_a_standby_that_hangs_as_it_takes_over_is_replaced_as_soon_as_a_jobmaster_would_be(
    kept: Callable[..., Kept],
) -> None:
    """It has loaded everything, so the five minutes that a start may take are not its own."""
    job = kept([DECIDES], [HANGS_AFTER_THE_ORDER, WAITS])
    job.until(job.ready)
    master, standby = job.supervisor.master_pid, job.supervisor.standby_pid
    assert master is not None
    os.kill(master, signal.SIGKILL)
    job.until(lambda: job.supervisor.master_pid == standby)
    impatient(job.supervisor._supervision)
    job.until(lambda: len(job.said) == 2)
    assert re.search(r"it gave no sign of life for [23] s", job.said[-1])


@pytest.mark.promise("F2", "H8")
def test_a_standby_that_can_not_be_started_is_tried_again_and_the_job_goes_on(kept: Callable[..., Kept]) -> None:
    job = kept([DECIDES], [CAN_NOT_START, CAN_NOT_START, WAITS])
    assert job.until(job.ready) is None and job.said == []


@pytest.mark.promise("F2")
def test_a_standby_that_died_in_the_same_moment_does_not_take_over(kept: Callable[..., Kept]) -> None:
    job = kept([DECIDES], [WAITS])
    job.until(job.ready)
    master, standby = job.supervisor.master_pid, job.supervisor.standby_pid
    assert master is not None and standby is not None
    for pid in (standby, master):
        os.kill(pid, signal.SIGKILL)
    assert job.processes[1].wait(60) and job.processes[0].wait(60)
    job.until(lambda: job.both_run() and job.supervisor.master_pid not in (master, standby))
    assert len(job.said) == 1, "it was not taken for the JobMaster"


@pytest.mark.promise("F2")
def test_a_jobmaster_that_dies_before_there_is_a_standby_is_followed_by_another(kept: Callable[..., Kept]) -> None:
    job = kept([BEGIN + "os._exit(70)", DECIDES], [WAITS])
    job.until(job.ready)
    assert len(job.said) == 1 and job.said[0].endswith("; starting another")
