"""A job that has changed is refused in the terminal, before Spark starts, with one table of all differences (D8)."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from engine.api import StreamEnvironment
from engine.cli import shared
from engine.cli.launching import GoBack, prepare
from engine.connectors.generator import GeneratorSource
from engine.connectors.table import TableSink
from engine.core.errors import IncompatibleJob, TargetTaken, WeirError
from engine.core.paths import JobPaths
from engine.graph.description import describe
from engine.host.launch import LaunchOptions, MasterLaunch
from engine.process.loading import load
from engine.process.upgrade import check_start, for_this_start
from engine.protocol.ids import AttemptId, SubtaskId
from engine.protocol.job_description import JobDescription
from engine.protocol.manifest import Manifest, StateFile, SubtaskState
from engine.snapshot.epoch_log import EpochLog
from engine.store.directory import DirectoryStore


def _build(env: StreamEnvironment, source: str, operator: str) -> None:
    env.enable_checkpointing(interval="1 s")
    views = env.from_source(GeneratorSource(lambda n: {}), "app_id string, bytes long", uid=source)
    views.key_by("app_id").sum("bytes", uid=operator).sink_to(TableSink("traffic"), uid="out")


def before(env: StreamEnvironment) -> None:
    _build(env, "views", "traffic-per-app")


def renamed(env: StreamEnvironment) -> None:
    _build(env, "page_views", "traffic-by-app")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with one epoch of the job as it was before."""
    log = EpochLog(DirectoryStore(tmp_path), JobPaths("shop"))
    claimed = log.claim("me")
    assert claimed is not None
    graph = load(LaunchOptions(path=f"{__name__}:before", name="shop"))
    state = SubtaskState(
        SubtaskId("views", 0), [StateFile("traffic-per-app", "reduced", "x", 1, "0", 1)], {"views": {"splits": {}}}
    )
    TableSink("traffic").committer(log.store, log.paths).claim(claimed.record.job_id, 1)
    description = describe(graph, JobDescription(), 1)
    manifest = Manifest("shop", 1, 1, AttemptId(1, 1), 0, graph.max_parallelism, [state], [], [], {}, description)
    log.publish(claimed.record, log.write_manifest(manifest))
    return tmp_path


def started(job: str, store: Path, allow: bool = False) -> None:
    options = LaunchOptions(path=f"{__name__}:{job}", name="shop", allow_non_restored_state=allow)
    prepare(options, str(store), GoBack(False, None, False))


@pytest.mark.promise("D8", "F1")
@pytest.mark.parametrize("width", [80, 120])
def test_the_table_of_differences_fits_the_terminal(width: int, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(IncompatibleJob) as refused:
        started("renamed", store)
    shown = io.StringIO()
    monkeypatch.setattr(shared, "errors", Console(file=shown, width=width, soft_wrap=True))
    shared.print_differences(refused.value)
    lines = shown.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert lines[0] == "error: job 'shop' can't go on from epoch 1"
    words = " ".join(shown.getvalue().split())
    assert "views" in words and "traffic-per-app" in words and "--allow-non-restored-state" in words


@pytest.mark.promise("D8", "F1")
def test_a_long_uid_does_not_break_the_option_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(shared, "errors", Console(file=shown, width=80, soft_wrap=True))
    row = ("a-very-long-uid-of-an-operator-that-somebody-has-chosen", "gone", "or --allow-non-restored-state drops it")
    shared.print_differences(IncompatibleJob("refused", [row]))
    assert "--allow-non-restored-state" in shown.getvalue()
    assert max(map(len, shown.getvalue().splitlines())) <= 80


@pytest.mark.promise("D8")
def test_state_may_be_dropped_only_by_the_start_and_of_the_epoch_that_it_was_allowed_for(store: Path) -> None:
    """A JobMaster of the same start that comes later finds state that nobody has allowed to drop."""
    log = EpochLog(DirectoryStore(store), JobPaths("shop"))
    options = MasterLaunch(path=f"{__name__}:renamed", name="shop", store=str(store), max_slots=2)
    graph = load(options)
    with pytest.raises(IncompatibleJob):
        check_start(graph, log, for_this_start(options))
    allowed = for_this_start(msgspec.structs.replace(options, allow_non_restored_state=True))
    assert "traffic-per-app" in check_start(graph, log, allowed)
    last = log.last()
    assert last is not None and last.newest is not None
    later = msgspec.structs.replace(log.read_manifest(last.newest), epoch=2, checkpoint=2)
    log.publish(last, log.write_manifest(later))
    assert for_this_start(allowed) == allowed, "a second process of this start changes nothing"
    with pytest.raises(IncompatibleJob):
        check_start(graph, log, allowed)


@pytest.mark.promise("D8")
def test_a_table_that_was_deleted_is_named_before_anything_starts(store: Path) -> None:
    DirectoryStore(store).delete("shop/tables/traffic")
    with pytest.raises(IncompatibleJob, match="out: the table 'traffic' is gone: its folder was deleted"):
        started("before", store)
    assert not (store / "shop" / "tables" / "traffic").exists()


def to_lake(env: StreamEnvironment) -> None:
    views = env.from_source(GeneratorSource(lambda n: {}), "app_id string, bytes long", uid="views")
    views.sink_to(TableSink(env.params.get("lake", "")), uid="out")


@pytest.mark.promise("G1")
def test_a_table_of_another_job_is_refused_before_anything_starts(tmp_path: Path) -> None:
    lake = str(tmp_path / "lake")
    TableSink(lake).committer(DirectoryStore(tmp_path / "theirs"), JobPaths("theirs")).claim("1d", 1)
    options = LaunchOptions(path=f"{__name__}:to_lake", name="ours", params={"lake": lake})
    with pytest.raises(TargetTaken, match="belongs to job 'theirs'"):
        prepare(options, str(tmp_path / "ours"), GoBack(False, None, False))
    assert not (tmp_path / "ours" / "ours").exists()


@pytest.mark.promise("G1")
def test_a_fork_into_the_table_of_its_original_is_refused_and_leaves_no_job(tmp_path: Path) -> None:
    lake = str(tmp_path / "lake")
    options = LaunchOptions(path=f"{__name__}:to_lake", name="shop", params={"lake": lake})
    log = EpochLog(DirectoryStore(tmp_path / "store"), JobPaths("shop"))
    claimed = log.claim("me")
    assert claimed is not None
    graph = load(options)
    dict(graph.sinks)["out"].committer(log.store, log.paths).claim(claimed.record.job_id, 1)
    state = SubtaskState(SubtaskId("views", 0), [], {"views": {"splits": {}}})
    description = describe(graph, JobDescription(), 1)
    manifest = Manifest("shop", 1, 1, AttemptId(1, 1), 0, graph.max_parallelism, [state], [], [], {}, description)
    log.publish(claimed.record, log.write_manifest(manifest))
    with pytest.raises(WeirError, match="belongs to job 'shop'"):
        prepare(options, str(tmp_path / "store"), GoBack(False, "copy", False))
    assert EpochLog(log.store, JobPaths("copy")).last() is None


@pytest.mark.promise("D8")
def test_the_option_starts_it_and_says_what_is_dropped(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    started("renamed", store, allow=True)
    said = capsys.readouterr().out
    assert "dropped, as allowed: views: the source is gone" in said
    assert "dropped, as allowed: traffic-per-app: the reduce is gone" in said


@pytest.mark.promise("D8")
def test_of_a_job_that_has_not_changed_a_start_only_says_where_it_goes_on(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    started("before", store)
    assert capsys.readouterr().out == "shop goes on from epoch 1\n"
