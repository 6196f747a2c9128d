"""What `weir` and Dagster say about the next start of a job."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.core.paths import JobPaths
from engine.host.launch import MasterLaunch
from engine.host.run_folder import LastHeartbeat, RunFolder
from engine.process.going_on import AFRESH, goes_on
from engine.snapshot.epoch_log import EpochLog
from engine.store.directory import DirectoryStore


@pytest.mark.promise("H8")
def test_a_job_whose_log_is_gone_from_the_store_is_not_said_to_begin_afresh(tmp_path: Path) -> None:
    """`weir status` said so of a job that waited for its bucket, in whose place an empty one was."""
    folder = RunFolder(tmp_path, "numbers")
    folder.prepare()
    folder.write_launch(MasterLaunch(path="", name="numbers", store=str(tmp_path), max_slots=1, id="first"))
    assert goes_on(str(tmp_path), "numbers") == AFRESH
    assert EpochLog(DirectoryStore(tmp_path), JobPaths("numbers")).claim("one") is not None
    folder.write_heartbeat(LastHeartbeat(1000, 1, "running", "first"))
    assert goes_on(str(tmp_path), "numbers") == AFRESH, "it has no epoch yet"
    (tmp_path / "numbers" / "log").rename(tmp_path / "away")
    assert goes_on(str(tmp_path), "numbers").startswith("finds no record of its log, though it has run before")
