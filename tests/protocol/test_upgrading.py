"""The steps of an upgrade, decided from what is seen of the job (D8)."""

from __future__ import annotations

from itertools import product

import pytest

from engine.protocol.failures import Raised
from engine.protocol.upgrading import Decision, Ended, Phase, Progress, Seen, Step, Version, decide

PATIENCE_MS = 1000.0
CUT = 7
STOPPING = Progress(Phase.STOPPING)
STARTING = Progress(Phase.STARTING, CUT)
GOING_BACK = Progress(Phase.GOING_BACK, CUT, "the new version failed: no")


def seen(version: Version, **what: object) -> Seen:
    runs = bool(what.get("up"))
    shown = {"runs": runs, "up": False, "ended": None, "epoch": CUT, "waited_ms": 0.0, **what}
    return Seen(version, **shown)  # type: ignore[arg-type]


def next_step(progress: Progress, version: Version, **what: object) -> Decision:
    return decide(progress, seen(version, **what), PATIENCE_MS)


@pytest.mark.promise("D8")
def test_the_old_version_is_stopped_once_and_waited_for() -> None:
    assert next_step(STOPPING, Version.OLD, up=True).step is Step.STOP_OLD
    assert next_step(STOPPING, Version.OLD, up=True, asked=True).step is Step.WAIT
    assert next_step(STOPPING, Version.OLD, runs=True).step is Step.WAIT  # it is being restarted
    assert next_step(STOPPING, Version.OLD, ended=Ended.STOPPED, epoch=9) == Decision(
        Progress(Phase.STARTING, 9), Step.START_NEW
    )


@pytest.mark.promise("D8")
def test_an_old_version_that_can_not_stop_is_kept() -> None:
    kept = next_step(STOPPING, Version.OLD, up=True, declined="no space left")
    assert kept.step is None and kept.progress.phase is Phase.KEPT and "no space left" in kept.progress.reason
    late = next_step(STOPPING, Version.OLD, runs=True, waited_ms=1001.0, reason="Spark does not start")
    assert late.progress.phase is Phase.KEPT and "Spark does not start" in late.progress.reason


@pytest.mark.promise("D8")
@pytest.mark.parametrize("ended", [Ended.FAILED, Ended.CANCELLED, Ended.STOPPED_BY_OTHERS, None])
def test_nothing_is_started_if_the_old_version_did_not_stop_by_itself(ended: Ended | None) -> None:
    decision = next_step(STOPPING, Version.OLD, ended=ended)
    assert decision.step is None and decision.progress.phase is Phase.KEPT


@pytest.mark.promise("D8")
def test_an_epoch_of_the_new_version_completes_the_upgrade() -> None:
    assert next_step(STARTING, Version.OLD, ended=Ended.STOPPED).step is Step.START_NEW
    assert next_step(STARTING, Version.NEW, up=True).step is Step.WAIT
    assert next_step(STARTING, Version.NEW, up=True, epoch=CUT + 1) == Decision(Progress(Phase.UPGRADED, CUT), None)
    assert next_step(STARTING, Version.NEW, ended=Ended.FINISHED).progress.phase is Phase.UPGRADED


@pytest.mark.promise("D8")
def test_a_new_version_that_fails_before_its_first_epoch_makes_room_for_the_old_one() -> None:
    raised = Raised("ValueError", "no", "job.py:3")
    back = next_step(STARTING, Version.NEW, ended=Ended.FAILED, reason="ValueError: no", raised=raised)
    assert back.step is Step.START_OLD
    assert back.progress == Progress(Phase.GOING_BACK, CUT, "the new version failed: ValueError: no", raised)
    assert next_step(back.progress, Version.BACK, runs=True).step is Step.WAIT
    done = next_step(back.progress, Version.BACK, up=True)
    assert done.step is None and done.progress == Progress(Phase.BACK, CUT, back.progress.reason, raised)


@pytest.mark.promise("D8")
@pytest.mark.parametrize(
    ("progress", "version"),
    [(STARTING, Version.OLD), (STARTING, Version.BACK), (STARTING, Version.OTHER), (GOING_BACK, Version.OLD)],
)
def test_a_version_that_somebody_else_has_started_meanwhile_is_left_alone(progress: Progress, version: Version) -> None:
    decision = next_step(progress, version, up=True, epoch=CUT + 1, waited_ms=1001.0)
    assert decision.step is None and decision.progress.phase is Phase.KEPT
    assert "started anew by somebody else" in decision.progress.reason


@pytest.mark.promise("D8")
def test_a_new_version_that_takes_too_long_is_cancelled_first() -> None:
    late = next_step(STARTING, Version.NEW, runs=True, waited_ms=1001.0, reason="Spark does not start")
    assert late.step is Step.CANCEL_NEW and late.progress.phase is Phase.GOING_BACK
    assert late.progress.reason == (
        "the new version does not run and has published no epoch after 1 s; so far: Spark does not start"
    )
    assert next_step(late.progress, Version.NEW, runs=True).step is Step.CANCEL_NEW
    assert next_step(late.progress, Version.NEW, ended=Ended.CANCELLED).step is Step.START_OLD


@pytest.mark.promise("D8")
def test_a_new_version_that_was_faster_than_its_cancel_is_started_again() -> None:
    """Also by a command that takes over after the first one died between writing this down and the start."""
    again = next_step(GOING_BACK, Version.NEW, ended=Ended.CANCELLED, epoch=CUT + 1)
    assert again == Decision(Progress(Phase.STARTING, CUT, again=True), Step.START_NEW)
    assert next_step(again.progress, Version.NEW, ended=Ended.CANCELLED, epoch=CUT + 1).step is Step.START_NEW
    assert next_step(again.progress, Version.NEW, up=True, epoch=CUT + 1).progress.phase is Phase.UPGRADED


@pytest.mark.promise("D8")
def test_a_new_version_that_fails_behind_its_first_epoch_is_not_replaced_by_the_old_one() -> None:
    failed = next_step(STARTING, Version.NEW, ended=Ended.FAILED, epoch=CUT + 1, reason="no")
    assert failed.step is None and failed.progress.phase is Phase.FAILED
    assert (
        failed.progress.reason
        == "the new version published epoch 8, so the old one can't take over, and then failed: no"
    )


@pytest.mark.promise("D8")
def test_processes_that_died_are_started_again_by_the_command_that_takes_over() -> None:
    assert next_step(STARTING, Version.NEW).step is Step.START_NEW
    assert next_step(STARTING, Version.NEW, epoch=CUT + 1).step is Step.START_NEW
    assert next_step(GOING_BACK, Version.BACK).step is Step.START_OLD
    assert next_step(GOING_BACK, Version.NEW).step is Step.START_OLD


@pytest.mark.promise("D8")
def test_an_old_version_that_fails_too_is_said_with_both_reasons() -> None:
    failed = next_step(GOING_BACK, Version.BACK, ended=Ended.FAILED, reason="no either")
    assert failed.progress.phase is Phase.FAILED
    assert failed.progress.reason == "the new version failed: no; then the old version failed: no either"


@pytest.mark.promise("D8")
@pytest.mark.parametrize("progress", [STOPPING, STARTING, GOING_BACK])
def test_a_start_by_somebody_else_ends_the_upgrade(progress: Progress) -> None:
    decision = next_step(progress, Version.OTHER, up=True)
    assert decision.step is None and decision.progress.phase is Phase.KEPT


@pytest.mark.promise("D8", "F1")
@pytest.mark.parametrize("progress", [STOPPING, STARTING, GOING_BACK])
def test_behind_a_cancel_no_version_is_started_and_one_that_runs_is_ended(progress: Progress) -> None:
    for version in (Version.OLD, Version.NEW, Version.BACK):
        assert next_step(progress, version, runs=True, cancelled=True).step is Step.CANCEL
        assert next_step(progress, version, up=True, cancelled=True).step is Step.CANCEL
        for ended in (None, *Ended):
            over = next_step(progress, version, ended=ended, cancelled=True)
            assert over.step is None and over.progress.phase is Phase.KEPT and "cancelled" in over.progress.reason
    other = next_step(progress, Version.OTHER, up=True, cancelled=True)
    assert other.step is None and other.progress.phase is Phase.KEPT, "the cancel was not about a later start"


@pytest.mark.promise("D8")
def test_a_new_version_that_has_published_and_is_then_cancelled_is_the_version_of_the_job() -> None:
    over = next_step(STARTING, Version.NEW, ended=Ended.CANCELLED, epoch=CUT + 1, cancelled=True)
    assert over.step is None and over.progress.phase is Phase.UPGRADED


@pytest.mark.promise("D8")
def test_the_old_version_is_never_started_behind_an_epoch_of_the_new_one() -> None:
    """Every situation that can be seen, in every phase: START_OLD only at the cut, and a step unless it is over."""
    phases = (STOPPING, STARTING, GOING_BACK, Progress(Phase.STARTING, CUT, again=True))
    situations = product(phases, Version, (None, *Ended), (False, True), (False, True), (CUT, CUT + 1), (0.0, 2000.0))
    for progress, version, ended, runs, up, epoch, waited_ms in situations:
        if (ended is not None and runs) or (up and not runs):
            continue
        decision = next_step(progress, version, ended=ended, runs=runs, up=up, epoch=epoch, waited_ms=waited_ms)
        assert (decision.step is None) == decision.progress.phase.over
        if decision.step is Step.START_OLD:
            assert version is Version.BACK or (epoch == CUT and not runs)
        if decision.step is Step.START_NEW:
            assert not runs
