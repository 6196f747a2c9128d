"""`weir resume` says what it does, and what it does not start and why. No Spark is started here."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.host.launch import MasterLaunch
from engine.host.run_folder import MasterExit, RunFolder
from engine.jobmaster.actions import Outcome
from tests.cli.command import weir


def started(store: Path, name: str, ended: MasterExit | None = None, *, stopped: bool = False, path: str = "") -> None:
    """Leaves a run folder as a job does that was started and does not run any more."""
    folder = RunFolder(store, name)
    launch = MasterLaunch(path=path or "no.such.module:job", name=name, store=str(store), max_slots=4, id="1")
    folder.prepare()
    folder.write_launch(launch)
    folder.want_running(launch, "cli")
    if stopped:
        folder.want_stopped("cli")
    if ended is not None:
        folder.write_exit(ended, launch)


@pytest.mark.promise("F1")
def test_what_was_stopped_has_failed_or_finished_or_is_not_there_is_not_resumed(tmp_path: Path) -> None:
    started(tmp_path, "stopped", MasterExit(Outcome.CANCELLED, "cancelled"), stopped=True)
    started(tmp_path, "failed", MasterExit(Outcome.FAILED, "operator 'clean': ZeroDivisionError"))
    started(tmp_path, "finished", MasterExit(Outcome.FINISHED, "all records are processed"))
    for name, said in (
        ("stopped", "was stopped on purpose (by cli), so it is not resumed: start it with `weir submit no.such.mod"),
        ("failed", "has failed (operator 'clean': ZeroDivisionError), so it is not resumed: mend the cause"),
        ("finished", "has finished, so it is not resumed: a start would read nothing"),
        ("gone", "there is no job 'gone' in the store"),
    ):
        done = weir("resume", name, store=tmp_path)
        assert done.returncode == 1 and said in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert f"--name stopped --store {tmp_path}`" in weir("resume", "stopped", store=tmp_path).stderr
    done = weir("resume", "--all", store=tmp_path)
    assert done.returncode == 0 and "stopped was stopped on purpose (by cli): nothing to do" in done.stdout
    assert "no job is to be resumed" in done.stdout
    assert "name one job, or use --all" in weir("resume", store=tmp_path).stderr


@pytest.mark.promise("F1", "F2")
def test_a_job_that_should_be_running_is_shown_as_such_and_its_fault_is_said(tmp_path: Path) -> None:
    started(tmp_path, "lost")
    listed = weir("jobs", store=tmp_path).stdout
    assert "lost: it should be running: `weir resume lost` starts it again and begins afresh: no epoch yet" in listed
    status = weir("status", "lost", store=tmp_path)
    assert "it should be running: `weir resume lost` starts it again and begins afresh" in status.stderr
    asked = " ".join(weir("savepoint", "lost", store=tmp_path).stderr.split())
    assert "job 'lost' is not running now" in asked and "after a reboot, `weir resume lost` starts it again" in asked
    assert status.stderr.count("weir resume") == 1
    for arguments in (["lost"], ["--all"]):
        done = weir("resume", *arguments, store=tmp_path)
        assert done.returncode == 1 and "there is no module 'no.such.module'" in done.stderr, done.stderr


@pytest.mark.promise("F1")
def test_a_job_that_lost_its_supervisor_is_told_once_how_to_be_started_again(tmp_path: Path) -> None:
    started(tmp_path, "lost", MasterExit(Outcome.CANCELLED, "its supervisor has died"))
    status = " ".join(weir("status", "lost", store=tmp_path).stderr.split())
    assert "it is cancelled (its supervisor has died); it should be running: `weir resume lost` starts it" in status
    assert status.count("weir resume") == 1


@pytest.mark.promise("F1")
def test_a_job_that_was_stopped_says_what_its_next_start_goes_on_from(tmp_path: Path) -> None:
    started(tmp_path, "stopped", MasterExit(Outcome.CANCELLED, "cancelled"), stopped=True)
    assert "stopped: its next start begins afresh: no epoch yet" in weir("jobs", store=tmp_path).stdout


@pytest.mark.promise("F1", "F2")
def test_a_job_whose_files_can_not_be_read_does_not_keep_the_others_from_being_resumed(tmp_path: Path) -> None:
    """After a reboot nobody is there to see that one job's folder is damaged: the others have to run."""
    started(tmp_path, "broken")
    (tmp_path / "broken/run/exit.json").mkdir()  # reading it is an error of the file system
    for name in ("lost", "lost_too"):
        started(tmp_path, name)
    done = weir("resume", "--all", store=tmp_path)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.count("there is no module 'no.such.module'") == 2, "the others were not tried, or not told"
    assert "broken can't be looked at, so it is not resumed: " in done.stderr
    assert str(tmp_path / "broken/run/exit.json") in done.stderr
