"""Simulated processes around the real `SlotRuntime` and `JobMaster`, and the supervisor that keeps a JobMaster running.

A JobMaster and its slots are one `Incarnation`, like a Spark application: a replacement has slots of its own, and the
old ones may work on for a while. The simulated processes do what the real ones do on Spark; chance stands in for
threads and network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from engine.core.errors import (
    CorruptSnapshot,
    Fenced,
    IncompatibleJob,
    SavepointExists,
    StoreError,
    UserFunctionError,
)
from engine.core.paths import JobPaths
from engine.core.sinks import Committer
from engine.graph.execution_graph import ExecutionGraph
from engine.jobmaster import events
from engine.jobmaster.actions import (
    Action,
    AskGate,
    EndGate,
    KillSlot,
    Note,
    Outcome,
    ReleaseSlots,
    RunOffLoop,
    Send,
    StartSlots,
    Stop,
)
from engine.jobmaster.master import JobMaster, MasterConfig, Phase
from engine.jobmaster.rescaling import Scale
from engine.protocol.config import CheckpointConfig
from engine.protocol.credits import ChannelLimits
from engine.protocol.failures import CheckpointFailure
from engine.protocol.gate import GateQuestion
from engine.protocol.messages import (
    Deploy,
    Heartbeat,
    LongStep,
    MasterMessage,
    Register,
    SlotMessage,
    TaskFailed,
    decode_master_message,
    decode_slot_message,
    encode,
)
from engine.protocol.savepoint import StopRequest
from engine.protocol.scaling import Scaling
from engine.runtime.plan import SlotPlan
from engine.runtime.slot import SlotRuntime
from engine.snapshot.epoch_log import EpochLog
from engine.store.below import Below
from tests.simulation.invariants import Checker, check_claimed, check_completed
from tests.simulation.jobs import JobSpec, graph_of
from tests.simulation.ports import (
    FRAME_LOST,
    FRAME_TWICE,
    SILENCE_MS,
    Link,
    Network,
    SimOffload,
    SimTransport,
    attempt_work,
)
from tests.simulation.store import SWAPPED, SimStore, StoreView
from tests.simulation.world import Process, Violation, World

HEARTBEAT_MS = 12.0
LEASE_MS = 90.0
MASTER_CONFIG = MasterConfig(
    slots_timeout_ms=3_000,
    deploy_timeout_ms=50,
    heartbeat_ms=HEARTBEAT_MS,
    heartbeat_timeout_ms=SILENCE_MS,
    retry_ms=6,
    slow_step_ms=35,
    step_timeout_ms=120,
    cause_grace_ms=15,
)
NONCE = "nonce"
LIMITS = ChannelLimits(own_bytes=500, frame_bytes=250, least_bytes=60)
"""Limits so small that a few batches use up a channel's credit."""
CREDIT = "channel: a sender waits for credit"
_EXPLAINED = ("StoreError: simulated", "channel ", "operator ", "while closing: ")


@dataclass(frozen=True)
class Pace:
    """How fast a run is. Typical times in ms of a task loop step, a message, offloaded I/O, the start of a process."""

    step: float = 0.4
    network: float = 0.5
    offload: float = 1.0
    start: float = 10.0
    visit_elements: int = 256
    limits: ChannelLimits = LIMITS


class SlotProcess(Process):
    def __init__(self, incarnation: Incarnation, index: int) -> None:
        cluster = incarnation.cluster
        super().__init__(cluster.world, f"{incarnation.name}.slot{index}")
        self.session = self.name
        self._incarnation = incarnation
        self._stepping = False
        self._hung_since_ms: float | None = None
        self._hung_until_ms = 0.0
        self._io = SimOffload(self, cluster.pace.offload)
        self._inbox: list[Callable[[], None]] = []
        self._heard_ms = cluster.world.now_ms
        self._link = Link(cluster.world, self, incarnation.master, cluster.network.faults, cluster.pace.network)
        incarnation.links[self.session] = self._link
        cluster.network.addresses[self.name] = self
        plan, self._plan = cluster.slot_plans(incarnation.number)
        self.number = cluster.task_number(index)
        self.runtime = SlotRuntime(
            plan,
            cluster.paths,
            self,
            SimTransport(cluster.network, self),
            self._io,
            StoreView(cluster.store, self),
            self,
            batch_rows=cluster.spec.batch_rows,
            visit_elements=cluster.pace.visit_elements,
            limits=cluster.pace.limits,
        )
        self.world.after(0.0, self, "starts", self._begin)

    @property
    def link(self) -> Link:
        return self._link

    def _begin(self) -> None:
        blind = self._incarnation.blind_slots > 0
        self._incarnation.blind_slots -= blind
        self.send(Register(self.session, self.name, 1, 0, "" if blind else NONCE, self._plan, self.number))
        self._beat()

    def _beat(self) -> None:
        if self.world.now_ms - self._heard_ms > LEASE_MS:
            self.world.hits.add("slot: its lease ended")
            self.ends()
            return
        since_ms = self._hung_since_ms
        step = LongStep(self.world.now_ms - since_ms, "pv", "pv[0]", "") if since_ms is not None else None
        self.send(Heartbeat(self.runtime.totals(), step, self._long_io()))
        self.world.after(HEARTBEAT_MS, self, "heartbeat", self._beat)

    def _long_io(self) -> LongStep | None:
        since_ms = self._io.hung_since_ms
        return LongStep(self.world.now_ms - since_ms, "", "pv[0]", "") if since_ms is not None else None

    def hang_io(self) -> None:
        """Hangs all I/O threads: work that was handed over is never done."""
        if self._io.hung_since_ms is None:
            self._io.hung_since_ms = self.world.now_ms

    # --- the task thread ---

    def hang(self, duration_ms: float) -> None:
        """Hangs the task thread; the threads of heartbeats and connections go on."""
        if self._hung_since_ms is None:
            self._hung_since_ms = self.world.now_ms
        self._hung_until_ms = max(self._hung_until_ms, self.world.now_ms + duration_ms)
        if duration_ms < math.inf:
            self.world.after(duration_ms, self, "its task thread goes on", self._goes_on)

    def _goes_on(self) -> None:
        if self._hung_since_ms is None or self.world.now_ms < self._hung_until_ms:
            return
        self._hung_since_ms = None
        inbox, self._inbox = self._inbox, []
        for work in inbox:
            self.deliver(work)

    def deliver(self, work: Callable[[], None]) -> None:
        """Runs something that has arrived on the task thread."""
        if self._hung_since_ms is not None:
            self._inbox.append(work)
            return
        work()
        self.poke()

    # --- Control port ---

    def send(self, message: SlotMessage) -> None:
        self.touch("control")
        if isinstance(message, TaskFailed):
            self._explain(message)
        self._link.to_master(encode(message), type(message).__name__)

    def _explain(self, failure: TaskFailed) -> None:
        """Raises a Violation for a failure that no simulated fault explains: a bug, even if a restart would hide it."""
        if failure.corrupt:
            return
        if " arrived where " in failure.error and not self.world.hits & {FRAME_LOST, FRAME_TWICE}:
            raise Violation("channel_order", f"{self.name}: {failure.error}")
        if SWAPPED in self.world.hits and failure.error.startswith("StoreError: "):
            return
        if not failure.error.startswith(_EXPLAINED):
            raise Violation("internal_error", f"{self.name}: {failure.error}\n{failure.detail}")

    def receive(self, data: bytes) -> None:
        self._heard_ms = self.world.now_ms
        message = decode_master_message(data)
        self.deliver(lambda: self._on_control(message))

    def _on_control(self, message: MasterMessage) -> None:
        refused = self.runtime.refused
        if isinstance(message, Deploy) and message == self.runtime._deploy:
            self.world.hits.add("slot: asked again to deploy")
        self.runtime.on_control(message)
        if self.runtime.refused != refused:
            self.world.hits.add(f"slot: refuses {type(message).__name__} of another attempt")
        if self.runtime.shutdown is not None:
            self._incarnation.completed.add(self)
            self.ends()

    # --- the task loop ---

    def poke(self) -> None:
        if not self._stepping and self.alive and self._hung_since_ms is None:
            self._stepping = True
            self.world.after(self.world.delay(self._incarnation.cluster.pace.step), self, "steps", self._step)

    def _step(self) -> None:
        self._stepping = False
        if self._hung_since_ms is not None:
            self._inbox.append(self.poke)
            return
        busy = self.runtime.step()
        if CREDIT not in self.world.hits and self._waits_for_credit():
            self.world.hits.add(CREDIT)
        if busy:
            self.poke()
            return
        wakeup = self.runtime.wakeup_ms()
        if wakeup is not None:
            self.world.at(max(wakeup, self.world.now_ms), self, "wakes", self.poke)

    def _waits_for_credit(self) -> bool:
        deployment = self.runtime._deployment
        return deployment is not None and any(channel.blocked for channel in deployment.outputs.values())

    # --- the end ---

    def ends(self) -> None:
        """Ends the process on its own."""
        self.world.kill(self, "ends")

    def crashed(self) -> None:
        cluster = self._incarnation.cluster
        cluster.store.forget(self)
        self._incarnation.slot_died(self)


class Faulty:
    """A committer of the author's (not of the engine's) that raises if the run says so."""

    def __init__(self, world: World, cluster: Cluster, committer: Committer) -> None:
        self._world = world
        self._cluster = cluster
        self._committer = committer

    def commit(self, *rest: Any) -> None:
        if self._cluster.commits_raise > 0:
            self._cluster.commits_raise -= 1
            self._world.hits.add("commit: the committer raises")
            raise ValueError("simulated bug of a committer")
        self._committer.commit(*rest)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._committer, name)


class MasterProcess(Process):
    def __init__(self, incarnation: Incarnation) -> None:
        cluster = incarnation.cluster
        super().__init__(cluster.world, f"{incarnation.name}.master")
        self._incarnation = incarnation
        self._tick_at_ms: float | None = None
        execution = cluster.execution(incarnation.number)
        view = StoreView(cluster.store, self)
        log = EpochLog(view, cluster.paths, cluster.begun, cluster.paths.launch())
        committers = {
            uid: Faulty(self.world, cluster, sink.committer(view, cluster.paths)) for uid, sink in execution.graph.sinks
        }
        self.outcome: Outcome | None = None
        self.reason = ""
        self.job = JobMaster(
            execution,
            log,
            committers,
            incarnation.name,
            NONCE,
            self.wall_ms,
            self.world.random.random,
            MASTER_CONFIG,
            cluster.scale(self),
            standby=incarnation.standby,
            open_place=partial(Below, view),
        )
        self.world.after(0.0, self, "starts", self._tick)

    @property
    def slots(self) -> list[SlotProcess]:
        return self._incarnation.slots

    # --- events ---

    def _tick(self) -> None:
        self._tick_at_ms = None
        self._do(lambda: self.job.on_tick(self.world.now_ms))

    def receive(self, link: Link, data: bytes) -> None:
        message = decode_slot_message(data)
        self._do(lambda: self.job.on_message(link.slot.session, message, self.world.now_ms))

    def slot_gone(self, session: str) -> None:
        self._do(lambda: self.job.on_slot_gone(session, "simulated", self.world.now_ms))

    def cancel(self) -> None:
        self._do(lambda: self.job.cancel(self.world.now_ms))

    def stop(self) -> None:
        """Stops the job behind a last epoch, if it runs. The supervisor starts it again, as a person would."""
        self._do(lambda: self.job.stop(StopRequest(), self.world.now_ms)[1])

    def take_over(self) -> None:
        """Takes over as soon as the order has come; a standby that was put to sleep hears it when it wakes."""
        if self.job.phase is Phase.STANDBY:
            warm = self.job.slots.enough
            self.world.hits.add(f"standby: takes over {'with all of its slots' if warm else 'before its slots came'}")
            self._do(lambda: self.job.take_over(self.world.now_ms))

    def rescale(self, wanted: Scaling) -> None:
        self._do(lambda: self.job.rescale(wanted, self.world.now_ms)[1])

    def trigger(self) -> None:
        self._do(lambda: self.job.trigger_checkpoint(self.world.now_ms)[1])

    # --- actions ---

    def _do(self, event: Any) -> None:
        before = self.job.phase
        try:
            actions = event()
        except (AssertionError, KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
            raise Violation("internal_error", f"{self.name}: {type(error).__name__}: {error}") from error
        self._note_phase(before)
        for action in actions:
            self._carry_out(action)
        if self.job.phase is not Phase.STOPPED:
            wakeup = max(self.job.wakeup_ms(), self.world.now_ms)
            if self._tick_at_ms is None or wakeup < self._tick_at_ms:
                self._tick_at_ms = wakeup
                self.world.at(wakeup + 0.01, self, "ticks", self._tick)

    def _note_phase(self, before: Phase) -> None:
        if before is Phase.STOPPED and self.job.phase is not before:
            raise Violation("stopped", f"{self.name} was stopped and is now {self.job.phase.name}")
        if self.job.phase is Phase.RUNNING and before is not Phase.RUNNING:
            self._incarnation.cluster.network.check_connected(self.job.attempt, self.job.execution)
        if self.job.phase is not before:
            self.world.hits.add(f"phase: {before.name} → {self.job.phase.name}")

    def _carry_out(self, action: Action) -> None:
        world = self.world
        match action:
            case Send(session, message):
                self.touch("control")
                self._incarnation.cluster.on_send(self._incarnation, session, message)
                link = self._incarnation.links.get(session)
                if link is not None:
                    link.to_slot(encode(message), type(message).__name__)
            case KillSlot(slot, silent=silent):
                self.touch("control")
                world.hits.add("master: kills a silent slot" if silent else "master: kills a hung slot")
                self._incarnation.kill_slot(slot.session)
            case StartSlots(numbers):
                self.touch("control")
                self._incarnation.start_slots(numbers)
            case ReleaseSlots(numbers):
                self._incarnation.released |= set(numbers)
            case RunOffLoop(name, work, done):
                self.touch("control")
                if self.job.phase is Phase.STANDBY:
                    raise Violation("standby", f"{self.name} was not told to take over, and runs {name!r}")
                world.after(
                    world.delay(self._incarnation.cluster.pace.offload),
                    self,
                    f"runs {name}",
                    lambda: self._run(name, work, done),
                )
            case AskGate(question):
                self._incarnation.cluster.on_ask(self, question)
            case EndGate():
                self._incarnation.cluster.on_end_gate(self)
            case Note(event):
                world.log(f"  {self.name} notes {event}")
                self._cover(event)
                if isinstance(event, events.Claimed):
                    self._incarnation.cluster.check_claimed(self._incarnation.name, self.job.attempt.generation)
                self._incarnation.cluster.on_event(self, event)
            case Stop(outcome, reason):
                self.outcome, self.reason = outcome, reason
                world.hits.add(f"outcome: {outcome.name}")
                self._incarnation.cluster.stopped(self)

    def _run(self, name: str, work: Any, done: Any) -> None:
        world = self.world

        def ended(outcome: tuple[Any, Any]) -> None:
            result, error = outcome
            if isinstance(error, Fenced):
                world.hits.add("log: Fenced")
            world.after(
                world.delay(self._incarnation.cluster.pace.offload),
                self,
                f"done {name}",
                lambda: self._do(lambda: done(result, error, world.now_ms)),
            )

        expected = (StoreError, Fenced, CorruptSnapshot, IncompatibleJob, SavepointExists, UserFunctionError)
        world.off_loop(self, name, lambda: attempt_work(self, name, work, expected), ended)

    def _cover(self, event: events.AnyEvent) -> None:
        hits = self.world.hits
        match event:
            case events.Aborted(checkpoint, why, detail):
                hits.add(f"checkpoint: {why}")
                if why == CheckpointFailure.LEDGER_MISMATCH.code:
                    raise Violation("ledger", f"the engine itself refuses checkpoint {checkpoint}: {detail}")
            case events.AttemptFailed():
                hits.add(f"attempt: {event.cause}")
            case events.OddAcknowledgement():
                hits.add(f"acknowledge: {event.outcome}")
            case events.Completed():
                self._incarnation.cluster.check_completed(self._incarnation.name, event.epoch)
                hits.add("checkpoint: completed, final" if event.final else "checkpoint: completed")
            case _:
                hits.add(f"note: {event.kind}")

    def crashed(self) -> None:
        self._incarnation.cluster.store.forget(self)
        self._incarnation.master_died()


class Incarnation:
    """One JobMaster and the slots that Spark keeps running for it."""

    def __init__(self, cluster: Cluster, number: int, *, standby: bool = False) -> None:
        self.cluster = cluster
        self.number = number
        self.standby = standby
        self.name = f"m{number}"
        self.links: dict[str, Link] = {}
        self.slots: list[SlotProcess] = []
        self.blind_slots = 0  # so many of the next slots do not see the store
        self.room_at_ms = 0.0  # Spark starts no further slots before
        self.completed: set[SlotProcess] = set()  # slots that ended as they were told
        self.released: set[int] = set()
        self._count = 0
        self.master = MasterProcess(self)
        for _ in range(cluster.execution(number).slots):
            self._start_slot(cluster.world.delay(cluster.pace.start / 2))

    def start_slots(self, numbers: Iterable[int]) -> None:
        """Starts further slots when Spark has room; in time or not at all, as for those that were released by then."""
        world, pace = self.cluster.world, self.cluster.pace
        for number in numbers:
            self._start_slot(max(0.0, self.room_at_ms - world.now_ms) + world.delay(pace.start), number)

    def _start_slot(self, delay_ms: float, number: int | None = None) -> None:
        self._count += 1
        index = self._count

        def start() -> None:
            if self.master.alive and self.master.outcome is None and number not in self.released:
                slot = SlotProcess(self, index)
                slot.number = slot.number if number is None else number
                self.slots.append(slot)

        self.cluster.world.after(delay_ms, None, f"{self.name}.slot{index} is started", start)

    def slot_died(self, slot: SlotProcess) -> None:
        world = self.cluster.world
        self.slots.remove(slot)
        if not self.master.alive or self.master.outcome is not None:
            return
        if slot in self.completed:  # Spark starts no task again that has ended well
            slot.link.breaks()
            return
        # Mostly the connections end with the process; a machine that vanished is noticed only by its silence.
        if world.random.random() < 0.7:
            world.after(world.delay(1.0), None, f"link of {slot.name} ends", slot.link.breaks)
            self.cluster.network.process_ended(slot)
        self._start_slot(world.delay(self.cluster.pace.start), slot.number)

    def kill_slot(self, session: str) -> None:
        for slot in self.slots:
            if slot.session == session:
                world, kill = self.cluster.world, self.cluster.world.kill
                world.after(world.delay(3.0), None, f"{slot.name} is killed", partial(kill, slot, "killed"))

    def master_died(self) -> None:
        for slot in self.slots:
            world = self.cluster.world
            world.after(40 * world.random.random(), slot, "loses its JobMaster", slot.ends)
        self.cluster.master_died()


class Cluster:
    """All processes of a run, and the supervisor."""

    def __init__(
        self,
        world: World,
        spec: JobSpec,
        checkpoints: CheckpointConfig,
        store: SimStore,
        network: Network,
        pace: Pace,
        checker: Checker,
    ) -> None:
        self.world = world
        self.spec = spec
        self.store = store
        self.network = network
        self.pace = pace
        self.paths = JobPaths("job")
        store.put(self.paths.launch())  # whoever starts a job writes it, before the first JobMaster is started
        self.incarnations: list[Incarnation] = []
        self.keeps_standby = False
        self.standby: Incarnation | None = None
        self.finished = False
        self.commits_raise = 0.0  # so many of the next commits raise
        self._checker = checker
        self._checkpoints = checkpoints
        self._graphs = 0

    # --- what a cluster whose job is rescaled does otherwise ---

    def slot_plans(self, incarnation: int) -> tuple[Callable[[Deploy], SlotPlan], str]:
        """Returns how a slot makes its plans, and the fingerprint with which it registers."""
        execution = self.execution(incarnation)
        return lambda deploy: execution.plan(deploy.slot), execution.graph.fingerprint

    def scale(self, master: MasterProcess) -> Scale | None:
        return None

    def task_number(self, index: int) -> int:
        """Returns the number of a Spark task. Without rescales they play no part, and seeds keep their schedules."""
        return 0

    def on_send(self, incarnation: Incarnation, session: str, message: MasterMessage) -> None:
        pass

    def on_event(self, master: MasterProcess, event: events.AnyEvent) -> None:
        pass

    def on_ask(self, master: MasterProcess, question: GateQuestion) -> None:
        raise AssertionError("no table of this job has a gate")

    def on_end_gate(self, master: MasterProcess) -> None:
        raise AssertionError("no table of this job has a gate")

    def execution(self, incarnation: int = 1) -> ExecutionGraph:
        self._graphs += 1
        spec = self.spec
        if incarnation > 1 and spec.rescaled is not None:
            spec = replace(spec, parallelism=spec.rescaled)
        return ExecutionGraph(graph_of(spec, self._graphs, self._checkpoints))

    def start(self) -> None:
        self._add(standby=False)

    def _add(self, *, standby: bool) -> Incarnation:
        self.incarnations.append(Incarnation(self, len(self.incarnations) + 1, standby=standby))
        return self.incarnations[-1]

    @property
    def running(self) -> list[Incarnation]:
        """All JobMasters that live and run the job, or believe that they do. A standby does not."""
        live = [i for i in self.incarnations if i.master.alive and i.master.outcome is None]
        return [i for i in live if i.master.job.phase is not Phase.STANDBY]

    # --- the standby ---

    def keep_standby(self) -> None:
        """Lets the supervisor keep a standby from now on: a JobMaster with slots of its own, which only waits."""
        self.keeps_standby = True
        if not self.finished and (self.standby is None or not self.standby.master.alive):
            self.standby = self._add(standby=True)
            self.world.hits.add("standby: started")

    def take_over(self) -> bool:
        """Lets the standby take over. The JobMaster may be dead, or only asleep. Returns False if there is none."""
        standby, self.standby = self.standby, None
        if standby is None or not standby.master.alive or standby.master.outcome is not None:
            return False
        self.world.after(self.world.delay(1.0), standby.master, "is told to take over", standby.master.take_over)
        self.world.after(self.world.delay(self.pace.start), None, "the next standby is started", self.keep_standby)
        return True

    @property
    def begun(self) -> bool:
        """True if the job has a log. A JobMaster's process reads it before Spark starts, long before the claim.

        One that is started while an empty store is in the place of the store finds none.
        """
        return bool(self._checker.records) and not self.store.away

    def check_claimed(self, owner: str, generation: int) -> None:
        check_claimed(self._checker.records, owner, generation)

    def check_completed(self, owner: str, epoch: int) -> None:
        plain = type(self._checker) is Checker  # who goes back or upgrades counts visible epochs otherwise
        check_completed(self._checker.records, self._checker.visible if plain else epoch, owner, epoch)

    def host_dies(self) -> None:
        """Ends all processes at once; the store forgets what is not durable."""
        for incarnation in self.incarnations:
            for process in (incarnation.master, *incarnation.slots):
                self.world.kill(process, "host dies")
        self.store.host_crashed()

    def stopped(self, master: MasterProcess) -> None:
        if master.outcome is Outcome.FAILED:
            self.world.hits.add(f"failed: {master.reason[:40]}")
        generation = self._checker.records[-1].generation if self._checker.records else 0
        if master.outcome is Outcome.FAILED and master.job.attempt.generation >= generation:
            raise Violation("finishes", f"{master.name} failed: {master.reason}")
        if master.outcome is Outcome.FINISHED:
            self.finished = True
        self.master_died()

    def master_died(self) -> None:
        """Lets the supervisor start another JobMaster if none is left and the job is not finished."""
        if not self.finished and not self.running:
            self.world.after(self.world.delay(self.pace.start), None, "the supervisor looks", self._replace)

    def _replace(self) -> None:
        if not self.finished and not self.running and not self.take_over():
            self.start()
