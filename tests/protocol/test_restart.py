"""Restart strategies (D10): whether and when to try again, as pure functions of the time of each failure."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.protocol.failures import Fault
from engine.protocol.restart import ExponentialDelay, FailureRate, FixedDelay, NoRestart, RestartStrategy

pytestmark = pytest.mark.promise("D10")


def delays(
    strategy: RestartStrategy, *failures_ms: float, jitter: float = 0.5, fault: Fault = Fault.JOB
) -> list[float | None]:
    result = []
    for now in failures_ms:
        delay, strategy = strategy.on_failure(now, jitter, fault)
        result.append(delay)
    return result


def test_none_gives_up_at_once() -> None:
    assert delays(NoRestart(), 0) == [None]


def test_fixed_delay_tries_so_many_times_and_gives_up() -> None:
    assert delays(FixedDelay(attempts=3, delay_ms=200), 0, 1e6, 2e6, 3e6) == [200, 200, 200, None]


def test_fixed_delay_defaults_to_one_attempt_after_a_second() -> None:
    assert delays(FixedDelay(), 0, 1) == [1000, None]


def test_failure_rate_gives_up_when_more_failures_than_allowed_fall_into_the_interval() -> None:
    strategy = FailureRate(max_failures=2, interval_ms=1000, delay_ms=10)
    assert delays(strategy, 0, 400, 800) == [10, 10, None]


def test_failure_rate_forgets_failures_older_than_the_interval() -> None:
    strategy = FailureRate(max_failures=2, interval_ms=1000, delay_ms=10)
    assert delays(strategy, 0, 600, 1000, 1600, 2000, 2600) == [10] * 6


def test_exponential_delay_grows_up_to_its_maximum_and_never_gives_up() -> None:
    strategy = ExponentialDelay(initial_ms=1000, max_ms=3000, multiplier=2, jitter_factor=0)
    assert delays(strategy, 0, 1, 2, 3, 4) == [1000, 2000, 3000, 3000, 3000]


def test_exponential_delay_begins_anew_after_a_quiet_time() -> None:
    strategy = ExponentialDelay(initial_ms=1000, multiplier=2, reset_after_ms=10_000, jitter_factor=0)
    assert delays(strategy, 0, 1, 10_000, 20_000, 30_001) == [1000, 2000, 4000, 1000, 1000]


def test_jitter_spreads_the_delay_evenly_to_both_sides_and_does_not_add_up() -> None:
    strategy = ExponentialDelay(initial_ms=1000, multiplier=2, jitter_factor=0.1)
    assert delays(strategy, 0, 1, jitter=0.0) == [900, 1800]
    assert delays(strategy, 0, 1, jitter=0.5) == [1000, 2000]
    assert delays(strategy, 0, 1, jitter=1.0) == pytest.approx([1100, 2200])


def test_the_defaults_are_flink_s() -> None:
    strategy = ExponentialDelay()
    assert (strategy.initial_ms, strategy.max_ms, strategy.multiplier) == (1000, 60_000, 1.5)
    assert (strategy.reset_after_ms, strategy.jitter_factor) == (3_600_000, 0.1)


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 1, exclude_max=True))
def test_a_delay_is_always_between_the_initial_and_the_largest_one_within_the_jitter(gaps, jitter) -> None:
    strategy: RestartStrategy = ExponentialDelay()
    now = 0.0
    for gap in gaps:
        now += gap
        delay, strategy = strategy.on_failure(now, jitter, Fault.JOB)
        assert delay is not None and 900 <= delay <= 66_000


def test_a_strategy_is_a_value_and_on_failure_leaves_it_as_it_was() -> None:
    strategy = FixedDelay(attempts=1)
    strategy.on_failure(0, 0, Fault.JOB)
    assert strategy.on_failure(0, 0, Fault.JOB)[0] == 1000


@pytest.mark.promise("H8")
@pytest.mark.parametrize("fault", [Fault.OUTSIDE, Fault.WEIR])
@pytest.mark.parametrize("strategy", [NoRestart(), FixedDelay(attempts=1), FailureRate(max_failures=1)])
def test_no_strategy_gives_up_because_of_a_failure_that_is_not_the_job_s_own(
    strategy: RestartStrategy, fault: Fault
) -> None:
    assert all(delay is not None and delay > 0 for delay in delays(strategy, *range(100), fault=fault))


@pytest.mark.promise("H8")
@pytest.mark.parametrize("strategy", [FixedDelay(attempts=1, delay_ms=10), FailureRate(max_failures=1, delay_ms=10)])
def test_failures_from_outside_do_not_use_up_the_attempts_of_the_job_s_own(strategy: RestartStrategy) -> None:
    for now in range(5):
        _, strategy = strategy.on_failure(now, 0.5, Fault.OUTSIDE)
    assert delays(strategy, 6, 7) == [10, None]


def test_none_waits_longer_after_each_failure_from_outside() -> None:
    strategy = NoRestart(ExponentialDelay(initial_ms=1000, multiplier=2, jitter_factor=0))
    assert delays(strategy, 0, 1, 2, fault=Fault.OUTSIDE) == [1000, 2000, 4000]
