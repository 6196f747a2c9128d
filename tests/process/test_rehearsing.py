"""A rehearsal runs as a detached job: what becomes of that job, and of its folder, if the command is killed (H7)."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.core.errors import NotRunning
from engine.host.launch import MasterLaunch
from engine.host.locks import held, is_held
from engine.host.run_folder import MasterExit, RunFolder
from engine.jobmaster.actions import Outcome
from engine.observe.client import JobClient
from engine.process import rehearsing
from engine.process.rehearsing import KEPT, LEASH, remove_leftovers

SLEEPS = "import time\ntime.sleep(600)\n"
"""A version whose code never gets loaded, so that its JobMaster starts no Spark."""

COMMAND = """
import sys
from engine.host.launch import MasterLaunch
from engine.process import rehearsing

launch = MasterLaunch(path="sleeps:job", name="shop-rehearsal", store=sys.argv[1], max_slots=1)
with rehearsing._running(launch) as client:
    client.wait_until_running()
"""


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError(what)


@pytest.fixture
def command(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The command of a rehearsal, whose job is being started."""
    (tmp_path / "sleeps.py").write_text(SLEEPS)
    process = subprocess.Popen([sys.executable, "-c", COMMAND, str(tmp_path)], cwd=tmp_path)
    yield process
    process.kill()
    process.wait()
    client = JobClient(str(tmp_path), "shop-rehearsal")
    with contextlib.suppress(NotRunning):
        client.cancel("test")
        client.wait_until_ended(180)


@pytest.mark.promise("H7")
def test_the_job_of_a_rehearsal_ends_if_its_command_is_killed(command: subprocess.Popen[bytes], tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "shop-rehearsal")
    until(lambda: folder.read_supervisor() is not None, "no supervisor was started")
    command.kill()
    command.wait()
    until(lambda: folder.read_exit() is not None, "the job runs on without its command")
    ended = folder.read_exit()
    assert ended is not None and ended.outcome is Outcome.CANCELLED
    assert folder.live_supervisor() is None


@pytest.mark.promise("H7")
def test_the_job_of_a_rehearsal_runs_as_long_as_its_command(command: subprocess.Popen[bytes], tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "shop-rehearsal")
    until(lambda: folder.read_supervisor() is not None, "no supervisor was started")
    signs = {folder.live_supervisor() for _ in range(4)}
    assert len(signs) == 4 and None not in signs and command.poll() is None


def rehearsal(parent: Path, name: str, ended: bool = True, leash: bool = False) -> Path:
    folder = parent / name
    run = RunFolder(folder, "shop-rehearsal")
    run.prepare()
    launch = MasterLaunch(path="job:v2", name="shop-rehearsal", store=str(folder), max_slots=1, id="0a")
    run.write_launch(launch)
    if ended:
        run.write_exit(MasterExit(Outcome.CANCELLED, "cancelled"), launch)
    if leash:
        (folder / LEASH).touch()
    return folder


def test_the_next_rehearsal_removes_what_killed_ones_left_and_the_oldest(tmp_path: Path) -> None:
    done = [rehearsal(tmp_path, f"2026010{n}") for n in range(1, KEPT + 1)]
    killed = rehearsal(tmp_path, "20260108", leash=True)
    died = rehearsal(tmp_path, "20260109", ended=False, leash=True)
    under_way = rehearsal(tmp_path, "20260100", ended=False, leash=True)
    with held(under_way / LEASH):
        remove_leftovers(tmp_path, "shop-rehearsal")
    assert not killed.exists() and not died.exists()
    assert sorted(tmp_path.iterdir()) == [under_way, *done[1:]]


def test_a_rehearsal_that_is_over_leaves_no_leash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held_for: list[str] = []

    def start(launch: MasterLaunch, by: str) -> JobClient:
        held_for.append(launch.leash)
        return JobClient(launch.store, launch.name)  # it does not run, so there is nothing to cancel

    monkeypatch.setattr(rehearsing, "start_detached", start)
    launch = MasterLaunch(path="job:v2", name="shop-rehearsal", store=str(tmp_path), max_slots=1)
    with rehearsing._running(launch):
        assert held_for == [str(tmp_path / LEASH)] and is_held(tmp_path / LEASH)
    assert not (tmp_path / LEASH).exists()
