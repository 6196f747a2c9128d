"""How the process of a JobMaster ends before its job runs. Real processes, without Spark."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.host.launch import MasterLaunch
from engine.host.run_folder import RunFolder
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
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
