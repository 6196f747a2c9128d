"""Built-in aggregates on windows: on whole batches where that is possible, and else one record at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from engine.api.columns import check_column, check_number, check_ordered
from engine.api.functions import shown
from engine.api.streams.window_functions import FunctionWindows
from engine.api.window_assigners import EventTimeSessionWindows, ProcessingTimeWindows
from engine.api.windows import EventTimeWindows
from engine.core.errors import JobError
from engine.core.event_time import EVENT_TIME, EVENT_TIME_FIELD, described
from engine.core.functions import AggregateFunction
from engine.graph.compatibility import AGGREGATES, BY_RECORD
from engine.graph.job_graph import OperatorSpec
from engine.graph.stream_graph import StreamInput
from engine.runtime.operators.base import Operator
from engine.runtime.operators.clock_window import ClockMerge, OnArrival
from engine.runtime.operators.session_window import SessionMerge
from engine.runtime.operators.window import WindowMerge
from engine.runtime.operators.window_aggregates import Accumulated, AggregateWindowOperator
from engine.runtime.operators.window_combine import InPanes, InSessions, Partials, WindowCombine
from engine.runtime.operators.window_panes import default_trigger
from engine.runtime.operators.windowed_functions import AnyWindowFunction
from engine.state.key_columns import plain_type
from engine.state.windows.aggregates import Aggregate
from engine.state.windows.assigners import GlobalAssigner
from engine.state.windows.plan import ROWS, WINDOW, AggregatePlan
from engine.state.windows.record_plan import RecordPlan
from engine.state.windows.session_plan import END, SessionPlan

if TYPE_CHECKING:  # for annotations only: see engine/api/streams/__init__.py
    from engine.api.streams.data import DataStream

_BOUNDS = ("window_start", "window_end")
_NUMBERS = (
    *("total", "mean", "variance", "stddev"),
    *("quantile", "quantiles", "approx_quantile", "approx_quantiles"),
)
"""The aggregates that need a number; all others but `count` need values that have an order."""


class AggregateWindows(FunctionWindows):
    """The part of windowed streams that computes built-in aggregates."""

    def _aggregated(
        self,
        uid: str,
        function: AggregateFunction | None,
        window_function: AnyWindowFunction | None,
        accumulator_type: pa.DataType | str | None,
        schema: pa.Schema | str | None,
        aggregates: Mapping[str, Aggregate],
    ) -> DataStream:
        """Adds the operators of an `AggregateFunction`, or of named aggregates."""
        if function is not None:
            if aggregates:
                raise JobError(f"window {uid!r} has an AggregateFunction and named aggregates: write two windows")
            return self._aggregate(function, window_function, uid, accumulator_type, schema)
        self._check(uid, aggregates)
        return self._columnar(uid, aggregates) if self._on_batches else self._by_record(uid, aggregates)

    @property
    def _on_batches(self) -> bool:
        """Says whether whole batches are aggregated: in windows of fixed size or gap that fire at their end."""
        fixed = isinstance(self._assigner, EventTimeWindows | ProcessingTimeWindows) or self._gap_ms is not None
        trigger = self._options.trigger
        usual = trigger is None or default_trigger(self._assigner.compiled(), trigger)
        return fixed and usual and self._options.evictor is None

    @property
    def _gap_ms(self) -> int | None:
        """The gap of sessions by event time, if it is fixed."""
        assigner = self._assigner
        return assigner.gap if isinstance(assigner, EventTimeSessionWindows) and isinstance(assigner.gap, int) else None

    @property
    def _bounds(self) -> tuple[str, ...]:
        """The columns with the bounds of a window: a global one, and so one of a number of records, has none."""
        return () if isinstance(self._assigner.compiled(), GlobalAssigner) else _BOUNDS

    @property
    def _visible_keys(self) -> list[str]:
        return [key for key in self._keyed.keys if key != self._hidden]

    def _check(self, uid: str, aggregates: Mapping[str, Aggregate]) -> None:
        if not aggregates:
            raise JobError(f"window {uid!r} needs at least one aggregate, as in pv=count()")
        for key in self._keyed.keys:
            if key in (*self._bounds, ROWS, WINDOW, END):
                raise JobError(f"the key {key!r} has the name of a column that windows add: rename it with select(...)")
        schema, taken = self._visible, {*self._keyed.keys, *self._bounds, EVENT_TIME}
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

    def _no_kernel(self, uid: str, aggregates: Mapping[str, Aggregate], error: Exception) -> JobError:
        given = ", ".join(f"{name}={aggregate}" for name, aggregate in aggregates.items())
        return JobError(f"window {uid!r}, {given} of ({described(self._visible)}): {error}")

    def _result_schema(self, results: pa.Schema, aggregates: Mapping[str, Aggregate]) -> pa.Schema:
        stamp = pa.timestamp("us", tz="UTC")
        return pa.schema(
            [
                *(pa.field(key, results.field(key).type) for key in self._visible_keys),
                *(pa.field(bound, stamp) for bound in self._bounds),
                *(pa.field(name, results.field(name).type) for name in aggregates),
            ]
        )

    # --- on whole batches ---

    def _columnar(self, uid: str, aggregates: Mapping[str, Aggregate]) -> DataStream:
        """Adds the operators of named aggregates: one before the exchange, and the window behind it."""
        late, lateness_ms = self._options.late, self._options.lateness_ms
        plan, partials = self._plan(uid, aggregates)
        schema = self._result_schema(plan.result_schema, aggregates)
        schema = schema.append(EVENT_TIME_FIELD) if self._timed else schema
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
            state={"windows": str(self._assigner), AGGREGATES: plan.described()},
            side_outputs=() if late is None else (late,),
            corrects=lateness_ms > 0,
        )
        if late is not None:  # whole records travel: see engine/runtime/operators/window.py
            return self._placed(merge, schema)
        graph = self._keyed.env.graph
        before = graph.nodes[self._keyed.node]
        combine = OperatorSpec(f"{uid}.combine", "combine", partial(WindowCombine, partials, uid))
        combined = graph.add_operator(combine, plan.partial_schema, before.parallelism, StreamInput(before.id))
        return self._placed(merge, schema, replace(self._keyed, node=combined, schema=plan.partial_schema))

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
            raise self._no_kernel(uid, aggregates, error) from error

    # --- one record at a time ---

    def _by_record(self, uid: str, aggregates: Mapping[str, Aggregate]) -> DataStream:
        """Adds the window operator of the row lane, with an accumulator of the aggregates for each window."""
        try:
            plan = RecordPlan(aggregates, self._keyed.schema)
        except (pa.ArrowNotImplementedError, TypeError) as error:
            raise self._no_kernel(uid, aggregates, error) from error
        keys = [pa.field(key, plain_type(self._keyed.schema.field(key).type)) for key in self._visible_keys]
        schema = self._result_schema(pa.schema([*keys, *plan.result_schema]), aggregates)
        assigner = self._assigner.compiled()
        timed = self._timed and isinstance(assigner, GlobalAssigner)
        contents = Accumulated(plan, by_clock=not assigner.event_time and not timed)
        return self._add(
            uid,
            lambda record: (contents, None),
            None,
            schema,
            BY_RECORD,
            plan.described(),
            make=partial(AggregateWindowOperator, plan),
        )
