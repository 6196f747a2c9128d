"""Partitioning (A4): the exchange between a stream and its next operator, which says which subtask gets which record.

An operator behind an exchange has the environment's parallelism, and is never chained to the operator before it. Behind
`forward`, or behind no exchange, an operator has the parallelism of the one before it, and may be chained to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from typing import TYPE_CHECKING, Any, Self, overload

import pyarrow as pa

from engine.api.columns import check_column
from engine.api.functions import shown
from engine.api.streams.broadcast import BroadcastStream
from engine.api.streams.placement import Placed
from engine.core.errors import JobError
from engine.core.state_types import MapStateDescriptor
from engine.graph.exchange import Exchange, ExchangeKind
from engine.graph.stream_graph import StreamInput, StreamNode
from engine.state.key_hash import hash_columns

if TYPE_CHECKING:  # the environment makes streams, so it imports their files
    from engine.api.environment import StreamEnvironment


class Partitioned(Placed):
    """The part of a `DataStream` that says how its records reach the subtasks of the next operator."""

    def __init__(self, env: StreamEnvironment, node: int, schema: pa.Schema, exchange: Exchange | None = None) -> None:
        super().__init__(env, node)
        self.schema = schema
        self._exchange = exchange

    def forward(self) -> Self:
        """Sends the records of each subtask to the subtask of the same index. Both sides need the same parallelism."""
        return self._through(Exchange(ExchangeKind.FORWARD))

    def shuffle(self) -> Self:
        """Sends each record to a random subtask; all are equally likely."""
        return self._through(Exchange(ExchangeKind.SHUFFLE))

    def rebalance(self) -> Self:
        """Sends records to all subtasks in turn; what one sender has sent to each differs by at most one record."""
        return self._through(Exchange(ExchangeKind.REBALANCE))

    def rescale(self) -> Self:
        """Sends records in turn to a group of neighbouring subtasks only.

        This needs fewer channels than `rebalance`: from 2 subtasks to 4 there are 4 instead of 8.
        """
        return self._through(Exchange(ExchangeKind.RESCALE))

    @overload
    def broadcast(self) -> Self: ...
    @overload
    def broadcast(self, state: MapStateDescriptor, /, *more: MapStateDescriptor) -> BroadcastStream: ...
    def broadcast(self, *states: MapStateDescriptor) -> Self | BroadcastStream:
        """Sends each record to every subtask.

        With descriptors of broadcast state it returns a `BroadcastStream`, whose records may change that state:

            RULES = MapStateDescriptor("rules", pa.string(), pa.int64())
            events.key_by("app").connect(rules.broadcast(RULES)).process(Limit(), uid="limit")
        """
        through = self._through(Exchange(ExchangeKind.BROADCAST))
        return BroadcastStream(self._env, through._input, states) if states else through

    def global_(self) -> Self:
        """Sends every record to subtask 0."""
        return self._through(Exchange(ExchangeKind.GLOBAL))

    def partition_custom(self, function: Callable[[Any, int], int], *columns: str) -> Self:
        """Sends each record to the subtask that `function(key, partitions)` returns, a number from 0 to partitions - 1.

        The key is the value of the column, or a tuple of the values of several columns. The function has to be pure:
        it is called once per distinct key of a batch.
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
            raise JobError(
                f"{self._exchange} is followed by {what}: only one exchange can lie between two operators, remove one"
            )

    def _check_key(self, what: str, columns: tuple[Any, ...]) -> None:
        if not columns:
            raise JobError(f"{what} needs at least one column: write its name, as in {what}({self.schema.names[0]!r})")
        for column in columns:
            if isinstance(column, list | tuple):
                names = ", ".join(map(repr, column))
                raise JobError(
                    f"{what}: not a {type(column).__name__}: write its columns one by one, as in {what}({names})"
                )
            if not isinstance(column, str):
                raise JobError(
                    f"{what} takes the names of columns, not {shown(column)}: compute the key as a column first, as in "
                    f"select(..., key=pl.col('a') % 10).{what}('key')"
                )
        self._require(columns, what)
        if len(set(columns)) < len(columns):
            raise JobError(f"{what}{columns!r}: a column is named twice")
        for column in columns:
            try:
                hash_columns([pa.nulls(0, self.schema.field(column).type)])
            except TypeError as error:
                raise JobError(f"{what}({column!r}): {error}") from error

    def _require(self, columns: Iterable[str], what: str) -> None:
        for column in columns:
            check_column(what, column, self.schema)

    @property
    def _input(self) -> StreamInput:
        """The input of the next operator."""
        return StreamInput(self._node, self._exchange)

    def _parallelism(self) -> int:
        """Returns the parallelism of the next operator, unless that sets its own."""
        if self._input.follows:
            return self._env.graph.nodes[self._node].parallelism
        return self._env.parallelism

    def _just_added(self, what: str) -> StreamNode:
        if self._exchange is not None:
            raise JobError(f"{what} cannot follow {self._exchange}: call it on the operator behind the exchange")
        return super()._just_added(what)
