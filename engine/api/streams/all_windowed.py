"""`AllWindowedStream`: the records of a stream without keys, divided into windows. One subtask computes all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import pyarrow as pa

from engine.api.functions import no_method
from engine.api.streams.aggregate_windows import AggregateWindows
from engine.api.streams.keyed_input import KeyedInput
from engine.core.functions import AggregateFunction
from engine.core.window_functions import ProcessAllWindowFunction
from engine.graph.job_graph import OperatorSpec
from engine.graph.stream_graph import StreamInput
from engine.runtime.operators.columnar import MapBatches
from engine.state.windows.aggregates import Aggregate

if TYPE_CHECKING:  # for annotations only: see engine/api/streams/__init__.py
    from engine.api.environment import StreamEnvironment
    from engine.api.streams.data import DataStream

ALL = "_all"
"""The key column of all records, which functions do not see."""


class AllWindowedStream(AggregateWindows):
    """A stream without keys whose records are divided into windows; `stream.window_all(assigner)` makes one."""

    _process_function = ProcessAllWindowFunction

    def aggregate(
        self,
        function: AggregateFunction | None = None,
        window_function: ProcessAllWindowFunction | None = None,
        /,
        *,
        uid: str,
        accumulator_type: pa.DataType | str | None = None,
        schema: pa.Schema | str | None = None,
        **aggregates: Aggregate,
    ) -> DataStream:
        """Computes the named aggregates of each window, and emits one record whenever the window fires.

        The result has `window_start`, `window_end`, and one column per aggregate. Global windows, and those of a
        number of records, have no bounds.

            views.window_all(TumblingEventTimeWindows.of("10 s")).aggregate(pv=count(), uid="pv")

        An `AggregateFunction` in place of named aggregates adds each record to the accumulator of its window.
        `get_result` returns a record of `schema`; or it returns anything, and a `window_function` that gets it as its
        only element returns records of `schema`.
        """
        return self._aggregated(uid, function, window_function, accumulator_type, schema, aggregates)

    def process(
        self, function: ProcessAllWindowFunction, *, uid: str, schema: pa.Schema | str | None = None
    ) -> DataStream:
        """Keeps all records of each window, and calls the function with them when the window is computed."""
        return self._process(function, uid, schema)

    def _placed(self, spec: OperatorSpec, out: pa.Schema, keyed: KeyedInput | None = None) -> DataStream:
        stream = self._keyed.env._add_operator(spec, out, 1, (keyed or self._keyed).hashed)
        stream._env.graph.nodes[stream._node].own_parallelism = True
        return stream

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            no_method(self, name, _INSTEAD)


_INSTEAD = {
    name: f"end the window first, as in window_all(...).process(...).{name}(...)"
    for name in ["sink_to", "to_spark_table", "print", "map", "flat_map", "filter", "select", "where", "key_by"]
}


def with_one_key(env: StreamEnvironment, before: StreamInput, schema: pa.Schema, parallelism: int) -> KeyedInput:
    """Gives all records of a stream one key, so that their windows are kept as those of a key are."""
    name = ALL
    while name in schema.names:
        name += "_"
    keyed = schema.append(pa.field(name, pa.int8()))

    def add_key(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.append_column(name, pa.repeat(pa.scalar(0, pa.int8()), batch.num_rows))

    spec = OperatorSpec(env.graph.next_uid("all"), "window_all", lambda: MapBatches(add_key, keyed), named=False)
    return KeyedInput(env, env.graph.add_operator(spec, keyed, parallelism, before), keyed, (name,))
