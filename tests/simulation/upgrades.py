"""Simulated runs in which the job changes between incarnations: its parallelism, a stateless operator, its tables.

After some epochs all processes of the job die, and a supervisor starts the next version of the job, which may drop the
sinks that are gone. Sinks return, under their uid or another, with the columns of their table or with others: then the
job must be refused, and the version after it has the right columns. Before a version starts, a person may go back to an
older epoch. All other faults of the seed happen as well. `run_upgrades(seed)` raises a Violation.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from random import Random
from unittest.mock import patch

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from engine.api import CheckpointConfig, CheckpointingMode, StreamEnvironment
from engine.connectors.generator import GeneratorSource
from engine.connectors.table import log as table_log
from engine.graph.description import table_committer
from engine.graph.execution_graph import ExecutionGraph
from engine.graph.job_graph import JobGraph
from engine.jobmaster.actions import Outcome
from engine.protocol.epoch_records import LogRecord, RecordKind
from engine.protocol.manifest import Manifest
from engine.snapshot.epoch_log import EpochLog
from engine.snapshot.rewind import go_back
from tests.simulation import cluster as clusters
from tests.simulation import jobs
from tests.simulation.cluster import Cluster, MasterProcess
from tests.simulation.faults import Plan, Storm, draw_plan
from tests.simulation.going_back import Command
from tests.simulation.jobs import CountPerKey, JobSpec, Rows, Tag, numbers
from tests.simulation.ports import Network
from tests.simulation.simulation import LIMIT_EVENTS, LIMIT_MS
from tests.simulation.store import SimStore, StoreView
from tests.simulation.tables import Tables, small_bounds
from tests.simulation.world import Violation, World

ROWS, SPLITS = 150, 2
RETAINED = 3
TABLES = ("raw", "more", "counts")
CUTS = TABLES[:2]
"""The tables that hold each record as it is read. The other one counts per key."""


@dataclass(frozen=True)
class Version:
    parallelism: int
    stateless: bool = False
    raw: bool = True
    more: str = ""
    """The uid of the sink of the table "more"; empty: there is none."""
    strings: bool = False
    """True if the table "more" has a column of another type."""

    def changed(self, random: Random) -> Version:
        match random.choice(("parallelism", "stateless", "raw", "raw", "more", "more", "more")):
            case "parallelism":
                return replace(self, parallelism=random.choice([p for p in (1, 2, 3) if p != self.parallelism]))
            case "stateless":
                return replace(self, stateless=not self.stateless)
            case "raw":
                return replace(self, raw=not self.raw)
            case _:
                other = random.choice([uid for uid in ("", "more", "more2") if uid != self.more])
                return replace(self, more=other, strings=random.random() < 0.5)

    def graph(self, spec: JobSpec, checkpoints: CheckpointConfig) -> JobGraph:
        env = StreamEnvironment(parallelism=self.parallelism)
        source = GeneratorSource(lambda n: jobs._columns(spec, n), splits=SPLITS, rows=ROWS)
        stream = env.from_source(source, schema="n long, key string, v long, ts timestamp", uid="source")
        if self.stateless:
            stream = stream.map_batches(lambda batch: batch)
        tagged = stream.map(Tag(), schema="n long, key string, v long")
        if self.raw:
            tagged.sink_to(spec.sink("raw"), uid="raw")
        if self.more:
            kind, cast = ("string", str) if self.strings else ("long", int)
            more = tagged.map(lambda row: {**row, "v": cast(row["v"])}, schema=f"n long, key string, v {kind}")
            more.sink_to(spec.sink("more"), uid=self.more)
        counted = tagged.key_by("key").process(CountPerKey(), uid="count", schema="n long, key string, seq long")
        counted.sink_to(spec.sink("counts"), uid="counts")
        return env.graph.translate("job", checkpoints, jobs.RESTART, 16, str(self))


class Published:
    """Keeps every record and manifest of the epoch log, and checks the tables against them."""

    def __init__(self, store: SimStore) -> None:
        self.records: list[LogRecord] = []
        self.manifests: list[Manifest] = []
        self.on_epoch: Callable[[int], None] = lambda epoch: None
        self.replayed = False
        self.refused = 0
        self._visible: dict[str, int] = {}  # the epoch of each published file that no rewind has hidden
        self._store = store
        self._tables = Tables(store, "job")
        store.on_created = self._created
        store.on_deleted = self._deleted

    def _created(self, path: str, data: bytes) -> None:
        if "/_spark_metadata/" in path and not path.endswith((".json", ".checksum")):
            self._tables.on_record(path.split("/")[2])
        if not path.startswith("job/log/"):
            return
        record = msgspec.json.decode(data, type=LogRecord)
        self.records.append(record)
        known = self.manifests[-1].epoch if self.manifests else 0
        if record.newest is not None and record.newest.epoch != known:
            manifest = msgspec.json.decode(self._store.durable[record.newest.path], type=Manifest)
            self.manifests.append(manifest)
            self.replayed |= record.kind is RecordKind.REWIND and manifest.rewound_to is None
            last = manifest.epoch if manifest.rewound_to is None else manifest.rewound_to
            self._visible = {path: epoch for path, epoch in self._visible.items() if epoch <= last}
            self._visible |= {c.payload["path"]: manifest.epoch for c in manifest.commits}
            self.on_epoch(record.newest.epoch)

    def _deleted(self, path: str) -> None:
        if path in self._visible or "/_spark_metadata/" in path:
            self._tables.check_deleted(path, self._kept_epochs())

    def _kept_epochs(self) -> list[int]:
        return [manifest.epoch for manifest in self.manifests[-RETAINED:]]

    def kinds(self, name: str) -> set[str]:
        """Returns the columns of all visible files of a table; readers can read it if they are all the same."""
        files = [path for path in self._visible if path.startswith(f"job/tables/{name}/")]
        contents = [self._store.content(path) for path in files]
        return {str(pq.read_schema(pa.BufferReader(data)).remove_metadata()) for data in contents if data is not None}

    @property
    def all_read(self) -> bool:
        return bool(self.manifests) and self.manifests[-1].final

    def check(self) -> None:
        """Checks that each table has each record of the epochs in which it had a sink once, as Spark reads it."""
        read = [numbers(SPLITS, _positions(manifest)) for manifest in self.manifests]
        for name in TABLES:
            begun = [any(sink.table == name for sink in m.description.sinks) for m in self.manifests]
            if not any(begun):
                continue
            if len(self.kinds(name)) > 1:
                raise Violation("readable", f"{name} has files of {self.kinds(name)}")
            rows = list(self._rows(name))
            due = self._due(read, begun)
            got = [row[0] for row in rows]
            if sorted(got) != sorted(due):
                odd = sorted(set(got) ^ set(due))
                raise Violation("exact", f"{name} has {len(got)} rows, {len(due)} are due; {odd[:10]}")
            if name == "counts" and not self.replayed:
                _check_counts(rows)
        for before, after in pairwise(self.manifests):
            known = {sink.uid: sink.first_epoch for sink in before.description.sinks}
            for sink in after.description.sinks:
                if sink.first_epoch != known.get(sink.uid, after.epoch):
                    raise Violation("first_epoch", f"epoch {after.epoch}: {sink.uid} begins with {sink.first_epoch}")

    def _due(self, read: list[list[int]], begun: list[bool]) -> list[int]:
        """Returns the records of the epochs in which a table had a sink. A rewind takes back those of later epochs."""
        due: list[tuple[int, int]] = []
        for e, (manifest, is_in) in enumerate(zip(self.manifests, begun, strict=True)):
            if manifest.rewound_to is not None:
                due = [(epoch, n) for epoch, n in due if epoch <= manifest.rewound_to]
            elif is_in:
                due += [(manifest.epoch, n) for n in set(read[e]) - set(read[e - 1] if e else [])]
        return [n for _, n in due]

    def _rows(self, name: str) -> Iterator[tuple[object, ...]]:
        folder = f"job/tables/{name}/_spark_metadata/"
        records = {
            int(path.removeprefix(folder).removesuffix(".compact")): path
            for path in self._store.durable
            if path.startswith(folder) and path.removeprefix(folder)[0].isdigit()
        }
        compacts = sorted(number for number, path in records.items() if path.endswith(".compact"))
        if not records:
            raise Violation("commit", f"nothing of {name} was committed")
        newest, first = max(records), compacts[-1] if compacts else 0
        if len(compacts) > 1 and compacts[-1] - compacts[-2] != table_log.COMPACT_EVERY:
            raise Violation("commit", f"Spark would take {compacts[-2:]} of {name} for another interval")
        for number in range(first, newest + 1):
            if number not in records:
                raise Violation("commit", f"Spark would miss record {number} of {name}")
            for line in self._store.durable[records[number]].decode().split("\n")[1:]:
                data = self._store.durable[json.loads(line)["path"].removeprefix("mem:///")]
                rows = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
                yield from zip(*(column.to_pylist() for column in rows.columns), strict=True)


def _positions(manifest: Manifest) -> dict[str, int]:
    splits = [state.inline.get("source", {}).get("splits", {}) for state in manifest.subtasks]
    return {split: held["position"] for of_subtask in splits for split, held in of_subtask.items()}


def _check_counts(rows: Rows) -> None:
    for key in {row[1] for row in rows}:
        counts = sorted(row[2] for row in rows if row[1] == key)
        if counts != list(range(1, len(counts) + 1)):
            raise Violation("state", f"the counts of {key} are {counts}")


class ChangingCluster(Cluster):
    """A cluster whose job is replaced by its next version."""

    version: Version
    published: Published
    held = False
    """True while a person is at work: the supervisor starts nothing."""
    tries = 0

    def execution(self, incarnation: int = 1) -> ExecutionGraph:
        return ExecutionGraph(self.version.graph(self.spec, self._checkpoints))

    def become(self, version: Version) -> None:
        self.version = version
        self.slots = self.execution().slots

    def start(self) -> None:
        if not self.held:
            super().start()

    def upgrade(self, version: Version, way: str) -> None:
        """Kills all processes of the job; the supervisor starts the next version, maybe after a person went back."""
        if self.finished or self.held:
            return
        self.world.hits.add(f"upgrade: {self.version} → {version}")
        self.become(version)
        for incarnation in self.incarnations:
            for slot in list(incarnation.slots):
                self.world.kill(slot, "upgrade")
            self.world.kill(incarnation.master, "upgrade")
        self.held = bool(way) and bool(self.published.manifests)
        if self.held:
            if self.world.random.random() < 0.7:
                self._damage()
            self._go_back(way)
        else:
            self.master_died()

    def _damage(self) -> None:
        """Damages the state of the newest epoch, if the one before it can be restored."""
        files = [[f.path for s in m.subtasks for f in s.files] for m in self.published.manifests[-2:]]
        if len(files) == 2 and files[1] and all(path in self.store.durable for path in files[0]):
            self.world.log(f"  damages {files[1][0]}")
            self.store.durable[files[1][0]] = b"damaged"

    def _go_back(self, way: str) -> None:
        self.tries += 1
        owner = f"cli{self.tries}"

        def work(command: Command) -> object:
            view = StoreView(self.store, command)
            own = {uid: of.committer(view, self.paths) for uid, of in self.execution().graph.sinks}
            gone = partial(table_committer, store=view, paths=self.paths)
            return go_back(EpochLog(view, self.paths), own, gone, owner, lambda: None, hide=way == "rewind")

        def done(result: object) -> None:
            self.world.hits.add(f"went back: {way}")
            self.held = False
            self.master_died()

        def again() -> None:
            self.world.after(self.world.delay(5.0), None, f"{way} is tried again", lambda: self._go_back(way))

        Command(self.world, owner, work, self.store).begin(done, again)

    def stopped(self, master: MasterProcess) -> None:
        """Mends the version if it was refused for its columns, and it must have been."""
        if master.outcome is not Outcome.FAILED or "the table 'more' was" not in master.reason:
            super().stopped(master)
            return
        sinks = [sink for sink in self.published.manifests[-1].description.sinks if sink.table == "more"]
        kinds = {*self.published.kinds("more"), *(f"{c.name}: {c.type}" for sink in sinks for c in sink.columns)}
        if not any(f"v: {'int64' if self.version.strings else 'string'}" in kind for kind in kinds):
            raise Violation("refused", f"{self.version} was refused, and 'more' has {kinds}")
        self.published.refused += 1
        self.become(replace(self.version, strings=not self.version.strings))
        self.master_died()


def plan_of(seed: int) -> Plan:
    """Returns the seed's plan for this job, with epochs so frequent that upgrades happen between them."""
    drawn = draw_plan(seed)
    return replace(
        drawn,
        spec=JobSpec("process", 2, SPLITS, ROWS, batch_rows=3, folded=True),
        checkpoints=msgspec.structs.replace(
            drawn.checkpoints, mode=CheckpointingMode.EXACTLY_ONCE, interval_ms=2, min_pause_ms=0, retained=RETAINED
        ),
        pace=replace(drawn.pace, step=1.0, offload=0.5),
        user_fault=None,
    )


def run_upgrades(seed: int) -> Published:
    random = Random(f"upgrades {seed}")
    plan = plan_of(seed)
    world = World(seed)
    world.calm_ms, world.pauses = plan.storm_ms, plan.pauses
    jobs.USER_FAULT.calls_left = None
    store = SimStore(world, plan.store)
    published = Published(store)
    network = Network(world, plan.network, plan.pace.network)
    cluster = ChangingCluster(world, plan.spec, plan.checkpoints, store, network, plan.pace, published)  # type: ignore[arg-type]
    cluster.published = published
    cluster.become(Version(random.choice((1, 2, 3)), raw=True, more="more" if random.random() < 0.5 else ""))
    Storm(world, cluster, plan)
    due = sorted(random.sample(range(1, 6), random.choice((1, 2, 3, 4))))

    def on_epoch(epoch: int) -> None:
        """Upgrades right after some epochs: before, during or after their commits."""
        if due and epoch >= due[0]:
            due.pop(0)
            delay_ms = random.choice((0.2, 1.0, 4.0, 10.0)) * random.random()
            way = random.choice(("", "", "", "replay", "rewind"))
            world.after(delay_ms, None, "upgrade", lambda: cluster.upgrade(cluster.version.changed(random), way))

    published.on_epoch = on_epoch
    config = replace(clusters.MASTER_CONFIG, allows=lambda epoch: True)
    try:
        with patch.object(clusters, "MASTER_CONFIG", config), small_bounds():
            cluster.start()
            if not world.run(lambda: cluster.finished, LIMIT_MS, LIMIT_EVENTS) or not published.all_read:
                raise Violation("finishes", f"not finished after {world.now_ms:.0f} ms and {world.events} events")
            published.check()
    finally:
        world.close()
    return published
