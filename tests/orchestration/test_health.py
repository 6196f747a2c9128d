"""Goal: a job's health follows from its desired state, its processes' signs of life, and whether they still exist."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.host import run_folder
from engine.host.launch import MasterLaunch
from engine.host.processes import has_ended, identity
from engine.host.run_folder import Deaths, LastHeartbeat, MasterAddress, MasterExit, SupervisorSign
from engine.host.starts import Desired
from engine.jobmaster.actions import Outcome
from engine.protocol.failures import Fault
from engine.protocol.remedy import Stage
from orchestration.health import Signs, State, judge, look
from tests.fakes import while_it_sleeps
from tests.orchestration.jobs import FakeJob

LAUNCH = MasterLaunch(path="a:b", name="numbers", store="/store", max_slots=4)
NOW_MS = 1_000_000
SILENT_AFTER_S = 30.0


def wanted(age_s: float) -> Desired:
    return Desired(True, LAUNCH, "cli", NOW_MS - int(age_s * 1000))


def beat(age_s: float, phase: str = "running") -> LastHeartbeat:
    return LastHeartbeat(NOW_MS - int(age_s * 1000), 4, phase)


def shows(stage: Stage | None, for_s: int = 80) -> SupervisorSign:
    return SupervisorSign("", 7, NOW_MS, stage, for_s)


@pytest.mark.parametrize(
    ("desired", "ended", "heartbeat", "state", "healthy", "start_again"),
    [
        (None, None, None, State.UNKNOWN, False, False),
        (Desired(False, LAUNCH, "http", 0), None, beat(900), State.STOPPED, True, False),
        (wanted(10), None, None, State.STARTING, True, False),
        (wanted(10), None, beat(300), State.STARTING, True, False),  # the previous JobMaster's heartbeat
        (wanted(500), None, beat(1), State.RUNNING, True, False),
        (wanted(500), None, beat(1, "restarting"), State.RECOVERING, False, False),
        (wanted(500), None, beat(31), State.SILENT, False, False),
        (wanted(500), None, beat(61), State.SILENT, False, True),
        (wanted(61), None, None, State.SILENT, False, True),  # nothing ever came up
        (wanted(500), MasterExit(Outcome.FINISHED, "all done"), beat(100), State.FINISHED, True, False),
        (wanted(500), MasterExit(Outcome.FAILED, "your function"), beat(100), State.FAILED, False, False),
        (wanted(500), MasterExit(Outcome.CANCELLED, "its supervisor died"), beat(100), State.GONE, False, True),
    ],
)
def test_a_job_without_a_supervisor_is_judged_by_what_should_be_and_when_it_was_last_heard(
    desired: Desired | None,
    ended: MasterExit | None,
    heartbeat: LastHeartbeat | None,
    state: State,
    healthy: bool,
    start_again: bool,
) -> None:
    health = judge(desired, ended, Signs(heartbeat), NOW_MS, SILENT_AFTER_S)
    assert (health.state, health.healthy, health.start_again) == (state, healthy, start_again)


@pytest.mark.promise("F1", "H8")
@pytest.mark.parametrize("stage", [Stage.LOADING, Stage.STARTING, Stage.PREPARING, Stage.DECIDING])
@pytest.mark.parametrize("heartbeat", [None, beat(9_000)], ids=["the first start", "an earlier start's heartbeat"])
def test_a_live_supervisor_is_a_job_that_starts_however_long_it_takes(
    stage: Stage, heartbeat: LastHeartbeat | None
) -> None:
    """As found with a DataFrame that Spark wrote for longer than a minute: the sensor started the job again."""
    signs = Signs(heartbeat, supervisor=shows(stage), supervisor_ms=NOW_MS)
    health = judge(wanted(7_200), None, signs, NOW_MS, SILENT_AFTER_S)
    assert health.state is State.STARTING and health.healthy and not health.start_again
    assert stage.value in health.detail and "80 s" in health.detail


@pytest.mark.promise("H8")
def test_a_live_supervisor_is_never_doubled_even_if_its_jobmaster_s_heartbeat_stopped() -> None:
    signs = Signs(beat(400), supervisor=shows(Stage.DECIDING), supervisor_ms=NOW_MS)
    health = judge(wanted(7_200), None, signs, NOW_MS, SILENT_AFTER_S)
    assert health.state is State.SILENT and not health.healthy and not health.start_again


def test_a_dead_supervisor_whose_last_sign_is_fresh_is_not_green() -> None:
    health = judge(wanted(500), None, Signs(None, supervisor_ms=NOW_MS - 6_000), NOW_MS, SILENT_AFTER_S)
    assert health.state is State.SILENT and not health.healthy and not health.start_again
    later = judge(wanted(500), None, Signs(None, supervisor_ms=NOW_MS - 61_000), NOW_MS, SILENT_AFTER_S)
    assert later.start_again


def test_the_reason_of_a_failure_is_what_the_user_reads() -> None:
    failed = MasterExit(Outcome.FAILED, "operator 'clean': ZeroDivisionError")
    assert judge(wanted(500), failed, Signs(), NOW_MS, 30).detail == "operator 'clean': ZeroDivisionError"


def test_a_clock_that_was_set_back_keeps_no_dead_job_green() -> None:
    assert judge(wanted(10), None, Signs(beat(-2)), NOW_MS, 30).heartbeat_age_s == 0
    ahead = judge(wanted(-3_600), None, Signs(beat(-3_600), supervisor_ms=NOW_MS + 3_600_000), NOW_MS, 30)
    assert not ahead.healthy and ahead.start_again, "neither gave a sign while somebody looked"


@pytest.mark.promise("H8")
def test_a_job_whose_supervisor_replaces_its_jobmaster_is_recovering_and_says_why() -> None:
    deaths = Deaths(7, 5, Fault.OUTSIDE, "signal SIGKILL", NOW_MS - 10_000, NOW_MS + 30_000)
    health = judge(wanted(500), None, Signs(beat(100), deaths, shows(None), NOW_MS), NOW_MS, 30)
    assert health.state is State.RECOVERING and not health.healthy and not health.start_again
    says = "died 5 times without an epoch in between, last by: signal SIGKILL; the next one starts in 30 s"
    assert says in health.detail and "waiting before the next start" in health.detail
    dead = Signs(beat(100), deaths, None, NOW_MS - 61_000)
    assert judge(wanted(500), None, dead, NOW_MS, 30).start_again, "the supervisor died, too"
    assert judge(wanted(500), None, Signs(beat(1), deaths), NOW_MS, 30).state is State.RUNNING, "the next one runs"
    killed = judge(wanted(500), None, Signs(beat(12), deaths, shows(Stage.LOADING), NOW_MS), NOW_MS, 30)
    assert killed.state is State.RECOVERING, "a heartbeat from before the death says nothing"


@pytest.fixture
def job(tmp_path: Path) -> FakeJob:
    made = FakeJob(tmp_path)
    made.wanted()
    made.folder._write_desired(Desired(True, made.launch, "cli", 1_000))  # the clock has jumped, or the machine slept
    return made


@pytest.mark.promise("H8")
def test_a_supervisor_that_gives_a_sign_while_somebody_looks_lives_whatever_the_clocks_say(
    job: FakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.beats(7_200)
    job.supervised(Stage.PREPARING, number=1, age_s=7_200)
    while_it_sleeps(monkeypatch, lambda: job.supervised(Stage.PREPARING, number=2, age_s=7_199))
    health = look(job.folder, SILENT_AFTER_S)
    assert not health.start_again and "writing the job's DataFrames" in health.detail


@pytest.mark.promise("H8")
@pytest.mark.parametrize("age_s", [7_200, -7_200], ids=["long ago", "in the future"])
def test_two_dead_processes_are_started_again_whatever_the_clocks_say(
    job: FakeJob, monkeypatch: pytest.MonkeyPatch, age_s: float
) -> None:
    monkeypatch.setattr(run_folder, "SIGN_PATIENCE_S", 0.05)
    job.beats(age_s)
    job.supervised(Stage.DECIDING, number=1, age_s=age_s)
    health = look(job.folder, SILENT_AFTER_S)
    assert health.state is State.SILENT and not health.healthy and health.start_again


def test_the_sign_of_an_earlier_start_s_supervisor_says_nothing(job: FakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    while_it_sleeps(monkeypatch, lambda: job.supervised(Stage.STARTING, number=2, launch_id="earlier"))
    job.supervised(Stage.STARTING, number=1, launch_id="earlier")
    assert look(job.folder, SILENT_AFTER_S).start_again


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as made:
        yield made
        made.kill()


@pytest.mark.promise("F2")
def test_a_killed_jobmaster_is_not_green_although_its_heartbeat_is_fresh(
    tmp_path: Path, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_folder, "SIGN_PATIENCE_S", 0.05)
    job = FakeJob(tmp_path)
    job.wanted()
    job.folder._write_desired(Desired(True, job.launch, "cli", 1_000))
    job.folder.write_address(MasterAddress("http://127.0.0.1:1", process.pid, 1, "token", identity(process.pid)))
    job.beats()
    assert look(job.folder, SILENT_AFTER_S).state is State.RUNNING
    process.kill()
    process.wait()
    job.beats()  # what it wrote last
    health = look(job.folder, SILENT_AFTER_S)
    assert health.state is State.SILENT and not health.healthy and not health.start_again
    while_it_sleeps(monkeypatch, lambda: job.supervised(Stage.DECIDING, number=2))
    job.supervised(Stage.DECIDING, number=1)
    replaced = look(job.folder, SILENT_AFTER_S)
    assert replaced.state is State.RECOVERING and "process has ended" in replaced.detail


def test_a_pid_that_is_given_again_is_another_process_and_one_of_elsewhere_says_nothing(
    process: subprocess.Popen[bytes],
) -> None:
    mine = identity(process.pid)
    where, pid, start = mine.rsplit(":", 2)
    assert not has_ended(mine)
    assert has_ended(f"{where}:{pid}:{int(start) - 1}"), "the pid was another process' before"
    assert not has_ended(f"another boot:1:{pid}:{start}") and not has_ended("")
    process.kill()
    process.wait()
    assert has_ended(mine)
