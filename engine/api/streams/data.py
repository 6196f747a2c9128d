"""`DataStream`: the stream that most operators return.

It has two lanes. Columnar operators (`select`, `where`, `map_batches`, and the built-in aggregates of windows) run
compiled kernels on whole batches, without Python per record. Row operators (`map`, `flat_map`, `filter`, and `reduce`
and `process` of keyed streams) call a Python function per record; a record is a dict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NoReturn

import polars as pl
import pyarrow as pa

from engine.api.expressions import filtering, selection
from engine.api.functions import checked_function, checked_is, no_method
from engine.api.schema import EVENT_TIME_FIELD, out_schema
from engine.api.streams.broadcast import BroadcastStream, checked_broadcast
from engine.api.streams.connected import BroadcastConnectedStream
from engine.api.streams.keyed import KeyedStream
from engine.api.streams.keyed_input import KeyedInput
from engine.api.streams.partitioning import Partitioned
from engine.api.streams.sink import DataStreamSink
from engine.api.streams.static_join import joined_schema, static_table
from engine.api.watermarks import WatermarkStrategy
from engine.connectors.dataframe import DataFrameLike
from engine.connectors.printing import PrintSink
from engine.connectors.table import TableSink
from engine.core.durations import Duration
from engine.core.errors import JobError
from engine.core.event_time import EVENT_TIME
from engine.core.functions import FilterFunction, FlatMapFunction, MapFunction, Row
from engine.core.sinks import Sink
from engine.core.tags import OutputTag
from engine.graph.job_graph import OperatorSpec
from engine.graph.stream_graph import StreamInput
from engine.runtime.functions import own
from engine.runtime.operators.base import Operator
from engine.runtime.operators.columnar import AssignTimestamps, MapBatches
from engine.runtime.operators.rows import RowFilter, RowFlatMap, RowMap
from engine.runtime.operators.sink import SinkOperator
from engine.runtime.operators.static_join import StaticJoin


class DataStream(Partitioned):
    """A stream of records with a schema; each method adds an operator to the job and returns the stream of its results.

    `StreamEnvironment` makes the first one, for example with `from_source`. A stream may be used more than once: each
    operator behind it receives all of its records.
    """

    # --- columnar lane ---

    def select(self, *columns: str | pl.Expr, **named: pl.Expr) -> DataStream:
        """Computes the columns of the new stream: columns by name, or polars expressions of one record.

        Columns given by name keep their type; a computed column gets the type that Spark would give it.

            views.select("app_id", kib=pl.col("bytes") / 1024)
        """
        self._require([column for column in columns if isinstance(column, str)], "select")
        apply, schema = selection(self.schema, columns, named)
        return self._add("select", lambda: MapBatches(apply, schema), schema)

    def where(self, condition: pl.Expr) -> DataStream:
        """Keeps the records for which a polars expression of one record is true: `where(pl.col("bytes") > 0)`."""
        apply = filtering(self.schema, condition)
        return self._add("where", lambda: MapBatches(apply, self.schema), self.schema)

    def map_batches(
        self, function: Callable[[pa.RecordBatch], pa.RecordBatch], schema: pa.Schema | str | None = None
    ) -> DataStream:
        """Calls the function with each Arrow RecordBatch; it returns a RecordBatch of `schema` (default: the same).

        A function that changes the number of rows of a stream with event time has to keep the column `_event_time`.
        """
        out = out_schema(schema, self.schema)
        return self._add("map_batches", lambda: MapBatches(function, out), out)

    # --- row lane ---

    def map(
        self,
        function: Callable[[Row], Row] | MapFunction,
        schema: pa.Schema | str | None = None,
        uid: str | None = None,
    ) -> DataStream:
        """Calls the function with each record; it returns one record of `schema` (default: the same).

        A function that keeps operator state needs a `uid`, by which the state is found again after a restart.

            views.map(lambda view: {"app": view["app_id"].lower()}, schema="app string")
        """
        checked_function("map", function, MapFunction, "lambda row: {**row, ...}")
        out = out_schema(schema, self.schema)

        def build() -> Operator:
            mine = own(function)
            return RowMap(mine, mine.map if isinstance(mine, MapFunction) else mine, out).exactly(schema is None)

        return self._add("map", build, out, uid, row_lane=True)

    def flat_map(
        self,
        function: Callable[[Row], Iterable[Row]] | FlatMapFunction,
        schema: pa.Schema | str | None = None,
        uid: str | None = None,
    ) -> DataStream:
        """Calls the function with each record; it returns any number of records of `schema` (default: the same).

        A function that keeps operator state needs a `uid`, by which the state is found again after a restart.
        """
        checked_function("flat_map", function, FlatMapFunction, "lambda row: [row, row]")
        out = out_schema(schema, self.schema)

        def build() -> Operator:
            mine = own(function)
            call = mine.flat_map if isinstance(mine, FlatMapFunction) else mine
            return RowFlatMap(mine, call, out).exactly(schema is None)

        return self._add("flat_map", build, out, uid, row_lane=True)

    def filter(self, function: Callable[[Row], bool] | FilterFunction, uid: str | None = None) -> DataStream:
        """Calls the function with each record, and keeps the records for which it returns true.

        A function that keeps operator state needs a `uid`, by which the state is found again after a restart.
        """
        checked_function("filter", function, FilterFunction, "lambda row: row['n'] > 0")
        schema = self.schema

        def build() -> Operator:
            mine = own(function)
            return RowFilter(mine, mine.filter if isinstance(mine, FilterFunction) else mine, schema)

        return self._add("filter", build, schema, uid, row_lane=True)

    # --- time, keys, other streams ---

    def assign_timestamps_and_watermarks(self, strategy: WatermarkStrategy) -> DataStream:
        """Takes event time from a column, and makes watermarks from it. Windows need this.

        Called on the stream of a source, it makes one watermark per split, whatever else follows the source. A source
        has one strategy: another one is refused. Called elsewhere, it makes one watermark per subtask, over all splits
        that reach the subtask: records of a split that lags behind are late then.

            views.assign_timestamps_and_watermarks(
                WatermarkStrategy.for_bounded_out_of_orderness("2 s").with_timestamps("ts")
            )
        """
        example = 'WatermarkStrategy.for_bounded_out_of_orderness("2 s").with_timestamps("ts")'
        checked_is("assign_timestamps_and_watermarks", strategy, WatermarkStrategy, f"a strategy such as {example}")
        compiled = strategy.compiled()
        self._require([compiled.column], "assign_timestamps_and_watermarks")
        kind = self.schema.field(compiled.column).type
        if not (pa.types.is_timestamp(kind) or pa.types.is_integer(kind)):
            raise JobError(
                f"the event time column {compiled.column!r} is a {kind}; it must be a timestamp, or integers that "
                "are milliseconds since 1970"
            )
        kept = [field for field in self.schema if field.name != EVENT_TIME]
        schema = pa.schema([*kept, EVENT_TIME_FIELD])
        node = self._env.graph.nodes[self._node]
        if node.source is not None and self._exchange is None:
            if node.source.strategy not in (None, compiled):
                raise JobError(
                    f"source {node.uid!r} has event time already, {node.source.strategy}, so it can't also have "
                    f"{compiled}: use the stream that the first call returned, or read the source a second time, with "
                    "another uid"
                )
            node.source = replace(node.source, strategy=compiled)
            node.schema = schema
            return DataStream(self._env, self._node, schema)
        # It keeps the watermark that it has reached, so its uid must not depend on the order of other streams.
        uid = self._env.graph.uid_behind(self._node, "timestamps")
        state = {"event time": f"column {compiled.column}"}
        spec = OperatorSpec(uid, "assign_timestamps", lambda: AssignTimestamps(compiled), named=False, state=state)
        return self._add_operator(spec, schema)

    def key_by(self, *columns: str) -> KeyedStream:
        """Groups the records by one or more columns: all records of a key reach the same subtask."""
        self._check_key("key_by", columns)
        self._check_no_exchange(f"key_by({', '.join(columns)})")
        return KeyedStream(KeyedInput(self._env, self._node, self.schema, columns))

    def connect(self, broadcast: BroadcastStream) -> BroadcastConnectedStream:
        """Connects a broadcast stream, such as rules or prices; every subtask receives all of its records."""
        return BroadcastConnectedStream(self, checked_broadcast(broadcast, self._env))

    def join_static(
        self,
        frame: DataFrameLike,
        *,
        on: str | Sequence[str],
        uid: str,
        how: str = "inner",
        schema: pa.Schema | str | None = None,
        refresh: Duration | None = None,
    ) -> DataStream:
        """Joins each record with the rows of a DataFrame that have the same values in the columns `on`.

        `frame` is a DataFrame, or a function that makes one from a Spark session; a function needs `schema`. Every
        subtask holds the whole DataFrame. `how` is "inner" or "left". With `refresh`, such as "10 min", the function
        is called again that often.
        """
        keys = (on,) if isinstance(on, str) else tuple(on)
        static = static_table(frame, schema, refresh, uid)
        joined = joined_schema(self.schema, static.schema, keys, how, uid)
        build = partial(StaticJoin, static, keys, how == "left", joined)
        return self._add_operator(OperatorSpec(uid, "join_static", build, static=static), joined)

    def side_output(self, tag: OutputTag) -> DataStream:
        """Returns the records that the operator emits under this tag, such as the malformed records of a source."""
        node = self._env.graph.nodes[self._node]
        offered = node.source.source.side_outputs if node.source else ()
        if tag not in offered:
            names = ", ".join(other.name for other in offered) or "none"
            raise JobError(f"{node.uid!r} has no side output {tag.name!r}; it has: {names}")
        build = partial(MapBatches, _same, tag.schema)
        spec = OperatorSpec(self._env.graph.next_uid(tag.name), "side_output", build, named=False)
        return self._env._add_operator(spec, tag.schema, node.parallelism, StreamInput(node.id, tag=tag))

    # --- ends ---

    def sink_to(self, sink: Sink, uid: str) -> DataStreamSink:
        """Ends the stream in a sink. By its `uid` a restarted job finds the output that it has yet to commit."""
        example = f"write to_spark_table({sink!r}, uid=...)" if isinstance(sink, str) else 'such as TableSink("counts")'
        checked_is("sink_to", sink, Sink, f"a sink ({example})")
        schema = self.schema
        spec = OperatorSpec(uid, "sink", lambda: SinkOperator(sink, schema), sink=sink, input_schema=schema)
        node = self._env.graph.add_operator(spec, schema, self._parallelism(), self._input)
        return DataStreamSink(self._env, node)

    def to_spark_table(self, path: str, uid: str) -> DataStreamSink:
        """Writes the records to a Weir table, of which `spark.read.parquet(path)` sees the committed epochs.

        A relative path is a place in the job's own store.
        """
        return self.sink_to(TableSink(path), uid)

    def print(self, uid: str | None = None) -> DataStreamSink:
        """Prints each record at once as `SUBTASK> RECORD`, on the terminal of `weir run` and in `weir logs`.

        After a failure, records since the last checkpoint are printed again.
        """
        return self.sink_to(PrintSink(), uid or self._env.graph.next_uid("print"))

    # --- building ---

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            no_method(self, name, _INSTEAD)

    def _add(
        self,
        kind: str,
        build: Callable[[], Operator],
        schema: pa.Schema,
        uid: str | None = None,
        row_lane: bool = False,
    ) -> DataStream:
        name = self._env.graph.next_uid(kind) if uid is None else uid
        return self._add_operator(OperatorSpec(name, kind, build, named=uid is not None, row_lane=row_lane), schema)

    def _add_operator(self, spec: OperatorSpec, schema: pa.Schema, *more: StreamInput) -> DataStream:
        """Adds an operator that takes this stream first and then `more`, and returns the stream of its results."""
        return self._env._add_operator(spec, schema, self._parallelism(), self._input, *more)


_INSTEAD = {
    **{
        name: f"{name} needs key_by first, as in stream.key_by(COLUMN).{name}(...)"
        for name in ("window", "process", "reduce", "sum", "min", "max")
    },
    "aggregate": "aggregate needs a window, as in stream.key_by(COLUMN).window(...).aggregate(...)",
}


def _same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch
