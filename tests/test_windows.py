"""Windows with functions of the author's own, through the whole engine.

Goal: each kind gives the same output undisturbed, with checkpoints at parallelism 2, and crashed and restored at 3.
Topology: one list source with out-of-order and late records, and a window operator for each table.
Faults: a slot dies after two thirds of the input. Checks: the rows of all tables, against a few lines of Python.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from engine.api import (
    AggregateFunction,
    ContinuousEventTimeTrigger,
    CountEvictor,
    CountTrigger,
    DataStream,
    EventTimeSessionWindows,
    FixedDelay,
    GlobalWindows,
    OutputTag,
    ProcessAllWindowFunction,
    ProcessingTimeSessionWindows,
    ProcessWindowFunction,
    PurgingTrigger,
    SlidingEventTimeWindows,
    StreamEnvironment,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    ValueStateDescriptor,
    WatermarkStrategy,
    count,
    maximum,
)
from engine.connectors.table import TableSink
from engine.testing import Checkpoint, Crash, JobFailed, ListSource, Wait, run
from tests.three_ways import Rows, three_ways

SCHEMA = "k string, n long, at long"
LAGS = {10: 9000, 7: 20_000}
EVENTS = [
    {"k": f"k{n % 3}", "n": n, "at": 1000 * n - (n % 4) * 900 - LAGS.get(n % 11, 0)}
    for n in range(33)
    if not 12 < n < 18
]
LATE, ODD = OutputTag("late", SCHEMA), OutputTag("odd", "n long")
HOPS_MS = 7000, 3000, 1000
"""The size of windows that share panes, their slide and their offset."""
LISTED = "k string, start long, end long, ns array<long>"


class Listed(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        window = context.window()
        ns = sorted(element["n"] for element in elements)
        yield {"k": key, "start": window.start, "end": window.end, "ns": ns}


class Mean(AggregateFunction):
    def create_accumulator(self) -> dict[str, int]:
        return {"sum": 0, "n": 0}

    def add(self, value: Any, accumulator: dict[str, int]) -> dict[str, int]:
        accumulator["sum"] += value["n"]
        accumulator["n"] += 1
        return accumulator

    def get_result(self, accumulator: dict[str, int]) -> float:
        return accumulator["sum"] / accumulator["n"]

    def merge(self, left: dict[str, int], right: dict[str, int]) -> dict[str, int]:
        return {"sum": left["sum"] + right["sum"], "n": left["n"] + right["n"]}


class Named(ProcessWindowFunction):
    """Numbers the windows of its key, and emits the odd ones aside."""

    def process(self, key: Any, context: Any, elements: Any) -> Any:
        (mean,) = elements
        seen = context.global_state().get_state(ValueStateDescriptor("seen", "long"))
        seen.update((seen.value() or 0) + 1)
        yield {"k": key, "end": context.window().end, "mean": mean, "seen": seen.value()}
        if seen.value() % 2:
            yield ODD, {"n": seen.value()}


class Total(ProcessAllWindowFunction):
    def process(self, context: Any, elements: Any) -> Any:
        ns = [element["n"] for element in elements]
        assert all(set(element) == {"k", "n", "at"} for element in elements)
        yield {"start": context.window().start, "n": sum(ns), "rows": len(ns)}


class Reduced(ProcessWindowFunction):
    """Adds the window to the only record that it gets."""

    def process(self, key: Any, context: Any, elements: Any) -> Any:
        (record,) = elements
        yield {"k": key, "start": context.window().start, "end": context.window().end, "n": record["n"]}


def added(left: Any, right: Any) -> Any:
    return {**right, "n": left["n"] + right["n"]}


def larger(left: Any, right: Any) -> Any:
    return left if left["n"] > right["n"] else right


def timed(env: StreamEnvironment, source: ListSource) -> DataStream:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("4 s").with_timestamps("at")
    return env.from_source(source, SCHEMA, uid="events").assign_timestamps_and_watermarks(strategy)


def every_kind(env: StreamEnvironment, source: ListSource) -> None:
    """One window operator of each kind behind one source; each writes the table of its uid."""
    stream = timed(env, source)
    keyed = stream.key_by("k")
    ten = TumblingEventTimeWindows.of("10 s", "1 s")
    kept = keyed.window(ten).allowed_lateness("6 s").side_output_late_data(LATE)
    late = kept.process(Listed(), uid="late", schema=LISTED)
    late.get_side_output(LATE).sink_to(TableSink("too_late"), uid="too late out")
    sliding = keyed.window(SlidingEventTimeWindows.of("10 s", "5 s"))
    means = sliding.aggregate(
        Mean(),
        Named(),
        accumulator_type="struct<sum long, n long>",
        schema="k string, end long, mean double, seen long",
        uid="means",
    )
    means.get_side_output(ODD).sink_to(TableSink("odd"), uid="odd out")
    hops = keyed.window(SlidingEventTimeWindows.of(*HOPS_MS)).allowed_lateness("6 s").side_output_late_data(LATE)
    sums = hops.reduce(added, Reduced(), uid="hops", schema="k string, start long, end long, n long")
    sums.get_side_output(LATE).sink_to(TableSink("behind"), uid="behind out")
    globally = keyed.window(GlobalWindows.create())
    streams = {
        "late": late,
        "means": means,
        "hops": sums,
        "sessions": keyed.window(EventTimeSessionWindows.with_gap("4 s")).process(Listed(), uid="s", schema=LISTED),
        "longest": keyed.window(EventTimeSessionWindows.with_dynamic_gap(lambda row: 1000 + row["n"] * 100)).reduce(
            larger, uid="longest"
        ),
        "continuous": keyed.window(TumblingEventTimeWindows.of("1 d"))
        .trigger(ContinuousEventTimeTrigger.of("5 s"))
        .reduce(larger, uid="continuous"),
        "threes": keyed.count_window(3).reduce(larger, uid="threes"),
        "last": keyed.count_window(4, 2).reduce(larger, uid="last"),
        "purged": globally.trigger(PurgingTrigger.of(CountTrigger.of(2)))
        .evictor(CountEvictor.of(1))
        .reduce(larger, uid="purged"),
        "all": stream.window_all(ten).process(Total(), uid="all", schema="start long, n long, rows long"),
        "fives": stream.count_window_all(5).reduce(larger, uid="fives"),
    }
    for name, results in streams.items():
        results.sink_to(TableSink(name), uid=f"{name} out")


@pytest.mark.promise("B4", "B5", "B6", "B7", "A8", "D7")
def test_every_kind_of_window_three_ways() -> None:
    tables = (
        *("late", "too_late", "means", "odd", "hops", "behind", "sessions", "longest", "continuous"),
        *("threes", "last", "purged", "all", "fives"),
    )
    found = three_ways(every_kind, EVENTS, tables=tables)
    by_key: dict[str, list[Any]] = defaultdict(list)
    for event in EVENTS:
        by_key[event["k"]].append(event)
    _check_counted(found, by_key)
    _check_late(found)
    _check_hops(found)
    sessions = [tuple(row["ns"]) for row in found["sessions"]]
    assert sum(map(len, sessions)) < len(EVENTS), "some records are late"
    assert len({n for ns in sessions for n in ns}) == sum(map(len, sessions)), "each record is in one session"
    for row in found["sessions"]:
        times = sorted(event["at"] for event in EVENTS if event["n"] in row["ns"])
        assert (row["start"], row["end"]) == (times[0], times[-1] + 4000)
        assert all(later - time <= 4000 for time, later in pairwise(times))
    assert sum(row["rows"] for row in found["all"]) == len(EVENTS) - _late(0)
    assert [row["seen"] for row in sorted(found["means"], key=lambda row: (row["k"], row["end"]))] == [
        *(seen for key in sorted(by_key) for seen in range(1, 1 + sum(row["k"] == key for row in found["means"])))
    ], "the windows of a key fire in their order"
    assert len(found["odd"]) == sum(row["seen"] % 2 for row in found["means"])
    assert len(found["continuous"]) > 3 * len(by_key) and len(found["longest"]) >= len(by_key)


def _check_counted(found: dict[str, Rows], by_key: dict[str, list[Any]]) -> None:
    def best(events: list[Any], size: int, slide: int) -> list[int]:
        return [max(e["n"] for e in events[max(0, end - size) : end]) for end in range(slide, len(events) + 1, slide)]

    for table, size, slide in (("threes", 3, 3), ("last", 4, 2), ("purged", 1, 2)):
        wanted = [n for events in by_key.values() for n in best(events, size, slide)]
        assert sorted(row["n"] for row in found[table]) == sorted(wanted), table
    assert sorted(row["n"] for row in found["fives"]) == sorted(best(EVENTS, 5, 5))


def _late(lateness: int) -> int:
    """Returns how many records are late for windows of ten seconds that begin at :01."""
    count, highest = 0, -(10**9)
    for event in EVENTS:
        end = (event["at"] - 1000) // 10_000 * 10_000 + 11_000
        count += end - 1 + lateness <= highest - 4001
        highest = max(highest, event["at"])
    return count


def _check_late(found: dict[str, Rows]) -> None:
    assert len(found["too_late"]) == _late(6000) > 0
    last: dict[Any, list[int]] = {}
    for row in found["late"]:
        before = last.get((row["k"], row["start"]), [])
        last[row["k"], row["start"]] = max(before, row["ns"], key=len)
    assert len(found["late"]) > len(last), "some windows were computed again"
    too_late = {row["n"] for row in found["too_late"]}
    for (key, start), ns in last.items():
        inside = [e["n"] for e in EVENTS if e["k"] == key and start <= e["at"] < start + 10_000]
        assert ns == sorted(set(inside) - too_late)


def _check_hops(found: dict[str, Rows]) -> None:
    """Checks the windows that share panes, each record put into each of its windows by hand."""
    size, slide, offset = HOPS_MS
    totals: dict[Any, int] = defaultdict(int)
    wanted, behind, highest = [], [], -(10**9)
    for event in EVENTS:
        starts = [start for start in range(event["at"] - size + 1, event["at"] + 1) if (start - offset) % slide == 0]
        kept = [start for start in starts if start + size - 1 + 6000 > highest - 4001]
        behind += [] if kept else [event["n"]]
        for start in kept:
            totals[event["k"], start] += event["n"]
            if start + size - 1 <= highest - 4001:
                wanted.append((event["k"], start, totals[event["k"], start]))
        for (key, start), total in totals.items():
            if highest - 4001 < start + size - 1 <= max(highest, event["at"]) - 4001:
                wanted.append((key, start, total))
        highest = max(highest, event["at"])
    wanted += [(key, start, total) for (key, start), total in totals.items() if start + size - 1 > highest - 4001]
    assert len(wanted) > len(totals) and behind, "some windows were computed again, and some records came too late"
    assert sorted((row["k"], row["start"], row["n"]) for row in found["hops"]) == sorted(wanted)
    assert sorted(row["n"] for row in found["behind"]) == sorted(behind)


# --- by the clock ---


def _clocked(items: list[Any], parallelism: int) -> Any:
    def job(env: StreamEnvironment) -> None:
        env.set_restart_strategy(FixedDelay(attempts=5, delay_ms=5))
        keyed = env.from_source(ListSource(items), SCHEMA, uid="events").key_by("k")
        minutes = keyed.window(TumblingProcessingTimeWindows.of("1 min"))
        minutes.process(Listed(), uid="minutes", schema=LISTED).sink_to(TableSink("minutes"), uid="minutes out")
        counted = minutes.aggregate(ns=count(), largest=maximum("n"), uid="counted")
        counted.sink_to(TableSink("counted"), uid="counted out")
        sessions = keyed.window(ProcessingTimeSessionWindows.with_gap("5 min"))
        sessions.reduce(larger, uid="sessions").sink_to(TableSink("sessions"), uid="sessions out")

    return run(job, parallelism=parallelism)


@pytest.mark.promise("B1", "B4", "B8")
@pytest.mark.parametrize("parallelism", [1, 2])
def test_windows_by_the_clock_survive_a_crash(parallelism: int) -> None:
    rows = [{"k": f"k{n % 2}", "n": n, "at": 0} for n in range(12)]
    items = [*rows[:4], Checkpoint(), Crash(), Wait("2 min"), *rows[4:8], Wait("20 min"), *rows[8:]]
    result = _clocked(items, parallelism)
    assert result.restarts == 1
    minutes = sorted(row["ns"] for row in result.rows("minutes"))
    assert minutes == [[0, 2], [1, 3], [4, 6], [5, 7]], "what is open at the end of the input does not fire"
    counted = sorted((row["largest"], row["ns"]) for row in result.rows("counted"))
    assert counted == [(2, 2), (3, 2), (6, 2), (7, 2)], "built-in aggregates of the same windows"
    assert sorted(row["n"] for row in result.rows("sessions")) == [6, 7], "two minutes are less than the gap"
    assert {row["_item"]["n"] for row in result.state("minutes", "(window) contents")} == {8, 9, 10, 11}


# --- changed jobs ---


def _tumbling(function: Callable[[Any], DataStream], size: str = "10 s") -> Callable[[StreamEnvironment], None]:
    items = [*EVENTS[:4], Checkpoint(), *EVENTS[4:]]

    def job(env: StreamEnvironment) -> None:
        keyed = timed(env, ListSource(items)).key_by("k")
        function(keyed.window(TumblingEventTimeWindows.of(size))).sink_to(TableSink("out"), uid="out")

    return job


@pytest.mark.promise("D8")
def test_a_changed_window_is_refused_before_it_misreads_its_state() -> None:
    def listed(windows: Any) -> DataStream:
        return windows.process(Listed(), uid="w", schema=LISTED)  # type: ignore[no-any-return]

    def reduced(windows: Any) -> DataStream:
        return windows.reduce(larger, Listed_of_one(), uid="w", schema=LISTED)  # type: ignore[no-any-return]

    def counted(windows: Any) -> DataStream:
        return listed(windows.trigger(CountTrigger.of(2)))

    class Listed_of_one(Listed):
        """Has another name, which is no change."""

    first = run(_tumbling(listed), until=lambda so_far: so_far.epochs == 1)
    for changed, why in (
        (_tumbling(listed, "20 s"), "windows: was tumbling by 10000 ms of event time, is tumbling by 20000 ms"),
        (_tumbling(reduced), "no longer has the records"),
        (_tumbling(counted), "trigger: was EventTimeTrigger, is CountTrigger"),
    ):
        with pytest.raises(JobFailed, match=why):
            run(changed, after=first)
    whole, restored = run(_tumbling(listed)), run(_tumbling(listed), after=first)
    assert sorted(map(repr, restored.rows("out"))) == sorted(map(repr, whole.rows("out")))


class MeanAlone(AggregateFunction):
    """The mean without `merge`: each window keeps an accumulator, as in the versions of Weir before panes."""

    create_accumulator, add, get_result = Mean.create_accumulator, Mean.add, Mean.get_result


def _hopping(function: AggregateFunction) -> Callable[[StreamEnvironment], None]:
    items = [*EVENTS[:9], Checkpoint(), *EVENTS[9:]]

    def job(env: StreamEnvironment) -> None:
        hops = timed(env, ListSource(items)).key_by("k").window(SlidingEventTimeWindows.of("10 s", "2 s"))
        means = hops.aggregate(
            function,
            Named(),
            accumulator_type="struct<sum long, n long>",
            schema="k string, end long, mean double, seen long",
            uid="w",
        )
        means.get_side_output(ODD).sink_to(TableSink("odd"), uid="odd out")
        means.sink_to(TableSink("out"), uid="out")

    return job


@pytest.mark.promise("B5", "D8")
def test_a_snapshot_of_windows_without_panes_goes_on_with_them_and_not_the_other_way_round() -> None:
    def until(so_far: Any) -> bool:
        return bool(so_far.epochs == 1)

    whole = sorted(map(repr, run(_hopping(MeanAlone())).rows("out")))
    assert sorted(map(repr, run(_hopping(Mean())).rows("out"))) == whole
    alone = run(_hopping(MeanAlone()), until=until)
    assert alone.state("w", "(window) contents")
    assert sorted(map(repr, run(_hopping(Mean()), after=alone).rows("out"))) == whole
    sharing = run(_hopping(Mean()), until=until)
    assert sharing.state("w", "(window) panes") and not sharing.state("w", "(window) contents")
    assert sorted(map(repr, run(_hopping(Mean()), after=sharing).rows("out"))) == whole
    with pytest.raises(JobFailed, match=r"no longer has the panes \(what merge\(left, right\) or reduce combines"):
        run(_hopping(MeanAlone()), after=sharing)
