"""Which changes of a job lose state, positions or output, or make them unreadable (D8)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from engine.api import (
    CountEvictor,
    CountTrigger,
    DataStream,
    EventTimeTrigger,
    KeyedBroadcastProcessFunction,
    MapStateDescriptor,
    NeverTrigger,
    StreamEnvironment,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    count,
    maximum,
    mean,
    quantile,
    top_n,
    total,
)
from engine.connectors.generator import GeneratorSource
from engine.connectors.printing import PrintSink
from engine.connectors.table import TableSink
from engine.core.errors import IncompatibleJob
from engine.core.sinks import Found, Sink
from engine.graph.compatibility import Migration, changes, check, differences, gone_sinks, new_sinks
from engine.graph.description import describe
from engine.graph.job_graph import JobGraph
from engine.protocol.ids import AttemptId, SubtaskId
from engine.protocol.job_description import Column, JobDescription
from engine.protocol.manifest import Committable, Manifest, StateFile, SubtaskState

Build = Callable[[DataStream], Any]
SCHEMA = "app string, n long, x double, ts timestamp"


def graph(build: Build, splits: int = 2, source: str = "views") -> JobGraph:
    env = StreamEnvironment()
    views = env.from_source(GeneratorSource(lambda n: {}, splits=splits), SCHEMA, uid=source)
    build(views)
    return env.build("job")


def taken_by(job: JobGraph, *stateful: str, commits: tuple[str, ...] = ()) -> Manifest:
    """Returns the manifest of an epoch in which these operators had state and these sinks output."""
    files = [StateFile(uid, "state", f"{uid}.arrow", 1, "00", 1) for uid in stateful]
    inline = {vertex.source.uid: {"splits": {}} for vertex in job.vertices if vertex.source}
    output = [Committable(uid, 0, AttemptId(1, 1), 7, 1, {}) for uid in commits]
    state = SubtaskState(SubtaskId("views", 0), files, inline)
    described = describe(job, JobDescription(), 7)
    return Manifest("job", 7, 9, AttemptId(1, 1), 0, 128, [state], output, output, {}, described)


def found(before: Build, now: Build, *stateful: str) -> list[tuple[str, str]]:
    return [(one.uid, one.what) for one in differences(graph(now), taken_by(graph(before), *stateful), {})]


def migrated(before: Build, now: Build, *stateful: str) -> list[str]:
    """Returns what is made good when the state is restored."""
    every = changes(graph(now), taken_by(graph(before), *stateful), {})
    return [one.what for one in every if isinstance(one, Migration)]


def windows(size: str = "10 s", key: str = "app", trigger: Any = None, evictor: Any = None, **aggregates: Any) -> Build:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("1 s").with_timestamps("ts")

    def build(views: DataStream) -> None:
        windowed = (
            views.assign_timestamps_and_watermarks(strategy).key_by(key).window(TumblingEventTimeWindows.of(size))
        )
        windowed = windowed if trigger is None else windowed.trigger(trigger)
        windowed = windowed if evictor is None else windowed.evictor(evictor)
        windowed.aggregate(uid="pv", **(aggregates or {"pv": count(), "n": total("n")})).print()

    return build


@pytest.mark.promise("D8")
@pytest.mark.parametrize(
    ("now", "what"),
    [
        (windows(), []),
        (windows(views=count(), n=total("n")), []),
        (windows(n=total("n")), []),
        (windows("20 s"), ["windows: was tumbling by 10000 ms of event time, is tumbling by 20000 ms of event time"]),
        (windows(pv=count(), n=mean("n")), ["aggregates: was count(*) int64, sum(n) int64, is count(*) int64, "]),
        (windows(pv=count(), n=maximum("app")), []),
        (windows(key="n", pv=count(), s=total("n")), ["was keyed by app string, is keyed by n int64"]),
    ],
)
def test_windows_keep_their_size_and_keys_and_their_means_stay_right(now: Build, what: list[str]) -> None:
    got = found(windows(), now, "pv")
    assert [uid for uid, _ in got] == ["pv"] * len(what)
    for (_, said), begin in zip(got, what, strict=True):
        assert said.startswith(begin)


@pytest.mark.promise("B6", "D8")
def test_a_trigger_or_an_evictor_that_comes_or_goes_is_named() -> None:
    plain, counting, evicting = windows(), windows(trigger=CountTrigger.of(3)), windows(evictor=CountEvictor.of(3))
    assert not found(plain, windows(trigger=EventTimeTrigger.create()), "pv"), "that is the trigger it had"
    for was, now, what in [
        (plain, counting, "trigger: was none, is CountTrigger"),
        (counting, plain, "trigger: was CountTrigger, is none"),
        (plain, evicting, "evictor: was none, is one"),
        (counting, evicting, "evictor: was none, is one"),
        (evicting, counting, "evictor: was one, is none"),
        (counting, windows(trigger=NeverTrigger()), "trigger: was CountTrigger, is NeverTrigger"),
    ]:
        assert found(was, now, "pv") == [("pv", what)]
    later = "aggregates: max(x) double is new; windows that are open now get it for later records only"
    more = windows(trigger=CountTrigger.of(5), pv=count(), n=total("n"), high=maximum("x"))
    assert migrated(counting, more, "pv") == [later]


@pytest.mark.promise("B6", "D8")
def test_another_trigger_of_windows_with_functions_is_named_since_open_windows_have_the_timers_of_the_one_before() -> (
    None
):
    def reduced(trigger: Any) -> Build:
        def build(views: DataStream) -> None:
            strategy = WatermarkStrategy.for_bounded_out_of_orderness("1 s").with_timestamps("ts")
            keyed = views.assign_timestamps_and_watermarks(strategy).key_by("app")
            windowed = keyed.window(TumblingEventTimeWindows.of("10 s")).allowed_lateness("1 min")
            (windowed if trigger is None else windowed.trigger(trigger)).reduce(lambda a, b: b, uid="pv").print()

        return build

    counting, plain = reduced(CountTrigger.of(3)), reduced(None)
    assert not found(counting, reduced(CountTrigger.of(5)), "pv")
    assert not found(plain, reduced(EventTimeTrigger.create()), "pv")
    ((uid, what),) = found(counting, plain, "pv")
    assert uid == "pv" and what.startswith("trigger: was CountTrigger, is EventTimeTrigger")


@pytest.mark.promise("D8")
def test_partial_aggregates_may_change_their_order() -> None:
    assert not found(windows(n=total("n"), high=maximum("x")), windows(high=maximum("x"), sum=total("n")), "pv")


@pytest.mark.promise("D8")
def test_windows_that_are_open_get_a_new_aggregate_for_later_records_only() -> None:
    assert migrated(windows(n=total("n")), windows(n=total("n"), high=maximum("x")), "pv") == [
        "aggregates: max(x) double is new; windows that are open now get it for later records only"
    ]
    assert migrated(windows(n=total("n")), windows(pv=count()), "pv") == ["aggregates: sum(n) int64 is dropped"]
    assert migrated(windows(n=top_n("n", 3)), windows(n=top_n("n", 2, by="x")), "pv") == [
        "aggregates: top_2(n by x) list<element: struct<x: double, n: int64>> is new; windows that are open now get it "
        "for later records only",
        "aggregates: top_3(n) list<element: int64> is dropped",
    ]
    assert migrated(windows(n=quantile("n", 0.5)), windows(n=quantile("n", 0.9)), "pv") == []
    ((_, what),) = found(windows(n=total("n")), windows(n=mean("n")), "pv")
    assert what.endswith("(count(n) is new and sum(n) is not, so the mean of open windows would be wrong)")


@pytest.mark.promise("D8")
def test_a_running_value_gains_and_loses_columns_and_their_types_stay() -> None:
    def summed(*columns: str) -> Build:
        return lambda views: views.select(*columns).key_by("app").sum("n", uid="sum").print()

    def cast(views: DataStream) -> None:
        views.map(lambda row: row, schema="app string, n string").key_by("app").max("n", uid="sum").print()

    assert not found(summed("app", "n"), summed("app", "n", "x"), "sum")
    assert migrated(summed("app", "n", "x"), summed("app", "n", "ts"), "sum") == [
        "running value: ts timestamp[us, tz=UTC] is new, and null where it is missing",
        "running value: x double is dropped",
    ]
    assert found(summed("app", "n"), cast, "sum") == [
        ("sum", "running value: was app string, n int64, is app string, n string (n was int64, is string)")
    ]


class Rules(KeyedBroadcastProcessFunction):
    def process_element(self, value: Any, context: Any) -> Any:
        yield value

    def process_broadcast_element(self, value: Any, context: Any) -> None:
        """Takes no rule."""


@pytest.mark.promise("D8")
def test_broadcast_state_keeps_its_types() -> None:
    def ruled(name: str, kind: pa.DataType) -> Build:
        def build(views: DataStream) -> None:
            rules = views.broadcast(MapStateDescriptor(name, pa.string(), kind))
            views.key_by("app").connect(rules).process(Rules(), uid="rules").print()

        return build

    before = ruled("limits", pa.int64())
    assert not found(before, before, "rules")
    assert found(before, ruled("limits", pa.string()), "rules") == [
        ("rules", "broadcast state 'limits': was string to int64, is string to string")
    ]
    assert found(before, ruled("bounds", pa.int64()), "rules") == [
        ("rules", "no longer has the broadcast state 'limits' (string to int64)")
    ]


def summed(uid: str) -> Build:
    return lambda views: views.key_by("app").sum("n", uid=uid).print()


@pytest.mark.promise("D8")
def test_an_operator_without_state_may_go_and_a_new_one_may_come() -> None:
    assert not found(summed("sum"), summed("total"))
    assert not found(lambda views: views.print(), summed("sum"))


@pytest.mark.promise("D8")
def test_another_kind_of_operator_under_the_same_uid_is_refused() -> None:
    assert found(windows(), summed("pv"), "pv") == [("pv", "was a window, is a reduce")]
    assert found(summed("pv"), lambda views: views.sink_to(TableSink("t"), uid="pv"), "pv") == [
        ("pv", "was a reduce, is a TableSink")
    ]


@pytest.mark.promise("D8")
def test_a_generator_keeps_its_number_of_splits_because_it_decides_what_a_position_means() -> None:
    def built(splits: int) -> JobGraph:
        return graph(lambda views: views.print(), splits)

    assert [one.what for one in differences(built(3), taken_by(built(2)), {})] == [
        "its positions belong to 2 splits, it has 3 splits"
    ]


@pytest.mark.promise("D8")
def test_two_renames_are_told_apart_and_only_what_is_alike_is_guessed() -> None:
    def both(first: str, second: str) -> Build:
        def build(views: DataStream) -> None:
            views.key_by("app").sum("n", uid=first).print()
            views.key_by("n").sum("n", uid=second).print()

        return build

    got = dict(found(both("a", "b"), both("c", "d"), "a", "b"))
    assert "c is new" in got["a"] and "d is new" in got["b"]
    assert dict(found(both("a", "b"), both("a", "c"), "a", "b")).keys() == {"b"}
    assert "is new" not in dict(found(windows(), summed("sum"), "pv"))["pv"]


@pytest.mark.promise("D8")
@pytest.mark.parametrize(
    ("columns", "what"),
    [
        (("app", "n"), []),
        (("n", "app"), []),
        (("app", "n", "x"), ["the column x double is new in the table 't', and null in older rows"]),
    ],
)
def test_a_table_may_get_columns_in_any_order(columns: tuple[str, ...], what: list[str]) -> None:
    def table(*names: str) -> Build:
        return lambda views: views.select(*names).sink_to(TableSink("t"), uid="out")

    assert not found(table("app", "n"), table(*columns))
    assert migrated(table("app", "n"), table(*columns)) == what


@pytest.mark.promise("D8")
def test_a_table_loses_no_column_because_its_readers_would_fail_when_older_files_are_folded() -> None:
    ((uid, what),) = found(tables("app string, v long"), tables("app string"))
    assert (uid, what) == ("out", "the table 't' no longer has the column v int64")


def tables(schema: str) -> Build:
    return lambda views: views.map(lambda row: row, schema=schema).sink_to(TableSink("t"), uid="out")


@pytest.mark.promise("D8")
@pytest.mark.parametrize(("was", "now"), [("int", "long"), ("float", "double"), ("long", "int"), ("long", "string")])
def test_a_column_of_a_table_keeps_its_type_because_Spark_reads_no_mixture(was: str, now: str) -> None:
    ((uid, what),) = found(tables(f"app string, v {was}"), tables(f"app string, v {now}"))
    assert uid == "out" and what.startswith("the column v of the table 't' was ") and "its readers would fail" in what


@pytest.mark.promise("D8")
def test_a_column_that_published_files_have_keeps_its_type_also_if_the_last_version_did_not_write_it() -> None:
    manifest = taken_by(graph(tables("app string")))
    held = {"out": Found(columns=[Column("app", "string"), Column("v", "int64")])}
    assert not differences(graph(tables("app string, v long")), manifest, held)
    (refused,) = differences(graph(tables("app string, v double")), manifest, held)
    assert refused.what == "the column v of the table 't' was int64, is double; its readers would fail"


@pytest.mark.promise("D8")
def test_print_sinks_come_and_go_as_they_like() -> None:
    def build(views: DataStream) -> None:
        views.print()
        views.print(uid="shown")

    assert not found(build, lambda views: views.print(uid="other"))


class Other(PrintSink):
    """A sink with output to commit whose committer can't be made without the job's code."""


@pytest.mark.promise("D8", "D11")
def test_pending_output_that_only_the_gone_sink_can_commit_is_refused_whatever_is_allowed() -> None:
    before = graph(lambda views: views.sink_to(Other(), uid="out"))
    now = graph(lambda views: views.print())
    check(now, taken_by(before), {}, allow_non_restored_state=False)
    with pytest.raises(IncompatibleJob, match="without it nobody can commit that output"):
        check(now, taken_by(before, commits=("out",)), {}, allow_non_restored_state=True)


@pytest.mark.promise("D8")
def test_a_sink_keeps_its_first_epoch() -> None:
    first = describe(graph(lambda views: views.sink_to(TableSink("t"), uid="out")), JobDescription(), 1)

    def both(views: DataStream) -> None:
        views.sink_to(TableSink("t"), uid="out")
        views.sink_to(TableSink("u"), uid="more")

    then = describe(graph(both), first, 8)
    assert {sink.uid: sink.first_epoch for sink in then.sinks} == {"out": 1, "more": 8}
    assert {sink.uid: sink.first_epoch for sink in describe(graph(both), then, 12).sinks} == {"out": 1, "more": 8}


def timed(column: str, place: str) -> Build:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamps(column)

    def build(views: DataStream) -> None:
        if place == "operator":
            views = views.map(lambda row: row)
        views.assign_timestamps_and_watermarks(strategy).print()

    return build


@pytest.mark.promise("D8", "B1")
def test_another_event_time_column_is_refused_because_the_watermark_is_in_the_old_one() -> None:
    assert not found(timed("ts", "source"), timed("ts", "source"))
    [(uid, what)] = found(timed("ts", "source"), timed("n", "source"))
    assert uid == "views" and what.startswith("its event time was the column ts, is n; its watermark")
    assert found(timed("ts", "operator"), timed("n", "operator"), "views.timestamps") == [
        ("views.timestamps", "event time: was column ts, is column n")
    ]


@pytest.mark.promise("D8", "B1")
def test_watermarks_may_move_from_an_operator_into_the_source_if_the_column_stays() -> None:
    """Older versions made them in an operator if the source had other consumers when event time was assigned."""
    assert not found(timed("ts", "operator"), timed("ts", "source"), "views.timestamps")
    assert found(timed("ts", "operator"), timed("n", "source"), "views.timestamps") == [
        ("views.timestamps", "the assign_timestamps is gone, and its state would be lost")
    ]


@pytest.mark.promise("D8", "B1")
def test_a_source_may_get_and_lose_event_time() -> None:
    assert not found(lambda views: views.print(), timed("ts", "source"))
    assert not found(timed("ts", "source"), lambda views: views.print())


@pytest.mark.promise("D8")
def test_another_job_under_the_same_name_is_told_to_take_a_name_of_its_own() -> None:
    before = taken_by(graph(lambda views: views.sink_to(TableSink("t"), uid="out")))
    other = graph(lambda views: views.sink_to(TableSink("u"), uid="u"), source="orders")
    first = differences(other, before, {})[0]
    assert first.what == "it has no operator in common with the job of this name that took epoch 7"
    assert "choose another --name" in first.fix
    assert first.droppable


@pytest.mark.promise("D8")
def test_an_operator_whose_only_state_is_in_the_manifest_itself_is_not_forgotten() -> None:
    """A window operator without open windows has a watermark, and no file."""
    manifest = taken_by(graph(windows()))
    manifest.subtasks[0].inline["pv"] = {"clock": []}
    (gone,) = differences(graph(lambda views: views.print()), manifest, {})
    assert gone.uid == "pv" and gone.droppable and "its state would be lost" in gone.what


@pytest.mark.promise("D8")
def test_one_new_operator_is_guessed_to_be_the_new_name_of_one_that_is_gone_and_not_of_two() -> None:
    def summed(*uids: str) -> Build:
        def build(views: DataStream) -> None:
            for uid in uids:
                views.select("app", "n").key_by("app").sum("n", uid=uid).print()

        return build

    got = found(summed("a", "b"), summed("c"), "a", "b")
    assert [(uid, "c is new" in what) for uid, what in got] == [("a", True), ("b", False)]


class Named(PrintSink):
    """Has a target, and is no table."""

    @property
    def target(self) -> str:
        return "the terminal"


def test_only_tables_are_committed_without_their_sinks() -> None:
    def into(*sinks: Sink) -> Build:
        def build(views: DataStream) -> None:
            for number, sink in enumerate(sinks):
                views.sink_to(sink, uid=f"out-{number}")

        return build

    manifest = taken_by(graph(into(TableSink("t"), Named())))
    gone = gone_sinks(graph(lambda views: views.print()), manifest)
    assert [(sink.uid, bool(sink.table)) for sink in gone] == [("out-0", True), ("out-1", False)]


def joined(upper: str = "5 s", key: str = "app", columns: tuple[str, ...] = ("app", "n", "ts"), **more: Any) -> Build:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("1 s").with_timestamps("ts")

    def build(views: DataStream) -> None:
        timed = views.assign_timestamps_and_watermarks(strategy)
        left = timed.select(*columns, **more)
        both = left.key_by(key).interval_join(timed.key_by(key)).between(0, upper)
        both.select(key, uid="joined").print()

    return build


@pytest.mark.promise("A8", "D8")
def test_a_join_keeps_its_bounds_and_keys_and_its_rows_gain_and_lose_columns() -> None:
    assert found(joined(), joined(), "joined") == []
    assert found(joined(), joined("6 s"), "joined") == [
        (
            "joined",
            "bounds: was right time - left time from 0 to 5000 ms, is right time - left time from 0 to 6000 ms",
        )
    ]
    ((_, what),) = found(joined(columns=("app", "n", "ts")), joined(key="n"), "joined")
    assert what == "was keyed by app string, app string, is keyed by n int64, n int64"
    assert migrated(joined(), joined(columns=("app", "n", "ts", "x")), "joined") == [
        "left rows: x double is new, and null where it is missing"
    ]
    assert migrated(joined(), joined(columns=("app", "ts")), "joined") == ["left rows: n int64 is dropped"]


@pytest.mark.promise("A8", "D8")
def test_a_window_join_keeps_its_windows() -> None:
    def windowed(size: str) -> Build:
        strategy = WatermarkStrategy.for_bounded_out_of_orderness("1 s").with_timestamps("ts")

        def build(views: DataStream) -> None:
            timed = views.assign_timestamps_and_watermarks(strategy)
            both = timed.join(timed).where("app").equal_to("app").window(TumblingEventTimeWindows.of(size))
            both.select("app", uid="joined").print()

        return build

    assert found(windowed("1 s"), windowed("1 s"), "joined") == []
    assert found(windowed("1 s"), windowed("2 s"), "joined") == [
        ("joined", "windows: was tumbling by 1000 ms of event time, is tumbling by 2000 ms of event time")
    ]


@pytest.mark.promise("D8")
def test_a_sink_that_is_no_table_is_not_new_at_each_restore() -> None:
    """What it pre-committed for the newest epoch would not be committed again."""
    before = graph(lambda views: views.print(uid="shown"))
    assert new_sinks(before, taken_by(before)) == [] and new_sinks(before, None) == ["shown"]
