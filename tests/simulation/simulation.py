"""One simulated run: `run(seed)` returns its result. Tests, planted bugs and the command line all use it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from engine.protocol.config import CheckpointConfig
from engine.runtime.deployment import Deployer
from engine.runtime.operators import sink
from tests.simulation import drifting, jobs
from tests.simulation.cluster import Cluster, Pace
from tests.simulation.coverage import WatchedAligner
from tests.simulation.faults import Plan, Storm, draw_plan
from tests.simulation.invariants import Checker
from tests.simulation.jobs import JobSpec
from tests.simulation.ports import Network
from tests.simulation.store import SimStore
from tests.simulation.tables import small_bounds
from tests.simulation.world import Violation, World

# The simulator promises one thread, and starting pools for tables of ten rows costs more than it saves.
pa.set_cpu_count(1)
pa.set_io_thread_count(1)

LIMIT_MS = 30_000.0
LIMIT_EVENTS = 60_000


@dataclass(frozen=True)
class Result:
    seed: int
    plan: Plan
    violation: Violation | None
    events: int
    epochs: int
    hits: frozenset[str]
    digest: str
    trace: list[str]
    rows: dict[str, jobs.Rows]
    state: dict[str, Any]
    uneven_ms: tuple[float, ...]

    @property
    def replay(self) -> str:
        return f"python -m tests.simulation.run --trace {self.seed}"


def run(seed: int, plan: Plan | None = None, of: type[Cluster] = Cluster) -> Result:
    plan = plan or draw_plan(seed)
    world = World(seed)
    world.calm_ms = plan.storm_ms
    world.hits.update(f"exchange: {name}" for name in (plan.spec.exchange, "own slots" * plan.spec.own_slots) if name)
    if plan.spec.kind in jobs.OPERATOR_STATE:
        world.hits.add(f"operator state: {plan.spec.kind}")
    if plan.spec.kind == jobs.TIMERS:
        world.hits.add("timers: two keyed inputs")
    if plan.spec.kind == jobs.JOINED:
        world.hits.add("join: two keyed inputs")
    if plan.spec.kind in (jobs.SESSIONS, jobs.PATTERN):
        world.hits.add(f"state: {plan.spec.kind}")
    if plan.spec.folder:
        world.hits.add("source: a folder that fills")
    if plan.spec.beside:
        world.hits.add("source: another consumer before event time")
    world.pauses = plan.pauses
    jobs.USER_FAULT.calls_left = plan.user_fault
    store = SimStore(world, plan.store)
    checker = Checker(store, plan.spec, plan.checkpoints)
    network = Network(world, plan.network, plan.pace.network)
    cluster = of(world, plan.spec, plan.checkpoints, store, network, plan.pace, checker)
    Storm(world, cluster, plan)
    violation = None
    rows: dict[str, jobs.Rows] = {}
    state: dict[str, Any] = {}
    aligner = Deployer._aligner  # a planted bug may have replaced it
    watched = patch.object(
        Deployer,
        "_aligner",
        lambda self, mode, channels: WatchedAligner(aligner(self, mode, channels), channels, world.hits),
    )
    try:
        drift = drifting.watched(world, plan.spec.drift_ms, plan.spec.folder)
        with watched, drift, small_bounds(), patch.object(sink, "ROLL_BYTES", plan.roll_bytes):
            _live(world, cluster)
            _settle(world, cluster, checker)
            checker.check_finished()
        rows, state = checker.final_rows(), checker.final_state()
        if plan.storm_ms and of is Cluster:
            _compare(plan, state)
    except Violation as error:
        violation = error
        world.log(f"VIOLATION {error}")
    finally:
        world.close()
    return Result(
        seed,
        plan,
        violation,
        world.events,
        len(checker.epochs),
        frozenset(world.hits),
        world.digest(),
        world.trace,
        rows,
        state,
        tuple(checker.uneven_ms),
    )


def _live(world: World, cluster: Cluster) -> None:
    cluster.start()
    if not world.run(lambda: cluster.finished, LIMIT_MS, LIMIT_EVENTS):
        phases = ", ".join(f"{i.name} {i.master.job.phase.name}" for i in cluster.running)
        raise Violation("finishes", f"not finished after {world.now_ms:.0f} ms and {world.events} events ({phases})")
    # JobMasters and slots that slept until now wake up, and must do no harm.
    limit_ms = world.now_ms + 400
    world.run(lambda: not cluster.running, limit_ms, world.events + 5_000)


def _settle(world: World, cluster: Cluster, checker: Checker) -> None:
    """Lets another JobMaster commit the last epoch, if the one that published it died before committing."""
    if checker.visible < len(checker.epochs):
        world.hits.add("commit: of the last epoch, by the next JobMaster")
        cluster.finished = False
        _live(world, cluster)


_CLEAN: dict[JobSpec, dict[str, Any]] = {}


def clean_state(spec: JobSpec) -> dict[str, Any]:
    """Returns the final state of the same job in a run without faults."""
    if spec not in _CLEAN:
        calm = run(0, Plan(spec, CheckpointConfig(interval_ms=8), Pace()))
        if calm.violation is not None:
            raise calm.violation
        _CLEAN[spec] = calm.state
    return _CLEAN[spec]


def _compare(plan: Plan, state: dict[str, Any]) -> None:
    if plan.checkpoints.mode.value != "exactly_once" or plan.spec.rescaled is not None:
        return
    clean = clean_state(plan.spec)
    if state != clean:
        names = sorted(name for name in state.keys() | clean.keys() if state.get(name) != clean.get(name))
        name = names[0]
        raise Violation("state_as_without_faults", f"{name}: {state.get(name)}, without faults {clean.get(name)}")
