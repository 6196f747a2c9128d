"""`WindowedStream`: the records of each key, divided into windows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NoReturn

import pyarrow as pa

from engine.api.columns import check_column, check_number, check_ordered
from engine.api.functions import no_method
from engine.api.streams.keyed_input import KeyedInput
from engine.api.windows import EventTimeWindows
from engine.core.errors import JobError
from engine.core.event_time import EVENT_TIME, EVENT_TIME_FIELD, described
from engine.graph.job_graph import OperatorSpec
from engine.graph.stream_graph import StreamInput
from engine.runtime.operators.window import WindowCombine, WindowMerge
from engine.state.windows.aggregates import ROWS, WINDOW, Aggregate, AggregatePlan

if TYPE_CHECKING:  # for annotations only: see engine/api/streams/__init__.py
    from engine.api.streams.data import DataStream

_BOUNDS = ("window_start", "window_end")
_CHECKS = {"total": check_number, "mean": check_number, "minimum": check_ordered, "maximum": check_ordered}
_INSTEAD = {
    **{
        name: f"end the window with aggregate(...), as in window(...).aggregate(n=count(), uid=...).{name}(...)"
        for name in ["sink_to", "to_spark_table", "print", "map", "flat_map", "filter", "select", "where", "key_by"]
    },
    **{
        name: 'windows have aggregates only, as in window(...).aggregate(n=count(), sum=total("bytes"), uid=...)'
        for name in ["sum", "min", "max", "count", "reduce", "process", "apply"]
    },
}


class WindowedStream:
    """A keyed stream whose records are divided into windows; `keyed.window(assigner)` makes one."""

    def __init__(self, keyed: KeyedInput, assigner: EventTimeWindows) -> None:
        self._keyed = keyed
        self._assigner = assigner

    def aggregate(self, *, uid: str, **aggregates: Aggregate) -> DataStream:
        """Computes the named aggregates of each key and window, and emits one record when the window ends.

        The result has the key columns, `window_start`, `window_end`, and one column per aggregate.

            windows.aggregate(pv=count(), bytes=total("bytes"), uid="pv")
        """
        self._check(uid, aggregates)
        plan = self._plan(uid, aggregates)
        spans = self._assigner.spans
        graph = self._keyed.env.graph
        before = graph.nodes[self._keyed.node]
        combine = OperatorSpec(f"{uid}.combine", "combine", partial(WindowCombine, plan, spans, uid))
        combined = graph.add_operator(combine, plan.partial_schema, before.parallelism, StreamInput(before.id))
        schema = self._result_schema(plan, aggregates)
        state = {"windows": str(self._assigner), "aggregates": plan.described()}
        merge = OperatorSpec(uid, "window", partial(WindowMerge, plan, spans, schema), state=state)
        return replace(self._keyed, node=combined, schema=plan.partial_schema).add_operator(merge, schema)

    def _check(self, uid: str, aggregates: Mapping[str, Aggregate]) -> None:
        if not aggregates:
            raise JobError(f"window {uid!r} needs at least one aggregate, as in pv=count()")
        for key in self._keyed.keys:
            if key in (*_BOUNDS, ROWS, WINDOW):
                raise JobError(f"the key {key!r} has the name of a column that windows add: rename it with select(...)")
        schema, taken = self._keyed.schema, {*self._keyed.keys, *_BOUNDS, EVENT_TIME}
        for name, aggregate in aggregates.items():
            if not isinstance(aggregate, Aggregate):
                raise JobError(f"{name}={aggregate!r} is not an aggregate: write one such as count() or total('bytes')")
            if aggregate.column is not None:
                what = f"{name}={aggregate}"
                _CHECKS.get(aggregate.kind, check_column)(what, aggregate.column, schema)
            if name in taken:
                raise JobError(f"the aggregate {name!r} has the name of another result column: choose another name")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            no_method(self, name, _INSTEAD)

    def _plan(self, uid: str, aggregates: Mapping[str, Aggregate]) -> AggregatePlan:
        schema = self._keyed.schema
        try:
            return AggregatePlan(self._keyed.keys, aggregates, schema)
        except pa.ArrowNotImplementedError as error:  # such as the sum of a string column
            given = ", ".join(f"{name}={aggregate}" for name, aggregate in aggregates.items())
            raise JobError(f"window {uid!r}, {given} of ({described(schema)}): {error}") from error

    def _result_schema(self, plan: AggregatePlan, aggregates: Mapping[str, Aggregate]) -> pa.Schema:
        results = {field.name: field.type for field in plan.result_schema}
        stamp = pa.timestamp("us", tz="UTC")
        return pa.schema(
            [
                *(pa.field(key, results[key]) for key in self._keyed.keys),
                *(pa.field(bound, stamp) for bound in _BOUNDS),
                *(pa.field(name, results[name]) for name in aggregates),
                EVENT_TIME_FIELD,
            ]
        )
