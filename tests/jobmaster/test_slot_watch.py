"""What the JobMaster decides about slots that hang, slots that do not come, and failures that have a deeper cause.

Topology: source → keyed window → table, two slots. Its I/O is done at once, and the test says what time it is.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.jobmaster import events
from engine.jobmaster.actions import KillSlot, Note
from engine.jobmaster.master import MasterConfig, Phase
from engine.protocol.channel_watch import PeerWatch
from engine.protocol.failures import Fault
from engine.protocol.ids import AttemptId
from engine.protocol.messages import Heartbeat, Left, LongStep, TaskFailed
from tests.jobmaster.test_master import Desk

STACK = '  File "job.py", line 7, in wait_for_ever\n    lock.acquire()\n'


class Hanging(Desk):
    """Two slots that answer when the test says so. What is noted and who is killed is kept."""

    answers = False

    def __init__(self, folder: Path, heartbeat_timeout_ms: float = 1e9) -> None:
        super().__init__(folder, MasterConfig(heartbeat_timeout_ms=heartbeat_timeout_ms))

    def running(self) -> Hanging:
        self.tick(0)
        self.register(0)
        self.deployed(0)
        assert self.master.phase is Phase.RUNNING
        return self

    def hears(self, session: str, message: object, now_ms: float) -> None:
        self.do(self.master.on_message(session, message, now_ms), now_ms)  # type: ignore[arg-type]

    def ticks(self, until_ms: int) -> None:
        """Ticks twice a second, as often as heartbeats are due."""
        for now_ms in range(int(self.master._keeper.beat_at_ms or 0), until_ms + 1, 500):
            self.tick(now_ms)

    def noted(self, kind: type[events.Event]) -> list[events.Event]:
        return [action.event for action in self.other if isinstance(action, Note) and isinstance(action.event, kind)]

    @property
    def killed(self) -> list[str]:
        return [action.slot.session for action in self.other if isinstance(action, KillSlot)]


def in_step(for_ms: float) -> Heartbeat:
    return Heartbeat({}, LongStep(for_ms, "slow", "slow[1]", STACK))


def broken_channel(attempt: AttemptId) -> TaskFailed:
    return TaskFailed(attempt, None, "", "channel a:0->1 broke: reset", "", Fault.OUTSIDE, channel_broken=True)


def test_a_long_step_is_reported_once_with_its_operator_and_its_stack(tmp_path: Path) -> None:
    desk = Hanging(tmp_path).running()
    for for_ms in (2_000, 9_000, 10_000, 60_000):
        desk.hears("s1", in_step(for_ms), for_ms)
    desk.hears("s1", Heartbeat({}), 61_000)
    desk.hears("s1", in_step(11_000), 75_000)  # another step
    first, second = desk.noted(events.SlowStep)
    assert first == events.SlowStep(1, 1, "slow", "slow[1]", 10_000, STACK)
    assert isinstance(second, events.SlowStep) and second.for_ms == 11_000
    assert not desk.killed and desk.master.phase is Phase.RUNNING, "thirty seconds per record are legal"


def test_a_step_that_follows_a_long_one_is_reported_too_and_one_that_was_reported_is_not(tmp_path: Path) -> None:
    desk = Hanging(tmp_path).running()
    for now_ms, for_ms in ((20_000, 15_000), (20_500, 15_000), (40_000, 11_000), (41_000, 12_000)):
        desk.hears("s1", in_step(for_ms), now_ms)
    assert [event.for_ms for event in desk.noted(events.SlowStep)] == [15_000, 11_000]  # type: ignore[attr-defined]


def test_a_slot_that_hangs_in_a_step_is_killed_and_the_failure_names_operator_and_line(tmp_path: Path) -> None:
    desk = Hanging(tmp_path).running()
    desk.hears("s1", in_step(299_000), 299_000)
    desk.tick(299_500)
    assert not desk.killed
    desk.hears("s1", in_step(300_500), 300_500)
    desk.tick(300_600)
    assert desk.killed == ["s1"] and desk.master.phase is Phase.RESTARTING
    (failed,) = desk.noted(events.AttemptFailed)
    assert isinstance(failed, events.AttemptFailed)
    assert (failed.cause, failed.uid, failed.slot) == ("slot_hung", "slow", 1)
    assert "in operator 'slow' (slow[1])" in failed.detail and failed.detail.endswith(
        ': File "job.py", line 7, in wait_for_ever: lock.acquire()'
    )


def test_a_slot_that_does_not_leave_its_attempt_is_killed_and_not_deployed_to(tmp_path: Path) -> None:
    desk = Hanging(tmp_path).running()
    first = desk.master.attempt
    desk.hears("s0", TaskFailed(first, None, "pv", "boom", "", Fault.OUTSIDE), 1_000)
    desk.hears("s0", Left(first), 1_000)
    desk.ticks(10_500)
    assert desk.master.phase is Phase.WAITING and not desk.killed
    desk.ticks(12_000)
    assert desk.killed == ["s1"] and desk.master.slots.get("s1") is None
    (killed,) = desk.noted(events.SlotKilled)
    assert isinstance(killed, events.SlotKilled) and (
        "did not leave attempt 1.1, which is over, within 10 s" in killed.why
    )


def test_an_old_answer_does_not_free_a_slot_that_has_to_leave_again(tmp_path: Path) -> None:
    desk = Hanging(tmp_path).running()
    first = desk.master.attempt
    desk.hears("s0", TaskFailed(first, None, "pv", "boom", "", Fault.OUTSIDE), 1_000)
    for slot in ("s0", "s1"):
        desk.hears(slot, Left(first), 1_100)
    desk.ticks(5_000)
    assert desk.master.phase is Phase.DEPLOYING
    desk.hears("s0", TaskFailed(desk.master.attempt, None, "pv", "boom", "", Fault.OUTSIDE), 5_100)
    desk.hears("s1", Left(first), 5_200)
    assert [slot.session for slot in desk.master.slots.free] == []


def test_a_jobmaster_that_slept_does_not_take_its_slots_for_silent(tmp_path: Path) -> None:
    desk = Hanging(tmp_path, heartbeat_timeout_ms=10_000).running()
    desk.tick(60_000)
    assert not desk.killed
    desk.ticks(71_000)
    assert desk.killed == ["s0", "s1"], "they have been silent since it woke up"


@pytest.mark.parametrize("deeper", ["slot", "code"])
def test_a_broken_channel_is_not_the_cause_if_a_deeper_one_follows(tmp_path: Path, deeper: str) -> None:
    desk = Hanging(tmp_path).running()
    attempt = desk.master.attempt
    desk.hears("s0", broken_channel(attempt), 1_000)
    assert desk.master.phase is Phase.RUNNING
    if deeper == "slot":
        desk.do(desk.master.on_slot_gone("s1", "reset", 1_200), 1_200)
    else:
        desk.hears("s1", TaskFailed(attempt, None, "pv", "boom", "", Fault.JOB), 1_200)
    (failed,) = desk.noted(events.AttemptFailed)
    assert isinstance(failed, events.AttemptFailed)
    assert failed.cause == ("slot_lost" if deeper == "slot" else "user_code")


def test_a_broken_channel_is_the_cause_if_nothing_else_happens(tmp_path: Path) -> None:
    desk = Hanging(tmp_path).running()
    desk.hears("s0", broken_channel(desk.master.attempt), 1_000)
    assert desk.master.wakeup_ms() <= 3_000
    desk.tick(2_900)
    assert desk.master.phase is Phase.RUNNING
    desk.tick(3_000)
    (failed,) = desk.noted(events.AttemptFailed)
    assert isinstance(failed, events.AttemptFailed) and "channel a:0->1 broke" in failed.detail


@pytest.mark.promise("H8")
def test_a_cut_between_two_hosts_ends_the_attempt_within_nine_seconds_if_channels_may_be_silent_for_five(
    tmp_path: Path,
) -> None:
    """Its test on Spark (`tests/cluster/test_hosts.py`) has to bear with slow machines, and so bounds nothing."""
    desk = Hanging(tmp_path, heartbeat_timeout_ms=5_000).running()
    watch, cut_ms = PeerWatch("sender", 5_000), 1_000
    for now_ms in range(0, 20_000, 500):
        for session in ("s0", "s1"):  # both still reach the JobMaster
            desk.hears(session, Heartbeat({}), now_ms)
        if now_ms <= cut_ms:
            watch.heard()
        if watch.look(now_ms) and desk.master.phase is Phase.RUNNING:
            desk.hears("s0", broken_channel(desk.master.attempt), now_ms)
        desk.tick(now_ms)
        if desk.noted(events.AttemptFailed):
            break
    assert now_ms - cut_ms <= 9_000


def test_a_slot_that_has_not_left_its_attempt_does_not_count_as_registered(tmp_path: Path) -> None:
    desk = Hanging(tmp_path).running()
    desk.do(desk.master.on_slot_gone("s1", "its host is gone", 1_000), 1_000)
    desk.hears("s0", Left(desk.master.attempt), 1_000)
    desk.ticks(200_000)
    assert desk.master.phase is Phase.WAITING and desk.master.waited_ms(200_000) is not None
    waits = desk.noted(events.SlotsMissing)
    assert len(waits) == 3 and isinstance(waits[0], events.SlotsMissing) and waits[0].registered == 1


def test_a_slot_whose_io_hangs_while_it_beats_and_steps_is_killed(tmp_path: Path) -> None:
    """Four hung reads fill its I/O threads, so no checkpoint of it is ever written."""
    desk = Hanging(tmp_path).running()
    for for_ms in (599_000, 600_500):
        assert not desk.killed
        desk.hears("s1", Heartbeat({}, io=LongStep(for_ms, "", "source[1]", STACK)), for_ms)
        desk.tick(for_ms + 100)
    assert desk.killed == ["s1"]
    (failed,) = desk.noted(events.AttemptFailed)
    assert isinstance(failed, events.AttemptFailed) and (failed.cause, failed.slot) == ("io_hung", 1)
    assert "600 s" in failed.detail and "lock.acquire()" in failed.detail


def test_the_last_silent_slot_of_an_executor_is_killed_with_no_other_slot_heard_of(tmp_path: Path) -> None:
    desk = Hanging(tmp_path, heartbeat_timeout_ms=10_000).running()
    desk.hears("s1", Heartbeat({}), 5_000)
    desk.ticks(20_000)
    kills = [action for action in desk.other if isinstance(action, KillSlot)]
    assert [(kill.slot.session, kill.silent, kill.heard) for kill in kills] == [("s0", True, (1,)), ("s1", True, ())]


def test_a_jobmaster_that_slept_hears_no_slot_in_the_future(tmp_path: Path) -> None:
    """Heartbeats that waited for it to wake up count from now. Otherwise the next silence would be noticed late."""
    desk = Hanging(tmp_path, heartbeat_timeout_ms=10_000).running()
    desk.ticks(1_000)
    woken_ms = 3_600_000
    for session in ("s0", "s1"):
        desk.hears(session, Heartbeat({}), woken_ms)
    desk.tick(woken_ms)
    assert [slot.heard_ms for slot in desk.master.slots.all] == [woken_ms, woken_ms]
    desk.ticks(woken_ms + 10_500)
    assert sorted(desk.killed) == ["s0", "s1"]
