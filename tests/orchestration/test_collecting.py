"""Goal: a run of `<job>_gc` deletes what `weir gc` deletes, and fails if something can't be judged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from engine.core.paths import JobPaths
from engine.protocol.epoch_records import fence_after
from engine.snapshot.epoch_log import EpochLog
from engine.store.directory import DirectoryStore
from tests.orchestration.jobs import FakeJob, definitions

PATHS = JobPaths("numbers")
LEFT = "numbers/gen-0001/chk-0000001/1/sums.0.arrow"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A job whose first JobMaster left a checkpoint, and whose second one has begun another."""
    FakeJob(tmp_path).wanted()
    log = EpochLog(DirectoryStore(tmp_path), PATHS)
    first = fence_after(None, "a")
    log.append(first)
    log.append(fence_after(first, "b"))
    for path in (LEFT, "numbers/gen-0002/chk-0000002/1/sums.0.arrow"):
        log.store.write(path, b"state")
    return tmp_path


def run(store: Path, **config: Any) -> dg.ExecuteInProcessResult:
    job = definitions(store).resolve_job_def("numbers_gc")
    ops = {"ops": {"gc_numbers": {"config": config}}}
    with dg.DagsterInstance.ephemeral() as instance:
        return job.execute_in_process(instance=instance, raise_on_error=False, run_config=ops)


def figures(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    (made,) = [e for e in result.all_events if e.event_type_value == "STEP_OUTPUT"]
    return {name: value.value for name, value in made.step_output_data.metadata.items()}


@pytest.mark.promise("C4", "F1")
def test_a_dry_run_deletes_nothing_and_a_run_deletes_what_it_said(store: Path) -> None:
    before = sorted(DirectoryStore(store).list(""))
    looked = run(store, dry_run=True)
    assert looked.success and figures(looked)["bytes"] == 5 and sorted(DirectoryStore(store).list("")) == before
    (row,) = figures(looked)["collected"].records
    assert row.data["path"] == "numbers/gen-0001/chk-0000001" and row.data["files"] == 1
    assert run(store).success
    assert sorted(DirectoryStore(store).list("")) == [path for path in before if path != LEFT]
    assert figures(run(store)) == {"bytes": 0}


@pytest.mark.promise("C4")
def test_a_record_that_can_not_be_read_fails_the_run_and_nothing_is_deleted(store: Path) -> None:
    (store / PATHS.log_record(1)).write_text('{"number": 1}')
    result = run(store)
    (event,) = [e for e in result.all_events if e.event_type_value == "STEP_FAILURE"]
    assert "0000000001.json" in event.step_failure_data.user_failure_data.description
    assert (store / LEFT).exists()
