"""The commands that only look, at a job that has ended: all is in its store. On Spark: test_operations.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from engine.cli.main import app
from engine.cli.shared import console
from engine.core.errors import WeirError
from engine.host.run_folder import MasterExit, RunFolder
from engine.jobmaster.actions import Outcome
from engine.observe.logs import LogWriter
from tests.observe.answering import NAME, AnsweringRun


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WEIR_CONFIG", raising=False)
    monkeypatch.setenv("WEIR_STORE", str(tmp_path))
    monkeypatch.setattr(console, "width", 200)  # whoever imported it first may have had a narrow terminal
    return tmp_path


@pytest.fixture
def ended(store: Path) -> AnsweringRun:
    run = AnsweringRun(store)
    run.run()
    RunFolder(store, NAME).write_exit(MasterExit(Outcome.FINISHED, "all records are processed"), run.launch)
    return run


def weir(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.promise("F1", "F3")
def test_jobs_lists_a_job_that_has_ended_with_its_restarts_and_last_epoch(ended: AnsweringRun) -> None:
    (job,) = json.loads(weir("jobs", "--json").stdout)
    assert (job["job"], job["state"], job["restarts"], job["epoch"]) == (NAME, "finished", 1, 3)
    assert job["last_checkpoint_at_ms"] <= job["ended_at_ms"]
    shown = weir("jobs").stdout
    assert "finished" in shown and "last checkpoint" in shown and "ago" in shown


@pytest.mark.promise("F3")
def test_checkpoints_are_listed_newest_first_and_shown_in_parts(ended: AnsweringRun) -> None:
    lines = weir("checkpoints", NAME).stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["id", "3", "2", "1"] and "epoch 3" in lines[1]
    assert [c["checkpoint"] for c in json.loads(weir("checkpoints", NAME, "--json", "--limit", "1").stdout)] == [3]
    one = weir("checkpoints", NAME, "1").stdout
    assert "start delay" in one and "pv" in one and "out" in one
    assert json.loads(weir("checkpoints", NAME, "1", "--json").stdout)["ledger"]["source:views"] == 1


@pytest.mark.promise("F3")
def test_restarts_have_cause_place_and_duration(ended: AnsweringRun) -> None:
    shown = weir("restarts", NAME).stdout
    assert "slot_lost" in shown and "slot 0" in shown and "killed by a Crash in its input" in shown
    (restart,) = json.loads(weir("restarts", NAME, "--json").stdout)
    assert restart["recovery_ms"] > 0


def test_logs_are_filtered_by_slot_and_following_stops_with_the_job(ended: AnsweringRun, store: Path) -> None:
    folder = RunFolder(store, NAME).logs
    for name in ("slot-0", "slot-1"):
        LogWriter(folder, name).write(f"hello from {name}")
    assert [line.split()[-1] for line in weir("logs", NAME, "-f").stdout.splitlines()] == ["slot-0", "slot-1"]
    assert weir("logs", NAME, "--slot", "1").stdout.count("hello") == 1
    nothing = weir("logs", NAME, "--operator", "nobody")
    assert nothing.exit_code == 0 and "no line of operator 'nobody'" in nothing.stderr


@pytest.mark.parametrize("command", ["status", "checkpoints", "restarts", "logs"])
def test_a_job_that_never_was_is_an_error_that_names_those_there_are(ended: AnsweringRun, command: str) -> None:
    result = weir(command, "nobody")
    assert isinstance(result.exception, WeirError) and f"it has: {NAME}" in str(result.exception)


def test_a_checkpoint_that_is_not_remembered_is_an_error_that_says_what_to_do(ended: AnsweringRun) -> None:
    assert "weir checkpoints test lists those that are" in str(weir("checkpoints", NAME, "99").exception)


@pytest.mark.parametrize(
    "command", ["run", "submit", "jobs", "status", "checkpoints", "restarts", "logs", "checkpoint"]
)
def test_help_teaches_by_examples(store: Path, command: str) -> None:
    shown = weir(command, "--help").stdout
    assert "Examples:" in shown and f"weir {command}" in shown.split("Examples:")[1]
