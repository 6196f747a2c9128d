"""`KeyedStream`: a stream by key. Operators behind it keep state per key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, overload

import pyarrow as pa

from engine.api import foreign
from engine.api.columns import check_number, check_ordered
from engine.api.functions import checked_function, checked_is, checked_process_function, no_method
from engine.api.schema import out_schema
from engine.api.streams.broadcast import BroadcastStream, checked_broadcast
from engine.api.streams.connected import KeyedBroadcastConnectedStream, KeyedConnectedStreams
from engine.api.streams.interval_join import IntervalJoin
from engine.api.streams.keyed_input import KeyedInput
from engine.api.streams.window_functions import checked_assigner, count_options
from engine.api.streams.windowed import WindowedStream
from engine.api.window_assigners import GlobalWindows
from engine.api.windows import WindowAssigner
from engine.core.errors import JobError
from engine.core.event_time import described
from engine.core.functions import KeyedProcessFunction, ReduceFunction, Row
from engine.graph.job_graph import OperatorSpec
from engine.runtime.functions import own
from engine.runtime.operators.base import Operator
from engine.runtime.operators.process import KeyedProcess
from engine.runtime.operators.rows import KeyedReduce

if TYPE_CHECKING:  # for annotations only: see engine/api/streams/__init__.py
    from engine.api.streams.data import DataStream


class KeyedStream:
    """A stream whose records are grouped by key: all records of a key reach the same subtask.

    `key_by` makes one. Its operators keep state per key, so each needs a `uid`, by which its state is found again
    after a restart.
    """

    def __init__(self, keyed: KeyedInput) -> None:
        self._keyed = keyed

    def window(self, assigner: WindowAssigner) -> WindowedStream:
        """Divides the records of each key into windows, for `aggregate`, `reduce` or `process`.

        Windows of event time need it: call `assign_timestamps_and_watermarks` before `key_by`.

            views.key_by("app_id").window(TumblingEventTimeWindows.of("10 s")).aggregate(pv=count(), uid="pv")
        """
        return WindowedStream(self._keyed, checked_assigner("window", assigner, self._keyed.schema))

    def count_window(self, size: int, slide: int | None = None) -> WindowedStream:
        """Divides the records of each key into windows of `size` records; or takes the last `size` after each `slide`.

        payments.key_by("user").count_window(3).process(Three(), uid="threes")
        """
        return WindowedStream(self._keyed, GlobalWindows.create(), count_options("count_window", size, slide))

    def reduce(self, function: Callable[[Row, Row], Row] | ReduceFunction, uid: str) -> DataStream:
        """Combines the records of each key into one running value, and emits that value for every record.

        `function(left, right)` takes the running value and the next record, and returns the new running value. The
        first record of a key is its first value. The schema stays the same.

            payments.key_by("user").reduce(lambda left, right: {**right, "n": left["n"] + right["n"]}, uid="paid")
        """
        checked_function("reduce", function, ReduceFunction, "lambda left, right: {**right, 'n': left['n'] + 1}")
        keys, schema = self._keyed.keys, self._keyed.schema

        def build() -> Operator:
            mine = own(function)
            return KeyedReduce(mine, mine.reduce if isinstance(mine, ReduceFunction) else mine, keys, schema)

        return self._add("reduce", uid, build, schema, {"running value": described(schema)})

    def sum(self, column: str, uid: str) -> DataStream:
        """Emits every record with `column` replaced by the sum of its key's values so far; nulls are skipped."""
        check_number("sum", column, self._keyed.schema)
        return self._running(column, uid, lambda left, right: left + right)

    def min(self, column: str, uid: str) -> DataStream:
        """Emits every record with `column` replaced by the least of its key's values so far; nulls are skipped."""
        check_ordered("min", column, self._keyed.schema)
        return self._running(column, uid, min)

    def max(self, column: str, uid: str) -> DataStream:
        """Emits every record with `column` replaced by the greatest of its key's values so far; nulls are skipped."""
        check_ordered("max", column, self._keyed.schema)
        return self._running(column, uid, max)

    def min_by(self, column: str, uid: str) -> DataStream:
        """Emits for every record the record of its key with the least value of `column` so far; of equals the first.

        Records whose value is null are not taken, unless the key has no other.
        """
        check_ordered("min_by", column, self._keyed.schema)
        return self._first_by(column, uid, lambda value, held: value < held)

    def max_by(self, column: str, uid: str) -> DataStream:
        """Emits for every record the record of its key with the greatest value of `column` so far; of equals the first.

        Records whose value is null are not taken, unless the key has no other.
        """
        check_ordered("max_by", column, self._keyed.schema)
        return self._first_by(column, uid, lambda value, held: value > held)

    def process(self, function: KeyedProcessFunction, uid: str, schema: pa.Schema | str | None = None) -> DataStream:
        """Calls the function with each record; it may use the state and the timers of the record's key.

        The function returns any number of records of `schema`, which is the stream's own if not given, and
        `yield TAG, record` emits to a side output.
        """
        checked_process_function("process", function, KeyedProcessFunction)
        keys, before = self._keyed.keys, self._keyed.schema
        out = out_schema(schema, before)
        spec = OperatorSpec(
            uid,
            "process",
            lambda: KeyedProcess(own(function), keys, before, out),
            row_lane=True,
            emits_aside=True,
            each_record=True,
        )
        return self._keyed.add_operator(spec, out)

    @overload
    def connect(self, other: KeyedStream) -> KeyedConnectedStreams: ...
    @overload
    def connect(self, other: BroadcastStream) -> KeyedBroadcastConnectedStream: ...
    def connect(self, other: KeyedStream | BroadcastStream) -> KeyedConnectedStreams | KeyedBroadcastConnectedStream:
        """Connects another keyed stream, whose records of the same key share state; or a broadcast stream.

        The key columns of both streams need the same types. All records of a broadcast stream reach every subtask.
        """
        if isinstance(other, KeyedStream):
            return KeyedConnectedStreams(self._keyed, other._keyed)
        if hasattr(other, "key_by"):
            raise JobError(
                "connect: this stream has keys and the other one has none: call key_by(...) on it, too, or broadcast "
                "it with the state that its records change, as in "
                'rules.broadcast(MapStateDescriptor("rules", "string", "long"))'
            )
        return KeyedBroadcastConnectedStream(self._keyed, checked_broadcast(other, self._keyed.env))

    def interval_join(self, other: KeyedStream) -> IntervalJoin:
        """Joins another keyed stream: records with the same key whose event times are not too far apart.

        Both streams need event time, and key columns of the same types. Null equals nothing, as in SQL.

            orders.key_by("id").interval_join(payments.key_by("order")).between(0, "15 min").select(uid="paid")
        """
        if hasattr(other, "key_by") and not isinstance(other, KeyedStream):
            raise JobError("interval_join: the other stream has no keys: call key_by(...) on it, too")
        checked_is("interval_join", other, KeyedStream, 'a keyed stream, as in interval_join(payments.key_by("order"))')
        return IntervalJoin(self._keyed, other._keyed)

    def _first_by(self, column: str, uid: str, better: Callable[[Any, Any], bool]) -> DataStream:
        def chosen(left: Row, right: Row) -> Row:
            held, value = left[column], right[column]
            return right if value is not None and (held is None or better(value, held)) else left

        return self.reduce(chosen, uid)

    def _running(self, column: str, uid: str, combine: Callable[[Any, Any], Any]) -> DataStream:
        def running(left: Row, right: Row) -> Row:
            """Skips nulls, as SQL does: the value stays null until a key's first one that is not."""
            before, value = left[column], right[column]
            if before is not None:
                value = before if value is None else combine(before, value)
            return {**right, column: value}

        return self.reduce(running, uid)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            no_method(self, name, _INSTEAD)

    def _add(
        self, kind: str, uid: str, build: Callable[[], Operator], schema: pa.Schema, state: Mapping[str, str]
    ) -> DataStream:
        spec = OperatorSpec(uid, kind, build, row_lane=True, state=state, each_record=True)
        return self._keyed.add_operator(spec, schema)


_BEFORE = (
    *("map", "flat_map", "filter", "select", "where", "map_batches", "join_static", "key_by", "union"),
    *("assign_timestamps_and_watermarks", "sink_to", "to_spark_table", "print", "on_error"),
)
_INSTEAD = {
    **foreign.STREAM,
    **foreign.KEYED,
    **{
        name: f"call {name} before key_by, or on the result of sum, reduce, process or window(...).aggregate(...)"
        for name in _BEFORE
    },
    **{
        name: f"call {name} before key_by, as in left.{name}(right).where(COLUMN).equal_to(COLUMN).window(...); "
        "keyed streams have interval_join"
        for name in ("join", "co_group")
    },
    "get_side_output": "call get_side_output on the stream that process(...) returned",
    "aggregate": "aggregate needs a window, as in keyed.window(...).aggregate(...)",
    "count": "count the records of windows with window(...).aggregate(n=count(), uid=...), or all with process",
}
