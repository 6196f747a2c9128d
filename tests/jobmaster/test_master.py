"""What the JobMaster decides when the store, the slots or the user interrupt it; the simulation has the rest.

Topology: source → keyed window → table, two slots. Its I/O is done at once, and the test says what time it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.connectors.table import TableCommitter
from engine.core.errors import StoreError
from engine.core.sinks import Committer, NothingToCommit
from engine.graph.execution_graph import ExecutionGraph
from engine.jobmaster import events
from engine.jobmaster.actions import Action, KillSlot, Note, Outcome, RunOffLoop, Send, Stop
from engine.jobmaster.events import Aborted
from engine.jobmaster.master import JobMaster, MasterConfig, Phase
from engine.protocol.checkpoint import CommitPermit
from engine.protocol.epoch_records import Created
from engine.protocol.failures import Fault, Raised
from engine.protocol.ids import AttemptId
from engine.protocol.manifest import Committable, ManifestRef, SubtaskState, Timings
from engine.protocol.messages import (
    Acknowledge,
    Connected,
    Deployed,
    Left,
    NotBuilt,
    OverBudget,
    Register,
    Rollback,
    Start,
    TaskFailed,
)
from engine.protocol.restart import FixedDelay, RestartStrategy
from engine.snapshot.epoch_log import EpochLog
from engine.store.memory import MemoryStore
from tests.observe.answering import AnsweringRun

BOOM = Raised("ValueError", "boom", "job.py:7", "record 1", "", "  File job.py\nValueError: boom")


class Desk:
    """A JobMaster whose slots are only messages. They leave an attempt at once, unless `answers` is False."""

    answers = True

    def __init__(
        self,
        folder: Path,
        config: MasterConfig | None = None,
        interval_ms: int | None = None,
        restart: RestartStrategy | None = None,
    ) -> None:
        run = AnsweringRun(folder)
        graph = replace(run.execution.graph, restart=restart or run.execution.graph.restart)
        checkpoints = msgspec.structs.replace(graph.checkpoints, tolerable_failed=1, interval_ms=interval_ms)
        execution = ExecutionGraph(replace(graph, checkpoints=checkpoints))
        self.plan = graph.fingerprint
        self.slots = run.execution.slots
        self.subtasks = run.execution.subtasks
        self.other: list[Action] = []
        self.held: list[RunOffLoop] | None = None
        config = config or MasterConfig(heartbeat_timeout_ms=1e9)
        log = EpochLog(run.store, run.paths)
        self.master = JobMaster(execution, log, {}, "me", "nonce", lambda: 7, lambda: 0.5, config)

    def do(self, actions: Sequence[Action], now_ms: float) -> None:
        for action in actions:
            if self.answers and isinstance(action, Send) and isinstance(action.message, Rollback):
                self.master.on_message(action.session, Left(action.message.attempt), now_ms)
            if not isinstance(action, RunOffLoop):
                self.other.append(action)
                continue
            if self.held is not None:
                self.held.append(action)
                continue
            result, error = None, None
            try:
                result = action.work()
            except Exception as raised:
                error = raised
            self.do(action.done(result, error, now_ms), now_ms)

    def tick(self, now_ms: float) -> Phase:
        self.do(self.master.on_tick(now_ms), now_ms)
        return self.master.phase

    def register(self, now_ms: float) -> None:
        for slot in range(self.slots):
            self.register_one(slot, now_ms)

    def register_one(self, slot: int, now_ms: float, nonce: str = "nonce", plan: str = "", task: int = 0) -> str:
        session = f"s{slot}" + (f".{task}" if task else "")
        message = Register(session, "here", slot, slot + task, nonce, plan or self.plan, slot)
        self.do(self.master.on_message(session, message, now_ms), now_ms)
        return session

    def deployed(self, now_ms: float) -> None:
        self.built(now_ms)
        for slot in range(self.slots):
            self.do(self.master.on_message(f"s{slot}", Connected(self.master.attempt), now_ms), now_ms)

    def built(self, now_ms: float) -> None:
        for slot in range(self.slots):
            self.do(self.master.on_message(f"s{slot}", Deployed(self.master.attempt), now_ms), now_ms)

    def acknowledge(self, checkpoint: int, now_ms: float) -> None:
        for subtask in self.subtasks:
            ack = Acknowledge(self.master.attempt, checkpoint, SubtaskState(subtask, [], {}), [], {}, Timings())
            self.do(self.master.on_message("s0", ack, now_ms), now_ms)

    def two_completed(self) -> None:
        """Two checkpoints are complete: the first is being published, the second waits. I/O is held back."""
        self.tick(0)
        self.register(0)
        self.deployed(0)
        self.held = []
        for checkpoint in (1, 2):
            self.do(self.master.trigger_checkpoint(0)[1], 0)
            self.acknowledge(checkpoint, 0)
        assert [action.name for action in self.held] == ["manifest"]

    @property
    def aborted(self) -> list[int]:
        notes = [action.event for action in self.other if isinstance(action, Note)]
        return [event.checkpoint for event in notes if isinstance(event, Aborted)]

    @property
    def stops(self) -> list[Stop]:
        return [action for action in self.other if isinstance(action, Stop)]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


@pytest.mark.promise("H8")
def test_a_store_that_does_not_answer_is_asked_for_ever_and_ever_later(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def claim(log: EpochLog, owner: str) -> Any:
        asked.append(owner)
        raise StoreError("away")

    monkeypatch.setattr(EpochLog, "claim", claim)
    assert desk.tick(0) is desk.tick(49) is Phase.FENCING and len(asked) == 1
    assert desk.tick(50) is desk.tick(149) is Phase.FENCING and len(asked) == 2
    for now_ms in range(150, 600_000, 50):
        assert desk.tick(now_ms) is Phase.FENCING
    assert 60 < len(asked) < 80 and desk.stops == [], "every ten seconds in the end"


def test_a_claim_that_fails_for_a_reason_that_nobody_expects_ends_the_process(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EpochLog, "claim", lambda *_: {}["missing"])
    with pytest.raises(KeyError):
        desk.tick(0)


@pytest.mark.promise("H8")
def test_missing_slots_are_waited_for_for_ever_and_said_to_be_missing(desk: Desk) -> None:
    for now_s in range(0, 250, 5):
        assert desk.tick(1000 * now_s) is Phase.WAITING
    missing = [
        action.event for action in desk.other if isinstance(action, Note) and action.event.kind == "slots_missing"
    ]
    assert [(event.registered, event.needed, event.waited_ms) for event in missing] == [
        (0, 2, 65_000.0),
        (0, 2, 130_000.0),
        (0, 2, 195_000.0),
    ]
    desk.register(300_000)
    assert desk.master.phase is Phase.DEPLOYING and desk.stops == []


def test_the_time_to_deploy_begins_when_all_slots_are_there(desk: Desk) -> None:
    desk.tick(0)
    desk.register(50_000)
    assert desk.master.phase is Phase.DEPLOYING
    assert desk.tick(350_000) is Phase.DEPLOYING
    assert desk.tick(350_001) is Phase.RESTARTING
    assert desk.master.stats.last_failure is not None
    assert desk.master.stats.last_failure.detail == "slots 0, 1 did not answer in 300 s"


def test_a_failed_attempt_is_tried_again_in_time_and_nothing_runs_until_then(desk: Desk) -> None:
    desk.tick(0)
    desk.register(0)
    desk.deployed(0)
    assert desk.master.phase is Phase.RUNNING and desk.master.stats.running_since_ms == 7
    desk.do(desk.master.on_slot_gone("s1", "gone", 100), 100)
    assert desk.master.phase is Phase.RESTARTING and desk.master.stats.running_since_ms is None
    assert desk.master.wakeup_ms() == 110
    assert desk.tick(109) is Phase.RESTARTING and desk.tick(110) is Phase.WAITING


@pytest.mark.promise("D10")
def test_failures_inside_the_back_off_count_once(tmp_path: Path) -> None:
    """One cause mostly fails several subtasks and slots; the strategy here ends the job with its second failure."""
    desk = Desk(tmp_path, restart=FixedDelay(attempts=1, delay_ms=1000))
    desk.tick(0)
    desk.register(0)
    desk.deployed(0)

    def fails(subtask: int, now_ms: float) -> None:
        failed = TaskFailed(desk.master.attempt, desk.subtasks[subtask], "pv", "boom", "", Fault.JOB)
        desk.do(desk.master.on_message(f"s{subtask}", failed, now_ms), now_ms)

    fails(0, 100)
    fails(1, 101)
    desk.do(desk.master.on_slot_gone("s1", "gone", 600), 600)
    fails(0, 1099)
    assert desk.stops == [] and desk.tick(1099) is Phase.RESTARTING
    assert desk.master.stats.restarts == 1 and len(noted(desk, "attempt_failed")) == 1
    assert desk.tick(1100) is Phase.WAITING, "none of them has moved the next attempt"
    desk.register_one(1, 1100)
    desk.deployed(1100)
    fails(0, 1200)
    assert [stop.outcome for stop in desk.stops] == [Outcome.FAILED], "the next one behind the back-off counts"


def test_a_publication_whose_outcome_is_unknown_wakes_the_jobmaster_when_it_has_to_ask_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heartbeat would wake it too, and much later: readers wait for the epoch meanwhile."""
    asked: list[Created] = []

    def unknown(*_: object) -> Created:
        asked.append(Created.UNKNOWN)
        return Created.UNKNOWN

    desk.tick(0)
    desk.register(0)
    desk.deployed(0)
    monkeypatch.setattr(EpochLog, "append", unknown)
    desk.do(desk.master.trigger_checkpoint(10)[1], 10)
    desk.acknowledge(1, 10)
    assert len(asked) == 1 and desk.master.wakeup_ms() == 60
    desk.tick(59)
    assert len(asked) == 1
    desk.tick(60)
    assert len(asked) == 2 and desk.master.wakeup_ms() == 110


def test_the_next_checkpoint_wakes_the_jobmaster_while_the_job_runs_and_only_then(tmp_path: Path) -> None:
    desk = Desk(tmp_path, interval_ms=200)
    desk.tick(0)
    desk.register(0)
    assert desk.master.wakeup_ms() == 500, "the heartbeat"
    desk.deployed(0)
    assert desk.master.wakeup_ms() == 200, "the checkpoint"


def test_totals_of_an_attempt_that_is_over_are_not_shown_for_the_next_one(tmp_path: Path) -> None:
    run = AnsweringRun(tmp_path)
    run.run(until=lambda: run.master.stats.checkpoints_completed == 1)
    run.beat()
    assert run.master.totals
    run.run(until=lambda: run.master.stats.restarts == 1 and run.master.phase is Phase.DEPLOYING)
    assert run.master.totals == {} and run.master.rates._readings == {}


@pytest.mark.promise("D4")
def test_a_checkpoint_that_waits_is_published_when_the_one_before_it_could_not_be(desk: Desk) -> None:
    desk.two_completed()
    assert desk.held is not None
    desk.do(desk.held.pop().done(None, StoreError("disk full"), 1), 1)
    assert desk.aborted == [1] and "manifest" in [action.name for action in desk.held]


@pytest.mark.promise("D4")
def test_a_failure_aborts_the_checkpoint_that_waits_and_not_the_one_that_is_being_published(desk: Desk) -> None:
    desk.two_completed()
    desk.do(desk.master.on_slot_gone("s1", "gone", 1), 1)
    assert desk.aborted == [2]


@pytest.mark.promise("D11")
def test_a_job_that_is_cancelled_ends_the_publication_under_way_and_begins_no_other_checkpoint(tmp_path: Path) -> None:
    run = AnsweringRun(tmp_path)
    run.run(until=lambda: run.master._publisher.busy)
    run.carry_out(run.master.cancel(run.now_ms()))
    assert run.master.phase is Phase.RUNNING and run.ended is None
    assert run.master.trigger_checkpoint(run.now_ms()) == (None, [])
    with pytest.raises(AssertionError, match="cancelled"):
        run.run()
    assert run.epochs == 1


def test_an_epoch_between_two_errors_of_the_job_s_code_begins_their_count_again(desk: Desk) -> None:
    desk.tick(0)
    desk.register(0)
    now_ms = 0.0
    for _ in range(2):
        for _ in range(2):  # one less than ends the job
            now_ms += 100
            desk.deployed(now_ms)
            failed = TaskFailed(desk.master.attempt, desk.subtasks[0], "pv", "boom", "", Fault.JOB, raised=BOOM)
            desk.do(desk.master.on_message("s0", failed, now_ms), now_ms)
            now_ms += 100
            assert desk.tick(now_ms) is Phase.DEPLOYING, desk.stops
        desk.deployed(now_ms)
        checkpoint, actions = desk.master.trigger_checkpoint(now_ms)
        desk.do(actions, now_ms)
        assert checkpoint is not None
        desk.acknowledge(checkpoint, now_ms)
    assert desk.master.stats.checkpoints_completed == 2 and not desk.stops


@pytest.mark.promise("H8", "F3")
def test_a_function_that_always_raises_ends_the_job_with_the_author_s_line(desk: Desk) -> None:
    """Each time the text names another subtask and record, as with several subtasks of one operator."""
    desk.tick(0)
    desk.register(0)
    now_ms = 0.0
    for number in range(3):
        desk.deployed(now_ms)
        attempt, subtask = desk.master.attempt, desk.subtasks[number % 2]
        raised = msgspec.structs.replace(BOOM, record=f"{{'n': {number}}}")
        failed = TaskFailed(attempt, subtask, "pv", f"subtask {number}: boom", "", Fault.JOB, raised=raised)
        desk.do(desk.master.on_message("s0", failed, now_ms), now_ms)
        now_ms += 1000
        desk.tick(now_ms)
    (stop,) = desk.stops
    assert stop.outcome is Outcome.FAILED and stop.raised is not None and stop.raised.line == "job.py:7"
    assert stop.reason == "subtask 2: boom (the same error 3 times without a checkpoint in between)"
    noted = [action.event for action in desk.other if isinstance(action, Note)]
    assert [e.raised.line for e in noted if isinstance(e, events.AttemptFailed) and e.raised] == ["job.py:7"] * 2


class RaisingCommitter(NothingToCommit):
    """Raises `error` in each commit."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error

    def commit(self, permit: CommitPermit, committables: Sequence[Committable]) -> None:
        if self.error is not None:
            raise self.error


def committing(desk: Desk, monkeypatch: pytest.MonkeyPatch, committer: Committer) -> None:
    """Runs the job until its first epoch is published, and gives it a minute."""
    monkeypatch.setattr(desk.master._publisher, "_committers", {"out": committer})
    desk.tick(0)
    desk.register(0)
    desk.deployed(0)
    desk.do(desk.master.trigger_checkpoint(0)[1], 0)
    desk.acknowledge(1, 0)
    for now_ms in range(100, 60_000, 100):
        desk.tick(now_ms)


@pytest.mark.promise("H8")
def test_a_committer_that_always_raises_ends_the_job_with_its_sink_and_line(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    committing(desk, monkeypatch, RaisingCommitter(ValueError("bad batch")))
    (stop,) = desk.stops
    assert stop.outcome is Outcome.FAILED and stop.raised is not None and stop.raised.type == "ValueError"
    assert stop.reason.startswith("operator 'out', commit(): ValueError: bad batch (the same error 3 times")
    failed = [a.event for a in desk.other if isinstance(a, Note) and isinstance(a.event, events.AttemptFailed)]
    assert [(event.cause, event.uid) for event in failed] == [("commit_failed", "out")] * 2


@pytest.mark.promise("H8")
@pytest.mark.parametrize("error", [ConnectionRefusedError("away"), TimeoutError("slow"), StoreError("full")])
def test_a_committer_whose_target_is_away_is_tried_for_ever(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    committer = RaisingCommitter(error)
    committing(desk, monkeypatch, committer)
    assert desk.stops == [] and desk.master.stats.restarts > 10
    committer.error = None
    desk.tick(70_000)
    desk.tick(80_000)
    assert desk.master.phase is Phase.DEPLOYING


@pytest.mark.promise("H8")
def test_a_slot_that_does_not_see_the_store_is_refused_and_killed_and_the_job_waits_for_another(desk: Desk) -> None:
    desk.tick(0)
    desk.register_one(0, 0)
    bad = desk.register_one(1, 0, nonce="")
    assert desk.master.phase is Phase.WAITING and desk.stops == []
    assert "process 1 at here does not see this job's store" in desk.master.refusal
    for now_ms in range(500, 61_000, 500):
        desk.tick(now_ms)
    assert [action.slot.session for action in desk.other if isinstance(action, KillSlot)] == [bad]
    missing = [a.event for a in desk.other if isinstance(a, Note) and isinstance(a.event, events.SlotsMissing)]
    assert [event.why for event in missing] == [desk.master.refusal]
    desk.register_one(1, 61_000, task=5)
    assert desk.master.phase is Phase.DEPLOYING and desk.master.refusal == ""


@pytest.mark.promise("H8")
def test_a_job_whose_slots_all_do_not_see_the_store_waits_and_starts_them_ever_later(desk: Desk) -> None:
    desk.tick(0)
    session, killed = desk.register_one(0, 0, nonce="other"), 0
    for now_ms in range(500, 600_000, 500):
        desk.tick(now_ms)
        if any(isinstance(action, KillSlot) and action.slot.session == session for action in desk.other):
            killed += 1
            session = desk.register_one(0, now_ms, nonce="other", task=killed)
    assert desk.master.phase is Phase.WAITING and desk.stops == []
    assert 50 < killed < 75, "every ten seconds in the end"


@pytest.mark.promise("H8")
def test_one_slot_with_other_code_is_refused_and_other_code_in_every_slot_is_the_job_s_fault(desk: Desk) -> None:
    desk.tick(0)
    desk.register_one(0, 0)
    for task in range(1, 6):
        desk.register_one(1, 0, plan="other", task=task)
    assert desk.master.phase is Phase.WAITING and desk.stops == []
    assert "runs other code" in desk.master.refusal
    desk.do(desk.master.on_slot_gone("s0", "killed", 0), 0)
    desk.register_one(0, 0, plan="other", task=6)
    (stop,) = desk.stops
    assert stop.outcome is Outcome.FAILED and "ship the same version of the job everywhere" in stop.reason


def not_built(pid: int, partition: int, error: str, fault: Fault) -> NotBuilt:
    return NotBuilt(pid, pid, partition, error, fault, BOOM)


@pytest.mark.promise("H8")
def test_a_job_that_builds_in_no_slot_ends_and_one_that_can_not_be_read_now_is_tried_again(desk: Desk) -> None:
    desk.tick(0)
    for slot in range(2):
        away = not_built(7, slot, "LoadFailed: away", Fault.OUTSIDE)
        desk.do(desk.master.on_message(f"s{slot}", away, 0), 0)
    assert desk.master.phase is Phase.WAITING and desk.stops == [] and "away" in desk.master.refusal
    broken = not_built(8, 1, "JobError: it needs the module 'x'", Fault.JOB)
    desk.do(desk.master.on_message("s1", broken, 0), 0)
    assert desk.stops == [], "the other slot may build it: then only one host lacks the module"
    desk.do(desk.master.on_message("s0", msgspec.structs.replace(broken, partition=0), 0), 0)
    (stop,) = desk.stops
    assert stop.outcome is Outcome.FAILED and stop.raised == BOOM
    assert "can't be built in the slot of process 8: JobError: it needs the module 'x'" in stop.reason


@pytest.mark.promise("H8")
def test_slots_that_do_not_answer_a_deployment_are_killed(desk: Desk) -> None:
    desk.tick(0)
    desk.register(0)
    desk.do(desk.master.on_message("s0", Deployed(desk.master.attempt), 0), 0)
    desk.tick(300_001)
    assert [action.slot.session for action in desk.other if isinstance(action, KillSlot)] == ["s1"]
    assert [slot.session for slot in desk.master.slots.all] == ["s0"] and desk.master.phase is Phase.RESTARTING


def test_a_job_counts_as_deploying_until_all_of_its_channels_are_connected(desk: Desk) -> None:
    desk.tick(0)
    desk.register(0)
    desk.built(100)
    starts = [action.session for action in desk.other if isinstance(action, Send) and isinstance(action.message, Start)]
    assert starts == ["s0", "s1"], "no slot waits for the channels of another"
    assert desk.master.phase is Phase.DEPLOYING and desk.master.connecting == [0, 1]
    assert desk.master.trigger_checkpoint(100) == (None, [])
    desk.do(desk.master.on_message("s1", Connected(desk.master.attempt), 200), 200)
    desk.do(desk.master.on_message("s1", Deployed(desk.master.attempt), 200), 200)  # a late copy starts nobody again
    desk.do(desk.master.on_message("s0", Connected(AttemptId(1, 0)), 200), 200)
    assert desk.tick(200 + 2 * desk.master.config.deploy_timeout_ms) is Phase.DEPLOYING, "channels have their own watch"
    assert desk.master.connecting == [0] and noted(desk, "running") == []
    desk.do(desk.master.on_message("s0", Connected(desk.master.attempt), 900_000), 900_000)
    assert desk.master.phase is Phase.RUNNING and desk.master.connecting == []
    starts = [action for action in desk.other if isinstance(action, Send) and isinstance(action.message, Start)]
    assert len(starts) == 2 and len(noted(desk, "running")) == 1


def test_a_target_that_belongs_to_another_job_ends_the_job_with_the_reason(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trying again would change nothing."""
    theirs = TableCommitter(MemoryStore(), "job/tables/t")
    theirs.claim("2d", 1)
    monkeypatch.setattr(desk.master._publisher, "_committers", {"out": theirs})
    assert desk.tick(0) is Phase.STOPPED
    (stop,) = desk.stops
    assert stop.outcome is Outcome.FAILED and "belongs to job" in stop.reason


@pytest.mark.promise("F2")
def test_a_target_that_a_successor_went_on_with_does_not_fail_the_job(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This JobMaster slept between its claim and its restore. Its table is ahead of the log as it knows it."""
    log = desk.master._publisher._epoch_log
    table = TableCommitter(MemoryStore(), "job/tables/t")
    claim = table.claim

    def late(job_id: str, next_epoch: int) -> None:
        assert log.claim("successor") is not None
        claim(job_id, next_epoch)
        table.commit(CommitPermit.issue(ManifestRef("m", "00", next_epoch, 1)), [])
        claim(job_id, next_epoch)

    monkeypatch.setattr(table, "claim", late)
    monkeypatch.setattr(desk.master._publisher, "_committers", {"out": table})
    assert desk.tick(0) is Phase.STOPPED
    (stop,) = desk.stops
    assert stop.outcome is Outcome.FENCED


def noted(desk: Desk, kind: str) -> list[Any]:
    return [action.event for action in desk.other if isinstance(action, Note) and action.event.kind == kind]


def test_no_checkpoint_is_triggered_by_hand_before_the_job_runs(desk: Desk) -> None:
    desk.tick(0)
    desk.register(0)
    assert desk.master.phase is Phase.DEPLOYING
    assert desk.master.trigger_checkpoint(0) == (None, [])


@pytest.mark.promise("F3")
def test_each_checkpoint_is_noted_when_it_is_triggered(desk: Desk) -> None:
    desk.tick(0)
    desk.register(0)
    desk.deployed(0)
    for _ in range(2):
        desk.do(desk.master.trigger_checkpoint(0)[1], 0)
    assert [event.checkpoint for event in noted(desk, "triggered")] == [1, 2]


@pytest.mark.promise("C4")
def test_each_commit_is_followed_by_a_sweep_of_what_is_kept_no_longer(desk: Desk) -> None:
    desk.tick(0)
    desk.register(0)
    desk.deployed(0)
    checkpoint, actions = desk.master.trigger_checkpoint(0)
    desk.do(actions, 0)
    swept: list[str] = []
    carry_out = desk.do

    def watched(actions: Sequence[Action], now_ms: float) -> None:
        swept.extend(action.name for action in actions if isinstance(action, RunOffLoop))
        carry_out(actions, now_ms)

    desk.do = watched  # type: ignore[method-assign]
    assert checkpoint is not None
    desk.acknowledge(checkpoint, 0)
    first = ["manifest", "publish", "commit", "sweep", "sweep", "tidy"]
    assert swept == first, "the first one also ends savepoints of JobMasters before this one"
    checkpoint, actions = desk.master.trigger_checkpoint(1)
    carry_out(actions, 1)
    swept.clear()
    assert checkpoint is not None
    desk.acknowledge(checkpoint, 1)
    assert swept == ["manifest", "publish", "commit", "sweep", "tidy"]


@pytest.mark.promise("D11")
def test_a_commit_that_fails_ends_the_attempt_and_one_of_an_attempt_that_is_over_ends_no_other(desk: Desk) -> None:
    for running in (True, False):
        desk.held = None
        now_ms = 0.0 if running else 100.0
        desk.tick(now_ms)
        desk.register(now_ms)
        desk.deployed(now_ms)
        assert desk.master.phase is Phase.RUNNING
        restarts = desk.master.stats.restarts
        checkpoint, actions = desk.master.trigger_checkpoint(now_ms)
        assert checkpoint is not None
        desk.do(actions, now_ms)
        desk.held = []
        desk.acknowledge(checkpoint, now_ms)
        for step in ("manifest", "publish"):
            (action,) = [held for held in desk.held if held.name == step]
            desk.held.remove(action)
            desk.do(action.done(action.work(), None, now_ms), now_ms)
        if not running:
            desk.do(desk.master.on_slot_gone("s1", "gone", now_ms), now_ms)
        (commit,) = [held for held in desk.held if held.name == "commit"]
        desk.do(commit.done(None, StoreError("disk full"), now_ms), now_ms)
        assert desk.master.stats.restarts == restarts + 1
    assert [event.cause for event in noted(desk, "attempt_failed")] == ["commit_failed", "slot_lost"]


def test_a_slot_over_its_memory_is_told_in_megabytes(desk: Desk) -> None:
    desk.tick(0)
    desk.register(0)
    desk.deployed(0)
    desk.do(desk.master.on_message("s0", OverBudget(600_000_000, 512_000_000), 0), 0)
    failure = desk.master.stats.last_failure
    assert failure is not None and "held 600 MB and may hold 512: " in failure.detail
