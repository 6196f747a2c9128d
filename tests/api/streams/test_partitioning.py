"""Exchanges between two operators (A4): what they set, and what is refused."""

import polars as pl
import pytest

from engine.api import JobError, StreamEnvironment, WatermarkStrategy
from tests.api.streams.test_placement import parallelisms, views

STRATEGY = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("ts")


@pytest.mark.promise("A4", "A9")
def test_behind_an_exchange_an_operator_has_the_environment_s_parallelism() -> None:
    env = StreamEnvironment(parallelism=3)
    one = views(env, splits=1)
    one.where(pl.col("n") > 0).forward().select("app").print(uid="a")
    one.rebalance().select("app").print(uid="b")
    assert parallelisms(env) == {"views": 1, "where-1": 1, "select-2": 1, "a": 1, "select-4": 3, "b": 3}


@pytest.mark.promise("A4")
def test_two_exchanges_in_a_row_are_refused() -> None:
    stream = views(StreamEnvironment())
    with pytest.raises(
        JobError, match=r"rebalance is followed by key_by\(app\): only one exchange can lie between two"
    ):
        stream.rebalance().key_by("app")
    with pytest.raises(
        JobError, match="shuffle is followed by broadcast: only one exchange can lie between two operators"
    ):
        stream.shuffle().broadcast()


@pytest.mark.promise("A4")
def test_a_custom_partitioner_needs_columns_that_can_be_keys() -> None:
    stream = views(StreamEnvironment())
    with pytest.raises(JobError, match="partition_custom needs at least one column"):
        stream.partition_custom(lambda key, n: 0)
    with pytest.raises(JobError, match="partition_custom: there is no column 'user'; the stream has"):
        stream.partition_custom(lambda key, n: 0, "user")
    with pytest.raises(JobError, match=r"partition_custom\('tags'\): a column of type list<.*> cannot be a key"):
        stream.partition_custom(lambda key, n: 0, "tags")


@pytest.mark.promise("A4", "B1")
def test_timestamps_behind_an_exchange_are_not_assigned_by_the_source() -> None:
    env = StreamEnvironment()
    views(env).rebalance().assign_timestamps_and_watermarks(STRATEGY).print(uid="out")
    assert [node.uid for node in env.graph.nodes] == ["views", "views.timestamps", "out"]
