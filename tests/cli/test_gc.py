"""`weir gc` on the folders of jobs: what it prints, what it deletes, and what it leaves alone."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from engine.api import StreamEnvironment
from engine.cli.main import app
from engine.connectors.table import TableSink
from engine.core.paths import JobPaths
from engine.host.launch import MasterLaunch
from engine.host.run_folder import MasterExit, RunFolder
from engine.jobmaster.actions import Outcome
from engine.jobmaster.master import Phase
from engine.protocol.epoch_records import Created, fence_after
from engine.protocol.savepoint import SavepointRequest, StopRequest
from engine.snapshot.epoch_log import EpochLog
from engine.snapshot.savepoints import SavepointFolder
from engine.store.directory import DirectoryStore
from engine.testing import ListSource, LocalRun

PATHS = JobPaths("pageviews")
LEFT = "pageviews/gen-0001/chk-0000001/1/pv.0.panes.arrow"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with one job, whose first JobMaster left a checkpoint, and whose second one has begun another."""
    log = EpochLog(DirectoryStore(tmp_path), PATHS)
    first = fence_after(None, "a")
    log.append(first)
    log.append(fence_after(first, "b"))
    for path in (LEFT, "pageviews/gen-0002/chk-0000002/1/pv.0.panes.arrow"):
        log.store.write(path, b"state")
    (tmp_path / "pageviews" / "run").mkdir(parents=True)
    (tmp_path / "pageviews" / "run" / "launch.json").write_text("{}")
    return tmp_path


def weir(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["gc", *arguments], env={"COLUMNS": "80"})
    return result.exit_code, result.output


@pytest.mark.promise("C4", "F1")
def test_gc_says_what_it_would_delete_and_then_deletes_only_that(store: Path) -> None:
    before = sorted(DirectoryStore(store).list(""))
    code, said = weir("pageviews", "--dry-run", "--store", str(store))
    assert code == 0 and "1 files of 1 jobs would be deleted, 5 bytes" in said
    assert "pageviews/gen-0001/chk-0000001" in said and "a checkpoint that no epoch needs" in said
    assert max(map(len, said.splitlines())) <= 80
    assert sorted(DirectoryStore(store).list("")) == before
    code, said = weir("--store", str(store))
    assert code == 0 and "1 files of 1 jobs deleted, 5 bytes" in said
    assert sorted(DirectoryStore(store).list("")) == [path for path in before if path != LEFT]


@pytest.mark.promise("D6", "F1")
@pytest.mark.parametrize("drain", [True, False])
def test_gc_completes_the_savepoint_of_a_job_that_has_ended_and_never_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drain: bool
) -> None:
    """The store did not answer at its last step. No later JobMaster comes that would complete it."""

    class Begun:
        store = DirectoryStore(tmp_path)
        nonce = "new"

    create = DirectoryStore.create

    def unanswered(self: DirectoryStore, path: str, data: bytes) -> Created:
        return Created.UNKNOWN if path.endswith("savepoint.json") else create(self, path, data)

    monkeypatch.setattr(DirectoryStore, "create", unanswered)
    run = LocalRun(saved, 2, {}, Begun())  # type: ignore[arg-type]
    run.run(until=lambda: run.master.phase is Phase.RUNNING)
    asked = SavepointRequest("last")
    stop, trigger = run.master.stop, run.master.trigger_savepoint
    run.carry_out((stop(StopRequest(True, asked), run.now_ms()) if drain else trigger(asked, run.now_ms()))[1])
    run.run()
    monkeypatch.setattr(DirectoryStore, "create", create)
    folder = RunFolder(tmp_path, "test")
    launch = MasterLaunch(path="tests.cli.test_gc:saved", name="test", store=str(tmp_path), max_slots=4)
    folder.prepare()
    folder.begin(launch)
    assert "completed" not in weir("test", "--store", str(tmp_path))[1]  # its JobMaster may still do it
    folder.write_exit(MasterExit(Outcome.STOPPED, "drained"), launch)
    assert "would be completed" in weir("test", "--dry-run", "--store", str(tmp_path))[1]
    code, said = weir("test", "--store", str(tmp_path))
    assert code == 0 and "completed" in said
    savepoint = SavepointFolder(DirectoryStore(tmp_path / "test/savepoints/last"))
    assert savepoint.head().name == "last" and savepoint.manifest().drained is drain
    assert "completed" not in weir("test", "--store", str(tmp_path))[1]


def saved(env: StreamEnvironment) -> None:
    env.enable_checkpointing(interval=4)
    views = env.from_source(
        ListSource([{"app": f"a{n % 3}", "n": n} for n in range(60)]), "app string, n long", uid="v"
    )
    views.key_by("app").sum("n", uid="sum").sink_to(TableSink("sums"), uid="out")


def test_gc_as_json(store: Path) -> None:
    code, said = weir("--dry-run", "--json", "--store", str(store))
    assert code == 0
    (found,) = json.loads(said)
    assert found["job"] == "pageviews" and found["dry_run"] is True and found["problems"] == []
    assert [one["path"] for one in found["collected"]] == ["pageviews/gen-0001/chk-0000001"]


def test_gc_deletes_nothing_of_a_job_whose_log_is_damaged_and_says_which_record_it_is(store: Path) -> None:
    record = store / PATHS.log_record(1)
    record.write_bytes(msgspec.json.encode({"number": 1}))
    code, said = weir("--store", str(store))
    assert code == 1 and "0 files of 1 jobs deleted" in said and "0000000001.json" in said
    assert (store / LEFT).exists()


def test_gc_of_a_job_that_is_not_there_names_those_that_are(store: Path) -> None:
    result = CliRunner().invoke(app, ["gc", "nothing", "--store", str(store)])
    assert result.exit_code != 0
    assert "there is no job 'nothing'" in str(result.exception) and "pageviews" in str(result.exception)


def test_the_help_of_gc_has_examples() -> None:
    code, said = weir("--help")
    assert code == 0 and "weir gc --dry-run" in said
