"""Simulated runs in which the job is rescaled while it runs, beside all other faults of the seed.

One to four times somebody asks for another parallelism, of all operators or of one. In some seeds Spark has no room for
further slots, for a while or for ever. The parallelism that was saved is what every later JobMaster must begin with,
and no parallelism but the first one starts that was not proved.

`run_failing_proofs`: besides, a restore at another parallelism loses a row, so the proof fails, and mostly the
JobMaster dies in the next moments. The job must go on at the old parallelism, with all rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, cast
from unittest.mock import patch

import msgspec

import engine.jobmaster.rescaling as rescaling_module
import engine.runtime.slot as slot_module
from engine.core.errors import Fenced, StoreError
from engine.graph.execution_graph import ExecutionGraph
from engine.graph.scalable import ScalableJob, SlotPlans
from engine.jobmaster import events
from engine.jobmaster.rescaling import Scale, parallelism_of
from engine.protocol.messages import Deploy, MasterMessage, Start
from engine.protocol.scaling import Scaling
from engine.protocol.state_proof import Proof, SubtaskDigests
from engine.runtime.plan import SlotPlan
from engine.snapshot.restore import Restored
from tests.simulation import cluster as clusters
from tests.simulation.cluster import Cluster, Incarnation, MasterProcess
from tests.simulation.faults import STORM_MS, Plan, draw_plan
from tests.simulation.jobs import job_of
from tests.simulation.ports import NetworkFaults
from tests.simulation.simulation import Result, run
from tests.simulation.world import Violation

SLOTS_TIMEOUT_MS = 60.0
FIRST_RECORD_MS = 30.0
LONGER = 3.0
"""A rescale takes as long as several checkpoints, so these storms are longer than others."""
RESCALE, NO_ROOM = "rescale", "Spark has no room for further slots"
DIES_AFTER_PROOF = "rescale: the JobMaster dies after a failed proof"
GOES_BACK = "rescale: goes back after a failed proof"


class RescalingCluster(Cluster):
    """A cluster whose job can be rescaled. It keeps the parallelism that is durable."""

    def __init__(self, *rest: Any) -> None:
        super().__init__(*rest)
        self._starts: dict[int, Scaling] = {}
        self._proved: list[Mapping[str, int]] = []

    saved = Scaling()

    def scalable(self) -> ScalableJob:
        self._graphs += 1
        return job_of(self.spec, self._graphs, self._checkpoints)

    def execution(self, incarnation: int = 1) -> ExecutionGraph:
        return ExecutionGraph(self.scalable().at(self._started_at(incarnation)))

    def _started_at(self, incarnation: int) -> Scaling:
        """Returns the scaling that a JobMaster read when it was started. It may be another when it claims the job."""
        return self._starts.setdefault(incarnation, self.saved)

    def slot_plans(self, incarnation: int) -> tuple[Callable[[Deploy], SlotPlan], str]:
        job = self.scalable()
        return SlotPlans(job), job.at(self._started_at(incarnation)).fingerprint

    def scale(self, master: MasterProcess) -> Scale | None:
        started_at = self._started_at(master._incarnation.number)
        return Scale(started_at, self.scalable().at, lambda scaling: self._save(master, scaling), lambda: self.saved, 4)

    def task_number(self, index: int) -> int:
        return index - 1  # tasks that a rescale asks for are given theirs

    def _save(self, master: MasterProcess, scaling: Scaling) -> None:
        master.touch("write")
        if self._newest_generation() > master.job.attempt.generation:
            raise Fenced("another JobMaster runs this job")
        if self.world.chance(self.store.faults.error):
            self.world.hits.add("rescale: the parallelism can't be saved")
            raise StoreError("simulated: can't write launch.json")
        self.saved = scaling
        master.touch("sync")

    def _newest_generation(self) -> int:
        return self._checker.records[-1].generation if self._checker.records else 0

    # --- invariants ---

    def on_send(self, incarnation: Incarnation, session: str, message: MasterMessage) -> None:
        if isinstance(message, Deploy):
            slot = next((slot for slot in incarnation.slots if slot.session == session), None)
            if slot is not None and slot.number in incarnation.released:
                raise Violation("released", f"{slot.name}, which was released, is deployed to")
        if isinstance(message, Start) and incarnation.master.job.attempt.generation >= self._newest_generation():
            self._check_start(incarnation.master)

    def _check_start(self, master: MasterProcess) -> None:
        now, parallelism = master.job._rescaler.now.scaling, parallelism_of(master.job.execution)
        if now != self.saved:
            raise Violation("rescale_durable", f"{master.name} starts at {now}, {self.saved} was saved")
        if now == Scaling():
            self._proved.append(parallelism)
        if parallelism not in self._proved:
            raise Violation("rescale_proved", f"{master.name} starts at {now}, whose state was never compared")

    def on_proof(self, parallelism: Mapping[str, int], proof: Proof) -> None:
        if not proof.differences:
            self._proved.append(parallelism)

    def on_event(self, master: MasterProcess, event: events.AnyEvent) -> None:
        if master.job.attempt.generation < self._newest_generation():
            return  # it was replaced and does not know it yet
        now = master.job._rescaler.now.scaling
        match event:
            case events.RescaleStarted():
                self.world.hits.add(f"rescale: {'up' if event.slots_after > event.slots_before else 'down or same'}")
            case events.Rescaled():
                self.world.hits.add("rescale: completed" if event.pause_ms is not None else "rescale: no record came")
                if event.digest_before != event.digest_after:
                    raise Violation("state_proof", f"rescale {event.rescale} completed with other state: {event}")
            case events.RescaleFailed():
                self.world.hits.add(f"rescale: failed, {event.why.split(':')[0][:24]}")
                if event.digest_before != event.digest_after:
                    self.on_difference(event)
            case events.Claimed() if self.saved != now:
                self.world.hits.add("rescale: the job was rescaled after this JobMaster was started")

    def on_difference(self, event: events.RescaleFailed) -> None:
        raise Violation("state_proof", f"the engine itself refuses what was restored: {event.why}")


class FailingProofs(RescalingCluster):
    """Restores at another parallelism lose a row. Mostly the JobMaster that notices it dies in the next moments."""

    def __init__(self, *rest: Any) -> None:
        super().__init__(*rest)
        self._random = Random(f"failing proofs {self.world.seed}")

    def on_proof(self, parallelism: Mapping[str, int], proof: Proof) -> None:
        super().on_proof(parallelism, proof)
        if proof.differences and self._random.random() < 0.7:
            master = self.running[-1].master
            kill = partial(self.world.kill, master, "the proof has failed")
            self.world.after(6 * self._random.random(), master, "dies", kill)
            self.world.hits.add(DIES_AFTER_PROOF)

    def on_difference(self, event: events.RescaleFailed) -> None:
        self.world.hits.add(GOES_BACK)


def losing_a_row() -> Callable[[Any, Any, Any], Restored]:
    """Returns a restore that reads a file from its second row on if the subtask has another parallelism than before."""
    restore = slot_module.restore

    def losing(log: Any, ref: Any, wanted: Any) -> Restored:
        restored = restore(log, ref, wanted)
        written = Counter(state.subtask.vertex for state in log.read_manifest(ref).subtasks)
        for (subtask, _), tables in restored.tables.items():
            parallelism = next(want.parallelism for want in wanted if want.subtask == subtask)
            if parallelism != (written[subtask.vertex] or parallelism):
                tables[0] = (tables[0][0], tables[0][1].slice(1))
        return restored

    return losing


def draw_rescales(seed: int) -> Plan:
    plan = draw_plan(seed)
    random = Random(f"rescales {seed}")
    spec = plan.spec
    if spec.kind == "rules":  # its oracle counts the rules that each subtask took
        spec = replace(spec, kind="buffered")
    if spec.exchange in ("broadcast", "forward"):  # one copies records to each subtask, the other can't be rescaled
        spec = replace(spec, exchange="")
    spec = replace(spec, rows=random.choice((96, 144)))
    blows = [(LONGER * time_ms, blow) for time_ms, blow in plan.blows if random.random() < 0.6]
    blows += [(LONGER * (0.1 + 0.9 * random.random()) * STORM_MS, RESCALE) for _ in range(random.choice((1, 2, 3, 4)))]
    if random.random() < 0.1:
        blows.append((LONGER * random.random() * STORM_MS / 2, NO_ROOM))
    network = plan.network if random.random() < 0.3 else NetworkFaults(message_repeated=plan.network.message_repeated)
    store = plan.store if random.random() < 0.5 else replace(plan.store, error=0.0, sync_failed=0.0)
    checkpoints = msgspec.structs.replace(plan.checkpoints, timeout_ms=max(60, plan.checkpoints.timeout_ms))
    return replace(
        plan,
        spec=spec,
        blows=tuple(sorted(blows)),
        checkpoints=checkpoints,
        network=network,
        store=store,
        pace=replace(plan.pace, step=min(2.0, plan.pace.step)),
        storm_ms=LONGER * STORM_MS,
    )


def run_rescales(seed: int, of: type[RescalingCluster] = RescalingCluster) -> Result:
    config = replace(clusters.MASTER_CONFIG, slots_timeout_ms=SLOTS_TIMEOUT_MS)
    made: list[RescalingCluster] = []
    prove = rescaling_module.prove  # a planted bug may have replaced it

    def make(*rest: Any) -> RescalingCluster:
        made.append(of(*rest))
        return made[-1]

    def watched(
        before: Iterable[SubtaskDigests], after: Iterable[SubtaskDigests], parallelism: Mapping[str, int]
    ) -> Proof:
        proof = prove(before, after, parallelism)
        made[-1].on_proof(parallelism, proof)
        return proof

    with (
        patch.object(clusters, "MASTER_CONFIG", config),
        patch("engine.jobmaster.rescaling.FIRST_RECORD_MS", FIRST_RECORD_MS),
        patch.object(rescaling_module, "prove", watched),
    ):
        return run(seed, draw_rescales(seed), cast(type[Cluster], make))


def run_failing_proofs(seed: int) -> Result:
    with patch.object(slot_module, "restore", losing_a_row()):
        return run_rescales(seed, FailingProofs)
