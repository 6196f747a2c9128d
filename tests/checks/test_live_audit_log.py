"""Goal: what readers see is exactly what the job has published: no file twice, no epoch that it does not know, no table
that is gone before anybody has audited it.

Topology: as in test_live_audit.py, a job in this process. Faults: the table's log is edited with its seals, which have
no key; folders are deleted. Checks: the facts that do not hold name the file or the epoch.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from checks.facts import Fact
from checks.live.look import FILES
from tests.checks.live import LiveJob
from tests.checks.small import Table as Spoiled


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LiveJob:
    monkeypatch.setattr(os, "fsync", lambda file: None)  # no machine crashes here
    monkeypatch.setenv("WEIR_STATE", str(tmp_path / "state"))
    return LiveJob(tmp_path / "store")


def append(job: LiveJob, name: str, number: int | None = None) -> None:
    """Adds an entry for a file to the newest record of the table's log, or in a record of this number after it."""
    newest = job.records()[-1]
    version, *lines = newest.read_text().split("\n")
    entry = json.loads(lines[-1])
    entry["path"] = f"{entry['path'].rpartition('/')[0]}/{name}"
    entry["size"] = (job.table / name).stat().st_size
    added = json.dumps(entry, separators=(",", ":"))
    if number is None:
        Spoiled.write_record(newest, "\n".join([version, *lines, added]))
    else:
        Spoiled.write_record(newest.with_name(str(number)), f"{version}\n{added}")


def named(wrong: list[Fact]) -> set[tuple[str, str]]:
    return {(fact.check, fact.what) for fact in wrong}


@pytest.mark.promise("H4")
@pytest.mark.parametrize("audited", [False, True])
def test_a_file_that_the_log_names_twice_is_red_because_spark_reads_it_twice(job: LiveJob, audited: bool) -> None:
    job.run(6)
    assert not audited or job.audit() == []
    name = job.files()[-1].name
    append(job, name)
    assert named(job.audit()) == {(FILES, name)}
    job.run(1)
    assert named(job.audit()) == {(FILES, name)}


@pytest.mark.promise("H4")
def test_an_epoch_in_the_table_that_the_job_has_never_published_is_red(job: LiveJob) -> None:
    job.run(6)
    assert job.audit() == []
    shutil.copy(job.files()[-1], job.table / "phantom.parquet")
    append(job, "phantom.parquet", number=6)  # Spark counts epochs from 0
    wrong = job.audit()
    assert [(fact.check, fact.epoch, fact.found) for fact in wrong] == [(FILES, 7, "epoch 7")]


@pytest.mark.promise("H4")
def test_a_table_that_was_deleted_before_its_first_audit_is_missing(job: LiveJob) -> None:
    job.run(6)
    shutil.rmtree(job.table)
    assert named(job.audit()) == {(FILES, "the table")}
