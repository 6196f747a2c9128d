"""Simulated upgrades of a running job, by the real decisions of `engine/protocol/upgrading.py`: `run_switch(seed)`.

A person upgrades a job whose state, table and operators change. The new version is good, raises at its first record or
at its first checkpoint, or never gets a slot. The command dies at random moments and is given again; supervisors die
and leave their JobMasters dead or asleep; people cancel the job; all other faults of the seed happen as well.
`run_switch(seed)` raises a Violation.

no_return  no epoch of the old version follows one of the new
verdict    a good version takes over unless something else happened; one that raises or hangs never publishes
exact      the table has every record once, and the counts of each key have no gap, whichever versions wrote them
state      what the old version kept is there in the new one, with the default of the new field
ends       the upgrade is over in the end, and the version that it names finishes the job
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from unittest.mock import patch

import msgspec
import pyarrow as pa

from engine.api import CheckpointingMode, KeyedProcessFunction, MapFunction, StreamEnvironment, ValueStateDescriptor
from engine.connectors.generator import GeneratorSource
from engine.connectors.table import TableSink, read_table
from engine.connectors.table import log as table_log
from engine.core.errors import StoreError
from engine.core.functions import ProcessContext, Row, RuntimeContext
from engine.graph.execution_graph import ExecutionGraph
from engine.graph.job_graph import JobGraph
from engine.jobmaster.actions import Outcome
from engine.jobmaster.master import Phase as MasterPhase
from engine.protocol import ledger
from engine.protocol.config import CheckpointConfig
from engine.protocol.epoch_records import LogRecord, RecordKind
from engine.protocol.manifest import Manifest
from engine.protocol.upgrading import Ended, Phase, Progress, Seen, Step, Version, decide
from engine.snapshot.epoch_log import EpochLog
from tests.simulation import cluster as clusters
from tests.simulation import jobs
from tests.simulation.cluster import Cluster, Incarnation, MasterProcess
from tests.simulation.faults import STOPS, Plan, Storm, draw_plan
from tests.simulation.jobs import JobSpec
from tests.simulation.ports import Network
from tests.simulation.simulation import LIMIT_EVENTS, LIMIT_MS
from tests.simulation.store import SimStore, StoreView
from tests.simulation.world import Process, Violation, World

ROWS, SPLITS = 400, 2
PATIENCE_MS = 500.0
PROBATION_MS = 200.0
GOOD, RAISES, RUNS_AND_RAISES, HANGS = "good", "raises", "runs and raises", "hangs"
_ENDED = {
    Outcome.FINISHED: Ended.FINISHED,
    Outcome.STOPPED: Ended.STOPPED,
    Outcome.CANCELLED: Ended.CANCELLED,
    Outcome.FAILED: Ended.FAILED,
}


class CountV1(KeyedProcessFunction):
    """Numbers the records of each key."""

    def open(self, context: RuntimeContext) -> None:
        self._state = context.get_state(ValueStateDescriptor("seen", "struct<seen: int>"))

    def process_element(self, value: Row, context: ProcessContext) -> list[Row]:
        seen = (self._state.value() or {"seen": 0})["seen"] + 1
        self._state.update({"seen": seen})
        return [{"n": value["n"], "key": value["key"], "seen": seen}]


class CountV2(KeyedProcessFunction):
    """Numbers the records of each key, and says which version has seen the key first."""

    def open(self, context: RuntimeContext) -> None:
        kind = "struct<by: string, seen: long>"
        self._state = context.get_state(ValueStateDescriptor("seen", kind, defaults={"by": "v1"}))

    def process_element(self, value: Row, context: ProcessContext) -> list[Row]:
        held = self._state.value() or {"by": "v2", "seen": 0}
        self._state.update({**held, "seen": held["seen"] + 1})
        return [{"n": value["n"], "key": value["key"], "seen": held["seen"] + 1, "by": held["by"]}]


def _raise(row: Row) -> Row:
    raise ValueError("simulated bug of the new version")


class Unsaved(MapFunction):
    """Runs well until its first checkpoint."""

    def map(self, value: Row) -> Row:
        return value

    def snapshot_state(self, checkpoint: int) -> None:
        raise ValueError("simulated bug of the new version")


def graph_of(kind: str, parallelism: int, spec: JobSpec, checkpoints: CheckpointConfig) -> JobGraph:
    """Builds the old version (kind is empty), or a new one."""
    env = StreamEnvironment(parallelism=parallelism)
    source = GeneratorSource(lambda n: jobs._columns(spec, n), splits=SPLITS, rows=ROWS)
    stream = env.from_source(source, "n long, key string, v long, ts timestamp", uid="source")
    if kind == RAISES:
        stream = stream.map(_raise)
    elif kind == RUNS_AND_RAISES:
        stream = stream.map(Unsaved())
    elif kind:
        stream = stream.map_batches(lambda batch: batch)
    function, more = (CountV2(), ", by string") if kind else (CountV1(), "")
    counted = stream.key_by("key").process(function, uid="count", schema=f"n long, key string, seen long{more}")
    counted.sink_to(TableSink("out"), uid="out")
    return env.graph.translate("job", checkpoints, jobs.RESTART, 16, kind)


@dataclass(frozen=True)
class Start:
    """A start of the job, as the run folder knows it. `ended`: how, if it has ended on purpose."""

    version: Version
    number: int
    ended: Outcome | None = None
    looked_after: bool = True


class SwitchedCluster(Cluster):
    """A cluster whose run folder belongs to the last start. That folder and the upgrade's record are durable."""

    kind: str
    parallelism: tuple[int, int]
    published: Published
    record: Progress | None = None
    folder = Start(Version.OLD, 1)
    over = False
    command: UpgradeCommand | None = None

    def begin(self) -> None:
        self._starts: dict[int, Start] = {}
        self.start()

    def execution(self, incarnation: int = 1) -> ExecutionGraph:
        start = self._starts.get(incarnation, self.folder)
        new = start.version is Version.NEW
        kind, parallelism = (self.kind, self.parallelism[1]) if new else ("", self.parallelism[0])
        return ExecutionGraph(graph_of(kind, parallelism, self.spec, self._checkpoints))

    def start(self) -> None:
        self._starts[len(self.incarnations) + 1] = self.folder
        super().start()
        if self.folder.version is Version.NEW and self.kind == HANGS:
            self.incarnations[-1].blind_slots = 1_000_000

    def is_done(self) -> bool:
        return self.finished and (self.over or self.command is None)

    def version_of(self, generation: int) -> Version:
        """Returns the version of the JobMaster that has claimed this generation."""
        owner = next(
            r.owner for r in self.published.records if r.generation == generation and r.kind is RecordKind.FENCE
        )
        return self._starts[int(owner[1:])].version if owner.startswith("m") else Version.OTHER

    @property
    def running(self) -> list[Incarnation]:
        """The JobMasters of the last start. Those of earlier starts are nobody's."""
        return [i for i in super().running if self._starts[i.number].number == self.folder.number]

    def keep_standby(self) -> None:
        """This job has no standby: the supervisor of a start ends its own with it."""

    def become(self, version: Version) -> None:
        """Begins another start, as `start_detached` does. What is left of the start before may live on."""
        self.folder, self.finished = Start(version, self.folder.number + 1), False
        self.world.hits.add(f"switch: starts {version.value}")
        self.world.after(self.world.delay(self.pace.start), None, "the supervisor starts", self._replace)

    def supervisor_dies(self) -> None:
        """Its JobMaster dies too, or sleeps through it and goes on. Nobody replaces it."""
        if self.folder.ended is not None or self.record is None or self.over:
            return
        self.folder = replace(self.folder, looked_after=False)
        self.world.hits.add("switch: a supervisor dies")
        for incarnation in self.running:
            if self.world.random.random() < 0.5:
                self.world.kill(incarnation.master, "its supervisor died")
            else:
                incarnation.master.sleep(300 * self.world.random.random())

    def stopped(self, master: MasterProcess) -> None:
        incarnation = next(i for i in self.incarnations if i.master is master)
        start = self._starts[incarnation.number]
        newest = self.published.records[-1].generation if self.published.records else 0
        replaced = master.outcome is Outcome.FAILED and master.job.attempt.generation < newest
        if start.number != self.folder.number or master.outcome is Outcome.FENCED or replaced:
            self.master_died()
            return
        self.folder = replace(self.folder, ended=master.outcome)
        may_fail = start.version is Version.NEW and self.kind in (RAISES, RUNS_AND_RAISES)
        if master.outcome is Outcome.FAILED and not may_fail:
            raise Violation("ends", f"the {start.version.value} version failed: {master.reason}")
        self.finished |= master.outcome is Outcome.FINISHED
        if master.outcome is Outcome.CANCELLED and (self.record is None or self.over):
            self.person_starts()

    def person_starts(self) -> None:
        """Somebody starts the job again after it was cancelled, or after all of its processes died."""
        if (self.folder.ended is None and self.folder.looked_after) or self.finished:
            return
        versions = [self.version_of(manifest.attempt.generation) for manifest in self.published.manifests]
        self.become(Version.NEW if Version.NEW in versions else Version.BACK)

    def master_died(self) -> None:
        if self.folder.looked_after and self.folder.ended is None:
            super().master_died()

    def _replace(self) -> None:
        if self.folder.looked_after and self.folder.ended is None:
            super()._replace()


class UpgradeCommand(Process):
    """`weir upgrade` in a process that may die. It looks, decides, writes down and takes a step, again and again."""

    def __init__(self, cluster: SwitchedCluster, number: int) -> None:
        super().__init__(cluster.world, f"upgrade{number}")
        self._cluster = cluster
        self._number = number
        self._phase: Phase | None = None
        self._since_ms = cluster.world.now_ms
        self._log = EpochLog(StoreView(cluster.store, self), cluster.paths)
        self.world.after(0.0, self, "begins", self._turn)

    def _turn(self) -> None:
        cluster, record = self._cluster, self._cluster.record
        if cluster.over:
            return
        if record is None:
            record = cluster.record = Progress(Phase.STOPPING)
        try:
            seen = self._look()
            decision = decide(record, seen, PATIENCE_MS)
            if decision.progress.phase is not self._phase:
                self._phase, self._since_ms = decision.progress.phase, self.world.now_ms
            self.touch("upgrade")  # it may die between its decision and the record, or behind the record
            cluster.record = decision.progress
            self.touch("upgrade")
            if decision.step is None:
                cluster.over = True
                self.world.hits.add(f"switch: {decision.progress.phase.value}")
                cluster.person_starts()
                return
            self.world.log(f"  {self.name}: {decision.progress.phase.value}, {decision.step.value}")
            self._take(decision.step)
        except StoreError:
            pass  # it looks again
        self.world.after(self.world.delay(5.0), self, "looks", self._turn)

    def _look(self) -> Seen:
        start, running = self._cluster.folder, self._cluster.running
        master = running[0].master if running else None
        last = self._log.last()
        return Seen(
            version=start.version,
            runs=start.ended is None and (start.looked_after or (master is not None and not self._asleep(master))),
            up=start.ended is None and master is not None and not self._asleep(master) and is_up(master),
            ended=_ENDED[start.ended] if start.ended is not None else None,
            epoch=last.newest.epoch if last is not None and last.newest is not None else 0,
            waited_ms=self.world.now_ms - self._since_ms,
            reason=master.reason if master is not None else "",
            asked=master is not None and master.job._savepoints.stopping,
        )

    def _asleep(self, master: MasterProcess) -> bool:
        return master.paused_until_ms > self.world.now_ms

    def _take(self, step: Step) -> None:
        cluster = self._cluster
        running = cluster.running
        match step:
            case Step.STOP_OLD:
                running[0].master.stop()  # one that refuses is asked again
            case Step.START_NEW:
                cluster.become(Version.NEW)
            case Step.START_OLD:
                claimed = self._log.claim(f"{self.name}.{self.world.now_ms}")
                if claimed is not None and claimed.record.newest is not None:
                    assert cluster.record is not None
                    if claimed.record.newest.epoch == cluster.record.cut:
                        cluster.become(Version.BACK)
            case Step.CANCEL_NEW:
                for incarnation in running:
                    incarnation.master.cancel()

    def crashed(self) -> None:
        """Somebody gives the command again."""
        cluster, number = self._cluster, self._number + 1
        cluster.store.forget(self)
        cluster.world.hits.add("switch: the command dies")
        delay_ms = cluster.world.delay(20.0)
        cluster.world.after(delay_ms, None, "the command is given again", lambda: give(cluster, number))


def is_up(master: MasterProcess) -> bool:
    return master.job.phase is MasterPhase.RUNNING


def _kill_command(cluster: SwitchedCluster) -> None:
    """Lets the command die at one of its next calls."""
    if cluster.command is not None and cluster.command.alive:
        cluster.command.fuse = cluster.world.random.randrange(8)


def give(cluster: SwitchedCluster, number: int) -> None:
    if not cluster.over:
        cluster.command = UpgradeCommand(cluster, number)


class Published:
    """Keeps every record and manifest of the epoch log, in order."""

    def __init__(self, store: SimStore) -> None:
        self.records: list[LogRecord] = []
        self.manifests: list[Manifest] = []
        self.on_epoch: Callable[[int], None] = lambda epoch: None
        self._store = store
        store.on_created = self._created

    def _created(self, path: str, data: bytes) -> None:
        if not path.startswith("job/log/"):
            return
        record = msgspec.json.decode(data, type=LogRecord)
        self.records.append(record)
        if record.kind is RecordKind.EPOCH:
            assert record.newest is not None
            self.manifests.append(msgspec.json.decode(self._store.durable[record.newest.path], type=Manifest))
            self.on_epoch(record.newest.epoch)


def check(cluster: SwitchedCluster, published: Published) -> None:
    """Checks the run as a whole, when the job is finished and the upgrade is over."""
    versions = [cluster.version_of(manifest.attempt.generation) for manifest in published.manifests]
    first_new = versions.index(Version.NEW) if Version.NEW in versions else len(versions)
    if any(version is not Version.NEW for version in versions[first_new:]):
        raise Violation("no_return", f"the epochs are of {[version.value for version in versions]}")
    assert cluster.record is not None
    phase = cluster.record.phase
    read = [manifest.ledger.get(ledger.source_rows("source"), 0) for manifest in published.manifests]
    all_read = first_new > 0 and read[first_new - 1] == ROWS  # then every version just ends
    if cluster.kind != GOOD and Version.NEW in versions and not all_read:
        raise Violation("verdict", f"a version that {cluster.kind} has published an epoch")
    if cluster.kind != GOOD and phase is Phase.UPGRADED and not all_read:
        raise Violation("verdict", f"the upgrade to a version that {cluster.kind} ended {phase.value}")
    if phase is Phase.FAILED:
        raise Violation("verdict", f"no version runs: {cluster.record.reason}")
    _check_rows(read_table(_Durable(cluster.store), cluster.paths.table("out")))  # type: ignore[arg-type]


class _Durable:
    """What a reader sees of the store, without faults."""

    def __init__(self, store: SimStore) -> None:
        self._store = store

    def read(self, path: str) -> bytes:
        if path not in self._store.durable:
            raise FileNotFoundError(path)
        return self._store.durable[path]

    def list(self, path: str) -> list[str]:
        return sorted(found for found in self._store.durable if found.startswith(f"{path}/"))

    def uri(self, path: str) -> str:
        return f"mem:///{path}"


def _check_rows(rows: pa.Table) -> None:
    numbers = sorted(rows.column("n").to_pylist())
    if numbers != list(range(ROWS)):
        odd = sorted(set(numbers) ^ set(range(ROWS)))
        raise Violation("exact", f"{len(numbers)} rows of {ROWS}; {odd[:10]}")
    by_key: dict[str, list[tuple[int, str | None]]] = {}
    said = rows.column("by").to_pylist() if "by" in rows.column_names else [None] * rows.num_rows
    for key, seen, by in zip(rows.column("key").to_pylist(), rows.column("seen").to_pylist(), said, strict=True):
        by_key.setdefault(key, []).append((seen, by))
    for key, found in by_key.items():
        counts = sorted(seen for seen, _ in found)
        if counts != list(range(1, len(counts) + 1)):
            raise Violation("state", f"the counts of {key} are {counts}")
        begun_by_v1 = any(by is None for _, by in found)
        if begun_by_v1 and any(by == "v2" for _, by in found):
            raise Violation("state", f"{key} was seen by the old version, and the new one does not know")


def plan_of(seed: int) -> Plan:
    """Returns the seed's plan for this job, with epochs so frequent that the upgrade happens between them."""
    drawn = draw_plan(seed)
    return replace(
        drawn,
        spec=JobSpec("process", 2, SPLITS, ROWS, batch_rows=3),
        checkpoints=msgspec.structs.replace(
            drawn.checkpoints, mode=CheckpointingMode.EXACTLY_ONCE, interval_ms=2, min_pause_ms=0, retained=3
        ),
        pace=replace(drawn.pace, step=1.0, offload=0.5),
        blows=tuple(b for b in drawn.blows if b[1] != STOPS),  # a stop is the upgrade's own step
        user_fault=None,
    )


def run_switch(seed: int) -> SwitchedCluster:
    random = Random(f"switch {seed}")
    plan, world = plan_of(seed), World(seed)
    world.calm_ms, world.pauses = plan.storm_ms, plan.pauses
    jobs.USER_FAULT.calls_left = None
    store = SimStore(world, plan.store)
    published = Published(store)
    network = Network(world, plan.network, plan.pace.network)
    cluster = SwitchedCluster(world, plan.spec, plan.checkpoints, store, network, plan.pace, published)  # type: ignore[arg-type]
    cluster.kind = random.choice((GOOD, GOOD, RAISES, HANGS))
    if cluster.kind == RAISES and Random(f"raises {seed}").random() < 0.5:
        cluster.kind = RUNS_AND_RAISES
    cluster.parallelism = (random.choice((1, 2, 3)), random.choice((1, 2, 3)))
    cluster.published = published
    Storm(world, cluster, plan)
    begin_at, deaths = random.choice((1, 1, 2, 3)), random.choice((0, 0, 1, 2, 3))

    def on_epoch(epoch: int) -> None:
        if epoch == begin_at:
            world.after(2 * random.random(), None, "an upgrade is asked for", lambda: give(cluster, 1))

    published.on_epoch = on_epoch
    for _ in range(deaths):
        world.after(120 * random.random(), None, "the command may die", lambda: _kill_command(cluster))
    if random.random() < 0.4:
        world.after(150 * random.random(), None, "the supervisor may die", cluster.supervisor_dies)
    try:
        config = replace(clusters.MASTER_CONFIG, probation_ms=PROBATION_MS)
        with patch.object(table_log, "COMPACT_EVERY", 3), patch.object(clusters, "MASTER_CONFIG", config):
            cluster.begin()
            if not world.run(cluster.is_done, LIMIT_MS, LIMIT_EVENTS):
                raise Violation("ends", f"after {world.now_ms:.0f} ms: {cluster.record}, {cluster.folder}")
            if cluster.over:  # else the job had finished before anybody asked for an upgrade
                check(cluster, published)
    finally:
        world.close()
    return cluster
