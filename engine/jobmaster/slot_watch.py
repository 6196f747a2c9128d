"""`SlotWatch` decides which slots have to be killed: silent ones, and those whose task thread or I/O hangs."""

from __future__ import annotations

from dataclasses import dataclass

from engine.jobmaster import events
from engine.jobmaster.slot_pool import SlotInfo, SlotPool
from engine.protocol.failures import AttemptFailure, Failed, FailedAt
from engine.protocol.messages import LongStep


@dataclass(frozen=True)
class Doomed:
    """A slot to kill. The detail of `failed` says what it did not do in time."""

    slot: SlotInfo
    failed: Failed


@dataclass(frozen=True)
class SlotWatch:
    """A step is one call on a slot's task thread: a record of a Python function, a batch, opening an operator.

    A step over `slow_step_ms` is reported once. A slot is killed if it is silent for `heartbeat_timeout_ms`, if a step
    takes over `step_timeout_ms`, if it does not leave an attempt that is over within `slow_step_ms`, or if one piece of
    its I/O (a read, an upload, a restore) takes over `io_timeout_ms`: such a slot goes on beating and stepping, while
    its I/O threads fill up.
    """

    heartbeat_timeout_ms: float
    slow_step_ms: float
    step_timeout_ms: float
    io_timeout_ms: float

    def silent(self, slot: SlotInfo, now_ms: float) -> bool:
        return slot.heard_ms < now_ms - self.heartbeat_timeout_ms

    def on_step(self, slot: SlotInfo, step: LongStep | None) -> events.SlowStep | None:
        """Notes what a heartbeat says of the task thread. Returns an event once a step takes long."""
        before, slot.step = slot.step, step
        if step is None or (before is not None and step.for_ms < before.for_ms):
            slot.slow_reported = False
        if step is None or slot.slow_reported or step.for_ms < self.slow_step_ms:
            return None
        slot.slow_reported = True
        return events.SlowStep(slot.index, slot.pid, step.uid, step.subtask, step.for_ms, step.stack)

    def doomed(self, slots: SlotPool, now_ms: float) -> list[Doomed]:
        found = (self._why(slot, now_ms) for slot in slots.all)
        return [doomed for doomed in found if doomed is not None]

    def _why(self, slot: SlotInfo, now_ms: float) -> Doomed | None:
        step = slot.step
        at = FailedAt(step.uid if step else "", None, slot.index)
        if self.silent(slot, now_ms):
            where = FailedAt(slot=slot.index)
            return Doomed(slot, Failed(AttemptFailure.SLOT_SILENT, f"slot process {slot.pid}", where))
        if slot.leaving is not None and now_ms - slot.leaving.since_ms > self.slow_step_ms:
            over = f"attempt {slot.leaving.attempt}, which is over"
            detail = f"slot process {slot.pid} did not leave {over}, within {self.slow_step_ms / 1000:g} s"
            return Doomed(slot, Failed(AttemptFailure.SLOT_HUNG, detail + _where(step), at))
        if step is not None and step.for_ms > self.step_timeout_ms:
            detail = f"slot process {slot.pid} was in one step for {step.for_ms / 1000:.0f} s{_where(step)}"
            return Doomed(slot, Failed(AttemptFailure.SLOT_HUNG, detail, at))
        if slot.io is not None and slot.io.for_ms > self.io_timeout_ms:
            detail = f"slot process {slot.pid} was in one piece of I/O for {slot.io.for_ms / 1000:.0f} s"
            at = FailedAt(slot.io.uid, None, slot.index)
            return Doomed(slot, Failed(AttemptFailure.IO_HUNG, detail + _where(slot.io), at))
        return None


def _where(step: LongStep | None) -> str:
    if step is None:
        return ""
    line = step.stack.strip().splitlines()
    return (f", in operator {step.uid!r} ({step.subtask})" if step.uid else "") + (
        f": {line[-2].strip()}: {line[-1].strip()}" if len(line) > 1 else ""
    )
