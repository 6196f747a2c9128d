"""StreamGraph → JobGraph → ExecutionGraph: what is chained, how edges are wired, and when a plan is the same plan."""

import subprocess
import sys
import textwrap

import polars as pl
import pytest

from engine.api import JobError, StreamEnvironment, TumblingEventTimeWindows, WatermarkStrategy, count, total
from engine.connectors.generator import GeneratorSource
from engine.connectors.table import TableSink
from engine.graph.execution_graph import ExecutionGraph
from engine.graph.job_graph import JobGraph
from engine.protocol.ids import ChannelId, SubtaskId
from engine.runtime.exchange.partitioners import FirstPartitioner, HashPartitioner

SCHEMA = "app_id string, bytes long, ts timestamp"
STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness("1 s").with_timestamps("ts")


def source(env: StreamEnvironment, splits: int = 8, uid: str = "views"):
    return env.from_source(GeneratorSource(lambda n: {}, splits=splits), SCHEMA, uid=uid)


def translate(env: StreamEnvironment, code: str = "1") -> JobGraph:
    return env.graph.translate("job", env.checkpoints, env.restart, env.max_parallelism, code)


def page_views(env: StreamEnvironment, splits: int = 8) -> None:
    (
        source(env, splits)
        .assign_timestamps_and_watermarks(STRATEGY)
        .where(pl.col("bytes") > 0)
        .key_by("app_id")
        .window(TumblingEventTimeWindows.of("10 s"))
        .aggregate(pv=count(), bytes=total("bytes"), uid="pv")
        .sink_to(TableSink("pv"), uid="out")
    )


@pytest.mark.promise("A10")
def test_neighbours_without_an_exchange_are_chained_into_one_vertex() -> None:
    env = StreamEnvironment(parallelism=2)
    page_views(env)
    graph = translate(env)
    assert [(v.id, v.parallelism, [o.uid for o in v.operators]) for v in graph.vertices] == [
        ("views", 2, ["where-1", "pv.combine"]),
        ("pv", 2, ["pv", "out"]),
    ]
    (edge,) = graph.edges
    assert (edge.id, edge.source, edge.target, str(edge.exchange)) == ("views->pv", "views", "pv", "hash(app_id)")
    assert edge.schema.names[0] == "app_id"
    assert graph.vertices[0].label == "source views → where where-1 → combine pv.combine"
    assert [uid for uid, _ in graph.sinks] == ["out"]


@pytest.mark.promise("A10")
def test_a_change_of_parallelism_or_a_second_consumer_ends_a_chain() -> None:
    env = StreamEnvironment(parallelism=4)
    stream = source(env, splits=2)
    kept = stream.where(pl.col("bytes") > 0)
    kept.sink_to(TableSink("a"), uid="a")
    kept.select("app_id").sink_to(TableSink("b"), uid="b")
    graph = translate(env)
    assert [(v.id, [o.uid for o in v.operators]) for v in graph.vertices] == [
        ("views", ["where-1"]),
        ("a", ["a"]),
        ("select-3", ["select-3", "b"]),
    ]
    assert [e.id for e in graph.edges] == ["views->a", "views->select-3"]


def test_each_kind_of_edge_has_its_channels_and_its_partitioner() -> None:
    env = StreamEnvironment(parallelism=2)
    stream = source(env, splits=2)
    stream.sink_to(TableSink("raw"), uid="raw")  # forward: same parallelism, two consumers
    stream.key_by("app_id").sum("bytes", uid="sum").print(uid="out")  # hash
    graph = translate(env)
    execution = ExecutionGraph(graph)
    forward, keyed = graph.edges
    assert execution.outputs(forward, 1) == [ChannelId("views->raw", 1, 1)]
    assert execution.inputs(SubtaskId("raw", 1)) == [ChannelId("views->raw", 1, 1)]
    assert isinstance(execution.partitioner(forward, 0), FirstPartitioner)
    assert execution.outputs(keyed, 1) == [ChannelId("views->sum", 1, 0), ChannelId("views->sum", 1, 1)]
    assert execution.inputs(SubtaskId("sum", 0)) == [ChannelId("views->sum", 0, 0), ChannelId("views->sum", 1, 0)]
    assert isinstance(execution.partitioner(keyed, 0), HashPartitioner)
    assert execution.receiver(ChannelId("views->sum", 1, 0)) == SubtaskId("sum", 0)


def test_the_plan_of_a_slot_has_its_subtasks_with_their_channels_and_the_slots_of_the_receivers() -> None:
    env = StreamEnvironment(parallelism=2)
    stream = source(env, splits=2)
    stream.sink_to(TableSink("raw"), uid="raw")
    stream.key_by("app_id").sum("bytes", uid="sum").print(uid="out")
    execution = ExecutionGraph(translate(env))
    views, raw, summed = execution.plan(1).subtasks
    assert [subtask.id for subtask in (views, raw, summed)] == execution.in_slot(1)
    assert [subtask.uids for subtask in (views, raw, summed)] == [["views"], ["raw"], ["sum", "out"]]
    assert views.source is not None and not views.inputs and raw.source is None
    assert [output.channels for output in views.outputs] == [
        {ChannelId("views->raw", 1, 1): 1},
        {ChannelId("views->sum", 1, 0): 0, ChannelId("views->sum", 1, 1): 1},
    ]
    (keyed,) = summed.inputs
    assert list(keyed.channels) == execution.inputs(summed.id) and not keyed.second
    assert summed.key_groups == execution.key_groups(summed.id)
    first, again = views.outputs[1].partitioner(), views.outputs[1].partitioner()
    assert isinstance(first, HashPartitioner) and first is not again


@pytest.mark.promise("A3")
@pytest.mark.parametrize("parallelism", [1, 2, 3, 7, 128])
def test_every_input_channel_is_somebody_s_output_channel(parallelism: int) -> None:
    env = StreamEnvironment(parallelism=parallelism)
    page_views(env)
    execution = ExecutionGraph(translate(env))
    inputs = [c for subtask in execution.subtasks for c in execution.inputs(subtask)]
    outputs = [
        channel
        for edge in execution.graph.edges
        for sender in range(execution.graph.vertex(edge.source).parallelism)
        for channel in execution.outputs(edge, sender)
    ]
    assert sorted(inputs) == sorted(outputs)
    assert len(set(inputs)) == len(inputs)
    groups = [g for index in range(parallelism) for g in execution.key_groups(SubtaskId("pv", index))]
    assert groups == list(range(128))


# --- fingerprints ---


def fingerprint(
    parallelism: int = 2,
    code: str = "1",
    interval: str | None = None,
    where: bool = False,
    exchange: str = "forward",
    group: str = "default",
) -> str:
    env = StreamEnvironment(parallelism=parallelism)
    if interval:
        env.enable_checkpointing(interval)
    stream = source(env)
    if where:
        stream = stream.where(pl.col("bytes") > 0)
    summed = getattr(stream, exchange)().select("app_id", "bytes").key_by("app_id").sum("bytes", uid="sum")
    summed.slot_sharing_group(group).print(uid="out")
    return translate(env, code).fingerprint


def test_the_same_job_has_the_same_fingerprint() -> None:
    assert fingerprint() == fingerprint()


def test_whatever_a_slot_would_run_differently_changes_the_fingerprint() -> None:
    variants = [
        fingerprint(),
        fingerprint(parallelism=3),
        fingerprint(code="2"),
        fingerprint(interval="1 s"),
        fingerprint(where=True),
        fingerprint(exchange="rebalance"),
        fingerprint(exchange="shuffle"),
        fingerprint(group="sums"),
    ]
    assert len(set(variants)) == len(variants)


def test_the_fingerprint_is_the_same_in_another_process() -> None:
    program = textwrap.dedent(
        """
        from tests.graph.test_graph import fingerprint
        print(fingerprint(interval="1 s", where=True))
        """
    )
    other = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "1"}
    )
    assert other.stdout.strip() == fingerprint(interval="1 s", where=True)


def test_the_stream_graph_can_be_imported_before_the_api() -> None:
    subprocess.run([sys.executable, "-c", "import engine.graph.stream_graph"], check=True, capture_output=True)


# --- mistakes ---


def test_a_job_without_a_source_or_without_a_sink_is_told_what_to_add() -> None:
    with pytest.raises(JobError, match=r"the job has no source: begin with env.from_source\(...\)"):
        translate(StreamEnvironment())
    env = StreamEnvironment()
    source(env).where(pl.col("bytes") > 0)
    with pytest.raises(
        JobError,
        match=r"nothing follows 'where-1' \(test_graph.py, line \d+\): end the stream with sink_to\(...\) or print\(\)",
    ):
        translate(env)


def test_a_uid_is_required_and_unique() -> None:
    env = StreamEnvironment()
    with pytest.raises(JobError, match="a source needs a uid: state is found by it"):
        source(env, uid="")
    stream = source(env)
    with pytest.raises(
        JobError,
        match=r"two operators have the uid 'views' \(the first: \w+.py, line \d+\); uids must be unique within a job",
    ):
        source(env)
    with pytest.raises(JobError, match="sink needs a uid"):
        stream.sink_to(TableSink("t"), uid="")


def test_two_sinks_may_not_write_to_one_table() -> None:
    env = StreamEnvironment()
    stream = source(env)
    stream.sink_to(TableSink("pv"), uid="a")
    stream.sink_to(TableSink("pv"), uid="b")
    with pytest.raises(
        JobError,
        match=r"the sinks 'a' and 'b' \(test_graph.py, line \d+\) both write to the table 'pv': give each its own",
    ):
        translate(env)


def test_more_subtasks_than_key_groups_are_told_before_anything_runs() -> None:
    env = StreamEnvironment(parallelism=8)
    env.max_parallelism = 4
    page_views(env)
    with pytest.raises(JobError, match=r"'views' \(\w+.py, line \d+\): parallelism 8 is more than max_parallelism 4"):
        translate(env)
