"""The faults of a run. They are drawn from the seed before the run starts, so a seed names its faults."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random

import msgspec

from engine.jobmaster.master import Phase
from engine.protocol.config import CheckpointConfig, CheckpointingMode
from engine.protocol.messages import OverBudget
from engine.protocol.scaling import Scaling
from engine.runtime.operators.sink import ROLL_BYTES
from tests.simulation.cluster import Cluster, Incarnation, MasterProcess, Pace, SlotProcess
from tests.simulation.collecting import collect_garbage
from tests.simulation.folder import FILES
from tests.simulation.generated import BATCHES, RECORDS
from tests.simulation.jobs import (
    EXCHANGES,
    FOLDER_KINDS,
    JOINED,
    OPERATOR_STATE,
    PATTERN,
    SESSIONS,
    TIMERS,
    WINDOW_MS,
    WINDOWED,
    JobSpec,
)
from tests.simulation.ports import NetworkFaults, SilentLink
from tests.simulation.store import StoreFaults
from tests.simulation.world import Process, World

STORM_MS = 80.0
JOINED_SEEDS = 9
"""Of twenty seeds this one is a join. Without a draw, so that all other seeds, and those recorded for bugs, stay."""
LONG_ROWS = 200


@dataclass(frozen=True)
class Plan:
    """Everything that a seed decides beforehand. `blows`: (time in ms, name of the fault)."""

    spec: JobSpec
    checkpoints: CheckpointConfig
    pace: Pace = field(default_factory=Pace)
    store: StoreFaults = field(default_factory=StoreFaults)
    network: NetworkFaults = field(default_factory=NetworkFaults)
    blows: tuple[tuple[float, str], ...] = ()
    user_fault: int | None = None
    storm_ms: float = 0.0
    pauses: float = 0.0
    roll_bytes: int = ROLL_BYTES

    def __str__(self) -> str:
        return f"{self.spec} {self.checkpoints} {self.pace} {self.store} {self.network} {self.blows} {self.user_fault}"


BLOWS = (
    "slot dies",
    "slot dies in a step",
    "slot sleeps",
    "slot is cut off",
    "a trigger is lost",
    "master dies",
    "master dies in a step",
    "master sleeps, another starts",
    "another master starts",
    "master sleeps",
    "checkpoint by hand",
    "cancel",
)
OVER_BUDGET = "slot is over budget"
HOST_DIES, DISK_FULL, CLOCK_JUMPS = "host dies", "disk is full", "wall clock jumps"
HANGS, IO_HANGS = "task thread hangs", "I/O hangs"
STORE_AWAY = "host dies, and its store is away for a while"
STORE_SWAPPED = "an empty store takes the place of the store for a moment"
HALF_OPEN = "a link between slots falls silent"
BLIND, BUGGY_COMMITTER = "slots do not see the store", "a committer raises twice"
COLLECTS = "somebody collects garbage"
SKIPPED = "a slot misses a trigger and gets the next one"
STANDBY, TAKEOVER = "master dies, its standby takes over", "master sleeps, its standby takes over"
STANDBY_DIES = "the standby dies"
STOPS = "somebody stops the job"
SLEEPS_IN_CLAIM = "another master starts, and sleeps in its claim"
RARE_BLOWS = (
    (OVER_BUDGET, 0.03),
    (HOST_DIES, 0.06),
    (DISK_FULL, 0.03),
    (STORE_AWAY, 0.04),
    (STORE_SWAPPED, 0.04),
    (CLOCK_JUMPS, 0.05),
    (HANGS, 0.06),
    (HALF_OPEN, 0.08),
    (IO_HANGS, 0.04),
    (BLIND, 0.04),
    (BUGGY_COMMITTER, 0.04),
    (SKIPPED, 0.05),
    (COLLECTS, 0.25),
    (STANDBY, 0.08),
    (TAKEOVER, 0.1),
    (STANDBY_DIES, 0.05),
    (STOPS, 0.06),
    (SLEEPS_IN_CLAIM, 0.015),
)
"""Blows with the share of the seeds that have them. Each is drawn by a generator of its own."""
_WEIGHTS = (4, 6, 2, 2, 2, 3, 6, 4, 2, 1, 3, 1)


DOOMS = ("", "", "", "control", "write", "sync", "sync", "create", "linked", "created", "read", "delete", "frame")
"""Where a process dies in a step: at the nth call of this port; empty: of any port."""


def draw_plan(seed: int) -> Plan:
    random = Random(f"plan {seed}")
    kind = random.choice(("windows", "windows", "late", "late", "process", "process", "reduce", "copy"))
    spec = JobSpec(
        kind,
        parallelism=random.choice((1, 2, 2, 2, 3)),
        splits=random.choice((1, 2)) if kind == "late" else 2,
        rows=random.choice((24, 36)),
        batch_rows=random.choice((3, 6)),
    )
    spec = _rewired(spec, Random(f"exchange {seed}"))
    operators = Random(f"operator state {seed}")
    if operators.random() < 0.15:
        spec = replace(spec, kind=operators.choice(OPERATOR_STATE), splits=2)
    if spec.kind in FOLDER_KINDS and Random(f"folder {seed}").random() < 0.15:
        spec = replace(spec, folder=True, splits=FILES)
    if spec.kind in WINDOWED and Random(f"beside {seed}").random() < 0.25:
        spec = replace(spec, beside=True)
    if spec.kind in WINDOWED and Random(f"slide {seed}").random() < 0.2:
        spec = replace(spec, slide_ms=Random(f"slide of {seed}").choice([20, 64, 80]))
    if Random(f"process functions {seed}").random() < 0.06:
        exchange = "" if spec.exchange == "broadcast" else spec.exchange  # a timer belongs to one copy of a record
        spec = replace(spec, kind=TIMERS, exchange=exchange, folder=False, beside=False, slide_ms=WINDOW_MS, splits=2)
    if seed % 20 == JOINED_SEEDS:
        spec = replace(spec, kind=JOINED, folder=False, beside=False, slide_ms=WINDOW_MS, splits=2)
    if (other := Random(f"sessions and patterns {seed}")).random() < 0.06 and spec.kind in WINDOWED:
        exchange = "" if spec.exchange == "broadcast" else spec.exchange
        kind = other.choice((SESSIONS, PATTERN))
        spec = replace(spec, kind=kind, exchange=exchange, folder=False, beside=False, slide_ms=WINDOW_MS, splits=2)
    spec = _aligned(spec, Random(f"aligned {seed}"))
    if (other := Random(f"generated {seed}")).random() < 0.15 and not spec.folder:
        spec = replace(spec, generated=other.choice((RECORDS, BATCHES)))
    checkpoints = CheckpointConfig(
        interval_ms=random.choice((2, 4, 4, 6, 6, 10, 16, None)),
        mode=CheckpointingMode.AT_LEAST_ONCE if random.random() < 0.12 else CheckpointingMode.EXACTLY_ONCE,
        timeout_ms=random.choice((12, 30, 60, 300, 300)),
        min_pause_ms=random.choice((0, 0, 3, 12)),
        max_concurrent=random.choice((1, 2, 2, 3)),
        tolerable_failed=random.choice((0, 0, 1, 3, 50)),
        retained=random.choice((1, 2, 3)),
    )
    if spec.kind == PATTERN:
        checkpoints = msgspec.structs.replace(checkpoints, mode=CheckpointingMode.EXACTLY_ONCE)
    pace = Pace(
        visit_elements=random.choice((1, 2, 256)),
        step=random.choice((2.0, 5.0, 8.0)),
        network=random.choice((0.2, 0.5, 1.5)),
        offload=random.choice((0.5, 1.0, 4.0)),
    )
    if Random(f"folded {seed}").random() < 0.5:
        spec = replace(spec, folded=True)
    if Random(f"long {seed}").random() < 0.04 and not spec.folder:
        spec, checkpoints, pace = long_job(spec, checkpoints, pace)
    if random.random() < 0.06:
        return Plan(spec, checkpoints, pace, storm_ms=STORM_MS)  # no faults: only the schedule is random

    def rate(probability: float, *values: float) -> float:
        return random.choice(values) if random.random() < probability else 0.0

    store = StoreFaults(error=rate(0.3, 0.01, 0.04), unknown=rate(0.4, 0.1, 0.3), sync_failed=rate(0.08, 0.03, 0.08))
    network = NetworkFaults(
        frame_break=rate(0.08, 0.002, 0.008),
        frame_lost=rate(0.08, 0.002, 0.008),
        frame_repeated=rate(0.1, 0.004, 0.01),
        message_lost=rate(0.15, 0.01, 0.03),
        message_repeated=rate(0.35, 0.05, 0.2),
    )
    count = random.choice((0, 1, 1, 1, 2, 2, 3, 4))
    blows = sorted((random.random() * STORM_MS, random.choices(BLOWS, _WEIGHTS)[0]) for _ in range(count))
    blows = sorted([*blows, *_rare_blows(seed)])
    if any(blow == HALF_OPEN for _, blow in blows):
        # No checkpoint expires, so only those who watch the channels can notice. Hung I/O is noticed by that time-out.
        checkpoints = msgspec.structs.replace(checkpoints, timeout_ms=60_000)
        blows = [one for one in blows if one[1] != IO_HANGS]
    if any(blow == SKIPPED for _, blow in blows):
        aligns = Random(f"superseded {seed}").random() < 0.4
        spec, checkpoints, pace = _overtaking(spec, checkpoints, pace, aligns)
    user_fault = random.randrange(60) if kind in ("process", "reduce", "copy") and random.random() < 0.1 else None
    pauses = 0.6 if random.random() < 0.3 else 0.0
    if any(blow == SLEEPS_IN_CLAIM for _, blow in blows) and not spec.folder:
        # Long enough that the record which the claim wants to create has come and gone when it wakes up.
        spec, checkpoints, pace = long_job(spec, checkpoints, pace)
        pauses = 1.0
    roll_bytes = 250 if random.random() < 0.15 else ROLL_BYTES
    store = _odd_answers(store, Random(f"answers {seed}"))
    return Plan(spec, checkpoints, pace, store, network, tuple(blows), user_fault, STORM_MS, pauses, roll_bytes)


def _rare_blows(seed: int) -> Iterator[tuple[float, str]]:
    """Draws each rare blow with a generator of its own, so that a new one leaves the other draws unchanged."""
    for blow, share in RARE_BLOWS:
        apart = Random({OVER_BUDGET: f"budget {seed}", HANGS: f"hangs {seed}"}.get(blow, f"{blow} {seed}"))
        if apart.random() < share:
            yield apart.random() * STORM_MS, blow


def _overtaking(
    spec: JobSpec, checkpoints: CheckpointConfig, pace: Pace, aligns: bool
) -> tuple[JobSpec, CheckpointConfig, Pace]:
    """Returns a job in which a checkpoint can complete before an older one: no barriers between subtasks tell them.

    `aligns`: there are barriers, and that of the newer checkpoint supersedes the older one.
    """
    if aligns:
        spec = replace(spec, parallelism=max(2, spec.parallelism))
    return (
        replace(
            spec, kind="reduce" if aligns else "copy", exchange="", folder=False, beside=False, splits=2, drift_ms=None
        ),
        msgspec.structs.replace(checkpoints, interval_ms=2, timeout_ms=300, min_pause_ms=0, max_concurrent=3),
        replace(pace, step=2.0, offload=0.5),
    )


def long_job(spec: JobSpec, checkpoints: CheckpointConfig, pace: Pace) -> tuple[JobSpec, CheckpointConfig, Pace]:
    """Returns a job of so many epochs that its tables are folded, and that old records and files are deleted.

    Its steps are slow, so that files which were folded grow old enough while it still runs: after the storm all other
    jobs end within a few milliseconds.
    """
    return (
        replace(spec, rows=LONG_ROWS, batch_rows=1, folded=True),
        msgspec.structs.replace(checkpoints, interval_ms=2, timeout_ms=300, min_pause_ms=0, tolerable_failed=50),
        replace(pace, step=8.0, offload=0.5, network=0.2),
    )


def _odd_answers(store: StoreFaults, random: Random) -> StoreFaults:
    """Draws answers of the store that are true and easily misunderstood."""
    if random.random() < 0.12:
        store = replace(store, exists_ours=random.choice((0.1, 0.4)))
    if random.random() < 0.15:
        store = replace(store, partial_list=random.choice((0.3, 0.8)))
    if random.random() < 0.06:
        store = replace(store, unknown=max(store.unknown, 0.3), name_lost=0.6)
    return store


def _rewired(spec: JobSpec, random: Random) -> JobSpec:
    """Adds an exchange or own slots to some jobs. `random` is separate, so other draws of the seed do not change."""
    exchange = random.choice(EXCHANGES) if random.random() < 0.2 else ""
    return replace(spec, exchange=exchange, own_slots=random.random() < 0.1)


def _aligned(spec: JobSpec, random: Random) -> JobSpec:
    """Aligns the sources of some jobs with event time: of many that have two sources, and of few others."""
    share = {JOINED: 0.4, TIMERS: 0.3, "windows": 0.06, SESSIONS: 0.1, PATTERN: 0.1}.get(spec.kind, 0.0)
    if spec.folder or random.random() >= share:
        return spec
    return replace(spec, drift_ms=random.choice((20, 60, 200)))


class Storm:
    """Strikes at the times of the plan, at a random JobMaster or slot that runs then."""

    def __init__(self, world: World, cluster: Cluster, plan: Plan) -> None:
        self._world = world
        self._cluster = cluster
        if any(blow in (STANDBY, TAKEOVER, STANDBY_DIES) for _, blow in plan.blows):
            world.after(world.delay(cluster.pace.start), None, "a standby is started", cluster.keep_standby)
        for time_ms, blow in plan.blows:
            world.at(time_ms, None, f"fault: {blow}", lambda blow=blow: self._strike(blow))

    def _strike(self, blow: str) -> None:
        world, random, running = self._world, self._world.random, self._cluster.running
        if self._cluster.finished or not running:
            return
        incarnation = random.choice(running)
        master = incarnation.master
        slot = random.choice(incarnation.slots) if incarnation.slots else None
        world.hits.add(f"fault: {blow}")
        match blow:
            case "slot dies" if slot is not None:
                world.kill(slot, "crash")
            case "slot dies in a step" if slot is not None:
                self._light(slot)
            case "slot is over budget" if slot is not None:
                world.execute(slot, lambda: slot.send(OverBudget(2, 1)))  # its fuse may blow
                world.after(world.delay(1.0), slot, "ends itself", slot.ends)
            case "task thread hangs" if slot is not None:
                slot.hang(random.choice((20, 60, 200, math.inf, math.inf)))
            case "a link between slots falls silent" if slot is not None:
                self._silence(slot, [other for other in incarnation.slots if other is not slot])
            case "I/O hangs" if slot is not None:
                slot.hang_io()
            case "slots do not see the store":
                incarnation.blind_slots = random.choice((1, 3))
                if slot is not None:
                    world.kill(slot, "crash")
            case "a committer raises twice":
                self._cluster.commits_raise = 2  # one less than ends the job
            case "a committer raises always":
                self._cluster.commits_raise = math.inf
            case "slot sleeps" if slot is not None:
                slot.sleep(random.choice((20, 100, 200)))
            case "slot is cut off" if slot is not None:
                slot.link.held_until_ms = world.now_ms + random.choice((20, 100, 200))
            case "a trigger is lost" | "a slot misses a trigger and gets the next one" if slot is not None:
                slot.link.lose_next = "Trigger"
            case "master dies":
                world.kill(master, "crash")
            case "master dies in a step":
                self._light(master)
            case "master sleeps, another starts":
                master.sleep(random.choice((30, 60, 120)))
                world.after(world.delay(10), None, "another master starts", self._cluster.start)
            case "another master starts":
                self._cluster.start()
            case "another master starts, and sleeps in its claim":
                self._cluster.start()
                newest = self._cluster.incarnations[-1].master
                sleep_ms = random.choice((60, 120, 240))
                world.after(world.delay(2.0), None, f"{newest.name} sleeps", lambda: newest.sleep(sleep_ms))
            case "master dies, its standby takes over":
                world.kill(master, "crash")
            case "master sleeps, its standby takes over":
                master.sleep(random.choice((30, 60, 120)))
                self._cluster.take_over()
            case "the standby dies" if self._cluster.standby is not None:
                world.kill(self._cluster.standby.master, "crash")
                world.after(world.delay(10), None, "another standby is started", self._cluster.keep_standby)
            case "master sleeps":
                master.sleep(random.choice((20, 60, 120)))
            case "checkpoint by hand":
                world.after(0.0, master, "checkpoint by hand", master.trigger)
            case "somebody collects garbage":
                collect_garbage(self._cluster, random.choice((1, 3, 8)))
            case "host dies":
                self._cluster.host_dies()
            case "host dies, and its store is away for a while" if self._cluster.begun:
                self._cluster.host_dies()
                self._cluster.store.goes_away(random.choice((30, 100, 300)))
            case "an empty store takes the place of the store for a moment":
                self._cluster.store.goes_away(random.choice((2, 5, 10, 30)))
            case "disk is full":
                self._cluster.store.full_until_ms = world.now_ms + random.choice((100, 300, 600))
            case "wall clock jumps":
                process = random.choice([master, *incarnation.slots])
                process.wall_skew_ms += random.choice((-3_600_000, -2_000, 2_000, 3_600_000))
            case "rescale":
                self._rescale(master)
            case "Spark has no room for further slots":
                incarnation.room_at_ms = world.now_ms + random.choice((30, 100, math.inf))
            case "somebody stops the job":
                self._stop(incarnation, trigger_lost=random.random() < 0.4)
            case "cancel":
                world.after(0.0, master, "cancel", master.cancel)

    def _stop(self, incarnation: Incarnation, trigger_lost: bool) -> None:
        """Asks a JobMaster to stop the job behind a last epoch, as soon as it runs. If a trigger is lost, it can't.

        Nobody stops a job that has finished: one that sleeps may begin to run it again, and nobody would start it once
        more after the stop.
        """
        world, master = self._world, incarnation.master
        if self._cluster.finished or not master.alive or master.outcome is not None:
            return
        if master.job.phase is not Phase.RUNNING:
            world.after(3.0, None, "somebody asks again for a stop", lambda: self._stop(incarnation, trigger_lost))
            return
        if trigger_lost and incarnation.slots:
            world.random.choice(incarnation.slots).link.lose_next = "Trigger"
        world.after(0.0, master, "is asked to stop", master.stop)

    def _rescale(self, master: MasterProcess) -> None:
        """Asks for another parallelism: of all operators, or of one; some requests change nothing."""
        random = self._world.random
        number = random.choice((1, 2, 3))
        wanted = Scaling(number)
        if random.random() < 0.3:
            uids = [uid for vertex in master.job.execution.graph.vertices for uid in vertex.uids if uid != "source"]
            wanted = Scaling(None, {random.choice(uids): number})
        self._world.after(0.0, master, f"is asked to rescale to {wanted}", lambda: master.rescale(wanted))

    def _silence(self, one: SlotProcess, others: list[SlotProcess]) -> None:
        """Silences the link between a slot and another one, in one direction or in both."""
        random = self._world.random
        if not others:
            return
        other = random.choice(others)
        until_ms = self._world.now_ms + random.choice((0, 30, 100, 250))
        late = random.random() < 0.3
        for source, target in random.choice((((one, other),), ((one, other), (other, one)))):
            self._cluster.network.silence(SilentLink(source, target, until_ms, late))

    def _light(self, process: Process) -> None:
        random = self._world.random
        process.doom = random.choice(DOOMS)
        process.fuse = random.randrange(4 if process.doom else 40)
