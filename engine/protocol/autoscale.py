"""The autoscaler's decision (F5): which parallelism a job should have, by how busy its operators were.

An operator that is busy for a share `b` of the time at parallelism `p` does the work of `p * b` subtasks. So many
subtasks that each is busy for the target share do the same work. Back pressure says that the work that is measured is
less than the work that waits: then the slow operator gets at least one subtask more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Bounds:
    """The limits of the autoscaler. It changes nothing for `cool_down_ms` after a change.

    It leaves a parallelism at which the busiest operator would be within `tolerance` of the target share, so that
    small changes of the load do not move the job.
    """

    least: int
    most: int
    target_busy: float = 0.7
    tolerance: float = 0.15
    cool_down_ms: float = 120_000.0

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise ValueError(f"bounds {self.least} to {self.most}: write 1 <= least <= most")
        if not 0 < self.target_busy < 1:
            raise ValueError(f"the target busy share is {self.target_busy}; it must be between 0 and 1")
        if not 0 <= self.tolerance < self.target_busy:
            raise ValueError(f"the tolerance is {self.tolerance}; it must be from 0 to below {self.target_busy}")
        if self.cool_down_ms < 0:
            raise ValueError(f"the cool-down is {self.cool_down_ms} ms; it must be at least 0")


@dataclass(frozen=True)
class Load:
    """The measured shares of one vertex: the mean over its subtasks of the last seconds.

    `scalable` is False for a vertex that does not follow the job's parallelism; it is not counted.
    """

    parallelism: int
    busy: float
    back_pressured: float = 0.0
    scalable: bool = True


def wanted_parallelism(
    bounds: Bounds, current: int, loads: Sequence[Load], changed_ms: float | None, now_ms: float
) -> int | None:
    """Returns the parallelism that the job should have; None: leave it as it is.

    `changed_ms` is when the job was last rescaled or started. Without a measured vertex nothing is decided. A job that
    is outside of the bounds is brought inside, whatever its load.
    """
    if changed_ms is not None and now_ms - changed_ms < bounds.cool_down_ms:
        return None
    inside = min(max(current, bounds.least), bounds.most)
    scalable = [load for load in loads if load.scalable]
    wanted = inside if not scalable else max(_needed(bounds, load, scalable, current) for load in scalable)
    wanted = min(max(wanted, bounds.least), bounds.most)
    return wanted if wanted != current else None


def _needed(bounds: Bounds, load: Load, loads: Sequence[Load], current: int) -> int:
    """Returns the parallelism at which this vertex would be busy for the target share."""
    held_up = any(other.back_pressured > bounds.tolerance for other in loads)
    slowest = load.busy >= max(other.busy for other in loads)
    if abs(load.busy - bounds.target_busy) <= bounds.tolerance and not (held_up and slowest):
        return current
    work = load.parallelism * min(max(load.busy, 0.0), 1.0)
    needed = max(1, math.ceil(work / bounds.target_busy - 1e-9))
    if held_up and slowest:
        return max(needed, current + 1)
    return needed
