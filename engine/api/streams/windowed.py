"""`WindowedStream`: the records of each key, divided into windows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NoReturn

import pyarrow as pa

from engine.api import foreign
from engine.api.columns import check_column, check_number, check_ordered
from engine.api.functions import no_method, shown
from engine.api.streams.window_functions import FunctionWindows
from engine.api.window_assigners import EventTimeSessionWindows, ProcessingTimeWindows
from engine.api.windows import EventTimeWindows
from engine.core.errors import JobError
from engine.core.event_time import EVENT_TIME, EVENT_TIME_FIELD, described
from engine.core.functions import AggregateFunction
from engine.core.window_functions import ProcessWindowFunction
from engine.graph.job_graph import OperatorSpec
from engine.graph.stream_graph import StreamInput
from engine.runtime.operators.base import Operator
from engine.runtime.operators.clock_window import ClockMerge, OnArrival
from engine.runtime.operators.session_window import SessionMerge
from engine.runtime.operators.window import InPanes, InSessions, Partials, WindowCombine, WindowMerge
from engine.state.windows.aggregates import Aggregate
from engine.state.windows.plan import ROWS, WINDOW, AggregatePlan
from engine.state.windows.session_plan import END, SessionPlan

if TYPE_CHECKING:  # for annotations only: see engine/api/streams/__init__.py
    from engine.api.streams.data import DataStream

_BOUNDS = ("window_start", "window_end")
_NUMBERS = (
    *("total", "mean", "variance", "stddev"),
    *("quantile", "quantiles", "approx_quantile", "approx_quantiles"),
)
"""The aggregates that need a number; all others but `count` need values that have an order."""
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


class WindowedStream(FunctionWindows):
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
        """Computes the named aggregates of each key and window, and emits one record when the window ends.

        The result has the key columns, `window_start`, `window_end`, and one column per aggregate.

            windows.aggregate(pv=count(), bytes=total("bytes"), uid="pv")

        An `AggregateFunction` in place of named aggregates is called with each record. Its accumulator has
        `accumulator_type`. `get_result` returns a record of `schema`; or it returns anything, and a `window_function`
        that gets it as its only element returns records of `schema`.

            windows.aggregate(Average(), accumulator_type="struct<sum long, n long>", schema="mean double", uid="mean")
        """
        if function is not None:
            if aggregates:
                raise JobError(f"window {uid!r} has an AggregateFunction and named aggregates: write two windows")
            return self._aggregate(function, window_function, uid, accumulator_type, schema)
        self._check_columnar(uid)
        self._check(uid, aggregates)
        return self._columnar(uid, aggregates)

    def _columnar(self, uid: str, aggregates: Mapping[str, Aggregate]) -> DataStream:
        """Adds the operators of named aggregates: one before the exchange, and the window behind it."""
        late, lateness_ms = self._options.late, self._options.lateness_ms
        plan, partials = self._plan(uid, aggregates)
        schema = self._result_schema(plan, aggregates)
        if isinstance(plan, SessionPlan):
            build: Callable[[], Operator] = partial(SessionMerge, plan, schema, lateness_ms, late)
        elif isinstance(self._assigner, EventTimeWindows):
            build = partial(WindowMerge, plan, self._assigner.spans, schema, lateness_ms, late)
        else:
            assert isinstance(self._assigner, ProcessingTimeWindows)
            build = partial(ClockMerge, plan, self._assigner.spans, schema)
        merge = OperatorSpec(
            uid,
            "window",
            build,
            state={"windows": str(self._assigner), "aggregates": plan.described()},
            side_outputs=() if late is None else (late,),
            corrects=lateness_ms > 0,
        )
        if late is not None:  # whole records travel: see engine/runtime/operators/window.py
            return self._keyed.add_operator(merge, schema)
        graph = self._keyed.env.graph
        before = graph.nodes[self._keyed.node]
        combine = OperatorSpec(f"{uid}.combine", "combine", partial(WindowCombine, partials, uid))
        combined = graph.add_operator(combine, plan.partial_schema, before.parallelism, StreamInput(before.id))
        return replace(self._keyed, node=combined, schema=plan.partial_schema).add_operator(merge, schema)

    def process(
        self, function: ProcessWindowFunction, *, uid: str, schema: pa.Schema | str | None = None
    ) -> DataStream:
        """Keeps all records of each window, and calls the function with them when the window is computed.

        The function returns any number of records of `schema`, which is the stream's own if not given, and
        `yield TAG, record` emits to a side output.
        """
        return self._process(function, uid, schema)

    def _check_columnar(self, uid: str) -> None:
        fixed = isinstance(self._assigner, EventTimeWindows | ProcessingTimeWindows) or self._gap_ms is not None
        if not fixed or self._options.trigger or self._options.evictor:
            raise JobError(
                f"window {uid!r}: named aggregates need tumbling or sliding windows, or sessions of event time with a "
                "fixed gap, without a trigger or an evictor: write an AggregateFunction, as in "
                "aggregate(Count(), uid=...)"
            )

    @property
    def _gap_ms(self) -> int | None:
        """The gap of sessions by event time, if it is fixed."""
        assigner = self._assigner
        return assigner.gap if isinstance(assigner, EventTimeSessionWindows) and isinstance(assigner.gap, int) else None

    def _check(self, uid: str, aggregates: Mapping[str, Aggregate]) -> None:
        if not aggregates:
            raise JobError(f"window {uid!r} needs at least one aggregate, as in pv=count()")
        for key in self._keyed.keys:
            if key in (*_BOUNDS, ROWS, WINDOW, END):
                raise JobError(f"the key {key!r} has the name of a column that windows add: rename it with select(...)")
        schema, taken = self._keyed.schema, {*self._keyed.keys, *_BOUNDS, EVENT_TIME}
        for name, aggregate in aggregates.items():
            if not isinstance(aggregate, Aggregate):
                raise JobError(
                    f"window {uid!r}: {name}={shown(aggregate)} is not an aggregate: write one such as count() or "
                    "total('bytes')"
                )
            for column in aggregate.columns:
                check = check_number if aggregate.kind in _NUMBERS else check_ordered
                (check_column if aggregate.kind == "count" else check)(
                    f"window {uid!r}: {name}={aggregate}", column, schema
                )
            if name in taken:
                raise JobError(f"the aggregate {name!r} has the name of another result column: choose another name")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            no_method(self, name, _INSTEAD)

    def _plan(self, uid: str, aggregates: Mapping[str, Aggregate]) -> tuple[AggregatePlan | SessionPlan, Partials]:
        """Returns the plan of the aggregates, and what makes their partials before the exchange."""
        keys, schema = self._keyed.keys, self._keyed.schema
        try:
            if self._gap_ms is not None:
                sessions = SessionPlan(keys, aggregates, schema, self._gap_ms)
                return sessions, InSessions(sessions)
            if isinstance(self._assigner, EventTimeWindows):
                plan = AggregatePlan(keys, aggregates, schema)
                return plan, InPanes(plan, self._assigner.spans)
            plan = AggregatePlan(keys, aggregates, schema if self._timed else schema.append(EVENT_TIME_FIELD))
            return plan, OnArrival(plan)
        except (pa.ArrowNotImplementedError, TypeError) as error:  # such as the sum of a string column
            given = ", ".join(f"{name}={aggregate}" for name, aggregate in aggregates.items())
            raise JobError(f"window {uid!r}, {given} of ({described(schema)}): {error}") from error

    def _result_schema(self, plan: AggregatePlan | SessionPlan, aggregates: Mapping[str, Aggregate]) -> pa.Schema:
        results = {field.name: field.type for field in plan.result_schema}
        stamp = pa.timestamp("us", tz="UTC")
        return pa.schema(
            [
                *(pa.field(key, results[key]) for key in self._keyed.keys),
                *(pa.field(bound, stamp) for bound in _BOUNDS),
                *(pa.field(name, results[name]) for name in aggregates),
                *([EVENT_TIME_FIELD] if self._timed else []),
            ]
        )
