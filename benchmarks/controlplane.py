"""Runs the control plane of a job with many slots in one thread: real `JobMaster`, epoch log, manifests and commits.

Only the slots are simulated: each answers the messages of the JobMaster as a slot of a keyed window job would, after
fixed delays of virtual time. The JobMaster's CPU time is real and metered, and virtual time advances by it: one thread
decides, so messages wait while it works. With a meter whose clock stands still, a run depends on its arguments alone.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.jobs import window
from engine.api.environment import StreamEnvironment
from engine.core.paths import JobPaths
from engine.graph.execution_graph import ExecutionGraph
from engine.jobmaster.actions import Action, Note, Outcome, RunOffLoop, Send, Stop
from engine.jobmaster.master import JobMaster
from engine.process.master_process import TICK_S
from engine.protocol import ledger
from engine.protocol.ids import AttemptId, SubtaskId
from engine.protocol.manifest import Committable, OperatorTimings, StateFile, SubtaskState, Timings
from engine.protocol.messages import (
    Acknowledge,
    Connected,
    Deploy,
    Deployed,
    Heartbeat,
    Left,
    MasterMessage,
    Register,
    Rollback,
    SlotMessage,
    Start,
    SubtaskFinished,
    SubtaskTotals,
    Trigger,
    decode_slot_message,
    encode,
)
from engine.snapshot.epoch_log import EpochLog
from engine.spark.slot_process import HEARTBEAT_S
from engine.store.memory import MemoryStore

NETWORK_MS = 0.5
BUILD_MS = 20.0
UPLOAD_MS = 25.0
START_MS = 500.0
"""All slots register within this time, and a replacement takes the same: Spark was measured to need it."""

LIMIT_MS = 120_000.0
"""A run that takes more virtual time is stuck, and fails."""

ROWS = 1_000
PART = bytes(172_900)
"""A file of the table, shared by all slots."""
STATE = bytes(1_578_000)
"""A state file, shared by all slots."""
SOURCE, WINDOWS, SINK = "rows", "windows", "out"


def keyed_job(slots: int) -> ExecutionGraph:
    """Returns source → keyed window → table; the parallelism of every vertex is the number of slots."""
    env = StreamEnvironment(parallelism=slots, params={"splits": str(slots)})
    env.max_parallelism = max(env.max_parallelism, slots)
    window(env)
    graph = env.graph.translate("scale", env.checkpoints, env.restart, env.max_parallelism, "")
    execution = ExecutionGraph(graph)
    assert [(v.id, v.parallelism) for v in graph.vertices] == [(SOURCE, slots), (WINDOWS, slots)]
    return execution


@dataclass
class Meter:
    """Counts, by kind, the JobMaster's calls, their CPU time, its messages and their bytes."""

    clock: Callable[[], float] = time.thread_time
    calls: Counter[str] = field(default_factory=Counter)
    cpu_s: Counter[str] = field(default_factory=Counter)  # type: ignore[type-arg]
    sent: Counter[str] = field(default_factory=Counter)
    received: Counter[str] = field(default_factory=Counter)
    wire_bytes: Counter[str] = field(default_factory=Counter)

    def timed(self, kind: str, work: Callable[[], Any]) -> Any:
        began = self.clock()
        try:
            return work()
        finally:
            self.calls[kind] += 1
            self.cpu_s[kind] += self.clock() - began

    def each_us(self, kind: str) -> float:
        return 1e6 * self.cpu_s[kind] / max(1, self.calls[kind])

    @property
    def messages(self) -> int:
        return self.sent.total() + self.received.total()


class _Slot:
    """One simulated slot. It answers messages in its own time: slots work side by side."""

    def __init__(self, plane: ControlPlane, number: int, at_ms: float) -> None:
        self.session = f"{number:032x}"
        self.alive = True
        self._plane = plane
        self._subtasks: list[SubtaskId] = []
        self._index = 0
        address = f"grpc://10.0.{number // 250}.{number % 250 + 1}:{40_000 + number % 20_000}"
        plane.to_master(at_ms, self, Register(self.session, address, number, number, "nonce", plane.plan))
        plane.at(at_ms + 1000 * HEARTBEAT_S, self._beat)

    def receive(self, at_ms: float, message: MasterMessage) -> None:
        match message:
            case Deploy(attempt, index, _, restore, _):
                self._index = index
                self._subtasks = [SubtaskId(vertex, index) for vertex in (SOURCE, WINDOWS)]
                read_ms = self._plane.manifest_read_ms(attempt) if restore else 0.0
                self._plane.to_master(at_ms + BUILD_MS + read_ms, self, Deployed(attempt))
            case Start(attempt):
                self._plane.to_master(at_ms, self, Connected(attempt))
            case Rollback(attempt):
                self._plane.to_master(at_ms, self, Left(attempt))
            case Trigger(attempt, checkpoint):
                for subtask in self._subtasks:
                    ack = self._snapshot(subtask, attempt, checkpoint)
                    self._plane.to_master(at_ms + UPLOAD_MS, self, ack)

    def finish(self, at_ms: float) -> None:
        """Reports that the slot's subtasks have finished: the sources have no more records."""
        for subtask in self._subtasks:
            self._plane.to_master(at_ms, self, SubtaskFinished(self._plane.master.attempt, subtask))

    def _beat(self, at_ms: float) -> None:
        if self.alive:
            totals = SubtaskTotals(
                rows_in=ROWS, rows_out=ROWS, busy_ms=812.4375, idle_ms=91.25, watermark_ms=1_767_225_616_999
            )
            self._plane.to_master(at_ms, self, Heartbeat({str(subtask): totals for subtask in self._subtasks}))
            self._plane.at(at_ms + 1000 * HEARTBEAT_S, self._beat)

    def _snapshot(self, subtask: SubtaskId, attempt: AttemptId, checkpoint: int) -> Acknowledge:
        """Writes the files of a slot's upload, and returns its acknowledgement."""
        uids = (SOURCE,) if subtask.vertex == SOURCE else (WINDOWS, SINK)
        timings = Timings(0.8125, 3.4375, 0.3125, 21.5625, dict.fromkeys(uids, OperatorTimings(0.125, 9.0625)))
        edge, rows = f"{SOURCE}->{WINDOWS}", ROWS * checkpoint
        if subtask.vertex == SOURCE:
            split = {"position": rows, "seen_ms": 1_767_225_619_000}
            inline = {SOURCE: {"splits": {str(subtask.index): split}}}
            counters = {ledger.source_rows(SOURCE): rows, ledger.sent(edge): rows}
            return Acknowledge(attempt, checkpoint, SubtaskState(subtask, [], inline), [], counters, timings)
        paths, store = self._plane.paths, self._plane.store
        path = paths.state_file(attempt, checkpoint, WINDOWS, subtask, "panes")
        store.write(path, STATE)
        groups = self._plane.execution.key_groups(subtask)
        file = StateFile(WINDOWS, "panes", path, len(STATE), f"{subtask.index:032x}", ROWS, groups.start, groups.end)
        name = f"{attempt.generation:04d}-{attempt.attempt:04d}-{subtask.index:04d}-{checkpoint:06d}.parquet"
        part = f"{paths.table(WINDOWS)}/{name}"
        store.write(part, PART)
        payload = {"path": part, "size": len(PART), "rows": ROWS}
        committable = Committable(SINK, subtask.index, attempt, checkpoint, 1, payload)
        inline = {WINDOWS: {"watermark": 1_767_225_616_999}}
        counters = {ledger.sink_rows(SINK): rows, ledger.sink_digest(SINK): rows << 40, ledger.received(edge): rows}
        return Acknowledge(attempt, checkpoint, SubtaskState(subtask, [file], inline), [committable], counters, timings)


class ControlPlane:
    """A JobMaster and its simulated slots. `run` covers start, checkpoints, a lost slot, recovery and the end."""

    def __init__(self, slots: int, meter: Meter | None = None) -> None:
        self.meter = meter or Meter()
        self.execution: ExecutionGraph = self.meter.timed("graph", lambda: keyed_job(slots))
        self.plan = self.execution.graph.fingerprint
        self.paths = JobPaths(self.execution.graph.name)
        self.store = MemoryStore()
        self.log = EpochLog(self.store, self.paths)
        committers = {uid: sink.committer(self.store, self.paths) for uid, sink in self.execution.graph.sinks}
        self.master = JobMaster(self.execution, self.log, committers, "owner", "nonce", self._wall_ms, lambda: 0.5)
        self.notes: list[tuple[float, str]] = []  # kinds only: whole events would burden the metered heap
        self.ended: Stop | None = None
        self.now_ms = 0.0  # when the deciding thread is done with its current work
        self._numbers = itertools.count()
        self._queue: list[tuple[float, int, Callable[[float], None]]] = []
        self._reads_ms: dict[AttemptId, float] = {}
        spacing = START_MS / slots
        self._slots = {slot.session: slot for slot in (_Slot(self, n, n * spacing) for n in range(slots))}
        self.at(0.0, self._clock_ticks)

    def run(self, checkpoints: int) -> None:
        self.run_until(lambda: self.master.stats.checkpoints_completed == checkpoints)
        self.lose_slot()
        self.run_until(lambda: self.master.stats.checkpoints_completed == checkpoints + 1)
        for slot in self._slots.values():
            slot.finish(self.now_ms)
        self.run_until(lambda: self.ended is not None)
        assert self.ended is not None and self.ended.outcome is Outcome.FINISHED, self.ended

    def run_until(self, reached: Callable[[], bool]) -> None:
        while not reached():
            at_ms, _, event = heapq.heappop(self._queue)
            if at_ms > LIMIT_MS:
                raise RuntimeError(
                    f"the job is stuck: {LIMIT_MS / 1000:.0f} s of virtual time have passed; last: {self.notes[-3:]}"
                )
            event(at_ms)

    def lose_slot(self) -> None:
        """Kills one slot: its connection ends, and Spark starts a replacement."""
        slot = next(iter(self._slots.values()))
        slot.alive = False
        del self._slots[slot.session]
        at_ms = self.now_ms
        self.notes.append((at_ms, "lost"))
        self._decide(at_ms, "slot gone", lambda: self.master.on_slot_gone(slot.session, "killed", self.now_ms))
        replacement = _Slot(self, len(self._slots) + 1, at_ms + START_MS)
        self._slots[replacement.session] = replacement

    def when_ms(self, kind: str) -> float:
        """Returns when an event of this kind was last noted."""
        return next(at_ms for at_ms, noted in reversed(self.notes) if noted == kind)

    # --- for the slots ---

    def at(self, at_ms: float, event: Callable[[float], None]) -> None:
        heapq.heappush(self._queue, (at_ms, next(self._numbers), event))

    def to_master(self, at_ms: float, slot: _Slot, message: SlotMessage) -> None:
        data, kind = encode(message), type(message).__name__
        self.meter.received[kind] += 1
        self.meter.wire_bytes[kind] += len(data)

        def arrive(now_ms: float) -> None:
            decoded = self._spend(now_ms, "decode", lambda: decode_slot_message(data))
            if slot.alive:
                self._decide(now_ms, kind, lambda: self.master.on_message(slot.session, decoded, self.now_ms))

        self.at(at_ms + NETWORK_MS, arrive)

    def manifest_read_ms(self, attempt: AttemptId) -> float:
        """Returns the time to read the manifest. All slots read it whole, at the same time, so one read is metered."""
        newest = self.master.newest
        assert newest is not None
        if attempt not in self._reads_ms:
            before = self.meter.cpu_s["manifest read by a slot"]
            self.meter.timed("manifest read by a slot", lambda: self.log.read_manifest(newest))
            self._reads_ms[attempt] = 1000 * (self.meter.cpu_s["manifest read by a slot"] - before)
        return self._reads_ms[attempt]

    # --- the JobMaster's process ---

    def _wall_ms(self) -> int:
        return 1_767_225_600_000 + int(self.now_ms)

    def _clock_ticks(self, at_ms: float) -> None:
        self._decide(at_ms, "tick", lambda: self.master.on_tick(self.now_ms), ticks=False)
        self.at(max(at_ms + 1000 * TICK_S, self.now_ms), self._clock_ticks)

    def _spend(self, at_ms: float, kind: str, work: Callable[[], Any]) -> Any:
        self.now_ms = max(self.now_ms, at_ms)
        before = self.meter.cpu_s[kind]
        result = self.meter.timed(kind, work)
        self.now_ms += 1000 * (self.meter.cpu_s[kind] - before)
        return result

    def _decide(self, at_ms: float, kind: str, event: Callable[[], list[Action]], ticks: bool = True) -> None:
        """Handles one event, then a tick if no further event waits, as the loop of `master_process.py` does."""
        for action in self._spend(at_ms, kind, event):
            self._carry_out(action)
        if ticks and not (self._queue and self._queue[0][0] <= self.now_ms):
            self._decide(self.now_ms, "tick", lambda: self.master.on_tick(self.now_ms), ticks=False)

    def _carry_out(self, action: Action) -> None:
        match action:
            case Send(session, message):
                self._send(session, message)
            case RunOffLoop(name, work, done):
                result = self._spend(self.now_ms, f"{name} (I/O)", work)
                self.at(self.now_ms, lambda at_ms: self._decide(at_ms, name, lambda: done(result, None, at_ms)))
            case Note(event):
                self.notes.append((self.now_ms, event.kind))
            case Stop():
                self.ended = action
            case _:
                raise RuntimeError(f"a JobMaster whose slots all answer should not want this: {action}")

    def _send(self, session: str, message: MasterMessage) -> None:
        kind = type(message).__name__
        data = self._spend(self.now_ms, f"encode {kind}", lambda: encode(message))
        self.meter.sent[kind] += 1
        self.meter.wire_bytes[kind] += len(data)
        slot = self._slots.get(session)
        if slot is not None:
            self.at(self.now_ms + NETWORK_MS, lambda at_ms: slot.receive(at_ms, message))
