"""What a client says of a job whose JobMaster is slow to answer, ends, or is gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.core.errors import WeirError
from engine.host.launch import MasterLaunch
from engine.host.run_folder import MasterAddress, MasterExit, RunFolder
from engine.jobmaster import events
from engine.jobmaster.actions import Outcome
from engine.observe.client import JobClient
from engine.observe.history import History
from engine.observe.savepoints import LOST, SavepointState

BUSY = httpx.Response(503, json={"error": "the JobMaster did not answer in 10 s"})


@pytest.fixture
def client(tmp_path: Path) -> JobClient:
    """A job with a savepoint under way."""
    launch = MasterLaunch(path="job:job", name="shop", store=str(tmp_path), max_slots=1, id="0a")
    folder = RunFolder(tmp_path, "shop")
    folder.prepare()
    folder.write_launch(launch)
    folder.write_address(MasterAddress("http://127.0.0.1:1", 1, 1, "token"))
    History(tmp_path, "shop").append(events.SavepointTriggered("nightly", "/backups/nightly", 7, "no", at_ms=5))
    return JobClient(str(tmp_path), "shop")


def answering(monkeypatch: pytest.MonkeyPatch, answer: Exception | httpx.Response) -> None:
    def request(*_: Any, **__: Any) -> httpx.Response:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(httpx, "request", request)


@pytest.mark.promise("D5")
@pytest.mark.parametrize("answer", [httpx.ReadTimeout("slow"), BUSY])
def test_a_savepoint_of_a_jobmaster_that_is_slow_to_answer_is_still_under_way(
    client: JobClient, monkeypatch: pytest.MonkeyPatch, answer: Exception | httpx.Response
) -> None:
    answering(monkeypatch, answer)
    (found,) = client.savepoints()
    assert found.state is SavepointState.PENDING
    with pytest.raises(WeirError, match="is not complete after 0 s; it may still complete"):
        client.wait_for_savepoint("nightly", 0.05)


@pytest.mark.promise("D5")
def test_a_savepoint_of_a_jobmaster_that_is_gone_has_failed(client: JobClient, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, httpx.ConnectError("refused"))
    (found,) = client.savepoints()
    assert (found.state, found.reason) == (SavepointState.FAILED, LOST)


@pytest.mark.promise("D5")
def test_a_savepoint_of_a_job_that_has_ended_has_failed(client: JobClient, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = client.folder.read_launch()
    assert launch is not None
    client.folder.write_exit(MasterExit(Outcome.CANCELLED, "cancelled"), launch)
    answering(monkeypatch, httpx.ReadTimeout("slow"))
    (found,) = client.savepoints()
    assert (found.state, found.reason) == (SavepointState.FAILED, "the job ended first: cancelled")
