"""Goal: a running job is saved, stopped with a savepoint, moved, and goes on elsewhere at another parallelism.

Topology: two source subtasks with a map, exchanged by key to a process function with state and a table; two slots on
local Spark, then three under another name in another, empty store. Faults: none; the folder of the savepoint is moved,
the old store is taken away, and requests that can't be met are made in between. Checks: every record is in one of the
two tables exactly once, and the running sums of each key go on without a gap from the first table to the second.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from engine.connectors.table import read_table
from engine.core.paths import JobPaths
from engine.jobmaster.actions import Outcome
from engine.observe.client import JobClient
from engine.store.directory import DirectoryStore
from tests.cluster.harness import RunningJob
from tests.cluster.jobs import make
from tests.cluster.test_bad_input import weir

ROWS = 300_000


def rows(store: Path, job: str) -> list[tuple[int, int, int]]:
    table = read_table(DirectoryStore(store), JobPaths(job).table("totals"))
    return list(zip(*(table.column(name).to_pylist() for name in ("key", "value", "sum")), strict=True))


@pytest.mark.promise("D5", "D6", "D7", "D9", "F1")
def test_a_job_moves_to_another_store_with_the_savepoint_of_its_stop(tmp_path: Path) -> None:
    here, there, moved = tmp_path / "here", tmp_path / "there", tmp_path / "moved" / "deep"
    with RunningJob(here, "running_totals", rows=ROWS, rate=800) as job:
        job.completed(2)
        first = json.loads(_said("savepoint", "running_totals", "--name", "first", "--json", store=here))
        assert first["state"] == "completed" and first["bytes"] > 0 and first["epoch"] >= 2
        _ask_for_what_can_not_be(here, tmp_path)
        running = job.client.status()
        assert running.running and running.restarts == 0
        said = _said("stop", "running_totals", "--savepoint", "--name", "last", "--to", str(tmp_path), store=here)
        assert "running_totals is stopped: behind epoch" in said
        ended = job.wait_until_ended()
        assert ended.outcome is Outcome.STOPPED
    published = rows(here, "running_totals")
    assert 0 < len(published) < ROWS
    desired = job.client.folder.read_desired()
    assert desired is None or not desired.running
    listed = json.loads(_said("savepoints", "running_totals", "--json", store=here))
    assert [(one["savepoint"], one["state"]) for one in listed] == [("last", "completed"), ("first", "completed")]

    moved.parent.mkdir()
    shutil.move(tmp_path / "last", moved)
    here.rename(tmp_path / "away")  # nothing of the old store is needed
    job_path = "tests.cluster.jobs:running_totals"
    flags = ["--param", f"rows={ROWS}", "--param", "rate=0", "--parallelism", "3", "--max-slots", "4"]
    begun = weir("submit", job_path, *flags, "--name", "moved", "--from", str(moved), "--claim", store=there)
    assert begun.returncode == 0, begun.stderr
    assert "moved begins from savepoint last of running_totals; the job owns the savepoint" in begun.stdout
    client = JobClient(str(there), "moved")
    end = client.wait_until_ended(180)
    assert end is not None and end.outcome is Outcome.FINISHED, end
    both = published + rows(there, "moved")
    _check_every_record_once(both)
    _check_running_sums(both)


def _ask_for_what_can_not_be(store: Path, tmp_path: Path) -> None:
    """Each gives one clear error, and the job goes on."""
    file = tmp_path / "file"
    file.write_text("no folder")
    for flags, said in (
        (["--name", "first"], "already holds a savepoint: choose another name"),
        (["--to", str(file)], "can't write"),
        (["--name", "../escape"], "can't be the name of a savepoint"),
        (["--to", "ftp://host/x"], "is no address of a folder"),
    ):
        done = weir("savepoint", "running_totals", *flags, store=store)
        assert done.returncode == 1 and said in done.stderr.replace("\n", " "), (flags, done.stderr)
        assert "Traceback" not in done.stderr


def _check_every_record_once(both: list[tuple[int, int, int]]) -> None:
    columns = make(np.arange(ROWS))
    due = Counter(zip(columns["key"].tolist(), (columns["value"] * 2).tolist(), strict=True))
    got = Counter((key, value) for key, value, _ in both)
    assert got == due, f"lost {(due - got).total()}, doubled {(got - due).total()}"


def _check_running_sums(both: list[tuple[int, int, int]]) -> None:
    """Each sum of a key is the one before it and the record's value, across both tables."""
    sums: dict[int, int] = {}
    for key, value, total in sorted(both, key=lambda row: (row[0], row[2], -row[1])):
        assert sums.get(key, 0) + value == total, f"key {key} goes from {sums.get(key, 0)} by {value} to {total}"
        sums[key] = total


def _said(*arguments: str, store: Path) -> str:
    done = weir(*arguments, store=store)
    assert done.returncode == 0, done.stderr
    return done.stdout
