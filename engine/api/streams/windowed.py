"""`WindowedStream`: the records of each key, divided into windows."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import pyarrow as pa

from engine.api import foreign
from engine.api.functions import no_method
from engine.api.streams.aggregate_windows import AggregateWindows
from engine.core.functions import AggregateFunction
from engine.core.window_functions import ProcessWindowFunction
from engine.state.windows.aggregates import Aggregate

if TYPE_CHECKING:  # for annotations only: see engine/api/streams/__init__.py
    from engine.api.streams.data import DataStream

_INSTEAD = {
    **foreign.WINDOWED,
    **{
        name: f"end the window with aggregate(...), as in window(...).aggregate(n=count(), uid=...).{name}(...)"
        for name in ["sink_to", "to_spark_table", "print", "map", "flat_map", "filter", "select", "where", "key_by"]
    },
    **{
        name: 'write aggregates, as in window(...).aggregate(n=count(), sum=total("bytes"), uid=...)'
        for name in ["sum", "min", "max", "count"]
    },
    "apply": "write process(...) with a ProcessWindowFunction",
}


class WindowedStream(AggregateWindows):
    """A keyed stream whose records are divided into windows; `keyed.window(assigner)` makes one."""

    def aggregate(
        self,
        function: AggregateFunction | None = None,
        window_function: ProcessWindowFunction | None = None,
        /,
        *,
        uid: str,
        accumulator_type: pa.DataType | str | None = None,
        schema: pa.Schema | str | None = None,
        **aggregates: Aggregate,
    ) -> DataStream:
        """Computes the named aggregates of each key and window, and emits one record whenever the window fires.

        The result has the key columns, `window_start`, `window_end`, and one column per aggregate. Global windows, and
        those of a number of records, have no bounds.

            windows.aggregate(pv=count(), bytes=total("bytes"), uid="pv")

        An `AggregateFunction` in place of named aggregates is called with each record. Its accumulator has
        `accumulator_type`. `get_result` returns a record of `schema`; or it returns anything, and a `window_function`
        that gets it as its only element returns records of `schema`.

            windows.aggregate(Average(), accumulator_type="struct<sum long, n long>", schema="mean double", uid="mean")
        """
        return self._aggregated(uid, function, window_function, accumulator_type, schema, aggregates)

    def process(
        self, function: ProcessWindowFunction, *, uid: str, schema: pa.Schema | str | None = None
    ) -> DataStream:
        """Keeps all records of each window, and calls the function with them when the window is computed.

        The function returns any number of records of `schema`, which is the stream's own if not given, and
        `yield TAG, record` emits to a side output.
        """
        return self._process(function, uid, schema)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            no_method(self, name, _INSTEAD)
