"""`GroupClock`: how far event time has come for each key group of one operator subtask.

While an operator runs, all of its key groups have one watermark. Two subtasks may stand at different watermarks at one
barrier if some of their inputs are idle, so a restore that joins their key groups finds different ones.

Invariant: the watermark of a key group never goes back, also across restores at any parallelism. So a window that was
published stays closed for the keys of its group.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from engine.protocol.signals import MIN_WATERMARK
from engine.state.key_groups import KeyGroupRange, key_groups

Saved = Sequence[Sequence[int]]
"""Ranges of key groups with their watermarks: (start, end, watermark), as a snapshot holds them."""


class GroupClock:
    def __init__(self, groups: KeyGroupRange, max_parallelism: int, saved: Iterable[Saved] = ()) -> None:
        """`saved`: the ranges that the subtasks of the snapshot wrote; those of other key groups are ignored."""
        self._groups = groups
        self._max_parallelism = max_parallelism
        restored = np.full(len(groups), MIN_WATERMARK, np.int64)
        for start, end, watermark in (part for of_subtask in saved for part in of_subtask):
            restored[max(start - groups.start, 0) : max(end - groups.start, 0)] = watermark
        self.now_ms = int(restored.min())
        """The lowest watermark of all key groups: the operator's own clock."""
        self._highest_ms = int(restored.max())
        self._restored = restored

    def advance(self, timestamp_ms: int) -> bool:
        """Moves the clock; returns False if it has been there already."""
        if timestamp_ms <= self.now_ms:
            return False
        self.now_ms = timestamp_ms
        return True

    @property
    def latest_ms(self) -> int:
        """The highest watermark of all key groups."""
        return max(self.now_ms, self._highest_ms)

    @property
    def uneven(self) -> bool:
        """True while the restored watermark of some key group is ahead of the clock."""
        return self.now_ms < self._highest_ms

    def ahead(self, timestamp_ms: int) -> bool:
        """Returns True if a key group may have passed this time before the clock does. Else no row needs a look."""
        return self.now_ms < timestamp_ms <= self._highest_ms

    def passed(self, timestamp_ms: int) -> bool:
        """Returns True if some key group has reached this time."""
        return timestamp_ms <= self.latest_ms

    def of_rows(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Returns the watermark that holds for each row, by the hash of its key."""
        return np.maximum(self.restored_of_rows(hashes), self.now_ms)

    def restored_of_rows(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Returns the watermark at which the key group of each row was restored."""
        groups = key_groups(hashes, self._max_parallelism) - self._groups.start
        return self._restored[groups]

    def passed_before_restore(self, timestamp_ms: int) -> bool:
        """Returns True if a key group may have passed this time before the restore. Else no row needs a look."""
        return timestamp_ms <= self._highest_ms

    def snapshot(self) -> list[list[int]]:
        """Returns the ranges to save: a single one, unless restored watermarks are still ahead of the clock."""
        watermarks = np.maximum(self._restored, self.now_ms)
        changes = np.flatnonzero(np.diff(watermarks)) + 1
        bounds = [0, *changes.tolist(), len(self._groups)]
        first = self._groups.start
        return [[first + start, first + end, int(watermarks[start])] for start, end in pairwise(bounds)]
