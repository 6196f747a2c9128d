"""Process functions, timers, state kinds, union, connect and side outputs, through the whole engine.

Goal: each operator gives the same output undisturbed, with checkpoints at parallelism 2, and crashed and restored at 3.
Topology: one or two list sources, a keyed or plain function, tables.
Faults: a slot dies after two thirds of each input.
Checks: the rows of all tables, against results computed by hand or by a few lines of Python.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from engine.api import (
    AggregateFunction,
    AggregatingStateDescriptor,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    DataStream,
    FixedDelay,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    KeyedStream,
    ListStateDescriptor,
    MapStateDescriptor,
    OnTimerContext,
    OutputTag,
    ProcessContext,
    ProcessFunction,
    ReducingStateDescriptor,
    RuntimeContext,
    StateTtlConfig,
    StreamEnvironment,
    TimeDomain,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from engine.connectors.table import TableSink
from engine.jobmaster.events import Rescaled
from engine.testing import Checkpoint, Crash, JobFailed, ListSource, LocalRun, Scaling, Wait, run
from tests.three_ways import three_ways

Row = dict[str, Any]
EVENTS = [{"k": f"k{n % 4}", "n": n, "at": 1000 * n - (n % 3) * 700} for n in range(24)]
SCHEMA = "k string, n long, at long"


def events(env: StreamEnvironment, source: ListSource, uid: str = "events") -> DataStream:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("2 s").with_timestamps("at")
    return env.from_source(source, SCHEMA, uid=uid).assign_timestamps_and_watermarks(strategy)


# --- state kinds ---


class Average(AggregateFunction):
    def create_accumulator(self) -> list[int]:
        return [0, 0]

    def add(self, value: int, accumulator: list[int]) -> list[int]:
        return [accumulator[0] + value, accumulator[1] + 1]

    def get_result(self, accumulator: list[int]) -> float:
        return accumulator[0] / accumulator[1]


class AllKinds(KeyedProcessFunction):
    """Keeps the same records in a state of each kind, and emits what all of them say."""

    def open(self, context: RuntimeContext) -> None:
        self._last = context.get_state(ValueStateDescriptor("last", "long"))
        self._all = context.get_list_state(ListStateDescriptor("all", "long"))
        self._by_mod = context.get_map_state(MapStateDescriptor("by mod", "long", "struct<n long, at long>"))
        self._most = context.get_reducing_state(ReducingStateDescriptor("most", max, "long"))
        self._mean = context.get_aggregating_state(AggregatingStateDescriptor("mean", Average(), "array<long>"))

    def process_element(self, value: Row, context: ProcessContext) -> Iterable[Row]:
        n = value["n"]
        before = self._last.value()
        self._last.update(n)
        self._all.add(n)
        self._by_mod[n % 3] = {"n": n, "at": value["at"]}
        self._most.add(n % 7)
        self._mean.add(n)
        if n % 5 == 4:
            self._by_mod.remove(n % 3)
        yield {
            "k": context.get_current_key(),
            "n": n,
            "before": before,
            "all": self._all.get(),
            "mods": sorted(self._by_mod.keys()),
            "most": self._most.get(),
            "mean": self._mean.get(),
        }


@pytest.mark.promise("C1", "D7")
def test_every_kind_of_keyed_state_three_ways() -> None:
    def define(env: StreamEnvironment, source: ListSource) -> None:
        schema = "k string, n long, before long, all array<long>, mods array<long>, most long, mean double"
        (
            env.from_source(source, SCHEMA, uid="events")
            .key_by("k")
            .process(AllKinds(), uid="kinds", schema=schema)
            .sink_to(TableSink("out"), uid="out")
        )

    rows = three_ways(define, EVENTS)["out"]
    seen: dict[str, list[int]] = defaultdict(list)
    mods: dict[str, set[int]] = defaultdict(set)
    wanted = []
    for event in EVENTS:
        k, n = event["k"], event["n"]
        held = seen[k]
        held.append(n)
        mods[k] = (mods[k] | {n % 3}) - ({n % 3} if n % 5 == 4 else set())
        wanted.append(
            {
                "k": k,
                "n": n,
                "before": held[-2] if len(held) > 1 else None,
                "all": list(held),
                "mods": sorted(mods[k]),
                "most": max(m % 7 for m in held),
                "mean": sum(held) / len(held),
            }
        )
    assert rows == sorted(wanted, key=repr)


class FirstOf(KeyedProcessFunction):
    """Emits a record unless its key was seen in the last ten minutes of processing time."""

    def open(self, context: RuntimeContext) -> None:
        seen = ValueStateDescriptor("seen", "boolean")
        seen.enable_time_to_live(StateTtlConfig.new_builder("10 min").build())
        self._seen = context.get_state(seen)

    def process_element(self, value: Row, context: ProcessContext) -> Iterable[Row]:
        if not self._seen.value():
            self._seen.update(True)
            yield value


@pytest.mark.promise("C1")
def test_a_value_expires_in_processing_time_also_across_a_crash() -> None:
    def job(env: StreamEnvironment) -> None:
        env.set_restart_strategy(FixedDelay(attempts=5, delay_ms=5))
        items = [
            *({"k": "a", "n": 1, "at": 0}, Wait("9 min"), {"k": "a", "n": 2, "at": 0}, {"k": "b", "n": 3, "at": 0}),
            *(Checkpoint(), Crash(), Wait("2 min"), {"k": "a", "n": 4, "at": 0}, {"k": "b", "n": 5, "at": 0}),
            *(Wait("1 h"), {"k": "c", "n": 6, "at": 0}),
        ]
        stream = env.from_source(ListSource(items), SCHEMA, uid="events")
        stream.key_by("k").process(FirstOf(), uid="first").sink_to(TableSink("out"), uid="out")

    result = run(job)
    assert result.restarts == 1
    assert sorted(row["n"] for row in result.rows("out")) == [1, 3, 4, 6]
    assert [row["k"] for row in result.state("first", "seen")] == ["c"], "what is expired is not in the last snapshot"


# --- timers ---


class Quiet(KeyedProcessFunction):
    """Emits a key five seconds of event time after its last record."""

    def open(self, context: RuntimeContext) -> None:
        self._due = context.get_state(ValueStateDescriptor("due", "long"))
        self._count = context.get_state(ValueStateDescriptor("count", "long"))

    def process_element(self, value: Row, context: ProcessContext) -> Iterable[Row]:
        timers = context.timer_service()
        before = self._due.value()
        due = max(context.timestamp() + 5000, before or 0)
        if before is not None:
            timers.delete_event_time_timer(before)
        timers.register_event_time_timer(due)
        timers.register_event_time_timer(due)
        self._due.update(due)
        self._count.update((self._count.value() or 0) + 1)
        return ()

    def on_timer(self, timestamp: int, context: OnTimerContext) -> Iterable[Row]:
        assert context.time_domain() is TimeDomain.EVENT_TIME
        assert context.timestamp() == timestamp <= context.timer_service().current_watermark()
        yield {"k": context.get_current_key(), "n": self._count.value(), "at": timestamp}
        self._due.clear()
        self._count.clear()


@pytest.mark.promise("A6", "B8", "D7")
def test_event_time_timers_three_ways() -> None:
    silent = [event for event in EVENTS if not (event["k"] == "k1" and 8 < event["n"] < 18)]

    def define(env: StreamEnvironment, source: ListSource) -> None:
        quiet = events(env, source).key_by("k").process(Quiet(), uid="quiet")
        quiet.sink_to(TableSink("out"), uid="out")

    rows = three_ways(define, silent)["out"]
    by_key: dict[str, list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row["at"]):
        by_key[row["k"]].append(row)
    assert sum(row["n"] for row in rows) == len(silent), "each record is in one period, and no timer fired twice"
    assert [row["at"] for row in by_key["k1"]] == [
        max(e["at"] for e in silent if e["k"] == "k1" and e["n"] < 10) + 5000,
        max(e["at"] for e in silent if e["k"] == "k1") + 5000,
    ]
    assert all(len(by_key[key]) == 1 for key in ("k0", "k2", "k3"))


class Unpaid(KeyedCoProcessFunction):
    """Waits for the payment of an order in processing time; emits what came, or to a side output what did not."""

    def open(self, context: RuntimeContext) -> None:
        self._due = context.get_state(ValueStateDescriptor("due", "long"))

    def process_element1(self, value: Row, context: ProcessContext) -> Iterable[Any]:
        due = context.timer_service().current_processing_time() + 15 * 60_000
        context.timer_service().register_processing_time_timer(due)
        self._due.update(due)
        return ()

    def process_element2(self, value: Row, context: ProcessContext) -> Iterable[Any]:
        due = self._due.value()
        if due is not None:
            context.timer_service().delete_processing_time_timer(due)
            self._due.clear()
            yield {"order": value["paid"], "cents": value["cents"]}

    def on_timer(self, timestamp: int, context: OnTimerContext) -> Iterable[Any]:
        assert context.time_domain() is TimeDomain.PROCESSING_TIME
        self._due.clear()
        yield UNPAID, {"order": context.get_current_key()}


UNPAID = OutputTag("unpaid", "order long")


@pytest.mark.promise("A6", "A7", "A8", "B8")
@pytest.mark.parametrize("parallelism", [1, 2])
def test_processing_time_timers_of_two_keyed_streams_survive_a_crash(parallelism: int) -> None:
    orders = [{"order": n} for n in range(10)]
    paid = [{"paid": n, "cents": 100 * n} for n in range(0, 10, 2)]

    def job(env: StreamEnvironment) -> None:
        env.set_restart_strategy(FixedDelay(attempts=5, delay_ms=5))
        first = ListSource([*orders, Checkpoint(), Wait("5 min"), Crash(), Wait("20 min")])
        second = ListSource([Wait("8 min"), *paid, Wait("30 min")])
        checked = (
            env.from_source(first, "order long", uid="orders")
            .key_by("order")
            .connect(env.from_source(second, "paid long, cents long", uid="payments").key_by("paid"))
            .process(Unpaid(), uid="check", schema="order long, cents long")
        )
        checked.sink_to(TableSink("paid"), uid="paid")
        checked.get_side_output(UNPAID).sink_to(TableSink("unpaid"), uid="unpaid")

    result = run(job, parallelism=parallelism)
    assert result.restarts == 1
    assert sorted(row["order"] for row in result.rows("paid")) == [0, 2, 4, 6, 8]
    assert sorted(row["order"] for row in result.rows("unpaid")) == [1, 3, 5, 7, 9]


# --- two streams ---


class Labelled(CoMapFunction):
    def map1(self, value: Row) -> Row:
        return {"what": f"event {value['n']}"}

    def map2(self, value: Row) -> Row:
        return {"what": f"name {value['name']}"}


class Twice(CoFlatMapFunction):
    def flat_map1(self, value: Row) -> list[Row]:
        return [{"what": f"event {value['n']}"}] * (value["n"] % 3)

    def flat_map2(self, value: Row) -> list[Row]:
        return [{"what": f"name {value['name']}"}]


class Routed(CoProcessFunction):
    def process_element1(self, value: Row, context: ProcessContext) -> Iterable[Any]:
        yield {"what": f"event {value['n']}"} if value["n"] % 2 else (ODD_ONES, {"n": value["n"]})

    def process_element2(self, value: Row, context: ProcessContext) -> Iterable[Any]:
        yield {"what": f"name {value['name']}"}


ODD_ONES = OutputTag("odd ones", "n long")
NAMES = [{"name": f"x{n}", "of": f"k{n % 4}"} for n in range(9)]


@pytest.mark.promise("A7")
@pytest.mark.parametrize("kind", ["map", "flat_map", "process"])
def test_connected_plain_streams_three_ways(kind: str) -> None:
    functions: dict[str, Any] = {"map": Labelled(), "flat_map": Twice(), "process": Routed()}
    tables = ["out", "aside"] if kind == "process" else ["out"]

    def define(env: StreamEnvironment, first: ListSource, second: ListSource) -> None:
        names = env.from_source(second, "name string, of string", uid="names")
        connected = env.from_source(first, SCHEMA, uid="events").rebalance().connect(names.rebalance())
        out = getattr(connected, kind)(functions[kind], schema="what string")
        out.sink_to(TableSink("out"), uid="out")
        if kind == "process":
            out.get_side_output(ODD_ONES).sink_to(TableSink("aside"), uid="aside")

    rows = three_ways(define, EVENTS, NAMES, tables=tables)
    copies = {"map": lambda n: 1, "flat_map": lambda n: n % 3, "process": lambda n: n % 2}[kind]
    wanted = [f"event {e['n']}" for e in EVENTS for _ in range(copies(e["n"]))] + [f"name {n['name']}" for n in NAMES]
    assert sorted(row["what"] for row in rows["out"]) == sorted(wanted)
    if kind == "process":
        assert sorted(row["n"] for row in rows["aside"]) == list(range(0, 24, 2))


class Paired(KeyedCoProcessFunction):
    """Emits each pair of an event and a name of the same key once, whichever comes first."""

    def open(self, context: RuntimeContext) -> None:
        self._events = context.get_list_state(ListStateDescriptor("events", "long"))
        self._names = context.get_list_state(ListStateDescriptor("names", "string"))

    def process_element1(self, value: Row, context: ProcessContext) -> Iterable[Row]:
        self._events.add(value["n"])
        return [{"k": value["k"], "n": value["n"], "name": name} for name in self._names.get()]

    def process_element2(self, value: Row, context: ProcessContext) -> Iterable[Row]:
        self._names.add(value["name"])
        return [{"k": context.get_current_key(), "n": n, "name": value["name"]} for n in self._events.get()]


@pytest.mark.promise("A7", "D7")
def test_connected_keyed_streams_share_the_state_of_a_key_three_ways() -> None:
    def define(env: StreamEnvironment, first: ListSource, second: ListSource) -> None:
        names = env.from_source(second, "name string, of string", uid="names")
        connected = env.from_source(first, SCHEMA, uid="events").connect(names).key_by("k", "of")
        pairs = connected.process(Paired(), uid="pairs", schema="k string, n long, name string")
        pairs.sink_to(TableSink("out"), uid="out")

    rows = three_ways(define, EVENTS, NAMES)["out"]
    wanted = [
        {"k": e["k"], "n": e["n"], "name": name["name"]} for e in EVENTS for name in NAMES if name["of"] == e["k"]
    ]
    assert rows == sorted(wanted, key=repr)


LIMITS = MapStateDescriptor("limits", "string", "long")


class Reminder(KeyedBroadcastProcessFunction):
    """Emits each record again after as many seconds as the broadcast limit of its key says when the timer fires."""

    def open(self, context: RuntimeContext) -> None:
        self._held = context.get_list_state(ListStateDescriptor("held", "long"))

    def process_element(self, value: Row, context: Any) -> Iterable[Row]:
        self._held.add(value["n"])
        context.timer_service().register_event_time_timer(10**9)
        return ()

    def process_broadcast_element(self, value: Row, context: Any) -> Iterable[Row]:
        context.get_broadcast_state(LIMITS).put(value["of"], value["limit"])
        return ()

    def on_timer(self, timestamp: int, context: Any) -> Iterable[Row]:
        limit = context.get_broadcast_state(LIMITS).get(context.get_current_key())
        for n in sorted(self._held.get())[:limit]:
            yield {"k": context.get_current_key(), "n": n, "at": timestamp}


@pytest.mark.promise("A7", "B8")
def test_timers_beside_a_broadcast_stream_three_ways() -> None:
    limits = [{"of": f"k{n}", "limit": n} for n in range(4)]

    def define(env: StreamEnvironment, first: ListSource, second: ListSource) -> None:
        rules = env.from_source(second, "of string, limit long", uid="limits")
        reminded = events(env, first).key_by("k").connect(rules.broadcast(LIMITS)).process(Reminder(), uid="remind")
        reminded.sink_to(TableSink("out"), uid="out")

    rows = three_ways(define, EVENTS, limits)["out"]
    assert [(row["k"], row["n"]) for row in rows] == [("k1", 1), ("k2", 2), ("k2", 6), ("k3", 11), ("k3", 3), ("k3", 7)]


# --- one stream, several streams ---

SMALL = OutputTag("small", "n long, sign string")


class Split(ProcessFunction):
    def process_element(self, value: Row, context: ProcessContext) -> Iterable[Any]:
        if value["n"] < 8:
            yield SMALL, {"n": value["n"], "sign": "+"}
        else:
            yield {**value, "at": context.timestamp()}


@pytest.mark.promise("A6", "A8")
def test_a_plain_process_function_and_its_side_output_three_ways() -> None:
    def define(env: StreamEnvironment, source: ListSource) -> None:
        split = events(env, source).rebalance().process(Split())
        split.sink_to(TableSink("out"), uid="out")
        split.get_side_output(SMALL).filter(lambda row: row["n"] != 3).sink_to(TableSink("small"), uid="small")

    rows = three_ways(define, EVENTS, tables=["out", "small"])
    assert rows["out"] == sorted([e for e in EVENTS if e["n"] >= 8], key=repr)
    assert [row["n"] for row in rows["small"]] == [n for n in range(8) if n != 3]


@pytest.mark.promise("A8", "B3")
def test_side_output_keeps_event_time() -> None:
    def define(env: StreamEnvironment, source: ListSource) -> None:
        split = events(env, source).process(Split())
        split.sink_to(TableSink("out"), uid="out")
        small = split.get_side_output(SMALL)
        small.key_by("sign").process(Counted(), uid="counted", schema="n long, at long").sink_to(
            TableSink("small"), uid="small"
        )

    rows = three_ways(define, EVENTS, tables=["small"])["small"]
    assert sorted((row["n"], row["at"]) for row in rows) == [(e["n"], e["at"]) for e in EVENTS[:8]]


class Counted(KeyedProcessFunction):
    def process_element(self, value: Row, context: ProcessContext) -> Iterable[Row]:
        yield {"n": value["n"], "at": context.timestamp()}


@pytest.mark.promise("A7")
def test_the_union_of_three_streams_three_ways() -> None:
    parts = [EVENTS[:9], EVENTS[9:15], EVENTS[15:]]

    def define(env: StreamEnvironment, *sources: ListSource) -> None:
        first, *others = (events(env, source, uid=f"events {n}") for n, source in enumerate(sources))
        everything = first.union(*others)
        everything.key_by("k").process(Quiet(), uid="quiet").sink_to(TableSink("quiet"), uid="quiet out")
        everything.sink_to(TableSink("out"), uid="out")

    rows = three_ways(define, *parts, tables=["out"])
    assert rows["out"] == sorted(EVENTS, key=repr)


@pytest.mark.promise("A2")
@pytest.mark.parametrize(("by", "wanted"), [("min_by", 0), ("max_by", 6)])
def test_min_by_and_max_by_emit_the_whole_record_three_ways(by: str, wanted: int) -> None:
    def define(env: StreamEnvironment, source: ListSource) -> None:
        stream = env.from_source(source, "k string, n long, m long", uid="events")
        getattr(stream.key_by("k"), by)("m", uid="by").sink_to(TableSink("out"), uid="out")

    items = [{"k": "a", "n": n, "m": None if n % 4 == 3 else n % 7} for n in range(24)]
    rows = three_ways(define, items)["out"]
    assert len(rows) == 24
    last = [row for row in rows if row["m"] == wanted]
    assert {row["n"] for row in last} == {next(n for n in range(24) if n % 4 != 3 and n % 7 == wanted)}


@pytest.mark.promise("A2", "D7")
def test_running_sums_minima_maxima_and_reductions_three_ways() -> None:
    """Each record is emitted with the value of its key so far; a null is skipped."""
    kinds: dict[str, Callable[[KeyedStream], DataStream]] = {
        "sum": lambda keyed: keyed.sum("m", uid="sum"),
        "min": lambda keyed: keyed.min("m", uid="min"),
        "max": lambda keyed: keyed.max("m", uid="max"),
        "reduce": lambda keyed: keyed.reduce(lambda left, right: {**right, "m": (left["m"] or 0) + 1}, uid="reduce"),
    }

    def define(env: StreamEnvironment, source: ListSource) -> None:
        keyed = env.from_source(source, "k string, n long, m long", uid="events").key_by("k")
        for name, make in kinds.items():
            make(keyed).sink_to(TableSink(name), uid=f"{name} out")

    items = [{"k": f"k{n % 3}", "n": n, "m": None if n % 5 == 4 else n * 7 % 11} for n in range(30)]
    found = three_ways(define, items, tables=list(kinds))
    for name, fold in (("sum", sum), ("min", min), ("max", max)):
        wanted = []
        for place, item in enumerate(items):
            so_far = [one["m"] for one in items[: place + 1] if one["k"] == item["k"] and one["m"] is not None]
            wanted.append(fold(so_far) if so_far else None)
        assert sorted(row["m"] for row in found[name]) == sorted(wanted), name
    firsts = {item["k"]: item["m"] for item in reversed(items)}
    assert sorted(row["m"] for row in found["reduce"]) == sorted(firsts[f"k{n % 3}"] + n // 3 for n in range(30))


# --- outputs that nothing takes ---

SMALL_TOO = OutputTag("smal", "n long, sign string")


@pytest.mark.promise("A8", "H8")
def test_a_record_to_an_output_that_nothing_takes_ends_the_job_instead_of_being_lost() -> None:
    def unknown(env: StreamEnvironment) -> None:
        split = env.from_source(ListSource(EVENTS), SCHEMA, uid="events").process(Split(), uid="split")
        split.sink_to(TableSink("out"), uid="out")
        split.get_side_output(SMALL_TOO).sink_to(TableSink("small"), uid="small")

    says = (
        r"operator 'split' emits to the side output 'small', which nothing takes; did you mean 'smal'\?: call get_side"
    )
    with pytest.raises(JobFailed, match=says):
        run(unknown)

    def only_aside(env: StreamEnvironment) -> None:
        split = env.from_source(ListSource(EVENTS), SCHEMA, uid="events").process(Split(), uid="split")
        split.get_side_output(SMALL).sink_to(TableSink("small"), uid="small")

    with pytest.raises(JobFailed, match="operator 'split' emits records to its main output, which nothing takes"):
        run(only_aside)


class Sloppy(ProcessFunction):
    def __init__(self, emitted: Any) -> None:
        self._emitted = emitted

    def process_element(self, value: Row, context: ProcessContext) -> Any:
        return self._emitted


@pytest.mark.promise("A8", "H8")
@pytest.mark.parametrize(
    ("emitted", "says"),
    [
        ([(SMALL, {"n": 1, "sign": "+", "more": 2})], "side output 'small': its function returned the field 'more'"),
        ([(SMALL, {"n": 1})], "side output 'small': its function returned .*, which has no field 'sign': add it"),
        ([("small", {"n": 1})], "yield a record, which is a dict, or an OutputTag and a record"),
        ([(SMALL, 1)], "yield a record, which is a dict, or an OutputTag and a record"),
        ({"k": "a", "n": 1, "at": 1}, "return a list of records, .* or yield them"),
        ([1], "its function returned 1 as a record; return a dict"),
    ],
)
def test_what_a_process_function_may_not_emit_is_told(emitted: Any, says: str) -> None:
    def job(env: StreamEnvironment) -> None:
        split = env.from_source(ListSource(EVENTS[:1]), SCHEMA, uid="events").process(Sloppy(emitted), uid="split")
        split.sink_to(TableSink("out"), uid="out")
        split.get_side_output(SMALL).sink_to(TableSink("small"), uid="small")

    with pytest.raises(JobFailed, match=says):
        run(job)


class Measured(KeyedProcessFunction):
    def open(self, context: RuntimeContext) -> None:
        metrics = context.get_metrics_group()
        self._seen, self._held = metrics.counter("seen"), 0
        metrics.gauge("held", lambda: self._held)
        metrics.gauge("broken", lambda: 1 // 0)

    def process_element(self, value: Row, context: ProcessContext) -> Iterable[Row]:
        self._seen.inc()
        self._held += 2
        yield value


@pytest.mark.promise("A5")
def test_counters_survive_a_crash_exactly_and_gauges_show_the_present() -> None:
    items = [*EVENTS[:9], Checkpoint(), *EVENTS[9:14], Crash(), *EVENTS[14:]]

    def job(env: StreamEnvironment) -> None:
        env.set_restart_strategy(FixedDelay(attempts=5, delay_ms=5))
        stream = env.from_source(ListSource(items), SCHEMA, uid="events")
        stream.key_by("k").process(Measured(), uid="measured").sink_to(TableSink("out"), uid="out")

    result = run(job)
    assert result.restarts == 1
    assert result.master.ledger["user:measured:seen"] == 24
    (totals,) = [of for name, of in result.slots[0].runtime.totals().items() if name.startswith("measured")]
    assert totals.gauges == {"measured": {"held": 2 * (24 - 9)}}


# --- rescaled in place ---


@pytest.mark.promise("B8", "C1", "H6")
def test_timers_and_every_kind_of_state_move_with_a_running_job_that_is_rescaled() -> None:
    """Goal: a job with timers and two keyed inputs is rescaled while it runs. Faults: none.

    Checks: the digests of its state are equal before and after, which the JobMaster compares itself; the rows.
    """

    def define(env: StreamEnvironment, source: ListSource) -> None:
        timed = events(env, source)
        timed.key_by("k").process(Quiet(), uid="quiet").sink_to(TableSink("out"), uid="out")
        schema = "k string, n long, before long, all array<long>, mods array<long>, most long, mean double"
        kinds = timed.key_by("k").process(AllKinds(), uid="kinds", schema=schema)
        kinds.sink_to(TableSink("kinds"), uid="kinds out")

    def rows(started: LocalRun) -> list[list[Row]]:
        return [sorted(started.rows(table), key=repr) for table in ("out", "kinds")]

    plain = run(lambda env: define(env, ListSource(EVENTS)), parallelism=2)
    halted = LocalRun(lambda env: define(env, ListSource([*EVENTS[:12], Wait("1 s"), *EVENTS[12:]])), 2, {})
    halted.run(until=lambda: halted.now_ms() > 500)
    halted.rescale(Scaling(3))
    halted.run()
    (rescaled,) = halted.rescales
    assert isinstance(rescaled, Rescaled), rescaled
    assert rows(halted) == rows(plain)


class YieldsItsState(KeyedProcessFunction):
    """Yields the value of its state itself, and changes it with the next record and with timers."""

    def open(self, context: RuntimeContext) -> None:
        self.seen = context.get_state(ValueStateDescriptor("seen", "struct<n long, all array<long>>"))

    def process_element(self, value: dict[str, Any], context: ProcessContext) -> Iterable[Any]:
        yield self._one_more(value["n"])
        yield self._one_more(value["n"])
        if value["n"] == 3:
            raise ValueError("it is left out")
        context.timer_service().register_event_time_timer(1000 * value["n"])

    def on_timer(self, timestamp: int, context: OnTimerContext) -> Iterable[Any]:
        yield SEEN, self._one_more(-timestamp)

    def _one_more(self, n: int) -> dict[str, Any]:
        held = self.seen.value() or {"n": 0, "all": []}
        held["n"] += 1
        held["all"].append(n)
        self.seen.update(held)
        return held


SEEN = OutputTag("seen", "n long, all array<long>")


@pytest.mark.promise("A6", "A12", "C1")
@pytest.mark.parametrize("left_out", [False, True])
def test_a_result_is_as_it_was_when_it_was_yielded_also_if_its_batch_goes_on(left_out: bool) -> None:
    """The next records of a batch changed the results before: 1, 2, 3 came out as 3, 3, 3."""

    def job(env: StreamEnvironment) -> None:
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("at")
        rows = [{"n": n, "key": "a", "at": n} for n in range(4 if left_out else 3)]
        stream = env.from_elements(rows, "n long, key string, at long").assign_timestamps_and_watermarks(strategy)
        made = stream.key_by("key").process(YieldsItsState(), uid="seen", schema="n long, all array<long>")
        if left_out:
            made.on_error("skip")
        made.sink_to(TableSink("out"), uid="out")
        made.get_side_output(SEEN).sink_to(TableSink("timers"), uid="timers")

    result = run(job)
    assert [row["all"] for row in result.rows("out")] == [[0, 0, 1, 1, 2, 2][: n + 1] for n in range(6)]
    assert [row["n"] for row in result.rows("timers")] == [7, 8, 9]
