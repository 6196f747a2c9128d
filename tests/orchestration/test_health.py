"""Goal: a job's health follows from its desired state and the age of its last heartbeat, never from a pid."""

from __future__ import annotations

import msgspec
import pytest

from engine.host.launch import MasterLaunch
from engine.host.run_folder import Deaths, Desired, LastHeartbeat, MasterExit
from engine.jobmaster.actions import Outcome
from engine.protocol.failures import Fault
from orchestration.health import State, judge

LAUNCH = MasterLaunch(path="a:b", name="numbers", store="/store", max_slots=4)
NOW_MS = 1_000_000
SILENT_AFTER_S = 30.0


def wanted(age_s: float) -> Desired:
    return Desired(True, LAUNCH, "cli", NOW_MS - int(age_s * 1000))


def beat(age_s: float, phase: str = "running") -> LastHeartbeat:
    return LastHeartbeat(NOW_MS - int(age_s * 1000), 4, phase)


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
        (wanted(61), None, None, State.SILENT, False, True),  # the JobMaster never came up
        (wanted(500), MasterExit(Outcome.FINISHED, "all done"), beat(100), State.FINISHED, True, False),
        (wanted(500), MasterExit(Outcome.FAILED, "your function"), beat(100), State.FAILED, False, False),
        (wanted(500), MasterExit(Outcome.CANCELLED, "its supervisor died"), beat(100), State.GONE, False, True),
    ],
)
def test_a_job_is_judged_by_what_should_be_and_when_it_was_last_heard(
    desired: Desired | None,
    ended: MasterExit | None,
    heartbeat: LastHeartbeat | None,
    state: State,
    healthy: bool,
    start_again: bool,
) -> None:
    health = judge(desired, ended, heartbeat, NOW_MS, SILENT_AFTER_S)
    assert (health.state, health.healthy, health.start_again) == (state, healthy, start_again)


def test_the_reason_of_a_failure_is_what_the_user_reads() -> None:
    health = judge(wanted(500), MasterExit(Outcome.FAILED, "operator 'clean': ZeroDivisionError"), None, NOW_MS, 30)
    assert health.detail == "operator 'clean': ZeroDivisionError"


def test_a_clock_that_was_set_back_makes_no_negative_age() -> None:
    assert judge(wanted(10), None, beat(-5), NOW_MS, 30).heartbeat_age_s == 0


@pytest.mark.promise("H8")
def test_a_job_whose_supervisor_replaces_its_jobmaster_is_recovering_and_says_why() -> None:
    deaths = Deaths(7, 5, Fault.OUTSIDE, "signal SIGKILL", NOW_MS - 10_000, NOW_MS + 30_000)
    health = judge(wanted(500), None, beat(100), NOW_MS, 30, deaths)
    assert health.state is State.RECOVERING and not health.healthy and not health.start_again
    assert (
        "died 5 times without an epoch in between, last by: signal SIGKILL; the next one starts in 30 s"
        in health.detail
    )
    gone = msgspec.structs.replace(deaths, at_ms=NOW_MS - 90_000, again_at_ms=NOW_MS - 80_000)
    assert judge(wanted(500), None, beat(100), NOW_MS, 30, gone).start_again, "the supervisor died, too"
    assert judge(wanted(500), None, beat(1), NOW_MS, 30, deaths).state is State.RUNNING, "the next one runs"
