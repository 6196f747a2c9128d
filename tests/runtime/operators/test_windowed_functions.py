"""Windows with functions, against a plain model: random streams, out of order, late, with nulls, restored anywhere.

Topology: the subtasks of one window operator (tests/runtime/operators/windows_in_subtasks.py). Faults: restores at
another parallelism, from subtasks whose watermarks differ. Checks: what each step emits, what is late, what is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api import (
    AggregateFunction,
    CountTrigger,
    DataStream,
    EventTimeSessionWindows,
    KeyedStream,
    ProcessWindowFunction,
    SlidingEventTimeWindows,
    StreamEnvironment,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    WindowedStream,
)
from engine.api.windows import WindowAssigner
from engine.protocol.signals import MAX_WATERMARK, MIN_WATERMARK
from engine.runtime.operators import windowed_functions
from tests.fakes import Collected, context
from tests.runtime.operators.windows_in_subtasks import (
    FIELDS,
    RESULT,
    SCHEMA,
    Collect,
    Define,
    Subtasks,
    built,
)

KEYS = (None, "a", "c")


class Sum(AggregateFunction):
    """Its accumulator is null until the first value that is not, as SQL has it."""

    def create_accumulator(self) -> Any:
        return None

    def add(self, value: Any, accumulator: Any) -> Any:
        return self.merge(accumulator, value["x"])

    def get_result(self, accumulator: Any) -> Any:
        return {"x": accumulator}

    def merge(self, left: Any, right: Any) -> Any:
        return right if left is None else left if right is None else left + right


def summed(left: dict[str, Any], right: dict[str, Any]) -> dict[str, Any]:
    left["x"] = Sum().merge(left["x"], right["x"])
    right["k"] = "spoilt"  # a function may change its arguments: they are copies
    return left


class CollectSum(Collect):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        elements = list(elements)
        assert len(elements) == 1
        yield from super().process(key, context, elements)
        elements[0]["x"] = 1000


class Model:
    """Windows in a few lines: per key its watermark, and a list of [start, end, values]."""

    def __init__(self, gap: int | None, size: int, slide: int, offset: int, lateness: int) -> None:
        self.gap, self.size, self.slide, self.offset, self.lateness = gap, size, slide, offset, lateness
        self.clock = dict.fromkeys(KEYS, MIN_WATERMARK)
        self.windows: dict[Any, list[list[Any]]] = {key: [] for key in KEYS}
        self.late = self.untimed = 0

    def row(self, key: Any, x: Any, ts: Any) -> list[Any]:
        if ts is None:
            self.untimed += 1
            return []
        if self.gap is not None:
            spans = [(ts, ts + self.gap)]
        else:
            starts = range(ts - self.size + 1, ts + 1)
            spans = [(s, s + self.size) for s in starts if (s - self.offset) % self.slide == 0]
        fired, late = [], bool(spans)
        for start, end in spans:
            windows = self.windows[key]
            together = [w for w in windows if (w[0] <= end and start <= w[1] if self.gap else w[:2] == [start, end])]
            whole = [min([start, *(w[0] for w in together)]), max([end, *(w[1] for w in together)]), []]
            if whole[1] - 1 + self.lateness <= self.clock[key]:
                continue
            late = False
            whole[2] = [*(value for w in together for value in w[2]), x]
            self.windows[key] = [w for w in windows if w not in together] + [whole]
            if whole[1] - 1 <= self.clock[key]:
                fired.append((key, *whole))
        self.late += late
        return fired

    def watermark(self, timestamp_ms: int, keys: Any) -> list[Any]:
        fired = []
        for key in keys:
            before, now = self.clock[key], max(self.clock[key], timestamp_ms)
            self.clock[key] = now
            fired += [(key, *w) for w in self.windows[key] if before < w[1] - 1 <= now]
            self.windows[key] = [w for w in self.windows[key] if w[1] - 1 + self.lateness > now]
        return fired


def collected(fired: list[Any]) -> list[Any]:
    return sorted(((k, s, e, sorted(xs, key=lambda x: (x is None, x or 0))) for k, s, e, xs in fired), key=repr)


def totalled(fired: list[Any]) -> list[Any]:
    totals = [(k, s, e, [x for x in xs if x is not None]) for k, s, e, xs in fired]
    return sorted(((k, s, e, [sum(xs) if xs else None]) for k, s, e, xs in totals), key=repr)


def got(rows: list[dict[str, Any]]) -> list[Any]:
    assert all(row["_event_time"] == row["end"] - 1 for row in rows), "results carry the last time of their window"
    return sorted(((row["k"], row["start"], row["end"], row["xs"]) for row in rows), key=repr)


WINDOWS: dict[str, tuple[WindowAssigner, tuple[Any, ...]]] = {
    "tumbling": (TumblingEventTimeWindows.of(10, 3), (None, 10, 10, 3)),
    "sliding": (SlidingEventTimeWindows.of(12, 5), (None, 12, 5, 0)),
    "gaps": (SlidingEventTimeWindows.of(3, 7), (None, 3, 7, 0)),
    "sessions": (EventTimeSessionWindows.with_gap(6), (6, 0, 1, 0)),
}


def defined(function: str, assigner: WindowAssigner, lateness: int) -> Define:
    def define(keyed: KeyedStream) -> Any:
        windows = keyed.window(assigner).allowed_lateness(lateness)
        if function == "process":
            return windows.process(Collect(), uid="w", schema=RESULT)
        if function == "reduce":
            return windows.reduce(summed, CollectSum(), uid="w", schema=RESULT)
        return windows.aggregate(Sum(), CollectSum(), accumulator_type="long", uid="w", schema=RESULT)

    return define


BUILT = {
    (windows, function, lateness): built(defined(function, WINDOWS[windows][0], lateness))
    for windows in WINDOWS
    for function in ("process", "reduce", "aggregate")
    for lateness in (0, 8)
}
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("row"),
            st.sampled_from(KEYS),
            st.none() | st.integers(-9, 9),
            st.integers(-5, 30) | st.integers(-5, 30) | st.none(),
        ),
        st.tuples(st.just("watermark"), st.none() | st.integers(0, 3), st.integers(-5, 45), st.just(0)),
        st.tuples(st.just("restore"), st.integers(1, 3), st.just(0), st.just(0)),
    ),
    min_size=8,
    max_size=40,
)


@pytest.mark.promise("B3", "B4", "B5", "B7", "D7")
@pytest.mark.parametrize("windows", WINDOWS)
@given(st.sampled_from(["process", "reduce", "aggregate"]), STEPS, st.sampled_from([0, 8]), st.integers(1, 3))
def test_windows_are_those_of_a_plain_model_on_random_streams(
    windows: str, function: str, steps: list[Any], lateness: int, max_rows: int
) -> None:
    of = WINDOWS[windows][1]
    subtasks = Subtasks(BUILT[windows, function, lateness], 2, max_rows=max_rows)
    model, wanted = Model(*of, lateness), collected if function == "process" else totalled
    late = untimed = 0
    for what, first, second, third in steps:
        match what:
            case "row":
                assert got(subtasks.row(first, second, third)) == wanted(model.row(first, second, third))
            case "watermark":
                subtask = None if first is None else first % len(subtasks.operators)
                keys = [key for key in KEYS if subtask in (None, subtasks.of(key))]
                assert got(subtasks.watermark(second, subtask)) == wanted(model.watermark(second, keys))
            case "restore":
                late, untimed = late + subtasks.count("late"), untimed + subtasks.count("untimed")
                subtasks = subtasks.rescaled(first)
    assert got(subtasks.watermark(MAX_WATERMARK)) == wanted(model.watermark(MAX_WATERMARK, KEYS))
    assert late + subtasks.count("late") == model.late
    assert untimed + subtasks.count("untimed") == model.untimed
    assert subtasks.state() == {}, "everything that belongs to a window goes with it"


@pytest.mark.promise("B7", "D7")
def test_a_window_that_one_subtask_has_forgotten_stays_so_when_subtasks_become_one() -> None:
    subtasks = Subtasks(BUILT["tumbling", "process", 0], 2)
    ahead, behind = (next(key for key in map(str, range(99)) if subtasks.of(key) == index) for index in (0, 1))
    subtasks.row(ahead, 1, 5)
    subtasks.row(behind, 2, 5)
    assert got(subtasks.watermark(20, 0)) == [(ahead, 3, 13, [1])]
    one = subtasks.rescaled(1)
    assert one.row(ahead, 3, 6) == [] and one.count("late") == 1, "its key group has passed the end of this window"
    one.row(behind, 4, 6)
    assert one.count("late") == 1
    assert got(one.watermark(12)) == [(behind, 3, 13, [2, 4])]


def test_a_reduce_function_may_change_its_arguments_though_windows_share_a_record() -> None:
    subtasks = Subtasks(BUILT["sliding", "reduce", 0])
    for x in (1, 2, 4):
        subtasks.row("a", x, 6)
    assert got(subtasks.watermark(MAX_WATERMARK)) == [("a", -5, 7, [7]), ("a", 0, 12, [7]), ("a", 5, 17, [7])]


@pytest.mark.promise("B3")
def test_many_results_are_emitted_in_pieces_before_their_watermark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windowed_functions, "FIRE_ROWS", 2)
    subtasks = Subtasks(BUILT["tumbling", "process", 0], max_rows=3)
    for number in range(7):
        subtasks.row(f"key {number}", number, 5)
    assert len(subtasks.watermark(12)) == 7
    assert [len(event) if isinstance(event, pa.RecordBatch) else event for event in subtasks.out.events] == [
        *(2, 1, 2, 1, 1),
        12,
    ], "three windows fire at a time, and two results are a piece"


@pytest.mark.promise("B7", "D8")
@pytest.mark.parametrize("windows", ["tumbling", "sessions"])
def test_with_more_lateness_than_before_a_window_that_was_forgotten_stays_so(windows: str) -> None:
    subtasks = Subtasks(BUILT[windows, "process", 0])
    subtasks.row("a", 1, 3)
    subtasks.row("a", 2, 20)
    subtasks.row("c", 64, 20)  # nothing comes for its window any more
    assert len(subtasks.watermark(12)) == 1
    longer = subtasks.rescaled(2, defined("process", WINDOWS[windows][0], 100))
    assert longer.row("a", 4, 4) == [] and longer.count("late") == 1, "only a part of it would be known"
    assert sorted(row["xs"] for row in longer.watermark(25)) == [[2], [64]]
    assert longer.row("a", 8, 5) == [] and longer.count("late") == 2
    assert [row["xs"] for row in longer.row("a", 16, 20)] == [[2, 16]], "this one is kept for the new lateness"
    again = longer.rescaled(1)
    assert again.row("a", 4, 4) == [] and again.count("late") == 1, "also after the next restore"
    assert [row["xs"] for row in again.row("a", 32, 20)] == [[2, 16, 32]]
    again.watermark(MAX_WATERMARK)
    assert again.state() == {}


@pytest.mark.promise("B7", "D8")
def test_with_less_lateness_than_before_windows_that_were_kept_are_forgotten() -> None:
    subtasks = Subtasks(BUILT["tumbling", "process", 8])
    subtasks.row("a", 1, 3)
    subtasks.row("a", 2, 20)
    assert len(subtasks.watermark(14)) == 1
    shorter = subtasks.rescaled(2, defined("process", WINDOWS["tumbling"][0], 0))
    assert shorter.row("a", 4, 4) == [] and shorter.count("late") == 1
    assert [row["xs"] for row in shorter.watermark(MAX_WATERMARK)] == [[2]]
    assert shorter.state() == {}


class Changes(AggregateFunction):
    """Takes the first record as accumulator, changes it in place, and returns it as the result, too."""

    def create_accumulator(self) -> Any:
        return None

    def add(self, value: Any, accumulator: Any) -> Any:
        if accumulator is None:
            return value
        accumulator["x"] += value["x"]
        return accumulator

    def get_result(self, accumulator: Any) -> Any:
        return accumulator


@pytest.mark.promise("B5")
def test_an_aggregate_function_may_change_its_accumulator_though_windows_share_a_record() -> None:
    sliding = SlidingEventTimeWindows.of(12, 5)
    subtasks = Subtasks(
        lambda keyed: keyed.window(sliding).aggregate(
            Changes(), accumulator_type="struct<k string, x long, ts long>", schema=FIELDS, uid="w"
        )
    )
    for x in (1, 2, 4):
        subtasks.row("a", x, 6)
    assert [row["x"] for row in subtasks.watermark(MAX_WATERMARK)] == [7, 7, 7]


@pytest.mark.promise("B5", "B6")
def test_a_result_does_not_change_when_its_accumulator_does() -> None:
    class Spoils(Collect):
        def process(self, key: Any, context: Any, elements: Any) -> Any:
            yield from super().process(key, context, elements)
            elements[0]["x"] = 1000

    windows = TumblingEventTimeWindows.of(10)
    accumulator = "struct<k string, x long, ts long>"
    rows = [{"k": "a", "x": x, "ts": 1, "_event_time": 1} for x in (1, 2, 4)]
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    plain = Subtasks(
        lambda keyed: (
            keyed.window(windows)
            .trigger(CountTrigger.of(1))
            .aggregate(Changes(), accumulator_type=accumulator, schema=FIELDS, uid="w")
        )
    )
    plain.operators[0].process(batch, plain.out)
    assert [row["x"] for row in plain.out.rows] == [1, 3, 7]
    spoilt = Subtasks(
        lambda keyed: (
            keyed.window(windows)
            .trigger(CountTrigger.of(1))
            .aggregate(Changes(), Spoils(), accumulator_type=accumulator, schema=RESULT, uid="w")
        )
    )
    spoilt.operators[0].process(batch, spoilt.out)
    assert [row["xs"] for row in spoilt.out.rows] == [[1], [3], [7]]


NESTED = "k string, xs array<long>, ts long"


def of_lists(define: Callable[[KeyedStream], DataStream], *lists: list[int]) -> list[Any]:
    """Returns the lists in the results of a window operator for records of one key at 6 ms, given as one batch."""
    env = StreamEnvironment()
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("ts")
    stream = env.from_elements([], NESTED).assign_timestamps_and_watermarks(strategy)
    spec = env.graph.nodes[define(stream.key_by("k"))._node].operator
    assert spec is not None
    operator, out = spec.build(), Collected()
    operator.open(context("w"), None)
    rows = [{"k": "a", "xs": xs, "ts": 6, "_event_time": 6} for xs in lists]
    operator.process(pa.RecordBatch.from_pylist(rows, schema=stream.schema), out)
    operator.on_watermark(MAX_WATERMARK, out)
    while operator.firing:
        operator.work(100, out)
    return [row["xs"] for row in out.rows]


def appended(left: dict[str, Any], right: dict[str, Any]) -> dict[str, Any]:
    left["xs"].extend(right["xs"])
    right["xs"].clear()
    return left


class Longer(ProcessWindowFunction):
    """Emits the lists of all records, and then changes them."""

    def process(self, key: Any, context: Any, elements: Any) -> Any:
        yield {"k": key, "xs": [x for element in elements for x in element["xs"]], "ts": 0}
        for element in elements:
            element["xs"].append(1000)


@pytest.mark.promise("B5")
@pytest.mark.parametrize("trigger", [None, CountTrigger.of(1)])
def test_functions_may_change_lists_in_records_though_windows_share_them(trigger: CountTrigger | None) -> None:
    def windows(keyed: KeyedStream) -> WindowedStream:
        sliding = keyed.window(SlidingEventTimeWindows.of(12, 5))
        return sliding if trigger is None else sliding.trigger(trigger)

    wanted = [[1, 2, 3]] * 3 if trigger is None else [[1]] * 3 + [[1, 2, 3]] * 3
    assert of_lists(lambda keyed: windows(keyed).reduce(appended, uid="w"), [1], [2, 3]) == wanted
    assert of_lists(lambda keyed: windows(keyed).process(Longer(), uid="w"), [1], [2, 3]) == wanted
