"""Goal: rescales, savepoints and stops that meet each other decide as their users expect, and every row is right.

Topology and harness as in test_savepoints.py. Faults: none but the requests themselves, at bad moments.
"""

from __future__ import annotations

import pytest

from engine.jobmaster import events
from engine.jobmaster.actions import Outcome
from engine.jobmaster.master import Phase
from engine.jobmaster.rescaling import Accepted, Refused, RescalePhase
from engine.jobmaster.savepoints import Refusal
from engine.protocol.savepoint import SavepointRequest
from engine.testing import Crash, Item, Scaling
from tests.jobmaster.test_savepoints import Run, counting, record

PERIODIC = 1_000_000
"""So long that no checkpoint by interval comes in between."""


def running(run: Run) -> Run:
    run.run(lambda: run.master.phase.value == "running" and run.now_ms() > 20)
    return run


def phase(run: Run) -> RescalePhase | None:
    current = run.master._rescaler.current
    return current.phase if current is not None else None


@pytest.mark.promise("D6", "D7")
def test_a_stop_gives_up_a_rescale_that_is_not_decided_and_the_job_stops_at_the_old_parallelism() -> None:
    run = running(Run(counting(PERIODIC)))
    assert isinstance(run.rescale(Scaling(3)), Accepted)
    assert run.stop() is None
    (given_up,) = run.rescales
    assert isinstance(given_up, events.RescaleFailed) and "being stopped" in given_up.why
    run.run()
    assert run.ended is not None and run.ended.outcome is Outcome.STOPPED and run.scaling == Scaling()


@pytest.mark.promise("D6", "D7")
def test_a_job_that_is_being_stopped_is_not_rescaled() -> None:
    run = running(Run(counting(PERIODIC)))
    assert run.stop() is None
    answer = run.rescale(Scaling(3))
    assert isinstance(answer, Refused) and "being stopped" in answer.why and not answer.wrong
    run.run()
    assert run.ended is not None and run.ended.outcome is Outcome.STOPPED


@pytest.mark.promise("D5", "D7")
def test_a_rescale_waits_for_a_savepoint_that_is_under_way() -> None:
    run = running(Run(counting(PERIODIC)))
    run.hold = "savepoint"
    assert not isinstance(run.savepoint(), Refusal)
    run.run(lambda: bool(run.held))
    assert isinstance(run.rescale(Scaling(3)), Accepted)
    run.run(lambda: run.now_ms() > 60)
    assert phase(run) is RescalePhase.SLOTS and not run.rescales, "its checkpoint would lead to a switch"
    run.let_go()
    run.run(lambda: bool(run.rescales))
    assert isinstance(run.rescales[0], events.Rescaled)
    assert run.noted(events.SavepointCompleted)
    run.run()
    assert run.ended is not None and run.ended.outcome is Outcome.FINISHED


@pytest.mark.promise("D5", "D7")
def test_a_rescale_whose_slots_are_there_waits_for_a_long_savepoint_and_does_not_blame_spark() -> None:
    run = running(Run(counting(PERIODIC)))
    run.hold = "savepoint"
    run.savepoint()
    run.run(lambda: bool(run.held))
    run.rescale(Scaling(3))
    run.run(lambda: run.now_ms() > 60)
    rescaler = run.master._rescaler
    assert run.master.slots.free_count >= 3
    assert rescaler.on_tick(run.now_ms() + 2 * run.master.config.slots_timeout_ms) == []
    assert rescaler.wakeup_ms is None, "the deciding thread would not sleep any more"
    run.let_go()
    run.run(lambda: bool(run.rescales))
    assert isinstance(run.rescales[0], events.Rescaled)


@pytest.mark.promise("D5", "D7")
def test_no_savepoint_is_begun_while_a_rescale_takes_its_checkpoint() -> None:
    run = running(Run(counting(PERIODIC)))
    run.rescale(Scaling(1))  # no further slots: its checkpoint is triggered at once
    assert phase(run) is RescalePhase.CHECKPOINT
    refused = run.savepoint(SavepointRequest("later"))
    assert isinstance(refused, Refusal) and "being rescaled" in refused.why
    run.run(lambda: bool(run.rescales))
    assert isinstance(run.rescales[0], events.Rescaled)
    assert not isinstance(run.savepoint(SavepointRequest("later")), Refusal)
    run.run()
    assert run.ended is not None and run.ended.outcome is Outcome.FINISHED


@pytest.mark.promise("D5", "D6", "D7")
def test_what_is_asked_of_a_job_that_is_being_restarted_is_refused_with_the_cause() -> None:
    """With a full disk a job restarts all the time, and the refusal did not say why."""

    def dying(split: int) -> list[Item]:
        return [*(record(n) for n in range(split, 20, 2)), Crash(), record(20 + split)]

    run = Run(counting(PERIODIC, dying))
    first = run.savepoint()
    assert isinstance(first, Refusal) and first.why == "the job is not running now: look at it with weir status"
    run.run(lambda: run.master.phase is Phase.RESTARTING)
    rescaled = run.rescale(Scaling(3))
    assert isinstance(rescaled, Refused)
    for refused in (run.savepoint(), run.stop(), rescaled):
        assert isinstance(refused, Refusal | Refused)
        assert "it is being restarted, because a slot's process ended" in refused.why
        assert "Ask again when it runs" in refused.why


@pytest.mark.promise("D5")
def test_a_savepoint_that_failed_with_its_attempt_says_in_detail_why_the_attempt_failed() -> None:
    """With a full disk it said only that more checkpoints failed than `tolerable_failed` allows."""

    def dying(split: int) -> list[Item]:
        return [*(record(n) for n in range(split, 20, 2)), Crash(), *(record(n) for n in range(20 + split, 40, 2))]

    run = Run(counting(PERIODIC, dying))
    run.run(lambda: run.master.phase is Phase.RUNNING)
    for slot in run.slots[1:]:
        slot.runtime.step = lambda: False  # type: ignore[method-assign]  # nobody acknowledges
    assert not isinstance(run.savepoint(), Refusal)
    (failed,) = run.until(events.SavepointFailed).noted(events.SavepointFailed)
    cause = run.master.stats.last_failure
    assert isinstance(failed, events.SavepointFailed) and cause is not None and cause.detail
    assert cause.detail in failed.reason
