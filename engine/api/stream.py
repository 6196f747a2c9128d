"""`DataStream`, `KeyedStream`, `WindowedStream`: one API, two lanes.

Columnar (`select`, `where`, `map_batches`, built-in aggregates): compiled kernels, no Python per row. Row (`map`,
`flat_map`, `filter`, `reduce`, `process`): plain Python functions per record; a record is a dict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from engine.api.errors import JobError
from engine.api.schema import parse_schema
from engine.api.windows import TumblingEventTimeWindows, WatermarkStrategy
from engine.connectors.base import Sink
from engine.connectors.printing import PrintSink
from engine.graph.job_graph import OperatorSpec
from engine.runtime.functions import (
    FilterFunction,
    FlatMapFunction,
    KeyedProcessFunction,
    MapFunction,
    ReduceFunction,
    Row,
)
from engine.runtime.operators.base import EVENT_TIME, Operator
from engine.runtime.operators.columnar import AssignTimestamps, MapBatches
from engine.runtime.operators.rows import KeyedProcess, KeyedReduce, RowFilter, RowFlatMap, RowMap
from engine.runtime.operators.sink import SinkOperator
from engine.runtime.operators.window import WindowCombine, WindowMerge
from engine.state.aggregates import Aggregate, AggregatePlan
from engine.state.keyhash import hash_columns

if TYPE_CHECKING:
    from engine.api.environment import StreamEnvironment

_EVENT_TIME_FIELD = pa.field(EVENT_TIME, pa.int64())


class DataStream:
    def __init__(self, env: StreamEnvironment, node: int, schema: pa.Schema) -> None:
        self._env = env
        self._node = node
        self.schema = schema

    # --- columnar lane ---

    def select(self, *columns: str | pl.Expr, **named: pl.Expr) -> DataStream:
        """Columns by name, or polars expressions: `select("app_id", kib=pl.col("bytes") / 1024)`."""
        expressions = [pl.col(c) if isinstance(c, str) else c for c in columns]
        expressions += [expression.alias(name) for name, expression in named.items()]
        if EVENT_TIME in self.schema.names:
            expressions.append(pl.col(EVENT_TIME))
        return self._frames("select", lambda frame: frame.select(expressions))

    def where(self, condition: pl.Expr) -> DataStream:
        """The records for which a polars expression is true."""
        return self._frames("where", lambda frame: frame.filter(condition))

    def _frames(self, kind: str, change: Callable[[pl.DataFrame], pl.DataFrame]) -> DataStream:
        schema = self._try_on_empty(kind, change)

        def apply(batch: pa.RecordBatch) -> pa.RecordBatch:
            table = change(_frame(batch)).to_arrow(compat_level=pl.CompatLevel.oldest()).combine_chunks()
            return table.to_batches()[0] if table.num_rows else schema.empty_table().to_batches()[0]

        return self._add(kind, lambda: MapBatches(apply, schema), schema)

    def _try_on_empty(self, kind: str, change: Callable[[pl.DataFrame], pl.DataFrame]) -> pa.Schema:
        """The resulting schema, as Spark would name the types: strings stay strings."""
        try:
            empty = change(_frame(self.schema.empty_table()))
        except pl.exceptions.PolarsError as error:
            raise JobError(f"{kind} on a stream of ({_plain(self.schema)}): {error}") from error
        made = empty.to_arrow(compat_level=pl.CompatLevel.oldest()).schema
        return pa.schema([pa.field(field.name, _spark_type(field.type, self.schema, field.name)) for field in made])

    def map_batches(
        self, function: Callable[[pa.RecordBatch], pa.RecordBatch], schema: pa.Schema | str | None = None
    ) -> DataStream:
        """A function from RecordBatch to RecordBatch. If it changes the number of rows it has to keep `_event_time`."""
        out = self._out_schema(schema)
        return self._add("map_batches", lambda: MapBatches(function, out), out)

    # --- row lane ---

    def map(self, function: Callable[[Row], Row] | MapFunction, schema: pa.Schema | str | None = None) -> DataStream:
        out = self._out_schema(schema)
        call = function.map if isinstance(function, MapFunction) else function
        return self._add("map", lambda: RowMap(function, call, out), out, row_lane=True)

    def flat_map(
        self, function: Callable[[Row], Iterable[Row]] | FlatMapFunction, schema: pa.Schema | str | None = None
    ) -> DataStream:
        out = self._out_schema(schema)
        call = function.flat_map if isinstance(function, FlatMapFunction) else function
        return self._add("flat_map", lambda: RowFlatMap(function, call, out), out, row_lane=True)

    def filter(self, function: Callable[[Row], bool] | FilterFunction) -> DataStream:
        call = function.filter if isinstance(function, FilterFunction) else function
        return self._add("filter", lambda: RowFilter(function, call, self.schema), self.schema, row_lane=True)

    # --- time, keys, ends ---

    def assign_timestamps_and_watermarks(self, strategy: WatermarkStrategy) -> DataStream:
        """Event time from a column. Right behind a source, watermarks are made per split."""
        compiled = strategy.compiled()
        self._require([compiled.column], "assign_timestamps_and_watermarks")
        kept = [field for field in self.schema if field.name != EVENT_TIME]
        schema = pa.schema([*kept, _EVENT_TIME_FIELD])
        node = self._env.graph.nodes[self._node]
        if node.source is not None and not self._env.graph.consumers(node.id):
            node.source = replace(node.source, strategy=compiled)
            node.schema = schema
            return DataStream(self._env, self._node, schema)
        return self._add("assign_timestamps", lambda: AssignTimestamps(compiled), schema)

    def key_by(self, *columns: str) -> KeyedStream:
        """Same key, same subtask, always. Keys may be several columns."""
        if not columns:
            raise JobError("key_by needs at least one column")
        self._require(columns, "key_by")
        for column in columns:
            try:
                hash_columns([pa.array([], self.schema.field(column).type)])
            except TypeError as error:
                raise JobError(f"key_by({column!r}): {error}") from error
        return KeyedStream(self._env, self._node, self.schema, columns)

    def sink_to(self, sink: Sink, uid: str) -> None:
        schema = self.schema
        spec = OperatorSpec(uid, "sink", lambda: SinkOperator(sink, schema), stateful=True, sink=sink)
        self._env.graph.add_operator(spec, schema, self._parallelism(), self._node)

    def print(self, uid: str | None = None) -> None:
        """Each record on the slot's standard output, when its epoch is committed nowhere: at least once."""
        self.sink_to(PrintSink(), uid or self._env.graph.next_uid("print"))

    # --- building ---

    def _add(self, kind: str, build: Callable[[], Operator], schema: pa.Schema, row_lane: bool = False) -> DataStream:
        spec = OperatorSpec(self._env.graph.next_uid(kind), kind, build, row_lane=row_lane)
        node = self._env.graph.add_operator(spec, schema, self._parallelism(), self._node)
        return DataStream(self._env, node, schema)

    def _parallelism(self) -> int:
        """A stateless operator stays with what is before it, so that it is chained."""
        return self._env.graph.nodes[self._node].parallelism

    def _out_schema(self, schema: pa.Schema | str | None) -> pa.Schema:
        if schema is None:
            return self.schema
        parsed = parse_schema(schema)
        return parsed.append(_EVENT_TIME_FIELD) if EVENT_TIME in self.schema.names else parsed

    def _require(self, columns: Iterable[str], what: str) -> None:
        for column in columns:
            if column not in self.schema.names:
                raise JobError(f"{what}: there is no column {column!r}; the stream has ({_plain(self.schema)})")


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
        call = function.reduce if isinstance(function, ReduceFunction) else function
        return self._add("reduce", uid, lambda: KeyedReduce(function, call, self._keys, self._schema), self._schema)

    def sum(self, column: str, uid: str) -> DataStream:
        return self._running(column, uid, lambda left, right: left + right)

    def min(self, column: str, uid: str) -> DataStream:
        return self._running(column, uid, min)

    def max(self, column: str, uid: str) -> DataStream:
        return self._running(column, uid, max)

    def _running(self, column: str, uid: str, combine: Callable[[Any, Any], Any]) -> DataStream:
        if column not in self._schema.names:
            raise JobError(f"there is no column {column!r}; the stream has ({_plain(self._schema)})")
        return self.reduce(lambda left, right: {**right, column: combine(left[column], right[column])}, uid)

    def process(self, function: KeyedProcessFunction, uid: str, schema: pa.Schema | str | None = None) -> DataStream:
        """Any function of a record and the state of its key."""
        out = self._schema
        if schema is not None:
            out = parse_schema(schema)
            if EVENT_TIME in self._schema.names:
                out = out.append(_EVENT_TIME_FIELD)
        return self._add("process", uid, lambda: KeyedProcess(function, self._keys, self._schema, out), out)

    def _add(self, kind: str, uid: str, build: Callable[[], Operator], schema: pa.Schema) -> DataStream:
        spec = OperatorSpec(uid, kind, build, stateful=True, row_lane=True)
        node = self._env.graph.add_operator(spec, schema, self._env.parallelism, self._node, self._keys)
        return DataStream(self._env, node, schema)


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
        for name, aggregate in aggregates.items():
            if aggregate.column is not None and aggregate.column not in self._schema.names:
                columns = _plain(self._schema)
                raise JobError(
                    f"{name}={aggregate}: there is no column {aggregate.column!r}; the stream has ({columns})"
                )
            if name in self._keys or name in ("window_start", "window_end"):
                raise JobError(f"the aggregate {name!r} has the name of another result column")
        try:
            plan = AggregatePlan(self._keys, aggregates, self._schema)
        except pa.ArrowNotImplementedError as error:
            raise JobError(f"window {uid!r}: {error}") from error
        size_ms = self._assigner.size_ms
        stamp = pa.timestamp("us", tz="UTC")
        results = {field.name: field.type for field in plan.result_schema}
        schema = pa.schema(
            [
                *(pa.field(key, results[key]) for key in self._keys),
                pa.field("window_start", stamp),
                pa.field("window_end", stamp),
                *(pa.field(name, results[name]) for name in aggregates),
                _EVENT_TIME_FIELD,
            ]
        )
        graph = self._env.graph
        before = graph.nodes[self._node]
        combine = OperatorSpec(f"{uid}.combine", "combine", partial(WindowCombine, plan, size_ms))
        combined = graph.add_operator(combine, plan.partial_schema, before.parallelism, before.id)
        merge = OperatorSpec(uid, "window", partial(WindowMerge, plan, size_ms, schema), stateful=True)
        node = graph.add_operator(merge, schema, self._env.parallelism, combined, self._keys)
        return DataStream(self._env, node, schema)


def _frame(data: pa.RecordBatch | pa.Table) -> pl.DataFrame:
    frame = pl.from_arrow(data)
    assert isinstance(frame, pl.DataFrame)
    return frame


def _spark_type(made: pa.DataType, before: pa.Schema, name: str) -> pa.DataType:
    if name in before.names and pa.types.is_timestamp(before.field(name).type) and pa.types.is_timestamp(made):
        return before.field(name).type
    if pa.types.is_large_string(made):
        return pa.string()
    if pa.types.is_large_binary(made):
        return pa.binary()
    return made


def _plain(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema if field.name != EVENT_TIME)
