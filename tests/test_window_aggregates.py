"""Built-in aggregates in windows of every kind, through the whole engine (B4 to B6).

Goal: each kind gives the same output undisturbed, with checkpoints at parallelism 2, and crashed and restored at 3.
Topology: one list source with out-of-order and late records; for each kind a window operator with named aggregates, and
one with the same windows whose function lists the records that it gets. Faults: a slot dies after two thirds of the
input. Checks: the aggregates are those of the listed records, computed in plain Python.
"""

from __future__ import annotations

from typing import Any

import pytest

from engine.api import (
    ContinuousEventTimeTrigger,
    CountEvictor,
    CountTrigger,
    DataStream,
    EventTimeSessionWindows,
    GlobalWindow,
    GlobalWindows,
    ProcessAllWindowFunction,
    ProcessingTimeSessionWindows,
    ProcessWindowFunction,
    PurgingTrigger,
    SlidingEventTimeWindows,
    StreamEnvironment,
    TimeEvictor,
    TriggerResult,
    TumblingEventTimeWindows,
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
from engine.connectors.table import TableSink
from engine.testing import Checkpoint, Crash, ListSource, Wait, run
from tests.test_windows import EVENTS, SCHEMA, timed
from tests.three_ways import Rows, three_ways

AT = {event["n"]: event["at"] for event in EVENTS}
EVERY = {
    "rows": count(),
    "sum": total("n"),
    "low": minimum("n"),
    "high": maximum("at"),
    "avg": mean("n"),
    "first": first("n"),
    "last": last("n"),
    "distinct": count_distinct("n"),
    "about": approx_count_distinct("at"),
    "top": top_n("n", 2, by="at"),
    "spread": quantiles("n", [0, 1]),
}


class Listed(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        yield listed(key, context.window(), elements)


class AllListed(ProcessAllWindowFunction):
    def process(self, context: Any, elements: Any) -> Any:
        yield listed(None, context.window(), elements)


def listed(key: str | None, window: Any, elements: Any) -> dict[str, Any]:
    start, end = (None, None) if isinstance(window, GlobalWindow) else (window.start, window.end)
    return {"k": key, "start": start, "end": end, "ns": [one["n"] for one in elements]}


def kinds(stream: DataStream) -> dict[str, Any]:
    keyed, ten = stream.key_by("k"), TumblingEventTimeWindows.of("10 s", "1 s")
    return {
        "threes": keyed.count_window(3),
        "last_four": keyed.count_window(4, 2),
        "purged": keyed.window(GlobalWindows.create()).trigger(PurgingTrigger.of(CountTrigger.of(2))),
        "dynamic": keyed.window(EventTimeSessionWindows.with_dynamic_gap(lambda row: 3000 + row["n"] % 2 * 2000)),
        "continuous": keyed.window(ten).trigger(ContinuousEventTimeTrigger.of("5 s")),
        "early": keyed.window(SlidingEventTimeWindows.of("10 s", "5 s")).trigger(CountTrigger.of(2)),
        "sessions": keyed.window(EventTimeSessionWindows.with_gap("4 s")).trigger(CountTrigger.of(2)),
        "evicted": keyed.window(ten).evictor(CountEvictor.of(2)),
        "newest": keyed.window(ten).trigger(CountTrigger.of(2)).evictor(TimeEvictor.of("3 s", do_evict_after=True)),
        "all": stream.window_all(ten),
        "all_hops": stream.window_all(SlidingEventTimeWindows.of("10 s", "4 s")),
        "all_sessions": stream.window_all(EventTimeSessionWindows.with_gap("1 s")),
        "all_early": stream.window_all(ten).trigger(CountTrigger.of(3)),
        "fives": stream.count_window_all(5),
    }


KINDS = list(kinds(timed(StreamEnvironment(), ListSource(EVENTS[:1]))))


def every_kind(env: StreamEnvironment, source: ListSource) -> None:
    for name, windows in kinds(timed(env, source)).items():
        windows.aggregate(uid=name, **EVERY).sink_to(TableSink(name), uid=f"{name} out")
        function = AllListed() if name.startswith(("all", "fives")) else Listed()
        lists = windows.process(function, uid=f"{name} listed", schema="k string, start long, end long, ns array<long>")
        lists.sink_to(TableSink(f"{name}_listed"), uid=f"{name} listed out")


def wanted(row: dict[str, Any]) -> dict[str, Any]:
    """Returns the aggregates of the records that were listed for a window."""
    ns = row["ns"]
    in_time, pairs = sorted(ns, key=lambda n: (AT[n], n)), sorted(((AT[n], n) for n in ns), reverse=True)
    return {
        "rows": len(ns),
        "sum": sum(ns),
        "low": min(ns),
        "high": max(AT[n] for n in ns),
        "avg": sum(ns) / len(ns),
        "first": in_time[0],
        "last": in_time[-1],
        "distinct": len(ns),
        "about": len({AT[n] for n in ns}),
        "top": [{"at": at, "n": n} for at, n in pairs[:2]],
        "spread": [float(min(ns)), float(max(ns))],
    }


@pytest.fixture(scope="module")
def found() -> dict[str, Rows]:
    return three_ways(every_kind, EVENTS, tables=[table for name in KINDS for table in (name, f"{name}_listed")])


@pytest.mark.promise("B4", "B5", "B6", "D7")
@pytest.mark.parametrize("kind", KINDS)
def test_named_aggregates_are_those_of_the_records_of_the_window_three_ways(kind: str, found: dict[str, Rows]) -> None:
    expected = []
    for row in found[f"{kind}_listed"]:
        of_key = {} if row["k"] is None else {"k": row["k"]}
        bounds = {} if row["start"] is None else {"start": row["start"], "end": row["end"]}
        expected.append({**of_key, **bounds, **wanted(row)})
    got = []
    for row in found[kind]:
        bounds = {name: row.pop(f"window_{name}") for name in ("start", "end") if f"window_{name}" in row}
        got.append({**row, **{name: round(at.timestamp() * 1000) for name, at in bounds.items()}})
    assert len(got) > 3
    assert sorted(map(sorted_items, got)) == sorted(map(sorted_items, expected))


class Choosy(CountTrigger):
    """Fails after the record was added to its window."""

    def on_element(self, element: Any, timestamp: Any, window: Any, context: Any) -> TriggerResult:
        if element["n"] % 4 == 1:
            raise ValueError("not this one")
        return super().on_element(element, timestamp, window, context)


@pytest.mark.promise("A12", "B6")
def test_a_record_that_is_left_out_is_in_no_aggregate() -> None:
    def job(env: StreamEnvironment) -> None:
        windows = timed(env, ListSource([{"k": "a", "n": n, "at": n} for n in range(200)])).key_by("k")
        every = windows.window(TumblingEventTimeWindows.of("1 d")).trigger(Choosy(50))
        every.aggregate(uid="w", n=count(), sum=total("n"), ns=count_distinct("n")).on_error("skip").sink_to(
            TableSink("out"), uid="out"
        )

    good = [n for n in range(200) if n % 4 != 1]
    got = sorted((row["n"], row["sum"], row["ns"]) for row in run(job).rows("out"))
    assert got == [(many, sum(good[:many]), many) for many in (50, 100, 150)]


def sorted_items(row: dict[str, Any]) -> str:
    return repr(sorted(row.items()))


@pytest.mark.promise("B1", "B4")
@pytest.mark.parametrize("parallelism", [1, 2])
def test_sessions_by_the_clock_keep_their_aggregates_in_a_crash(parallelism: int) -> None:
    rows = [{"k": f"k{n % 2}", "n": n, "at": 0} for n in range(12)]
    items = [*rows[:4], Checkpoint(), Crash(), Wait("2 min"), *rows[4:8], Wait("20 min"), *rows[8:]]

    def job(env: StreamEnvironment) -> None:
        keyed = env.from_source(ListSource(items), SCHEMA, uid="events").key_by("k")
        sessions = keyed.window(ProcessingTimeSessionWindows.with_gap("5 min"))
        sums = sessions.aggregate(n=count(), sum=total("n"), first=first("n"), last=last("n"), uid="sums")
        sums.sink_to(TableSink("sums"), uid="out")

    result = run(job, parallelism=parallelism)
    assert result.restarts == 1
    by_key = sorted((row["k"], row["n"], row["sum"], row["first"], row["last"]) for row in result.rows("sums"))
    assert by_key == [("k0", 4, 12, 0, 6), ("k1", 4, 16, 1, 7)], "two minutes are less than the gap"
