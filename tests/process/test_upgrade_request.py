"""Goal: an upgrade that is asked for over HTTP is checked and carried out by a process of its own, and can be followed.

Topology: a JobMaster's HTTP server on loopback, in front of a job without Spark; real processes of upgrades, which load
real code. The running version declines to stop, so no other version is ever started.
Faults: code that is broken, ends its process, or hangs; the process is killed, before and after the upgrade is begun.
Checks: what `GET /upgrade` shows in the end; nothing is begun if anything is refused; one upgrade at a time.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from engine.connectors.table import TableSink
from engine.core.errors import WeirError
from engine.core.paths import JobPaths
from engine.graph.description import describe
from engine.graph.upgrade_plan import UpgradePlan
from engine.host import locks
from engine.host.last_upgrade import DIED, last_upgrade
from engine.host.run_folder import MasterAddress, RunFolder
from engine.host.upgrade_record import UpgradeStatus
from engine.host.upgrade_request import AskedUpgrade, UpgradeRequest
from engine.jobmaster.master import Phase as MasterPhase
from engine.jobmaster.savepoints import Refusal
from engine.observe.client import JobClient
from engine.observe.http import RestServer
from engine.process import upgrading
from engine.process.loading import load
from engine.process.upgrade_request import carry_out, request_upgrade
from engine.process.upgrading import NewVersion
from engine.protocol.ids import AttemptId, SubtaskId
from engine.protocol.job_description import JobDescription
from engine.protocol.manifest import Manifest, StateFile, SubtaskState
from engine.protocol.savepoint import StopRequest
from engine.protocol.upgrading import Phase
from engine.snapshot.epoch_log import EpochLog
from engine.store.directory import DirectoryStore
from tests.observe.answering import NAME, AnsweringRun
from tests.observe.test_http import DOCS, shape
from tests.process.test_upgrading import World

VERSIONS = """
from engine.connectors.generator import GeneratorSource
from engine.connectors.table import TableSink

def build(env, *columns, operator="traffic-per-app"):
    views = env.from_source(GeneratorSource(lambda n: {}), "app_id string, bytes long, user string", uid="views")
    views.select(*columns).key_by("app_id").sum("bytes", uid=operator).sink_to(TableSink("traffic"), uid="out")

def first(env):
    build(env, "app_id", "bytes")

def second(env):
    build(env, "app_id", "bytes", "user")

def renamed(env):
    build(env, "app_id", "bytes", operator="traffic")

def broken(env):
    {}["user"]

def exits(env):
    import os
    os._exit(3)

def hangs(env):
    import os, pathlib, time
    pathlib.Path(os.environ["NOTE"]).write_text(str(os.getpid()))
    time.sleep(600)
"""


class Served(AnsweringRun):
    """A running job with one epoch on disk, that answers over HTTP. It declines to stop."""

    route = "upgrade"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.run(until=lambda: self.master.phase is MasterPhase.RUNNING)
        self.launch = msgspec.structs.replace(self.launch, path="versions:first", id="0a")
        self.folder = RunFolder(folder, NAME)
        self.folder.write_launch(self.launch)
        self.note = folder / "note"
        paths = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
        environ = {**os.environ, "PYTHONPATH": paths, "NOTE": str(self.note)}
        self.request_upgrade = partial(request_upgrade, self.launch, environ)  # type: ignore[method-assign]
        self.client = JobClient(str(folder), NAME)
        self._publish(folder)
        self.server = RestServer("127.0.0.1", "secret", self)
        self.server.start()
        self.folder.write_address(MasterAddress(self.server.url, os.getpid(), 1, "secret"))

    def _publish(self, folder: Path) -> None:
        log = EpochLog(DirectoryStore(folder), JobPaths(NAME))
        claimed = log.claim("me")
        assert claimed is not None
        graph = load(self.launch)
        files = [StateFile("traffic-per-app", "reduced", "x", 1, "0", 1)]
        state = SubtaskState(SubtaskId("views", 0), files, {"views": {"splits": {}}})
        TableSink("traffic").committer(log.store, log.paths).claim(claimed.record.job_id, 1)
        description = describe(graph, JobDescription(), 1)
        manifest = Manifest(NAME, 1, 1, AttemptId(1, 1), 0, graph.max_parallelism, [state], [], [], {}, description)
        log.publish(claimed.record, log.write_manifest(manifest))

    def upgrade(self) -> UpgradeStatus | None:
        return self.client.upgrade()

    def stop_job(self, request: StopRequest) -> Refusal | None:
        return Refusal("there is no space for the savepoint")

    # --- what a user of HTTP does ---

    def send(self, **body: Any) -> httpx.Response:
        headers = {"authorization": "Bearer secret"}
        return httpx.post(f"{self.server.url}/{self.route}", headers=headers, json=body, timeout=60)

    def get(self) -> Any:
        answer = httpx.get(f"{self.server.url}/{self.route}", headers={"authorization": "Bearer secret"}, timeout=60)
        assert answer.status_code == 200
        return answer.json()

    def asked(self, **body: Any) -> str:
        answer = self.send(**body)
        assert answer.status_code == 202 and answer.json()["see"] == f"/{self.route}", answer.text
        return str(answer.json()[self.route])

    def until(self, condition: Callable[[], Any]) -> None:
        deadline = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < deadline, (self.get(), self.log)
            time.sleep(0.05)

    def over(self, upgrade: str) -> Any:
        """Waits until the process of the upgrade has ended, and returns what is shown of the upgrade."""
        self.until(lambda: not locks.is_held(self.folder.upgrade_lock))
        shown = self.get()
        assert shown["id"] == upgrade and shown["by"] == "http" and shown["old"] == "versions:first"
        return shown

    @property
    def log(self) -> str:
        return self.folder.log_file.read_text()

    def process_of_the_version_that_hangs(self) -> int:
        self.until(lambda: self.note.exists() and self.note.read_text())
        return int(self.note.read_text())


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    (tmp_path / "versions.py").write_text(VERSIONS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "versions", raising=False)
    served = Served(tmp_path)
    yield served
    served.server.stop()
    sys.modules.pop("versions", None)


@pytest.mark.promise("D8", "F1")
def test_a_dry_run_shows_its_plan_and_begins_nothing(job: Served) -> None:
    shown = job.over(job.asked(to="versions:second", dry_run=True))
    assert (shown["phase"], shown["new"], shown["cut"], shown["reason"]) == ("planned", "versions:second", None, "")
    fates = {row["uid"]: row["fate"] for row in shown["plan"]["rows"]}
    assert fates == {"views": "restored", "traffic-per-app": "migrated", "out": "migrated"}
    assert job.folder.read_upgrade() is None
    assert job.get() == shown


@pytest.mark.promise("D8", "F1")
def test_an_upgrade_whose_plan_refuses_is_refused_with_its_rows(job: Served) -> None:
    shown = job.over(job.asked(to="versions:renamed"))
    assert shown["phase"] == "refused" and "versions:renamed can't take over from test" in shown["reason"]
    row = next(row for row in shown["plan"]["rows"] if row["fate"] == "refused")
    assert row["uid"] == "traffic-per-app" and 'uid="traffic-per-app"' in row["fix"]
    assert job.folder.read_upgrade() is None
    assert f"upgrade {shown['id']}: refused: versions:renamed" in job.log
    examples = re.findall(r"^```json\n(.*?)^```$", DOCS.read_text(), re.MULTILINE | re.DOTALL)
    example = next(json.loads(text) for text in examples if '"phase": "refused"' in text)
    assert shape(example) == shape(shown) and shape(example["plan"]["rows"]) == shape(shown["plan"]["rows"])
    dropped = job.over(job.asked(to="versions:renamed", allow_non_restored_state=True, dry_run=True))
    assert dropped["phase"] == "planned"


@pytest.mark.promise("D8", "F1")
@pytest.mark.parametrize(
    ("to", "says"),
    [
        ("versions:broken", "KeyError: 'user'"),
        ("versions:third", "versions has no 'third'"),
        ("nowhere:job", "there is no module 'nowhere'"),
        ("versions:exits", DIED),
    ],
)
def test_code_that_can_not_be_loaded_is_refused_and_the_job_runs_on(job: Served, to: str, says: str) -> None:
    shown = job.over(job.asked(to=to))
    assert shown["phase"] == "refused" and says in shown["reason"] and shown["plan"] is None
    line = (shown["raised"] or {"line": ""})["line"]
    assert line.rpartition("/")[2] == ("versions.py:19" if to == "versions:broken" else "")
    assert job.folder.read_upgrade() is None and job.client.status().running


@pytest.mark.promise("D8", "F1")
def test_there_is_one_upgrade_at_a_time_until_its_process_dies(job: Served) -> None:
    first = job.asked(to="versions:hangs")
    process = job.process_of_the_version_that_hangs()
    shown = job.get()
    assert (shown["id"], shown["phase"], shown["new"]) == (first, "checking", "versions:hangs")
    second = job.send(to="versions:second")
    assert second.status_code == 409 and "is under way: GET /upgrade shows it" in second.json()["error"]
    with pytest.raises(WeirError, match="another command upgrades job 'test'"), upgrading.only_one(job.client):
        pass
    os.kill(process, signal.SIGKILL)
    shown = job.over(first)
    assert (shown["phase"], shown["reason"]) == ("refused", DIED)
    assert job.over(job.asked(to="versions:second", dry_run=True))["phase"] == "planned"


def test_a_version_that_takes_too_long_to_load_is_given_up(job: Served) -> None:
    asked = UpgradeRequest(
        id="1f", asked=AskedUpgrade("versions:hangs"), old="versions:first", by="http", began_ms=0, changed_ms=0
    )
    job.folder.write_upgrade_request(asked)
    descriptor = locks.take(job.folder.upgrade_lock)
    assert descriptor is not None
    script = "from engine.process import asked, upgrade_request as module; asked.CHECK_S = 3; module.main()"
    paths = os.pathsep.join([job.client.store, *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.run(
        [sys.executable, "-c", script, job.client.store, NAME, str(descriptor)],
        env={**os.environ, "PYTHONPATH": paths, "NOTE": str(job.note)},
        pass_fds=[descriptor],
        timeout=120,
        check=False,
    )
    os.close(descriptor)
    assert process.returncode == -signal.SIGALRM
    assert job.over("1f")["reason"] == DIED


@pytest.mark.promise("D8", "F1")
def test_the_upgrade_has_the_id_that_was_answered_and_asks_the_old_version_to_stop(job: Served) -> None:
    upgrade = job.asked(to="versions:second", params={}, parallelism=2)
    shown = job.over(upgrade)
    assert (shown["phase"], shown["savepoint"], shown["plan"]) == ("kept", f"upgrade-{upgrade}", None)
    assert shown["reason"] == "the old version runs on: there is no space for the savepoint"
    record = job.folder.read_upgrade()
    assert record is not None and (record.id, record.new.path, record.new.parallelism) == (upgrade, shown["new"], 2)
    assert f"upgrade {upgrade}: stopping the old version with a savepoint" in job.log
    assert f"upgrade {upgrade}: the upgrade of test to versions:second was given up" in job.log
    assert job.client.upgrade() == msgspec.convert(shown, UpgradeStatus)


@pytest.mark.promise("D8", "F1")
def test_an_upgrade_that_was_interrupted_is_carried_on_by_the_next_request(job: Served) -> None:
    new = upgrading.new_launch(job.client, NewVersion("versions:second"))
    begun = upgrading.begin(job.client, new, "http", "1f")
    for other in ({"to": "versions:renamed"}, {"dry_run": True}):
        refused = job.send(**other)
        assert refused.status_code == 409 and "is not done (stopping)" in refused.json()["error"]
    assert job.get()["phase"] == "stopping"
    assert job.asked() == begun.id
    shown = job.over(begun.id)
    assert shown["phase"] == "kept" and "no space" in shown["reason"] and shown["new"] == "versions:second"


def test_a_command_that_begins_another_upgrade_replaces_what_was_refused(job: Served) -> None:
    assert job.over(job.asked(to="nowhere:job"))["phase"] == "refused"
    new = upgrading.new_launch(job.client, NewVersion("versions:second"))
    begun = upgrading.begin(job.client, new, "cli")
    shown = job.get()
    assert (shown["id"], shown["phase"], shown["by"]) == (begun.id, "stopping", "cli")


def test_a_process_that_can_not_be_started_is_a_refusal_and_the_next_request_is_not_held_up(
    job: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError("cannot allocate memory")

    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", full)
        refused = job.send(to="versions:second")
    assert refused.status_code == 409 and "cannot allocate memory" in refused.json()["error"]
    assert job.get() is None
    assert job.over(job.asked(to="versions:second", dry_run=True))["phase"] == "planned"


@pytest.mark.promise("D8", "F1")
def test_a_version_that_passes_its_check_replaces_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, with a job whose starts are only written down."""
    world = World(tmp_path)
    world.on_start["job:v2"] = "publishes"
    monkeypatch.setattr(upgrading, "start_detached", world.start)
    monkeypatch.setattr(upgrading, "LOOK_EVERY_S", 0.001)
    monkeypatch.setattr(upgrading, "new_launch", lambda client, version: world.record.new)
    monkeypatch.setattr(upgrading, "plan", lambda client, launch: UpgradePlan("shop", 1, []))
    monkeypatch.setattr(world, "alive", lambda: True, raising=False)
    request = UpgradeRequest(id="2e", asked=AskedUpgrade("job:v2"), old="job:v1", by="http", began_ms=0, changed_ms=0)
    world.folder.write_upgrade_request(request)
    said: list[str] = []
    record = carry_out(world, request, said.append)  # type: ignore[arg-type]
    assert record is not None and (record.id, record.progress.phase, record.by) == ("2e", Phase.UPGRADED, "http")
    assert world.started == ["job:v2"] and world.asked == ["upgrade-2e"]
    assert said[-1] == "the old version has stopped with epoch 2; starting job:v2"
    assert last_upgrade(world.folder) == record.status and world.folder.read_upgrade_request() is None
