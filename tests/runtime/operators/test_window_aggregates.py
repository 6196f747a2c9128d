"""Built-in aggregates in the row lane (B4 to B6): what they compute, what they keep, and for which windows.

Topology: the subtasks of one window operator; beside it the columnar operators of the same windows. Faults: restores at
another parallelism. Checks: what each step emits, the late records, and the state.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api import (
    Aggregate,
    ContinuousEventTimeTrigger,
    CountEvictor,
    CountTrigger,
    DataStream,
    EventTimeSessionWindows,
    Evictor,
    GlobalWindows,
    KeyedStream,
    NeverTrigger,
    ProcessingTimeSessionWindows,
    PurgingTrigger,
    SlidingEventTimeWindows,
    StreamEnvironment,
    TimeEvictor,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WatermarkStrategy,
    WindowedStream,
    approx_count_distinct,
    approx_quantile,
    count,
    count_distinct,
    first,
    last,
    maximum,
    mean,
    minimum,
    quantile,
    quantiles,
    stddev,
    top_n,
    total,
    variance,
)
from engine.protocol.signals import MAX_WATERMARK
from engine.runtime.operators.base import Operator
from engine.runtime.operators.window_combine import WindowCombine
from engine.state.windows import record_plan
from engine.state.windows.record_plan import RecordPlan
from tests.fakes import Collected, context
from tests.runtime.operators.windows_in_subtasks import FIELDS, SCHEMA, Subtasks

EVERY = {
    "n": count(),
    "xs": count("x"),
    "sum": total("x"),
    "low": minimum("x"),
    "high": maximum("x"),
    "avg": mean("x"),
    "first": first("x"),
    "last": last("ts"),
    "distinct": count_distinct("x"),
    "about": approx_count_distinct("x"),
    "top": top_n("x", 2),
    "best": top_n("ts", 2, by="x"),
    "median": quantile("x", 0.5),
    "spread": quantiles("x", [0, 1]),
    "roughly": approx_quantile("x", 0.5),
    "variance": variance("x"),
    "stddev": stddev("x"),
}
TEN = TumblingEventTimeWindows.of(10)


class Columnar:
    """The columnar operators of the same aggregates, fed one record at a time as the other lane is."""

    def __init__(self, windows: Callable[[KeyedStream], WindowedStream], **aggregates: Aggregate) -> None:
        env = StreamEnvironment()
        self.schema = windows(stream_of(FIELDS, env).key_by("k")).aggregate(uid="w", **aggregates).schema
        self.combine, self.merge = (node.operator.build() for node in env.graph.nodes[1:] if node.operator)
        assert isinstance(self.combine, WindowCombine)
        self.out, self.context = Collected(), context("w")
        self.combine.open(context("w.combine"), None)
        self.merge.open(self.context, None)

    def row(self, key: str | None, x: int | None, ts: int | None) -> list[dict[str, Any]]:
        before, partials = len(self.out.rows), Collected()
        self.combine.process(
            pa.RecordBatch.from_pylist([{"k": key, "x": x, "ts": ts, "_event_time": ts}], schema=SCHEMA), partials
        )
        assert isinstance(self.combine, WindowCombine)
        self.combine.release(partials)
        for partial in partials.events:
            assert isinstance(partial, pa.RecordBatch)
            self.merge.process(partial, self.out)
        return self.out.rows[before:]

    def watermark(self, timestamp_ms: int) -> list[dict[str, Any]]:
        before = len(self.out.rows)
        self.merge.on_watermark(timestamp_ms, self.out)
        return self.out.rows[before:]


def by_record(windows: Callable[[KeyedStream], WindowedStream], **aggregates: Aggregate) -> Callable[..., DataStream]:
    """Takes the row lane also where the other one could do it."""
    return lambda keyed: windows(keyed)._by_record("w", aggregates)


def schema_of(define: Callable[[KeyedStream], DataStream]) -> pa.Schema:
    return define(stream_of(FIELDS).key_by("k")).schema


def stream_of(fields: str, env: StreamEnvironment | None = None) -> DataStream:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("ts")
    return (env or StreamEnvironment()).from_elements([], fields).assign_timestamps_and_watermarks(strategy)


def rounded(rows: list[dict[str, Any]]) -> list[Any]:
    """Returns rows in an order, and doubles as far as both lanes have to agree: they add in another order."""
    return sorted(
        (
            {name: pytest.approx(value, abs=1e-9) if isinstance(value, float) else value for name, value in row.items()}
            for row in rows
        ),
        key=lambda row: (str(row["k"]), row["window_start"], row["window_end"], row["n"]),
    )


ROWS = st.tuples(
    st.just("row"), st.sampled_from([None, "a"]), st.none() | st.integers(-9, 9), st.none() | st.integers(-3, 25)
)
WATERMARKS = st.tuples(st.just("watermark"), st.integers(-5, 40), st.none(), st.none())
RESTORES = st.tuples(st.just("restore"), st.integers(1, 3), st.none(), st.none())
WINDOWS = [TEN, SlidingEventTimeWindows.of(10, 4), EventTimeSessionWindows.with_gap(5)]


@pytest.mark.promise("B4", "B5", "B7")
@given(
    st.sampled_from(WINDOWS),
    st.sampled_from([0, 8]),
    st.sampled_from([1, 3, 64]),
    st.lists(ROWS | ROWS | ROWS | WATERMARKS | RESTORES, max_size=40),
)
def test_both_lanes_compute_the_same_of_every_aggregate(
    assigner: Any, lateness: int, pending: int, steps: list[Any]
) -> None:
    def windows(keyed: KeyedStream) -> WindowedStream:
        return keyed.window(assigner).allowed_lateness(lateness)

    columnar, rows = Columnar(windows, **EVERY), Subtasks(by_record(windows, **EVERY))
    assert columnar.schema == schema_of(by_record(windows, **EVERY))
    now = -100
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(record_plan, "PENDING", pending)
        for what, a, b, c in [*steps, ("watermark", MAX_WATERMARK, None, None)]:
            if what == "row":
                assert rounded(columnar.row(a, b, c)) == rounded(rows.row(a, b, c))
            elif what == "restore":
                rows = rows.rescaled(a)
            elif a > now:
                now = a
                assert rounded(columnar.watermark(a)) == rounded(rows.watermark(a))
    assert rows.state() == {}


# --- windows that only the row lane has ---


def windows(make: Callable[[KeyedStream], WindowedStream], **aggregates: Aggregate) -> Subtasks:
    return Subtasks(lambda keyed: make(keyed).aggregate(uid="w", **aggregates))


def fed(subtasks: Subtasks, *rows: tuple[int | None, int | None]) -> list[Any]:
    """Processes values with their times, of the key a; returns the last column of what each of them fired."""
    return [of(subtasks.row("a", x, ts)) for x, ts in rows]


def of(rows: list[dict[str, Any]]) -> list[Any]:
    """Returns the aggregates of results, as a list if they are several."""
    rest = [
        [v for name, v in row.items() if name not in ("k", "window_start", "window_end", "_event_time")] for row in rows
    ]
    return [values[0] if len(values) == 1 else values for values in rest]


@pytest.mark.promise("B4", "B5", "B6")
def test_a_count_window_aggregates_so_many_records_also_across_a_restore() -> None:
    subtasks = windows(lambda keyed: keyed.count_window(3), n=count(), sum=total("x"), top=top_n("x", 2))
    assert fed(subtasks, (1, 1), (None, 2), (5, 3), (7, 4)) == [[], [], [[3, 6, [5, 1]]], []]
    subtasks = subtasks.rescaled(3)
    assert fed(subtasks, (8, 0), (9, None)) == [[], [[3, 24, [9, 8]]]]
    assert subtasks.state() == {}
    (row,) = [row for x in (1, 2, 3) for row in subtasks.row(None, x, x)]
    assert row == {"k": None, "n": 3, "sum": 6, "top": [3, 2], "_event_time": None}


@pytest.mark.promise("B4", "B6")
def test_a_sliding_count_window_aggregates_the_last_records() -> None:
    subtasks = windows(lambda keyed: keyed.count_window(3, 2), sum=total("x"), last=last("x"), first=first("x"))
    assert fed(subtasks, (1, 9), (2, 8)) == [[], [[3, 1, 2]]], "first and last go by event time"
    assert fed(subtasks.rescaled(2), (4, 7), (8, 20)) == [[], [[14, 8, 4]]]


@pytest.mark.promise("B6")
def test_a_trigger_fires_early_and_what_it_emitted_stays_as_it_was() -> None:
    day = TumblingEventTimeWindows.of(100)
    make = lambda keyed: keyed.window(day).trigger(ContinuousEventTimeTrigger.of(10))  # noqa: E731
    subtasks = windows(make, n=count(), xs=count_distinct("x"), mean=mean("x"))
    fed(subtasks, (1, 1), (3, 15))
    early = subtasks.watermark(10)
    assert of(early) == [[2, 2, 2.0]] and early[0]["window_end"].timestamp() == 0.1
    fed(subtasks.rescaled(2), (3, 31))
    subtasks = subtasks.rescaled(2)
    fed(subtasks, (8, 31))
    assert of(subtasks.watermark(20)) == [[3, 3, 4.0]]
    assert of(early) == [[2, 2, 2.0]]


@pytest.mark.promise("B6")
def test_each_record_of_a_batch_fires_what_the_window_holds_then() -> None:
    """Results are computed for a whole batch at once, so each needs what its window held when it fired."""
    make = lambda keyed: keyed.window(GlobalWindows.create()).trigger(CountTrigger.of(1))  # noqa: E731
    subtasks = windows(make, n=count(), sum=total("x"), distinct=count_distinct("x"))
    rows = [{"k": "a", "x": n % 100, "ts": n, "_event_time": n} for n in range(300)]
    subtasks.operators[0].process(pa.RecordBatch.from_pylist(rows, schema=SCHEMA), subtasks.out)
    sums = [sum(n % 100 for n in range(upto + 1)) for upto in range(300)]
    assert of(subtasks.out.rows) == [[n + 1, sums[n], min(n + 1, 100)] for n in range(300)]


@pytest.mark.promise("B6")
def test_a_purging_trigger_drops_the_accumulator() -> None:
    make = lambda keyed: keyed.window(TEN).trigger(PurgingTrigger.of(CountTrigger.of(2)))  # noqa: E731
    subtasks = windows(make, sum=total("x"), high=maximum("x"))
    assert fed(subtasks, (1, 1), (2, 2), (3, 3), (4, 4)) == [[], [[3, 2]], [], [[7, 4]]]
    assert subtasks.watermark(MAX_WATERMARK) == [] == list(subtasks.state())


@pytest.mark.promise("B4", "B6")
def test_sessions_with_a_gap_of_each_record_merge_their_accumulators() -> None:
    make = lambda keyed: keyed.window(EventTimeSessionWindows.with_dynamic_gap(lambda row: row["x"]))  # noqa: E731
    subtasks = windows(make, n=count(), first=first("x"), xs=count_distinct("x"), about=approx_count_distinct("x"))
    fed(subtasks, (3, 0), (3, 20), (2, 21))
    subtasks = subtasks.rescaled(3)
    fed(subtasks, (18, 3))
    (row,) = subtasks.watermark(MAX_WATERMARK)
    assert of([row]) == [[4, 3, 3, 3]] and row["_event_time"] == 22
    assert subtasks.state() == {}


@pytest.mark.promise("B4", "B6")
@pytest.mark.parametrize("assigner", [ProcessingTimeSessionWindows.with_gap(5), TumblingProcessingTimeWindows.of(50)])
def test_first_and_last_go_by_the_clock_in_windows_by_the_clock(assigner: Any) -> None:
    make = lambda keyed: keyed.window(assigner)  # noqa: E731
    subtasks = Subtasks(by_record(make, n=count(), first=first("x"), last=last("x")))
    fed(subtasks, (7, 30))
    subtasks.tick(2)
    fed(subtasks, (9, 20), (1, 10))
    (row,) = subtasks.tick(60)
    assert of([row]) == [[3, 7, 9]], "of the two at one time the last is the greatest"
    assert row["_event_time"] is None and row["window_start"].timestamp() == 0


@pytest.mark.promise("B6")
def test_with_an_evictor_the_aggregates_are_those_of_the_records_that_it_leaves() -> None:
    make = lambda keyed: keyed.window(TumblingEventTimeWindows.of(100)).evictor(TimeEvictor.of(10))  # noqa: E731
    subtasks = windows(make, **EVERY)
    fed(subtasks, (100, 1), (None, 45), (4, 50), (6, 41), (200, 40))
    (row,) = subtasks.rescaled(2).watermark(99)
    assert (row["n"], row["xs"], row["sum"], row["first"], row["last"]) == (3, 2, 10, 6, 50)
    assert (row["top"], row["best"], row["median"], row["distinct"]) == (
        [6, 4],
        [{"x": 6, "ts": 41}, {"x": 4, "ts": 50}],
        5,
        2,
    )
    clock = lambda keyed: keyed.window(TumblingProcessingTimeWindows.of(9)).evictor(CountEvictor.of(2))  # noqa: E731
    subtasks = windows(clock, first=first("x"), last=last("x"))
    fed(subtasks, (5, 9), (8, 8), (3, 7))
    assert of(subtasks.tick(20)) == [[8, 3]], "by the clock they go by the order of arrival"


class Everything(Evictor):
    def evict_before(self, elements: Any, size: int, window: Any, context: Any) -> None:
        elements.clear()


@pytest.mark.promise("B6")
def test_if_an_evictor_leaves_nothing_the_results_are_those_of_nulls_and_the_count_is_0() -> None:
    aggregates = {name: one for name, one in EVERY.items() if "ts" not in one.columns}
    evicted = windows(lambda keyed: keyed.window(TEN).evictor(Everything()), **aggregates)
    nulls = windows(lambda keyed: keyed.window(TEN).evictor(CountEvictor.of(9)), **aggregates)
    for subtasks in (evicted, nulls):
        fed(subtasks, (None, 5))
    (of_none,), (of_null,) = (subtasks.watermark(9) for subtasks in (evicted, nulls))
    assert of_none == {**of_null, "n": 0} and of_none["xs"] == 0 and of_none["top"] == [] and of_none["sum"] is None


@pytest.mark.promise("B4")
def test_a_record_without_event_time_is_neither_first_nor_last_of_a_global_window() -> None:
    subtasks = windows(lambda keyed: keyed.count_window(3), n=count("x"), first=first("x"), last=last("x"))
    assert fed(subtasks, (7, None), (8, 5), (9, None)) == [[], [], [[3, 8, 8]]]
    assert fed(subtasks, (7, None), (8, None), (9, None)) == [[], [], [[3, None, None]]]


@pytest.mark.promise("B5")
def test_values_are_folded_when_they_are_many_and_the_more_are_folded_the_fewer_times() -> None:
    subtasks = windows(lambda keyed: keyed.window(TEN).trigger(NeverTrigger()), xs=count_distinct("x"))
    rows = [{"k": "a", "x": n, "ts": 1, "_event_time": 1} for n in range(1000)]
    with patch.object(RecordPlan, "_folded", autospec=True, side_effect=RecordPlan._folded) as folds:
        subtasks.operators[0].process(pa.RecordBatch.from_pylist(rows, schema=SCHEMA), subtasks.out)
    assert folds.call_count == 4, "after 64, 128, 256 and 512"
    snapshot = subtasks.operators[0].snapshot(1)
    assert snapshot is not None
    (table,) = (part.table() for part in snapshot.parts if part.name == "(window) contents")
    (item,) = table.column("_item").to_pylist()
    folded, pending = len(item["partial"]["x$distinct"]), len(item["pending"]["x"])
    assert item["rows"] == 1000 == folded + pending
    assert pending < max(folded, record_plan.PENDING)


@pytest.mark.promise("D8")
def test_aggregates_come_and_go_while_windows_are_open() -> None:
    def counted(**aggregates: Aggregate) -> Callable[[KeyedStream], DataStream]:
        return lambda keyed: keyed.count_window(100).aggregate(uid="w", **aggregates)

    subtasks = Subtasks(counted(n=count(), sum=total("x"), low=minimum("x")))
    fed(subtasks, *[(n, n) for n in range(70)])
    subtasks = subtasks.rescaled(2, counted(n=count(), sum=total("x"), ts=count("ts"), last=last("ts"), m=mean("ts")))
    fed(subtasks, *[(1, n) for n in range(70, 99)])
    assert fed(subtasks, (1, 99)) == [[[100, sum(range(70)) + 30, 30, 99, sum(range(70, 100)) / 30]]]
    subtasks = Subtasks(counted(n=count()))
    fed(subtasks, *[(n, n) for n in range(99)])
    assert fed(subtasks.rescaled(1, counted(n=count(), sum=total("x"))), (5, 5)) == [[[100, 5]]]


TYPES = {
    "when": (pa.timestamp("us", "UTC"), "timestamp"),
    "price": (pa.decimal128(9, 2), "decimal(9,2)"),
    "share": (pa.float32(), "float"),
    "ok": (pa.bool_(), "boolean"),
    "day": (pa.date32(), "date"),
    "small": (pa.int8(), "byte"),
    "raw": (pa.binary(), "binary"),
    "name": (pa.string(), "string"),
}


@pytest.mark.promise("B5")
@pytest.mark.parametrize("pending", [1, 64])
def test_values_of_every_type_come_out_as_in_the_other_lane(pending: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_plan, "PENDING", pending)
    fields = ", ".join(["k string, ts long, parts array<long>", *(f"{name} {ddl}" for name, (_, ddl) in TYPES.items())])
    rows = pa.table(
        {
            "k": ["a", "a", "a", "b"],
            "ts": [1, 2, 3, 4],
            "parts": pa.array([[1], None, [], [2]], pa.list_(pa.int64())),
            "when": pa.array([3, 1, None, 2], pa.timestamp("us", "UTC")),
            "price": pa.array([Decimal("1.25"), Decimal(-2), None, Decimal(3)], pa.decimal128(9, 2)),
            "share": pa.array([0.1, float("nan"), -0.0, None], pa.float32()),
            "ok": [True, False, None, None],
            "day": pa.array([5, 4, None, 3], pa.date32()),
            "small": pa.array([100, 100, 100, None], pa.int8()),
            "raw": pa.array([b"x", b"\xff", None, b""]),
            "name": ["é", "", None, "z"],
            "_event_time": [1, 2, 3, 4],
        }
    )
    aggregates = {"parts": count("parts"), "prices": total("price"), "smalls": total("small"), "shares": mean("share")}
    for name in TYPES:
        if name not in ("ok", "raw"):
            aggregates |= {f"low_{name}": minimum(name), f"distinct_{name}": count_distinct(name)}
        aggregates |= {f"first_{name}": first(name), f"high_{name}": maximum(name), f"n_{name}": count(name)}
        aggregates |= {f"about_{name}": approx_count_distinct(name)}
    results = []
    for define in (
        lambda keyed: keyed.window(TEN).aggregate(uid="w", **aggregates),
        by_record(lambda k: k.window(TEN), **aggregates),
    ):
        env, out = StreamEnvironment(), Collected()
        stream = define(stream_of(fields, env).key_by("k"))
        operators: list[Operator] = [node.operator.build() for node in env.graph.nodes[1:] if node.operator]
        batch = rows.cast(env.graph.nodes[0].schema).to_batches()[0]
        for operator in operators[:-1]:
            made = Collected()
            operator.open(context("w.combine"), None)
            operator.process(batch, made)
            operator.release(made)
            (batch,) = [event for event in made.events if isinstance(event, pa.RecordBatch)]
        operators[-1].open(context("w"), None)
        operators[-1].process(batch, out)
        operators[-1].on_watermark(MAX_WATERMARK, out)
        while operators[-1].firing:
            operators[-1].work(64, out)
        (result,) = [event for event in out.events if isinstance(event, pa.RecordBatch)]
        assert result.schema == stream.schema
        results.append(repr(result.sort_by("k").to_pylist()))
    assert results[0] == results[1]
