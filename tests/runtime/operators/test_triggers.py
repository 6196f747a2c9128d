"""Triggers, evictors, windows by the clock and by number, window state: one operator, a record at a time (B6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from engine.api import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountEvictor,
    CountTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    Evictor,
    GlobalWindows,
    KeyedStream,
    ListStateDescriptor,
    NeverTrigger,
    OutputTag,
    ProcessingTimeSessionWindows,
    ProcessingTimeTrigger,
    ProcessWindowFunction,
    PurgingTrigger,
    ReducingStateDescriptor,
    SlidingProcessingTimeWindows,
    TimeEvictor,
    Trigger,
    TriggerResult,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    ValueStateDescriptor,
    WindowedStream,
)
from engine.core.errors import UserFunctionError
from engine.protocol.signals import MAX_WATERMARK
from tests.runtime.operators.windows_in_subtasks import FIELDS, RESULT, Collect, Subtasks

TEN = TumblingEventTimeWindows.of(10)
LATE = OutputTag("late", FIELDS)


def windows(make: Callable[[KeyedStream], WindowedStream]) -> Subtasks:
    return Subtasks(lambda keyed: make(keyed).process(Collect(), uid="w", schema=RESULT))


def xs(rows: list[dict[str, Any]]) -> list[Any]:
    return [row["xs"] for row in rows]


def fed(subtasks: Subtasks, *times: int) -> list[Any]:
    """Processes records of the key a, whose value is their time; returns what each of them fired."""
    return [xs(subtasks.row("a", time, time)) for time in times]


# --- built-in triggers ---


@pytest.mark.promise("B6")
def test_a_count_trigger_fires_after_each_so_many_records_and_keeps_them() -> None:
    subtasks = windows(lambda keyed: keyed.window(TEN).trigger(CountTrigger.of(2)))
    assert fed(subtasks, 1, 2, 3, 4) == [[], [[1, 2]], [], [[1, 2, 3, 4]]]
    subtasks = subtasks.rescaled(2)
    assert fed(subtasks, 5, 11) == [[], []]
    assert fed(subtasks.rescaled(1), 6) == [[[1, 2, 3, 4, 5, 6]]]
    assert subtasks.watermark(9) == [], "it replaces the trigger that fires at the end"
    assert subtasks.state()["(window) contents"] == 1, "the window has ended, and only the next one is left"


@pytest.mark.promise("B6")
def test_a_purging_trigger_drops_what_it_has_fired() -> None:
    subtasks = windows(lambda keyed: keyed.window(TEN).trigger(PurgingTrigger.of(CountTrigger.of(2))))
    assert fed(subtasks, 1, 2, 3, 4, 5) == [[], [[1, 2]], [], [[3, 4]], []]
    assert subtasks.watermark(MAX_WATERMARK) == [] == list(subtasks.state())


@pytest.mark.promise("B6")
def test_a_window_of_which_nothing_is_left_is_not_computed() -> None:
    trigger = PurgingTrigger.of(ContinuousEventTimeTrigger.of(10))
    subtasks = windows(lambda keyed: keyed.window(TumblingEventTimeWindows.of(40)).trigger(trigger))
    fed(subtasks, 1, 2)
    assert xs(subtasks.watermark(25)) == [[1, 2]], "at 10; nothing has come until 20"
    fed(subtasks, 31)
    assert xs(subtasks.watermark(39)) == [[31]], "at 30; nothing is left for the end"
    assert subtasks.state() == {}


@pytest.mark.promise("B6")
def test_a_continuous_event_time_trigger_fires_inside_the_window_and_at_its_end() -> None:
    day = TumblingEventTimeWindows.of(100)
    subtasks = windows(lambda keyed: keyed.window(day).trigger(ContinuousEventTimeTrigger.of(10)))
    fed(subtasks, 1, 15)
    assert xs(subtasks.watermark(9)) == []
    assert xs(subtasks.watermark(10)) == [[1, 15]]
    fed(subtasks, 31)
    subtasks = subtasks.rescaled(3)
    assert xs(subtasks.watermark(20)) == [[1, 15, 31]]
    assert xs(subtasks.watermark(49)) == [[1, 15, 31]] * 2, "the watermark passed 30 and 40"
    assert len(subtasks.watermark(99)) == 6, "50, 60, 70, 80, 90 and the end"
    assert subtasks.state() == {}


@pytest.mark.promise("B6")
def test_a_continuous_processing_time_trigger_fires_by_the_clock_in_a_window_of_event_time() -> None:
    subtasks = windows(lambda keyed: keyed.window(TEN).trigger(ContinuousProcessingTimeTrigger.of(5)))
    fed(subtasks, 1)
    assert xs(subtasks.tick(5)) == []
    assert xs(subtasks.tick(1)) == [[1]]
    fed(subtasks, 2)
    assert xs(subtasks.tick(12)) == [[1, 2], [1, 2]]
    assert subtasks.watermark(9) == [] == list(subtasks.state()), "the end of the window removes its timer"


@pytest.mark.promise("B6")
def test_a_continuous_processing_time_trigger_fires_at_the_end_of_a_window_by_the_clock() -> None:
    clock = TumblingProcessingTimeWindows.of(12)
    subtasks = windows(lambda keyed: keyed.window(clock).trigger(ContinuousProcessingTimeTrigger.of(5)))
    fed(subtasks, 1)
    assert len(subtasks.tick(12)) == 3, "at 5, at 10 and at the end"
    assert subtasks.state() == {}


@pytest.mark.promise("B6")
def test_global_windows_fire_only_if_a_trigger_says_so() -> None:
    subtasks = windows(lambda keyed: keyed.window(GlobalWindows.create()).trigger(NeverTrigger()))
    assert fed(subtasks, 1, 2) == [[], []]
    assert subtasks.watermark(MAX_WATERMARK) == []
    assert subtasks.state() == {"(window) contents": 2}
    subtasks = windows(lambda keyed: keyed.window(GlobalWindows.create()).trigger(EventTimeTrigger.create()))
    fed(subtasks, 1)
    assert xs(subtasks.watermark(MAX_WATERMARK)) == [[1]], "the end of time is the end of a global window"


@pytest.mark.promise("A1", "B6")
def test_a_continuous_event_time_trigger_of_a_global_window_comes_to_an_end_with_the_input() -> None:
    subtasks = windows(lambda keyed: keyed.window(GlobalWindows.create()).trigger(ContinuousEventTimeTrigger.of(10)))
    subtasks.row("a", 1, -12)
    assert xs(subtasks.watermark(-10)) == [[1]]
    subtasks.row("a", 2, 3)
    assert xs(subtasks.watermark(5)) == [[1, 2]], "at 0"
    subtasks.row("a", 3, 4)
    assert xs(subtasks.rescaled(1).watermark(MAX_WATERMARK)) == [[1, 2, 3]] * 2, "at 10, and at the end of time"


@pytest.mark.promise("B6")
def test_triggers_of_sessions_merge_their_state() -> None:
    sessions = EventTimeSessionWindows.with_gap(5)
    subtasks = windows(lambda keyed: keyed.window(sessions).trigger(CountTrigger.of(4)))
    assert fed(subtasks, 0, 1, 10) == [[], [], []]
    subtasks = subtasks.rescaled(2)
    assert fed(subtasks, 5) == [[[0, 1, 5, 10]]], "two and one records were counted before the sessions met"
    assert subtasks.watermark(14) == [] == list(subtasks.state())
    purging = windows(lambda keyed: keyed.window(sessions).trigger(PurgingTrigger.of(CountTrigger.of(4))))
    assert fed(purging, 0, 1, 10, 5) == [[], [], [], [[0, 1, 5, 10]]]
    continuous = windows(lambda keyed: keyed.window(sessions).trigger(ContinuousEventTimeTrigger.of(3)))
    fed(continuous, 0, 10)
    fed(continuous, 5)
    assert xs(continuous.watermark(3)) == [[0, 5, 10]]
    assert xs(continuous.watermark(14)) == [[0, 5, 10]] * 4, "at 6, 9 and 12, and at the end"
    assert continuous.state() == {}


@pytest.mark.promise("B6")
def test_a_continuous_processing_time_trigger_goes_on_in_a_session_that_has_grown_or_merged() -> None:
    sessions = EventTimeSessionWindows.with_gap(5)
    subtasks = windows(lambda keyed: keyed.window(sessions).trigger(ContinuousProcessingTimeTrigger.of(4)))
    fed(subtasks, 0)
    subtasks.tick(2)
    fed(subtasks, 10)
    subtasks = subtasks.rescaled(2)
    fed(subtasks, 5)
    assert xs(subtasks.tick(3)) == [[0, 5, 10]], "at 4, once for both"
    fed(subtasks, 14)
    assert xs(subtasks.tick(4)) == [[0, 5, 10, 14]], "at 8"
    assert subtasks.watermark(18) == [] == list(subtasks.state())


# --- a trigger of the author's own ---


class Told(Trigger):
    """Does what the value of a record says, and keeps state of every kind that can be merged."""

    DOES: ClassVar = {1: TriggerResult.FIRE, 2: TriggerResult.PURGE, 3: TriggerResult.FIRE_AND_PURGE}

    class Longest(AggregateFunction):
        def create_accumulator(self) -> list[int]:
            return []

        def add(self, value: int, accumulator: list[int]) -> list[int]:
            return [*accumulator, value]

        def get_result(self, accumulator: list[int]) -> int:
            return max(accumulator)

        def merge(self, left: list[int], right: list[int]) -> list[int]:
            return [*left, *right]

    def __init__(self) -> None:
        self.seen = ListStateDescriptor("seen", "long")
        self.last = ReducingStateDescriptor("last", max, "long")
        self.all = AggregatingStateDescriptor("all", self.Longest(), "array<long>")
        self.value = ValueStateDescriptor("value", "long")

    def on_element(self, element: Any, timestamp: Any, window: Any, context: Any) -> TriggerResult:
        assert context.get_current_watermark() < window.max_timestamp()
        for state in (self.seen, self.last, self.all):
            context.get_partitioned_state(state).add(timestamp)
        context.register_event_time_timer(timestamp)
        context.register_processing_time_timer(context.get_current_processing_time() + 3)
        if element["x"] == 9:
            context.delete_event_time_timer(timestamp)
        return self.DOES.get(element["x"], TriggerResult.CONTINUE)

    def on_event_time(self, time: int, window: Any, context: Any) -> TriggerResult:
        return TriggerResult.FIRE if time in context.get_partitioned_state(self.seen).get() else TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Any, context: Any) -> TriggerResult:
        assert context.get_partitioned_state(self.all).get() == context.get_partitioned_state(self.last).get()
        return TriggerResult.FIRE

    def clear(self, window: Any, context: Any) -> None:
        for state in (self.seen, self.last, self.all):
            context.get_partitioned_state(state).clear()


class ToldAndMerged(Told):
    def on_merge(self, window: Any, context: Any) -> None:
        for state in (self.seen, self.last, self.all):
            context.merge_partitioned_state(state)
        with pytest.raises(TypeError, match="only a list, a reduced value or an aggregate can be merged"):
            context.merge_partitioned_state(self.value)


@pytest.mark.promise("B6")
def test_a_trigger_of_the_job_has_four_answers_timers_and_state() -> None:
    subtasks = windows(lambda keyed: keyed.window(TEN).trigger(Told()))
    assert xs(subtasks.row("a", 0, 1)) == []
    assert xs(subtasks.row("a", 1, 2)) == [[0, 1]], "FIRE keeps the contents"
    assert xs(subtasks.row("a", 2, 3)) == [], "PURGE drops them"
    assert xs(subtasks.row("a", 3, 4)) == [[3]]
    assert xs(subtasks.row("a", 9, 5)) == []
    subtasks = subtasks.rescaled(2)
    assert xs(subtasks.tick(4)) == [[9]], "five timers of one time are one timer"
    assert xs(subtasks.watermark(5)) == [[9]] * 4, "the timer of the last record was deleted"
    assert subtasks.watermark(9) == [] == list(subtasks.state()), "clear removed the states"


@pytest.mark.promise("B6")
def test_a_trigger_of_the_job_merges_lists_reduced_values_and_aggregates() -> None:
    subtasks = windows(lambda keyed: keyed.window(EventTimeSessionWindows.with_gap(5)).trigger(ToldAndMerged()))
    for time in (0, 10, 5):
        subtasks.row("a", 0, time)
    assert xs(subtasks.tick(4)) == [[0, 0, 0]], "timers of windows that are gone do nothing"
    assert [row["start"] for row in subtasks.watermark(8)] == [0], "the timer of 5 belongs to the merged window"
    assert subtasks.watermark(14) == [] == list(subtasks.state())


def test_a_trigger_that_answers_nothing_is_told_what_to_return() -> None:
    class Silent(Told):
        def on_element(self, element: Any, timestamp: Any, window: Any, context: Any) -> Any:
            return None

    with pytest.raises(UserFunctionError, match="the trigger returned None: return a TriggerResult"):
        windows(lambda keyed: keyed.window(TEN).trigger(Silent())).row("a", 0, 1)


# --- evictors ---


@pytest.mark.promise("B6")
def test_a_count_evictor_keeps_the_last_records_before_or_after_the_window_is_computed() -> None:
    subtasks = windows(lambda keyed: keyed.window(TEN).trigger(CountTrigger.of(2)).evictor(CountEvictor.of(3)))
    assert fed(subtasks, 1, 2, 3, 4)[3] == [[2, 3, 4]]
    assert subtasks.state()["(window) contents"] == 3
    after = CountEvictor.of(3, do_evict_after=True)
    subtasks = windows(lambda keyed: keyed.window(TEN).trigger(CountTrigger.of(4)).evictor(after))
    assert fed(subtasks, 1, 2, 3, 4)[3] == [[1, 2, 3, 4]]
    subtasks = subtasks.rescaled(2)
    assert fed(subtasks, 5, 6, 7, 8)[3] == [[2, 3, 4, 5, 6, 7, 8]]


@pytest.mark.promise("B6")
def test_a_time_evictor_keeps_the_last_stretch_of_event_time() -> None:
    subtasks = windows(
        lambda keyed: keyed.window(GlobalWindows.create()).trigger(CountTrigger.of(5)).evictor(TimeEvictor.of(10))
    )
    fed(subtasks, 1, 20, 12, 10)
    assert xs(subtasks.row("a", None, None)) == [[12, 20, None]], "a record without a time stays"


@pytest.mark.promise("B5", "B6")
def test_reduce_and_aggregate_fold_what_an_evictor_leaves() -> None:
    class Odd(Evictor):
        def evict_before(self, elements: Any, size: int, window: Any, context: Any) -> None:
            assert size == len(elements) and context.current_watermark() < window.max_timestamp()
            assert context.current_processing_time() == 0
            elements[:] = [element for element in elements if element.value["x"] % 2]

    def add(left: Any, right: Any) -> Any:
        return {**right, "x": left["x"] + right["x"]}

    class Sum(AggregateFunction):
        def create_accumulator(self) -> int:
            return 0

        def add(self, value: Any, accumulator: int) -> int:
            return accumulator + value["x"]

        def get_result(self, accumulator: int) -> Any:
            return {"x": accumulator}

    reduced = Subtasks(lambda keyed: keyed.window(TEN).trigger(CountTrigger.of(3)).evictor(Odd()).reduce(add, uid="w"))
    assert [reduced.row("a", x, x) for x in (2, 4, 6)] == [[], [], []], "nothing is left to reduce"
    assert [[row["x"] for row in reduced.row("a", x, x)] for x in (3, 4, 5)] == [[], [], [8]]
    summed = Subtasks(
        lambda keyed: (
            keyed.window(TEN)
            .trigger(CountTrigger.of(3))
            .evictor(Odd())
            .aggregate(Sum(), accumulator_type="long", schema="x long", uid="w")
        )
    )
    assert [[row["x"] for row in summed.row("a", x, x)] for x in (2, 3, 5)] == [[], [], [8]]


# --- windows by the clock, and by number ---


@pytest.mark.promise("B1", "B4")
def test_windows_of_processing_time_fire_by_the_clock_also_after_a_restore() -> None:
    subtasks = windows(lambda keyed: keyed.window(TumblingProcessingTimeWindows.of(10, 4)))
    subtasks.row("a", 1, None)
    subtasks.tick(2)
    subtasks.row("a", 2, 99)
    subtasks = subtasks.rescaled(2)
    assert subtasks.tick(1) == []
    subtasks.row("a", 0, None)
    fired = subtasks.tick(1)
    assert fired == [{"k": "a", "start": -6, "end": 4, "xs": [0, 1, 2], "_event_time": None}], "its last ms counts"
    subtasks.row("a", 3, 99)
    assert subtasks.watermark(MAX_WATERMARK) == []
    assert xs(subtasks.tick(10)) == [[3]]
    assert subtasks.count("late") == subtasks.count("untimed") == 0
    assert subtasks.state() == {}


@pytest.mark.promise("B1")
def test_a_window_by_the_clock_is_due_behind_its_last_millisecond() -> None:
    subtasks = windows(lambda keyed: keyed.window(TumblingProcessingTimeWindows.of(10)))
    assert subtasks.operators[0].due_ms is None
    subtasks.tick(3)
    subtasks.row("a", 1, None)
    assert subtasks.operators[0].due_ms == 10, "a slot that wakes up at 9 finds nothing to do"


@pytest.mark.promise("B4")
def test_sliding_windows_of_processing_time_overlap() -> None:
    subtasks = windows(lambda keyed: keyed.window(SlidingProcessingTimeWindows.of(10, 5)))
    subtasks.tick(6)
    subtasks.row("a", 1, None)
    assert [(row["start"], row["xs"]) for row in subtasks.tick(20)] == [(0, [1]), (5, [1])]


@pytest.mark.promise("B4", "B5")
@pytest.mark.parametrize("restored", [False, True])
def test_a_clock_that_is_set_back_opens_no_window_again_and_counts_no_record_twice(restored: bool) -> None:
    """Sliding windows share panes: a window that fired a second time had the records of the first time, too."""
    subtasks = Subtasks(
        lambda keyed: keyed.window(SlidingProcessingTimeWindows.of(10, 5)).reduce(
            lambda left, right: {**right, "x": left["x"] + right["x"]}, Collect(), uid="w", schema=RESULT
        )
    )
    subtasks.tick(12)
    subtasks.row("a", 1, None)
    assert [(row["start"], row["xs"]) for row in subtasks.tick(4)] == [(5, [1])]
    subtasks.clock.wall = 7
    if restored:
        subtasks = subtasks.rescaled(1)
    subtasks.row("a", 2, None)
    assert [(row["start"], row["xs"]) for row in subtasks.tick(40)] == [(10, [3]), (15, [2])]
    assert subtasks.state() == {}


@pytest.mark.promise("B4")
def test_sessions_of_processing_time_end_a_gap_after_their_last_record() -> None:
    subtasks = windows(lambda keyed: keyed.window(ProcessingTimeSessionWindows.with_gap(5)))
    for x in (1, 2, 3):
        subtasks.row("a", x, None)
        assert subtasks.tick(4) == []
    subtasks = subtasks.rescaled(2)
    assert [(row["start"], row["end"], row["xs"]) for row in subtasks.tick(1)] == [(0, 13, [1, 2, 3])]
    assert subtasks.state() == {}


@pytest.mark.promise("B4")
def test_each_record_of_a_session_may_say_its_own_gap() -> None:
    sessions = EventTimeSessionWindows.with_dynamic_gap(lambda row: row["x"])
    subtasks = windows(lambda keyed: keyed.window(sessions))
    for gap, time in ((10, 0), (2, 9), (3, 20)):
        subtasks.row("a", gap, time)
    assert [(row["start"], row["end"]) for row in subtasks.watermark(30)] == [(0, 11), (20, 23)]
    with pytest.raises(UserFunctionError, match="the gap of a session window is 0: return milliseconds"):
        subtasks.row("a", 0, 40)


@pytest.mark.promise("B4")
def test_count_windows_tumble_or_slide() -> None:
    subtasks = windows(lambda keyed: keyed.count_window(3))
    assert fed(subtasks, 1, 2)[-1] == []
    subtasks = subtasks.rescaled(2)
    assert fed(subtasks, 3, 4) == [[[1, 2, 3]], []]
    sliding = windows(lambda keyed: keyed.count_window(3, 2))
    assert fed(sliding, 1, 2, 3, 4, 5, 6) == [[], [[1, 2]], [], [[2, 3, 4]], [], [[4, 5, 6]]]
    assert sliding.state()["(window) contents"] == 3


# --- late records ---


@pytest.mark.promise("B7", "A8")
def test_late_records_go_to_their_side_output_with_their_own_time() -> None:
    subtasks = windows(lambda keyed: keyed.window(TEN).allowed_lateness(5).side_output_late_data(LATE))
    fed(subtasks, 3)
    assert xs(subtasks.watermark(13)) == [[3]]
    assert fed(subtasks, 4) == [[[3, 4]]], "the window is computed again for each late record that counts"
    assert subtasks.watermark(14) == []
    assert fed(subtasks, 5, 12) == [[], []]
    ((tag, batch),) = subtasks.out.aside
    assert (tag, batch.to_pylist()) == ("late", [{"k": "a", "x": 5, "ts": 5, "_event_time": 5}])
    assert subtasks.count("late") == 0
    assert xs(subtasks.rescaled(2).watermark(20)) == [[12]]


@pytest.mark.promise("B7", "D8")
def test_windows_that_are_open_are_forgotten_also_if_the_lateness_changes() -> None:
    def define(lateness: int) -> Any:
        return lambda keyed: keyed.window(TEN).allowed_lateness(lateness).process(Collect(), uid="w", schema=RESULT)

    longer = Subtasks(define(0))
    longer.row("a", 1, 1)
    longer = longer.rescaled(1, define(10))
    assert xs(longer.watermark(9)) == [[1]]
    assert xs(longer.row("a", 2, 2)) == [[1, 2]]
    assert longer.watermark(19) == [] == list(longer.state())
    shorter = Subtasks(define(10))
    shorter.row("a", 1, 1)
    shorter = shorter.rescaled(1, define(5))
    assert xs(shorter.watermark(30)) == [[1]] and shorter.state() == {}


# --- state ---


class Stateful(ProcessWindowFunction):
    """Counts the firings of each window, and those of its key."""

    def open(self, context: Any) -> None:
        self._key = context.get_state(ValueStateDescriptor("of key", "long"))

    def process(self, key: Any, context: Any, elements: Any) -> Any:
        window = context.window_state().get_state(ValueStateDescriptor("of key", "long"))
        window.update((window.value() or 0) + 1)
        self._key.update((self._key.value() or 0) + 1)
        assert context.global_state().get_state(ValueStateDescriptor("of key", "long")).value() == self._key.value()
        yield {"of_window": window.value(), "of_key": self._key.value(), "now": context.current_watermark()}

    def clear(self, context: Any) -> None:
        context.window_state().get_state(ValueStateDescriptor("of key", "long")).clear()


@pytest.mark.promise("B5")
def test_a_window_function_keeps_state_per_window_and_per_key() -> None:
    schema = "of_window long, of_key long, now long"
    subtasks = Subtasks(
        lambda keyed: keyed.window(TEN).allowed_lateness(20).process(Stateful(), uid="w", schema=schema)
    )
    told = []
    for time in (1, 11):
        subtasks.row("a", 1, time)
    told += subtasks.watermark(19)
    subtasks = subtasks.rescaled(2)
    told += subtasks.row("a", 1, 2)
    assert [(row["of_window"], row["of_key"], row["now"]) for row in told] == [(1, 1, 19), (1, 2, 19), (2, 3, 19)]
    assert subtasks.state()["(window) state: of key"] == 2
    subtasks.watermark(MAX_WATERMARK)
    assert subtasks.state() == {"of key": 1}, "state of the key stays"


def test_windows_that_merge_have_no_state_of_their_own() -> None:
    subtasks = Subtasks(
        lambda keyed: keyed.window(EventTimeSessionWindows.with_gap(5)).process(
            Stateful(), uid="w", schema="of_window long, of_key long, now long"
        )
    )
    subtasks.row("a", 1, 1)
    with pytest.raises(UserFunctionError, match="windows that merge keep no state of their own"):
        subtasks.watermark(9)


@pytest.mark.promise("B6")
def test_a_processing_time_trigger_in_a_window_of_event_time_fires_by_the_clock() -> None:
    subtasks = windows(lambda keyed: keyed.window(TEN).trigger(ProcessingTimeTrigger.create()))
    fed(subtasks, 3)
    assert xs(subtasks.tick(9)) == []
    assert xs(subtasks.tick(1)) == [[3]]
    assert subtasks.watermark(9) == [] == list(subtasks.state())
