"""`Subtask`: one parallel copy of a vertex. `step` takes one batch, signal or barrier, and never blocks or sleeps.

Invariant: a snapshot contains exactly the effects of the elements before its barrier. It is taken between two elements,
after the barrier was sent downstream and before anything else is processed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum

import pyarrow as pa

from engine.core.closing import close_all
from engine.core.ports import Clock
from engine.protocol import ledger
from engine.protocol.alignment.aligner import Aligned, Superseded
from engine.protocol.ids import AttemptId
from engine.protocol.ledger import Counters
from engine.protocol.messages import Decline, SlotMessage, SubtaskFinished
from engine.protocol.signals import MAX_WATERMARK, Barrier, EndOfData, StreamStatus, Watermark
from engine.protocol.watermark_alignment import AlignmentWait
from engine.runtime.chain import OperatorChain
from engine.runtime.exchange.channels import OutputGate
from engine.runtime.exchange.gate import Ended, InputGate, Second
from engine.runtime.operators.base import Gauges, OperatorSnapshot
from engine.runtime.plan import SubtaskPlan
from engine.runtime.source_head import SourceHead

BATCH_ROWS = 262_144
"""Rows of a full source batch: so many that grouping before the exchange removes most of them."""

YIELD_MS = 10.0
"""A row operator gives the task thread back after about this time; the rest of a batch waits in its channel."""


class Activity(Enum):
    BUSY = "busy"
    IDLE = "idle"
    BACK_PRESSURED = "back_pressured"


@dataclass(frozen=True)
class TakenSnapshot:
    """The synchronous part of a snapshot, ready for the upload."""

    checkpoint: int
    operators: dict[str, OperatorSnapshot]
    ledger: Counters
    start_delay_ms: float
    alignment_ms: float
    sync_ms: float
    operators_sync_ms: dict[str, float]
    digests: bool = False
    """The upload digests the state."""
    into: str = ""
    """The folder of the state files; empty: that of the checkpoint."""


@dataclass
class Meter:
    """Time spent per activity (E2) and progress, for the live view. The slot's loop adds the times."""

    spent_ms: dict[Activity, float] = field(default_factory=lambda: dict.fromkeys(Activity, 0.0))
    rows_in: int = 0
    watermark_ms: int | None = None
    waits: AlignmentWait | None = None
    """Set while a source waits for the others of its alignment group."""


class Subtask:
    def __init__(
        self,
        plan: SubtaskPlan,
        attempt: AttemptId,
        head: SourceHead | InputGate,
        chain: OperatorChain,
        outputs: Sequence[OutputGate],
        counters: Counters,
        gauges: Gauges,
        clock: Clock,
        batch_rows: int,
        in_flight_target_ms: float,
        upload: Callable[[TakenSnapshot], None],
        report: Callable[[SlotMessage], None],
    ) -> None:
        self.id = plan.id
        self.meter = Meter()
        self.finished = False
        self._plan = plan
        self._attempt = attempt
        self._head = head
        self._source_uid = plan.source.uid if plan.source else ""
        self._chain = chain
        self._outputs = list(outputs)
        self._counters = counters
        self._gauges = gauges
        self._clock = clock
        self._batch_rows = batch_rows
        self._in_flight_target_ms = in_flight_target_ms
        self._emitted: tuple[float, int] | None = None  # when the last batch was begun, and its rows
        self._max_rows = min(64 if self._row_lane else 1024, batch_rows)  # quick batches grow, so a start is short
        self._idle = False
        self._last_trigger = 0
        self._suspended = False
        self._blocked = False  # as the last step found it
        self._draining = False
        self._upload = upload
        self._report = report
        self._triggers: deque[tuple[Barrier, bool]] = deque()
        self._aborted: set[int] = set()

    # --- messages from the slot ---

    def trigger(self, barrier: Barrier, suspend: bool = False) -> None:
        """Makes a source emit this barrier with its next step. `suspend`: it emits nothing behind the barrier."""
        # A repeated trigger must not make a second snapshot: it would replace the files and committables of the first.
        if isinstance(self._head, SourceHead) and barrier.checkpoint > self._last_trigger:
            self._last_trigger = barrier.checkpoint
            self._triggers.append((barrier, suspend))

    def drain(self) -> None:
        """Ends a source as if it had read everything: all windows and timers fire."""
        self._draining = True

    def on_complete(self, checkpoint: int) -> None:
        if isinstance(self._head, SourceHead):
            self._head.on_complete(checkpoint)
        for operator in self._chain.operators:
            operator.on_complete(checkpoint)
        self._aborted = {c for c in self._aborted if c > checkpoint}

    def on_abort(self, checkpoint: int) -> None:
        if checkpoint in self._aborted:
            return
        self._aborted.add(checkpoint)
        self._triggers = deque(t for t in self._triggers if t[0].checkpoint != checkpoint)
        self._head.on_abort(checkpoint)

    # --- work ---

    def step(self) -> Activity:
        for output in self._outputs:
            output.flush()
        if self._triggers and isinstance(self._head, SourceHead) and self._head.ready and not self._chain.firing:
            barrier, suspend = self._triggers.popleft()
            self._suspended = self._suspended or suspend
            self._take_snapshot(barrier, alignment_ms=0.0)
            return Activity.BUSY
        self._blocked = self._chain.blocked or any(output.blocked for output in self._outputs)
        if self._blocked:
            return Activity.BACK_PRESSURED
        if self._emitted is not None:
            self._fit_batches(*self._emitted)
        fired = not self.finished and self._fire()
        if self._chain.firing:
            return Activity.BUSY
        busy = self._step_source(self._head) if isinstance(self._head, SourceHead) else self._step_gate(self._head)
        return Activity.BUSY if busy or fired else Activity.IDLE

    def _fire(self) -> bool:
        """Fires some of the timers that are due. Fewer the next time, if it took too long."""
        before = self._clock.now_ms()
        fired = self._chain.work(self._max_rows)
        if fired and self._clock.now_ms() - before > YIELD_MS:
            self._max_rows = max(1, self._max_rows // 2)
        return fired

    def _step_source(self, head: SourceHead) -> bool:
        if self.finished or self._suspended:
            return False
        if self._draining and head.ready:  # the snapshot behind it needs the splits
            self._finish()
            return True
        batch = head.poll(self._max_rows)
        aside = head.take_aside()
        if self._idle and (batch is not None or aside or not head.idle):
            self._set_idle(False)
        if batch is not None:
            self._process(batch, self._chain.input.emit, head.taken_ms)
        for tag, rows in aside:
            self._chain.tail.emit_side(self._source_uid, tag, rows)
        watermark = head.watermark()
        if watermark is not None:
            self._advance(watermark)
        if head.idle and not self._idle:
            self._set_idle(True)
        if head.finished:
            self._finish()
        self.meter.waits = head.waits()
        return batch is not None or bool(aside) or self.finished

    def _finish(self) -> None:
        """Ends a source: everything downstream fires."""
        self._advance(MAX_WATERMARK)
        self._end()
        self.meter.waits = None

    def _step_gate(self, gate: InputGate) -> bool:
        taken = gate.poll(self._max_rows, self._clock.now_ms())
        match taken:
            case None:
                return False
            case Watermark(timestamp_ms):
                self._advance(timestamp_ms)
            case StreamStatus(idle):
                self._set_idle(idle)
            case Aligned(checkpoint, alignment_ms):
                self._take_snapshot(gate.barrier(checkpoint), alignment_ms)
            case Superseded(checkpoint):
                detail = "a barrier of a newer checkpoint came first"
                self._report(Decline(self._attempt, checkpoint, self.id, False, detail))
            case Ended():
                self._end()
            case Second(batch):
                self._process(batch, self._chain.emit_second)
            case batch:
                self._process(batch, self._chain.input.emit)
        return True

    @property
    def _row_lane(self) -> bool:
        """True if Python runs for each record: in an operator, or in a watermark generator."""
        return self._plan.row_lane or (isinstance(self._head, SourceHead) and self._head.row_lane)

    def _process(
        self, batch: pa.RecordBatch, emit: Callable[[pa.RecordBatch], None], began_ms: float | None = None
    ) -> None:
        """`began_ms`: when the work on the batch was begun, if not now."""
        self.meter.rows_in += batch.num_rows
        before = self._clock.now_ms() if began_ms is None else began_ms
        self._emitted = (before, batch.num_rows)
        emit(batch)
        if self._row_lane and self._clock.now_ms() - before > YIELD_MS:
            self._max_rows = max(1, self._max_rows // 2)

    def _fit_batches(self, began_ms: float, rows: int) -> None:
        """Shrinks batches if the last one took too long until its output had gone, and doubles quick ones.

        A barrier waits behind the output of a batch that receivers have no credit for.
        """
        self._emitted = None
        took_ms = self._clock.now_ms() - began_ms
        quick_ms = YIELD_MS / 4 if self._row_lane else self._in_flight_target_ms / 4
        if took_ms > self._in_flight_target_ms:
            self._max_rows = max(1, int(rows * self._in_flight_target_ms / took_ms))
        elif took_ms < quick_ms and rows == self._max_rows:
            self._max_rows = min(2 * self._max_rows, self._batch_rows)

    def _advance(self, timestamp_ms: int) -> None:
        self.meter.watermark_ms = timestamp_ms
        self._chain.input.watermark(timestamp_ms)

    def _set_idle(self, idle: bool) -> None:
        self._idle = idle
        if idle:
            self._chain.release()
        self._chain.tail.signal(StreamStatus(idle))

    def _end(self) -> None:
        self._chain.end()
        self._chain.tail.signal(EndOfData())
        self.finished = True
        self._report(SubtaskFinished(self._attempt, self.id))

    def _take_snapshot(self, barrier: Barrier, alignment_ms: float) -> None:
        checkpoint = barrier.checkpoint
        start_delay_ms = max(0.0, self._clock.wall_ms() - barrier.triggered_at_ms - alignment_ms)
        began = self._clock.now_ms()
        self._chain.release()
        self._chain.tail.signal(barrier)
        operators: dict[str, OperatorSnapshot] = {}
        sync_ms: dict[str, float] = {}
        before = self._clock.now_ms()
        for uid, snapshot in self._snapshots(checkpoint):
            after = self._clock.now_ms()
            if snapshot is not None:
                operators[uid], sync_ms[uid] = snapshot, after - before
            before = after
        spent = before - began
        counters = self._ledger()
        self._upload(
            TakenSnapshot(
                checkpoint,
                operators,
                counters,
                start_delay_ms,
                alignment_ms,
                spent,
                sync_ms,
                barrier.digests,
                barrier.into,
            )
        )

    def _snapshots(self, checkpoint: int) -> Iterator[tuple[str, OperatorSnapshot | None]]:
        if isinstance(self._head, SourceHead):
            yield self._source_uid, self._head.snapshot(checkpoint)
        uids = (operator.uid for operator in self._plan.operators)
        yield from zip(uids, self._chain.snapshots(checkpoint), strict=True)

    def _ledger(self) -> Counters:
        counters = dict(self._counters)
        for output in self._outputs:
            ledger.add(counters, {ledger.sent(output.edge): output.rows_sent})
        if isinstance(self._head, InputGate):
            ledger.add(counters, {ledger.received(e): rows for e, rows in self._head.rows_received.items()})
        return counters

    @property
    def wakeup_ms(self) -> float | None:
        """When an idle source has to be polled, a blocked operator be asked again or a timer fires; None: never.

        Blocked operators and outputs give a sign when they take rows again. Until then nothing is polled or fired, so
        what is due by then must not keep the slot busy.
        """
        times = [self._chain.wakeup_ms]
        if not self.finished and not self._blocked:
            times.append(self._chain.due_ms)
            if isinstance(self._head, SourceHead) and not self._suspended:
                times.append(self._head.wakeup_ms)
        return min((time for time in times if time is not None), default=None)

    @property
    def source(self) -> SourceHead | None:
        """What reads the splits, if this is a subtask of a source."""
        return self._head if isinstance(self._head, SourceHead) else None

    @property
    def rows_out(self) -> int:
        """Rows sent downstream or written by sinks. Copies the counters, because the heartbeat thread reads it too."""
        written = sum(rows for name, rows in list(self._counters.items()) if name.startswith(ledger.SINK))
        return written + sum(output.rows_sent for output in self._outputs)

    def gauges(self) -> dict[str, dict[str, float]]:
        """Returns the gauges of its functions by operator and name; one that can't be read is left out.

        The heartbeat thread calls it, so what it reads may change meanwhile.
        """
        values: dict[str, dict[str, float]] = {}
        for (uid, name), read in list(self._gauges.items()):
            with suppress(Exception):  # an author's gauge must not end a slot
                values.setdefault(uid, {})[name] = float(read())
        return values

    @property
    def records_done(self) -> int:
        return sum(operator.records_done for operator in self._chain.operators)

    def close(self) -> None:
        source = [self._head.close] if isinstance(self._head, SourceHead) else []
        close_all([*source, *(operator.close for operator in self._chain.operators)])
