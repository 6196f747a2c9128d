"""`weir gc` on the folders of jobs: what it prints, what it deletes, and what it leaves alone."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from engine.cli.main import app
from engine.core.paths import JobPaths
from engine.protocol.epoch_records import fence_after
from engine.snapshot.epoch_log import EpochLog
from engine.store.directory import DirectoryStore

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
