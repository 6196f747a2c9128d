"""Mistakes with windows. Each is told when the job is written, with what was given and what to write."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from engine.api import (
    AggregateFunction,
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountEvictor,
    CountTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GlobalWindows,
    JobError,
    NeverTrigger,
    OutputTag,
    ProcessAllWindowFunction,
    ProcessingTimeSessionWindows,
    ProcessingTimeTrigger,
    ProcessWindowFunction,
    PurgingTrigger,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TimeEvictor,
    Trigger,
    TriggerResult,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    ValueStateDescriptor,
    count,
    total,
)
from tests.api.streams.building import TEN_SECONDS, timed, views

SESSIONS = EventTimeSessionWindows.with_gap("10 s")


class Count(AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + 1

    def get_result(self, accumulator: int) -> Any:
        return {"n": accumulator}


class OnlyAdds(AggregateFunction):
    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + 1


class Same(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        return elements


class SameOfAll(ProcessAllWindowFunction):
    def process(self, context: Any, elements: Any) -> Any:
        return elements


class KeyForgotten(ProcessWindowFunction):
    def process(self, context: Any, elements: Any) -> Any:  # type: ignore[override]
        return elements


class TwiceNamed(Same):
    def open(self, context: Any) -> None:
        context.get_state(ValueStateDescriptor("seen", "long"))
        context.get_state(ValueStateDescriptor("seen", "string"))


class Unmerged(NeverTrigger):
    on_merge = Trigger.on_merge


def windowed(assigner: Any = TEN_SECONDS) -> Any:
    return timed().key_by("app_id").window(assigner)


def all_windowed(assigner: Any = TEN_SECONDS) -> Any:
    return timed().window_all(assigner)


MISTAKES: list[tuple[Callable[[], object], str]] = [
    (lambda: windowed("1 s"), "window takes windows such as TumblingEventTimeWindows.of(\"10 s\"), not '1 s'"),
    (
        lambda: windowed(TumblingEventTimeWindows),
        'not the class TumblingEventTimeWindows: write TumblingEventTimeWindows.of("10 s")',
    ),
    (lambda: windowed(EventTimeSessionWindows), 'write EventTimeSessionWindows.with_gap("10 s")'),
    (lambda: windowed(GlobalWindows), "write GlobalWindows.create()"),
    (
        lambda: windowed(GlobalWindows.create()).process(Same(), uid="w"),
        "window 'w': a global window never ends, so it has no result without a trigger: add one, such as .trigger(",
    ),
    (
        lambda: windowed(GlobalWindows.create()).trigger(ProcessingTimeTrigger.create()).process(Same(), uid="w"),
        'a global one has none: write ContinuousProcessingTimeTrigger.of("10 s")',
    ),
    *(
        (
            lambda trigger=trigger: (
                views()
                .key_by("app_id")
                .window(TumblingProcessingTimeWindows.of("1 s"))
                .trigger(trigger)
                .process(Same(), uid="w")
            ),
            f"window 'w': {name} fires by event time, which the stream does not have",
        )
        for name, trigger in (
            ("EventTimeTrigger", EventTimeTrigger.create()),
            ("EventTimeTrigger", PurgingTrigger.of(EventTimeTrigger.create())),
            ("ContinuousEventTimeTrigger", ContinuousEventTimeTrigger.of("1 s")),
        )
    ),
    (lambda: timed().window_all("1 s"), "window_all takes windows such as"),  # type: ignore[arg-type]
    (lambda: views().key_by("app_id").window(SESSIONS), "window needs event time: call assign_timestamps"),
    (
        lambda: views().window_all(SESSIONS),
        "window_all needs event time: call assign_timestamps_and_watermarks(...) first",
    ),
    (lambda: TumblingProcessingTimeWindows.of(0), "the size of a window must be positive, not 0"),
    (lambda: SlidingProcessingTimeWindows.of("1 s", 0), "the slide of a window must be positive, not 0"),
    (lambda: SlidingEventTimeWindows.of("1 s", -5), "the slide of a window must be positive, not -5"),
    (lambda: TumblingProcessingTimeWindows.of("1 s", "1 s"), "the offset of windows must be shorter than their size"),
    (lambda: EventTimeSessionWindows.with_gap(0), "the gap of a window must be positive, not 0"),
    (lambda: ProcessingTimeSessionWindows.with_gap("-1 s"), "the gap of a window must be positive, not '-1 s'"),
    (lambda: EventTimeSessionWindows.with_dynamic_gap(10), "takes a function of a record that returns milliseconds"),  # type: ignore[arg-type]
    (lambda: ProcessingTimeSessionWindows.with_dynamic_gap(Count), "takes a function of a record"),
    (
        lambda: timed().key_by("app_id").count_window(0),
        "count_window: the size is a number of records, 1 or more, not 0",
    ),
    (lambda: timed().key_by("app_id").count_window(3, 0), "count_window: the slide is a number of records, 1 or more"),
    (lambda: timed().count_window_all("3"), "count_window_all: the size is a number of records"),  # type: ignore[arg-type]
    (lambda: CountTrigger.of(0), "CountTrigger.of(0): it fires after a number of records: 1 or more"),
    (lambda: CountEvictor.of(0), "CountEvictor.of(0): it keeps a number of records: 1 or more"),
    (lambda: TimeEvictor.of(0), "the time that it keeps must be positive"),
    (lambda: ContinuousEventTimeTrigger.of(0), "the interval must be positive"),
    (lambda: ContinuousProcessingTimeTrigger.of("0 s"), "the interval must be positive"),
    (lambda: PurgingTrigger.of(CountTrigger), "PurgingTrigger.of takes a trigger such as CountTrigger.of(3)"),  # type: ignore[arg-type]
    (lambda: windowed().trigger(CountTrigger), "trigger takes an object, not the class CountTrigger"),
    (lambda: windowed().trigger("count"), "trigger takes a trigger such as CountTrigger.of(3), not 'count'"),
    (lambda: windowed().evictor(CountTrigger.of(1)), "evictor takes an evictor such as CountEvictor.of(10)"),
    (lambda: windowed(SESSIONS).trigger(Unmerged()), "merge, but Unmerged has no on_merge(window, context): add it"),
    (lambda: windowed(SESSIONS).trigger(PurgingTrigger.of(Unmerged())), "merge, but PurgingTrigger has no on_merge"),
    (
        lambda: windowed(SESSIONS).aggregate(Count(), accumulator_type="long", schema="n long", uid="w"),
        "window 'w': sessions with a gap of 10000 ms of event time merge, but Count has no merge(left, right): add it",
    ),
    (
        lambda: windowed().aggregate(Count(), schema="n long", uid="w"),
        "window 'w': declare the type of the accumulator of Count",
    ),
    (
        lambda: windowed().aggregate(Count(), accumulator_type="long", uid="w"),
        "get_result of Count returns records of it",
    ),
    (
        lambda: windowed().aggregate(Count, uid="w"),
        "window 'w': aggregate takes an object, not the class Count: write Count()",
    ),
    (
        lambda: windowed().aggregate(len, uid="w"),
        "a class that extends AggregateFunction, or built-in aggregates by name",
    ),
    (lambda: windowed().aggregate(OnlyAdds(), uid="w"), "window 'w': OnlyAdds has no create_accumulator(...): add it"),
    (lambda: windowed().aggregate(Count(), n=count(), uid="w"), "has an AggregateFunction and named aggregates"),
    (lambda: all_windowed().aggregate(Count(), n=count(), uid="w"), "has an AggregateFunction and named aggregates"),
    (lambda: all_windowed().aggregate(uid="w"), "window 'w' needs at least one aggregate, as in pv=count()"),
    (
        lambda: timed().key_by("app_id").count_window(3).aggregate(n=total("app_id"), uid="w"),
        "window 'w': n=total(app_id) needs a number; 'app_id' is string",
    ),
    (
        lambda: timed().count_window_all(3).aggregate(n=total("byte"), uid="w"),
        "window 'w': n=total(byte): there is no column 'byte'; the stream has (app_id string, user_id int64, bytes",
    ),
    (
        lambda: windowed(GlobalWindows.create()).aggregate(n=count(), uid="w"),
        "window 'w': a global window never ends, so it has no result without a trigger: add one",
    ),
    (lambda: EventTimeSessionWindows.with_gap(0), "the gap of a window must be positive, not 0"),
    (
        lambda: windowed().process(Same, uid="w"),
        "window 'w': process takes an object of Same, not the class: write Same()",
    ),
    (
        lambda: windowed().process(lambda rows: rows, uid="w"),
        "a class that extends ProcessWindowFunction, not a lambda",
    ),
    (lambda: windowed().process(None, uid="w"), "a class that extends ProcessWindowFunction, not None"),
    (lambda: windowed().process(SameOfAll(), uid="w"), "extends ProcessWindowFunction, because the stream has keys"),
    (lambda: all_windowed().process(Same(), uid="w"), "ProcessAllWindowFunction, because the stream has no keys"),
    (lambda: windowed().process(KeyForgotten(), uid="w"), "def process(self, key, context, elements)"),
    (lambda: windowed().process(TwiceNamed(), uid="w"), "window 'w': TwiceNamed asks for the state 'seen' twice"),
    (lambda: windowed().reduce("sum", uid="w"), "reduce takes a function"),
    (lambda: windowed().reduce(max, uid="w", schema="n long"), "leave schema out, or add a ProcessWindowFunction"),
    (lambda: windowed().apply(Same(), uid="w"), "write process(...) with a ProcessWindowFunction"),
    (lambda: all_windowed().print(), "end the window first, as in window_all(...).process(...).print(...)"),
    (lambda: windowed(GlobalWindows.create()).allowed_lateness("1 s"), "windows that are global have no late records"),
    (lambda: windowed().allowed_lateness("-1 s"), "allowed_lateness: '-1 s' is negative"),
    (lambda: windowed().side_output_late_data("late"), "side_output_late_data takes a tag such as OutputTag"),
    (
        lambda: windowed().side_output_late_data(OutputTag("late", "n long")),
        "the tag 'late' has (n long), but late records have the fields of the stream",
    ),
    (
        lambda: windowed(TumblingProcessingTimeWindows.of("1 s")).side_output_late_data(OutputTag("late", "n long")),
        "windows that are tumbling by 1000 ms of processing time have no late records: leave it out",
    ),
]


@pytest.mark.promise("H8")
@pytest.mark.parametrize(("mistake", "text"), MISTAKES, ids=[text[:60] for _, text in MISTAKES])
def test_a_mistake_with_windows_is_told_what_to_write_instead(mistake: Callable[[], object], text: str) -> None:
    with pytest.raises(JobError) as caught:
        mistake()
    assert text in str(caught.value)


def test_a_trigger_has_to_have_all_of_its_methods() -> None:
    class Half(Trigger):
        def on_element(self, element: Any, timestamp: Any, window: Any, context: Any) -> TriggerResult:
            return TriggerResult.FIRE

    with pytest.raises(TypeError, match="abstract methods"):
        Half()  # type: ignore[abstract]


ASSIGNERS = [
    TumblingEventTimeWindows.of("10 s"),
    SlidingEventTimeWindows.of("10 s", "5 s"),
    SESSIONS,
    EventTimeSessionWindows.with_dynamic_gap(lambda row: 1000),
    TumblingProcessingTimeWindows.of("10 s"),
    SlidingProcessingTimeWindows.of("10 s", "5 s"),
    ProcessingTimeSessionWindows.with_gap("5 s"),
    GlobalWindows.create(),
]
TRIGGERS = [
    EventTimeTrigger.create(),
    ProcessingTimeTrigger.create(),
    CountTrigger.of(3),
    ContinuousEventTimeTrigger.of("1 s"),
    ContinuousProcessingTimeTrigger.of("1 s"),
    PurgingTrigger.of(CountTrigger.of(2)),
]
REFUSED = r"^window 'n': (a global window never ends|ProcessingTimeTrigger fires at the end of a window, and a global)"


@pytest.mark.promise("B4", "B6")
@pytest.mark.parametrize("evicted", [False, True])
@pytest.mark.parametrize("place", range(len(ASSIGNERS)))
def test_named_aggregates_are_built_for_every_window_trigger_and_evictor(place: int, evicted: bool) -> None:
    assigner = ASSIGNERS[place]
    for trigger in [None, *TRIGGERS]:
        for windows in (windowed(assigner), all_windowed(assigner)):
            windows = windows if trigger is None else windows.trigger(trigger)
            windows = windows.evictor(CountEvictor.of(2)) if evicted else windows
            never = trigger is None or isinstance(trigger, ProcessingTimeTrigger)
            if isinstance(assigner, GlobalWindows) and never:
                with pytest.raises(JobError, match=REFUSED):
                    windows.aggregate(n=count(), uid="n")
            else:
                assert windows.aggregate(n=count(), uid="n").schema.field("n").type == pa.int64()


def test_only_windows_with_bounds_have_them_in_their_results() -> None:
    bounds, last = ["window_start", "window_end"], ["n", "_event_time"]
    by_window = timed("window_start long, ts long").key_by("window_start")
    for windows, names in [
        (timed().key_by("app_id").count_window(3), ["app_id"]),
        (timed().key_by("app_id").count_window(3, 1), ["app_id"]),
        (by_window.count_window(2), ["window_start"]),
        (timed().count_window_all(3), []),
        (all_windowed(), bounds),
        (all_windowed().trigger(CountTrigger.of(1)), bounds),
        (windowed(EventTimeSessionWindows.with_dynamic_gap(len)), ["app_id", *bounds]),
    ]:
        assert windows.aggregate(n=count(), uid="n").schema.names == [*names, *last]
