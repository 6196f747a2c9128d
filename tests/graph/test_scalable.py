"""A job's graph at another parallelism: who follows whom, and what a slot compares before it runs a plan."""

from __future__ import annotations

import pytest

from engine.api import StreamEnvironment
from engine.core.errors import JobError
from engine.graph.scalable import ScalableJob, SlotPlans
from engine.protocol.ids import AttemptId
from engine.protocol.messages import Deploy
from engine.protocol.scaling import AS_STARTED, Scaling
from tests.graph.test_graph import source


def job(own: int | None = None) -> ScalableJob:
    env = StreamEnvironment(parallelism=2)
    mapped = source(env).rebalance().map(lambda row: row, uid="mapped")
    if own is not None:
        mapped.set_parallelism(own)
    mapped.key_by("app_id").sum("bytes", uid="sums").print(uid="shown")
    return env.scalable("job")


def sizes(job: ScalableJob, scaling: Scaling) -> dict[str, int]:
    return {uid: vertex.parallelism for vertex in job.at(scaling).vertices for uid in vertex.uids}


@pytest.mark.promise("A9", "D7")
def test_a_parallelism_for_all_leaves_operators_that_set_their_own() -> None:
    scaled = sizes(job(own=4), Scaling(3))
    assert (scaled["mapped"], scaled["sums"], scaled["shown"]) == (4, 3, 3)


def test_a_single_operator_goes_before_its_own_code_and_those_behind_it_follow() -> None:
    scaled = sizes(job(own=4), Scaling(None, {"mapped": 1, "sums": 5}))
    assert (scaled["mapped"], scaled["sums"], scaled["shown"]) == (1, 5, 5)


def test_as_started_is_the_graph_as_written() -> None:
    assert job().at(AS_STARTED).fingerprint == job().at(Scaling(2)).fingerprint != job().at(Scaling(3)).fingerprint


def test_a_later_request_for_all_forgets_single_operators() -> None:
    first = AS_STARTED.then(Scaling(None, {"sums": 5})).then(Scaling(None, {"mapped": 3}))
    assert first == Scaling(None, {"sums": 5, "mapped": 3})
    assert first.then(Scaling(None, {"sums": 4})) == Scaling(None, {"sums": 4, "mapped": 3})
    assert first.then(Scaling(2)) == Scaling(2)
    assert first.then(Scaling(2, {"sums": 4})) == Scaling(2, {"sums": 4})
    assert str(first) == "sums=5, mapped=3" and str(Scaling(2)) == "parallelism 2" and str(AS_STARTED) == "as started"


def test_the_key_of_a_scaling_does_not_depend_on_the_order_of_requests() -> None:
    one, other = Scaling(None, {"sums": 5, "mapped": 3}), Scaling(None, {"mapped": 3, "sums": 5})
    assert one.key == other.key != Scaling(None, {"mapped": 3, "sums": 4}).key


def test_a_slot_makes_its_plan_at_the_scaling_of_the_deployment_and_refuses_another_plan() -> None:
    plans = SlotPlans(job())
    for scaling in (Scaling(3), AS_STARTED, Scaling(3)):
        fingerprint = job().at(scaling).fingerprint
        plan = plans(Deploy(AttemptId(1, 1), 1, [], None, "id", scaling, fingerprint))
        assert {subtask.parallelism for subtask in plan.subtasks} == {scaling.parallelism or 2}
    with pytest.raises(JobError, match=r"makes the plan \w+ at parallelism 3, the JobMaster made other"):
        plans(Deploy(AttemptId(1, 1), 0, [], None, "id", Scaling(3), "other"))
