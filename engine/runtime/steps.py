"""`StepWatch` finds out, from another thread, how long the task thread has been in one step."""

from __future__ import annotations

from collections.abc import Hashable

LONGEST_LOOK_MS = 1000.0
"""A longer pause between two looks was a pause of the whole process, and counts as this much."""


class StepWatch:
    """The owner looks often, each time with a position that changes whenever a step or a record is done."""

    def __init__(self, now_ms: float) -> None:
        self._position: Hashable = None
        self._looked_ms = now_ms
        self._step_ms = 0.0

    def look(self, position: Hashable, now_ms: float) -> float:
        """Returns for how long the position has been this one, in ms."""
        passed_ms, self._looked_ms = now_ms - self._looked_ms, now_ms
        if position != self._position:
            self._position, self._step_ms = position, 0.0
        else:
            self._step_ms += min(passed_ms, LONGEST_LOOK_MS)
        return self._step_ms
