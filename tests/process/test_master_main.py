"""How the process of a JobMaster ends before its job runs. Real processes, without Spark."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from engine.core.paths import JobPaths
from engine.host.launch import MasterLaunch, read_launch
from engine.host.lifeline import Lifeline
from engine.host.run_folder import RunFolder
from engine.host.system import SystemClock
from engine.jobmaster.master import Phase
from engine.process import master_main
from engine.process.master_process import MasterProcess
from engine.snapshot.epoch_log import EpochLog
from engine.store.directory import DirectoryStore
from tests.cluster.harness import session_processes


def launched(store: Path, function: str, **params: str) -> list[str]:
    path = f"tests.cluster.jobs:{function}"
    launch = MasterLaunch(path=path, name=function, params=params, store=str(store), max_slots=1, id="first")
    folder = RunFolder(store, function)
    folder.prepare()
    folder.write_launch(launch)
    return [sys.executable, "-m", "engine.process.master_main", str(folder.launch_file), "first"]


SUPERVISOR = """
import os, signal, subprocess, sys, time
child = subprocess.Popen(sys.argv[1:], start_new_session=True)
print(child.pid, flush=True)
sys.stdin.read()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.promise("F2")
def test_a_jobmaster_whose_supervisor_is_killed_while_it_starts_ends(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SUPERVISOR, *launched(tmp_path, "never_built", note=str(tmp_path / "note"))]
    log = tmp_path / "log"
    with log.open("wb") as errors:
        supervisor = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
    assert supervisor.stdout is not None and supervisor.stdin is not None
    master = int(supervisor.stdout.readline())
    wait_until(lambda: (tmp_path / "note").exists(), log)
    assert session_processes(master)
    supervisor.stdin.close()
    assert supervisor.wait() == -9
    supervisor.stdout.close()
    wait_until(lambda: not session_processes(master), log)


def wait_until(condition: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + 180
    while not condition():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)


class _Spark(Exception):
    """Stands for the start of Spark."""


class Beating:
    """A `MasterProcess` of which only the heartbeat is there. What it writes, it writes at once."""

    def __init__(self, launch: MasterLaunch, begun: bool) -> None:
        self.process = MasterProcess.__new__(MasterProcess)
        self.process._launch, self.process._begun = launch, begun
        self.process._folder, self.process._lifeline = RunFolder(launch.store, launch.name), Lifeline()
        self.process._clock, self.process._beating = SystemClock(), False
        self.process._heartbeat_at_ms, self.process._heartbeat_phase = 0.0, None
        self.process._offload = SimpleNamespace(submit=lambda queue, work, done: done(work(), None))  # type: ignore[assignment]

    def beat(self, phase: Phase, generation: int) -> None:
        slots = SimpleNamespace(enough=True)
        attempt = SimpleNamespace(generation=generation)
        self.process.master = SimpleNamespace(phase=phase, attempt=attempt, newest=None, slots=slots)  # type: ignore[assignment]
        self.process._beat()


def begun_at_the_next_start(launch: MasterLaunch, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Starts a JobMaster up to the moment at which it would decide. Returns whether it knows that the job has run."""
    said: list[bool] = []

    def decide(*_: Any, begun: bool, **__: Any) -> None:
        said.append(begun)
        raise _Spark

    monkeypatch.setattr(master_main, "start_session", lambda *_, **__: SimpleNamespace())
    monkeypatch.setattr(master_main, "MasterProcess", decide)
    with pytest.raises(_Spark):
        master_main.run(launch, Lifeline(), Path(launch.store))
    return said[0]


@pytest.mark.promise("H8", "F2")
def test_a_jobmaster_that_starts_while_an_empty_bucket_is_in_place_of_the_store_does_not_begin_the_job_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run folder of a job in a bucket is on this machine, so it is still there, and so is the supervisor.

    A MinIO server that came back without its disk made the next JobMaster process everything again, silently.
    """
    launch = read_launch(launched(tmp_path, "windows", rows="10")[-2])
    log = EpochLog(DirectoryStore(tmp_path), JobPaths(launch.name))
    assert not begun_at_the_next_start(launch, monkeypatch), "nobody has claimed the job yet"
    Beating(launch, begun=False).beat(Phase.FENCING, generation=0)
    assert not begun_at_the_next_start(launch, monkeypatch)
    assert log.claim("first") is not None
    Beating(launch, begun=False).beat(Phase.RUNNING, generation=1)
    (tmp_path / launch.name / "log").rename(tmp_path / "away")
    assert begun_at_the_next_start(launch, monkeypatch)
    Beating(launch, begun=True).beat(Phase.FENCING, generation=0)  # the one that waits for the store dies, too
    assert begun_at_the_next_start(launch, monkeypatch)
    later = launched(tmp_path, "windows", rows="10")  # a person starts the job anew: the store was emptied on purpose
    assert not begun_at_the_next_start(_with_id(read_launch(later[-2]), "second"), monkeypatch)


def _with_id(launch: MasterLaunch, id: str) -> MasterLaunch:
    launch = msgspec.structs.replace(launch, id=id)
    RunFolder(launch.store, launch.name).write_launch(launch)
    return launch
