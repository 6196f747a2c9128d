"""Goal: a folder in assets/ is a job in Dagster; a folder without a usable spec is one clear error that names it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestration.discovery import BrokenAsset, find_streams
from tests.orchestration.jobs import definitions

SPEC = 'StreamSpec(job="{job}", path="{path}", description="Orders.", owners=("team:shop",))'
GOOD = "from orchestration.spec import StreamSpec\nSTREAM = " + SPEC


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder of jobs that can be imported."""
    folder = tmp_path / "some_jobs"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == folder.name]:
        del sys.modules[name]


def write(folder: Path, **files: str) -> None:
    folder.mkdir()
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)


def good(job: str) -> str:
    return GOOD.format(job=job, path=f"some_jobs.{job}.job:job")


def test_a_folder_is_enough(jobs: Path) -> None:
    for name in ("orders", "bills"):
        write(jobs / name, job="def job(env): ...", asset=good(name))
    found = find_streams(jobs)
    assert [spec.job for spec in found] == ["bills", "orders"]
    for spec in found:
        keys = definitions(jobs, spec).get_repository_def().asset_graph.get_all_asset_keys()
        assert spec.stream_key in keys


def test_what_is_no_job_is_passed_over(jobs: Path) -> None:
    write(jobs / "orders", job="def job(env): ...", asset=good("orders"))
    (jobs / "shared.py").write_text("raise SystemExit")
    (jobs / "deleted" / "__pycache__").mkdir(parents=True)
    write(jobs / "__pycache__", old="raise SystemExit")
    write(jobs / ".hidden", asset="raise SystemExit")
    assert [spec.job for spec in find_streams(jobs)] == ["orders"]


@pytest.mark.parametrize(
    ("asset", "says"),
    [
        (None, r"some_jobs/orders has no asset\.py.*STREAM = StreamSpec"),
        ("import nosuchlibrary", r"some_jobs/orders/asset\.py can't be loaded: .*nosuchlibrary"),
        ("STREAM = (", r"some_jobs/orders/asset\.py can't be loaded: SyntaxError"),
        (
            good("orders").replace("owners=", "owner="),
            r"some_jobs/orders/asset\.py can't be loaded: TypeError: .*owner",
        ),
        (good("no name"), r"some_jobs/orders/asset\.py can't be loaded: ValueError: 'no name' can't be a job's name"),
        ("ORDERS = 1", r"some_jobs/orders/asset\.py needs STREAM = StreamSpec\(\.\.\.\); there is none"),
        ("STREAM = 'orders'", r"some_jobs/orders/asset\.py needs STREAM = StreamSpec\(\.\.\.\); it is a str"),
        (good("bills"), r"some_jobs/orders/asset\.py is for the job 'bills': a job has the name of its folder"),
        (
            good("orders") + "\nfrom dataclasses import replace\nfrom assets.pageviews.drill import DRILL\n"
            "STREAM = replace(STREAM, drill=DRILL)",
            r"some_jobs/orders/asset\.py has the drill of another job, 'pageviews'",
        ),
        (
            good("orders").replace(".job:job", ".jobs:job"),
            r"some_jobs/orders/asset\.py names the job 'some_jobs\.orders\.jobs:job', but there is no such module",
        ),
    ],
)
def test_a_broken_folder_is_named_with_what_to_write(jobs: Path, asset: str | None, says: str) -> None:
    files = {"job": "def job(env): ..."} | ({} if asset is None else {"asset": asset})
    write(jobs / "orders", **files)
    with pytest.raises(BrokenAsset, match=says):
        find_streams(jobs)
