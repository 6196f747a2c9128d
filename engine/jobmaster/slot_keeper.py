"""`SlotKeeper` decides the fate of each slot: taken, refused, killed or lost. It also says which slots are missing.

One bad host never ends a job (H8). A slot that does not see the store, or that can't build the job, or builds another
one, is refused and killed, so that Spark starts another, perhaps elsewhere; each time a little later. Only if the last
try of every slot failed because of the job's code is it the job's own fault (`hopeless`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from engine.jobmaster import events
from engine.jobmaster.actions import Action, KillSlot, Note, ReleaseSlots, Send
from engine.jobmaster.slot_pool import SlotInfo, SlotPool
from engine.jobmaster.slot_watch import SlotWatch
from engine.protocol.failures import AttemptFailure, Failed, FailedAt, Fault, Raised
from engine.protocol.messages import Heartbeat, MasterHeartbeat, NotBuilt, OverBudget, Register, Shutdown, Welcome
from engine.protocol.restart import ExponentialDelay, RestartStrategy

REFUSALS = ExponentialDelay(initial_ms=500, max_ms=10_000, multiplier=2, reset_after_ms=60_000)
"""How long a refused slot is kept before it is killed. Its lease, of 15 s or more, must not end before."""

RELEASED = "the job was rescaled and does not need this slot"

Lost = Callable[[Failed, float], list[Action]]


@dataclass(frozen=True)
class Refusal:
    slot: SlotInfo
    why: str
    kill_at_ms: float


@dataclass(frozen=True)
class Unfit:
    """The job's code did not build in a slot, or was another. `raised` says where, if the code raised."""

    why: str
    raised: Raised | None = None


class SlotKeeper:
    """`lost` is called when a slot of the current attempt is gone, and returns what the JobMaster decides."""

    def __init__(
        self,
        pool: SlotPool,
        watch: SlotWatch,
        nonce: str,
        plan: str,
        heartbeat_ms: float,
        slots_timeout_ms: float,
        jitter: Callable[[], float],
        lost: Lost,
    ) -> None:
        self.beat_at_ms: float | None = None
        self.refusal = ""
        """Why the last slot was refused; empty once all slots are there."""
        self._pool = pool
        self._watch = watch
        self._nonce = nonce
        self._plan = plan
        self._heartbeat_ms = heartbeat_ms
        self._slots_timeout_ms = slots_timeout_ms
        self._jitter = jitter
        self._lost = lost
        self._refused: dict[str, Refusal] = {}
        self._delay: RestartStrategy = REFUSALS
        self._unfit: dict[int, Unfit] = {}  # by partition: its last try failed because of the job's code
        self._told_ms = 0.0

    # ------------------------------------------------------------------ taken or refused

    def register(self, message: Register, generation: int, now_ms: float) -> list[Action]:
        slot = SlotInfo(message.session, message.address, message.pid, message.task_attempt, now_ms, message.partition)
        if message.partition in self._pool.released:  # it died before it heard that it has to end
            return [Send(message.session, Shutdown(RELEASED))]
        where = f"the slot in process {message.pid} at {message.address}"
        if message.nonce != self._nonce:
            seen = f" ({message.unseen})" if message.unseen else ""
            why = f"{where} does not see this job's store{seen}: every executor needs the same store, at the same path"
            return self._refuse(slot, why, now_ms)
        if message.plan != self._plan:
            plans = f"plan {message.plan}, not {self._plan}"
            why = f"{where} runs other code than the JobMaster ({plans}): ship the same version of the job everywhere"
            self._unfit[slot.partition] = Unfit(why)
            return self._refuse(slot, why, now_ms)
        self._unfit.pop(slot.partition, None)
        self._pool.add(slot)
        if self._pool.enough:
            self.refusal = ""
        welcome = Send(message.session, Welcome(generation))
        return [welcome, Note(events.SlotRegistered(message.pid, len(self._pool)))]

    def not_built(self, session: str, message: NotBuilt, now_ms: float) -> list[Action]:
        slot = SlotInfo(session, "", message.pid, message.task_attempt, now_ms, message.partition)
        why = f"the job can't be built in the slot of process {message.pid}: {message.error}"
        if message.fault is Fault.JOB:
            why += ". Ship the job with everything that it imports to every executor"
            self._unfit[slot.partition] = Unfit(why, message.raised)
        return self._refuse(slot, why, now_ms)

    @property
    def hopeless(self) -> Unfit | None:
        """The job's own fault: the last try of every slot failed because of its code."""
        return list(self._unfit.values())[-1] if len(self._unfit) >= len(self._pool.tasks) else None

    def _refuse(self, slot: SlotInfo, why: str, now_ms: float) -> list[Action]:
        """Keeps the slot for a while before it is killed: a bad host would start one after the other otherwise."""
        delay_ms, self._delay = self._delay.on_failure(now_ms, self._jitter(), Fault.OUTSIDE)
        self._refused[slot.session] = Refusal(slot, why, now_ms + (delay_ms or 0.0))
        self.refusal = why
        return [Note(events.SlotRefused(slot.pid, why))]

    # ------------------------------------------------------------------ watched, killed, lost

    def on_heartbeat(self, slot: SlotInfo, message: Heartbeat) -> list[Action]:
        slot.io = message.io
        slow = self._watch.on_step(slot, message.step)
        return [Note(slow)] if slow is not None else []

    def on_over_budget(self, slot: SlotInfo, message: OverBudget, now_ms: float) -> list[Action]:
        """The slot ends itself. It is the job's fault: its code holds too much, or its budget is too small."""
        used, budget = message.used_bytes / 1e6, message.budget_bytes / 1e6
        detail = f"slot process {slot.pid} held {used:.0f} MB and may hold {budget:.0f}: raise --slot-memory"
        failed = Failed(AttemptFailure.SLOT_MEMORY, detail, FailedAt(slot=slot.index), Fault.JOB)
        return self._lose(slot, failed, now_ms)

    def on_gone(self, session: str, why: str, now_ms: float) -> list[Action]:
        self._refused.pop(session, None)
        slot = self._pool.get(session)
        if slot is None:
            return []
        detail = f"slot process {slot.pid}: {why}"
        return self._lose(slot, Failed(AttemptFailure.SLOT_LOST, detail, FailedAt(slot=slot.index)), now_ms)

    def beat(self, now_ms: float) -> list[Action]:
        """Renews the slots' leases, and kills those that are silent or hang, and those that were refused.

        Runs once per heartbeat: ticks come with every message, and scanning all slots on each would be costly.
        """
        late_ms = 0.0 if self.beat_at_ms is None else now_ms - self.beat_at_ms
        if late_ms > self._heartbeat_ms:
            self._pool.forgive(late_ms, now_ms)
        self.beat_at_ms = now_ms + self._heartbeat_ms
        actions: list[Action] = [Send(slot.session, MasterHeartbeat()) for slot in self._pool.all]
        for doomed in self._watch.doomed(self._pool, now_ms):
            why = f"{doomed.failed.failure.text}: {doomed.failed.detail}"
            actions.append(self._kill(doomed.slot, why, now_ms))
            lost = self._lose(doomed.slot, doomed.failed, now_ms)
            actions += lost or [Note(events.SlotKilled(doomed.slot.pid, why))]
        for refusal in [r for r in self._refused.values() if r.kill_at_ms <= now_ms]:
            del self._refused[refusal.slot.session]
            actions.append(KillSlot(refusal.slot, refusal.why))
        return actions

    def give_up(self, slots: Iterable[SlotInfo], why: str, now_ms: float) -> list[Action]:
        """Kills slots whose attempt the caller ends."""
        killed: list[Action] = []
        for slot in slots:
            killed.append(self._kill(slot, why, now_ms))
            self._pool.remove(slot.session)
        return killed

    def release_surplus(self) -> list[Action]:
        """Ends the tasks that the job has no use for, after a rescale or instead of one."""
        numbers, gone = self._pool.release_surplus()
        for number in numbers:
            self._unfit.pop(number, None)
        ended: list[Action] = [Send(slot.session, Shutdown(RELEASED)) for slot in gone]
        return [*ended, ReleaseSlots(tuple(numbers))] if numbers else []

    def shut_down(self, reason: str) -> list[Action]:
        sessions = [*(slot.session for slot in self._pool.all), *self._refused]
        return [Send(session, Shutdown(reason)) for session in sessions]

    def _kill(self, slot: SlotInfo, why: str, now_ms: float) -> KillSlot:
        if not self._watch.silent(slot, now_ms):
            return KillSlot(slot, why)
        heard = (other.task_attempt for other in self._pool.all if not self._watch.silent(other, now_ms))
        return KillSlot(slot, why, silent=True, heard=tuple(heard))

    def _lose(self, slot: SlotInfo, failed: Failed, now_ms: float) -> list[Action]:
        self._pool.remove(slot.session)
        return [] if slot.index is None else self._lost(failed, now_ms)

    # ------------------------------------------------------------------ missing

    def note_missing(self, since_ms: float, now_ms: float) -> list[Action]:
        """Too few slots come from outside, so the job waits for them, and says so from time to time."""
        if now_ms - max(since_ms, self._told_ms) <= self._slots_timeout_ms:
            return []
        self._told_ms = now_ms
        pool = self._pool
        return [Note(events.SlotsMissing(pool.free_count, pool.needed, now_ms - since_ms, self.refusal))]
