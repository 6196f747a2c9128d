"""Which channels each kind of exchange has (A4): every receiver hears from somebody, and rescale has the fewest."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api import JobError, StreamEnvironment
from engine.connectors.table import TableSink
from engine.graph.exchange import Exchange, ExchangeKind
from engine.graph.execution_graph import ExecutionGraph
from engine.protocol.ids import SubtaskId
from engine.runtime.exchange.partitioners import (
    BroadcastPartitioner,
    CustomPartitioner,
    FirstPartitioner,
    RebalancePartitioner,
    ShufflePartitioner,
)
from tests.graph.test_graph import source, translate

PARALLELISM = st.integers(1, 12)


@pytest.mark.promise("A4")
@given(PARALLELISM, PARALLELISM)
def test_rescale_connects_neighbours_in_even_groups(senders: int, receivers: int) -> None:
    of = [Exchange(ExchangeKind.RESCALE).receivers(sender, senders, receivers) for sender in range(senders)]
    inputs = [[sender for sender in range(senders) if receiver in of[sender]] for receiver in range(receivers)]
    assert sum(map(len, of)) == max(senders, receivers), "the fewest channels there can be"
    assert all(inputs) and all(of), "nobody is left out"
    assert [*of] == sorted(of, key=lambda group: (group.start, group.stop)), "neighbours stay neighbours"
    for groups in (of, inputs):
        assert max(map(len, groups)) - min(map(len, groups)) <= 1


@pytest.mark.promise("A4")
@pytest.mark.parametrize(
    ("senders", "receivers", "expected"),
    [
        (2, 4, [[0, 1], [2, 3]]),
        (4, 2, [[0], [0], [1], [1]]),
        (2, 3, [[0, 1], [2]]),
        (3, 2, [[0], [1], [1]]),
        (3, 7, [[0, 1, 2], [3, 4], [5, 6]]),
        (3, 3, [[0], [1], [2]]),
    ],
)
def test_rescale_makes_the_groups_that_flink_makes(senders: int, receivers: int, expected: list[list[int]]) -> None:
    exchange = Exchange(ExchangeKind.RESCALE)
    assert [list(exchange.receivers(sender, senders, receivers)) for sender in range(senders)] == expected


KINDS = {
    "forward": FirstPartitioner,
    "shuffle": ShufflePartitioner,
    "rebalance": RebalancePartitioner,
    "rescale": RebalancePartitioner,
    "broadcast": BroadcastPartitioner,
    "global_": FirstPartitioner,
}


@pytest.mark.promise("A4")
@pytest.mark.parametrize("method", KINDS)
@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2), (3, 3)])
def test_the_ends_of_every_channel_agree_and_no_receiver_is_without_one(method: str, before: int, after: int) -> None:
    env = StreamEnvironment(parallelism=before)
    stream = getattr(source(env), method)()
    if method == "forward" and before != after:
        stream.sink_to(TableSink("t"), uid="out").set_parallelism(after)
        with pytest.raises(JobError, match=r"forward\(\) from 'views' \(parallelism \d\) to 'out' .*: set_parallelism"):
            translate(env)
        return
    stream.sink_to(TableSink("t"), uid="out").set_parallelism(after)
    graph = translate(env)
    if method == "forward":
        assert not graph.edges, "it may be chained"
        return
    (edge,) = graph.edges
    execution = ExecutionGraph(graph)
    inputs = [execution.inputs(SubtaskId("out", receiver)) for receiver in range(after)]
    outputs = [execution.outputs(edge, sender) for sender in range(before)]
    assert all(inputs) and sorted(c for of in inputs for c in of) == sorted(c for of in outputs for c in of)
    assert sum(map(len, outputs)) == (max(before, after) if method == "rescale" else before * after)
    assert isinstance(execution.partitioner(edge, 0), KINDS[method])
    assert execution.sender(outputs[1][0]) == SubtaskId("views", 1)


@pytest.mark.promise("A4", "A10")
@pytest.mark.parametrize("method", [method for method in KINDS if method != "forward"])
def test_an_explicit_exchange_is_never_chained_away(method: str) -> None:
    env = StreamEnvironment(parallelism=1)
    getattr(source(env), method)().where(pl.col("bytes") > 0).print(uid="out")
    graph = translate(env)
    assert [v.uids for v in graph.vertices] == [["views"], ["where-1", "out"]]
    assert [str(edge.exchange) for edge in graph.edges] == [method.rstrip("_")]


@pytest.mark.promise("A4")
def test_a_custom_partitioner_s_errors_name_the_operator_before_it() -> None:
    env = StreamEnvironment(parallelism=2)
    source(env).where(pl.col("bytes") > 0).partition_custom(lambda key, n: 0, "app_id", "bytes").print(uid="out")
    graph = translate(env)
    (edge,) = graph.edges
    partitioner = ExecutionGraph(graph).partitioner(edge, 1)
    assert str(edge.exchange) == "custom(app_id, bytes)"
    assert isinstance(partitioner, CustomPartitioner)
    assert (partitioner._uid, partitioner._subtask) == ("where-1", 1)


@pytest.mark.promise("A4")
def test_another_parallelism_without_an_exchange_is_rebalanced() -> None:
    env = StreamEnvironment(parallelism=2)
    source(env).print(uid="out").set_parallelism(3)
    assert [str(edge.exchange) for edge in translate(env).edges] == ["rebalance"]
