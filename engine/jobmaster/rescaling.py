"""`Rescaler` decides how a running job gets another parallelism, under the same JobMaster.

The life of a rescale: SLOTS (further tasks start while the job goes on) → CHECKPOINT (an epoch to go on from, with
digests of all state) → SWITCHING (the job is deployed from that epoch at the new parallelism, and the digests are
compared) → SAVING (the new parallelism becomes durable) → STARTED (until the first record is processed).

Invariants: a parallelism becomes durable only after the digests were found equal, and no record is processed at a
parallelism that is not durable. Until it is, any failure leaves the job at the old one and the same epoch, and from
then on at the new one. So a JobMaster that dies at any moment is followed by one at a parallelism that was proved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

from engine.core.errors import WeirError
from engine.graph.execution_graph import ExecutionGraph
from engine.graph.job_graph import JobGraph
from engine.jobmaster import events
from engine.jobmaster.actions import Action, Note, StartSlots
from engine.jobmaster.slot_keeper import SlotKeeper
from engine.jobmaster.slot_pool import SlotPool
from engine.protocol.manifest import ManifestRef
from engine.protocol.messages import Acknowledge, Deployed
from engine.protocol.scaling import Scaling
from engine.protocol.state_proof import Proof, SubtaskDigests, prove

TRIES = 3
"""So many checkpoints of a rescale may be aborted before it fails."""
FIRST_RECORD_MS = 2_000.0
"""A rescale is over after this time, even if no record has come: then its pause is not known."""


class RescalePhase(Enum):
    SLOTS = "waiting for slots"
    CHECKPOINT = "taking a checkpoint"
    SWITCHING = "switching"
    SAVING = "saving the new parallelism"
    STARTED = "started"


class Verdict(Enum):
    """What becomes of an attempt whose slots are all deployed."""

    START = "it starts"
    SAVE = "it starts once the new parallelism is durable"
    GO_BACK = "it is left, because the state differs"


@dataclass(frozen=True)
class Scale:
    """How a job gets another parallelism. `scaling` is that at which the JobMaster was started.

    `save` makes a scaling durable and `saved` reads it; both do I/O and may raise. If `save` raises, `saved` still
    returns the one before. `max_slots` is the number of tasks that Spark can run at a time; None: that is not known.
    """

    scaling: Scaling
    build: Callable[[Scaling], JobGraph]
    save: Callable[[Scaling], None]
    saved: Callable[[], Scaling]
    max_slots: int | None = None


@dataclass(frozen=True)
class Setup:
    """A job at one parallelism."""

    scaling: Scaling
    execution: ExecutionGraph


@dataclass
class Rescale:
    """One rescale under way. `digests` are those of the subtasks that acknowledged its checkpoint."""

    id: str
    before: Setup
    after: Setup
    phase: RescalePhase
    since_ms: float
    checkpoint: int | None = None
    tries: int = 0
    epoch: ManifestRef | None = None
    digests: dict[str, SubtaskDigests] = field(default_factory=dict)
    proof: Proof | None = None
    stopped_ms: float = 0.0


@dataclass(frozen=True)
class Accepted:
    rescale: str


@dataclass(frozen=True)
class Unchanged:
    """The job runs at this parallelism already."""


@dataclass(frozen=True)
class Refused:
    """`wrong`: the request can never be carried out. Otherwise it may be, at another time."""

    why: str
    wrong: bool


Answer = Accepted | Unchanged | Refused


class Rescaler:
    """`scale` is None for a job that can't be rescaled."""

    def __init__(
        self, scale: Scale | None, execution: ExecutionGraph, pool: SlotPool, keeper: SlotKeeper, timeout_ms: float
    ) -> None:
        self.now = Setup(scale.scaling if scale is not None else Scaling(), execution)
        """The parallelism at which the job is deployed."""
        self.current: Rescale | None = None
        self._scale = scale
        self._pool = pool
        self._keeper = keeper
        self._timeout_ms = timeout_ms
        self._count = 0
        self._read = False  # the durable parallelism

    # ------------------------------------------------------------------ request

    def request(self, wanted: Scaling, generation: int, now_ms: float) -> tuple[Answer, list[Action]]:
        """Begins a rescale of a running job, or says why not."""
        if self._scale is None:
            return Refused("this job can't be rescaled while it runs", True), []
        if self.current is not None:
            return Refused(f"rescale {self.current.id} is under way: {self.current.phase.value}", False), []
        if wanted.parallelism is None and not wanted.operators:
            return Refused("say which parallelism: of all operators, or of single ones", True), []
        scaling = self.now.scaling.then(wanted)
        try:
            after = Setup(scaling, ExecutionGraph(self._scale.build(scaling)))
        except WeirError as error:
            return Refused(str(error), True), []
        if (why := self._too_many(after.execution)) is not None:
            return Refused(why, True), []
        if parallelism_of(after.execution) == parallelism_of(self.now.execution):
            return Unchanged(), []
        self._count += 1
        self.current = rescale = Rescale(f"{generation}-{self._count}", self.now, after, RescalePhase.SLOTS, now_ms)
        return Accepted(rescale.id), [Note(_started(rescale)), *self._ask(after.execution.slots)]

    def _ask(self, slots: int) -> list[Action]:
        numbers = self._pool.ask(slots)
        return [StartSlots(tuple(numbers))] if numbers else []

    def _too_many(self, execution: ExecutionGraph) -> str | None:
        most = self._scale.max_slots if self._scale is not None else None
        if most is None or execution.slots <= most:
            return None
        return (
            f"too few slots: the job would need {execution.slots}, Spark is given {most}; choose a lower parallelism, "
            f"or start the job with --max-slots {execution.slots}"
        )

    # ------------------------------------------------------------------ slots and checkpoint

    def on_tick(self, now_ms: float) -> list[Action]:
        """Called while the job runs. Gives up on slots that do not come, and on a record that does not come.

        A rescale whose slots are there may still wait for a savepoint, however long that takes.
        """
        rescale = self.current
        if rescale is None:
            return []
        waited_ms = now_ms - rescale.since_ms
        if self._lacks_slots and waited_ms > self._timeout_ms:
            return self.fail(self._too_few(rescale, waited_ms)) + self._keeper.release_surplus()
        if rescale.phase is RescalePhase.STARTED and waited_ms > FIRST_RECORD_MS:
            return self._over(None)
        return []

    def on_waiting(self, now_ms: float) -> list[Action]:
        """Called while the job waits for slots. A switch is given up if it lost slots and Spark starts no others.

        If this returns actions, the job has to be restored at the old parallelism.
        """
        rescale = self.current
        waited_ms = now_ms - rescale.since_ms if rescale is not None else 0.0
        if rescale is None or rescale.phase is not RescalePhase.SWITCHING or waited_ms <= self._timeout_ms:
            return []
        return self.fail(self._too_few(rescale, waited_ms))

    def _too_few(self, rescale: Rescale, waited_ms: float) -> str:
        free, needed = self._pool.free_count, rescale.after.execution.slots
        why = f"only {free} of {needed} slots have registered after {waited_ms / 1000:.0f} s: Spark has no room"
        return f"{why}, or it is slow to start them"

    @property
    def wakeup_ms(self) -> float | None:
        rescale = self.current
        limits = {RescalePhase.SLOTS: self._timeout_ms, RescalePhase.STARTED: FIRST_RECORD_MS}
        if rescale is None or rescale.phase not in limits:
            return None
        waits = rescale.phase is RescalePhase.STARTED or self._lacks_slots
        return rescale.since_ms + limits[rescale.phase] if waits else None

    @property
    def _lacks_slots(self) -> bool:
        rescale = self.current
        if rescale is None or rescale.phase is not RescalePhase.SLOTS:
            return False
        return self._pool.free_count < rescale.after.execution.slots

    @property
    def wants_checkpoint(self) -> bool:
        """True if the slots are there and no checkpoint of the rescale is under way."""
        rescale = self.current
        if rescale is None or rescale.checkpoint is not None:
            return False
        return rescale.phase in (RescalePhase.SLOTS, RescalePhase.CHECKPOINT) and not self._lacks_slots

    @property
    def takes_checkpoint(self) -> bool:
        """True while the checkpoint that the job switches behind is under way."""
        return self.current is not None and self.current.phase is RescalePhase.CHECKPOINT

    def on_trigger(self, checkpoint: int) -> list[Action]:
        """The checkpoint of this number is the rescale's."""
        rescale = self.current
        assert rescale is not None and self.wants_checkpoint
        rescale.phase, rescale.checkpoint = RescalePhase.CHECKPOINT, checkpoint
        rescale.tries += 1
        rescale.digests = {}
        return [Note(events.RescaleCheckpoint(rescale.id, checkpoint))]

    def is_digested(self, checkpoint: int) -> bool:
        return self.current is not None and self.current.checkpoint == checkpoint

    def on_acknowledged(self, ack: Acknowledge) -> None:
        rescale = self.current
        if rescale is not None and rescale.phase is RescalePhase.CHECKPOINT and ack.checkpoint == rescale.checkpoint:
            rescale.digests[str(ack.subtask)] = SubtaskDigests(ack.subtask, ack.digests)

    def on_aborted(self, checkpoint: int, why: str) -> list[Action]:
        """Has another checkpoint taken, unless too many were aborted."""
        rescale = self.current
        if rescale is None or rescale.phase is not RescalePhase.CHECKPOINT or checkpoint != rescale.checkpoint:
            return []
        rescale.checkpoint = None
        if rescale.tries < TRIES:
            return []
        return self.fail(f"its checkpoint failed {TRIES} times: {why}") + self._keeper.release_surplus()

    def on_committed(self, checkpoint: int, newest: ManifestRef | None, now_ms: float) -> list[Action]:
        """The checkpoint is committed; the JobMaster ends the attempt now, if the rescale has waited for it."""
        rescale = self.current
        if rescale is None or rescale.phase is not RescalePhase.CHECKPOINT or checkpoint != rescale.checkpoint:
            return []
        assert newest is not None and newest.checkpoint == checkpoint
        rescale.phase, rescale.since_ms, rescale.stopped_ms = RescalePhase.SWITCHING, now_ms, now_ms
        rescale.epoch = newest
        self._deploy_at(rescale.after)
        return [Note(events.RescaleSwitching(rescale.id, newest.epoch))]

    # ------------------------------------------------------------------ the switch

    @property
    def read(self) -> Callable[[], Scaling] | None:
        """Reads the durable parallelism, after the job is claimed and before it is restored; None: that is done.

        The JobMaster before this one may have rescaled the job since this one was started.
        """
        return self._scale.saved if self._scale is not None and not self._read else None

    def on_read(self, read: Scaling | None) -> list[Action]:
        """Takes the durable parallelism; None: it could not be read, so the job begins as started."""
        self._read = True
        assert self._scale is not None
        if read is None or read == self.now.scaling:
            return []
        self._deploy_at(Setup(read, ExecutionGraph(self._scale.build(read))))
        return self._ask(self.now.execution.slots)

    def _deploy_at(self, setup: Setup) -> None:
        self.now = setup
        self._pool.needed = setup.execution.slots

    @property
    def wants_digests(self) -> bool:
        """True if the next deployment is the one to prove."""
        return self.current is not None and self.current.phase is RescalePhase.SWITCHING

    def on_deployed(self, answers: list[Deployed]) -> Verdict:
        """All slots are deployed. Compares what they restored with what was saved."""
        rescale = self.current
        if rescale is None or rescale.phase is not RescalePhase.SWITCHING:
            return Verdict.START
        restored = [one for answer in answers for one in answer.digests]
        rescale.proof = prove(rescale.digests.values(), restored, parallelism_of(rescale.after.execution))
        if rescale.proof.differences:
            return Verdict.GO_BACK
        rescale.phase = RescalePhase.SAVING
        return Verdict.SAVE

    def go_back(self) -> list[Action]:
        rescale = self.current
        assert rescale is not None and rescale.proof is not None
        return self.fail(f"the state differs: {'; '.join(rescale.proof.differences)}")

    @property
    def saving(self) -> bool:
        """True while it is open whether the new parallelism is durable: nothing may be restored."""
        return self.current is not None and self.current.phase is RescalePhase.SAVING

    @property
    def save(self) -> Callable[[], None]:
        """Makes the new parallelism durable. `on_saved` takes the outcome."""
        rescale = self.current
        assert self._scale is not None and rescale is not None and self.saving
        return partial(self._scale.save, rescale.after.scaling)

    def on_saved(self, error: BaseException | None, now_ms: float, *, deployed: bool) -> list[Action]:
        """The outcome of `save` is known. `deployed`: the attempt whose state was compared can start now.

        A new parallelism that can't be saved is given up.
        """
        rescale = self.current
        assert rescale is not None and rescale.phase is RescalePhase.SAVING
        if error is not None:
            return self.fail(f"the new parallelism could not be saved: {error}")
        rescale.phase, rescale.since_ms = RescalePhase.STARTED, now_ms
        return [] if deployed else self._over(None)

    def on_running(self) -> list[Action]:
        waits = self.current is not None and self.current.phase is RescalePhase.SLOTS
        return [] if waits else self._keeper.release_surplus()

    def on_flowing(self, now_ms: float) -> list[Action]:
        """The first record was processed at the new parallelism."""
        rescale = self.current
        if rescale is None or rescale.phase is not RescalePhase.STARTED:
            return []
        return self._over(now_ms - rescale.stopped_ms)

    # ------------------------------------------------------------------ the end

    def on_attempt_over(self, why: str) -> list[Action]:
        """The attempt failed, or the job ends. A rescale whose parallelism is not durable is given up.

        While it is being saved nobody knows that yet: `on_saved` decides.
        """
        rescale = self.current
        if rescale is None or rescale.phase is RescalePhase.SAVING:
            return []
        return self._over(None) if rescale.phase is RescalePhase.STARTED else self.fail(why)

    def fail(self, why: str) -> list[Action]:
        """Gives the rescale up. The job goes on, or is deployed again, at the old parallelism."""
        rescale = self.current
        assert rescale is not None
        self.current = None
        if self.now is not rescale.before:
            self._deploy_at(rescale.before)
        proof = rescale.proof or Proof("", "", 0)
        return [Note(events.RescaleFailed(rescale.id, why, proof.before, proof.after))]

    def _over(self, pause_ms: float | None) -> list[Action]:
        rescale = self.current
        assert rescale is not None and rescale.proof is not None and rescale.epoch is not None
        self.current = None
        proof = rescale.proof
        epoch = rescale.epoch.epoch
        return [Note(events.Rescaled(rescale.id, epoch, pause_ms, proof.before, proof.after, proof.rows))]


def parallelism_of(execution: ExecutionGraph) -> dict[str, int]:
    """Returns the parallelism of each operator, by uid."""
    return {uid: vertex.parallelism for vertex in execution.graph.vertices for uid in vertex.uids}


def _started(rescale: Rescale) -> events.RescaleStarted:
    before, after = rescale.before.execution, rescale.after.execution
    return events.RescaleStarted(rescale.id, parallelism_of(before), parallelism_of(after), before.slots, after.slots)
