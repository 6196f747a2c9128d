"""When a JobMaster hangs, and when the next one starts."""

from __future__ import annotations

import pytest

from engine.protocol.failures import Fault
from engine.protocol.remedy import Death, Stage
from engine.protocol.supervision import Silence, StandbySupervision, Supervision

KILLED = Death(Fault.OUTSIDE, "signal SIGKILL")


@pytest.mark.promise("H8")
def test_a_jobmaster_that_dies_from_outside_is_replaced_for_ever_and_ever_later_up_to_a_minute() -> None:
    supervision = Supervision(silent_ms=30_000)
    delays = [supervision.on_death(KILLED, 0.0, jitter=0.5) for _ in range(200)]
    assert delays[:4] == [250, 500, 1000, 2000]
    assert delays[-1] == 60_000 and supervision.deaths == supervision.in_a_row == 200
    assert 0.75 * 60_000 <= supervision.on_death(KILLED, 0.0, jitter=0.0) < 60_000
    assert 60_000 < supervision.on_death(KILLED, 0.0, jitter=0.99) <= 1.25 * 60_000


@pytest.mark.promise("H8")
def test_a_defect_of_weir_is_replaced_too_and_the_job_s_own_fault_is_not() -> None:
    supervision = Supervision(silent_ms=30_000)
    assert supervision.on_death(Death(Fault.WEIR, "KeyError"), 0.0, 0.5) is not None
    assert supervision.on_death(Death(Fault.JOB, "it does not build"), 0.0, 0.5) is None


@pytest.mark.promise("H8")
def test_a_new_epoch_ends_the_row_of_deaths_and_a_restored_one_does_not() -> None:
    supervision = Supervision(silent_ms=30_000)
    supervision.on_sign(Stage.DECIDING, 41)
    supervision.on_sign(Stage.DECIDING, 42)
    for _ in range(3):
        supervision.on_death(KILLED, 0.0, 0.5)
        supervision.on_start()
        supervision.on_sign(Stage.LOADING, None)
        supervision.on_sign(Stage.DECIDING, 42)
    assert supervision.in_a_row == 3
    supervision.on_sign(Stage.DECIDING, 43)
    assert supervision.in_a_row == 0 and supervision.deaths == 3
    assert supervision.on_death(KILLED, 0.0, 0.5) == 250


def test_the_epoch_that_a_first_jobmaster_restores_ends_no_row_of_deaths() -> None:
    supervision = Supervision(silent_ms=30_000)
    for _ in range(2):
        supervision.on_death(KILLED, 0.0, 0.5)  # before it gave any sign
        supervision.on_start()
    supervision.on_sign(Stage.DECIDING, 42)
    assert supervision.in_a_row == 2


def hung_after(supervision: Supervision, seconds: int, step_ms: float = 200) -> float | None:
    found = None
    for look in range(1, int(seconds * 1000 / step_ms) + 1):
        found = found or supervision.hung_for_s(look * step_ms)
    return found


@pytest.mark.promise("F2")
def test_a_deciding_thread_without_a_sign_of_life_hangs_after_the_time_out_and_not_before() -> None:
    for seconds, hangs in ((29, False), (31, True)):
        supervision = Supervision(silent_ms=30_000)
        supervision.on_start()
        supervision.on_sign(Stage.DECIDING, 1)
        assert (hung_after(supervision, seconds) is not None) == hangs


@pytest.mark.promise("F2")
def test_loading_and_starting_spark_may_take_minutes_and_writing_dataframes_hours() -> None:
    for stage, seconds, hangs in (
        (Stage.LOADING, 290, False),
        (Stage.STARTING, 290, False),
        (Stage.STARTING, 310, True),
        (Stage.PREPARING, 10_000, False),
        (Stage.ENDING, 100, False),
        (Stage.ENDING, 130, True),
    ):
        supervision = Supervision(silent_ms=3_000)
        supervision.on_start()
        supervision.on_sign(stage, None)
        assert (hung_after(supervision, seconds, 900) is not None) == hangs, stage


@pytest.mark.promise("F2")
def test_a_supervisor_that_slept_itself_blames_nobody() -> None:
    silence = Silence()
    silence.look(0.0)
    assert silence.look(3_600_000.0) == 1000, "an hour between two looks counts as a second"
    silence.heard()
    assert silence.look(3_600_200.0) == 200


def test_a_silence_is_told_in_seconds() -> None:
    supervision = Supervision(silent_ms=30_000)
    supervision.on_start()
    supervision.on_sign(Stage.DECIDING, 1)
    assert hung_after(supervision, 31) == pytest.approx(30.2)


@pytest.mark.promise("F2")
def test_the_silence_of_a_jobmaster_is_not_held_against_the_next_one() -> None:
    supervision = Supervision(silent_ms=30_000)
    supervision.on_start()
    supervision.on_sign(Stage.DECIDING, 1)
    assert all(supervision.hung_for_s(second * 1000.0) is None for second in range(30))
    supervision.on_start()  # its loading may take five minutes
    assert all(supervision.hung_for_s(second * 1000.0) is None for second in range(30, 320))


@pytest.mark.promise("F2")
def test_a_standby_takes_over_at_once_but_not_again_and_again_without_an_epoch() -> None:
    supervision = Supervision(silent_ms=30_000)
    assert supervision.on_death(KILLED, 0.0, 0.5, standby=True) == 0.0
    assert supervision.on_death(KILLED, 0.0, 0.5, standby=True) == 500
    supervision.on_sign(Stage.DECIDING, 1)
    supervision.on_sign(Stage.DECIDING, 2)
    assert supervision.on_death(KILLED, 0.0, 0.5, standby=True) == 0.0
    assert supervision.on_death(Death(Fault.JOB, "it does not build"), 0.0, 0.5, standby=True) is None


@pytest.mark.promise("F2")
def test_a_standby_is_started_once_the_job_runs() -> None:
    standby = StandbySupervision(silent_ms=30_000)
    early = (None, Stage.LOADING, Stage.STARTING, Stage.PREPARING, Stage.STANDING_BY, Stage.ENDING)
    assert not any(standby.due(stage, 0.0) for stage in early)
    assert standby.due(Stage.DECIDING, 0.0)


@pytest.mark.promise("H8")
def test_a_standby_that_dies_of_anything_is_replaced_later_and_later_until_one_is_ready() -> None:
    standby = StandbySupervision(silent_ms=30_000)
    for wait_ms in (250, 500, 1000):
        standby.on_start()
        standby.on_sign(Stage.STARTING)
        standby.on_death(Death(Fault.JOB, "it does not build"), 0.0, 0.5)
        assert not standby.due(Stage.DECIDING, wait_ms - 1) and standby.due(Stage.DECIDING, wait_ms)
    assert standby.deaths == 3
    standby.on_start()
    standby.on_sign(Stage.STANDING_BY)
    assert standby.deaths == 0
    standby.on_death(KILLED, 0.0, 0.5)
    assert standby.due(Stage.DECIDING, 250)


@pytest.mark.promise("F2")
def test_a_standby_without_a_sign_of_life_hangs_as_a_jobmaster_does() -> None:
    standby = StandbySupervision(silent_ms=3_000)
    standby.on_start()
    standby.on_sign(Stage.STANDING_BY)
    assert all(standby.hung_for_s(second * 1000.0) is None for second in range(4))
    assert standby.hung_for_s(4_000.0) == 4


@pytest.mark.promise("F2")
def test_after_a_takeover_the_next_standby_is_started_without_a_wait() -> None:
    standby = StandbySupervision(silent_ms=3_000)
    standby.on_start()
    standby.on_death(KILLED, 0.0, 0.5)
    standby.on_start()
    standby.on_takeover()
    assert standby.due(Stage.DECIDING, 0.0) and standby.stage is None and standby.deaths == 0
