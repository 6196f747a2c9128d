"""Distributes operator state, which belongs to no key, over the subtasks of a restored operator (C1).

Invariants: SPLIT gives each item to exactly one subtask: at an unchanged parallelism to the one that had it, else in
order, in shares that differ by at most one. UNION gives all items to every subtask. BROADCAST gives every subtask one
copy, because every subtask wrote the same items.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum


class Distribution(Enum):
    KEYED = "keyed"
    """Keyed state is distributed by key group, not here."""
    SPLIT = "split"
    UNION = "union"
    BROADCAST = "broadcast"


def shares(distribution: Distribution, items: Sequence[int], subtask: int, parallelism: int) -> list[range]:
    """Returns the range of items that this subtask takes from each list of the snapshot.

    `items` holds the length of the list that each subtask wrote.
    """
    assert distribution is not Distribution.KEYED and 0 <= subtask < parallelism and items
    first, end = 0, sum(items)
    if distribution is Distribution.BROADCAST:
        first, end = _of_one(items, subtask % len(items))
    elif distribution is Distribution.SPLIT and len(items) == parallelism:
        first, end = _of_one(items, subtask)
    elif distribution is Distribution.SPLIT:
        first, end = end * subtask // parallelism, end * (subtask + 1) // parallelism
    result, before = [], 0
    for count in items:
        result.append(range(min(max(first - before, 0), count), min(max(end - before, 0), count)))
        before += count
    return result


def _of_one(items: Sequence[int], writer: int) -> tuple[int, int]:
    before = sum(items[:writer])
    return before, before + items[writer]
