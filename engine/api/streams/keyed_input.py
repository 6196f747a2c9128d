"""`KeyedInput`: what all keyed operators are added behind, in keyed, windowed and connected streams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from engine.graph.exchange import Exchange, ExchangeKind
from engine.graph.job_graph import OperatorSpec
from engine.graph.stream_graph import StreamInput

if TYPE_CHECKING:  # for annotations only: see engine/api/streams/__init__.py
    from engine.api.environment import StreamEnvironment
    from engine.api.streams.data import DataStream


@dataclass(frozen=True)
class KeyedInput:
    """The records of one operator (`node`), to be exchanged by the hash of `keys`."""

    env: StreamEnvironment
    node: int
    schema: pa.Schema
    keys: tuple[str, ...]

    def add_operator(self, spec: OperatorSpec, schema: pa.Schema, *more: StreamInput) -> DataStream:
        """Adds an operator behind the exchange, at the environment's parallelism, and returns its results."""
        return self.env._add_operator(spec, schema, self.env.parallelism, self.hashed, *more)

    @property
    def hashed(self) -> StreamInput:
        return StreamInput(self.node, Exchange(ExchangeKind.HASH, self.keys))

    @property
    def key_types(self) -> list[pa.DataType]:
        return [self.schema.field(key).type for key in self.keys]
