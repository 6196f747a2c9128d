"""Runs in which a person takes savepoints, stops and drains the job: `run_savepoints(seed)`.

A person comes at random moments, among all other faults of the seed. A job that was stopped is started again; one that
was drained is over. When the job has ended, another job begins from one of the savepoints, under another name and at
another parallelism, and runs to its end. Invariants, besides all others:

savepoint  a savepoint is complete, durable and self-contained when it appears, never changes and is no epoch; one that
           was triggered is completed or failed once; none fails without a fault that explains it
stop       a job that stops has committed its newest epoch, which is its savepoint if one was asked for
drain      only a drained epoch holds the end of event time before its sources have ended; behind it there is none
begun      the job that begins from a savepoint publishes exactly what lies behind it
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from engine.core.paths import JobPaths
from engine.graph.execution_graph import ExecutionGraph
from engine.jobmaster import events
from engine.jobmaster.actions import Outcome
from engine.jobmaster.master import Phase
from engine.protocol.config import CheckpointingMode
from engine.protocol.failures import AttemptFailure, CheckpointFailure
from engine.protocol.manifest import Manifest
from engine.protocol.savepoint import SavepointRequest, StopRequest
from engine.protocol.signals import MAX_WATERMARK
from engine.runtime.operators import sink
from engine.snapshot.beginning import begin
from engine.snapshot.epoch_log import EpochLog
from engine.snapshot.savepoints import Savepoint, SavepointFolder
from engine.snapshot.statefile import checksum
from engine.state.key_hash import hash_columns
from engine.store.below import Below
from tests.simulation import jobs
from tests.simulation.cluster import MasterProcess
from tests.simulation.faults import SKIPPED, Plan, Storm, draw_plan
from tests.simulation.going_back import Command, HeldCluster
from tests.simulation.invariants import Checker, _positions, _tuples
from tests.simulation.jobs import Seen, all_positions, graph_of
from tests.simulation.ports import Network
from tests.simulation.simulation import LIMIT_EVENTS, LIMIT_MS
from tests.simulation.store import SimStore, StoreView
from tests.simulation.tables import small_bounds
from tests.simulation.world import Process, Violation, World

SECOND = "second"
RESCALED = ("windows", "late", "process", "reduce", "copy")
"""The kinds of jobs whose output does not depend on the parallelism."""
EXPLAINED = (
    "simulated",
    "already holds a savepoint",
    "does not say whether",
    "did not say whether",
    *(failure.text for failure in CheckpointFailure if failure is not CheckpointFailure.SUBSUMED),
    *(failure.text for failure in AttemptFailure),
)
"""What the reasons of failed savepoints and stops may say: each is a fault of the run."""


class SavepointChecker(Checker):
    """Checks a job that is drained or begins from a savepoint, as well."""

    def begin_from(self, manifest: Manifest, origin: Checker, written: dict[str, bytes]) -> None:
        """Takes over what is published up to the barrier of this savepoint: its job's epochs, and what it carries.

        `written` are all files of tables. What the savepoint carries may be deleted by now: if the job was restored
        from an epoch before it, it has made the same rows again, in other files.
        """
        born = [c for epoch in origin.epochs for c in epoch.commits]
        before = [c for c in born if (c.attempt, c.checkpoint) <= (manifest.attempt, manifest.checkpoint)]
        seen = Seen({name: [] for name in self._spec.tables})
        for one in {c.payload["path"]: c for c in (*before, *manifest.carried)}.values():
            rows = pq.ParquetFile(pa.BufferReader(written[one.payload["path"]])).read(use_threads=False)
            seen.tables[one.uid] += _tuples(rows)
            digest = np.add.reduce(hash_columns([column.combine_chunks() for column in rows.columns]))
            self._digests[one.uid] = (self._digests[one.uid] + int(digest)) % (1 << 64)
        self._seen = seen

    def _published(self, record: Any) -> None:
        if self.epochs and self.epochs[-1].drained:
            raise Violation("drain", f"{record.newest} follows a drained epoch")
        super()._published(record)
        manifest = self.epochs[-1]
        at_the_end = self._seen.positions == all_positions(self._spec.splits, self._spec.rows)
        if not manifest.drained and not at_the_end and MAX_WATERMARK in self._watermarks.values():
            raise Violation("drain", f"epoch {manifest.epoch} is at the end of event time, and is not drained")
        if manifest.drained and self._seen.pane_rows:
            raise Violation("drain", f"{self._seen.pane_rows} rows are in windows that did not fire")

    def check_ended(self) -> None:
        """Checks the end: a drained job has published all that it has read, any other one all that there is."""
        if not self.epochs or not self.epochs[-1].drained:
            self.check_finished()
            return
        if self.visible != len(self.epochs):
            raise Violation("commit", f"drained with {len(self.epochs)} epochs, of which {self.visible} are visible")


class SavepointCluster(HeldCluster):
    """A cluster whose job is asked for savepoints and stops. A job that was stopped is started again."""

    run: Run

    def execution(self, incarnation: int = 1) -> ExecutionGraph:
        self._graphs += 1
        return ExecutionGraph(replace(graph_of(self.spec, self._graphs, self._checkpoints), name=self.paths.job))

    def on_event(self, master: MasterProcess, event: events.AnyEvent) -> None:
        self.run.noted(master, event)

    def stopped(self, master: MasterProcess) -> None:
        newest = self._checker.records[-1] if self._checker.records else None
        current = newest is not None and master.job.attempt.generation == newest.generation
        if master.outcome is Outcome.STOPPED and current:
            self._check_stopped(master)
        if newest is not None:
            super().stopped(master)
        else:
            self.master_died()  # it was cancelled before it claimed the job

    def _check_stopped(self, master: MasterProcess) -> None:
        checker = self._checker
        if checker.visible < len(checker.epochs):
            raise Violation("stop", f"{master.name} stops, and epoch {len(checker.epochs)} is not committed")
        drained = checker.epochs[-1].drained
        self.world.hits.add("stop: drained" if drained else "stop: behind a last epoch")
        self.finished = drained


class Person:
    """Asks for savepoints and stops at the times that the seed says."""

    def __init__(self, run: Run, random: Random) -> None:
        self._run = run
        self._random = random
        self._count = 0
        self._skips = any(blow == SKIPPED for _, blow in run.plan.blows)  # then younger checkpoints may overtake
        for _ in range(random.choice((1, 2, 2, 3, 4))):
            run.world.after(60 * random.random(), None, "a person comes", self._come)

    def _come(self) -> None:
        """Asks the JobMaster that runs. One that is asleep or starts is not asked."""
        cluster, way = self._run.cluster, self._random.choice(("savepoint",) * 4 + ("stop", "stop", "drain"))
        request = self._request()
        for incarnation in cluster.running[:1]:
            master = incarnation.master
            wanted = request if self._random.random() < 0.7 else None
            stop = StopRequest(way == "drain", wanted)
            ask = partial(self._ask, master, request if way == "savepoint" else stop)
            self._run.world.after(0.0, master, f"is asked for a {way}", ask)

    def _ask(self, master: MasterProcess, request: SavepointRequest | StopRequest) -> None:
        job, world = master.job, self._run.world
        if job.phase is not Phase.RUNNING:
            world.after(3 * self._random.random(), None, "a person comes again", self._come)
        elif isinstance(request, SavepointRequest):
            if self._skips and master.slots and self._random.random() < 0.7:
                self._random.choice(master.slots).link.lose_next = "Trigger"
            master._do(lambda: job.trigger_savepoint(request, world.now_ms)[1])
        else:
            master._do(lambda: job.stop(request, world.now_ms)[1])

    def _request(self) -> SavepointRequest:
        """Some go to a folder of their own, and rarely two to the same."""
        self._count += 1
        name = self._random.choice((f"s{self._count}", f"s{self._count}", f"s{self._count}", "s1"))
        return SavepointRequest(name, f"elsewhere/{name}" if self._random.random() < 0.5 else "")


@dataclass
class SavepointResult:
    seed: int
    violation: Violation | None
    hits: frozenset[str]
    trace: list[str]


class Run:
    def __init__(self, seed: int) -> None:
        self.random = Random(f"savepoints {seed}")
        self.plan = _plan(seed)
        self.world = World(seed)
        self.world.calm_ms = self.plan.storm_ms
        self.world.pauses = self.plan.pauses
        self.store = SimStore(self.world, self.plan.store)
        self.heads: dict[str, Savepoint] = {}  # by folder
        self.written: dict[str, bytes] = {}  # every file that was written to a table
        self._write, self.store.write = self.store.write, self._written  # type: ignore[method-assign]
        self._open: Counter[tuple[str, str]] = Counter()  # by JobMaster and place: savepoints that are not settled
        self.checker = SavepointChecker(self.store, self.plan.spec, self.plan.checkpoints)
        self.cluster = self._cluster(self.plan, self.checker, "job", 1)
        self.second: SavepointChecker | None = None
        self.store.on_created, self.store.on_deleted = self._created, self._deleted
        Storm(self.world, self.cluster, self.plan)
        Person(self, self.random)

    def _cluster(self, plan: Plan, checker: SavepointChecker, job: str, first: int) -> SavepointCluster:
        network = Network(self.world, plan.network, plan.pace.network)
        cluster = SavepointCluster(self.world, plan.spec, plan.checkpoints, self.store, network, plan.pace, checker)
        cluster.run = self
        cluster.name_it(job, first)
        return cluster

    # --- what the store and the JobMasters tell ---

    def _written(self, path: str, data: bytes, process: Process) -> None:
        if path.endswith(".parquet"):
            self.written[path] = data
        self._write(path, data, process)

    def _created(self, path: str, data: bytes) -> None:
        if path.endswith("/savepoint.json"):
            self._appeared(path.removesuffix("/savepoint.json"), msgspec.json.decode(data, type=Savepoint))
        elif path.startswith("job/"):
            self.checker._created(path, data)
        elif self.second is not None and path.startswith(f"{SECOND}/"):
            self.second._created(path, data)

    def _deleted(self, path: str) -> None:
        for folder, head in self.heads.items():
            writer = head.manifest.split("/", 1)[0]
            if path == f"{folder}/savepoint.json" or path.startswith(f"{folder}/{writer}/"):
                raise Violation("savepoint", f"{path} of a savepoint is deleted")
        checker = self.checker if path.startswith("job/") else self.second
        if checker is not None:
            checker._deleted(path)

    def _appeared(self, folder: str, head: Savepoint) -> None:
        """Checks a savepoint at the moment at which it appears."""
        if folder in self.heads:
            raise Violation("savepoint", f"{folder} is replaced")
        manifest = self._manifest(folder, head)
        for state in manifest.subtasks:
            for file in state.files:
                self._durable(f"{folder}/{file.path}", file.checksum)
        for path, expected in head.inputs.items():
            self._durable(f"{folder}/{path}", expected)
        newest = len(self.checker.epochs)
        if head.stopped and (head.epoch != manifest.epoch or self.checker.visible < head.epoch):
            raise Violation(
                "stop", f"{folder} is epoch {head.epoch}, and {self.checker.visible} of {newest} are visible"
            )
        taken = (manifest.attempt, manifest.checkpoint)
        if not head.stopped and any((epoch.attempt, epoch.checkpoint) == taken for epoch in self.checker.epochs):
            raise Violation("savepoint", f"{folder} is epoch {newest} as well")
        self.heads[folder] = head
        self.world.hits.add("savepoint: of a stop" if head.stopped else "savepoint: completed")

    def _manifest(self, folder: str, head: Savepoint) -> Manifest:
        return msgspec.json.decode(self._durable(f"{folder}/{head.manifest}", head.checksum), type=Manifest)

    def _durable(self, path: str, expected: str) -> bytes:
        data = self.store.durable.get(path)
        if data is None or path in self.store.cached or checksum(data) != expected:
            raise Violation("savepoint", f"{path} of a savepoint is not durable, or not what was written")
        return data

    def noted(self, master: MasterProcess, event: events.AnyEvent) -> None:
        match event:
            case events.SavepointTriggered(place=place):
                self._open[master.name, place] += 1
            case events.SavepointCompleted(place=place):
                self._settled(master, place, event)
            case events.SavepointFailed(place=place, reason=reason):
                if self._open[master.name, place]:  # a stop may fail before its savepoint is triggered
                    self._settled(master, place, event)
                self._explain(master, event, reason)
            case events.StopFailed(reason=reason):
                self.world.hits.add("stop: failed, and the job goes on")
                self._explain(master, event, reason)
            case events.Stopped(outcome=outcome) if outcome in (Outcome.FINISHED, Outcome.STOPPED):
                left = [place for (of, place), count in self._open.items() if of == master.name and count]
                if left and not (self.checker.epochs and self.checker.epochs[-1].drained):
                    raise Violation("savepoint", f"{master.name} ends, and {left} are neither completed nor failed")

    def _settled(self, master: MasterProcess, place: str, event: events.AnyEvent) -> None:
        if not self._open[master.name, place]:
            raise Violation("savepoint", f"{master.name} settles {place} twice: {event}")
        self._open[master.name, place] -= 1

    def _explain(self, master: MasterProcess, event: events.AnyEvent, reason: str) -> None:
        self.world.hits.add("savepoint: failed")
        replaced = master.job.attempt.generation < self.checker.records[-1].generation  # its successor sweeps its files
        if not replaced and not any(words in reason for words in EXPLAINED):
            raise Violation("savepoint", f"no fault explains: {event}")

    # --- the run ---

    def live(self) -> None:
        self.cluster.start()
        self._wait(self.cluster)
        # A JobMaster that slept may have claimed the finished job again, and a person may have stopped that one.
        while not self.cluster.finished or self.checker.visible < len(self.checker.epochs):
            self.cluster.finished = False
            self.cluster.start()
            self._wait(self.cluster)
        self.checker.check_ended()
        self._begin_another()

    def _begin_another(self) -> None:
        """Begins another job from one of the savepoints, without faults, and lets it run to its end."""
        found = {folder: self._manifest(folder, head) for folder, head in sorted(self.heads.items())}
        usable = [folder for folder, manifest in found.items() if not manifest.drained]
        if not usable:
            return
        folder = self.random.choice(usable)
        spec = self.plan.spec
        if spec.kind in RESCALED and spec.exchange != "broadcast":
            spec = replace(spec, parallelism=self.random.choice((1, 2, 3)))
        self.world.hits.add("begun: at another parallelism" if spec != self.plan.spec else "begun: at the same")
        jobs.USER_FAULT.calls_left = None
        self.world.calm_ms = self.world.now_ms  # the job may have finished before the storm did
        second = self.second = SavepointChecker(self.store, spec, self.plan.checkpoints, SECOND)
        self.store.on_created, self.store.on_deleted = self._created, self._deleted
        self.second = None  # the command makes the first record, which is not the checker's
        command = Command(self.world, "cli", lambda process: self._begin(process, folder), self.store)
        begun: list[Any] = []
        command.begin(begun.append, lambda: begun.append(None))
        self.world.run(lambda: bool(begun), self.world.now_ms + LIMIT_MS, self.world.events + LIMIT_EVENTS)
        assert begun and begun[0] is not None, "there are no faults any more"
        second.begin_from(found[folder], self.checker, self.written)
        record = EpochLog(StoreView(self.store, command), JobPaths(SECOND)).last()
        assert record is not None
        second.records.append(record)
        self.second = second
        calm = Plan(spec, self.plan.checkpoints, self.plan.pace)
        cluster = self._cluster(calm, second, SECOND, 1001)
        cluster.start()
        self._wait(cluster)
        second.check_finished()
        self._check_begun(found[folder], second)

    def _begin(self, process: Command, folder: str) -> Savepoint:
        view = StoreView(self.store, process)
        log = EpochLog(view, JobPaths(SECOND))
        return begin(SavepointFolder(Below(view, folder)), log, "cli", lambda: None, claim=False)

    def _check_begun(self, manifest: Manifest, second: SavepointChecker) -> None:
        """The first epoch of the new job begins where the savepoint was: nothing is read again."""
        read = sum(_positions(manifest, "source").values())
        if not self.plan.spec.folder and second.epochs[0].ledger.get("source:source", 0) < read:
            raise Violation("begun", f"the savepoint had read {read} records")

    def _wait(self, cluster: SavepointCluster) -> None:
        if not self.world.run(lambda: cluster.finished, self.world.now_ms + LIMIT_MS, self.world.events + LIMIT_EVENTS):
            phases = ", ".join(f"{i.name} {i.master.job.phase.name}" for i in cluster.running)
            raise Violation("finishes", f"not finished after {self.world.now_ms:.0f} ms ({phases})")
        self.world.run(lambda: not cluster.running, self.world.now_ms + 400, self.world.events + 5_000)


def _plan(seed: int) -> Plan:
    """A plan of the usual kind, in which every record counts once, with more records and a more patient timeout."""
    plan = draw_plan(seed)
    timeout_ms = max(plan.checkpoints.timeout_ms, 60)
    checkpoints = msgspec.structs.replace(plan.checkpoints, mode=CheckpointingMode.EXACTLY_ONCE, timeout_ms=timeout_ms)
    return replace(plan, spec=replace(plan.spec, rescaled=None, rows=2 * plan.spec.rows), checkpoints=checkpoints)


def run_savepoints(seed: int) -> SavepointResult:
    run, violation = Run(seed), None
    jobs.USER_FAULT.calls_left = run.plan.user_fault
    try:
        with small_bounds(), patch.object(sink, "ROLL_BYTES", run.plan.roll_bytes):
            run.live()
    except Violation as error:
        violation = error
        run.world.log(f"VIOLATION {error}")
    finally:
        run.world.close()
    return SavepointResult(seed, violation, frozenset(run.world.hits), run.world.trace)


def main() -> None:
    """Runs seeds: `python -m tests.simulation.savepoints FIRST COUNT`; a failing one prints its trace's end."""
    import sys

    first, count = int(sys.argv[1]), int(sys.argv[2])
    hits: Counter[str] = Counter()
    for seed in range(first, first + count):
        result = run_savepoints(seed)
        hits.update(result.hits)
        if result.violation is not None:
            print(f"seed {seed}: {result.violation}", flush=True)
    for name in sorted(name for name in hits if name.startswith(("savepoint", "stop", "begun"))):
        print(f"{hits[name]:6} {name}")


if __name__ == "__main__":
    main()
