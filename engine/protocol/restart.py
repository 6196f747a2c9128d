"""Restart strategies (D10) decide whether and when the next attempt starts. Pure: the caller passes the time.

Only the job's own failures count towards a strategy's limit, and only after one of them does it give up (H8). After a
failure from outside, or of Weir itself, the strategy says when to try again, and never gives up.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from typing import Protocol

from engine.protocol.failures import Fault


class RestartStrategy(Protocol):
    """Decides whether and when a job that failed is started again."""

    def on_failure(self, now_ms: float, jitter: float, fault: Fault) -> tuple[float | None, RestartStrategy]:
        """Returns the delay before the next attempt (None: give up) and the strategy's next state.

        `jitter` is in [0, 1); the caller draws it. None is returned only if the failure is the job's own.
        """


def _check_numbers(strategy: FixedDelay | FailureRate | ExponentialDelay) -> None:
    """Refuses texts, such as durations, which would fail only when the job fails."""
    for name in (each.name for each in fields(strategy)):
        value = getattr(strategy, name)
        if isinstance(value, bool | str | timedelta):
            unit = " of milliseconds" if name.endswith("_ms") else ""
            example = "10_000" if unit else "3"
            raise ValueError(f"{type(strategy).__name__}: {name} is a number{unit}, not {value!r}, as in {example}")


@dataclass(frozen=True)
class FixedDelay:
    """Ends the job with its own failure number `attempts` + 1. Waits `delay_ms` before each attempt."""

    attempts: int = 1
    delay_ms: float = 1000
    failed: int = 0

    def __post_init__(self) -> None:
        _check_numbers(self)
        if self.attempts < 0 or self.delay_ms < 0:
            raise ValueError(f"FixedDelay({self.attempts}, {self.delay_ms}): attempts and delay_ms must be 0 or more")

    def on_failure(self, now_ms: float, jitter: float, fault: Fault) -> tuple[float | None, RestartStrategy]:
        """Returns the delay before the next attempt, or None to give up, and the next state."""
        if fault is not Fault.JOB:
            return self.delay_ms, self
        if self.failed >= self.attempts:
            return None, self
        return self.delay_ms, replace(self, failed=self.failed + 1)


@dataclass(frozen=True)
class FailureRate:
    """Ends the job if it fails by itself more than `max_failures` times within `interval_ms`."""

    max_failures: int = 1
    interval_ms: float = 60_000
    delay_ms: float = 1000
    failures: tuple[float, ...] = field(default=())

    def __post_init__(self) -> None:
        _check_numbers(self)

    def on_failure(self, now_ms: float, jitter: float, fault: Fault) -> tuple[float | None, RestartStrategy]:
        """Returns the delay before the next attempt, or None to give up, and the next state."""
        if fault is not Fault.JOB:
            return self.delay_ms, self
        recent = (*(t for t in self.failures if t > now_ms - self.interval_ms), now_ms)
        if len(recent) > self.max_failures:
            return None, replace(self, failures=recent)
        return self.delay_ms, replace(self, failures=recent)


@dataclass(frozen=True)
class ExponentialDelay:
    """Never ends the job. Waits longer after each failure, and begins anew after `reset_after_ms` without one."""

    initial_ms: float = 1000
    max_ms: float = 60_000
    multiplier: float = 1.5
    reset_after_ms: float = 3_600_000
    jitter_factor: float = 0.1
    current_ms: float | None = None
    last_failure_ms: float | None = None

    def __post_init__(self) -> None:
        _check_numbers(self)

    def on_failure(self, now_ms: float, jitter: float, fault: Fault) -> tuple[float | None, RestartStrategy]:
        """Returns the delay before the next attempt, or None to give up, and the next state."""
        quiet = self.last_failure_ms is None or now_ms - self.last_failure_ms >= self.reset_after_ms
        if quiet or self.current_ms is None:
            base = self.initial_ms
        else:
            base = min(self.max_ms, self.current_ms * self.multiplier)
        delay = base * (1 + self.jitter_factor * (2 * jitter - 1))
        return delay, replace(self, current_ms=base, last_failure_ms=now_ms)


@dataclass(frozen=True)
class NoRestart:
    """Ends the job with its first own failure. After a failure from outside it restarts, with an exponential delay."""

    outside: RestartStrategy = ExponentialDelay()

    def on_failure(self, now_ms: float, jitter: float, fault: Fault) -> tuple[float | None, RestartStrategy]:
        """Returns the delay before the next attempt, or None to give up, and the next state."""
        if fault is Fault.JOB:
            return None, self
        delay_ms, outside = self.outside.on_failure(now_ms, jitter, fault)
        return delay_ms, replace(self, outside=outside)
