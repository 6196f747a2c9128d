"""Windows with functions of the author's own: triggers, evictors, lateness, and `reduce`, `aggregate` and `process`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from engine.api.functions import check_methods, check_timers, checked_function, checked_is, shown
from engine.api.schema import out_schema
from engine.api.state_names import check_state_names
from engine.api.streams.keyed_input import KeyedInput
from engine.api.windows import WindowAssigner
from engine.core.builtin_triggers import (
    ContinuousEventTimeTrigger,
    CountTrigger,
    EventTimeTrigger,
    ProcessingTimeTrigger,
    PurgingTrigger,
    described,
)
from engine.core.ddl import ddl_of, parse_type
from engine.core.durations import Duration, to_ms
from engine.core.errors import JobError
from engine.core.event_time import EVENT_TIME
from engine.core.event_time import described as fields_of
from engine.core.evictors import CountEvictor, Evictor
from engine.core.functions import AggregateFunction, Function, ReduceFunction, Row
from engine.core.tags import OutputTag
from engine.core.triggers import Trigger
from engine.core.window_functions import ProcessAllWindowFunction, ProcessWindowFunction
from engine.graph.compatibility import EVICTED
from engine.graph.job_graph import OperatorSpec
from engine.runtime.functions import own
from engine.runtime.operators.window_contents import Aggregated, Contents, Records, Reduced, Timestamped
from engine.runtime.operators.window_panes import share_panes
from engine.runtime.operators.windowed_functions import AnyWindowFunction, WindowOperator, WindowPlan
from engine.state.windows.assigners import Assigner, GlobalAssigner

if TYPE_CHECKING:  # for annotations only: see engine/api/streams/__init__.py
    from engine.api.streams.data import DataStream

_SHARED = "what merge(left, right) or reduce combines when a window fires"
"""Describes that windows share panes. A version that keeps contents per window can't go on from such a snapshot."""

_ON_TIME = "time, window, context"
_TRIGGER_METHODS = {
    "on_element": "element, timestamp, window, context",
    "on_event_time": _ON_TIME,
    "on_processing_time": _ON_TIME,
    "on_merge": "window, context",
    "clear": "window, context",
}
_EVICTOR_METHODS = dict.fromkeys(("evict_before", "evict_after"), "elements, size, window, context")

W = TypeVar("W", bound="FunctionWindows")
Fold = Callable[[pa.DataType], tuple[Contents, Any]]
"""Makes the contents of windows and their function for one subtask, from the type of a record."""
Make = Callable[[WindowPlan, Sequence[str], pa.Schema, pa.Schema], WindowOperator]


@dataclass(frozen=True)
class WindowOptions:
    """What was set on a windowed stream before its function."""

    trigger: Trigger | None = None
    evictor: Evictor | None = None
    lateness_ms: int = 0
    late: OutputTag | None = None


class FunctionWindows:
    """The part of windowed streams that calls functions of the author, one record at a time.

    `hidden` is the key column of a stream without keys, which functions do not see.
    """

    _process_function: type[ProcessWindowFunction] | type[ProcessAllWindowFunction] = ProcessWindowFunction

    def __init__(
        self,
        keyed: KeyedInput,
        assigner: WindowAssigner,
        options: WindowOptions | None = None,
        hidden: str | None = None,
    ) -> None:
        self._keyed = keyed
        self._assigner = assigner
        self._options = options or WindowOptions()
        self._hidden = hidden

    # --- options ---

    def trigger(self: W, trigger: Trigger) -> W:
        """Sets when windows are computed, in place of the assigner's own trigger."""
        checked_is("trigger", trigger, Trigger, "a trigger such as CountTrigger.of(3)")
        check_methods("trigger", trigger, _TRIGGER_METHODS)
        if self._assigner.compiled().merging and not trigger.can_merge():
            raise JobError(
                f"trigger: {self._assigner} merge, but {type(trigger).__name__} has no on_merge(window, context): "
                "add it"
            )
        return self._with(replace(self._options, trigger=trigger))

    def evictor(self: W, evictor: Evictor) -> W:
        """Sets what removes records from a window when it is computed. The window then keeps all of its records."""
        checked_is("evictor", evictor, Evictor, "an evictor such as CountEvictor.of(10)")
        check_methods("evictor", evictor, _EVICTOR_METHODS)
        if all(getattr(type(evictor), name) is getattr(Evictor, name) for name in _EVICTOR_METHODS):
            raise JobError(
                f"evictor: {type(evictor).__name__} removes nothing: write "
                "def evict_before(self, elements, size, window, context)"
            )
        return self._with(replace(self._options, evictor=evictor))

    def allowed_lateness(self: W, lateness: Duration) -> W:
        """Keeps windows for so long after their end, such as "1 min", and computes them again for each late record.

        Named aggregates are computed again once per key for each batch of late records.
        """
        self._check_event_time("allowed_lateness")
        return self._with(replace(self._options, lateness_ms=to_ms(lateness, "allowed_lateness")))

    def side_output_late_data(self: W, tag: OutputTag) -> W:
        """Emits late records to a side output instead of dropping them. The tag has the schema of the stream.

        Before named aggregates, all records then travel to the window one by one, since only there it is known which
        are late.

            LATE = OutputTag("late", "app_id string, bytes long, ts timestamp")
            counts = windows.side_output_late_data(LATE).aggregate(n=count(), uid="n")
            counts.get_side_output(LATE).sink_to(TableSink("late"), uid="late")
        """
        self._check_event_time("side_output_late_data")
        visible = self._visible
        checked_is("side_output_late_data", tag, OutputTag, f'a tag such as OutputTag("late", "{ddl_of(visible)}")')
        if not tag.schema.equals(visible):
            raise JobError(
                f"side_output_late_data: the tag {tag.name!r} has ({ddl_of(tag.schema)}), but late records have the "
                f"fields of the stream, ({ddl_of(visible)}): declare these"
            )
        return self._with(replace(self._options, late=tag))

    def _with(self: W, options: WindowOptions) -> W:
        return type(self)(self._keyed, self._assigner, options, self._hidden)

    def _check_event_time(self, what: str) -> None:
        if not self._assigner.compiled().event_time:
            raise JobError(f"{what}: windows that are {self._assigner} have no late records: leave it out")

    # --- functions ---

    def reduce(
        self,
        function: Callable[[Row, Row], Row] | ReduceFunction,
        window_function: AnyWindowFunction | None = None,
        *,
        uid: str,
        schema: pa.Schema | str | None = None,
    ) -> DataStream:
        """Reduces the records of each window to one, with a function of two records, and emits it.

        A `window_function` gets that record as its only element, and returns records of `schema`. The function is
        associative: sliding windows reduce the records of each pane, and then the panes of a window.

            windows.reduce(lambda left, right: {**right, "n": left["n"] + right["n"]}, uid="sums")
        """
        checked_function("reduce", function, ReduceFunction, "lambda left, right: {**right, 'n': left['n'] + 1}")
        if window_function is not None:
            self._check_window_function(uid, window_function)
        elif schema is not None:
            raise JobError(
                f"window {uid!r}: reduce returns records with the fields of the stream; leave schema out, or add a "
                "ProcessWindowFunction as second argument"
            )

        def fold(record: pa.DataType) -> tuple[Contents, Any]:
            mine = own(function)
            return Reduced(mine.reduce if isinstance(mine, ReduceFunction) else mine, record), mine

        return self._add(uid, fold, window_function, schema, "reduced record", fields_of(self._visible), True)

    def _aggregate(
        self,
        function: AggregateFunction,
        window_function: AnyWindowFunction | None,
        uid: str,
        accumulator_type: pa.DataType | str | None,
        schema: pa.Schema | str | None,
    ) -> DataStream:
        self._check_aggregate(uid, function)
        name = type(function).__name__
        if window_function is not None:
            self._check_window_function(uid, window_function)
        if accumulator_type is None:
            raise JobError(
                f"window {uid!r}: declare the type of the accumulator of {name}, as in accumulator_type='long' or "
                "accumulator_type='struct<sum long, n long>': it is part of the snapshot"
            )
        if schema is None:
            raise JobError(
                f"window {uid!r}: declare the fields of the results with schema=..., as in schema='n long'; "
                f"{'the window function' if window_function else f'get_result of {name}'} returns records of it"
            )
        accumulator = parse_type(accumulator_type, "accumulator_type")

        def fold(record: pa.DataType) -> tuple[Contents, Any]:
            mine = own(function)
            return Aggregated(mine, accumulator, record), mine

        merges = type(function).merge is not AggregateFunction.merge
        return self._add(uid, fold, window_function, schema, "accumulator", f"accumulator {accumulator}", merges)

    def _process(self, function: Any, uid: str, schema: pa.Schema | str | None) -> DataStream:
        self._check_window_function(uid, function)
        fields = fields_of(self._visible)
        return self._add(uid, lambda record: (Records(record), None), function, schema, "records", fields)

    # --- building ---

    @property
    def _visible(self) -> pa.Schema:
        """The fields of the stream as functions see them."""
        return pa.schema([f for f in self._keyed.schema if f.name not in (EVENT_TIME, self._hidden)])

    def _check_aggregate(self, uid: str, function: AggregateFunction) -> None:
        """Refuses what is no aggregate function, or one that lacks a method that these windows need."""
        if isinstance(function, type) and issubclass(function, AggregateFunction):
            name = function.__name__
            raise JobError(f"window {uid!r}: aggregate takes an object, not the class {name}: write {name}()")
        if not isinstance(function, AggregateFunction):
            raise JobError(
                f"window {uid!r}: aggregate takes an object of a class that extends AggregateFunction, or built-in "
                f"aggregates by name, as in aggregate(n=count(), uid=...), not {shown(function)}"
            )
        name = type(function).__name__
        for method in ("create_accumulator", "add", "get_result"):
            if getattr(type(function), method) is getattr(AggregateFunction, method):
                raise JobError(f"window {uid!r}: {name} has no {method}(...): add it")
        if self._assigner.compiled().merging and type(function).merge is AggregateFunction.merge:
            raise JobError(
                f"window {uid!r}: {self._assigner} merge, but {name} has no merge(left, right): add it, and return "
                "the accumulator of what both hold"
            )

    def _check_window_function(self, uid: str, function: Any) -> None:
        kind = self._process_function
        arguments = "key, context, elements" if kind is ProcessWindowFunction else "context, elements"
        what = f"window {uid!r}: process takes an object of a class that extends {kind.__name__}"
        if isinstance(function, type) and issubclass(function, Function):
            name = function.__name__
            raise JobError(f"window {uid!r}: process takes an object of {name}, not the class: write {name}()")
        check_timers(f"window {uid!r}: process", function)
        if isinstance(function, ProcessWindowFunction | ProcessAllWindowFunction) and not isinstance(function, kind):
            keys = "has keys" if kind is ProcessWindowFunction else "has no keys"
            raise JobError(f"{what}, because the stream {keys}, not {shown(function)}")
        if not isinstance(function, kind):
            raise JobError(f"{what}, not {shown(function)}")
        try:
            inspect.signature(function.process).bind(*arguments.split(", "))
        except TypeError:
            raise JobError(
                f"window {uid!r}: {type(function).__name__}.process must be called as it is declared: "
                f"def process(self, {arguments})"
            ) from None
        check_state_names(f"window {uid!r}", function)

    def _add(
        self,
        uid: str,
        fold: Fold,
        function: AnyWindowFunction | None,
        schema: pa.Schema | str | None,
        kept: str,
        kept_type: str,
        combines: bool = False,
        make: Make = WindowOperator,
    ) -> DataStream:
        """Adds the operator. `kept` and its type say in the description of the job what windows hold.

        `combines`: the contents of several panes can be made one. `make` makes the operator.
        """
        keyed, options, hidden = self._keyed, self._options, self._hidden
        assigner, record = self._assigner.compiled(), pa.struct(list(self._visible))
        trigger = _checked_trigger(options.trigger, assigner, self._timed, uid)
        before = self._visible.append(keyed.schema.field(EVENT_TIME)) if self._timed else self._visible
        out = out_schema(schema, before)
        panes = combines and share_panes(assigner, trigger, options.evictor)

        def build() -> WindowOperator:
            contents, folding = fold(record)
            mine = own(function)
            if options.evictor is not None:
                contents = Timestamped(contents, record)
            plan = WindowPlan(
                assigner,
                own(trigger),
                contents,
                mine,
                own(options.evictor),
                options.lateness_ms,
                options.late,
                tuple(one for one in (folding, mine) if one is not None),
                hidden,
                panes,
            )
            return make(plan, keyed.keys, keyed.schema, out)

        if options.evictor is not None:
            kept, kept_type = EVICTED, fields_of(self._visible)
        shared = {"panes": _SHARED} if panes else {}
        spec = OperatorSpec(
            uid,
            "window",
            build,
            row_lane=True,
            state={"windows": str(self._assigner), kept: kept_type, "trigger": described(trigger), **shared},
            emits_aside=function is not None,
            side_outputs=() if options.late is None else (options.late,),
            each_record=True,
        )
        return self._placed(spec, out)

    def _placed(self, spec: OperatorSpec, out: pa.Schema, keyed: KeyedInput | None = None) -> DataStream:
        """Adds an operator behind the exchange. `keyed`: what goes there, if it is not the stream itself."""
        return (keyed or self._keyed).add_operator(spec, out)

    @property
    def _timed(self) -> bool:
        return EVENT_TIME in self._keyed.schema.names


def _checked_trigger(trigger: Trigger | None, assigner: Assigner, timed: bool, uid: str) -> Trigger:
    """Returns the trigger of these windows. Refuses one with which they would never have a result."""
    if trigger is None:
        if isinstance(assigner, GlobalAssigner):
            raise JobError(
                f"window {uid!r}: a global window never ends, so it has no result without a trigger: add one, such as "
                ".trigger(CountTrigger.of(100)), or NeverTrigger() if that is what you want"
            )
        return EventTimeTrigger() if assigner.event_time else ProcessingTimeTrigger()
    fires = trigger.nested if isinstance(trigger, PurgingTrigger) else trigger
    if isinstance(fires, EventTimeTrigger | ContinuousEventTimeTrigger) and not timed:
        raise JobError(
            f"window {uid!r}: {type(fires).__name__} fires by event time, which the stream does not have: call "
            "assign_timestamps_and_watermarks(...) before key_by(...), or take a trigger of processing time"
        )
    if isinstance(fires, ProcessingTimeTrigger) and isinstance(assigner, GlobalAssigner):
        raise JobError(
            f"window {uid!r}: ProcessingTimeTrigger fires at the end of a window, and a global one has none: write "
            'ContinuousProcessingTimeTrigger.of("10 s")'
        )
    return trigger


def checked_assigner(what: str, assigner: WindowAssigner, schema: pa.Schema) -> WindowAssigner:
    """Returns an assigner that fits a stream of this schema."""
    if isinstance(assigner, type) and issubclass(assigner, WindowAssigner):
        raise JobError(f"{what} takes windows, not the class {assigner.__name__}: write {_example(assigner)}")
    checked_is(what, assigner, WindowAssigner, 'windows such as TumblingEventTimeWindows.of("10 s")')
    if assigner.compiled().event_time and EVENT_TIME not in schema.names:
        before = "before key_by(...)" if what == "window" else "first"
        raise JobError(f"{what} needs event time: call assign_timestamps_and_watermarks(...) {before}")
    return assigner


def _example(assigner: type[WindowAssigner]) -> str:
    ways = {"of": '.of("10 s")', "with_gap": '.with_gap("10 s")', "create": ".create()"}
    return assigner.__name__ + next((call for way, call in ways.items() if hasattr(assigner, way)), "(...)")


def count_options(what: str, size: int, slide: int | None) -> WindowOptions:
    """Returns the trigger and the evictor that make count windows of a global window."""
    for name, given in (("size", size), ("slide", slide)):
        if given is not None and (type(given) is not int or given < 1):
            raise JobError(f"{what}: the {name} is a number of records, 1 or more, not {given!r}")
    if slide is None:
        return WindowOptions(PurgingTrigger.of(CountTrigger.of(size)))
    return WindowOptions(CountTrigger.of(slide), CountEvictor.of(size))
