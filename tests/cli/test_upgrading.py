"""`weir upgrade` in the terminal, as far as it needs no running job: the dry run, and what is refused (D8)."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
from rich.console import Console

from engine.api import StreamEnvironment
from engine.cli import inspecting, shared
from engine.cli import upgrading as command
from engine.connectors.generator import GeneratorSource
from engine.connectors.table import TableSink
from engine.core.errors import NotRunning, WeirError
from engine.core.paths import JobPaths
from engine.graph.description import describe
from engine.host.launch import LaunchOptions, MasterLaunch
from engine.host.run_folder import RunFolder
from engine.observe.client import JobClient
from engine.process.loading import load
from engine.process.resume import Wanted
from engine.process.upgrading import NewVersion, begin, new_launch, only_one, plan, switch
from engine.protocol.ids import AttemptId, SubtaskId
from engine.protocol.job_description import JobDescription
from engine.protocol.manifest import Manifest, StateFile, SubtaskState
from engine.protocol.upgrading import Phase, Progress
from engine.snapshot.epoch_log import EpochLog
from engine.store.directory import DirectoryStore


def _build(env: StreamEnvironment, *columns: str, operator: str = "traffic-per-app") -> None:
    env.params.get("rate", 10, "records per second")
    views = env.from_source(GeneratorSource(lambda n: {}), "app_id string, bytes long, user string", uid="views")
    views.select(*columns).key_by("app_id").sum("bytes", uid=operator).sink_to(TableSink("traffic"), uid="out")


def first(env: StreamEnvironment) -> None:
    env.params.get("window", 5, "a parameter that the next version does not have")
    _build(env, "app_id", "bytes")


def second(env: StreamEnvironment) -> None:
    _build(env, "app_id", "bytes", "user")


def renamed(env: StreamEnvironment) -> None:
    _build(env, "app_id", "bytes", operator="traffic")


@pytest.fixture
def client(tmp_path: Path) -> JobClient:
    """A job that has run: it has one epoch, and its last start is known."""
    params = {"rate": "20", "window": "7"}
    launch = MasterLaunch(
        path=f"{__name__}:first", name="shop", params=params, parallelism=3, store=str(tmp_path), max_slots=4, id="0a"
    )
    folder = RunFolder(tmp_path, "shop")
    folder.prepare()
    folder.write_launch(launch)
    log = EpochLog(DirectoryStore(tmp_path), JobPaths("shop"))
    claimed = log.claim("me")
    assert claimed is not None
    graph = load(launch)
    state = SubtaskState(
        SubtaskId("views", 0), [StateFile("traffic-per-app", "reduced", "x", 1, "0", 1)], {"views": {"splits": {}}}
    )
    TableSink("traffic").committer(log.store, log.paths).claim(claimed.record.job_id, 1)
    description = describe(graph, JobDescription(), 1)
    manifest = Manifest("shop", 1, 1, AttemptId(1, 1), 0, graph.max_parallelism, [state], [], [], {}, description)
    log.publish(claimed.record, log.write_manifest(manifest))
    return JobClient(str(tmp_path), "shop")


def dry_run(client: JobClient, to: str, **options: object) -> int:
    with pytest.raises(typer.Exit) as ended:
        command.upgrade("shop", client.store, f"{__name__}:{to}", dry_run=True, **options)  # type: ignore[arg-type]
    return ended.value.exit_code


@pytest.mark.promise("D8", "F1")
@pytest.mark.parametrize("width", [80, 130])
def test_the_dry_run_shows_what_becomes_of_each_operator(
    width: int, client: JobClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(command, "console", Console(file=shown, width=width))
    assert dry_run(client, "second") == 0
    words = " ".join(shown.getvalue().split())
    assert max(map(len, shown.getvalue().splitlines()[1:])) <= width
    assert "shop, from epoch 1 to" in words and "1 restored, 2 migrated" in words
    assert "running value: user string is new, and null where it is missing" in words
    assert "the column user string is new in the table 'traffic', and null in older rows" in words


@pytest.mark.promise("D8", "F1")
def test_a_dry_run_that_refuses_ends_with_1_and_changes_nothing(
    client: JobClient, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in Path(client.store).rglob("*")}
    assert dry_run(client, "renamed", as_json=True) == 1
    rows = {row["uid"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert rows["traffic-per-app"]["fate"] == "refused" and rows["traffic"]["fate"] == "new"
    assert 'uid="traffic-per-app"' in rows["traffic-per-app"]["fix"]
    assert {path: path.stat().st_mtime_ns for path in Path(client.store).rglob("*")} == before
    assert dry_run(client, "renamed", allow_non_restored_state=True) == 0


@pytest.mark.promise("D8")
def test_the_new_version_takes_over_the_parameters_that_it_knows_and_all_options(client: JobClient) -> None:
    new = new_launch(client, NewVersion(f"{__name__}:second", {"rate": "50"}))
    assert (new.params, new.parallelism, new.max_slots) == ({"rate": "50"}, 3, 4)
    kept = new_launch(client, NewVersion(f"{__name__}:second", parallelism=2))
    assert (kept.params, kept.parallelism) == ({"rate": "20"}, 2)
    assert not plan(client, kept).refused


@pytest.mark.promise("D8")
def test_a_job_that_does_not_run_is_told_how_to_start_its_new_version(client: JobClient) -> None:
    new = new_launch(client, NewVersion(f"{__name__}:second"))
    with pytest.raises(NotRunning, match=r"start the new version with `weir submit .*second --name shop`"):
        begin(client, new, "cli")
    assert client.folder.read_upgrade() is None


@pytest.mark.promise("D8", "F1")
def test_an_upgrade_that_was_interrupted_is_named_and_not_replaced_by_another(
    client: JobClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = new_launch(client, NewVersion(f"{__name__}:second"))
    monkeypatch.setattr(JobClient, "alive", lambda self: True)
    record = begin(client, new, "cli")
    client.folder.write_upgrade(msgspec.structs.replace(record, progress=Progress(Phase.STARTING, 1)))
    said = shared.unfinished_upgrade(client)
    assert "second is not done (starting): `weir upgrade shop` carries it on, unless a command does so now" in said
    with pytest.raises(WeirError, match="is not done yet"):
        command.upgrade("shop", client.store, "elsewhere:job")
    monkeypatch.setattr(inspecting, "wanted", lambda *_, **__: Wanted.RESUMED)
    assert inspecting.next_start(client) == ""  # a resume would make the upgrade give up
    client.folder.write_upgrade(msgspec.structs.replace(record, progress=Progress(Phase.UPGRADED, 1)))
    assert "`weir resume shop` starts it again" in inspecting.next_start(client)
    assert shared.unfinished_upgrade(client) == ""


def test_an_upgrade_that_another_command_has_just_finished_is_shown_as_it_ended(
    client: JobClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was not over when this command looked, and is when this command may carry it on."""
    monkeypatch.setattr(JobClient, "alive", lambda self: True)
    launch = new_launch(client, NewVersion(f"{__name__}:second"))
    record = begin(client, launch, "cli")
    only = command.upgrading.only_one

    def finished_meanwhile(client: JobClient) -> Any:
        client.folder.write_launch(record.new)
        client.folder.write_upgrade(msgspec.structs.replace(record, progress=Progress(Phase.UPGRADED, 1)))
        return only(client)

    monkeypatch.setattr(command.upgrading, "only_one", finished_meanwhile)
    command.upgrade("shop", client.store)
    assert "shop was upgraded to" in capsys.readouterr().out
    last = client.folder.read_upgrade()
    assert last is not None and last.progress == Progress(Phase.UPGRADED, 1)


def test_two_commands_do_not_upgrade_one_job_at_the_same_time(client: JobClient) -> None:
    with only_one(client), pytest.raises(WeirError, match="another command upgrades job 'shop'"), only_one(client):
        pass
    with only_one(client):
        pass


def test_a_job_in_a_notebook_is_not_upgraded_from_outside(client: JobClient) -> None:
    launch = client.folder.read_launch()
    assert launch is not None
    client.folder.write_launch(msgspec.structs.replace(launch, path=""))
    with pytest.raises(WeirError, match="runs inside a script or a notebook"):
        new_launch(client, NewVersion())


def test_the_options_of_a_start_are_all_kept(client: JobClient) -> None:
    """An option that is added to LaunchOptions is one of the running start, unless the upgrade changes it."""
    old = client.folder.read_launch()
    assert old is not None
    new = new_launch(client, NewVersion(f"{__name__}:second"))
    changed = {"path", "params", "name", "code", "allow_non_restored_state", "probation_s"}
    for name in set(LaunchOptions.__struct_fields__) - changed:
        assert getattr(new, name) == getattr(old, name), name


@pytest.mark.promise("D8")
def test_an_upgrade_that_was_begun_and_interrupted_meanwhile_is_not_replaced(
    client: JobClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a request over HTTP, after this command has looked and while it loads the new version."""
    monkeypatch.setattr(JobClient, "alive", lambda self: True)
    new = new_launch(client, NewVersion(f"{__name__}:second"))
    first = begin(client, new, "http")
    with pytest.raises(WeirError, match=r"is not done \(stopping\): `weir upgrade shop` carries it on"):
        switch(client, new, "cli", lambda text: None, 0.1)
    assert client.folder.read_upgrade() == first
