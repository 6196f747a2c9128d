"""Figures of a running job: the cost of each checkpoint, for its history, and the speed of each subtask."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.jobmaster.events import Completed, OperatorFigures, SubtaskFigures
from engine.protocol.checkpoint import CompletedCheckpoint
from engine.protocol.ids import SubtaskId
from engine.protocol.manifest import Manifest
from engine.protocol.messages import Acknowledge, SubtaskTotals

WINDOW_MS = 5_000.0
"""The time that rates cover: long enough for steady figures, short enough to show a stall."""

TIMES = ("start_delay_ms", "alignment_ms", "sync_ms", "async_ms")
ROWS = ("rows_in", "rows_out")
SHARES = ("busy", "back_pressured", "idle")


def checkpoint_figures(
    completed: CompletedCheckpoint,
    manifest: Manifest,
    subtasks: Sequence[SubtaskId],
    duration_ms: float,
    wall_ms: int,
) -> Completed:
    """Returns the record of a completed checkpoint. Its times are the longest of all subtasks', its bytes their sum."""
    acks = {ack.subtask: ack for ack in completed.acks}
    return Completed(
        checkpoint=completed.checkpoint,
        epoch=manifest.epoch,
        attempt=str(completed.attempt),
        completed_at_ms=wall_ms,
        duration_ms=round(duration_ms, 1),
        state_bytes=manifest.state_bytes,
        **{name: round(max(getattr(ack.timings, name) for ack in completed.acks), 1) for name in TIMES},
        final=manifest.final,
        ledger=manifest.ledger,
        subtasks=[_subtask_figures(acks[subtask]) for subtask in subtasks if subtask in acks],
    )


def _subtask_figures(ack: Acknowledge) -> SubtaskFigures:
    size: dict[str, int] = defaultdict(int)
    for file in ack.state.files:
        size[file.uid] += file.size
    return SubtaskFigures(
        vertex=ack.subtask.vertex,
        subtask=ack.subtask.index,
        **{name: round(getattr(ack.timings, name), 1) for name in TIMES},
        state_bytes=sum(size.values()),
        operators={
            uid: OperatorFigures(round(spent.sync_ms, 1), round(spent.async_ms, 1), size[uid])
            for uid, spent in ack.timings.operators.items()
        },
    )


@dataclass(frozen=True)
class Rate:
    """The speed of one subtask: rows per second, and how the task thread spent its time on it (E2), in shares of 1."""

    rows_in_per_s: float
    rows_out_per_s: float
    busy: float
    back_pressured: float
    idle: float


class Rates:
    """Computes rates over the last seconds from the running totals that heartbeats bring."""

    def __init__(self) -> None:
        self._readings: dict[str, deque[tuple[float, SubtaskTotals]]] = defaultdict(deque)

    def clear(self) -> None:
        self._readings.clear()

    def add(self, totals: Mapping[str, SubtaskTotals], now_ms: float) -> None:
        for subtask, total in totals.items():
            readings = self._readings[subtask]
            if readings and total.busy_ms < readings[-1][1].busy_ms:
                readings.clear()  # the subtask was deployed again, and counts from zero
            readings.append((now_ms, total))
            while now_ms - readings[0][0] > WINDOW_MS:
                readings.popleft()

    def of(self, subtask: str) -> Rate | None:
        """Returns the rate of a subtask, or None before there are two readings."""
        readings = self._readings.get(subtask)
        if not readings or readings[-1][0] <= readings[0][0]:
            return None
        (first_ms, first), (last_ms, last) = readings[0], readings[-1]
        seconds = (last_ms - first_ms) / 1000
        rows = (max(0.0, (getattr(last, name) - getattr(first, name)) / seconds) for name in ROWS)
        spent = [max(0.0, getattr(last, f"{name}_ms") - getattr(first, f"{name}_ms")) for name in SHARES]
        whole = sum(spent) or 1.0
        return Rate(*rows, *(part / whole for part in spent))
