"""`DataStream`: the stream that most operators return.

It has two lanes. Columnar operators (`select`, `where`, `map_batches`, and the built-in aggregates of windows) run
compiled kernels on whole batches, without Python per record. Row operators (`map`, `flat_map`, `filter`, and `reduce`
and `process` of keyed streams) call a Python function per record; a record is a dict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NoReturn, overload

import polars as pl
import pyarrow as pa

from engine.api import foreign
from engine.api.expressions import filtering, is_sql, selection
from engine.api.functions import checked_function, checked_is, checked_process_function, no_method
from engine.api.schema import out_schema
from engine.api.streams.all_windowed import AllWindowedStream, with_one_key
from engine.api.streams.broadcast import BroadcastStream, checked_broadcast
from engine.api.streams.connected import BroadcastConnectedStream, ConnectedStreams
from engine.api.streams.keyed import KeyedStream
from engine.api.streams.keyed_input import KeyedInput
from engine.api.streams.partitioning import Partitioned
from engine.api.streams.sink import DataStreamSink
from engine.api.streams.static_join import joined_schema, static_table
from engine.api.streams.window_functions import WindowOptions, checked_assigner, count_options
from engine.api.streams.window_join import JoinedStreams, WindowCoGrouped, WindowJoined
from engine.api.watermarks import WatermarkStrategy, check_alignment, check_idleness
from engine.api.window_assigners import GlobalWindows
from engine.api.windows import WindowAssigner
from engine.connectors.dataframe import DataFrameLike
from engine.connectors.printing import PrintSink
from engine.connectors.table import TableSink
from engine.core.durations import Duration, to_ms
from engine.core.errors import JobError
from engine.core.event_time import EVENT_TIME, EVENT_TIME_FIELD, described, side_schema
from engine.core.failed_records import FAILED
from engine.core.functions import (
    FilterFunction,
    FlatMapFunction,
    KeyedProcessFunction,
    MapFunction,
    ProcessFunction,
    Row,
)
from engine.core.lookups import LookupTable
from engine.core.nearest import nearest
from engine.core.sinks import Sink
from engine.core.tags import OutputTag
from engine.graph.job_graph import OperatorSpec
from engine.graph.stream_graph import StreamInput
from engine.runtime.functions import own
from engine.runtime.operators.base import Operator
from engine.runtime.operators.columnar import AssignGenerated, AssignTimestamps, MapBatches, Select, Where
from engine.runtime.operators.lookup_join import LookupJoin
from engine.runtime.operators.process import Process
from engine.runtime.operators.rows import RowFilter, RowFlatMap, RowMap
from engine.runtime.operators.sink import SinkOperator
from engine.runtime.operators.static_join import StaticJoin


class DataStream(Partitioned):
    """A stream of records with a schema; each method adds an operator to the job and returns the stream of its results.

    `StreamEnvironment` makes the first one, for example with `from_source`. A stream may be used more than once: each
    operator behind it receives all of its records.
    """

    # --- columnar lane ---

    def select(self, *columns: str | pl.Expr, **named: str | pl.Expr) -> DataStream:
        """Computes the columns of the new stream: columns by name, or expressions of one record, of polars or in SQL.

        Columns given by name keep their type; a computed column gets the type that Spark would give it.

            views.select("app_id", kib=pl.col("bytes") / 1024)
            views.select("app_id", "lower(country) AS country", kib="bytes / 1024")
        """
        self._require([c for c in columns if isinstance(c, str) and not is_sql(self.schema, c)], "select")
        apply, schema, read = selection(self.schema, columns, named)
        return self._add("select", lambda: Select(apply, schema, read), schema, each_record=True)

    def where(self, condition: str | pl.Expr) -> DataStream:
        """Keeps the records for which an expression of one record is true, of polars or in SQL.

        views.where(pl.col("bytes") > 0)
        views.where("bytes > 0 AND country IN ('DE', 'FR')")
        """
        apply, read = filtering(self.schema, condition)
        return self._add("where", lambda: Where(apply, self.schema, read), self.schema, each_record=True)

    def map_batches(
        self, function: Callable[[pa.RecordBatch], pa.RecordBatch], schema: pa.Schema | str | None = None
    ) -> DataStream:
        """Calls the function with each Arrow RecordBatch; it returns a RecordBatch of `schema` (default: the same).

        A function that changes the number of rows of a stream with event time has to keep the column `_event_time`.
        """
        out = out_schema(schema, self.schema)
        return self._add("map_batches", lambda: MapBatches(function, out), out, each_record=True)

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
            return RowMap(mine, mine.map if isinstance(mine, MapFunction) else mine, out)

        return self._add("map", build, out, uid, row_lane=True, each_record=True)

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
            return RowFlatMap(mine, mine.flat_map if isinstance(mine, FlatMapFunction) else mine, out)

        return self._add("flat_map", build, out, uid, row_lane=True, each_record=True)

    def filter(self, function: Callable[[Row], bool] | FilterFunction, uid: str | None = None) -> DataStream:
        """Calls the function with each record, and keeps the records for which it returns true.

        A function that keeps operator state needs a `uid`, by which the state is found again after a restart.
        """
        checked_function("filter", function, FilterFunction, "lambda row: row['n'] > 0")
        schema = self.schema

        def build() -> Operator:
            mine = own(function)
            return RowFilter(mine, mine.filter if isinstance(mine, FilterFunction) else mine, schema)

        return self._add("filter", build, schema, uid, row_lane=True, each_record=True)

    def process(
        self, function: ProcessFunction, uid: str | None = None, schema: pa.Schema | str | None = None
    ) -> DataStream:
        """Calls the function with each record and its context; it may also emit to side outputs.

        It returns any number of records of `schema` (default: the same), and `yield TAG, record` emits to a side
        output. State per key and timers need `key_by` first. A function that keeps operator state needs a `uid`.
        """
        if isinstance(function, KeyedProcessFunction):
            raise JobError(
                f"process needs key_by first for a KeyedProcessFunction such as {type(function).__name__}, as in "
                "stream.key_by(COLUMN).process(...); without keys extend ProcessFunction"
            )
        checked_process_function("process", function, ProcessFunction)
        out = out_schema(schema, self.schema)
        name = self._env.graph.next_uid("process") if uid is None else uid
        spec = OperatorSpec(
            name,
            "process",
            lambda: Process(own(function), out),
            named=uid is not None,
            row_lane=True,
            emits_aside=True,
            each_record=True,
        )
        return self._add_operator(spec, out)

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
        compiled = strategy.compiled(self._named)
        self._require([compiled.column], "assign_timestamps_and_watermarks")
        kind = self.schema.field(compiled.column).type
        if not (pa.types.is_timestamp(kind) or pa.types.is_integer(kind)):
            raise JobError(
                f"assign_timestamps_and_watermarks: the event time column {compiled.column!r} is a {kind}; it must be "
                "a timestamp, or integers that are milliseconds since 1970: declare or compute it so"
            )
        kept = [field for field in self.schema if field.name != EVENT_TIME]
        schema = pa.schema([*kept, EVENT_TIME_FIELD])
        node = self._env.graph.nodes[self._node]
        at_source = node.source is not None and self._exchange is None
        check_alignment(compiled.alignment, self._named, at_source, self._env.graph)
        check_idleness(compiled, self._named, at_source)
        if node.source is not None and at_source:
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
        build = AssignTimestamps if compiled.generator is None else AssignGenerated
        row_lane = compiled.generator is not None  # whether it is called with each record is not known before it runs
        spec = OperatorSpec(
            uid, "assign_timestamps", lambda: build(compiled), named=False, row_lane=row_lane, state=state
        )
        return self._add_operator(spec, schema)

    def key_by(self, *columns: str) -> KeyedStream:
        """Groups the records by one or more columns: all records of a key reach the same subtask."""
        self._check_key("key_by", columns)
        self._check_no_exchange(f"key_by({', '.join(columns)})")
        return KeyedStream(KeyedInput(self._env, self._node, self.schema, columns))

    def window_all(self, assigner: WindowAssigner) -> AllWindowedStream:
        """Divides all records of the stream into windows. One subtask computes them; with keys, use `key_by` first.

        views.window_all(TumblingEventTimeWindows.of("10 s")).process(Busiest(), uid="busiest")
        """
        checked_assigner("window_all", assigner, self.schema)
        return self._all_windows(assigner, None)

    def count_window_all(self, size: int, slide: int | None = None) -> AllWindowedStream:
        """Divides all records into windows of `size` records; or takes the last `size` after each `slide`."""
        return self._all_windows(GlobalWindows.create(), count_options("count_window_all", size, slide))

    def _all_windows(self, assigner: WindowAssigner, options: WindowOptions | None) -> AllWindowedStream:
        one = with_one_key(self._env, self._input, self.schema, self._parallelism())
        return AllWindowedStream(one, assigner, options, one.keys[0])

    def union(self, *others: DataStream) -> DataStream:
        """Returns the records of this stream and of others that have the same schema; the order between them is any."""
        if not others:
            raise JobError("union takes at least one other stream, as in clicks.union(views)")
        for other in others:
            checked_is("union", other, DataStream, "streams (call it before key_by)")
            self._check_same_job("union", other)
            if not other.schema.equals(self.schema):
                raise JobError(
                    f"union needs streams of one schema; {self._named} has ({_told(self.schema)}), {other._named} has "
                    f"({_told(other.schema)}): make them equal with select(...)"
                )
        schema = self.schema
        spec = OperatorSpec(
            self._env.graph.next_uid("union"), "union", lambda: MapBatches(_same, schema), named=False, unites=True
        )
        return self._add_operator(spec, schema, *(other._input for other in others))

    @overload
    def connect(self, other: DataStream) -> ConnectedStreams: ...
    @overload
    def connect(self, other: BroadcastStream) -> BroadcastConnectedStream: ...
    def connect(self, other: DataStream | BroadcastStream) -> ConnectedStreams | BroadcastConnectedStream:
        """Connects another stream, of any schema, for a function that processes both; or a broadcast stream.

        Each subtask receives a part of both streams, but all records of a broadcast stream.
        """
        if isinstance(other, DataStream):
            self._check_same_job("connect", other)
            return ConnectedStreams(self, other)
        if isinstance(other, KeyedStream):
            raise JobError(
                f"connect: the other stream has keys and {self._named} has none: call key_by(...) on both, or on none"
            )
        return BroadcastConnectedStream(self, checked_broadcast(other, self._env))

    def join(self, other: DataStream) -> JoinedStreams[WindowJoined]:
        """Joins another stream: pairs of records that have the same key and are in the same window.

            orders.join(payments).where("id").equal_to("order").window(TumblingEventTimeWindows.of("1 min"))

        and then `select(uid=...)` or `apply(function, uid=..., schema=...)`. Both streams need event time.
        """
        return JoinedStreams("join", self, self._checked_other("join", other), WindowJoined)

    def co_group(self, other: DataStream) -> JoinedStreams[WindowCoGrouped]:
        """Puts the records of this stream and another together by key and window, also if only one of them has some.

        The calls that follow are those of `join`; `apply` takes a `CoGroupFunction`. With it outer joins are written.
        """
        return JoinedStreams("co_group", self, self._checked_other("co_group", other), WindowCoGrouped)

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
        joined = joined_schema(self.schema, static.schema, keys, how, f"join_static {uid!r}")
        build = partial(StaticJoin, static, keys, how == "left", joined)
        return self._add_operator(OperatorSpec(uid, "join_static", build, static=static), joined)

    def join_lookup(
        self,
        table: LookupTable,
        *,
        on: str | Sequence[str],
        uid: str,
        how: str = "inner",
        keep: Duration = "10 min",
        max_keys: int = 100_000,
    ) -> DataStream:
        """Joins each record with the rows of a table outside of the job that have the same values in the columns `on`.

        Each subtask asks the table for the keys that it does not know, for all of a batch at once, and uses an answer
        for as long as `keep`; it keeps those of about `max_keys` keys. `how` is "inner" or "left". A replay after a
        restart asks again, and finds what is in the table then.

            cities = PostgresTable("dbname=shop", "cities", "city string, country string")
            orders.join_lookup(cities, on="city", uid="countries")
        """
        what = f"join_lookup {uid!r}"
        checked_is("join_lookup", table, LookupTable, "a table such as PostgresTable(address, name, schema)")
        keep_ms = to_ms(keep, "join_lookup, keep")
        if keep_ms <= 0 or max_keys < 1:
            raise JobError(f"{what}: keep={keep!r} and max_keys={max_keys} must be more than nothing")
        keys = (on,) if isinstance(on, str) else tuple(on)
        joined = joined_schema(self.schema, table.schema, keys, how, what)
        build = partial(LookupJoin, table, keys, how == "left", joined, keep_ms, max_keys)
        return self._add_operator(OperatorSpec(uid, "join_lookup", build), joined)

    def get_side_output(self, tag: OutputTag) -> DataStream:
        """Returns the records that the operator emits under this tag.

        A process function emits to a side output with `yield TAG, record`; a source its malformed records, a window
        its late ones, and an operator with `on_error("dead_letter")` those that it can't process (`FAILED`). Side
        output that nothing takes is an error, so that no record is lost silently.

            LATE = OutputTag("late", "user string, at long")
            late = events.key_by("user").process(Sessions(), uid="sessions").get_side_output(LATE)
        """
        checked_is("get_side_output", tag, OutputTag, 'a tag such as OutputTag("late", "n long")')
        node = self._env.graph.nodes[self._node]
        if (node.operator is None or not node.operator.emits_aside) and tag not in node.side_outputs:
            names = [other.name for other in node.side_outputs]
            hint = f"; {_side_output_hint(tag, node.operator)}" if node.operator else ""
            raise JobError(
                f"{node.named} has no side output {tag.name!r}{nearest(tag.name, names)}; it has: "
                f"{', '.join(names) or 'none'}{hint}"
            )
        timed = node.operator is not None and EVENT_TIME in node.schema.names
        taken = OutputTag(tag.name, side_schema(tag.schema, timed))
        for known in self._env.graph.side_outputs(node.id):
            if known.name == taken.name and known != taken:
                raise JobError(
                    f"two tags of {node.named} are named {tag.name!r}, with ({_told(known.schema)}) and "
                    f"({_told(taken.schema)}): give each its own name"
                )
        build = partial(MapBatches, _same, taken.schema)
        spec = OperatorSpec(self._env.graph.next_uid(tag.name), "side_output", build, named=False)
        return self._env._add_operator(spec, taken.schema, node.parallelism, StreamInput(node.id, tag=taken))

    # --- ends ---

    def sink_to(self, sink: Sink, uid: str) -> DataStreamSink:
        """Ends the stream in a sink. By its `uid` a restarted job finds the output that it has yet to commit."""
        example = f"write to_spark_table({sink!r}, uid=...)" if isinstance(sink, str) else 'such as TableSink("counts")'
        checked_is("sink_to", sink, Sink, f"a sink ({example})")
        schema = self.schema
        if sink.gate is not None:
            sink.gate.check(pa.schema([field for field in schema if field.name != EVENT_TIME]))
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

    @property
    def _named(self) -> str:
        return self._env.graph.nodes[self._node].named

    def _checked_other(self, what: str, other: DataStream) -> DataStream:
        instead = f"a stream without keys, as in {what}(other).where(COLUMN).equal_to(COLUMN): it says the keys itself"
        checked_is(what, other, DataStream, instead)
        self._check_same_job(what, other)
        return other

    def _check_same_job(self, what: str, other: DataStream) -> None:
        if other._env is not self._env:
            raise JobError(f"{what}: the two streams belong to different environments, so to different jobs")

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
        each_record: bool = False,
    ) -> DataStream:
        name = self._env.graph.next_uid(kind) if uid is None else uid
        spec = OperatorSpec(name, kind, build, named=uid is not None, row_lane=row_lane, each_record=each_record)
        return self._add_operator(spec, schema)

    def _add_operator(self, spec: OperatorSpec, schema: pa.Schema, *more: StreamInput) -> DataStream:
        """Adds an operator that takes this stream first and then `more`, and returns the stream of its results."""
        return self._env._add_operator(spec, schema, self._parallelism(), self._input, *more)


_INSTEAD = {
    **foreign.STREAM,
    **{
        name: f"{name} needs key_by first, as in stream.key_by(COLUMN).{name}(...)"
        for name in ("window", "count_window", "reduce", "sum", "min", "max", "min_by", "max_by")
    },
    "interval_join": "interval_join needs key_by first, on both streams, as in "
    "left.key_by(COLUMN).interval_join(right.key_by(COLUMN))",
    **{
        name: f"call {name} before aggregate, as in window(...).{name}(...).aggregate(...)"
        for name in ("allowed_lateness", "trigger", "evictor", "side_output_late_data")
    },
    "side_output": "it is called get_side_output, as in PyFlink",
    "aggregate": "aggregate needs a window, as in stream.key_by(COLUMN).window(...).aggregate(...)",
}


def _side_output_hint(tag: OutputTag, spec: OperatorSpec) -> str:
    if tag == FAILED:
        return 'call on_error("dead_letter") behind map(...), and get_side_output on what it returns'
    if spec.kind == "window":
        return "call side_output_late_data(TAG) before aggregate, reduce or process"
    return "call get_side_output on the stream that process(...) returned"


def _told(schema: pa.Schema) -> str:
    """Returns a schema as messages compare it: event time is a difference, too, but its column is hidden."""
    return described(schema) + (", with event time" if EVENT_TIME in schema.names else ", without event time")


def _same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch
