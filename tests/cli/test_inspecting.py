"""The commands that only look, at a job that has ended: all is in its store. On Spark: test_operations.py."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from engine.cli.main import app, main
from engine.cli.shared import console
from engine.core.errors import WeirError
from engine.host.run_folder import Deaths, MasterExit, RunFolder, SupervisorSign, _write
from engine.jobmaster.actions import Outcome
from engine.observe.client import JobClient
from engine.observe.logs import LogWriter
from engine.protocol.failures import Fault
from engine.protocol.remedy import Stage
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
    assert [line.split()[0] for line in lines[:4]] == ["id", "3", "2", "1"] and "epoch 3" in lines[1]
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


def test_a_slot_that_there_is_not_is_named_beside_those_there_are(ended: AnsweringRun, store: Path) -> None:
    for number in (0, 1):
        LogWriter(RunFolder(store, NAME).logs, f"slot-{number}").write("hello")
    assert "no line of slot 9; there are lines of slots: 0, 1" in weir("logs", NAME, "--slot", "9").stderr


def test_logs_leave_out_the_steps_of_checkpoints_unless_all_are_asked_for(ended: AnsweringRun, store: Path) -> None:
    master = LogWriter(RunFolder(store, NAME).logs, "master")
    for text in ("triggered under generation 1 {}", "completed under generation 1 {}", "aborted under generation 1 {}"):
        master.write(f"INFO weir.master: {text}")
    assert weir("logs", NAME).stdout.count("weir.master") == 1
    assert weir("logs", NAME, "--all").stdout.count("weir.master") == 3


def test_logs_begin_with_the_last_lines_and_go_on_from_there(ended: AnsweringRun, store: Path) -> None:
    log = LogWriter(RunFolder(store, NAME).logs, "slot-0")
    for number in range(5):
        log.write(f"line {number}")
    assert [line.split()[-1] for line in weir("logs", NAME, "--tail", "2", "-f").stdout.splitlines()] == ["3", "4"]
    assert weir("logs", NAME, "--tail", "0").output == ""


def test_logs_of_a_level_hold_whole_records_and_leave_out_what_was_printed(ended: AnsweringRun, store: Path) -> None:
    folder = RunFolder(store, NAME).logs
    slot = LogWriter(folder, "slot-0")
    slot.write("printed", "views[0]")
    slot.write("ERROR mine: it broke\nTraceback (most recent call last):\n  in the middle\nValueError: 7")
    LogWriter(folder, "master").write("WARNING weir.master: the store is slow")
    shown = [line.split(maxsplit=3)[-1] for line in weir("logs", NAME, "--level", "error").stdout.splitlines()]
    assert shown == ["ERROR mine: it broke", "Traceback (most recent call last):", "in the middle", "ValueError: 7"]
    assert weir("logs", NAME, "--level", "WARNING").stdout.count("\n") == 5
    assert weir("logs", NAME, "--level", "info").stdout.count("\n") == 6
    only = weir("logs", NAME, "--level", "error", "--operator", "views")
    assert "no line of operator 'views' (there are lines of: views) of level error or above yet" in only.stderr


@pytest.fixture
def dying(ended: AnsweringRun, store: Path) -> RunFolder:
    """A job whose JobMasters die one after the other."""
    folder = RunFolder(store, NAME)
    folder.clear()
    folder.write_deaths(Deaths(3, 3, Fault.OUTSIDE, "Spark did not start: no such master", 0, 0))
    folder.log_file.write_text("\n".join(f"line {number}" for number in range(99)))
    return folder


@pytest.mark.promise("F1")
@pytest.mark.parametrize("command", ["logs", "restarts", "jobs", "status"])
def test_every_command_says_that_the_jobmaster_keeps_dying_and_why(
    command: str, dying: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JobClient, "looked_after", lambda client: "starting Spark for 4 s")
    result = weir(command, *([] if command == "jobs" else [NAME]))
    said = " ".join((result.stdout + result.stderr).split())
    assert "the JobMaster died 3 times without an epoch in between, last by: Spark did not start: no such" in said
    if command == "logs":
        assert "line 98" in said and "line 50" not in said
    if command in ("jobs", "status"):
        assert result.exit_code == 0 and "starting Spark for 4 s" in said


def test_a_wait_for_a_start_reports_each_death_once(dying: RunFolder, store: Path) -> None:
    client, seen = JobClient(str(store), NAME), []

    def died(deaths: Deaths) -> None:
        seen.append(deaths.total)
        if len(seen) == 1:
            dying.write_deaths(Deaths(4, 4, Fault.OUTSIDE, "again", 0, 0))
        else:
            _write(dying._exit, b'{"outcome": "failed", "reason": "enough"}')

    dying.write_supervisor(SupervisorSign("", 1, 0, Stage.STARTING, 40))
    signs: set[str] = set()
    ended = client.wait_until_running(on_death=died, on_sign=lambda sign: signs.add(sign.in_words()))
    assert ended is not None and ended.reason == "enough" and seen == [3, 4]
    assert signs == {"starting Spark for 40 s"}


def test_an_import_path_that_was_started_under_another_name_leads_to_that_name(ended: AnsweringRun) -> None:
    result = weir("status", ended.launch.path)
    assert isinstance(result.exception, WeirError)
    assert f"tests.observe.answering:job was started as: {NAME}" in str(result.exception)


@pytest.mark.parametrize("width", [40, 80])
@pytest.mark.parametrize("command", ["jobs", "checkpoints", "restarts"])
def test_nothing_is_cut_or_wider_than_the_terminal(
    command: str, width: int, ended: AnsweringRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "width", width)
    shown = weir(command, *([] if command == "jobs" else [NAME])).stdout
    assert max(map(len, shown.splitlines())) <= width and "…" not in shown
    what = {"jobs": "finished", "checkpoints": "epoch 3", "restarts": "slot_lost"}[command]
    assert what in " ".join(shown.split())


def test_the_version_is_printed() -> None:
    assert weir("--version").stdout == "weir 0.1.0\n"


def test_a_parameter_that_is_given_is_described_beside_its_default(store: Path) -> None:
    shown = weir("describe", "tests.cluster.jobs:windows", "--param", "rows=7").stdout
    assert shown.splitlines()[0].split() == ["parameter", "value", "default", "meaning"]
    assert next(line for line in shown.splitlines() if line.startswith("rows")).split()[1] == "7"


@pytest.mark.parametrize("command", ["status", "checkpoints", "restarts", "logs"])
def test_a_job_that_never_was_is_an_error_that_names_those_there_are(ended: AnsweringRun, command: str) -> None:
    result = weir(command, "nobody")
    assert isinstance(result.exception, WeirError) and f"it has: {NAME}" in str(result.exception)


def test_a_checkpoint_that_is_not_remembered_is_an_error_that_says_what_to_do(ended: AnsweringRun) -> None:
    assert "weir checkpoints test lists those that are" in str(weir("checkpoints", NAME, "99").exception)


@pytest.mark.parametrize(
    "command",
    [
        "run",
        "submit",
        "jobs",
        "status",
        "checkpoints",
        "restarts",
        "logs",
        "state",
        "checkpoint",
        "cancel",
        "describe",
        "doctor",
    ],
)
def test_help_teaches_by_examples(store: Path, command: str) -> None:
    shown = weir(command, "--help").stdout
    assert "Examples:" in shown and f"weir {command}" in shown.split("Examples:")[1]


def test_a_job_whose_files_can_not_be_read_does_not_hide_the_others(ended: AnsweringRun, store: Path) -> None:
    broken = RunFolder(store, "broken")
    broken.prepare()
    broken.launch_file.write_bytes(b"{}")
    (store / "broken" / "history").write_bytes(b"a file in the place of a folder")
    listed = {job["job"]: job for job in json.loads(weir("jobs", "--json").stdout)}
    assert listed[NAME]["state"] == "finished"
    assert listed["broken"]["state"] == "unreadable" and "Not a directory" in listed["broken"]["trouble"]


def test_a_file_that_can_not_be_read_is_named_and_gives_no_traceback(
    ended: AnsweringRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    history = Path(ended.launch.store, NAME, "history", "events.jsonl")
    history.unlink()
    history.mkdir()
    monkeypatch.setattr(sys, "argv", ["weir", "restarts", NAME])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 1
    assert "events.jsonl" in capsys.readouterr().err.replace("\n", "")
