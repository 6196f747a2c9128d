"""What a client says of a job whose JobMaster is slow to answer, ends, or is gone."""

from __future__ import annotations

import time
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import pytest

from engine.core.errors import NotRunning, WeirError
from engine.host.launch import MasterLaunch
from engine.host.run_folder import MasterAddress, MasterExit, RunFolder, SupervisorSign
from engine.jobmaster import events
from engine.jobmaster.actions import Outcome, was_drained
from engine.observe.client import JobClient
from engine.observe.history import History
from engine.observe.savepoints import ENDED_FIRST, LOST, SavepointRecord, SavepointState, StopRecord
from engine.protocol.remedy import Stage

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


@pytest.mark.promise("F1")
def test_who_waits_for_a_savepoint_asks_for_that_one_and_less_and_less_often(
    client: JobClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    slept: list[float] = []

    def request(method: str, url: str, **_: Any) -> httpx.Response:
        asked.append(f"{method} {url.removeprefix('http://127.0.0.1:1')}")
        state = SavepointState.PENDING if len(asked) < 20 else SavepointState.COMPLETED
        record = SavepointRecord(savepoint="nightly", place="/backups/nightly", state=state)
        return httpx.Response(200, content=msgspec.json.encode(record))

    clock = SimpleNamespace(monotonic=time.monotonic, sleep=slept.append)  # `time` itself is every thread's
    monkeypatch.setattr(httpx, "request", request)
    monkeypatch.setattr("engine.observe.client.time", clock)
    assert client.wait_for_savepoint("nightly").state is SavepointState.COMPLETED
    assert set(asked) == {"GET /savepoints/nightly"}
    assert slept == sorted(slept) and slept[0] == 0.1 and slept[-1] == 2.0


@pytest.mark.promise("D5")
def test_a_savepoint_of_a_jobmaster_that_is_gone_has_failed(client: JobClient, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, httpx.ConnectError("refused"))
    (found,) = client.savepoints()
    assert (found.state, found.reason) == (SavepointState.FAILED, LOST)


@pytest.mark.promise("D5")
@pytest.mark.parametrize("made", [False, True])
def test_a_savepoint_of_which_the_next_jobmaster_knows_nothing_is_lost_unless_it_is_there(
    client: JobClient, monkeypatch: pytest.MonkeyPatch, made: bool
) -> None:
    """The JobMaster was killed before its history was in the bucket, and the command said to ask GET /savepoints."""
    record = SavepointRecord(savepoint="other", place="/backups/other", state=SavepointState.COMPLETED)

    def request(method: str, url: str, **_: Any) -> httpx.Response:
        if url.endswith("/savepoints/other"):
            return httpx.Response(404, json={"error": "the job has no savepoint 'other'; GET /savepoints lists them"})
        return httpx.Response(200, content=msgspec.json.encode([record] if made else []))

    monkeypatch.setattr(httpx, "request", request)
    if made:
        assert client.wait_for_savepoint("other") == record
        return
    with pytest.raises(WeirError, match=f"there is no savepoint 'other' of job 'shop'.*{LOST}.*`weir status shop`"):
        client.wait_for_savepoint("other")


@pytest.mark.promise("D5")
def test_who_waits_for_a_savepoint_whose_jobmaster_was_killed_hears_that_it_may_still_be_completed(
    client: JobClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command said that there is no savepoint; the next JobMaster, or `weir gc`, completed it seconds later."""
    answering(monkeypatch, httpx.ConnectError("refused"))
    with pytest.raises(WeirError, match=f"/backups/nightly: {LOST}.*only its last step.*`weir savepoints shop`"):
        client.wait_for_savepoint("nightly")


@pytest.mark.promise("D5")
def test_a_job_that_ended_before_its_savepoint_was_made_is_not_said_to_go_on(
    client: JobClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its supervisor was killed: "the job ended first: its supervisor has died. Job 'shop' goes on"."""
    launch = client.folder.read_launch()
    assert launch is not None
    client.folder.want_running(launch, "cli")
    client.folder.write_exit(MasterExit(Outcome.CANCELLED, "its supervisor has died"), launch)
    answering(monkeypatch, httpx.ConnectError("refused"))
    with pytest.raises(WeirError, match=r"its supervisor has died.*`weir resume shop` starts it again") as said:
        client.wait_for_savepoint("nightly")
    assert "goes on" not in str(said.value)


@pytest.mark.promise("D5")
def test_a_savepoint_that_lost_against_another_of_its_name_is_not_said_to_be_missing(
    client: JobClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two were asked for at once: "there is no savepoint x: x already holds a savepoint"."""
    lost = SavepointRecord(savepoint="x", place="/b/x", state=SavepointState.FAILED, reason="/b/x already holds one")
    answering(monkeypatch, httpx.Response(200, content=msgspec.json.encode(lost)))
    with pytest.raises(WeirError) as said:
        client.wait_for_savepoint("x")
    assert str(said.value) == "savepoint /b/x failed: /b/x already holds one. Job 'shop' goes on"


@pytest.mark.promise("D5", "D6")
@pytest.mark.parametrize("broken", [httpx.ReadError("reset"), httpx.RemoteProtocolError("no answer")])
def test_who_asked_a_jobmaster_that_was_killed_before_it_answered_hears_what_to_do(
    client: JobClient, monkeypatch: pytest.MonkeyPatch, broken: Exception
) -> None:
    """The command said that the job is not running, and to resume it after a reboot."""
    answering(monkeypatch, broken)
    for ask in (client.savepoint, client.stop, partial(client.rescale, 2)):
        with pytest.raises(NotRunning, match=r"ended before it answered.*may have been done.*`weir status shop`"):
            ask()


@pytest.mark.promise("D5", "F1")
@pytest.mark.parametrize(
    ("age_s", "due"),
    [(1, "ask again when `weir status shop` shows that it runs"), (60, "after a reboot, `weir resume")],
)
def test_a_job_whose_jobmaster_is_being_replaced_is_to_be_asked_again_and_not_to_be_resumed(
    client: JobClient, monkeypatch: pytest.MonkeyPatch, age_s: int, due: str
) -> None:
    """Its supervisor had shown a second ago that it loads the job, and the command said what to do after a reboot."""
    launch = client.folder.read_launch()
    assert launch is not None
    client.folder.want_running(launch, "cli")
    sign = SupervisorSign("0a", 7, time.time_ns() // 1_000_000 - age_s * 1000, Stage.STARTING, 0)
    monkeypatch.setattr(RunFolder, "read_supervisor", lambda folder: sign)
    answering(monkeypatch, httpx.ConnectError("refused"))
    with pytest.raises(NotRunning, match=due):
        client.savepoint("x")


@pytest.mark.promise("D5")
def test_a_savepoint_of_a_job_that_has_ended_has_failed(client: JobClient, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = client.folder.read_launch()
    assert launch is not None
    client.folder.write_exit(MasterExit(Outcome.CANCELLED, "cancelled"), launch)
    answering(monkeypatch, httpx.ReadTimeout("slow"))
    (found,) = client.savepoints()
    assert (found.state, found.reason) == (SavepointState.FAILED, "the job ended first: cancelled")


@pytest.mark.promise("D6", "H8")
def test_who_waits_for_a_stop_hears_that_nobody_runs_the_job_any_more(
    client: JobClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JobMaster and supervisor were killed during the stop: the command waited for ever."""
    answering(monkeypatch, httpx.ConnectError("refused"))
    hurry(monkeypatch)
    with pytest.raises(NotRunning, match=r"nobody runs job 'shop' any more.*weir resume shop"):
        client.wait_until_stopped(timeout_s=60)


@pytest.mark.promise("D7", "H8")
def test_who_waits_for_a_rescale_hears_that_nobody_runs_the_job_any_more(
    client: JobClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, httpx.ConnectError("refused"))
    hurry(monkeypatch)
    with pytest.raises(NotRunning, match="nobody runs job 'shop' any more"):
        client.wait_for_rescale("1-1", timeout_s=60)


@pytest.mark.promise("F1", "H8")
def test_who_waits_for_a_start_hears_that_nobody_runs_the_job_any_more(
    client: JobClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supervisor that was killed before its JobMaster ran left `weir submit` waiting for ever."""
    answering(monkeypatch, httpx.ConnectError("refused"))
    hurry(monkeypatch)
    with pytest.raises(NotRunning, match="nobody runs job 'shop' any more"):
        client.wait_until_running(timeout_s=60)


@pytest.mark.promise("F1")
def test_a_job_whose_jobmaster_is_being_replaced_is_waited_for(
    client: JobClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, httpx.ConnectError("refused"))
    hurry(monkeypatch)
    signs = (SupervisorSign("0a", number, 0, Stage.STARTING, 0) for number in count())
    monkeypatch.setattr(RunFolder, "read_supervisor", lambda folder: next(signs))
    for wait in (client.wait_until_stopped, client.wait_until_running, partial(client.wait_for_rescale, "1-1")):
        with pytest.raises(WeirError, match="after 0 s") as said:
            wait(timeout_s=0.3)
        assert not isinstance(said.value, NotRunning)


@pytest.mark.promise("D6", "H8")
@pytest.mark.parametrize(
    "known",
    [None, StopRecord(drain=False, savepoint="upgrade-before", requested_at_ms=0, ended=True)],
    ids=["none", "one that ended an earlier start"],
)
def test_a_stop_of_which_the_next_jobmaster_knows_nothing_did_not_happen(
    client: JobClient, monkeypatch: pytest.MonkeyPatch, known: StopRecord | None
) -> None:
    """The JobMaster was killed before its history was written: the command waited for ever, and the job went on."""
    answering(monkeypatch, httpx.Response(200, content=msgspec.json.encode(known)))
    monkeypatch.setattr(JobClient, "status", lambda client: SimpleNamespace(running=True))
    with pytest.raises(WeirError, match=f"job 'shop' is not stopped and goes on: {LOST}"):
        client.wait_until_stopped(timeout_s=60)


@pytest.mark.promise("D6")
@pytest.mark.parametrize("made", [False, True])
def test_a_stop_that_was_lost_with_its_jobmaster_says_what_became_of_its_savepoint(
    client: JobClient, monkeypatch: pytest.MonkeyPatch, made: bool
) -> None:
    """The savepoint existed, or was completed seconds later, and the message did not name it."""
    stop = StopRecord(drain=False, savepoint="last", requested_at_ms=0, failed=True, reason=LOST)
    record = SavepointRecord(savepoint="last", place="/b/last", state=SavepointState.COMPLETED)

    def request(method: str, url: str, **_: Any) -> httpx.Response:
        listed = [record] if made else []
        return httpx.Response(200, content=msgspec.json.encode(stop if url.endswith("/stop") else listed))

    monkeypatch.setattr(httpx, "request", request)
    monkeypatch.setattr(JobClient, "status", lambda client: SimpleNamespace(running=True))
    due = "Its savepoint /b/last is complete" if made else "only its last step.*`weir savepoints shop`"
    with pytest.raises(WeirError, match=f"job 'shop' is not stopped and goes on: {LOST}.*{due}"):
        client.wait_until_stopped(timeout_s=60)


@pytest.mark.promise("D6")
def test_a_job_that_ends_in_another_way_while_it_is_being_stopped_is_not_said_to_go_on(
    client: JobClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its supervisor was killed: "job 'shop' is not stopped and goes on: the job ended first"."""
    launch, looks = client.folder.read_launch(), count()
    assert launch is not None

    def status(client: JobClient) -> Any:
        if next(looks) == 2:
            client.folder.write_exit(MasterExit(Outcome.CANCELLED, "its supervisor has died"), launch)
        return SimpleNamespace(running=False)

    died = f"{ENDED_FIRST}: its supervisor has died"
    ending = StopRecord(drain=False, savepoint="", requested_at_ms=0, failed=True, reason=died)
    answering(monkeypatch, httpx.Response(200, content=msgspec.json.encode(ending)))
    monkeypatch.setattr(JobClient, "status", status)
    assert client.wait_until_stopped(timeout_s=60).outcome is Outcome.CANCELLED


@pytest.mark.promise("D6", "H8")
def test_a_job_whose_jobmaster_died_behind_a_drained_epoch_is_stopped_and_not_said_to_go_on(
    client: JobClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next JobMaster finds the drained epoch, and ends the job."""
    launch, looks = client.folder.read_launch(), count()
    assert launch is not None

    def status(client: JobClient) -> Any:
        if next(looks) == 2:
            client.folder.write_exit(MasterExit(Outcome.STOPPED, was_drained(7)), launch)
        return SimpleNamespace(running=False)

    lost = StopRecord(drain=True, savepoint="", requested_at_ms=0, failed=True, reason=LOST)
    answering(monkeypatch, httpx.Response(200, content=msgspec.json.encode(lost)))
    monkeypatch.setattr(JobClient, "status", status)
    ended = client.wait_until_stopped(timeout_s=60)
    assert ended.outcome is Outcome.STOPPED and client.how_again(ended) == "", "it is over for good"


@pytest.mark.promise("F1")
def test_a_job_that_lost_its_supervisor_is_to_be_resumed_and_one_that_was_cancelled_is_not(client: JobClient) -> None:
    launch, ended = client.folder.read_launch(), MasterExit(Outcome.CANCELLED, "its supervisor has died")
    assert launch is not None
    client.folder.want_running(launch, "cli")
    assert client.how_again(ended) == "; `weir resume shop` starts it again"
    client.folder.want_stopped_here("cli")
    assert client.how_again(ended) == "; `weir submit job:job --name shop` starts it again"
    failed = MasterExit(Outcome.FAILED, "a bug")
    assert client.how_again(failed) == "; mend the cause, then `weir submit job:job --name shop` starts it again"


@pytest.mark.parametrize(
    ("path", "params", "command"),
    [
        ("shop.job:job", {}, "weir submit shop.job:job"),
        ("jobs:shop", {"rate": "5"}, "weir submit jobs:shop --param …"),
        ("", {}, "weir submit"),  # it was started by a script
    ],
)
def test_the_command_that_starts_a_job_again_is_short_where_the_import_path_says_its_name(
    client: JobClient, path: str, params: dict[str, str], command: str
) -> None:
    launch = client.folder.read_launch()
    assert launch is not None
    client.folder.write_launch(msgspec.structs.replace(launch, path=path, params=params))
    assert client.how_again(MasterExit(Outcome.STOPPED, "behind epoch 7")) == f"; `{command}` starts it again"


@pytest.mark.promise("D7", "H8")
def test_a_rescale_of_which_the_next_jobmaster_knows_nothing_was_interrupted(
    client: JobClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The JobMaster was killed before its history was written: the command waited until its time was over."""
    answering(monkeypatch, httpx.Response(200, content=b"[]"))
    with pytest.raises(WeirError, match="rescale 1-1 of job 'shop' was interrupted: its JobMaster died"):
        client.wait_for_rescale("1-1", timeout_s=60)


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.observe.waiting.UNSEEN_S", 0.1)
    monkeypatch.setattr("engine.observe.waiting.FIRST_SIGN_S", 0.1)
