"""Physical partitioning (A4): the exchange that lies between a stream and its next operator.

An operator behind an exchange runs at the environment's parallelism, and is never chained to what is before it; behind
`forward`, and behind none, it stays with what is before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, overload

import pyarrow as pa

from engine.api.placement import Placed
from engine.api.schema import plain
from engine.core.errors import JobError
from engine.core.event_time import EVENT_TIME
from engine.core.state_types import MapStateDescriptor
from engine.graph.exchange import Exchange, ExchangeKind
from engine.graph.stream_graph import StreamInput, StreamNode
from engine.state.key_hash import hash_columns

if TYPE_CHECKING:
    from engine.api.environment import StreamEnvironment


class Partitioned(Placed):
    def __init__(self, env: StreamEnvironment, node: int, schema: pa.Schema, exchange: Exchange | None = None) -> None:
        super().__init__(env, node)
        self.schema = schema
        self._exchange = exchange

    def forward(self) -> Self:
        """Each subtask to the one of the same index. Both sides need the same parallelism."""
        return self._through(Exchange(ExchangeKind.FORWARD))

    def shuffle(self) -> Self:
        """Each record to any subtask, with the same probability."""
        return self._through(Exchange(ExchangeKind.SHUFFLE))

    def rebalance(self) -> Self:
        """Evenly: what a subtask has sent to each of the others differs by at most one record."""
        return self._through(Exchange(ExchangeKind.REBALANCE))

    def rescale(self) -> Self:
        """Evenly within groups of neighbours, so with fewer channels: 2 to 4 subtasks has 4 of them, rebalance 8."""
        return self._through(Exchange(ExchangeKind.RESCALE))

    @overload
    def broadcast(self) -> Self: ...
    @overload
    def broadcast(self, state: MapStateDescriptor, /, *more: MapStateDescriptor) -> BroadcastStream: ...
    def broadcast(self, *states: MapStateDescriptor) -> Self | BroadcastStream:
        """Each record to every subtask. With broadcast states, which it changes there: `other.connect(this)`."""
        through = self._through(Exchange(ExchangeKind.BROADCAST))
        return BroadcastStream(self._env, through._input, states) if states else through

    def global_(self) -> Self:
        """Every record to subtask 0."""
        return self._through(Exchange(ExchangeKind.GLOBAL))

    def partition_custom(self, function: Callable[[Any, int], int], *columns: str) -> Self:
        """Each record to the subtask `function(key, partitions)`. A key is the column's value, or a tuple of them.

        The function has to be pure: it is asked once per distinct key of a batch.
        """
        self._check_key("partition_custom", columns)
        return self._through(Exchange(ExchangeKind.CUSTOM, columns, function))

    def _through(self, exchange: Exchange) -> Self:
        self._check_no_exchange(str(exchange))
        result = copy(self)
        result._exchange = exchange
        return result

    def _check_no_exchange(self, what: str) -> None:
        if self._exchange is not None:
            raise JobError(f"{self._exchange} is followed by {what}: one exchange lies between two operators, drop one")

    def _check_key(self, what: str, columns: tuple[str, ...]) -> None:
        if not columns:
            raise JobError(f"{what} needs at least one column")
        self._require(columns, what)
        if len(set(columns)) < len(columns):
            raise JobError(f"{what}{columns!r}: a column is named twice")
        for column in columns:
            try:
                hash_columns([pa.array([], self.schema.field(column).type)])
            except TypeError as error:
                raise JobError(f"{what}({column!r}): {error}") from error

    def _require(self, columns: Iterable[str], what: str) -> None:
        for column in columns:
            if column not in self.schema.names or column == EVENT_TIME:
                raise JobError(f"{what}: there is no column {column!r}; the stream has ({plain(self.schema)})")

    @property
    def _input(self) -> StreamInput:
        """For the next operator."""
        return StreamInput(self._node, self._exchange)

    def _parallelism(self) -> int:
        """Of the next operator, unless it sets its own."""
        if self._exchange is None or self._exchange.kind is ExchangeKind.FORWARD:
            return self._env.graph.nodes[self._node].parallelism
        return self._env.parallelism

    def _just_added(self, what: str) -> StreamNode:
        if self._exchange is not None:
            raise JobError(f"{what} right behind {self._exchange}: call it on the operator that follows")
        return super()._just_added(what)


@dataclass(frozen=True)
class BroadcastStream:
    """What goes to every subtask, and the states that it may change there: for `connect`."""

    env: StreamEnvironment
    input: StreamInput
    descriptors: tuple[MapStateDescriptor, ...]


def checked_broadcast(given: Any, env: StreamEnvironment) -> BroadcastStream:
    if not isinstance(given, BroadcastStream):
        raise JobError(
            "connect takes a broadcast stream, with the state that its records change: "
            'stream.connect(rules.broadcast(MapStateDescriptor("rules", pa.string(), pa.int64())))'
        )
    if given.env is not env:
        raise JobError("connect: the two streams are of different environments, which are different jobs")
    return given
