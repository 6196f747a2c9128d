"""Connected streams: two streams that one function processes together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from engine.api.functions import checked_process_function
from engine.api.schema import out_schema
from engine.api.streams.broadcast import BroadcastStream
from engine.api.streams.keyed_input import KeyedInput
from engine.core.broadcast_functions import BroadcastProcessFunction, KeyedBroadcastProcessFunction
from engine.graph.job_graph import OperatorSpec
from engine.runtime.functions import own
from engine.runtime.operators.broadcast import BroadcastProcess, KeyedBroadcastProcess

if TYPE_CHECKING:  # for annotations only: see engine/api/streams/__init__.py
    from engine.api.streams.data import DataStream


class BroadcastConnectedStream:
    """A stream together with a broadcast stream; `stream.connect(broadcast)` makes one."""

    def __init__(self, stream: DataStream, broadcast: BroadcastStream) -> None:
        self._stream = stream
        self._broadcast = broadcast

    def process(
        self, function: BroadcastProcessFunction, uid: str, schema: pa.Schema | str | None = None
    ) -> DataStream:
        """Calls the function with each record of both streams; broadcast records may change the broadcast state.

        Both of its methods return any number of records of `schema`, which is that of the stream that is not
        broadcast if not given.
        """
        checked_process_function("process", function, BroadcastProcessFunction)
        out, descriptors = out_schema(schema, self._stream.schema), self._broadcast.descriptors
        spec = OperatorSpec(
            uid,
            "process",
            lambda: BroadcastProcess(own(function), descriptors, out).exactly(schema is None),
            row_lane=True,
            state=self._broadcast.described(),
        )
        return self._stream._add_operator(spec, out, self._broadcast.input)


class KeyedBroadcastConnectedStream:
    """A keyed stream together with a broadcast stream; `keyed.connect(broadcast)` makes one."""

    def __init__(self, keyed: KeyedInput, broadcast: BroadcastStream) -> None:
        self._keyed = keyed
        self._broadcast = broadcast

    def process(
        self, function: KeyedBroadcastProcessFunction, uid: str, schema: pa.Schema | str | None = None
    ) -> DataStream:
        """Calls the function with each record of both streams; broadcast records may change the broadcast state.

        Records of the keyed stream may also read and change the state of their key. Both of the function's methods
        return any number of records of `schema`, which is that of the keyed stream if not given.
        """
        checked_process_function("process", function, KeyedBroadcastProcessFunction)
        keys, before = self._keyed.keys, self._keyed.schema
        out, descriptors = out_schema(schema, before), self._broadcast.descriptors
        spec = OperatorSpec(
            uid,
            "process",
            lambda: KeyedBroadcastProcess(own(function), descriptors, keys, before, out).exactly(schema is None),
            row_lane=True,
            state=self._broadcast.described(),
        )
        return self._keyed.add_operator(spec, out, self._broadcast.input)
