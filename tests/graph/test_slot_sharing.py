"""Slots are shared by subtasks of different vertices, never by two of one; a group has slots of its own (A9)."""

import pytest

from engine.api import StreamEnvironment
from engine.graph.execution_graph import ExecutionGraph
from engine.protocol.ids import SubtaskId
from tests.graph.test_graph import source, translate


def seeds_example(env: StreamEnvironment, *, shared: bool = True) -> None:
    """source(1) → flat_map(2) → key_by → reduce(2) → sink(2): the last two are chained."""

    def group(name: str) -> str:
        return "default" if shared else name

    lines = source(env).set_parallelism(1)
    words = lines.flat_map(lambda row: [row]).set_parallelism(2).slot_sharing_group(group("words"))
    counted = words.key_by("app_id").sum("bytes", uid="reduce").set_parallelism(2).slot_sharing_group(group("counts"))
    counted.print(uid="sink").set_parallelism(2)


@pytest.mark.promise("A9", "A10")
def test_the_seeds_example_has_five_subtasks_in_two_slots() -> None:
    env = StreamEnvironment(parallelism=4)
    seeds_example(env)
    execution = ExecutionGraph(translate(env))
    assert [(v.uids, v.parallelism) for v in execution.graph.vertices] == [
        (["views"], 1),
        (["flat_map-1"], 2),
        (["reduce", "sink"], 2),
    ]
    assert len(execution.subtasks) == 5
    assert execution.slots == 2
    assert [[str(s) for s in execution.in_slot(slot)] for slot in range(2)] == [
        ["views[0]", "flat_map-1[0]", "reduce[0]"],
        ["flat_map-1[1]", "reduce[1]"],
    ]


@pytest.mark.promise("A9")
def test_the_seeds_example_has_five_slots_when_every_vertex_has_its_own_group() -> None:
    env = StreamEnvironment(parallelism=4)
    seeds_example(env, shared=False)
    execution = ExecutionGraph(translate(env))
    assert execution.slots == 5
    assert [[str(s) for s in execution.in_slot(slot)] for slot in range(5)] == [
        ["views[0]"],
        ["flat_map-1[0]"],
        ["flat_map-1[1]"],
        ["reduce[0]"],
        ["reduce[1]"],
    ]
    assert [execution.slot_of(subtask) for subtask in execution.subtasks] == list(range(5))


@pytest.mark.promise("A9")
def test_a_group_is_inherited_ends_a_chain_and_is_as_wide_as_its_widest_vertex() -> None:
    env = StreamEnvironment(parallelism=3)
    stream = source(env)
    stream.map(lambda row: row).slot_sharing_group("heavy").filter(lambda row: True).print(uid="a").set_parallelism(4)
    stream.print(uid="b").set_parallelism(2)
    graph = translate(env)
    assert [(v.id, v.uids, v.slot_sharing_group) for v in graph.vertices] == [
        ("views", ["views"], "default"),
        ("map-1", ["map-1", "filter-2"], "heavy"),
        ("a", ["a"], "heavy"),
        ("b", ["b"], "default"),
    ]
    execution = ExecutionGraph(graph)
    assert execution.slots == 3 + 4
    assert execution.slot_of(SubtaskId("a", 3)) == 6 and execution.slot_of(SubtaskId("b", 1)) == 1
    for slot in range(execution.slots):
        vertices = [subtask.vertex for subtask in execution.in_slot(slot)]
        assert vertices and len(set(vertices)) == len(vertices)
