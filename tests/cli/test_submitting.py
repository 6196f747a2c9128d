"""What a start finds before it starts Spark: places, epochs that are intact, jobs that run already."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.api import StreamEnvironment
from engine.connectors.generator import GeneratorSource
from engine.connectors.table import TableSink
from engine.core.errors import ForeignSnapshot, WeirError
from engine.core.paths import JobPaths
from engine.graph.description import describe
from engine.host.launch import LaunchOptions, MasterLaunch
from engine.host.run_folder import RunFolder
from engine.observe.client import JobClient
from engine.process.going_on import goes_on
from engine.process.loading import load
from engine.process.submit import FromSnapshot, choose_snapshot, plan_launch
from engine.protocol.ids import AttemptId
from engine.protocol.job_description import JobDescription
from engine.protocol.manifest import Manifest
from engine.snapshot.epoch_log import EpochLog
from engine.spark.session import check_master
from engine.store.directory import DirectoryStore

PATH = f"{__name__}:job"


def job(env: StreamEnvironment) -> None:
    table = env.params.get("table", "t")
    rows = env.from_source(GeneratorSource(lambda n: {}), "app string", uid="rows")
    rows.sink_to(TableSink(table), uid="out")


@pytest.mark.parametrize(
    "master",
    [
        *("", "local", "local[*]", "local[4]", "local[4,3]", "local-cluster[2,1,1024]", "yarn", "k8s://https://h:6443"),
        *("spark://host:7077", "spark://one:7077,two:7077"),
    ],
)
def test_every_form_of_a_spark_master_is_taken(master: str) -> None:
    check_master(master)


@pytest.mark.parametrize(
    "master", ["foo", "spark://host", "spark:host:7077", "local[x]", "local-cluster", "mesos://h:1"]
)
def test_anything_else_is_refused_at_the_start(master: str) -> None:
    with pytest.raises(WeirError, match="is no Spark master: write local"):
        check_master(master)


@pytest.mark.parametrize("parent", ["/proc", "file"])
def test_a_table_that_can_not_be_made_is_refused_before_spark_starts(parent: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    table = str(tmp_path / parent / "foo")  # an absolute name stays as it is
    options = LaunchOptions(path=PATH, params={"table": table})
    with pytest.raises(WeirError, match=f"sink 'out': the table {table} can't be written"):
        plan_launch(options, tmp_path / "store")


def test_a_table_whose_folder_is_not_there_yet_is_not_made_by_the_check(tmp_path: Path) -> None:
    plan_launch(LaunchOptions(path=PATH, params={"table": f"{tmp_path}/lake/t"}), tmp_path / "store")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]


@pytest.fixture
def launch(tmp_path: Path) -> MasterLaunch:
    """A job with one epoch, which is intact."""
    launch = MasterLaunch(path=PATH, name="shop", store=str(tmp_path), max_slots=4)
    log = EpochLog(DirectoryStore(tmp_path), JobPaths("shop"))
    claimed = log.claim("me")
    assert claimed is not None
    graph = load(launch)
    TableSink("t").committer(log.store, log.paths).claim(claimed.record.job_id, 1)
    description = describe(graph, JobDescription(), 1)
    manifest = Manifest("shop", 1, 1, AttemptId(1, 1), 0, graph.max_parallelism, [], [], [], {}, description)
    log.publish(claimed.record, log.write_manifest(manifest))
    return launch


@pytest.mark.parametrize("choice", [FromSnapshot.REWIND, FromSnapshot.ALLOW_REPLAY])
def test_going_back_takes_nothing_back_if_the_newest_epoch_is_intact(
    choice: FromSnapshot, launch: MasterLaunch
) -> None:
    records = sorted(Path(launch.store, "shop", "log").iterdir())
    assert choose_snapshot(launch, choice).startswith("epoch 1 is the newest and intact: nothing is taken back")
    assert sorted(Path(launch.store, "shop", "log").iterdir()) == records, "no epoch was added"


def test_a_start_of_a_running_job_says_how_to_end_it_and_that_its_parameters_differ(
    launch: MasterLaunch, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(launch.store, "shop")
    folder.prepare()
    folder.write_launch(launch)
    monkeypatch.setattr(JobClient, "alive", lambda client: True)
    same = LaunchOptions(path=PATH, name="shop")
    with pytest.raises(
        WeirError, match=r"is running already: look at it with `weir status shop`, .*`weir cancel shop`"
    ):
        plan_launch(same, launch.store)
    with pytest.raises(WeirError, match=r"is running already with other parameters \(none given\): "):
        plan_launch(LaunchOptions(path=PATH, name="shop", params={"table": "u"}), launch.store)


@pytest.mark.promise("F1", "F2")
def test_a_start_says_which_epoch_it_goes_on_from_or_that_it_begins_afresh(launch: MasterLaunch) -> None:
    said = choose_snapshot(launch, FromSnapshot.LAST).splitlines()
    assert said[0] == "shop goes on from epoch 1"
    other = msgspec.structs.replace(launch, name="other")
    assert choose_snapshot(other, FromSnapshot.LAST).startswith("other begins afresh: no epoch yet")


@pytest.mark.promise("F1")
def test_a_start_that_goes_on_from_what_other_code_made_says_so(launch: MasterLaunch) -> None:
    folder = RunFolder(launch.store, "shop")
    folder.prepare()
    folder.write_launch(msgspec.structs.replace(launch, path="assets.old:job"))
    said = choose_snapshot(launch, FromSnapshot.LAST).splitlines()
    assert said[0] == "shop goes on from epoch 1, which assets.old:job made; another --name begins afresh"


def test_a_job_that_was_read_to_its_end_or_whose_epoch_is_torn_says_so(launch: MasterLaunch) -> None:
    log = EpochLog(DirectoryStore(launch.store), JobPaths("shop"))
    last = log.last()
    assert last is not None and last.newest is not None
    manifest = log.read_manifest(last.newest)
    final = msgspec.structs.replace(manifest, epoch=2, checkpoint=2, final=True)
    record = log.publish(last, log.write_manifest(final))
    assert record is not None and record.newest is not None
    assert goes_on(launch.store, "shop") == "goes on from epoch 2, in which its sources were read to their ends"
    Path(launch.store, record.newest.path).write_bytes(b"torn")
    assert goes_on(launch.store, "shop") == "can't go on from epoch 2, whose files are not intact"


@pytest.mark.promise("D8")
@pytest.mark.parametrize("choice", [FromSnapshot.LAST, FromSnapshot.REWIND, FromSnapshot.ALLOW_REPLAY])
def test_an_epoch_of_another_version_of_weir_is_refused_before_anything_starts_and_is_not_gone_back_behind(
    choice: FromSnapshot, launch: MasterLaunch
) -> None:
    log = EpochLog(DirectoryStore(launch.store), JobPaths("shop"))
    last = log.last()
    assert last is not None and last.newest is not None
    newer = msgspec.structs.replace(log.read_manifest(last.newest), epoch=2, checkpoint=2, format=2)
    log.publish(last, log.write_manifest(newer))
    records = sorted(Path(launch.store, "shop", "log").iterdir())
    with pytest.raises(WeirError, match="has format 2, and this version of Weir reads 1: use the version that wrote"):
        choose_snapshot(launch, choice)
    assert sorted(Path(launch.store, "shop", "log").iterdir()) == records
    assert (
        goes_on(launch.store, "shop") == "can't go on from epoch 2, which another version of Weir or another job made"
    )


@pytest.mark.promise("D8")
@pytest.mark.parametrize("way", [shutil.copytree, shutil.move])
def test_a_job_whose_folder_was_copied_or_renamed_is_refused_before_anything_starts(
    way: Any, launch: MasterLaunch
) -> None:
    way(Path(launch.store, "shop"), Path(launch.store, "store"))
    with pytest.raises(ForeignSnapshot, match="the log of job 'store' is that of job 'shop'"):
        choose_snapshot(msgspec.structs.replace(launch, name="store"), FromSnapshot.LAST)
