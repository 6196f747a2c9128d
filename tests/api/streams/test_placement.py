"""Parallelism and slots of one operator (A9): what is set where, and what is refused."""

import pytest

from engine.api import JobError, StreamEnvironment, TumblingEventTimeWindows, WatermarkStrategy, count
from engine.connectors.generator import GeneratorSource
from engine.connectors.table import TableSink

SCHEMA = "app string, n long, ts timestamp, tags array<string>"
STRATEGY = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("ts")


def views(env: StreamEnvironment, splits: int = 2):
    return env.from_source(GeneratorSource(lambda n: {}, splits=splits), SCHEMA, uid="views")


def parallelisms(env: StreamEnvironment) -> dict[str, int]:
    return {node.uid: node.parallelism for node in env.graph.nodes}


@pytest.mark.promise("A9")
def test_an_operator_s_own_parallelism_goes_before_the_environment_s_and_the_submission_s() -> None:
    """The seeds' example: the source and print at 1, the sum at whatever the job is submitted with."""
    for submitted in (8, 16):
        env = StreamEnvironment(parallelism=submitted)
        views(env).set_parallelism(1).key_by("app").sum("n", uid="sum").print(uid="out").set_parallelism(1)
        assert parallelisms(env) == {"views": 1, "sum": submitted, "out": 1}
    env = StreamEnvironment(parallelism=8)
    env.set_parallelism(5)
    views(env).key_by("app").sum("n", uid="sum").set_parallelism(3).print(uid="out")
    assert parallelisms(env) == {"views": 2, "sum": 3, "out": 3}


@pytest.mark.promise("A9")
def test_after_a_window_it_is_the_window_s_parallelism_that_is_set() -> None:
    env = StreamEnvironment(parallelism=2)
    windows = views(env).assign_timestamps_and_watermarks(STRATEGY).set_parallelism(1).key_by("app")
    counted = windows.window(TumblingEventTimeWindows.of("1 s")).aggregate(pv=count(), uid="pv")
    counted.set_parallelism(4).slot_sharing_group("windows").sink_to(TableSink("pv"), uid="out")
    assert parallelisms(env) == {"views": 1, "pv.combine": 1, "pv": 4, "out": 4}
    groups = {node.uid: node.slot_sharing_group for node in env.graph.nodes}
    assert groups == {"views": "default", "pv.combine": "default", "pv": "windows", "out": "windows"}


def test_what_is_placed_too_late_or_wrongly_is_told_what_to_do() -> None:
    env = StreamEnvironment()
    stream = views(env)
    with pytest.raises(JobError, match="the parallelism must be at least 1, not 0"):
        stream.set_parallelism(0)
    with pytest.raises(
        JobError, match="source 'views' has 2 splits, so at parallelism 3 some subtasks would read noth"
    ):
        stream.set_parallelism(3)
    with pytest.raises(JobError, match="the slot sharing group of 'views' needs a name"):
        stream.slot_sharing_group("")
    with pytest.raises(JobError, match=r"set_parallelism\(2\) cannot follow rebalance: call it on the operator"):
        stream.rebalance().set_parallelism(2)
    stream.print(uid="out")
    for call in (lambda: stream.set_parallelism(1), lambda: stream.slot_sharing_group("a")):
        with pytest.raises(JobError, match="comes too late: 'out' already follows 'views'; call it before"):
            call()
