"""Restart strategies (D10) decide whether and when the next attempt starts. Pure: the caller passes the time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol


class RestartStrategy(Protocol):
    def on_failure(self, now_ms: float, jitter: float) -> tuple[float | None, RestartStrategy]:
        """Returns the delay before the next attempt (None: give up) and the strategy's next state.

        `jitter` is in [0, 1); the caller draws it.
        """


@dataclass(frozen=True)
class NoRestart:
    def on_failure(self, now_ms: float, jitter: float) -> tuple[float | None, RestartStrategy]:
        return None, self


@dataclass(frozen=True)
class FixedDelay:
    attempts: int = 1
    delay_ms: float = 1000
    failed: int = 0

    def on_failure(self, now_ms: float, jitter: float) -> tuple[float | None, RestartStrategy]:
        if self.failed >= self.attempts:
            return None, self
        return self.delay_ms, replace(self, failed=self.failed + 1)


@dataclass(frozen=True)
class FailureRate:
    max_failures: int = 1
    interval_ms: float = 60_000
    delay_ms: float = 1000
    failures: tuple[float, ...] = field(default=())

    def on_failure(self, now_ms: float, jitter: float) -> tuple[float | None, RestartStrategy]:
        recent = (*(t for t in self.failures if t > now_ms - self.interval_ms), now_ms)
        if len(recent) > self.max_failures:
            return None, replace(self, failures=recent)
        return self.delay_ms, replace(self, failures=recent)


@dataclass(frozen=True)
class ExponentialDelay:
    initial_ms: float = 1000
    max_ms: float = 60_000
    multiplier: float = 1.5
    reset_after_ms: float = 3_600_000
    jitter_factor: float = 0.1
    current_ms: float | None = None
    last_failure_ms: float | None = None

    def on_failure(self, now_ms: float, jitter: float) -> tuple[float | None, RestartStrategy]:
        quiet = self.last_failure_ms is None or now_ms - self.last_failure_ms >= self.reset_after_ms
        if quiet or self.current_ms is None:
            base = self.initial_ms
        else:
            base = min(self.max_ms, self.current_ms * self.multiplier)
        delay = base * (1 + self.jitter_factor * (2 * jitter - 1))
        return delay, replace(self, current_ms=base, last_failure_ms=now_ms)
