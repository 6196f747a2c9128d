"""The seeds' worked example (D1), number by number; docs/checkpoints.md shows it as a figure.

Topology: two partitions (TaskA0, TaskA1) → keyed by app → TaskB0 counts app0, TaskB1 counts app1. Checkpoint 100 is
triggered at the offsets (0, 10000) (1, 10005); TaskA0's barrier reaches TaskB1 late, when TaskA1 has sent up to 10200.
Fault: everything dies after the checkpoint. Checks: the snapshot's counts, and those after going on to the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from engine.api import CheckpointingMode, StreamEnvironment
from engine.connectors.printing import PrintSink
from engine.core.paths import JobPaths
from engine.core.ports import Frame
from engine.core.sources import FixedSource, SourceContext, SplitReader
from engine.graph.execution_graph import ExecutionGraph
from engine.graph.job_graph import JobGraph
from engine.protocol.credits import CHANNEL_BYTES, ChannelLimits
from engine.protocol.ids import AttemptId, ChannelId, SubtaskId
from engine.protocol.signals import MIN_WATERMARK, Barrier
from engine.runtime.deployment import Deployer, Deployment
from engine.runtime.exchange.gate import InputGate
from engine.runtime.subtask import Activity, Subtask, TakenSnapshot
from engine.snapshot.restore import Restored
from engine.state.key_groups import key_groups, subtask_of
from engine.state.key_hash import hash_columns
from tests.fakes import FakeClock, FakeOffload, MemoryStore

END = 10_400
BARRIERS = {"0": 10_000, "1": 10_005}
AHEAD = 10_200
APPS = ("app0", "app1")
MAX_PARALLELISM = 100  # with this number the key hash sends app0 to TaskB0 and app1 to TaskB1


def app_of(partition: str, offset: int) -> str:
    """At the barriers app0 has 8000 views and app1 12005; of partition 1's offsets 10005 to 10199, 45 are of app1."""
    if offset < BARRIERS[partition]:
        return "app0" if offset < 4000 else "app1"
    return "app1" if (offset - BARRIERS[partition]) % 13 < 3 else "app0"


class Partitions(FixedSource):
    def splits(self) -> Sequence[str]:
        return ["0", "1"]

    def reader(self, split: str, position: Any, context: SourceContext) -> SplitReader:
        return Partition(split, position or 0, context.schema)


class Partition(SplitReader):
    finished = False

    def __init__(self, partition: str, position: int, schema: pa.Schema) -> None:
        self._partition = partition
        self._position = position
        self._schema = schema

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        offsets = range(self._position, min(END, self._position + max_rows))
        self._position = max(offsets.stop, self._position)
        rows = [{"app": app_of(self._partition, offset), "pv": 1} for offset in offsets]
        return pa.RecordBatch.from_pylist(rows, schema=self._schema) if rows else None

    @property
    def position(self) -> int:
        return self._position


class ByHand:
    """The real subtasks of both slots, stepped one at a time in the order that the story wants."""

    def __init__(self, graph: JobGraph, attempt: int, restored: Restored | None = None) -> None:
        self.snapshots: dict[SubtaskId, TakenSnapshot] = {}
        self._deployments: list[Deployment] = []
        execution = ExecutionGraph(graph)
        for slot in (0, 1):
            deployer = Deployer(
                JobPaths("d1"),
                FakeClock(),
                self,
                FakeOffload(),
                MemoryStore(),
                lambda attempt, subtask, taken: self.snapshots.update({subtask.id: taken}),
                lambda message: None,
                batch_rows=5,
                limits=ChannelLimits(least_bytes=CHANNEL_BYTES),  # a source may read on while its receiver waits
            )
            self._deployments.append(deployer.deploy(AttemptId(1, attempt), "1d", execution.plan(slot), restored))
        for deployment in self._deployments:
            for gate in dict.fromkeys(deployment.gates.values()):
                gate.start()

    def open(self, attempt: AttemptId, channel: ChannelId, address: str, schema: pa.Schema) -> None: ...

    def close(self, attempt: AttemptId) -> None: ...

    def send(self, attempt: AttemptId, channel: ChannelId, frame: Frame) -> None:
        self._gate(channel).receive(channel, frame)

    def grant(self, attempt: AttemptId, channel: ChannelId, granted_total: int) -> None:
        if len(self._deployments) > channel.sender:
            self._deployments[channel.sender].outputs[channel].on_grant(granted_total)

    def _gate(self, channel: ChannelId) -> InputGate:
        return self._deployments[channel.receiver].gates[channel]

    def task(self, name: str) -> Subtask:
        """TaskA0, TaskA1, TaskB0, TaskB1."""
        index, source = int(name[-1]), name[-2] == "A"
        return next(s for s in self._deployments[index].subtasks if (s.source is not None) == source)

    def read(self, name: str, views: int) -> None:
        """Let a source read so many views more."""
        task = self.task(name)
        wanted = task.meter.rows_in + views
        while task.meter.rows_in < wanted:
            assert task.step() is Activity.BUSY

    def catch_up(self, *names: str) -> None:
        for name in names:
            while self.task(name).step() is Activity.BUSY:
                pass

    def counts(self) -> dict[str, int]:
        """The views per app as the counting tasks hold them now."""
        found: dict[str, int] = {}
        for name in ("TaskB0", "TaskB1"):
            for operator in self.task(name)._chain.operators:
                for part in getattr(operator.snapshot(0), "parts", ()):
                    found |= views(part.table())
        return found


def views(table: pa.Table) -> dict[str, int]:
    return {row["app"]: row["_value"]["pv"] for row in table.to_pylist()}


def job_graph(mode: CheckpointingMode) -> JobGraph:
    env = StreamEnvironment(parallelism=2)
    env.max_parallelism = MAX_PARALLELISM
    env.enable_checkpointing("3 min", mode=mode)
    pages = env.from_source(Partitions(), "app string, pv long", uid="pages")
    pages.key_by("app").sum("pv", uid="pv").sink_to(PrintSink(), uid="out")
    return env.graph.translate("d1", env.checkpoints, env.restart, env.max_parallelism, "")


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.print", lambda *_, **__: None)


def checkpoint_100(run: ByHand) -> tuple[dict[str, int], Restored]:
    """Take checkpoint 100 as the story has it; what it holds, and the same to restore from."""
    run.read("TaskA0", BARRIERS["0"])
    run.read("TaskA1", BARRIERS["1"])
    run.catch_up("TaskB0", "TaskB1")
    run.task("TaskA1").trigger(Barrier(100, 0))
    run.task("TaskA1").step()
    run.catch_up("TaskB1")
    run.read("TaskA1", AHEAD - BARRIERS["1"])  # TaskA1 goes on; TaskB1 takes what it may take
    run.catch_up("TaskB1")
    run.task("TaskA0").trigger(Barrier(100, 0))  # TaskA0 is slow: its barrier comes only now
    run.task("TaskA0").step()
    run.catch_up("TaskB0", "TaskB1")
    assert len(run.snapshots) == 4
    pv: dict[str, int] = {}
    restored = Restored()
    for subtask, taken in run.snapshots.items():
        for uid, snapshot in taken.operators.items():
            if snapshot.inline:
                restored.inline.setdefault(uid, []).append(snapshot.inline)
            for part in snapshot.parts:
                restored.tables.setdefault((subtask, uid), []).append((part.name, part.table()))
                pv |= views(part.table())
    return pv, restored


def go_on(graph: JobGraph, restored: Restored) -> dict[str, int]:
    """A new attempt, from the barriers to the end of both partitions."""
    run = ByHand(graph, 2, restored)
    for partition, offset in BARRIERS.items():
        run.read(f"TaskA{partition}", END - offset)
    run.catch_up("TaskB0", "TaskB1")
    return run.counts()


def truth() -> dict[str, int]:
    everything = [app_of(partition, offset) for partition in BARRIERS for offset in range(END)]
    return {app: everything.count(app) for app in APPS}


def test_the_story_is_told_as_the_seeds_tell_it() -> None:
    groups = key_groups(hash_columns([pa.array(APPS)]), MAX_PARALLELISM)
    assert subtask_of(groups, 2, MAX_PARALLELISM).tolist() == [0, 1], "app0 belongs to TaskB0, app1 to TaskB1"
    between = [app_of("1", offset) for offset in range(BARRIERS["1"], AHEAD)]
    assert between.count("app1") == 45


@pytest.mark.promise("D1", "D2")
def test_aligned_the_snapshot_is_of_the_offsets_and_recovery_is_exact() -> None:
    graph = job_graph(CheckpointingMode.EXACTLY_ONCE)
    pv, restored = checkpoint_100(ByHand(graph, 1))
    positions = {name: s["position"] for inline in restored.inline["pages"] for name, s in inline["splits"].items()}
    assert positions == BARRIERS
    assert pv == {"app0": 8000, "app1": 12_005}
    assert go_on(graph, restored) == truth()


@pytest.mark.promise("D1")
def test_at_least_once_app1_counts_the_records_between_its_two_barriers_twice() -> None:
    graph = job_graph(CheckpointingMode.AT_LEAST_ONCE)
    pv, restored = checkpoint_100(ByHand(graph, 1))
    assert pv == {"app0": 8000, "app1": 12_050}, "45 views after offset 10005 are in the snapshot of (1, 10005)"
    after = go_on(graph, restored)
    assert after == {"app0": truth()["app0"], "app1": truth()["app1"] + 45}


@pytest.mark.promise("D1")
def test_without_checkpoints_what_was_counted_is_lost() -> None:
    """At most once: the sources go on where they are, and nobody remembers what was counted."""
    graph = job_graph(CheckpointingMode.EXACTLY_ONCE)
    splits = {p: {"position": offset, "seen_ms": None} for p, offset in BARRIERS.items()}
    at = {"pages": [{"splits": splits, "finished": {}, "watermark": MIN_WATERMARK}]}
    after = go_on(graph, Restored(inline=at))
    assert after == {"app0": truth()["app0"] - 8000, "app1": truth()["app1"] - 12_005}
