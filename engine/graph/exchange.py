"""`Exchange`: how records get from one operator to the next (A4), and between which subtasks there is a channel.

Invariant: every receiver has a channel from somebody, also one that no row goes to: barriers and watermarks reach it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any


class ExchangeKind(Enum):
    FORWARD = "forward"
    HASH = "hash"
    SHUFFLE = "shuffle"
    REBALANCE = "rebalance"
    RESCALE = "rescale"
    BROADCAST = "broadcast"
    GLOBAL = "global"
    CUSTOM = "custom"


@dataclass(frozen=True)
class Exchange:
    """`columns`: the key, of HASH and CUSTOM. `function`: of CUSTOM, from a key and the number of partitions to one."""

    kind: ExchangeKind
    columns: tuple[str, ...] = ()
    function: Callable[[Any, int], int] | None = None

    def __str__(self) -> str:
        return f"{self.kind.value}({', '.join(self.columns)})" if self.columns else self.kind.value

    def receivers(self, sender: int, senders: int, receivers: int) -> range:
        """The subtasks behind the exchange to which this one has a channel."""
        if self.kind is ExchangeKind.FORWARD:
            return range(sender, sender + 1)
        if self.kind is ExchangeKind.RESCALE:
            return _neighbours(sender, senders, receivers)
        return range(receivers)


def _neighbours(sender: int, senders: int, receivers: int) -> range:
    """As Flink: the larger side in contiguous groups, one per subtask of the smaller; sizes differ by at most one."""
    if senders >= receivers:
        only = ((sender + 1) * receivers - 1) // senders
        return range(only, only + 1)
    return range(-(-sender * receivers // senders), -(-(sender + 1) * receivers // senders))
