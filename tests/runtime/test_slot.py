"""One slot in this process: a job deployed, run, snapshotted and closed; its transport hands frames straight over.

Topology: elements → map → key_by → running sum → table. One slot, so every channel is a loop back to it.
"""

from typing import Any

import pytest

from engine.api import MapFunction, RuntimeContext, StreamEnvironment
from engine.connectors.table import TableSink
from engine.core.errors import StoreError, SyncFailed, UserFunctionError
from engine.core.paths import JobPaths
from engine.core.ports import Frame
from engine.graph.execution_graph import ExecutionGraph
from engine.protocol import ledger
from engine.protocol.config import CheckpointingMode
from engine.protocol.failures import Fault
from engine.protocol.ids import AttemptId, ChannelId
from engine.protocol.manifest import Manifest
from engine.protocol.messages import (
    Acknowledge,
    Connected,
    Decline,
    Deploy,
    Deployed,
    Drain,
    Left,
    MasterMessage,
    NotifyAbort,
    NotifyComplete,
    Rollback,
    Shutdown,
    SlotMessage,
    Start,
    SubtaskFinished,
    TaskFailed,
    Trigger,
)
from engine.protocol.signals import Watermark
from engine.runtime.running import RUNNING
from engine.runtime.slot import SlotRuntime
from engine.runtime.subtask import Activity
from engine.snapshot.epoch_log import EpochLog
from tests.fakes import ATTEMPT, JOB_ID, FakeClock, FakeOffload, FakeTransport, MemoryStore, context


class Probe(MapFunction):
    """Writes down its life; raises where it is told to."""

    def __init__(self, name: str, calls: list[str], fails: str = "") -> None:
        self.name, self.calls, self.fails = name, calls, fails

    def __deepcopy__(self, memo: object) -> "Probe":
        return Probe(self.name, self.calls, self.fails)

    def open(self, context: RuntimeContext) -> None:
        self._note("open")

    def close(self) -> None:
        self._note("close")

    def map(self, value: dict[str, Any]) -> dict[str, Any]:
        if self.fails == f"map {value['x']}":
            raise ValueError("told to")
        return value

    def _note(self, what: str) -> None:
        self.calls.append(f"{what} {self.name}")
        if self.fails == what:
            raise ValueError("told to")


class LoopBack(FakeTransport):
    slot: "Slot"

    def send(self, attempt: AttemptId, channel: ChannelId, frame: Frame) -> None:
        self.slot.frames.append((attempt, channel, frame))

    def grant(self, attempt: AttemptId, channel: ChannelId, granted_total: int) -> None:
        self.slot.runtime.on_grant(attempt, channel, granted_total)


class Slot:
    def __init__(self, fails: dict[str, str] | None = None, rows: int = 20, store: MemoryStore | None = None) -> None:
        self.calls: list[str] = []
        self.messages: list[SlotMessage] = []
        self.frames: list[tuple[AttemptId, ChannelId, Frame]] = []
        self.store = store or MemoryStore()
        self.offload = FakeOffload()
        self.clock = FakeClock()
        env = StreamEnvironment(parallelism=1)
        stream = env.from_elements([{"k": "ab"[n % 2], "x": n} for n in range(rows)], "k string, x long", uid="rows")
        for name in ("first", "second"):
            stream = stream.map(Probe(name, self.calls, (fails or {}).get(name, "")))
        sums = stream.key_by("k").sum("x", uid="sum")
        if fails and "last" in fails:
            sums = sums.map(Probe("last", self.calls, fails["last"]))
        sums.sink_to(TableSink("t"), uid="out")
        graph = env.graph.translate("job", env.checkpoints, env.restart, env.max_parallelism, "")
        self.transport = transport = LoopBack()
        self.runtime = SlotRuntime(
            lambda deploy: ExecutionGraph(graph).plan(deploy.slot),
            JobPaths("job"),
            self.clock,
            transport,
            self.offload,
            self.store,
            self,
            batch_rows=4,
        )
        transport.slot = self

    def send(self, message: SlotMessage) -> None:
        self.messages.append(message)

    def of_type(self, kind: type) -> list[Any]:
        return [message for message in self.messages if isinstance(message, kind)]

    def deploy(self, attempt: AttemptId = ATTEMPT, restore: Any = None) -> None:
        self.runtime.on_control(Deploy(attempt, 0, ["here"], restore, JOB_ID))
        self.offload.run()

    def start(self, attempt: AttemptId = ATTEMPT) -> None:
        self.runtime.on_control(Start(attempt))

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.runtime.step()
            frames, self.frames = self.frames, []
            for frame in frames:
                self.runtime.on_frame(*frame)
            self.offload.run()

    def checkpoint(self, number: int, attempt: AttemptId = ATTEMPT) -> list[Acknowledge]:
        self.runtime.on_control(Trigger(attempt, number, 0))
        self.steps(10)
        return [ack for ack in self.of_type(Acknowledge) if ack.checkpoint == number]


@pytest.mark.promise("A1")
def test_a_bounded_job_runs_to_its_end_and_still_answers_a_final_checkpoint() -> None:
    slot = Slot()
    slot.deploy()
    assert slot.messages == [Deployed(ATTEMPT)]
    slot.start()
    slot.steps(60)
    assert [str(m.subtask) for m in slot.of_type(SubtaskFinished)] == ["rows[0]", "sum[0]"]
    acks = slot.checkpoint(1)
    assert sorted(str(ack.subtask) for ack in acks) == ["rows[0]", "sum[0]"]
    totals = ledger.total({}, [ack.ledger for ack in acks])
    assert totals["source:rows"] == totals["sent:rows->sum"] == totals["received:rows->sum"] == totals["sink:out"] == 20
    assert ledger.violations(totals, {}, CheckpointingMode.EXACTLY_ONCE) == []
    (committable,) = [c for ack in acks for c in ack.committables]
    assert committable.payload["rows"] == 20
    slot.runtime.on_control(NotifyComplete(ATTEMPT, 1))
    assert [c for ack in slot.checkpoint(2) for c in ack.committables] == []


def test_a_slot_says_once_that_it_is_connected_when_every_receiver_has_granted() -> None:
    slot = Slot()
    held: list[tuple[AttemptId, ChannelId, int]] = []
    slot.transport.grant = lambda *grant: held.append(grant)  # type: ignore[method-assign]
    slot.deploy()
    slot.start()
    slot.steps(3)
    assert slot.messages == [Deployed(ATTEMPT)], "it has channels, and nobody has answered on them"
    slot.runtime.on_grant(AttemptId(1, 0), *held[0][1:])
    assert slot.of_type(Connected) == []
    for grant in (*held, *held):
        slot.runtime.on_grant(*grant)
    assert slot.of_type(Connected) == [Connected(ATTEMPT)]
    slot.runtime.on_control(Rollback(ATTEMPT))
    slot.deploy(AttemptId(1, 2))
    slot.start(AttemptId(1, 2))
    assert slot.of_type(Connected) == [Connected(ATTEMPT)], "each attempt has channels of its own"


@pytest.mark.promise("D7", "C1")
def test_an_attempt_goes_on_from_a_snapshot_taken_in_the_middle() -> None:
    """Faults: none but the restore itself. Checked: rows before and after the snapshot are all rows, sums go on."""
    slot = Slot()
    slot.deploy()
    slot.start()
    slot.steps(3)
    acks = slot.checkpoint(1)
    assert len(acks) == 2
    before = ledger.total({}, [ack.ledger for ack in acks])
    assert 0 < before["source:rows"] < 20
    log = EpochLog(slot.store, JobPaths("job"))
    ref = log.write_manifest(Manifest("job", 1, 1, ATTEMPT, 0, 128, [ack.state for ack in acks], [], [], before))
    slot.steps(2)
    again = AttemptId(1, 2)
    slot.runtime.on_control(Rollback(ATTEMPT))
    slot.frames.clear()
    slot.deploy(again, ref)
    slot.start(again)
    slot.steps(60)
    totals = ledger.total(before, [ack.ledger for ack in slot.checkpoint(2, again)])
    assert totals["source:rows"] == totals["sink:out"] == 20
    assert slot.calls == ["open first", "open second", "close first", "close second", "open first", "open second"]


def test_messages_and_frames_of_another_attempt_are_refused_and_counted() -> None:
    slot = Slot()
    slot.deploy()
    slot.start()
    for message in (Start(AttemptId(1, 9)), Trigger(AttemptId(1, 0), 1, 0), NotifyComplete(AttemptId(0, 1), 1)):
        slot.runtime.on_control(message)
    assert slot.runtime.refused == 3
    slot.deploy(AttemptId(1, 0))
    assert slot.of_type(Deployed) == [Deployed(ATTEMPT)]


def test_an_attempt_that_is_left_has_its_channels_closed_whatever_ends_it() -> None:
    """A slot that kept them open would go on sending and receiving for an attempt that is over."""
    rolled_back, failed, replaced, told_to_end = Slot(), Slot(), Slot(), Slot()
    for slot in (rolled_back, failed, replaced, told_to_end):
        slot.deploy()
        slot.start()
    rolled_back.runtime.on_control(Rollback(ATTEMPT))
    failed.runtime.on_channel_broken(ATTEMPT, ChannelId("rows->sum", 0, 0), "connection reset")
    replaced.deploy(AttemptId(1, 2))
    told_to_end.runtime.on_control(Shutdown("the job is cancelled"))
    for slot in (rolled_back, failed, replaced, told_to_end):
        assert slot.transport.closed == [ATTEMPT]


def test_a_repeated_deploy_of_an_attempt_that_failed_here_deploys_nothing() -> None:
    """The copy of the message came late. The attempt is over: a second life of it would share its paths."""
    slot = Slot(fails={"first": "map 0"})
    slot.deploy()
    slot.start()
    slot.steps(5)
    assert len(slot.of_type(TaskFailed)) == 1
    before = slot.runtime.refused
    slot.deploy()
    assert slot.of_type(Deployed) == [Deployed(ATTEMPT)] and slot.runtime.refused == before + 1
    assert slot.calls == ["open first", "open second", "close first", "close second"]


def test_a_deploy_that_comes_after_the_rollback_of_its_attempt_deploys_nothing() -> None:
    slot = Slot()
    slot.runtime.on_control(Rollback(ATTEMPT))
    slot.deploy()
    assert slot.of_type(Deployed) == [] and slot.calls == []


@pytest.mark.promise("A5")
def test_a_function_that_raises_ends_the_attempt_with_its_name_and_everything_is_closed_once() -> None:
    slot = Slot(fails={"second": "map 6"})
    slot.deploy()
    slot.start()
    slot.steps(60)
    (failed,) = slot.of_type(TaskFailed)
    assert failed.fault is Fault.JOB and not failed.corrupt
    assert failed.uid == "map-2"
    assert str(failed.subtask) == "rows[0]"
    assert failed.error == (
        "operator 'map-2', subtask 0, record 7 of this attempt, {'k': 'a', 'x': 6}: ValueError: told to"
    )
    assert slot.calls == ["open first", "open second", "close first", "close second"]
    slot.steps(5)
    slot.runtime.on_control(Rollback(ATTEMPT))
    assert slot.calls[4:] == []


@pytest.mark.promise("A5")
def test_a_close_that_raises_does_not_keep_the_others_from_being_closed() -> None:
    slot = Slot(fails={"first": "close"})
    slot.deploy()
    slot.start()
    with pytest.MonkeyPatch.context():
        try:
            slot.runtime.on_control(Rollback(ATTEMPT))
        except Exception as error:
            assert "told to" in str(error)
    assert slot.calls == ["open first", "open second", "close first", "close second"]


@pytest.mark.promise("A5")
def test_a_close_that_raises_on_rollback_does_not_take_the_slot_down() -> None:
    slot = Slot(fails={"first": "close"})
    slot.deploy()
    slot.start()
    slot.runtime.on_control(Rollback(ATTEMPT))
    slot.deploy(AttemptId(1, 2))
    assert Deployed(AttemptId(1, 2)) in slot.messages


@pytest.mark.promise("A5")
def test_what_was_opened_before_another_s_open_failed_is_closed() -> None:
    slot = Slot(fails={"second": "open"})
    slot.deploy()
    (failed,) = slot.of_type(TaskFailed)
    assert "operator 'map-2', subtask 0, open(): ValueError: told to" in failed.error
    assert slot.calls == ["open first", "open second", "close first"]


@pytest.mark.promise("A5")
def test_subtasks_that_were_built_before_another_one_failed_are_closed() -> None:
    slot = Slot(fails={"last": "open"})
    slot.deploy()
    assert len(slot.of_type(TaskFailed)) == 1
    assert slot.calls == ["open first", "open second", "open last", "close first", "close second"]


def test_a_failure_outside_of_functions_names_the_operator_that_was_running() -> None:
    slot = Slot()
    slot.deploy()

    def fails_in_the_sum() -> None:
        RUNNING.set(context("sum"))
        raise StoreError("can't read it")

    slot.runtime._guarded(None, fails_in_the_sum)
    (failed,) = slot.of_type(TaskFailed)
    assert failed.uid == "sum" and str(failed.subtask) == "sum[0]" and RUNNING.get() is None


def test_a_failure_that_is_no_operator_s_names_none_although_operators_were_opened_before() -> None:
    slot = Slot()
    slot.deploy()
    slot.runtime.on_channel_broken(ATTEMPT, ChannelId("rows->sum", 0, 0), "connection reset")
    (failed,) = slot.of_type(TaskFailed)
    assert failed.uid == "" and failed.subtask is None


def test_a_frame_of_another_attempt_does_not_reach_the_gate() -> None:
    """It would be frame 1 of its own attempt; frame 1 of this one has still to come."""
    slot = Slot()
    slot.deploy()
    slot.start()
    assert slot.runtime._deployment is not None
    (channel,) = slot.runtime._deployment.gates
    for attempt in (AttemptId(1, 0), AttemptId(1, 9)):
        slot.runtime.on_frame(attempt, channel, Frame(1, Watermark(5), 0, 0))
    assert slot.runtime.refused == 2
    slot.runtime.on_frame(ATTEMPT, channel, Frame(1, Watermark(5), 0, 0))
    assert slot.of_type(TaskFailed) == []


def test_a_grant_of_another_attempt_gives_no_credit() -> None:
    slot = Slot()
    slot.deploy()
    assert slot.runtime._deployment is not None
    (channel,) = slot.runtime._deployment.outputs.values()
    before, refused = channel._credit.available, slot.runtime.refused
    for attempt in (AttemptId(1, 0), AttemptId(1, 9)):
        slot.runtime.on_grant(attempt, channel.id, 1 << 40)
    assert channel._credit.available == before and slot.runtime.refused == refused + 2


def test_an_error_while_an_attempt_is_closed_is_told_after_the_one_that_ended_it() -> None:
    details = []
    for first in ("", "close"):
        slot = Slot(fails={"second": "map 6", "first": first})
        slot.deploy()
        slot.start()
        slot.steps(60)
        (failed,) = slot.of_type(TaskFailed)
        details.append(failed.detail)
    assert "while closing: " not in details[0]
    assert details[1].index("map-2") < details[1].index("while closing: ")


def test_the_uploads_of_a_checkpoint_wait_for_no_other_subtask() -> None:
    """Each subtask has a queue of its own, and queues run beside each other (`tests/contracts/test_offload.py`)."""
    slot = Slot()
    slot.deploy()
    slot.start()
    slot.offload.queues.clear()
    acknowledged = [ack.state.subtask for ack in slot.checkpoint(1)]
    uploads = [queue for queue in slot.offload.queues if queue in {str(subtask) for subtask in acknowledged}]
    assert len(acknowledged) == len(set(uploads)) == 2


def test_a_repeated_trigger_takes_one_snapshot() -> None:
    slot = Slot()
    slot.deploy()
    slot.start()
    slot.steps(2)
    slot.runtime.on_control(Trigger(ATTEMPT, 1, 0))
    slot.runtime.on_control(Trigger(ATTEMPT, 1, 0))
    slot.steps(20)
    assert len([a for a in slot.of_type(Acknowledge) if str(a.subtask) == "rows[0]"]) == 1


def test_a_corrupt_snapshot_is_told_as_such() -> None:
    slot = Slot()
    log = EpochLog(slot.store, JobPaths("job"))
    ref = log.write_manifest(Manifest("job", 1, 1, ATTEMPT, 0, 128, [], [], [], {}))
    slot.store.files[ref.path] = slot.store.files[ref.path][:-1]
    slot.deploy(AttemptId(1, 2), ref)
    (failed,) = slot.of_type(TaskFailed)
    assert failed.corrupt
    assert "is not what was written" in failed.error


def test_whose_fault_a_failure_is_goes_with_it() -> None:
    slot = Slot()
    channel = ChannelId("rows->out", 0, 0)
    slot.deploy()
    slot.runtime.on_channel_broken(ATTEMPT, channel, "connection reset")
    slot.deploy(AttemptId(1, 2))
    slot.runtime._guarded(None, lambda: 1 // 0)
    slot.deploy(AttemptId(1, 3))
    slot.runtime._fail(None, StoreError("can't read it"))
    assert [(failed.fault, failed.error) for failed in slot.of_type(TaskFailed)] == [
        (Fault.OUTSIDE, f"channel {channel} broke: connection reset"),
        (Fault.WEIR, "ZeroDivisionError: integer division or modulo by zero"),
        (Fault.OUTSIDE, "StoreError: can't read it"),
    ]


def batches_taken_in_one_turn(began_ms: float, each_takes_ms: float) -> int:
    """Lets the source make all its batches of four rows, and gives the sum one turn."""
    slot = Slot()
    slot.clock.now = began_ms
    slot.deploy()
    slot.start()
    assert slot.runtime._deployment is not None
    source, sums = slot.runtime._deployment.subtasks
    for _ in range(8):
        slot.runtime._visit(source)
    for frame in slot.frames:
        slot.runtime.on_frame(*frame)
    before, real = sums.meter.rows_in, sums.step

    def step() -> Activity:
        slot.clock.pass_ms(each_takes_ms)
        return real()

    sums.step = step  # type: ignore[method-assign]
    slot.runtime._visit(sums)
    return (sums.meter.rows_in - before) // 4


def test_a_turn_takes_all_that_has_arrived_and_ends_after_ten_milliseconds() -> None:
    assert batches_taken_in_one_turn(began_ms=1_000_000, each_takes_ms=0) == 5
    assert batches_taken_in_one_turn(began_ms=1_000_000, each_takes_ms=4) == 3


@pytest.mark.promise("F3")
def test_a_barrier_has_no_start_delay_in_a_slot_whose_clock_is_behind_the_jobmaster_s() -> None:
    slot = Slot()
    slot.deploy()
    slot.start()
    for checkpoint, ahead_ms, delay_ms in ((1, 500, 0.0), (2, -500, 500.0)):
        slot.runtime.on_control(Trigger(ATTEMPT, checkpoint, slot.clock.wall + ahead_ms))
        slot.steps(10)
        acks = [ack for ack in slot.of_type(Acknowledge) if ack.checkpoint == checkpoint]
        assert [ack.timings.start_delay_ms for ack in acks] == [delay_ms] * 2


@pytest.mark.promise("E2")
def test_the_time_between_two_attempts_is_not_counted_for_either() -> None:
    slot = Slot()
    slot.deploy()
    slot.start()
    slot.steps(1)
    slot.runtime.on_control(Rollback(ATTEMPT))
    slot.clock.pass_ms(5000)
    slot.deploy(AttemptId(1, 2))
    slot.start(AttemptId(1, 2))
    slot.steps(1)
    spent = [total.busy_ms + total.back_pressured_ms + total.idle_ms for total in slot.runtime.totals().values()]
    assert spent == [0.0] * len(spent) and spent


def test_state_that_is_read_when_its_attempt_is_over_builds_nothing() -> None:
    slot = Slot()
    log = EpochLog(slot.store, JobPaths("job"))
    ref = log.write_manifest(Manifest("job", 1, 1, ATTEMPT, 0, 128, [], [], [], {}))
    slot.runtime.on_control(Deploy(AttemptId(1, 2), 0, ["here"], ref, JOB_ID))
    slot.runtime.on_control(Rollback(AttemptId(1, 2)))
    slot.offload.run()
    assert slot.messages == [Left(AttemptId(1, 2))] and slot.calls == []


@pytest.mark.promise("D11")
@pytest.mark.parametrize("abandoned", [False, True])
def test_a_failed_sync_ends_the_process_also_when_its_attempt_is_over(abandoned: bool) -> None:
    """It is unknown then which writes are durable, so this process must not take part in the next attempt either."""
    slot = Slot()
    slot.deploy()
    slot.start()
    slot.steps(2)

    def failing(paths: list[str]) -> None:
        raise SyncFailed("fsync failed")

    slot.store.sync = failing  # type: ignore[method-assign]
    slot.runtime.on_control(Trigger(ATTEMPT, 1, 0))
    for _ in range(10):  # takes the snapshots; nothing is written yet
        slot.runtime.step()
        frames, slot.frames = slot.frames, []
        for frame in frames:
            slot.runtime.on_frame(*frame)
    if abandoned:
        slot.runtime.on_control(Rollback(ATTEMPT))
    with pytest.raises(SyncFailed):
        slot.offload.run()


def snapshotting(slot: Slot) -> None:
    """Deploys, starts, and lets both subtasks take checkpoint 1; nothing is uploaded yet."""
    slot.deploy()
    slot.start()
    slot.steps(2)
    slot.runtime.on_control(Trigger(ATTEMPT, 1, 0))
    for _ in range(10):
        slot.runtime.step()
        frames, slot.frames = slot.frames, []
        for frame in frames:
            slot.runtime.on_frame(*frame)


@pytest.mark.promise("D4")
def test_a_snapshot_that_can_not_be_written_is_declined_and_the_attempt_goes_on() -> None:
    slot = Slot()
    snapshotting(slot)
    slot.store.fail_writes = 100
    slot.offload.run()
    assert [str(declined.subtask) for declined in slot.of_type(Decline)] == ["sum[0]"]
    assert slot.of_type(Decline)[0].write_failed and slot.of_type(TaskFailed) == []


@pytest.mark.promise("H8")
def test_a_snapshot_that_the_job_s_own_code_can_not_write_ends_the_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next checkpoint would meet the same."""
    slot = Slot()
    snapshotting(slot)

    def fails(*_: object) -> None:
        raise UserFunctionError("sum", 0, "pre_commit()", ValueError("told to"))

    monkeypatch.setattr("engine.runtime.slot.upload", fails)
    slot.offload.run()
    (failed,) = slot.of_type(TaskFailed)
    assert failed.fault is Fault.JOB and slot.of_type(Decline) == []


@pytest.mark.promise("D4")
def test_the_barrier_of_an_aborted_checkpoint_takes_no_snapshot() -> None:
    """The abort comes while the barrier is under way from the source to the sum."""
    slot = Slot()
    slot.deploy()
    slot.start()
    slot.runtime.on_control(Trigger(ATTEMPT, 1, 0))
    slot.runtime.step()
    slot.runtime.on_control(NotifyAbort(ATTEMPT, 1))
    slot.steps(20)
    assert [str(ack.subtask) for ack in slot.of_type(Acknowledge)] == ["rows[0]"]
    assert len([ack for ack in slot.checkpoint(2) if ack.checkpoint == 2]) == 2


@pytest.mark.promise("D6")
def test_a_source_that_is_suspended_emits_nothing_behind_the_barrier() -> None:
    slot = Slot()
    slot.deploy()
    slot.start()
    slot.steps(3)
    slot.runtime.on_control(Trigger(ATTEMPT, 1, 0, suspend=True))
    slot.steps(60)
    at_barrier = ledger.total({}, [ack.ledger for ack in slot.of_type(Acknowledge)])
    assert 0 < at_barrier["source:rows"] < 20
    later = ledger.total({}, [ack.ledger for ack in slot.checkpoint(2)])
    assert later == at_barrier
    assert slot.of_type(SubtaskFinished) == [] and slot.runtime.wakeup_ms() is None


@pytest.mark.promise("D6")
def test_a_source_that_is_drained_ends_and_everything_behind_it_too() -> None:
    slot = Slot()
    slot.deploy()
    slot.start()
    slot.steps(3)
    slot.runtime.on_control(Drain(ATTEMPT))
    slot.steps(20)
    assert [str(m.subtask) for m in slot.of_type(SubtaskFinished)] == ["rows[0]", "sum[0]"]
    acks = slot.checkpoint(1)
    totals = ledger.total({}, [ack.ledger for ack in acks])
    assert 0 < totals["source:rows"] == totals["sink:out"] < 20


@pytest.mark.parametrize("message", [Trigger(AttemptId(1, 0), 1, 0, True), Drain(AttemptId(1, 0))])
def test_an_older_attempt_neither_suspends_nor_drains(message: MasterMessage) -> None:
    slot = Slot()
    slot.deploy()
    slot.start()
    slot.runtime.on_control(message)
    slot.steps(60)
    assert ledger.total({}, [ack.ledger for ack in slot.checkpoint(2)])["source:rows"] == 20
