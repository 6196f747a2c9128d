"""Goal: a job that is rescaled while it runs keeps all of its state, and its rows are those of a job that was not.

Topology: sources → keyed operators, operator lists, broadcast state → table, in one process (engine/testing.py).
Faults: slots that die before, during and after the switch; slots that do not come; state that is lost on the way; a
parallelism that can't be saved. Checks: rows, digests, which subtask has which key, what is left of the slots.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
import pytest

import engine.snapshot.restore as restore_module
from engine.api import (
    BroadcastContext,
    FixedDelay,
    FlatMapFunction,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ProcessContext,
    ReadOnlyBroadcastContext,
    RuntimeContext,
    StreamEnvironment,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
    WatermarkStrategy,
    count,
)
from engine.connectors.table import TableSink
from engine.jobmaster.actions import Action, ReleaseSlots, RunOffLoop, StartSlots
from engine.jobmaster.events import AttemptFailed, Rescaled, RescaleFailed
from engine.jobmaster.master import Phase
from engine.jobmaster.rescaling import Accepted, Refused, RescalePhase, Unchanged
from engine.protocol.messages import Register
from engine.protocol.redistribution import Distribution
from engine.state.key_groups import key_groups, subtask_of
from engine.state.key_hash import hash_columns
from engine.testing import ListSource, LocalRun, Scaling

Row = dict[str, Any]
Job = Callable[[StreamEnvironment], None]
KEYS = [f"key {n}" for n in range(40)]
ROWS = 400


def records(splits: int = 2) -> ListSource:
    return ListSource(*[[{"n": n, "key": KEYS[n * 7 % 40]} for n in range(s, ROWS, splits)] for s in range(splits)])


class Number(KeyedProcessFunction):
    """Numbers the records of each key, and says which subtask did."""

    def open(self, context: RuntimeContext) -> None:
        self._index = context.subtask_index
        self._seen = context.get_state(ValueStateDescriptor("seen", pa.int64()))

    def process_element(self, value: Row, context: ProcessContext) -> Iterable[Row]:
        seen = (self._seen.value() or 0) + 1
        self._seen.update(seen)
        yield {"key": value["key"], "seen": seen, "subtask": self._index}


def numbering(env: StreamEnvironment) -> None:
    env.set_restart_strategy(FixedDelay(attempts=50, delay_ms=5))
    stream = env.from_source(records(), "n long, key string", uid="records")
    numbered = stream.key_by("key").process(Number(), uid="number", schema="key string, seen long, subtask long")
    numbered.sink_to(TableSink("out"), uid="out")


def started(job: Job, parallelism: int, rows: int = 60) -> LocalRun:
    """A job that has processed some records."""
    run = LocalRun(job, parallelism, {})
    return run.run(lambda: run.master.phase is Phase.RUNNING and run.now_ms() > rows)


def over(run: LocalRun, count: int = 1) -> Rescaled | RescaleFailed:
    run.run(lambda: len(run.rescales) >= count)
    return run.rescales[-1]


def check_numbers(run: LocalRun) -> None:
    rows = run.rows("out")
    assert len(rows) == ROWS
    for key in KEYS:
        assert sorted(row["seen"] for row in rows if row["key"] == key) == list(range(1, ROWS // 40 + 1))


@pytest.mark.promise("D7", "H6")
@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2), (1, 4), (4, 1)])
def test_a_running_job_goes_on_at_another_parallelism_with_all_of_its_state(before: int, after: int) -> None:
    run = started(numbering, before)
    assert isinstance(run.rescale(Scaling(after)), Accepted)
    done = over(run)
    assert isinstance(done, Rescaled) and done.digest_before == done.digest_after
    assert 0 < done.rows <= 40 and done.pause_ms is not None and done.pause_ms > 0
    assert run.execution.slots == len(run.slots) == after
    assert run.scaling == Scaling(after), "it is durable"
    run.run()
    check_numbers(run)
    assert run.restarts == 0


@pytest.mark.promise("A3", "D7")
def test_after_a_rescale_each_key_is_in_the_subtask_that_its_key_group_says() -> None:
    run = started(numbering, 2)
    run.rescale(Scaling(3))
    assert isinstance(over(run), Rescaled)
    epoch = run.epochs
    before = {(row["key"], row["seen"]) for row in run.rows("out")}
    assert epoch >= 1
    run.run()
    groups = key_groups(hash_columns([pa.array(KEYS)]), run.execution.graph.max_parallelism)
    owner = dict(zip(KEYS, subtask_of(groups, 3, run.execution.graph.max_parallelism).tolist(), strict=True))
    later = [row for row in run.rows("out") if (row["key"], row["seen"]) not in before]
    assert len(later) > 100 and {row["subtask"] for row in later} == {0, 1, 2}
    assert all(row["subtask"] == owner[row["key"]] for row in later)


@pytest.mark.promise("D7")
def test_a_single_operator_is_rescaled_and_those_behind_it_follow() -> None:
    run = started(numbering, 2)
    run.rescale(Scaling(None, {"number": 3}))
    assert isinstance(over(run), Rescaled)
    assert {v.id: v.parallelism for v in run.execution.graph.vertices} == {"records": 2, "number": 3}
    run.rescale(Scaling(1))
    assert isinstance(over(run, 2), Rescaled)
    assert {v.id: v.parallelism for v in run.execution.graph.vertices} == {"records": 1, "number": 1}
    run.run()
    check_numbers(run)


@pytest.mark.promise("D7")
def test_the_splits_of_a_source_are_dealt_out_anew() -> None:
    def job(env: StreamEnvironment) -> None:
        env.from_source(records(splits=4), "n long, key string", uid="records").sink_to(TableSink("out"), uid="out")

    run = started(job, 1)
    for number, parallelism in enumerate((4, 3, 2), 1):
        run.rescale(Scaling(parallelism))
        assert isinstance(over(run, number), Rescaled)
        assert run.execution.graph.vertices[0].parallelism == parallelism
    run.run()
    assert sorted(row["n"] for row in run.rows("out")) == list(range(ROWS))


class Hold(FlatMapFunction):
    """Holds every record back in a split list until it has ten; notes in a union list who it is."""

    def open(self, context: RuntimeContext) -> None:
        store = context.get_operator_state_store()
        self._index = context.subtask_index
        self._held = store.get_list_state(ListStateDescriptor("held", pa.int64()))
        self._who = store.get_union_list_state(ListStateDescriptor("who", pa.int64()))
        self._records = self._held.get()
        self._found = sorted(self._who.get())

    def flat_map(self, value: Row) -> Iterable[Row]:
        self._records.append(value["n"])
        if len(self._records) < 10:
            return
        ready, self._records = self._records, []
        yield from ({"n": n, "found": self._found} for n in ready)

    def snapshot_state(self, checkpoint: int) -> None:
        self._held.update(self._records)
        self._who.update([self._index])


@pytest.mark.promise("C1", "D7", "H6")
def test_split_lists_are_dealt_out_and_union_lists_are_whole_in_every_subtask() -> None:
    def job(env: StreamEnvironment) -> None:
        stream = env.from_source(records(), "n long, key string", uid="records").set_parallelism(1)
        held = stream.rebalance().flat_map(Hold(), schema="n long, found array<long>", uid="hold")
        held.sink_to(TableSink("out"), uid="out")

    run = started(job, 2)
    found = [[]]
    for number, (parallelism, whole) in enumerate(((3, [0, 1]), (1, [0, 1, 2]), (2, [0])), 1):
        run.rescale(Scaling(parallelism))
        assert isinstance(over(run, number), Rescaled)
        found.append(whole)
        seen = run.now_ms()
        run.run(lambda seen=seen: run.now_ms() > seen + 60)
    run.run()
    rows = run.rows("out")
    emitted = [row["n"] for row in rows]
    assert len(emitted) == len(set(emitted)) > ROWS - 20, "what is missing is held, fewer than ten in each subtask"
    assert {tuple(row["found"]) for row in rows} == {tuple(one) for one in found}


class Price(KeyedBroadcastProcessFunction):
    def process_element(self, value: Row, context: ReadOnlyBroadcastContext) -> Iterable[Row]:
        yield {"price": context.get_broadcast_state(PRICES).get("all")}

    def process_broadcast_element(self, value: Row, context: BroadcastContext) -> Iterable[Row]:
        context.get_broadcast_state(PRICES).put("all", value["price"])
        return ()


PRICES = MapStateDescriptor("prices", pa.string(), pa.int64())


@pytest.mark.promise("C1", "D7", "H6")
def test_broadcast_state_is_in_every_new_subtask() -> None:
    def job(env: StreamEnvironment) -> None:
        prices = env.from_source(ListSource([{"price": 5}]), "price long", uid="prices").broadcast(PRICES)
        stream = env.from_source(records(), "n long, key string", uid="records").set_parallelism(1)
        priced = stream.key_by("key").connect(prices).process(Price(), uid="price", schema="price long")
        priced.sink_to(TableSink("out"), uid="out")

    run = started(job, 1, rows=100)
    run.rescale(Scaling(None, {"price": 3}))
    assert isinstance(over(run), Rescaled)
    before = len(run.rows("out"))
    run.run()
    assert Counter(row["price"] for row in run.rows("out")[before:]) == {5: ROWS - before}


@pytest.mark.promise("D7", "B7")
def test_a_window_that_was_published_stays_closed_after_a_rescale() -> None:
    """Late records come after each rescale; they open no window again, in whichever subtask their key is now."""
    views = [{"key": f"k{n % 8}", "ts": n * 100} for n in range(200)]
    for n in range(60, 200, 10):
        views[n] = {"key": f"k{n % 8}", "ts": 50}

    def job(env: StreamEnvironment) -> None:
        stream = env.from_source(ListSource(views), "key string, ts long", uid="views")
        timed = stream.assign_timestamps_and_watermarks(
            WatermarkStrategy.for_monotonous_timestamps().with_timestamps("ts")
        )
        windows = timed.key_by("key").window(TumblingEventTimeWindows.of("1 s"))
        windows.aggregate(rows=count(), uid="count").sink_to(TableSink("out"), uid="out")

    run = started(job, 2, rows=40)
    for number, parallelism in enumerate((3, 1, 4), 1):
        run.rescale(Scaling(parallelism))
        done = over(run, number)
        assert isinstance(done, Rescaled)
        seen = run.now_ms()
        run.run(lambda seen=seen: run.now_ms() > seen + 15)
    run.run()
    windows = [(row["key"], row["window_start"]) for row in run.rows("out")]
    assert len(windows) == len(set(windows))
    assert sum(row["rows"] for row in run.rows("out")) == 200 - 14, "14 records were late, and none else"


# --- what goes wrong ---


@pytest.mark.promise("H6")
@pytest.mark.parametrize("lost", [Distribution.KEYED, Distribution.SPLIT])
def test_state_that_is_lost_on_the_way_is_noticed_and_the_job_goes_on_as_before(
    lost: Distribution, monkeypatch: pytest.MonkeyPatch
) -> None:
    def job(env: StreamEnvironment) -> None:
        env.set_restart_strategy(FixedDelay(attempts=50, delay_ms=5))
        stream = env.from_source(records(), "n long, key string", uid="records")
        held = stream.rebalance().flat_map(Hold(), schema="n long, found array<long>", uid="hold")
        held.sink_to(TableSink("held"), uid="held")
        numbered = stream.key_by("key").process(Number(), uid="number", schema="key string, seen long, subtask long")
        numbered.sink_to(TableSink("out"), uid="out")

    run = started(job, 2)
    restore = restore_module.restore

    def losing(log: Any, ref: Any, wanted: Any) -> Any:
        """The third subtask gets one row less than it should."""
        restored = restore(log, ref, wanted)
        if lost is Distribution.KEYED:
            for (subtask, _), tables in restored.tables.items():
                if subtask.index == 2:
                    tables[0] = (tables[0][0], tables[0][1].slice(1))
        else:
            for (subtask, _), shares in restored.operator.items():
                if subtask.index == 2:
                    shares[:] = [(n, how, t.slice(1) if how is lost else t) for n, how, t in shares]
        return restored

    monkeypatch.setattr("engine.runtime.slot.restore", losing)
    run.rescale(Scaling(3))
    failed = over(run)
    assert isinstance(failed, RescaleFailed)
    assert f"{lost.value} state" in failed.why and failed.digest_before != failed.digest_after
    run.run(lambda: run.master.phase is Phase.RUNNING)
    assert run.execution.slots == 2 and run.scaling == Scaling(), "the old parallelism has stayed the durable one"
    run.run()
    check_numbers(run)
    assert len(run.slots) == 2 or run.ended is not None


@pytest.mark.promise("D7")
@pytest.mark.parametrize("phase", [RescalePhase.SLOTS, RescalePhase.CHECKPOINT, RescalePhase.SWITCHING])
def test_a_slot_that_dies_during_a_rescale_loses_and_doubles_nothing(phase: RescalePhase) -> None:
    """Until the new parallelism is durable, the job restarts at the old one."""
    run = started(numbering, 2)
    run.rescale(Scaling(3))
    run.run(lambda: run.master._rescaler.current is not None and run.master._rescaler.current.phase is phase)
    if phase is RescalePhase.SWITCHING:
        run.run(lambda: run.master.phase is Phase.DEPLOYING)
    run._replace(run.slots[0])
    done = over(run)
    assert isinstance(done, RescaleFailed)
    run.run(lambda: run.master.phase is Phase.RUNNING)
    assert run.execution.slots == 2 and run.scaling == Scaling()
    assert run.restarts == 1
    run.run()
    check_numbers(run)


class SlowSave(LocalRun):
    """The parallelism becomes durable when the test says so."""

    held: list[RunOffLoop]

    def carry_out(self, actions: list[Action]) -> None:
        self.held = [*getattr(self, "held", []), *(a for a in actions if isinstance(a, RunOffLoop) and self._saves(a))]
        super().carry_out([action for action in actions if action not in self.held])

    def _saves(self, action: RunOffLoop) -> bool:
        return action.name == "parallelism" and self.master._rescaler.saving

    def save_now(self) -> None:
        self._run_off_loop(self.held.pop())


@pytest.mark.promise("D7", "H6")
def test_no_record_is_processed_and_nothing_is_restored_before_the_outcome_of_the_save_is_known() -> None:
    """Fault: a slot dies while the parallelism is saved. The job goes on at what has become durable."""
    run = SlowSave(numbering, 2, {})
    run.run(lambda: run.master.phase is Phase.RUNNING and run.now_ms() > 60)
    run.rescale(Scaling(3))
    run.run(lambda: bool(run.held))
    seen = run.now_ms()
    run.run(lambda: run.now_ms() > seen + 20)
    assert run.master.phase is Phase.DEPLOYING and not run.rescales
    run._replace(run.slots[0])
    run.run(lambda: run.now_ms() > seen + 2000)
    assert run.master.phase is Phase.RESTARTING and not run.rescales
    run.save_now()
    assert isinstance(over(run), Rescaled)
    run.run(lambda: run.master.phase is Phase.RUNNING)
    assert run.execution.slots == 3 and run.scaling == Scaling(3)
    run.run()
    check_numbers(run)


@pytest.mark.promise("D7")
def test_a_switch_that_lost_a_slot_which_spark_does_not_start_again_is_given_up() -> None:
    run = started(numbering, 2)
    run.rescale(Scaling(3))
    run.run(lambda: run.master._rescaler.wants_digests)
    lost = run.slots.pop()
    run.carry_out(run.master.on_slot_gone(lost.session, "its host is gone", run.now_ms()))
    run.run(lambda: run.master.phase is Phase.WAITING)
    run.master._rescaler._timeout_ms = 40
    failed = over(run)
    assert isinstance(failed, RescaleFailed) and "only 2 of 3 slots have registered" in failed.why
    run.run(lambda: run.master.phase is Phase.RUNNING)
    assert run.execution.slots == 2 and run.scaling == Scaling()
    run.run()
    check_numbers(run)


class Crowded(LocalRun):
    """Spark has no room: slots that are asked for never come."""

    released: tuple[int, ...] = ()

    def carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, ReleaseSlots):
                self.released = action.numbers
        super().carry_out([action for action in actions if not isinstance(action, StartSlots)])


@pytest.mark.promise("D7")
def test_slots_that_do_not_come_leave_the_job_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Crowded(numbering, 2, {})
    run.run(lambda: run.master.phase is Phase.RUNNING and run.now_ms() > 30)
    run.master._rescaler._timeout_ms = 40
    run.rescale(Scaling(3))
    failed = over(run)
    assert isinstance(failed, RescaleFailed) and "only 2 of 3 slots have registered" in failed.why
    assert run.released == (2,) and run.master.phase is Phase.RUNNING and run.restarts == 0
    late = run._start_slot(2)
    run.slots.append(late)
    run.run(lambda: late.runtime.shutdown is not None)
    assert len(run.master.slots.all) == 2, "a slot that comes after all is sent away"
    run.run()
    check_numbers(run)


def test_a_parallelism_that_can_not_be_saved_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(scaling: Scaling) -> None:
        raise OSError("no space left on device")

    run = LocalRun(numbering, 2, {})
    object.__setattr__(run.master._rescaler._scale, "save", refuse)
    run.run(lambda: run.master.phase is Phase.RUNNING and run.now_ms() > 60)
    run.rescale(Scaling(3))
    failed = over(run)
    assert isinstance(failed, RescaleFailed) and "no space left on device" in failed.why
    run.run()
    check_numbers(run)
    assert run.execution.slots == 2 and not any(isinstance(event, AttemptFailed) for event in run.events)


def test_a_jobmaster_begins_at_the_parallelism_that_was_saved_since_it_was_started() -> None:
    """A standby reads it when it takes the job over; it asks for the slots that it lacks, and releases surplus ones."""
    for parallelism in (3, 1):
        run = LocalRun(numbering, 2, {})
        run.scaling = Scaling(parallelism)
        run.run(lambda run=run: run.master.phase is Phase.RUNNING)
        assert run.execution.slots == parallelism
        run.run(lambda run=run, parallelism=parallelism: len(run.slots) == parallelism)
        run.run()
        check_numbers(run)


def test_a_job_that_ends_meanwhile_says_so() -> None:
    run = started(numbering, 2, rows=0)
    run.run(lambda: run.master.coordinator is not None and run.master.coordinator._final_wanted)
    answer = run.rescale(Scaling(3))
    run.run()
    assert isinstance(answer, Accepted | Refused)
    assert not any(isinstance(event, Rescaled) for event in run.events)
    check_numbers(run)


@pytest.mark.promise("D7", "F3")
def test_the_pause_is_from_the_end_of_the_old_attempt_to_the_first_record_however_long_the_rescale_had_waited() -> None:
    run = started(numbering, 2)
    run.rescale(Scaling(3))
    rescaler = run.master._rescaler
    run.run(lambda: rescaler.takes_checkpoint)
    current = rescaler.current
    assert current is not None
    current.since_ms -= 1e9  # as if it had waited for a savepoint
    run.run(lambda: rescaler.wants_digests)
    stopped_ms = run.now_ms()
    assert stopped_ms - current.since_ms < 1000, "the time of the switch counts anew"
    current.since_ms -= 1e9
    run.run(lambda: current.phase is RescalePhase.STARTED)
    started_ms = run.now_ms()
    assert started_ms - current.since_ms < 1000, "and that of the wait for a record"
    done = over(run)
    assert isinstance(done, Rescaled) and done.pause_ms is not None
    assert started_ms - stopped_ms < done.pause_ms <= run.now_ms() - stopped_ms + 1


@pytest.mark.promise("D7")
def test_a_rescale_whose_checkpoints_are_aborted_is_given_up_after_the_third() -> None:
    run = started(numbering, 2)
    run.rescale(Scaling(3))
    rescaler = run.master._rescaler
    for number in (1, 2, 3):
        run.run(lambda: rescaler.current is None or rescaler.current.checkpoint is not None)
        assert rescaler.current is not None and rescaler.current.tries == number
        checkpoint = rescaler.current.checkpoint
        assert checkpoint is not None and rescaler.on_aborted(checkpoint + 1, "another one") == []
        actions = rescaler.on_aborted(checkpoint, "no space")
        run.carry_out(actions)
    assert any(isinstance(action, ReleaseSlots) for action in actions), "the slots that were added go again"
    (failed,) = run.rescales
    assert isinstance(failed, RescaleFailed) and failed.why == "its checkpoint failed 3 times: no space"
    run.run()
    check_numbers(run)


# --- requests ---


@pytest.mark.promise("D7", "F1")
@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (Scaling(None, {"numbers": 2}), "no operator 'numbers' (did you mean 'number'?); it has: records, number, out"),
        (Scaling(None, {"records": 3}), "source 'records' has 2 splits, so its parallelism can't be 3"),
        (Scaling(None, {"number": 0}), "the parallelism of 'number' must be at least 1, not 0"),
        (Scaling(0), "the parallelism must be at least 1, not 0"),
        (Scaling(129), "parallelism 129 is more than max_parallelism 128"),
        (Scaling(), "say which parallelism"),
    ],
)
def test_what_can_never_be_is_refused_and_the_job_goes_on(wanted: Scaling, why: str) -> None:
    run = started(numbering, 2, rows=5)
    answer = run.rescale(wanted)
    assert isinstance(answer, Refused) and answer.wrong and why in answer.why
    assert run.master.phase is Phase.RUNNING and run.execution.slots == 2


def test_more_slots_than_spark_has_are_refused() -> None:
    run = started(numbering, 2, rows=5)
    object.__setattr__(run.master._rescaler._scale, "max_slots", 4)
    answer = run.rescale(Scaling(5))
    assert isinstance(answer, Refused) and "the job would need 5, Spark is given 4" in answer.why
    assert isinstance(run.rescale(Scaling(4)), Accepted)


def test_the_same_parallelism_changes_nothing() -> None:
    run = started(numbering, 2, rows=5)
    assert run.rescale(Scaling(2)) == Unchanged()
    assert run.rescale(Scaling(None, {"number": 2})) == Unchanged()


def test_one_rescale_at_a_time_and_only_of_a_running_job() -> None:
    run = LocalRun(numbering, 2, {})
    answer = run.rescale(Scaling(3))
    assert isinstance(answer, Refused) and not answer.wrong and "the job is not running now" in answer.why
    run.run(lambda: run.master.phase is Phase.RUNNING)
    assert isinstance(run.rescale(Scaling(3)), Accepted)
    answer = run.rescale(Scaling(1))
    assert isinstance(answer, Refused) and not answer.wrong and "is under way: waiting for slots" in answer.why


def test_an_operator_behind_forward_keeps_the_parallelism_of_the_one_before_it() -> None:
    def job(env: StreamEnvironment) -> None:
        stream = env.from_source(records(), "n long, key string", uid="records").rebalance()
        stream.map(lambda row: row, uid="first").forward().map(lambda row: row, uid="second").print(uid="shown")

    run = started(job, 2, rows=5)
    answer = run.rescale(Scaling(None, {"second": 3}))
    assert isinstance(answer, Refused) and "forward() from 'first' (parallelism 2) to 'second'" in answer.why
    run.rescale(Scaling(None, {"first": 3}))
    assert isinstance(over(run), Rescaled)
    sizes = {uid: v.parallelism for v in run.execution.graph.vertices for uid in v.uids}
    assert sizes == {"records": 2, "first": 3, "second": 3, "shown": 3}


def test_a_checkpoint_by_hand_beside_a_rescale_harms_neither() -> None:
    run = started(numbering, 2)
    run.rescale(Scaling(3))
    run.run(lambda: run.master._rescaler.current is not None and run.master._rescaler.current.checkpoint is not None)
    _, actions = run.master.trigger_checkpoint(run.now_ms())
    run.carry_out(actions)
    done = over(run)
    assert isinstance(done, Rescaled)
    run.run()
    check_numbers(run)


@pytest.mark.promise("H8")
def test_further_slots_that_run_other_code_do_not_end_a_job_that_runs() -> None:
    """Two slots run the job, and two more of a rescale come from a host with another version of it."""
    run = Crowded(numbering, 2, {})
    run.run(lambda: run.master.phase is Phase.RUNNING and run.now_ms() > 30)
    run.rescale(Scaling(4))
    for number in (2, 3):
        other = Register(f"other {number}", "there", number, number, run.nonce, "another plan", number)
        run.carry_out(run.master.on_message(other.session, other, run.now_ms()))
    assert run.ended is None and run.master.phase is Phase.RUNNING
    run.run()
    check_numbers(run)
