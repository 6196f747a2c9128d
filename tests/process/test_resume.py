"""What `weir resume` starts again, and how: exactly as the last time, in the folder of that start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.core.errors import WeirError
from engine.host.launch import LaunchOptions, MasterLaunch
from engine.host.run_folder import MasterExit, RunFolder
from engine.host.starts import Desired
from engine.jobmaster.actions import Outcome
from engine.observe.client import JobClient
from engine.process import submit
from engine.process.resume import Wanted, look, resume, wanted
from engine.process.submit import plan_launch
from engine.spark.code import archive_of, keep_code

PATH = "tests.cli.test_submitting:job"


def launch_in(store: Path, **options: Any) -> MasterLaunch:
    """A launch as `weir submit` plans it."""
    return plan_launch(LaunchOptions(path=PATH, name="numbers", **options), store)


@pytest.mark.promise("F1", "F2")
@pytest.mark.parametrize(
    ("running", "outcome", "looked_after", "verdict"),
    [
        (True, None, False, Wanted.RESUMED),
        (True, Outcome.CANCELLED, False, Wanted.RESUMED),  # its supervisor was killed, or the machine shut down
        (True, Outcome.FENCED, False, Wanted.RESUMED),
        (True, None, True, Wanted.RUNNING),
        (True, Outcome.FINISHED, False, Wanted.FINISHED),
        (True, Outcome.FAILED, False, Wanted.FAILED),
        (False, Outcome.CANCELLED, False, Wanted.STOPPED),
        (False, None, False, Wanted.STOPPED),
        (None, None, False, Wanted.NEVER_STARTED),
    ],
)
def test_only_what_should_be_running_and_did_not_end_by_itself_is_resumed(
    running: bool | None, outcome: Outcome | None, looked_after: bool, verdict: Wanted
) -> None:
    launch = MasterLaunch(path=PATH, name="numbers", store="/store", max_slots=4)
    desired = None if running is None else Desired(running, launch, "cli", 0)
    ended = None if outcome is None else MasterExit(outcome, "because")
    assert wanted(desired, ended, looked_after) is verdict


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], Path]]:
    """Collects what would be started, and in which folder."""
    found: list[tuple[list[str], Path]] = []
    popen = subprocess.Popen

    def start(command: list[str], **options: Any) -> subprocess.Popen[bytes] | None:
        if "engine.process.supervisor" not in command:
            return popen(command, **options)  # such as the search for a Java
        found.append((command, Path.cwd()))
        return None

    monkeypatch.setattr(submit.subprocess, "Popen", start)
    return found


@pytest.mark.promise("F1", "F2")
def test_a_job_is_started_again_exactly_as_the_last_time(
    tmp_path: Path, started: list[tuple[list[str], Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {
        "params": {"table": "other"},
        "parallelism": 1,
        "max_slots": 3,
        "slot_memory_mb": 700,
        "spark_master": "local[5]",
        "conf": {"spark.log.level": "ERROR"},
        "standby": True,
        "step_timeout_s": 77.0,
    }
    launch = launch_in(tmp_path / "store", **asked)
    allowed = msgspec.structs.replace(launch, allow_non_restored_state=True, allowed_epoch=0)
    assert Path(launch.folder) == Path.cwd()
    folder = RunFolder(tmp_path / "store", "numbers")
    folder.prepare()
    folder.write_launch(allowed)
    folder.want_running(allowed, "dagster")
    project = Path.cwd()
    monkeypatch.chdir(tmp_path)
    client = JobClient(str(tmp_path / "store"), "numbers")
    found = look(client)
    assert found.verdict is Wanted.RESUMED and found.launch == allowed
    assert resume(client, found.launch, "cli").startswith("numbers begins afresh: no epoch yet")
    again, desired = folder.read_launch(), folder.read_desired()
    assert again is not None and desired is not None and desired.running and desired.launch == again
    same = msgspec.structs.replace(again, id=launch.id)
    assert again.id != launch.id and same == launch, "what that start was allowed to drop is not allowed again"
    [(command, where)] = started
    assert command[1:3] == ["-m", "engine.process.supervisor"] and command[-1] == again.id
    assert where == project, "the supervisor finds the job in the folder of its first start"


RESUME = """
import sys
from engine.observe.client import JobClient
from engine.process import resume, submit
resume.start_detached = lambda launch, by: print("code:", launch.code)
client = JobClient(sys.argv[1], "numbers")
print(resume.resume(client, client.folder.read_launch(), "cli"))
"""


@pytest.mark.promise("F1", "F2")
@pytest.mark.parametrize("edit", ["", "# the next version", "def job(env:"])
def test_a_job_whose_files_have_changed_is_resumed_with_the_code_of_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edit: str
) -> None:
    """After an upgrade was given up, the resume ran the new version all the same."""
    package, store = tmp_path / "project" / "shop_of_resume", tmp_path / "store"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    text = "def job(env):\n    env.from_elements([{'n': 1}], 'n long', uid='n').to_spark_table('t', uid='out')\n"
    (package / "job.py").write_text(text)
    monkeypatch.chdir(package.parent)
    monkeypatch.syspath_prepend(str(package.parent))
    launch = plan_launch(LaunchOptions(path="shop_of_resume.job:job", name="numbers"), store)
    folder = RunFolder(store, "numbers")
    folder.prepare()
    folder.write_launch(launch)
    folder.want_running(launch, "cli")
    keep_code(launch)
    (package / "job.py").write_text(text + edit)
    command = [sys.executable, "-I", "-c", RESUME, str(store)]  # as `weir`, which does not look in its folder first
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    code = str(archive_of(launch)) if edit else ""
    assert f"code: {code}\n" in done.stdout
    assert ("it runs the code that it was started with" in done.stdout) is bool(edit)


@pytest.mark.promise("F1")
def test_a_job_in_a_store_that_was_moved_is_refused(tmp_path: Path, started: list[Any]) -> None:
    """A copy of the store would otherwise start a second JobMaster on the tables of the first."""
    launch = launch_in(tmp_path / "old")
    (tmp_path / "new").mkdir()
    with pytest.raises(WeirError, match=r"was started with the store .*old, and this one is .*new: if it was moved"):
        resume(JobClient(str(tmp_path / "new"), "numbers"), launch, "cli")
    assert not started


@pytest.mark.promise("F1")
def test_a_job_whose_folder_or_secret_is_gone_is_refused_before_anything_starts(
    tmp_path: Path, started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("S3_KEY", "x")
    launch = launch_in(tmp_path, conf={"spark.hadoop.key": "env:S3_KEY"})
    monkeypatch.delenv("S3_KEY")
    client = JobClient(str(tmp_path), "numbers")
    with pytest.raises(WeirError, match="the environment variable S3_KEY is not set; set it where the job is started"):
        resume(client, launch, "cli")
    gone = msgspec.structs.replace(launch, folder=str(tmp_path / "gone"))
    with pytest.raises(WeirError, match=r"was started in .*gone, which can't be entered: No such file"):
        resume(client, gone, "cli")
    assert not started


@pytest.mark.promise("F2")
def test_after_its_supervisor_was_killed_a_job_is_to_be_resumed(tmp_path: Path) -> None:
    """A real process gives signs as a supervisor does, until it is killed."""
    launch = launch_in(tmp_path)
    folder = RunFolder(tmp_path, "numbers")
    folder.prepare()
    folder.write_launch(launch)
    folder.want_running(launch, "cli")
    code = (
        "import sys, time\nfrom engine.host.run_folder import RunFolder, SupervisorSign\n"
        "folder = RunFolder(sys.argv[1], 'numbers')\n"
        "for n in range(10000): folder.write_supervisor(SupervisorSign(sys.argv[2], n, 0, None, 0)); time.sleep(0.1)"
    )
    lives = subprocess.Popen([submit.sys.executable, "-c", code, str(tmp_path), launch.id])
    try:
        while folder.read_supervisor() is None:
            assert lives.poll() is None
        client = JobClient(str(tmp_path), "numbers")
        assert look(client).verdict is Wanted.RUNNING
        lives.kill()
        lives.wait()
        assert look(client).verdict is Wanted.RESUMED
    finally:
        lives.kill()
        lives.wait()
