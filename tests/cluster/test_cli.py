"""Goal: a job is started, watched, checkpointed and cancelled from a terminal and over HTTP, only with its token."""

from __future__ import annotations

import json
import stat
import time
from pathlib import Path

import httpx
import pytest
from pyarrow import flight

from engine.network.control import ControlClient, ControlServer
from engine.observe.client import JobClient
from engine.protocol.messages import Heartbeat
from tests.cluster.test_bad_input import weir


@pytest.mark.promise("F1")
def test_submit_status_checkpoint_and_cancel(tmp_path: Path) -> None:
    started = weir("submit", "tests.cluster.jobs:endless", "--param", "interval=1 h", store=tmp_path)
    assert started.returncode == 0 and "endless is running" in started.stdout
    try:
        client = JobClient(str(tmp_path), "endless")
        token_file = client.folder.folder / "token"
        assert stat.S_IMODE(token_file.stat().st_mode) == 0o600
        assert stat.S_IMODE(client.folder.folder.stat().st_mode) == 0o700
        address = client.folder.read_address()
        assert address is not None
        for headers in ({}, {"authorization": "Bearer wrong"}):
            assert httpx.get(address.url + "/job", headers=headers, timeout=60).status_code == 401

        listed = weir("jobs", store=tmp_path)
        assert "endless" in listed.stdout and "running" in listed.stdout and "exactly once" in listed.stdout
        shown = weir("status", "endless", store=tmp_path)
        assert "window sums → sink out" in shown.stdout and "no checkpoint yet" in shown.stdout
        status = json.loads(weir("status", "endless", "--json", store=tmp_path).stdout)
        assert status["parallelism"] == 2 and len(status["slots"]) == 2
        made = weir("checkpoint", "tests.cluster.jobs:endless", store=tmp_path)
        assert made.returncode == 0 and "is epoch 1" in made.stdout
        again = weir("submit", "tests.cluster.jobs:endless", store=tmp_path)
        assert again.returncode == 1 and "is running already" in again.stderr
    finally:
        ended = weir("cancel", "endless", store=tmp_path)
    assert ended.returncode == 0 and "endless is cancelled" in ended.stdout
    assert "cancelled" in weir("jobs", store=tmp_path).stdout
    assert weir("status", "endless", store=tmp_path).returncode == 1


def test_a_control_stream_with_a_wrong_token_is_refused() -> None:
    heard: list[str] = []
    server = ControlServer("job", "127.0.0.1", "right", lambda session, message: heard.append(session), lambda *_: None)
    lost: list[str] = []
    try:
        client = ControlClient("job", "s1", server.address, "wrong", lambda message: None, lost.append)
        client.send(Heartbeat({}))
    except flight.FlightUnauthenticatedError as error:  # the server may refuse before the stream is open
        lost.append(str(error))
    deadline = time.monotonic() + 120
    while not lost and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not heard and "wrong or missing token" in "".join(lost)
    with pytest.raises(flight.FlightUnauthenticatedError):
        list(flight.FlightClient(server.address).list_flights())
