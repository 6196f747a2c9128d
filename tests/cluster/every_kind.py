"""One job with the kinds of windows, triggers, joins, patterns and state that `families` does not have.

Its source has one split, so that the records of a key come in one order, on Spark as in `engine.testing`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import polars as pl

from engine.api import (
    CEP,
    AfterMatchSkipStrategy,
    AggregateFunction,
    AggregatingStateDescriptor,
    CoFlatMapFunction,
    CoGroupFunction,
    ContinuousEventTimeTrigger,
    CountEvictor,
    CountTrigger,
    DataStream,
    EventTimeSessionWindows,
    GlobalWindows,
    KeyedProcessFunction,
    KeyedStream,
    ListStateDescriptor,
    MapStateDescriptor,
    Match,
    MatchContext,
    OnTimerContext,
    OutputTag,
    Pattern,
    PatternProcessFunction,
    ProcessAllWindowFunction,
    ProcessContext,
    ProcessWindowFunction,
    PurgingTrigger,
    ReducingStateDescriptor,
    RuntimeContext,
    SlidingEventTimeWindows,
    StateTtlConfig,
    StreamEnvironment,
    TimeEvictor,
    Trigger,
    TriggerContext,
    TriggerResult,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    ValueStateDescriptor,
    WatermarkStrategy,
    approx_count_distinct,
    count,
    count_distinct,
    first,
    last,
    maximum,
    mean,
    minimum,
    quantiles,
    top_n,
    total,
)
from engine.connectors.generator import Columns, GeneratorSource
from engine.connectors.table import TableSink

Row = dict[str, Any]
KEYS = 20
LATE_FROM, LATE_STEP, LATE_MS = 8_000, 97, 6_000
"""From a record on each so many-th is so late that its window has ended, however many records a batch has."""
TTL_MS = 20
FIELDS = "n long, key long, value long, at long"
LISTED = "key long, start long, ns array<long>"
UNPAID, LATE = OutputTag("unpaid", "key long, n long, due long"), OutputTag("late", FIELDS)
UNORDERED = ("by_clock", "continuous")
"""Tables that depend on when a record comes, or on how many come together."""


def _numbers(n: np.ndarray) -> Columns:
    late = np.where((n >= LATE_FROM) & (n % LATE_STEP == 0), LATE_MS, 0)
    return {"n": n, "key": n * 7919 % KEYS, "value": n * 31 % 101, "at": n - late}


class Listed(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Iterable[Row]) -> Iterable[Row]:
        start = getattr(context.window(), "start", None)  # a global window has none
        yield {"key": key, "start": start, "ns": [element["n"] for element in elements]}


class Whole(ProcessAllWindowFunction):
    def process(self, context: Any, elements: Iterable[Row]) -> Iterable[Row]:
        values = [element["value"] for element in elements]
        yield {"start": context.window().start, "rows": len(values), "sum": sum(values)}


class AtThree(Trigger):
    """Purges a window at a value of 3, fires at each value above 90, and fires and purges at its end."""

    def on_element(self, element: Row, timestamp: int | None, window: Any, context: TriggerContext) -> TriggerResult:
        context.register_event_time_timer(window.end - 1)
        seen = context.get_partitioned_state(ReducingStateDescriptor("seen", max, "long"))
        seen.add(element["value"])
        if element["value"] == 3:
            return TriggerResult.PURGE
        return TriggerResult.FIRE if element["value"] > 90 and seen.get() > 95 else TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Any, context: TriggerContext) -> TriggerResult:
        return TriggerResult.FIRE_AND_PURGE

    def on_processing_time(self, time: int, window: Any, context: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def clear(self, window: Any, context: TriggerContext) -> None:
        context.delete_event_time_timer(window.end - 1)
        context.get_partitioned_state(ReducingStateDescriptor("seen", max, "long")).clear()


class Mean(AggregateFunction):
    def create_accumulator(self) -> list[int]:
        return [0, 0]

    def add(self, value: int, accumulator: list[int]) -> list[int]:
        return [accumulator[0] + value, accumulator[1] + 1]

    def get_result(self, accumulator: list[int]) -> float:
        return accumulator[0] / accumulator[1]


class EveryState(KeyedProcessFunction):
    """Keeps what it has seen in a state of each kind; one value expires before a timer looks for it."""

    def open(self, context: RuntimeContext) -> None:
        brief = ValueStateDescriptor("brief", "long")
        brief.enable_time_to_live(StateTtlConfig.new_builder(TTL_MS).build())
        lasting = ValueStateDescriptor("lasting", "long")
        lasting.enable_time_to_live(StateTtlConfig.new_builder("1 h").update_ttl_on_read_and_write().build())
        self._brief, self._lasting = context.get_state(brief), context.get_state(lasting)
        self._recent = context.get_list_state(ListStateDescriptor("recent", "long"))
        self._by_digit = context.get_map_state(MapStateDescriptor("by digit", "long", "long"))
        self._most = context.get_reducing_state(ReducingStateDescriptor("most", max, "long"))
        self._mean = context.get_aggregating_state(AggregatingStateDescriptor("mean", Mean(), "array<long>"))

    def process_element(self, value: Row, context: ProcessContext) -> Iterable[Row]:
        n = value["n"]
        self._lasting.update((self._lasting.value() or 0) + 1)
        self._recent.update([*self._recent.get(), n][-3:])
        self._by_digit[n % 10] = n
        self._most.add(value["value"])
        self._mean.add(value["value"])
        if n < KEYS:
            self._brief.update(n)
            timers = context.timer_service()
            timers.register_processing_time_timer(timers.current_processing_time() + 2 * TTL_MS)
        digits = sorted(self._by_digit.keys())
        states = {"recent": self._recent.get(), "digits": digits, "most": self._most.get(), "mean": self._mean.get()}
        yield {"key": context.get_current_key(), "n": n, "seen": self._lasting.value(), "brief": None, **states}

    def on_timer(self, timestamp: int, context: OnTimerContext) -> Iterable[Row]:
        nothing = {"recent": None, "digits": None, "most": None, "mean": None}
        brief = -1 if self._brief.value() is None else self._brief.value()
        yield {"key": context.get_current_key(), "n": None, "seen": None, "brief": brief, **nothing}


class Paid(PatternProcessFunction):
    def process_match(self, match: Match, context: MatchContext) -> Iterable[Any]:
        yield {"key": context.get_current_key(), "first": match["low"][0]["n"], "last": match["high"][0]["n"]}

    def process_timed_out_match(self, match: Match, context: MatchContext) -> Iterable[Any]:
        low = match["low"][0]
        yield UNPAID, {"key": low["key"], "n": low["n"], "due": context.timestamp()}


class Either(CoFlatMapFunction):
    def flat_map1(self, value: Row) -> Iterable[Row]:
        yield {"n": value["n"], "side": 1}

    def flat_map2(self, value: Row) -> Iterable[Row]:
        return [{"n": value["n"], "side": 2}] * 2


class Outer(CoGroupFunction):
    def co_group(self, first: Sequence[Row], second: Sequence[Row]) -> Iterable[Row]:
        for one in first or [None]:
            for other in second or [None]:
                yield {"n": one and one["n"], "m": other and other["n"]}


def larger(left: Row, right: Row) -> Row:
    return left if left["value"] > right["value"] else right


def every_kind(env: StreamEnvironment) -> None:
    env.enable_checkpointing("300 ms")
    rows, rate = env.params.get("rows", 12_000), env.params.get("rate", 1_500)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("at")
    numbers = env.from_source(GeneratorSource(_numbers, 1, rows, rate), FIELDS, uid="numbers")
    timed = numbers.assign_timestamps_and_watermarks(strategy)
    keyed = timed.key_by("key")
    sparse = timed.where(pl.col("value") < 7).key_by("key")
    for name, stream in {
        **_windows(timed, keyed, sparse),
        **_built_in(keyed, sparse),
        **_rolling(keyed),
        **_patterns(timed),
        **_joined(timed),
    }.items():
        stream.sink_to(TableSink(name), uid=f"{name} out")


def _windows(timed: DataStream, keyed: KeyedStream, sparse: KeyedStream) -> dict[str, DataStream]:
    second = TumblingEventTimeWindows.of("1 s")
    kept = keyed.window(TumblingEventTimeWindows.of(700, 50)).allowed_lateness("1 s").side_output_late_data(LATE)
    listed = kept.evictor(TimeEvictor.of(300)).process(Listed(), uid="listed", schema=LISTED)
    dynamic = EventTimeSessionWindows.with_dynamic_gap(lambda row: 100 + row["value"])
    purged = keyed.window(GlobalWindows.create()).trigger(PurgingTrigger.of(CountTrigger.of(7)))
    by_clock = keyed.window(TumblingProcessingTimeWindows.of(200))
    continuous = keyed.window(TumblingEventTimeWindows.of("20 s")).trigger(ContinuousEventTimeTrigger.of("2 s"))
    return {
        "listed": listed,
        "late": listed.get_side_output(LATE),
        "triggered": keyed.window(second).trigger(AtThree()).process(Listed(), uid="triggered", schema=LISTED),
        "dynamic": sparse.window(dynamic).process(Listed(), uid="dynamic", schema=LISTED),
        "by_count": keyed.count_window(40, 15).reduce(larger, uid="by count"),
        "purged": purged.evictor(CountEvictor.of(3)).process(Listed(), uid="purged", schema=LISTED),
        "by_clock": by_clock.process(Listed(), uid="by clock", schema=LISTED),
        "continuous": continuous.reduce(larger, uid="continuous"),
        "whole": timed.window_all(second).process(Whole(), uid="whole", schema="start long, rows long, sum long"),
    }


def _built_in(keyed: KeyedStream, sparse: KeyedStream) -> dict[str, DataStream]:
    every: dict[str, Any] = {
        "rows": count(),
        "sum": total("value"),
        "low": minimum("value"),
        "high": maximum("value"),
        "mean": mean("value"),
        "first": first("n"),
        "last": last("n"),
        "distinct": count_distinct("value"),
        "about": approx_count_distinct("value"),
        "top": top_n("value", 2, by="n"),
        "quarters": quantiles("value", [0.25, 0.75]),
    }
    hops = keyed.window(SlidingEventTimeWindows.of("3 s", "500 ms"))
    sessions = sparse.window(EventTimeSessionWindows.with_gap(150))
    threes = keyed.count_window(30)
    return {
        "hops": hops.aggregate(**every, uid="hops"),
        "sessions": sessions.aggregate(**every, uid="sessions"),
        "threes": threes.aggregate(**every, uid="threes"),
    }


def _rolling(keyed: KeyedStream) -> dict[str, DataStream]:
    schema = "key long, n long, seen long, brief long, recent array<long>, digits array<long>, most long, mean double"
    return {
        "states": keyed.process(EveryState(), uid="states", schema=schema),
        "sums": keyed.sum("value", uid="sums"),
        "least": keyed.min_by("value", uid="least"),
    }


def _patterns(timed: DataStream) -> dict[str, DataStream]:
    once = AfterMatchSkipStrategy.skip_past_last_event()
    low = Pattern.begin("low", once).where(lambda row: row["value"] < 5)
    pair = low.followed_by("high").where(lambda row: row["value"] > 90).within(400)
    paid = CEP.pattern(timed.key_by("key"), pair).process(Paid(), uid="paid", schema="key long, first long, last long")
    small = Pattern.begin("small").where(lambda row: row["value"] < 40)
    run = small.times(3).consecutive().not_next("none").where(lambda row: row["value"] > 80)
    run = run.followed_by("end").where(lambda row: row["value"] % 2 == 0).within(900)
    runs = CEP.pattern(timed.where(pl.col("key") < 5).key_by("key"), run)
    return {
        "paid": paid,
        "unpaid": paid.get_side_output(UNPAID),
        "runs": runs.flat_select(lambda match: [*match["small"], *match["end"]], uid="runs", schema=FIELDS),
    }


def _joined(timed: DataStream) -> dict[str, DataStream]:
    ours, theirs = timed.where(pl.col("n") % 9 == 0), timed.where(pl.col("n") % 21 == 0)
    hops = SlidingEventTimeWindows.of("1 s", "500 ms")
    both = ours.join(theirs).where("key").equal_to("key").window(hops)
    outer = ours.co_group(theirs).where("key").equal_to("key").window(TumblingEventTimeWindows.of("1 s"))
    return {
        "met": both.select("n", "n_right", uid="met"),
        "outer": outer.apply(Outer(), uid="outer", schema="n long, m long"),
        "either": ours.connect(theirs).flat_map(Either(), schema="n long, side long"),
    }
