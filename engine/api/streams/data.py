"""`DataStream`, `KeyedStream`, `WindowedStream`: one API, two lanes.

Columnar (`select`, `where`, `map_batches`, built-in aggregates): compiled kernels, no Python per row. Row (`map`,
`flat_map`, `filter`, `reduce`, `process`): plain Python functions per record; a record is a dict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from engine.api.dataframes import joined_schema, static_table
from engine.api.expressions import filtering, selection
from engine.api.partitioning import BroadcastStream, Partitioned, checked_broadcast
from engine.api.placement import DataStreamSink
from engine.api.schema import EVENT_TIME_FIELD, out_schema, plain
from engine.api.windows import TumblingEventTimeWindows, WatermarkStrategy
from engine.connectors.dataframe import Frame
from engine.connectors.printing import PrintSink
from engine.connectors.table import TableSink
from engine.core.broadcast_functions import BroadcastProcessFunction, KeyedBroadcastProcessFunction
from engine.core.durations import Duration
from engine.core.errors import JobError
from engine.core.functions import (
    FilterFunction,
    FlatMapFunction,
    KeyedProcessFunction,
    MapFunction,
    ReduceFunction,
    Row,
)
from engine.core.sinks import Sink
from engine.core.tags import OutputTag
from engine.graph.exchange import Exchange, ExchangeKind
from engine.graph.job_graph import OperatorSpec
from engine.graph.stream_graph import StreamInput
from engine.runtime.functions import own
from engine.runtime.operators.base import EVENT_TIME, Operator
from engine.runtime.operators.broadcast import BroadcastProcess, KeyedBroadcastProcess
from engine.runtime.operators.columnar import AssignTimestamps, MapBatches
from engine.runtime.operators.rows import KeyedProcess, KeyedReduce, RowFilter, RowFlatMap, RowMap
from engine.runtime.operators.sink import SinkOperator
from engine.runtime.operators.static_join import StaticJoin
from engine.runtime.operators.window import WindowCombine, WindowMerge
from engine.state.windows.aggregates import ROWS, WINDOW, Aggregate, AggregatePlan

if TYPE_CHECKING:
    from engine.api.environment import StreamEnvironment


class DataStream(Partitioned):
    # --- columnar lane ---

    def select(self, *columns: str | pl.Expr, **named: pl.Expr) -> DataStream:
        """Columns by name, or polars expressions of one record: `select("app_id", kib=pl.col("bytes") / 1024)`.

        Columns given by name keep their type; what expressions make gets the type that Spark would give it.
        """
        self._require([column for column in columns if isinstance(column, str)], "select")
        apply, schema = selection(self.schema, columns, named)
        return self._add("select", lambda: MapBatches(apply, schema), schema)

    def where(self, condition: pl.Expr) -> DataStream:
        """The records for which a polars expression of one record is true."""
        apply = filtering(self.schema, condition)
        return self._add("where", lambda: MapBatches(apply, self.schema), self.schema)

    def map_batches(
        self, function: Callable[[pa.RecordBatch], pa.RecordBatch], schema: pa.Schema | str | None = None
    ) -> DataStream:
        """A function from RecordBatch to RecordBatch. If it changes the number of rows it has to keep `_event_time`."""
        out = out_schema(schema, self.schema)
        return self._add("map_batches", lambda: MapBatches(function, out), out)

    # --- row lane ---

    def map(
        self,
        function: Callable[[Row], Row] | MapFunction,
        schema: pa.Schema | str | None = None,
        uid: str | None = None,
    ) -> DataStream:
        """`uid`: needed if the function keeps operator state."""
        out = out_schema(schema, self.schema)

        def build() -> Operator:
            mine = own(function)
            return RowMap(mine, mine.map if isinstance(mine, MapFunction) else mine, out)

        return self._add("map", build, out, uid, row_lane=True)

    def flat_map(
        self,
        function: Callable[[Row], Iterable[Row]] | FlatMapFunction,
        schema: pa.Schema | str | None = None,
        uid: str | None = None,
    ) -> DataStream:
        out = out_schema(schema, self.schema)

        def build() -> Operator:
            mine = own(function)
            return RowFlatMap(mine, mine.flat_map if isinstance(mine, FlatMapFunction) else mine, out)

        return self._add("flat_map", build, out, uid, row_lane=True)

    def filter(self, function: Callable[[Row], bool] | FilterFunction, uid: str | None = None) -> DataStream:
        schema = self.schema

        def build() -> Operator:
            mine = own(function)
            return RowFilter(mine, mine.filter if isinstance(mine, FilterFunction) else mine, schema)

        return self._add("filter", build, schema, uid, row_lane=True)

    # --- time, keys, ends ---

    def assign_timestamps_and_watermarks(self, strategy: WatermarkStrategy) -> DataStream:
        """Event time from a column. Right behind a source, watermarks are made per split."""
        compiled = strategy.compiled()
        self._require([compiled.column], "assign_timestamps_and_watermarks")
        kind = self.schema.field(compiled.column).type
        if not (pa.types.is_timestamp(kind) or pa.types.is_integer(kind)):
            raise JobError(
                f"the event time {compiled.column!r} is a {kind}: it has to be a timestamp, or integers in milliseconds"
            )
        kept = [field for field in self.schema if field.name != EVENT_TIME]
        schema = pa.schema([*kept, EVENT_TIME_FIELD])
        node = self._env.graph.nodes[self._node]
        untouched = self._exchange is None and not self._env.graph.consumers(node.id)
        if node.source is not None and node.source.strategy is None and untouched:
            node.source = replace(node.source, strategy=compiled)
            node.schema = schema
            return DataStream(self._env, self._node, schema)
        return self._add("assign_timestamps", lambda: AssignTimestamps(compiled), schema)

    def key_by(self, *columns: str) -> KeyedStream:
        """Same key, same subtask, always. Keys may be several columns."""
        self._check_key("key_by", columns)
        self._check_no_exchange(f"key_by({', '.join(columns)})")
        return KeyedStream(self._env, self._node, self.schema, columns)

    def connect(self, broadcast: BroadcastStream) -> BroadcastConnectedStream:
        """With a stream of which every subtask gets every record: rules, prices, settings that change."""
        return BroadcastConnectedStream(self, checked_broadcast(broadcast, self._env))

    def sink_to(self, sink: Sink, uid: str) -> DataStreamSink:
        schema = self.schema
        spec = OperatorSpec(uid, "sink", lambda: SinkOperator(sink, schema), sink=sink)
        node = self._env.graph.add_operator(spec, schema, self._parallelism(), self._input)
        return DataStreamSink(self._env, node)

    def to_spark_table(self, path: str, uid: str) -> DataStreamSink:
        """A Weir table: `spark.read.parquet` sees its committed epochs. Relative paths are in the job's own store."""
        return self.sink_to(TableSink(path), uid)

    def join_static(
        self,
        frame: Frame,
        *,
        on: str | Sequence[str],
        uid: str,
        how: str = "inner",
        schema: pa.Schema | str | None = None,
        refresh: Duration | None = None,
    ) -> DataStream:
        """Each record with the rows of a DataFrame that have its keys; every subtask holds the whole DataFrame.

        `frame`: a DataFrame, or a function of a Spark session that makes one (with `schema`). `how`: "inner" or "left".
        `refresh`: how often the function is called again.
        """
        keys = (on,) if isinstance(on, str) else tuple(on)
        static = static_table(frame, schema, refresh, uid)
        joined = joined_schema(self, static.schema, keys, how, uid)
        build = partial(StaticJoin, static, keys, how == "left", joined)
        return self._follow(OperatorSpec(uid, "join_static", build, static=static), joined)

    def print(self, uid: str | None = None) -> DataStreamSink:
        """Each record as it comes, at least once, as `SUBTASK> RECORD`: on `weir run`'s terminal and in `weir logs`."""
        return self.sink_to(PrintSink(), uid or self._env.graph.next_uid("print"))

    def side_output(self, tag: OutputTag) -> DataStream:
        """What its operator sends aside under this tag, such as the malformed records of a source."""
        node = self._env.graph.nodes[self._node]
        offered = node.source.source.side_outputs if node.source else ()
        if tag not in offered:
            names = ", ".join(other.name for other in offered) or "none"
            raise JobError(f"{node.uid!r} has no side output {tag.name!r}; it has: {names}")
        build = partial(MapBatches, _same, tag.schema)
        spec = OperatorSpec(self._env.graph.next_uid(tag.name), "side_output", build, named=False)
        taken = self._env.graph.add_operator(spec, tag.schema, node.parallelism, StreamInput(node.id, tag=tag))
        return DataStream(self._env, taken, tag.schema)

    # --- building ---

    def _add(
        self,
        kind: str,
        build: Callable[[], Operator],
        schema: pa.Schema,
        uid: str | None = None,
        row_lane: bool = False,
    ) -> DataStream:
        name = self._env.graph.next_uid(kind) if uid is None else uid
        return self._follow(OperatorSpec(name, kind, build, named=uid is not None, row_lane=row_lane), schema)

    def _follow(self, spec: OperatorSpec, schema: pa.Schema, *more: StreamInput) -> DataStream:
        node = self._env.graph.add_operator(spec, schema, self._parallelism(), self._input, *more)
        return DataStream(self._env, node, schema)


class KeyedStream:
    def __init__(self, env: StreamEnvironment, node: int, schema: pa.Schema, keys: tuple[str, ...]) -> None:
        self._env = env
        self._node = node
        self._schema = schema
        self._keys = keys

    def window(self, assigner: TumblingEventTimeWindows) -> WindowedStream:
        if EVENT_TIME not in self._schema.names:
            raise JobError("window needs event time: call assign_timestamps_and_watermarks(...) before key_by(...)")
        return WindowedStream(self._env, self._node, self._schema, self._keys, assigner)

    def reduce(self, function: Callable[[Row, Row], Row] | ReduceFunction, uid: str) -> DataStream:
        """The running value of each key, emitted per record."""
        keys, schema = self._keys, self._schema

        def build() -> Operator:
            mine = own(function)
            return KeyedReduce(mine, mine.reduce if isinstance(mine, ReduceFunction) else mine, keys, schema)

        return self._add("reduce", uid, build, schema)

    def sum(self, column: str, uid: str) -> DataStream:
        return self._running(column, uid, lambda left, right: left + right)

    def min(self, column: str, uid: str) -> DataStream:
        return self._running(column, uid, min)

    def max(self, column: str, uid: str) -> DataStream:
        return self._running(column, uid, max)

    def _running(self, column: str, uid: str, combine: Callable[[Any, Any], Any]) -> DataStream:
        if column not in self._schema.names:
            raise JobError(f"there is no column {column!r}; the stream has ({plain(self._schema)})")
        return self.reduce(lambda left, right: {**right, column: combine(left[column], right[column])}, uid)

    def process(self, function: KeyedProcessFunction, uid: str, schema: pa.Schema | str | None = None) -> DataStream:
        """Any function of a record and the state of its key."""
        out = out_schema(schema, self._schema)
        keys, before = self._keys, self._schema
        return self._add("process", uid, lambda: KeyedProcess(own(function), keys, before, out), out)

    def connect(self, broadcast: BroadcastStream) -> KeyedBroadcastConnectedStream:
        """With a stream of which every subtask gets every record: rules, prices, settings that change."""
        return KeyedBroadcastConnectedStream(self, checked_broadcast(broadcast, self._env))

    def _add(self, kind: str, uid: str, build: Callable[[], Operator], schema: pa.Schema) -> DataStream:
        return self._follow(OperatorSpec(uid, kind, build, row_lane=True), schema)

    def _follow(self, spec: OperatorSpec, schema: pa.Schema, *more: StreamInput) -> DataStream:
        hashed = StreamInput(self._node, Exchange(ExchangeKind.HASH, self._keys))
        node = self._env.graph.add_operator(spec, schema, self._env.parallelism, hashed, *more)
        return DataStream(self._env, node, schema)


class BroadcastConnectedStream:
    """A stream and a broadcast one, for one function of both."""

    def __init__(self, stream: DataStream, broadcast: BroadcastStream) -> None:
        self._stream = stream
        self._broadcast = broadcast

    def process(
        self, function: BroadcastProcessFunction, uid: str, schema: pa.Schema | str | None = None
    ) -> DataStream:
        out, descriptors = out_schema(schema, self._stream.schema), self._broadcast.descriptors
        spec = OperatorSpec(uid, "process", lambda: BroadcastProcess(own(function), descriptors, out), row_lane=True)
        return self._stream._follow(spec, out, self._broadcast.input)


class KeyedBroadcastConnectedStream:
    """A keyed stream and a broadcast one, for one function of both."""

    def __init__(self, stream: KeyedStream, broadcast: BroadcastStream) -> None:
        self._stream = stream
        self._broadcast = broadcast

    def process(
        self, function: KeyedBroadcastProcessFunction, uid: str, schema: pa.Schema | str | None = None
    ) -> DataStream:
        keys, before = self._stream._keys, self._stream._schema
        out, descriptors = out_schema(schema, before), self._broadcast.descriptors
        spec = OperatorSpec(
            uid,
            "process",
            lambda: KeyedBroadcastProcess(own(function), descriptors, keys, before, out),
            row_lane=True,
        )
        return self._stream._follow(spec, out, self._broadcast.input)


class WindowedStream:
    def __init__(
        self,
        env: StreamEnvironment,
        node: int,
        schema: pa.Schema,
        keys: tuple[str, ...],
        assigner: TumblingEventTimeWindows,
    ) -> None:
        self._env = env
        self._node = node
        self._schema = schema
        self._keys = keys
        self._assigner = assigner

    def aggregate(self, *, uid: str, **aggregates: Aggregate) -> DataStream:
        """Built-in aggregates by name: `aggregate(pv=count(), bytes=total("bytes"), uid="pv")`."""
        if not aggregates:
            raise JobError(f"window {uid!r} aggregates nothing: name at least one, as in pv=count()")
        taken = {*self._keys, "window_start", "window_end", EVENT_TIME}
        for key in self._keys:
            if key in ("window_start", "window_end", ROWS, WINDOW):
                raise JobError(f"the key {key!r} has the name of another column of windows: rename it with select(...)")
        for name, aggregate in aggregates.items():
            if not isinstance(aggregate, Aggregate):
                raise JobError(f"{name}={aggregate!r} is no aggregate: write one such as count() or total('bytes')")
            if aggregate.column is not None and aggregate.column not in self._schema.names:
                columns = plain(self._schema)
                raise JobError(
                    f"{name}={aggregate}: there is no column {aggregate.column!r}; the stream has ({columns})"
                )
            if name in taken:
                raise JobError(f"the aggregate {name!r} has the name of another result column")
        try:
            plan = AggregatePlan(self._keys, aggregates, self._schema)
        except pa.ArrowNotImplementedError as error:
            given = ", ".join(f"{name}={aggregate}" for name, aggregate in aggregates.items())
            raise JobError(f"window {uid!r}, {given} of ({plain(self._schema)}): {error}") from error
        size_ms = self._assigner.size_ms
        stamp = pa.timestamp("us", tz="UTC")
        results = {field.name: field.type for field in plan.result_schema}
        schema = pa.schema(
            [
                *(pa.field(key, results[key]) for key in self._keys),
                pa.field("window_start", stamp),
                pa.field("window_end", stamp),
                *(pa.field(name, results[name]) for name in aggregates),
                EVENT_TIME_FIELD,
            ]
        )
        graph = self._env.graph
        before = graph.nodes[self._node]
        combine = OperatorSpec(f"{uid}.combine", "combine", partial(WindowCombine, plan, size_ms))
        combined = graph.add_operator(combine, plan.partial_schema, before.parallelism, StreamInput(before.id))
        merge = OperatorSpec(uid, "window", partial(WindowMerge, plan, size_ms, schema))
        hashed = StreamInput(combined, Exchange(ExchangeKind.HASH, self._keys))
        node = graph.add_operator(merge, schema, self._env.parallelism, hashed)
        return DataStream(self._env, node, schema)


def _same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch
