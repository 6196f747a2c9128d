"""Simulated runs in which the job changes between incarnations: its parallelism, a stateless operator, its tables.

After some epochs all processes of the job die, and a supervisor starts the next version of the job, which may drop the
sinks that are gone. All other faults of the seed happen as well. `run_upgrades(seed)` raises a Violation.
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
from engine.connectors import table
from engine.connectors.generator import GeneratorSource
from engine.connectors.table import TableSink
from engine.graph.execution_graph import ExecutionGraph
from engine.graph.job_graph import JobGraph
from engine.protocol.epoch_records import LogRecord
from engine.protocol.manifest import Manifest
from tests.simulation import cluster as clusters
from tests.simulation import jobs
from tests.simulation.cluster import Cluster
from tests.simulation.faults import Plan, Storm, draw_plan
from tests.simulation.jobs import CountPerKey, JobSpec, Rows, Tag, numbers
from tests.simulation.ports import Network
from tests.simulation.simulation import LIMIT_EVENTS, LIMIT_MS
from tests.simulation.store import SimStore
from tests.simulation.world import Violation, World

ROWS, SPLITS = 150, 2
TABLES = ("raw", "more", "counts")
CUTS = TABLES[:2]
"""The tables that hold each record as it is read. The other one counts per key."""


@dataclass(frozen=True)
class Version:
    parallelism: int
    stateless: bool = False
    raw: bool = True
    more: bool = False

    def changed(self, random: Random) -> Version:
        match random.choice(("parallelism", "stateless", "raw", "raw", "more", "more")):
            case "parallelism":
                return replace(self, parallelism=random.choice([p for p in (1, 2, 3) if p != self.parallelism]))
            case "stateless":
                return replace(self, stateless=not self.stateless)
            case "raw":
                return replace(self, raw=not self.raw)
            case _:
                return replace(self, more=not self.more)

    def graph(self, spec: JobSpec, checkpoints: CheckpointConfig) -> JobGraph:
        env = StreamEnvironment(parallelism=self.parallelism)
        source = GeneratorSource(lambda n: jobs._columns(spec, n), splits=SPLITS, rows=ROWS)
        stream = env.from_source(source, schema="n long, key string, v long, ts timestamp", uid="source")
        if self.stateless:
            stream = stream.map_batches(lambda batch: batch)
        tagged = stream.map(Tag(), schema="n long, key string, v long")
        for wanted, name in ((self.raw, "raw"), (self.more, "more")):
            if wanted:
                tagged.sink_to(TableSink(name), uid=name)
        counted = tagged.key_by("key").process(CountPerKey(), uid="count", schema="n long, key string, seq long")
        counted.sink_to(TableSink("counts"), uid="counts")
        return env.graph.translate("job", checkpoints, jobs.RESTART, 16, str(self))


class Published:
    """Keeps every record and manifest of the epoch log, and checks the tables against them."""

    def __init__(self, store: SimStore) -> None:
        self.records: list[LogRecord] = []
        self.manifests: list[Manifest] = []
        self.on_epoch: Callable[[int], None] = lambda epoch: None
        self._store = store
        store.on_created = self._created
        store.on_deleted = self._deleted

    def _created(self, path: str, data: bytes) -> None:
        if not path.startswith("job/log/"):
            return
        record = msgspec.json.decode(data, type=LogRecord)
        self.records.append(record)
        known = self.manifests[-1].epoch if self.manifests else 0
        if record.newest is not None and record.newest.epoch != known:
            self.manifests.append(msgspec.json.decode(self._store.durable[record.newest.path], type=Manifest))
            self.on_epoch(record.newest.epoch)

    def _deleted(self, path: str) -> None:
        if any(c.payload["path"] == path for m in self.manifests for c in m.commits):
            raise Violation("durable", f"{path} was published and is deleted")

    @property
    def all_read(self) -> bool:
        return bool(self.manifests) and self.manifests[-1].final

    def check(self) -> None:
        """Checks that each table has each record of the epochs in which it had a sink once, as Spark reads it."""
        read = [numbers(SPLITS, _positions(manifest)) for manifest in self.manifests]
        for name in TABLES:
            begun = [any(sink.uid == name for sink in m.description.sinks) for m in self.manifests]
            if not any(begun):
                continue
            rows = list(self._rows(name))
            due = [n for e, is_in in enumerate(begun) if is_in for n in set(read[e]) - set(read[e - 1] if e else [])]
            got = [row[0] for row in rows]
            if sorted(got) != sorted(due):
                odd = sorted(set(got) ^ set(due))
                raise Violation("exact", f"{name} has {len(got)} rows, {len(due)} are due; {odd[:10]}")
            if name == "counts":
                _check_counts(rows)
        for before, after in pairwise(self.manifests):
            known = {sink.uid: sink.first_epoch for sink in before.description.sinks}
            for sink in after.description.sinks:
                if sink.first_epoch != known.get(sink.uid, after.epoch):
                    raise Violation("first_epoch", f"epoch {after.epoch}: {sink.uid} begins with {sink.first_epoch}")

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
        if len(compacts) > 1 and compacts[-1] - compacts[-2] != table.COMPACT_EVERY:
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

    def execution(self, incarnation: int = 1) -> ExecutionGraph:
        return ExecutionGraph(self.version.graph(self.spec, self._checkpoints))

    def become(self, version: Version) -> None:
        self.version = version
        self.slots = self.execution().slots

    def upgrade(self, version: Version) -> None:
        """Kills all processes of the job; the supervisor starts the next version."""
        if self.finished:
            return
        self.world.hits.add(f"upgrade: {self.version} → {version}")
        self.become(version)
        for incarnation in self.incarnations:
            for slot in list(incarnation.slots):
                self.world.kill(slot, "upgrade")
            self.world.kill(incarnation.master, "upgrade")
        self.master_died()


def plan_of(seed: int) -> Plan:
    """Returns the seed's plan for this job, with epochs so frequent that upgrades happen between them."""
    drawn = draw_plan(seed)
    return replace(
        drawn,
        spec=JobSpec("process", 2, SPLITS, ROWS, batch_rows=3),
        checkpoints=msgspec.structs.replace(
            drawn.checkpoints, mode=CheckpointingMode.EXACTLY_ONCE, interval_ms=2, min_pause_ms=0
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
    version = Version(random.choice((1, 2, 3)), raw=True, more=random.random() < 0.3)
    cluster.become(version)
    Storm(world, cluster, plan)
    due = sorted(random.sample(range(1, 6), random.choice((1, 2, 3, 4))))

    def on_epoch(epoch: int) -> None:
        """Upgrades right after some epochs: before, during or after their commits."""
        nonlocal version
        if due and epoch >= due[0]:
            due.pop(0)
            version = version.changed(random)
            delay_ms = random.choice((0.2, 1.0, 4.0, 10.0)) * random.random()
            world.after(delay_ms, None, f"upgrade to {version}", partial(cluster.upgrade, version))

    published.on_epoch = on_epoch
    config = replace(clusters.MASTER_CONFIG, allow_non_restored_state=True)
    try:
        with patch.object(clusters, "MASTER_CONFIG", config), patch.object(table, "COMPACT_EVERY", 3):
            cluster.start()
            if not world.run(lambda: cluster.finished, LIMIT_MS, LIMIT_EVENTS) or not published.all_read:
                raise Violation("finishes", f"not finished after {world.now_ms:.0f} ms and {world.events} events")
            published.check()
    finally:
        world.close()
    return published
