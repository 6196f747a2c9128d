"""`Exchange`: how records travel from one operator to the next (A4), and which subtasks a channel connects.

Invariant: every receiver has at least one channel, even if no row is sent to it, so that barriers and watermarks reach
it.
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
    """Describes one exchange.

    `columns` are the key of HASH and CUSTOM. `function` belongs to CUSTOM: it takes a key and the number of partitions,
    and returns a partition.
    """

    kind: ExchangeKind
    columns: tuple[str, ...] = ()
    function: Callable[[Any, int], int] | None = None

    def __str__(self) -> str:
        return f"{self.kind.value}({', '.join(self.columns)})" if self.columns else self.kind.value

    def receivers(self, sender: int, senders: int, receivers: int) -> range:
        """Returns the receiving subtasks to which this sender has a channel."""
        if self.kind is ExchangeKind.FORWARD:
            return range(sender, sender + 1)
        if self.kind is ExchangeKind.RESCALE:
            return _neighbours(sender, senders, receivers)
        return range(receivers)


def _neighbours(sender: int, senders: int, receivers: int) -> range:
    """Returns the receivers of a sender under RESCALE, as Flink does.

    The larger side is divided into contiguous groups, one for each subtask of the smaller side. The sizes of the groups
    differ by at most one.
    """
    if senders >= receivers:
        only = ((sender + 1) * receivers - 1) // senders
        return range(only, only + 1)
    return range(-(-sender * receivers // senders), -(-(sender + 1) * receivers // senders))
