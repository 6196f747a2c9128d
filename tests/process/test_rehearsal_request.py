"""Goal: a rehearsal that is asked for over HTTP is carried out by a process of its own, and can be followed.

Topology: a JobMaster's HTTP server on loopback, in front of a job without Spark; real processes of rehearsals, which
load real code. What would start the new version and compare the output is replaced, by an entry point on the path.
Faults: code that is broken, a plan that refuses, a version that fails in the rehearsal; the process is killed.
Checks: what `GET /rehearsal` shows meanwhile and in the end; one rehearsal at a time; the job is not touched.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.core.errors import StoreError, WeirError
from engine.host import locks
from engine.host.last_rehearsal import DIED, last_rehearsal
from engine.host.rehearsal_request import AskedRehearsal, RehearsalPhase, RehearsalRequest, RehearsalStatus
from engine.process import rehearsal_request
from engine.process.rehearsal_request import Rehearsal, request_rehearsal
from engine.process.rehearsing import RehearsalFailed
from engine.protocol.failures import Raised
from tests.observe.test_http import DOCS, shape
from tests.process.test_upgrade_request import VERSIONS, Served

ENTRY_POINTS = "[weir.rehearsals]\nchecks = judges:judge\n"
JUDGES = """
import os, pathlib, time

class Judged:
    word = "failed"

    def fields(self):
        rows = [{"label": "changed", "app_id": "app-1", "old": "1", "new": "2"}]
        check = {"name": "out: changed", "verdict": "failed", "summary": "", "unexpected": 1, "rows": rows}
        return {"verdict": "failed", "job": "test", "epoch": 3, "checks": [check], "evaluated": 1, "expected": 1,
                "figures": {}, "data_docs": ""}

def judge(client, launch, checkpoints, say):
    say(f"{launch.path} runs beside {client.name} for {checkpoints}")
    pathlib.Path(os.environ["NOTE"]).write_text(str(os.getpid()))
    while not pathlib.Path(os.environ["NOTE"] + ".go").exists():
        time.sleep(0.05)
    return Judged()
"""


class Rehearsed(Served):
    """The same job, with rehearsals. The judge waits until `goes_on`."""

    route = "rehearsal"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        paths = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.environ = {**os.environ, "PYTHONPATH": paths, "NOTE": str(self.note)}
        self.request_rehearsal = partial(request_rehearsal, self.launch, self.environ)  # type: ignore[method-assign]

    def rehearsal(self) -> RehearsalStatus | None:
        return last_rehearsal(self.folder)

    def goes_on(self) -> None:
        Path(f"{self.note}.go").touch()

    def over(self, rehearsal: str) -> Any:
        self.until(lambda: not locks.is_held(self.folder.rehearsal_lock))
        shown = self.get()
        assert shown["id"] == rehearsal and shown["by"] == "http" and shown["old"] == "versions:first"
        assert self.folder.read_upgrade() is None and self.client.status().running
        return shown


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rehearsed]:
    (tmp_path / "versions.py").write_text(VERSIONS)
    (tmp_path / "judges.py").write_text(JUDGES)
    (tmp_path / "judges-1.dist-info").mkdir()
    (tmp_path / "judges-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: judges\nVersion: 1\n")
    (tmp_path / "judges-1.dist-info" / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)  # in a checkout its own entry points would be found first
    monkeypatch.delitem(sys.modules, "versions", raising=False)
    served = Rehearsed(tmp_path)
    yield served
    served.goes_on()
    served.server.stop()
    sys.modules.pop("versions", None)


@pytest.mark.promise("H7", "F1")
def test_a_rehearsal_is_followed_to_its_verdict_and_there_is_one_at_a_time(job: Rehearsed) -> None:
    rehearsal = job.asked(to="versions:second", checkpoints=3, params={})
    job.process_of_the_version_that_hangs()
    shown = job.get()
    assert (shown["id"], shown["phase"], shown["new"]) == (rehearsal, "rehearsing", "versions:second")
    assert shown["doing"] == "versions:second runs beside test for 3" and shown["result"] is None
    assert {row["fate"] for row in shown["plan"]["rows"]} == {"restored", "migrated"}
    second = job.send(to="versions:second")
    assert second.status_code == 409 and "is under way: GET /rehearsal shows it" in second.json()["error"]
    job.goes_on()
    shown = job.over(rehearsal)
    assert (shown["phase"], shown["doing"], shown["reason"]) == ("failed", "", "")
    examples = re.findall(r"^```json\n(.*?)^```$", DOCS.read_text(), re.MULTILINE | re.DOTALL)
    example = next(json.loads(text) for text in examples if '"verdict": "failed"' in text)
    assert shape(example) == shape(shown) and shape(example["plan"]["rows"]) == shape(shown["plan"]["rows"])
    assert shape(example["result"]) == shape(shown["result"])
    assert shape(example["result"]["checks"]) == shape(shown["result"]["checks"])
    assert f"rehearsal {rehearsal}: versions:second runs beside test for 3" in job.log
    assert job.over(job.asked(to="versions:second"))["phase"] == "failed", "the next one is not held up"


@pytest.mark.promise("H7", "F1")
def test_a_rehearsal_whose_plan_refuses_starts_nothing_and_shows_its_rows(job: Rehearsed) -> None:
    shown = job.over(job.asked(to="versions:renamed"))
    assert shown["phase"] == "refused" and "versions:renamed can't take over from test" in shown["reason"]
    row = next(row for row in shown["plan"]["rows"] if row["fate"] == "refused")
    assert row["uid"] == "traffic-per-app" and 'uid="traffic-per-app"' in row["fix"]
    assert not job.note.exists()


@pytest.mark.promise("H7", "F1")
@pytest.mark.parametrize(
    ("to", "says"),
    [("versions:broken", "KeyError: 'user'"), ("versions:third", "no 'third'"), ("versions:exits", DIED)],
)
def test_code_that_can_not_be_loaded_is_refused(job: Rehearsed, to: str, says: str) -> None:
    shown = job.over(job.asked(to=to))
    assert shown["phase"] == "refused" and says in shown["reason"] and shown["plan"] is None
    line = (shown["raised"] or {"line": ""})["line"]
    assert line.rpartition("/")[2] == ("versions.py:19" if to == "versions:broken" else "")


@pytest.mark.promise("H7", "F1")
def test_a_rehearsal_whose_process_is_killed_says_so_and_the_next_one_is_not_held_up(job: Rehearsed) -> None:
    rehearsal = job.asked(to="versions:second")
    os.kill(job.process_of_the_version_that_hangs(), signal.SIGKILL)
    shown = job.over(rehearsal)
    assert (shown["phase"], shown["reason"], shown["doing"]) == ("refused", DIED, "")
    job.goes_on()
    assert job.over(job.asked(to="versions:second"))["phase"] == "failed"


@pytest.mark.promise("H7")
@pytest.mark.parametrize(
    ("error", "phase", "reason"),
    [
        (RehearsalFailed("it failed", Raised("KeyError", "'user'")), "failed", "it failed"),
        (WeirError("a sink has a target"), "refused", "a sink has a target"),
        (StoreError("the store is full"), "could not run", "the store is full"),
        (ZeroDivisionError("no"), "could not run", "ZeroDivisionError: no"),
    ],
)
def test_a_rehearsal_that_ends_without_a_result_says_why(
    job: Rehearsed, monkeypatch: pytest.MonkeyPatch, error: Exception, phase: str, reason: str
) -> None:
    def judge(*_: Any) -> None:
        raise error

    monkeypatch.setattr(rehearsal_request, "find_judge", lambda: judge)
    status = RehearsalStatus(
        id="2e", old="versions:first", new="versions:second", checkpoints=5, by="http", began_ms=0, changed_ms=0
    )
    Rehearsal(job.client, RehearsalRequest(AskedRehearsal("versions:second"), status)).carry_out()
    shown = job.over("2e")
    assert (shown["phase"], shown["reason"], shown["result"]) == (phase, reason, None)
    assert (shown["raised"] or {}).get("type") == ("KeyError" if phase == "failed" else None)
    assert signal.alarm(0) == 0, "only the check has a limit: a rehearsal takes as long as its checkpoints"


def test_what_is_shown_of_a_rehearsal_has_none_of_its_parameters(job: Rehearsed) -> None:
    shown = job.over(job.asked(to="versions:third", params={"password": "canary"}))
    assert "canary" not in json.dumps(shown)


def test_a_process_that_can_not_be_started_is_a_refusal(job: Rehearsed, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError("cannot allocate memory")

    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", full)
        refused = job.send(to="versions:second")
    assert refused.status_code == 409 and "cannot allocate memory" in refused.json()["error"]
    assert job.get() is None and not locks.is_held(job.folder.rehearsal_lock)


def test_a_job_in_a_bucket_is_told_at_once_that_it_can_not_be_rehearsed(job: Rehearsed) -> None:
    launch = msgspec.structs.replace(job.launch, store="s3://bucket/jobs")
    job.request_rehearsal = partial(request_rehearsal, launch, {})  # type: ignore[method-assign]
    refused = job.send()
    assert refused.status_code == 409 and "can be rehearsed in a directory only" in refused.json()["error"]


def test_a_rehearsal_is_over_with_a_verdict_or_a_refusal() -> None:
    assert [phase.value for phase in RehearsalPhase if not phase.over] == ["checking", "rehearsing"]
