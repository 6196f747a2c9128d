"""Savepoints and stops over HTTP, without Spark: what is answered and refused, and that docs/rest.md says the same."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from engine.core.paths import JobPaths
from engine.jobmaster import events
from engine.jobmaster.actions import Outcome
from engine.jobmaster.master import Phase
from engine.observe.history import History
from engine.observe.http import make_app
from engine.observe.savepoints import LOST, SavepointRecords, SavepointState, with_store
from engine.snapshot.savepoints import Savepoint, SavepointFolder
from engine.store.below import Below
from engine.store.directory import DirectoryStore
from engine.store.memory import MemoryStore
from tests.observe.answering import NAME, AnsweringRun
from tests.observe.test_http import TOKEN, documented, shape


def send(run: AnsweringRun, method: str, path: str, body: Any = None) -> httpx.Response:
    async def call() -> httpx.Response:
        transport = httpx.ASGITransport(make_app("secret", run))
        async with httpx.AsyncClient(transport=transport, base_url="http://job") as client:
            return await client.request(method, path, headers=TOKEN, json=body)

    return asyncio.run(call())


@pytest.fixture
def run(tmp_path: Path) -> AnsweringRun:
    made = AnsweringRun(tmp_path)
    made.run(until=lambda: made.master.phase is Phase.RUNNING)
    return made


def complete(run: AnsweringRun, name: str) -> None:
    def done() -> bool:
        return any(one.savepoint == name and one.state != "pending" for one in run.savepoints.newest_first)

    run.run(until=done)


@pytest.mark.promise("F1", "D5")
def test_a_savepoint_is_asked_for_and_found_as_it_is_documented(run: AnsweringRun) -> None:
    taken = send(run, "POST", "/savepoints", {"name": "first"})
    assert taken.status_code == 202 and taken.json().keys() == {"savepoint", "checkpoint"}
    assert send(run, "GET", "/savepoints/first").json()["state"] == "pending"
    complete(run, "first")
    found = send(run, "GET", "/savepoints/first").json()
    assert found["state"] == "completed" and found["place"].endswith("savepoints/first")
    answers = {
        "POST /savepoints": taken.json(),
        "GET /savepoints/{name}": found,
        "GET /savepoints": send(run, "GET", "/savepoints").json(),
    }
    for route, answer in answers.items():
        assert shape(json.loads(documented()[route])) == shape(answer), route


@pytest.mark.promise("F1", "D6")
def test_a_stop_is_asked_for_and_shown_as_it_is_documented(run: AnsweringRun) -> None:
    assert send(run, "GET", "/stop").json() is None
    asked = send(run, "POST", "/stop", {"savepoint": {"name": "last", "to": None}})
    assert (asked.status_code, asked.json()) == (202, {"stopping": True, "savepoint": "last"})
    shown = send(run, "GET", "/stop").json()
    assert (shown["savepoint"], shown["failed"]) == ("last", False)
    for route, answer in (("POST /stop", asked.json()), ("GET /stop", shown)):
        assert shape(json.loads(documented()[route])) == shape(answer), route
    again = send(run, "POST", "/stop")
    assert again.status_code == 409 and "is being stopped already" in again.json()["error"]
    assert send(run, "POST", "/checkpoints").status_code == 409
    run.run()
    assert run.ended is not None and run.ended.outcome is Outcome.STOPPED


@pytest.mark.promise("D5")
def test_a_savepoint_without_a_name_is_called_by_date_and_time(run: AnsweringRun) -> None:
    name = send(run, "POST", "/savepoints").json()["savepoint"]
    assert len(name) == 24 and name[10] == "T" and name.endswith("Z")
    complete(run, name)
    assert send(run, "GET", f"/savepoints/{name}").json()["state"] == "completed"


@pytest.mark.promise("D5")
@pytest.mark.parametrize(
    ("path", "body", "code", "says"),
    [
        ("/savepoints", {"name": "../../etc"}, 400, "can't be the name of a savepoint"),
        ("/savepoints", {"name": ""}, 400, "'' can't be the name of a savepoint: write up to 100 letters"),
        ("/savepoints", {"to": ""}, 400, '"to" of a savepoint is empty: write a whole path or an address'),
        ("/savepoints", {"name": 7}, 400, '"name" of a savepoint is a text, or null'),
        ("/savepoints", {"to": "relative"}, 400, "write a whole path or an address"),
        ("/savepoints", {"to": "ftp://host"}, 409, "is no address of a folder"),
        ("/savepoints", ["first"], 400, "the body is no JSON object"),
        ("/savepoints", {"nme": "first"}, 400, 'there is no field "nme" here; there are: name, to'),
        ("/stop", {"savepont": {}}, 400, 'there is no field "savepont" here; there are: drain, savepoint'),
        ("/stop", {"savepoint": {"nme": "x"}}, 400, 'there is no field "nme" here; there are: name, to'),
        ("/stop", {"drain": "yes"}, 400, '"drain" is true or false'),
        ("/stop", {"savepoint": "last"}, 400, 'write {"savepoint": {"name"'),
    ],
)
def test_a_request_that_is_not_understood_says_what_to_write(
    run: AnsweringRun, path: str, body: Any, code: int, says: str
) -> None:
    answer = send(run, "POST", path, body)
    assert answer.status_code == code and says in answer.json()["error"]
    assert run.run().ended is not None and run.ended.outcome is Outcome.FINISHED  # type: ignore[union-attr]


@pytest.mark.promise("D5")
def test_a_place_that_can_not_be_written_or_holds_a_savepoint_is_refused_before_anything_is_triggered(
    run: AnsweringRun, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    refused = send(run, "POST", "/savepoints", {"name": "a", "to": str(tmp_path / "file")})
    assert refused.status_code == 409 and "can't write" in refused.json()["error"]
    assert send(run, "POST", "/savepoints", {"name": "a", "to": str(tmp_path)}).status_code == 202
    complete(run, "a")
    taken = send(run, "POST", "/savepoints", {"name": "a", "to": str(tmp_path)})
    assert taken.status_code == 409 and "already holds a savepoint" in taken.json()["error"]
    assert [one.savepoint for one in run.savepoints.newest_first] == ["a"]


@pytest.mark.promise("F1", "D5")
def test_a_savepoint_is_deleted_as_it_is_documented_and_then_it_is_gone(run: AnsweringRun, tmp_path: Path) -> None:
    for name in ("first", "second"):
        send(run, "POST", "/savepoints", {"name": name, "to": str(tmp_path)})
        complete(run, name)
    deleted = send(run, "DELETE", "/savepoints/first")
    assert deleted.status_code == 200 and deleted.json() == {"deleted": "first", "place": str(tmp_path / "first")}
    assert shape(json.loads(documented()["DELETE /savepoints/{name}"])) == shape(deleted.json())
    assert not (tmp_path / "first").exists()
    assert [one["state"] for one in send(run, "GET", "/savepoints").json()] == ["completed", "gone"]


@pytest.mark.promise("F1", "D5")
def test_only_a_savepoint_that_is_there_can_be_deleted(run: AnsweringRun, tmp_path: Path) -> None:
    assert send(run, "DELETE", "/savepoints/nobody").status_code == 404
    send(run, "POST", "/savepoints", {"name": "first", "to": str(tmp_path)})
    pending = send(run, "DELETE", "/savepoints/first")
    assert pending.status_code == 409 and "'first' is pending, so it was not deleted" in pending.json()["error"]
    complete(run, "first")
    assert send(run, "GET", "/savepoints/first").json()["state"] == "completed"
    assert send(run, "DELETE", "/savepoints/first").status_code == 200
    gone = send(run, "DELETE", "/savepoints/first")
    assert gone.status_code == 409 and "is gone" in gone.json()["error"]


def test_an_unknown_savepoint_is_404(run: AnsweringRun) -> None:
    answer = send(run, "GET", "/savepoints/nobody")
    assert answer.status_code == 404 and "GET /savepoints lists them" in answer.json()["error"]


@pytest.mark.promise("D5", "F2")
def test_savepoints_are_remembered_by_the_next_jobmaster_and_those_under_way_have_failed(
    run: AnsweringRun, tmp_path: Path
) -> None:
    send(run, "POST", "/savepoints", {"name": "first", "to": str(tmp_path)})
    complete(run, "first")
    send(run, "POST", "/savepoints", {"name": "second", "to": str(tmp_path)})
    records = SavepointRecords(History(tmp_path, NAME).savepoints())
    records.settle(LOST)
    second, first = records.newest_first
    assert (first.savepoint, first.state, first.place) == ("first", SavepointState.COMPLETED, str(tmp_path / "first"))
    assert (second.savepoint, second.state, second.reason) == ("second", SavepointState.FAILED, LOST)
    shown = run.list_savepoints([second, first])
    assert [one.state for one in shown] == [SavepointState.FAILED, SavepointState.COMPLETED]


@pytest.mark.promise("D5")
def test_what_exists_counts_more_than_what_was_noted(run: AnsweringRun, tmp_path: Path) -> None:
    """A JobMaster may die after it made a savepoint and before it noted that; a person may move one away."""
    for name, to in (("here", None), ("away", str(tmp_path))):
        send(run, "POST", "/savepoints", {"name": name, "to": to})
        complete(run, name)
    (tmp_path / "away").rename(tmp_path / "moved")
    away, here = run.savepoints.newest_first
    here.state = SavepointState.FAILED
    found = {(one.savepoint, one.state) for one in run.list_savepoints([away, here])}
    assert {("away", SavepointState.GONE), ("here", SavepointState.COMPLETED)} <= found


@pytest.mark.promise("D5")
@pytest.mark.parametrize(
    ("content", "state", "reason"),
    [
        (None, "gone", ""),
        ("{", "completed", r"first/savepoint.json is damaged .*\. Bring it back from a backup"),
        (
            '{"format": 9}',
            "completed",
            "has format 9, and this version of Weir reads 1: use the version that wrote it$",
        ),
    ],
)
def test_a_savepoint_whose_delete_died_is_gone_and_one_that_is_damaged_is_not(
    run: AnsweringRun, content: str | None, state: str, reason: str
) -> None:
    send(run, "POST", "/savepoints", {"name": "first"})
    complete(run, "first")
    head = f"{run.paths.savepoint('first')}/savepoint.json"
    run.store.delete(head)
    if content is not None:
        run.store.write(head, content.encode())
    shown = send(run, "GET", "/savepoints/first").json()
    assert shown["state"] == state
    assert re.search(reason, shown["reason"]) and bool(shown["reason"]) is bool(reason), "it does not restore"


@pytest.mark.promise("D5")
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_savepoint_that_was_deleted_and_taken_again_under_its_name_is_there_once(
    run: AnsweringRun, tmp_path: Path, elsewhere: bool
) -> None:
    """Who deletes the oldest of too many would otherwise delete the new one for the old one."""
    place = DirectoryStore(tmp_path / "to/first") if elsewhere else run.store.below(run.paths.savepoint("first"))
    request = {"name": "first", "to": str(tmp_path / "to") if elsewhere else None}
    send(run, "POST", "/savepoints", request)
    complete(run, "first")
    SavepointFolder(place).delete()
    send(run, "POST", "/savepoints", request)
    run.run(until=lambda: run.savepoints.newest_first[0].state == "completed")
    assert [one["state"] for one in send(run, "GET", "/savepoints").json()] == ["completed", "gone"]


@pytest.mark.promise("D5", "F1")
@pytest.mark.parametrize("other", [{"job": "another"}, {"checkpoint": 4711}], ids=["of another job", "of another time"])
def test_a_savepoint_in_the_place_of_one_that_is_gone_is_not_taken_for_it_and_not_deleted(
    run: AnsweringRun, tmp_path: Path, other: dict[str, Any]
) -> None:
    """Two jobs put savepoints of one name into one folder, the second after somebody deleted that of the first."""
    send(run, "POST", "/savepoints", {"name": "nightly", "to": str(tmp_path)})
    complete(run, "nightly")
    head = tmp_path / "nightly" / "savepoint.json"
    made = msgspec.json.decode(head.read_bytes(), type=Savepoint)
    head.write_bytes(msgspec.json.encode(msgspec.structs.replace(made, **other).sealed()))
    refused = send(run, "DELETE", "/savepoints/nightly")
    assert refused.status_code == 409 and "is gone" in refused.json()["error"]
    assert head.exists()
    assert [one["state"] for one in send(run, "GET", "/savepoints").json()] == ["gone"]


@pytest.mark.promise("D5")
def test_a_savepoint_that_is_made_and_not_told_yet_is_under_way_and_shown_once(run: AnsweringRun) -> None:
    """A bug: it was shown twice, and whoever waited for it took the one without a duration for complete."""
    send(run, "POST", "/savepoints", {"name": "first"})
    complete(run, "first")
    (made,) = run.savepoints.newest_first
    pending = msgspec.structs.replace(made, state=SavepointState.PENDING, duration_ms=None)
    assert [one.state for one in run.list_savepoints([pending])] == [SavepointState.PENDING]


@pytest.mark.promise("F1")
def test_asking_for_one_savepoint_reads_no_other(
    run: AnsweringRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Who waits for a savepoint asks again and again; a job may have hundreds."""
    monkeypatch.setattr(AnsweringRun, "list_savepoints", lambda *_: pytest.fail("all savepoints are read"))
    send(run, "POST", "/savepoints", {"name": "first", "to": str(tmp_path)})
    read, heads = SavepointFolder.head, []
    monkeypatch.setattr(SavepointFolder, "head", lambda folder: heads.append(folder) or read(folder))
    assert send(run, "GET", "/savepoints/first").json()["state"] == "pending" and not heads
    complete(run, "first")
    assert send(run, "GET", "/savepoints/first").json()["state"] == "completed"
    shutil.rmtree(tmp_path / "first")
    assert send(run, "GET", "/savepoints/first").json()["state"] == "gone"


@pytest.mark.promise("D5")
def test_a_savepoint_elsewhere_that_was_made_in_the_moment_of_the_death_is_found(
    run: AnsweringRun, tmp_path: Path
) -> None:
    send(run, "POST", "/savepoints", {"name": "made", "to": str(tmp_path)})
    complete(run, "made")
    (made,) = run.savepoints.newest_first
    lost = msgspec.structs.replace(made, state=SavepointState.FAILED, bytes=None, epoch=None, reason=LOST)
    (found,) = run.list_savepoints([lost])
    assert (found.state, found.bytes, found.epoch) == (SavepointState.COMPLETED, made.bytes, made.epoch)
    another = msgspec.structs.replace(lost, checkpoint=(made.checkpoint or 0) + 1)
    (still,) = run.list_savepoints([another])  # the place holds an earlier savepoint
    assert still.state is SavepointState.FAILED


def test_a_stop_that_failed_stays_on_record() -> None:
    records = SavepointRecords([events.Stopping(True, "last", at_ms=5), events.StopFailed("no space", at_ms=9)])
    assert records.stop is not None and (records.stop.failed, records.stop.reason) == (True, "no space")


@pytest.mark.promise("D6")
def test_a_stop_that_ended_the_job_is_not_shown_as_failed_by_its_next_jobmaster(tmp_path: Path) -> None:
    history = History(str(tmp_path), "test")
    for event in (events.Stopping(False, ""), events.Stopped("stopped", "behind epoch 5")):
        history.append(event)
    records = SavepointRecords(history.savepoints())
    records.settle(LOST)
    assert records.stop is not None
    assert (records.stop.failed, records.stop.doing) == (False, "the job has ended: behind epoch 5")
    assert records.stop.ended and not records.stop.under_way


@pytest.mark.promise("D5", "F1")
def test_what_an_earlier_jobmaster_left_is_not_said_to_have_ended_with_a_later_one() -> None:
    """A savepoint of a killed JobMaster was listed as "the job ended first: cancelled", hours later."""
    triggered = events.SavepointTriggered("first", "/s/first", 3, "suspend", at_ms=1, generation=1)
    stopping = events.Stopping(False, "first", at_ms=1, generation=1)
    later = events.SavepointTriggered("second", "/s/second", 9, "no", at_ms=5, generation=2)
    cancelled = events.Stopped(Outcome.CANCELLED, "cancelled", at_ms=9, generation=2)
    records = SavepointRecords([stopping, triggered, later, cancelled])
    said = {record.savepoint: record.reason for record in records.newest_first}
    assert said == {"first": LOST, "second": "the job ended first: cancelled"}
    assert records.stop is not None and (records.stop.failed, records.stop.reason) == (True, LOST)


@pytest.mark.promise("D6", "F1")
def test_a_drain_whose_jobmaster_died_behind_its_epoch_has_ended_the_job() -> None:
    stopping = events.Stopping(True, "", at_ms=1, generation=1)
    found = events.Stopped(Outcome.STOPPED, "it was drained in epoch 5", at_ms=9, generation=2)
    stop = SavepointRecords([stopping, found]).stop
    assert stop is not None and stop.ended and not stop.failed and stop.reason == ""


@pytest.mark.promise("D5", "F1")
def test_a_savepoint_that_was_made_before_its_jobmaster_died_is_listed_once() -> None:
    """It was listed twice: as failed, because its JobMaster died, and as completed, because it is there."""
    store, paths = MemoryStore(), JobPaths("job")
    folder = SavepointFolder(Below(store, paths.savepoint("kept")))
    head = Savepoint(
        name="kept",
        job="job",
        job_id="1",
        epoch=4,
        checkpoint=7,
        stopped=False,
        created_ms=1,
        state_bytes=9,
        manifest="m",
        checksum="",
        inputs={},
    )
    folder.store.create("savepoint.json", msgspec.json.encode(head.sealed()))
    triggered = events.SavepointTriggered("kept", folder.place, 7, "no", at_ms=1, generation=1)
    known = SavepointRecords([triggered])
    known.settle(LOST)
    (only,) = with_store(known.newest_first, store, paths, store.below)
    assert (only.state, only.epoch, only.reason) == (SavepointState.COMPLETED, 4, "")
