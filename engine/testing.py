"""Tools for testing jobs: runs a job in this process, deterministically, with faults as items of its input.

It runs the real JobMaster, slots, gates, operators, snapshots and tables in one thread, with a simulated clock and a
store in memory. A test of recovery reads like a story:

    views = ListSource([{"app": "a", "pv": 1}, Checkpoint(), {"app": "a", "pv": 1}, Crash(), {"app": "b", "pv": 1}])

The slot that reads a `Crash` dies there, once; the job goes on from its last epoch. `Wait("10 min")` lets time pass
before the next item, without waiting: processing-time timers fire and state expires. `run(job).rows("name")` returns
the rows that `TableSink("name")` has published, and `run(job).state("uid", "name")` what is in a keyed state.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from engine.api.calls import explained
from engine.api.environment import StreamEnvironment
from engine.connectors.table import TableSink, read_table
from engine.core.durations import Duration, to_ms
from engine.core.errors import JobError, SchemaMismatch
from engine.core.event_time import described
from engine.core.paths import JobPaths
from engine.core.sources import FixedSource, SourceContext, SplitReader
from engine.graph.execution_graph import ExecutionGraph
from engine.graph.scalable import SlotPlans
from engine.jobmaster.actions import Action, AskGate, Note, Outcome, RunOffLoop, Send, StartSlots, Stop
from engine.jobmaster.events import Aborted, AnyEvent, AttemptFailed, Completed, Rescaled, RescaleFailed, TaskFailed
from engine.jobmaster.gatekeeper import HeldEpoch
from engine.jobmaster.master import JobMaster, MasterConfig
from engine.jobmaster.rescaling import Answer, Scale
from engine.process.gate_judging import answer
from engine.protocol.failures import Raised
from engine.protocol.gate import GateQuestion, Ruling
from engine.protocol.ids import AttemptId, ChannelId, SubtaskId
from engine.protocol.messages import Heartbeat, Register, SlotMessage
from engine.protocol.scaling import AS_STARTED, Scaling
from engine.runtime.slot import SlotRuntime
from engine.snapshot.epoch_log import EpochLog
from engine.snapshot.statefile import decode_plain
from engine.store.memory import MemoryStore

STEPS = 200_000
"""A run that takes more steps is stuck, or too large for a test."""


class Checkpoint:
    """The source waits here until a checkpoint of everything before this item is complete."""

    def __init__(self) -> None:
        self.done = False


class Crash:
    """The slot that reads this item dies, as by kill -9. The slot that replaces it reads past it."""

    def __init__(self) -> None:
        self.done = False


class Wait:
    """The source waits here for so long, such as "10 min". The clock of the run jumps, so it takes no time."""

    def __init__(self, duration: Duration) -> None:
        self._duration_ms = to_ms(duration)
        self.until_ms: float | None = None

    def over(self, now_ms: float) -> bool:
        """Says whether the time has passed. The first call starts it."""
        if self.until_ms is None:
            self.until_ms = now_ms + self._duration_ms
        return now_ms >= self.until_ms


class JobFailed(AssertionError):
    """The job did not finish."""


Item = Mapping[str, Any] | Checkpoint | Crash | Wait


class ListSource(FixedSource):
    """A source of records and faults from lists, one list per split."""

    def __init__(self, *splits: Sequence[Item]) -> None:
        for split in splits:
            if isinstance(split, Mapping | str | Checkpoint | Crash | Wait):
                raise JobError(
                    f"ListSource takes one list per split, not {split!r}: write ListSource([{split!r}, ...])"
                )
        self._splits = [list(split) for split in splits]

    def splits(self) -> Sequence[str]:
        return [str(index) for index in range(len(self._splits))]

    def reader(self, split: str, position: Any, context: SourceContext) -> SplitReader:
        run = context.clock
        assert isinstance(run, LocalRun), "a ListSource runs only in engine.testing.run"
        return _ListReader(self._splits[int(split)], position or 0, run, context.schema)


class _ListReader(SplitReader):
    """Gives one record at a time, so that a fault happens exactly where it was written."""

    def __init__(self, items: list[Item], position: int, run: LocalRun, schema: pa.Schema) -> None:
        self._items = items
        self._position = position
        self._run = run
        self._schema = schema

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        item = self._items[self._position]
        if isinstance(item, Checkpoint) and not item.done:
            self._run.want_checkpoint(item)
            return None
        if isinstance(item, Crash) and not item.done:
            item.done = True
            raise _Killed
        if isinstance(item, Wait) and not item.over(self._run.now_ms()):
            return None
        self._position += 1
        if isinstance(item, Checkpoint | Crash | Wait):
            return None
        if unknown := next((name for name in item if name not in self._schema.names), None):
            raise SchemaMismatch(
                f"ListSource: item {self._position - 1} has the field {unknown!r}, which the schema "
                f"({described(self._schema)}) does not have: declare it, or leave it out"
            )
        return pa.RecordBatch.from_pylist([dict(item)], schema=self._schema)

    @property
    def position(self) -> int:
        return self._position

    @property
    def finished(self) -> bool:
        return self._position >= len(self._items)

    @property
    def wakeup_ms(self) -> float | None:
        item = self._items[self._position]
        return item.until_ms if isinstance(item, Wait) else None


class _Killed(BaseException):
    """Kills a slot. Not an Exception, so no code in the slot catches it."""


class _Slot:
    """One simulated slot process: a SlotRuntime and its ports."""

    def __init__(self, run: LocalRun, index: int, session: str) -> None:
        self.index = index
        self.session = session
        self.alive = True
        self._run = run
        self.runtime = SlotRuntime(SlotPlans(run.job), run.paths, run, self, self, run.store, self)

    def post(self, work: Callable[[], None]) -> None:
        """Queues work for this process; it is dropped if the process has died by then."""
        self._run.post(lambda: work() if self.alive else None)

    # Transport
    def open(self, attempt: AttemptId, channel: ChannelId, address: str, schema: pa.Schema) -> None: ...

    def close(self, attempt: AttemptId) -> None: ...

    def send(self, attempt_or_message: Any, channel: Any = None, frame: Any = None) -> None:
        """Sends a frame (Transport) or a message (Control): the two ports share this name."""
        if channel is None:
            self._to_master(attempt_or_message)
            return
        receiver = self._run.slot_of(self._run.execution.receiver(channel))
        if receiver is not None:
            receiver.post(lambda: receiver.runtime.on_frame(attempt_or_message, channel, frame))

    def grant(self, attempt: AttemptId, channel: ChannelId, granted_total: int) -> None:
        sender = self._run.slot_of(self._run.execution.sender(channel))
        if sender is not None:
            sender.post(lambda: sender.runtime.on_grant(attempt, channel, granted_total))

    def _to_master(self, message: SlotMessage) -> None:
        run = self._run
        self.post(lambda: run.carry_out(run.master.on_message(self.session, message, run.now_ms())))

    # Offload
    def submit(self, queue: str, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        def both() -> None:
            result, error = _tried(work)
            self.post(lambda: done(result, error))

        self.post(both)


def _tried(work: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return work(), None
    except Exception as error:
        return None, error


class LocalRun:
    """A job, its JobMaster and its slots, in one thread. It is also their clock.

    Each turn takes a millisecond; if all slots wait for a time, the clock jumps there.
    """

    def __init__(
        self,
        job: Callable[[StreamEnvironment], None],
        parallelism: int,
        params: Mapping[str, str],
        after: LocalRun | None = None,
        allow_non_restored_state: bool = False,
    ) -> None:
        env = StreamEnvironment(params=params, parallelism=parallelism)
        try:
            job(env)
        except TypeError as error:
            if said := explained(error):
                raise JobError(said) from error
            raise
        env.params.check_all_known()
        self.job = env.scalable("test")
        graph = self.job.at(AS_STARTED)
        self._fingerprint = graph.fingerprint
        self.paths = JobPaths("test")
        self.nonce: str = f"{after.nonce}+" if after else "nonce"
        self.store: MemoryStore = after.store if after else MemoryStore()
        self.events: list[AnyEvent] = []
        self.ended: Stop | None = None
        self._now_ms = 0.0
        self._inbox: deque[Callable[[], None]] = deque()
        self._sessions = itertools.count()
        self._wanted: dict[int, Checkpoint] = {}
        self.scaling = AS_STARTED
        """The parallelism that rescales have made durable."""
        committers = {uid: sink.committer(self.store, self.paths) for uid, sink in graph.sinks}
        self._targets = {
            uid: sink.place(self.store, self.paths)[0] for uid, sink in graph.sinks if isinstance(sink, TableSink)
        }
        log = EpochLog(self.store, self.paths)
        last = log.last() if allow_non_restored_state else None
        allowed = last.newest.epoch if last is not None and last.newest is not None else None
        config = MasterConfig(allows=lambda epoch: epoch == allowed)
        scale = Scale(AS_STARTED, self.job.at, self._save, lambda: self.scaling)
        self.master = JobMaster(
            ExecutionGraph(graph),
            log,
            committers,
            f"owner of {self.nonce}",
            self.nonce,
            self.wall_ms,
            lambda: 0.5,
            config,
            scale,
        )
        self.slots = [self._start_slot(index) for index in range(self.execution.slots)]

    def _save(self, scaling: Scaling) -> None:
        self.scaling = scaling

    @property
    def execution(self) -> ExecutionGraph:
        """The graph of subtasks that runs now."""
        return self.master.execution

    # --- results, for tests ---

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Returns the rows that `TableSink(table)` has published."""
        rows: list[dict[str, Any]] = read_table(self.store, self.paths.table(table)).to_pylist()
        return rows

    def state(self, uid: str, name: str) -> list[dict[str, Any]]:
        """Returns the rows of a keyed state in the newest epoch: key columns and value, item or entry."""
        newest = self.master.newest
        assert newest is not None, "there is no epoch yet"
        manifest = EpochLog(self.store, self.paths).read_manifest(newest)
        files = [file for of in manifest.subtasks for file in of.files if (file.uid, file.name) == (uid, name)]
        return [row for file in files for row in decode_plain(self.store.read(file.path)).to_pylist()]

    @property
    def restarts(self) -> int:
        """How often the job was restarted after a failure."""
        return self.master.stats.restarts

    @property
    def epochs(self) -> int:
        """The number of the newest epoch; 0 if there is none."""
        return self.master.newest.epoch if self.master.newest else 0

    @property
    def held_epochs(self) -> list[HeldEpoch]:
        """The sinks of the epoch that a gate holds. `run` raises `JobFailed` when nothing else is left to do."""
        return self.master.held

    def rule_on_held(self, ruling: Ruling) -> None:
        """Decides about the held epoch as a person would. Stop the run before, `until` there are `held_epochs`."""
        refusal, actions = self.master.rule(self.held_epochs[0].checkpoint, ruling, self._now_ms)
        assert refusal is None, refusal
        self.carry_out(actions)

    @property
    def rescales(self) -> list[Rescaled | RescaleFailed]:
        """The rescales that are over, oldest first."""
        return [event for event in self.events if isinstance(event, Rescaled | RescaleFailed)]

    def rescale(self, wanted: Scaling) -> Answer:
        """Begins to run the job at another parallelism: `Scaling(3)` of all operators, or of single ones by uid."""
        answer, actions = self.master.rescale(wanted, self._now_ms)
        self.carry_out(actions)
        return answer

    # --- the world ---

    def now_ms(self) -> float:
        """Returns the time of the run's own clock, from 0."""
        return self._now_ms

    def wall_ms(self) -> int:
        """Returns the processing time that functions see: the run's clock, as Unix time from 2023-11-14 on."""
        return 1_700_000_000_000 + int(self._now_ms)

    def post(self, work: Callable[[], None]) -> None:
        """Queues work for the next turn."""
        self._inbox.append(work)

    def run(self, until: Callable[[], bool] | None = None) -> LocalRun:
        """Runs the job to its end, or until `until` returns True. Call it again to run on from there."""
        idle = False
        for _ in range(STEPS):
            if until is not None and until():
                return self
            if idle and self.held_epochs:
                held = (f"the gate of sink {one.sink!r} holds epoch {one.epoch}: {one.why}" for one in self.held_epochs)
                raise JobFailed("; ".join(held))
            idle = False
            self._now_ms += 1
            for _ in range(len(self._inbox)):
                self._inbox.popleft()()
            self.slots = [slot for slot in self.slots if slot.runtime.shutdown is None]
            busy = False
            for slot in list(self.slots):
                try:
                    busy = slot.runtime.step() or busy
                except _Killed:
                    self._replace(slot)
            if self.ended is None:
                self.carry_out(self.master.on_tick(self._now_ms))
            if self.ended is not None:
                if self.ended.outcome not in (Outcome.FINISHED, Outcome.STOPPED):
                    raise JobFailed("\n".join([self.ended.reason, *self._authors_lines(self.ended.raised)]))
                return self
            if not busy and not self._inbox:
                idle = True
                self._jump()
        failures = [event.error for event in self.events if isinstance(event, TaskFailed)]
        last = f"; its last failure, of {len(failures)}: {failures[-1]}" if failures else ""
        raise JobFailed(f"the job is not finished after {STEPS} steps; it is {self.master.phase.value}{last}")

    @staticmethod
    def _authors_lines(raised: Raised | None) -> list[str]:
        """Returns the part of a traceback that is the author's, as the terminal shows it."""
        return [raised.traceback.rstrip()] if raised is not None and raised.traceback else []

    def _jump(self) -> None:
        """Moves the clock to the first time that somebody waits for. All slots show life, as they would have done."""
        wakeups = [*(slot.runtime.wakeup_ms() for slot in self.slots), self.master.limits_due_ms]
        times = [time for time in wakeups if time is not None]
        if times and min(times) > self._now_ms + 1:
            self._now_ms = math.ceil(min(times)) - 1
            for slot in self.slots:
                slot.send(Heartbeat({}))

    def _start_slot(self, index: int) -> _Slot:
        slot = _Slot(self, index, f"session-{next(self._sessions)}")
        slot.send(Register(slot.session, str(index), index, index, self.nonce, self._fingerprint, index))
        return slot

    def slot_of(self, subtask: SubtaskId) -> _Slot | None:
        """Returns the slot that runs a subtask in the deployed attempt; None if the attempt is over."""
        index = self.execution.slot_of(subtask)
        session = next((slot.session for slot in self.master.slots.assigned if slot.index == index), None)
        return next((slot for slot in self.slots if slot.session == session), None)

    def _replace(self, slot: _Slot) -> None:
        slot.alive = False
        self.carry_out(self.master.on_slot_gone(slot.session, "killed by a Crash in its input", self._now_ms))
        self.slots[self.slots.index(slot)] = self._start_slot(slot.index)

    def want_checkpoint(self, item: Checkpoint) -> None:
        """Triggers a checkpoint for an item of the input, unless one is under way for it."""
        if item not in self._wanted.values():
            checkpoint, actions = self.master.trigger_checkpoint(self._now_ms)
            if checkpoint is not None:
                self._wanted[checkpoint] = item
                self.post(lambda: self.carry_out(actions))

    def carry_out(self, actions: list[Action]) -> None:
        """Does what the JobMaster decided."""
        for action in actions:
            match action:
                case Send(session, message):
                    slot = next((s for s in self.slots if s.session == session), None)
                    if slot is not None:
                        slot.post(lambda slot=slot, message=message: slot.runtime.on_control(message))  # type: ignore[misc]
                case StartSlots(numbers):
                    self.slots += [self._start_slot(number) for number in numbers]
                case AskGate(question):
                    self.post(lambda question=question: self._ask_gate(question))  # type: ignore[misc]
                case RunOffLoop():
                    self.post(lambda action=action: self._run_off_loop(action))  # type: ignore[misc]
                case Note(event):
                    self.events.append(event)
                    if isinstance(event, Completed) and event.checkpoint in self._wanted:
                        self._wanted.pop(event.checkpoint).done = True
                    elif isinstance(event, Aborted):
                        self._wanted.pop(event.checkpoint, None)
                    elif isinstance(event, AttemptFailed):
                        self._wanted.clear()  # also that of an epoch whose commit failed: it never completes
                case Stop():
                    self.ended = self.ended or action

    def _ask_gate(self, question: GateQuestion) -> None:
        said = answer(question, self._targets[question.sink].read)
        self.post(lambda: self.carry_out(self.master.on_gate_answer(said, self._now_ms)))

    def _run_off_loop(self, action: RunOffLoop) -> None:
        result, error = _tried(action.work)
        self.post(lambda: self.carry_out(action.done(result, error, self._now_ms)))


def run(
    job: Callable[[StreamEnvironment], None],
    *,
    parallelism: int = 1,
    params: Mapping[str, str] | None = None,
    until: Callable[[LocalRun], bool] | None = None,
    after: LocalRun | None = None,
    allow_non_restored_state: bool = False,
) -> LocalRun:
    """Runs a job to its end; raises `JobFailed` with the job's own error if it does not finish.

    `until`: stops the run as soon as this returns True. `after`: goes on from the last epoch of an earlier run; the
    parallelism and the code may have changed. `allow_non_restored_state`: the state of operators that are gone is
    dropped.
    """
    started = LocalRun(job, parallelism, params or {}, after, allow_non_restored_state)
    return started.run(None if until is None else lambda: until(started))


__all__ = ["Checkpoint", "Crash", "JobFailed", "ListSource", "LocalRun", "Scaling", "Wait", "run"]
