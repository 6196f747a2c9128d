"""Sliding windows with functions share panes (B5), and compute what windows compute that keep their contents each.

Topology: the subtasks of two window operators with the same input. One has an `AggregateFunction` with `merge`, or a
`reduce`, and shares panes. The other has no `merge`, and keeps one accumulator for each window, as all did in earlier
versions. Faults: restores at another parallelism, also of what an earlier version saved. Checks: what each step emits,
what is late, what is kept, and how often the functions are called.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api import (
    AggregateFunction,
    CountEvictor,
    CountTrigger,
    EventTimeTrigger,
    KeyedStream,
    OutputTag,
    PurgingTrigger,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TriggerResult,
    TumblingEventTimeWindows,
    WindowedStream,
)
from engine.core.errors import UserFunctionError
from engine.protocol.signals import MAX_WATERMARK
from engine.state.copies import value_copier
from engine.state.windows.spans import Spans
from tests.runtime.operators.windows_in_subtasks import FIELDS, RESULT, Collect, Define, Subtasks

LATE = OutputTag("late", FIELDS)
SLIDING = SlidingEventTimeWindows.of(10, 5)
CONTENTS, PANES = "(window) contents", "(window) panes"


class Gathered(AggregateFunction):
    """Gathers all values of a window in a list that it changes in place. It has no `merge`."""

    def create_accumulator(self) -> Any:
        return {"xs": []}

    def add(self, value: Any, accumulator: Any) -> Any:
        accumulator["xs"].append(value["x"])
        return accumulator

    def get_result(self, accumulator: Any) -> Any:
        xs = sorted(accumulator["xs"], key=lambda x: (x is None, x or 0))
        accumulator["xs"].append(1000)
        return xs


class Merged(Gathered):
    """Spoils both of its arguments when it merges."""

    def merge(self, left: Any, right: Any) -> Any:
        left["xs"].extend(right["xs"])
        right["xs"].clear()
        return left


class OfOne(Collect):
    """Emits its only element, a list, or a record whose only value it is."""

    def process(self, key: Any, context: Any, elements: Any) -> Any:
        (element,) = elements
        window, xs = context.window(), element if isinstance(element, list) else [element["x"]]
        yield {"k": key, "start": window.start, "end": window.end, "xs": xs}


def gathering(function: Gathered, windows: Callable[[KeyedStream], WindowedStream]) -> Define:
    return lambda keyed: windows(keyed).aggregate(
        function, OfOne(), accumulator_type="struct<xs array<long>>", schema=RESULT, uid="w"
    )


def results(rows: list[dict[str, Any]]) -> list[Any]:
    return sorted(((row["k"], row["start"], row["end"], row["xs"]) for row in rows), key=repr)


def late(subtasks: Subtasks) -> list[Any]:
    return [row for _, batch in subtasks.out.aside for row in batch.to_pylist()]


class Both:
    """The same windows in two ways. `compare` gives both the same input, and compares what they emit."""

    def __init__(self, windows: Callable[[KeyedStream], WindowedStream]) -> None:
        self._defined = gathering(Merged(), windows)
        self._alone = Subtasks(gathering(Gathered(), windows))
        self._sharing: Subtasks | None = None

    def compare(self, call: Callable[[Subtasks], list[dict[str, Any]]]) -> None:
        alone = results(call(self._alone))
        if self._sharing is not None:
            assert results(call(self._sharing)) == alone

    def restore(self, parallelism: int) -> None:
        """Restores both. The first time, the one that shares panes goes on from what the other one has saved."""
        if self._sharing is None:
            self._sharing = self._alone.rescaled(parallelism, self._defined)
        else:
            self._sharing = self._sharing.rescaled(parallelism)
        self._alone = self._alone.rescaled(parallelism)

    def check_late(self) -> None:
        if self._sharing is not None:
            assert late(self._sharing) == late(self._alone)
            for counter in ("late", "untimed"):
                assert self._sharing.count(counter) == self._alone.count(counter)

    def check_empty(self) -> None:
        assert self._sharing is not None
        assert self._sharing.state() == self._alone.state() == {}


ROWS = st.tuples(st.just("row"), st.sampled_from([None, "a"]), st.none() | st.integers(-9, 9), st.integers(-3, 15))
WATERMARKS = st.tuples(st.just("watermark"), st.integers(-5, 30), st.just(0), st.just(0))
TICKS = st.tuples(st.just("tick"), st.integers(1, 6), st.just(0), st.just(0))
RESTORES = st.tuples(st.just("restore"), st.integers(1, 3), st.just(0), st.just(0))
SHAPES = st.tuples(st.integers(2, 16), st.integers(1, 15), st.integers(0, 14)).map(
    lambda given: (given[0], min(given[1], given[0] - 1), given[2] % min(given[1], given[0] - 1))
)


@pytest.mark.promise("B4", "B5", "B7", "A8", "D7", "D8")
@given(
    SHAPES,
    st.sampled_from([0, 8]),
    st.booleans(),
    st.lists(ROWS | ROWS | WATERMARKS | RESTORES, min_size=10, max_size=50),
)
def test_windows_that_share_panes_emit_what_windows_of_their_own_contents_do(
    shape: tuple[int, int, int], lateness: int, aside: bool, steps: list[Any]
) -> None:
    def windows(keyed: KeyedStream) -> WindowedStream:
        sliding = keyed.window(SlidingEventTimeWindows.of(*shape)).allowed_lateness(lateness)
        return sliding.side_output_late_data(LATE) if aside else sliding

    both = Both(windows)
    for what, first, second, third in [*steps[:5], ("restore", 2, 0, 0), *steps[5:]]:
        match what:
            case "row":
                both.compare(lambda subtasks: subtasks.row(first, second, third))  # noqa: B023
            case "watermark":
                both.compare(lambda subtasks: subtasks.watermark(first))  # noqa: B023
            case "restore":
                both.check_late()
                both.restore(first)
    both.compare(lambda subtasks: subtasks.watermark(MAX_WATERMARK))
    both.check_late()
    both.check_empty()


@pytest.mark.promise("B1", "B4", "B5", "D7", "D8")
@given(SHAPES, st.lists(ROWS | ROWS | TICKS | RESTORES, min_size=10, max_size=25))
def test_windows_by_the_clock_share_panes_too(shape: tuple[int, int, int], steps: list[Any]) -> None:
    sliding = SlidingProcessingTimeWindows.of(*shape)
    alone = Subtasks(gathering(Gathered(), lambda keyed: keyed.window(sliding)))
    sharing = Subtasks(gathering(Merged(), lambda keyed: keyed.window(sliding)))
    for what, first, second, _ in [*steps, ("tick", 17, 0, 0)]:
        match what:
            case "row":
                assert sharing.row(first, second, None) == alone.row(first, second, None) == []
            case "tick":
                assert results(sharing.tick(first)) == results(alone.tick(first))
            case "restore":
                alone, sharing = alone.rescaled(first), sharing.rescaled(first)
    assert sharing.state() == alone.state() == {}


@pytest.mark.promise("B5", "B7")
def test_a_late_record_fires_the_windows_of_its_pane_again_that_have_fired_and_are_kept() -> None:
    subtasks = Subtasks(gathering(Merged(), lambda keyed: keyed.window(SLIDING).allowed_lateness(8)))

    def row(x: int) -> list[Any]:
        return [(result["start"], result["xs"]) for result in subtasks.row("a", x, 6)]

    def watermark(timestamp_ms: int) -> list[Any]:
        return [(result["start"], result["xs"]) for result in subtasks.watermark(timestamp_ms)]

    assert row(1) == []
    assert watermark(8) == [] and row(2) == []
    assert watermark(9) == [(0, [1, 2])]
    assert row(3) == [(0, [1, 2, 3])]
    assert watermark(14) == [(5, [1, 2, 3])]
    assert row(4) == [(0, [1, 2, 3, 4]), (5, [1, 2, 3, 4])]
    assert watermark(17) == []
    assert row(5) == [(5, [1, 2, 3, 4, 5])], "the first window is forgotten"
    assert watermark(21) == [] and row(6) == [(5, [1, 2, 3, 4, 5, 6])]
    assert subtasks.count("late") == 0 and subtasks.state()[PANES] == 1
    assert watermark(22) == [] and row(7) == []
    assert subtasks.count("late") == 1 and subtasks.state() == {}


# --- what it costs ---

HOUR = SlidingEventTimeWindows.of("1 h", "5 min")
MINUTE_MS = 60_000


def counted(kind: type[Gathered], of: SlidingEventTimeWindows | TumblingEventTimeWindows) -> tuple[Counter[str], int]:
    """Returns how often each method is called for 1200 records in two hours, and how many windows fire."""
    calls: Counter[str] = Counter()

    class Counted(kind):  # type: ignore[misc, valid-type]
        def __deepcopy__(self, memo: Any) -> Any:
            return self  # each subtask has a copy of its own, and all count together

        def __getattribute__(self, name: str) -> Any:
            if name in ("create_accumulator", "add", "merge", "get_result"):
                calls[name] += 1
            return super().__getattribute__(name)

    subtasks = Subtasks(gathering(Counted(), lambda keyed: keyed.window(of)))
    calls.clear()
    for number in range(1200):
        subtasks.row("a", number, number * MINUTE_MS // 10)
    return calls, len(subtasks.watermark(MAX_WATERMARK))


@pytest.mark.promise("B5")
def test_an_hour_every_five_minutes_adds_each_record_once() -> None:
    tumbling, windows = counted(Merged, TumblingEventTimeWindows.of("5 min"))
    assert tumbling == {"create_accumulator": 24, "add": 1200, "get_result": 24} and windows == 24
    sharing, windows = counted(Merged, HOUR)
    assert windows == 24 + 11
    assert sharing["add"] == 1200, "as tumbling windows do"
    assert sharing["create_accumulator"] == 24, "one for each pane"
    full, parts = 24 - 12 + 1, 2 * sum(range(1, 12))
    assert sharing["merge"] == full * 12 + parts - windows, "one less than the window has panes"
    alone, windows = counted(Gathered, HOUR)
    assert alone["add"] == 12 * 1200 and windows == 24 + 11


@pytest.mark.promise("B5")
def test_a_pane_is_dropped_with_its_last_window() -> None:
    subtasks = Subtasks(gathering(Merged(), lambda keyed: keyed.window(SlidingEventTimeWindows.of(1000, 1))))
    subtasks.row("a", 1, 0)
    subtasks.row("a", 2, 999)
    assert subtasks.state()[PANES] == 2
    assert [row["xs"] for row in subtasks.watermark(999)] == [[1]] * 999 + [[1, 2]]
    assert subtasks.state()[PANES] == 1


@pytest.mark.promise("B5")
def test_sizes_that_are_no_multiple_of_the_slide_need_two_panes_for_each_slide() -> None:
    odd = SlidingEventTimeWindows.of(1001, 100)
    subtasks = Subtasks(gathering(Merged(), lambda keyed: keyed.window(odd)))
    for time in range(500):
        subtasks.row("a", time, time)
    assert subtasks.state()[PANES] == 10, "and not one for each millisecond, which divides both"


@pytest.mark.promise("B5")
@pytest.mark.parametrize("windows", [TumblingEventTimeWindows.of("5 min"), HOUR])
def test_the_default_trigger_is_asked_only_by_the_first_record_of_a_window_or_pane(
    windows: SlidingEventTimeWindows | TumblingEventTimeWindows, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def on_element(*arguments: Any) -> TriggerResult:
        asked.append(arguments[3].start)
        return usual(*arguments)

    usual = EventTimeTrigger.on_element
    monkeypatch.setattr(EventTimeTrigger, "on_element", on_element)
    counted(Merged, windows)
    assert len(asked) == 24 * (windows.spans.size_ms // windows.spans.slide_ms)


# --- who shares panes, and who does not ---


def summed(left: Any, right: Any) -> Any:
    return {**left, "x": left["x"] + right["x"]}


@pytest.mark.promise("B5", "B6")
@pytest.mark.parametrize(
    ("define", "kept"),
    [
        (lambda keyed: keyed.window(SLIDING).reduce(summed, uid="w"), {PANES: 1}),
        (lambda keyed: keyed.window(SLIDING).trigger(EventTimeTrigger()).reduce(summed, uid="w"), {PANES: 1}),
        (gathering(Merged(), lambda keyed: keyed.window(SLIDING)), {PANES: 1}),
        (gathering(Merged(), lambda keyed: keyed.window(SLIDING).allowed_lateness(10)), {PANES: 1}),
        (gathering(Gathered(), lambda keyed: keyed.window(SLIDING)), {CONTENTS: 2}),
        (gathering(Merged(), lambda keyed: keyed.window(SlidingEventTimeWindows.of(5, 10))), {CONTENTS: 1}),
        (gathering(Merged(), lambda keyed: keyed.window(SlidingEventTimeWindows.of(5, 5))), {CONTENTS: 1}),
        (gathering(Merged(), lambda keyed: keyed.window(SLIDING).trigger(CountTrigger.of(9))), {CONTENTS: 2}),
        (
            gathering(Merged(), lambda keyed: keyed.window(SLIDING).trigger(PurgingTrigger.of(EventTimeTrigger()))),
            {CONTENTS: 2},
        ),
        (gathering(Merged(), lambda keyed: keyed.window(SLIDING).evictor(CountEvictor.of(1))), {CONTENTS: 4}),
        (lambda keyed: keyed.window(SLIDING).process(Collect(), uid="w", schema=RESULT), {CONTENTS: 4}),
    ],
)
def test_windows_share_panes_if_they_overlap_and_their_contents_combine(define: Define, kept: dict[str, int]) -> None:
    subtasks = Subtasks(define)
    subtasks.row("a", 1, 12)
    subtasks.row("a", 2, 13)
    assert {name: rows for name, rows in subtasks.state().items() if name in (CONTENTS, PANES)} == kept


@pytest.mark.promise("B5")
def test_reduce_gets_copies_when_panes_combine() -> None:
    def spoiling(left: Any, right: Any) -> Any:
        left["x"] += right["x"]
        right["x"] = 1000
        return left

    subtasks = Subtasks(
        lambda keyed: keyed.window(SlidingEventTimeWindows.of(12, 5)).reduce(spoiling, OfOne(), uid="w", schema=RESULT)
    )
    for x, time in ((1, 1), (2, 6), (4, 11), (8, 3)):
        subtasks.row("a", x, time)
    assert [(row["start"], row["xs"]) for row in subtasks.watermark(MAX_WATERMARK)] == [
        *((-10, [1]), (-5, [11]), (0, [15])),
        *((5, [6]), (10, [4])),
    ]


@pytest.mark.promise("B5")
@pytest.mark.parametrize("arrived", [[(1, 1), (2, 6)], [(2, 6), (1, 1)]])
def test_panes_combine_in_the_order_of_time_whatever_the_order_of_arrival(arrived: list[tuple[int, int]]) -> None:
    def digits(left: Any, right: Any) -> Any:
        return {**left, "x": left["x"] * 10 + right["x"]}

    subtasks = Subtasks(lambda keyed: keyed.window(SLIDING).reduce(digits, OfOne(), uid="w", schema=RESULT))
    for x, time in arrived:
        subtasks.row("a", x, time)
    assert [(row["start"], row["xs"]) for row in subtasks.watermark(MAX_WATERMARK)] == [(-5, [1]), (0, [12]), (5, [2])]


@pytest.mark.promise("B5")
def test_a_merge_that_returns_nothing_is_an_error_and_no_empty_result() -> None:
    class Forgot(Merged):
        def merge(self, left: Any, right: Any) -> Any:
            left["xs"].extend(right["xs"])

    subtasks = Subtasks(gathering(Forgot(), lambda keyed: keyed.window(SLIDING)))
    subtasks.row("a", 1, 1)
    subtasks.row("a", 2, 6)
    with pytest.raises(UserFunctionError, match="merge of Forgot returned None: return the accumulator of what both"):
        subtasks.watermark(MAX_WATERMARK)


@given(st.builds(Spans, st.integers(2, 40), st.integers(1, 40), st.integers(0, 39)), st.integers(-200, 200))
def test_a_stretch_is_the_longest_that_no_window_divides(spans: Spans, time_ms: int) -> None:
    if not spans.overlap:
        return

    def windows(at_ms: int) -> list[int]:
        starts = range(at_ms - spans.size_ms + 1, at_ms + 1)
        return [start for start in starts if (start - spans.offset_ms) % spans.slide_ms == 0]

    start = spans.stretch(time_ms)
    assert all(windows(at_ms) == windows(time_ms) for at_ms in range(start, time_ms))
    assert windows(start - 1) != windows(start)
    assert spans.first_end(time_ms) == windows(time_ms)[0] + spans.size_ms
    last = windows(time_ms)[-1]
    assert start in spans.last_stretches(last)
    assert all(windows(at_ms)[-1] == last and spans.stretch(at_ms) == at_ms for at_ms in spans.last_stretches(last))


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary(3), pa.binary_view()])
def test_an_accumulator_of_bytes_is_copied_before_a_function_may_change_it(kind: pa.DataType) -> None:
    kept = bytearray(b"abc")
    copied = value_copier(kind)(kept)
    copied += b"def"
    assert kept == b"abc"
