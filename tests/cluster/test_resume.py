"""Goal: a job whose supervisor was killed, as a reboot does, is started again by `weir resume` as it was started last.

Topology: a windowed job on local Spark with two slots, started in the background by `weir submit`, with a parameter, a
memory budget and a Spark setting. Faults: SIGKILL of the supervisor. Checks: the JobMaster ends by itself, `weir jobs`
says what to do, the job goes on from its last epoch with the same options, and no process is left.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from engine.observe.client import JobClient
from tests.cli.command import weir
from tests.cluster.harness import PATIENCE_S, session_processes


def wait_for_epoch(client: JobClient, epoch: int) -> None:
    assert client.wait_until_running(PATIENCE_S) is None
    deadline = time.monotonic() + PATIENCE_S
    while client.status().epoch < epoch:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    weir("cancel", "endless", store=tmp_path)


@pytest.mark.promise("F1", "F2")
def test_a_job_whose_supervisor_was_killed_is_resumed_as_it_was_started(store: Path) -> None:
    options = ["--param", "interval=250 ms", "--slot-memory", "900", "--conf", "spark.log.level=ERROR"]
    done = weir("submit", "tests.cluster.jobs:endless", *options, store=store)
    assert done.returncode == 0 and "endless begins afresh: no epoch yet" in done.stdout, done.stderr
    client = JobClient(str(store), "endless")
    wait_for_epoch(client, 2)
    before, first = client.folder.read_launch(), client.folder.read_address()
    assert before is not None and first is not None
    os.kill(parent_of(first.pid), signal.SIGKILL)
    client.wait_until_ended(PATIENCE_S)
    assert "it should be running: `weir resume endless` starts it again and goes on from epoch" in (
        weir("jobs", store=store).stdout
    )
    done = weir("resume", "--all", store=store)
    assert done.returncode == 0 and "endless is being started again, as it was started last" in done.stdout, done.stderr
    assert "endless goes on from epoch" in done.stdout
    wait_for_epoch(client, 4)
    status, after, second = client.status(), client.folder.read_launch(), client.folder.read_address()
    assert status.generation == 2 and after is not None and second is not None
    assert msgspec.structs.replace(after, id="") == msgspec.structs.replace(before, id="")
    assert "endless is running already" in weir("resume", "endless", store=store).stdout
    supervisor = parent_of(second.pid)
    assert weir("cancel", "endless", store=store).returncode == 0
    assert "was stopped on purpose (by cli)" in weir("resume", "endless", store=store).stderr
    deadline = time.monotonic() + 120
    while any(session_processes(pid) for pid in (first.pid, second.pid, supervisor)):
        assert time.monotonic() < deadline, "processes outlived the job"
        time.sleep(0.1)
