"""Connected streams: two streams that one function processes together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

import pyarrow as pa

from engine.api.functions import checked_process_function, no_method
from engine.api.schema import out_schema
from engine.api.streams.broadcast import NOT_BROADCAST, BroadcastStream
from engine.api.streams.keyed_input import KeyedInput
from engine.core.broadcast_functions import BroadcastProcessFunction, KeyedBroadcastProcessFunction
from engine.core.connected_functions import (
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    KeyedCoProcessFunction,
)
from engine.core.errors import JobError
from engine.core.event_time import EVENT_TIME, described
from engine.core.functions import Function
from engine.graph.job_graph import OperatorSpec
from engine.runtime.functions import own
from engine.runtime.operators.broadcast import BroadcastProcess, KeyedBroadcastProcess
from engine.runtime.operators.connected import CoFunction, CoProcess, KeyedCoProcess

if TYPE_CHECKING:  # for annotations only: see engine/api/streams/__init__.py
    from engine.api.streams.data import DataStream


class ConnectedStreams:
    """Two streams without keys; `stream.connect(other)` makes one. Each of its functions has one method per stream."""

    def __init__(self, first: DataStream, second: DataStream) -> None:
        self._first = first
        self._second = second

    def key_by(self, first: str | Sequence[str], second: str | Sequence[str]) -> KeyedConnectedStreams:
        """Groups both streams by key: by these columns of the first, and by those of the second."""
        one, other = ((keys,) if isinstance(keys, str) else tuple(keys) for keys in (first, second))
        return KeyedConnectedStreams(self._first.key_by(*one)._keyed, self._second.key_by(*other)._keyed)

    def map(self, function: CoMapFunction, schema: pa.Schema | str | None = None, uid: str | None = None) -> DataStream:
        """Calls `map1` or `map2` with each record; both return one record of `schema`."""
        return self._add("map", function, CoMapFunction, schema, uid)

    def flat_map(
        self, function: CoFlatMapFunction, schema: pa.Schema | str | None = None, uid: str | None = None
    ) -> DataStream:
        """Calls `flat_map1` or `flat_map2` with each record; both return any number of records of `schema`."""
        return self._add("flat_map", function, CoFlatMapFunction, schema, uid)

    def process(
        self, function: CoProcessFunction, uid: str | None = None, schema: pa.Schema | str | None = None
    ) -> DataStream:
        """Calls `process_element1` or `process_element2` with each record and its context.

        Both return any number of records of `schema`, and may emit to side outputs. State per key and timers need
        keys: call `key_by` on both streams before `connect`.
        """
        return self._add("process", function, CoProcessFunction, schema, uid)

    def _add(
        self, kind: str, function: CoFunction, rich: type[Function], schema: pa.Schema | str | None, uid: str | None
    ) -> DataStream:
        if isinstance(function, BroadcastProcessFunction):
            raise JobError(NOT_BROADCAST)
        checked_process_function(f"connect(...).{kind}", function, rich)
        out = _joint(schema, self._first.schema, self._second.schema, kind)
        spec = OperatorSpec(
            self._first._env.graph.next_uid(f"co_{kind}") if uid is None else uid,
            f"co_{kind}",
            lambda: CoProcess(own(function), out),
            named=uid is not None,
            row_lane=True,
            emits_aside=kind == "process",
            each_record=True,
        )
        return self._first._add_operator(spec, out, self._second._input)


class KeyedConnectedStreams:
    """Two keyed streams; `keyed.connect(other)` makes one. Records of both with the same key share state and timers."""

    def __init__(self, first: KeyedInput, second: KeyedInput) -> None:
        if first.env is not second.env:
            raise JobError("connect: the two streams belong to different environments, so to different jobs")
        if first.key_types != second.key_types:
            keys = (", ".join(f"{key} {of.schema.field(key).type}" for key in of.keys) for of in (first, second))
            raise JobError(
                f"connect needs keys of the same types, but the streams are keyed by ({next(keys)}) and by "
                f"({next(keys)}): compute equal ones with select(...) before key_by"
            )
        self._first = first
        self._second = second

    def map(self, function: CoMapFunction, uid: str, schema: pa.Schema | str | None = None) -> DataStream:
        """Calls `map1` or `map2` with each record; both return one record of `schema`, and may use state per key."""
        return self._add("map", function, CoMapFunction, schema, uid)

    def flat_map(self, function: CoFlatMapFunction, uid: str, schema: pa.Schema | str | None = None) -> DataStream:
        """Calls `flat_map1` or `flat_map2` with each record; both return any number, and may use state per key."""
        return self._add("flat_map", function, CoFlatMapFunction, schema, uid)

    def process(self, function: KeyedCoProcessFunction, uid: str, schema: pa.Schema | str | None = None) -> DataStream:
        """Calls `process_element1` or `process_element2` with each record, and `on_timer` when a timer fires.

        All return any number of records of `schema`, may use the state of the key, and may emit to side outputs.
        """
        return self._add("process", function, KeyedCoProcessFunction, schema, uid)

    def _add(
        self, kind: str, function: CoFunction, rich: type[Function], schema: pa.Schema | str | None, uid: str
    ) -> DataStream:
        checked_process_function(f"connect(...).{kind}", function, rich)
        first, second = self._first, self._second
        out = _joint(schema, first.schema, second.schema, kind)
        spec = OperatorSpec(
            uid,
            f"co_{kind}",
            lambda: KeyedCoProcess(own(function), first.keys, second.keys, first.schema, out),
            row_lane=True,
            emits_aside=kind == "process",
            each_record=True,
        )
        return first.add_operator(spec, out, second.hashed)


def _joint(declared: pa.Schema | str | None, first: pa.Schema, second: pa.Schema, kind: str) -> pa.Schema:
    """Returns the schema of the results: the declared one, or that of both streams. It has event time if both have."""
    visible = [pa.schema([field for field in of if field.name != EVENT_TIME]) for of in (first, second)]
    if declared is None and not visible[0].equals(visible[1]):
        raise JobError(
            f"connect(...).{kind}: the streams have ({described(first)}) and ({described(second)}), so declare the "
            "fields of the results with schema=..."
        )
    timed = EVENT_TIME in first.names and EVENT_TIME in second.names
    return out_schema(visible[0] if declared is None else declared, first if timed else visible[0])


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
            lambda: BroadcastProcess(own(function), descriptors, out),
            row_lane=True,
            state=self._broadcast.described(),
            emits_aside=True,
            each_record=True,
        )
        return self._stream._add_operator(spec, out, self._broadcast.input)


class KeyedBroadcastConnectedStream:
    """A keyed stream together with a broadcast stream; `keyed.connect(broadcast)` makes one."""

    def __init__(self, keyed: KeyedInput, broadcast: BroadcastStream) -> None:
        self._keyed = keyed
        self._broadcast = broadcast

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            said = f"end it with process(function, uid=...), as in connect(...).process(...).{name}(...)"
            no_method(
                self, name, dict.fromkeys(("sink_to", "print", "map", "filter", "select", "where", "key_by"), said)
            )

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
            lambda: KeyedBroadcastProcess(own(function), descriptors, keys, before, out),
            row_lane=True,
            state=self._broadcast.described(),
            emits_aside=True,
            each_record=True,
        )
        return self._keyed.add_operator(spec, out, self._broadcast.input)
