"""The environment: parallelism, checkpoints, restart defaults, parameters and durations."""

import pytest

from engine.api import CheckpointingMode, ExponentialDelay, FixedDelay, JobError, NoRestart, StreamEnvironment
from engine.api.params import Params
from engine.connectors.generator import GeneratorSource
from engine.core.errors import SchemaMismatch


@pytest.mark.promise("D3")
def test_checkpointing_is_configured_by_flink_s_names() -> None:
    env = StreamEnvironment()
    assert env.checkpoints.interval_ms is None
    env.enable_checkpointing(
        "1 s", mode=CheckpointingMode.AT_LEAST_ONCE, timeout="1 min", min_pause="500 ms", max_concurrent=2, retained=5
    )
    config = env.checkpoints
    assert (config.interval_ms, config.timeout_ms, config.min_pause_ms) == (1000, 60_000, 500)
    assert (config.max_concurrent, config.retained, config.tolerable_failed) == (2, 5, 0)


def test_a_checkpoint_interval_that_can_not_be_is_the_author_s_mistake() -> None:
    with pytest.raises(JobError, match="enable_checkpointing: the checkpoint interval must be positive, not 0 ms"):
        StreamEnvironment().enable_checkpointing(0)
    with pytest.raises(JobError, match="enable_checkpointing: retained must be at least 1, not 0"):
        StreamEnvironment().enable_checkpointing("1 s", retained=0)


@pytest.mark.promise("D10")
def test_restart_defaults_to_none_without_checkpoints_and_exponential_delay_with_them() -> None:
    env = StreamEnvironment()
    assert env.restart == NoRestart()
    env.enable_checkpointing("1 s")
    assert env.restart == ExponentialDelay()
    env.set_restart_strategy(FixedDelay(3))
    assert env.restart == FixedDelay(3)


@pytest.mark.promise("A9")
def test_the_job_s_own_parallelism_goes_before_the_submitted_one() -> None:
    assert StreamEnvironment().parallelism == 2
    env = StreamEnvironment(parallelism=5)
    assert env.parallelism == 5
    env.set_parallelism(3)
    assert env.parallelism == 3


@pytest.mark.parametrize("wrong", [0, -1])
def test_a_parallelism_below_one_is_refused(wrong: int) -> None:
    with pytest.raises(JobError, match="the parallelism must be at least 1"):
        StreamEnvironment().set_parallelism(wrong)
    with pytest.raises(JobError, match="the parallelism must be at least 1"):
        StreamEnvironment(parallelism=wrong)


def test_a_source_runs_with_no_more_subtasks_than_it_has_splits() -> None:
    env = StreamEnvironment(parallelism=4)
    env.from_source(GeneratorSource(lambda n: {"n": n}, splits=3), "n long", uid="three")
    env.from_source(GeneratorSource(lambda n: {"n": n}, splits=9), "n long", uid="nine")
    assert [node.parallelism for node in env.graph.nodes] == [3, 4]


def test_parameters_have_the_type_of_their_default() -> None:
    params = Params({"rate": "5", "share": "0.5", "name": "x", "fast": "True"})
    assert params.get("rate", 1) == 5
    assert params.get("share", 1.0) == 0.5
    assert params.get("name", "") == "x"
    assert params.get("fast", False) is True
    assert params.get("absent", 7, "how many") == 7
    params.check_all_known()
    assert params.declared["absent"].help == "how many"


def test_a_parameter_of_the_wrong_type_or_unknown_is_told_by_its_name() -> None:
    params = Params({"rate": "fast", "flag": "yes", "typo": "1"})
    with pytest.raises(JobError, match="parameter rate='fast' is not of type int"):
        params.get("rate", 1)
    with pytest.raises(JobError, match="parameter flag='yes': write true or false"):
        params.get("flag", False)
    with pytest.raises(JobError, match="the job has no parameter typo; it has: flag, rate"):
        params.check_all_known()


def test_elements_that_do_not_fit_the_schema_are_told_by_position() -> None:
    env = StreamEnvironment()
    with pytest.raises(SchemaMismatch, match=r"element 1 has the fields \['b'\], the schema has \['a'\]"):
        env.from_elements([{"a": 1}, {"b": 1}], "a long")
    for wrong in ("text", 2**70, 1.5):
        with pytest.raises(SchemaMismatch, match="the elements do not fit the schema"):
            env.from_elements([{"a": wrong}], "a long")
