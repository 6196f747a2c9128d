"""How operator state, which belongs to no key, is dealt out to the subtasks of a restored operator (C1).

Invariants: SPLIT gives each item to exactly one subtask: at an unchanged parallelism to the one that had it, else in
order, in shares that differ by at most one. UNION gives everything to everyone. BROADCAST, of which every subtask wrote
the same, gives everyone one copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum


class Distribution(Enum):
    KEYED = "keyed"
    """By key group; not dealt out here."""
    SPLIT = "split"
    UNION = "union"
    BROADCAST = "broadcast"


def shares(distribution: Distribution, items: Sequence[int], subtask: int, parallelism: int) -> list[range]:
    """What this subtask takes of the lists that the subtasks before it wrote, which have this many `items`."""
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
