"""`CheckpointConfig`: the options of checkpoints, with Flink's names and meanings (D3). Times are in milliseconds."""

from __future__ import annotations

from enum import Enum

import msgspec


class CheckpointingMode(Enum):
    """Whether channels whose barrier has come are held back until all have come."""

    EXACTLY_ONCE = "exactly_once"
    AT_LEAST_ONCE = "at_least_once"


IN_FLIGHT_TARGET_MS = 200
"""The time that data may take from a sender through the queue of its receiver, as far as credits decide it."""


class CheckpointConfig(msgspec.Struct, frozen=True):
    """The options of checkpoints, as `enable_checkpointing` sets them."""

    interval_ms: int | None = None
    mode: CheckpointingMode = CheckpointingMode.EXACTLY_ONCE
    timeout_ms: int = 10 * 60 * 1000
    min_pause_ms: int = 0
    max_concurrent: int = 1
    tolerable_failed: int = 0
    retained: int = 3
    in_flight_target_ms: int = IN_FLIGHT_TARGET_MS

    def __post_init__(self) -> None:
        if self.interval_ms is not None and self.interval_ms <= 0:
            raise ValueError(f"the checkpoint interval must be positive, not {self.interval_ms} ms")
        for name, least in (
            ("timeout_ms", 1),
            ("min_pause_ms", 0),
            ("max_concurrent", 1),
            ("retained", 1),
            ("in_flight_target_ms", 1),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, not {getattr(self, name)}")
        if self.tolerable_failed < 0:
            raise ValueError(f"tolerable_failed must be at least 0, not {self.tolerable_failed}")
