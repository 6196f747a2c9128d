"""State of one version of a job is adapted when the next version restores it, at another parallelism too (D8).

Each test runs a first version up to an epoch, and goes on with a second version whose state has other fields or types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from engine.api import (
    Aggregate,
    BroadcastContext,
    FlatMapFunction,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ProcessContext,
    ReadOnlyBroadcastContext,
    RuntimeContext,
    StreamEnvironment,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
    WatermarkStrategy,
    count,
    maximum,
    minimum,
    total,
)
from engine.connectors.table import TableSink
from engine.testing import Checkpoint, JobFailed, ListSource, LocalRun, run

Row = dict[str, Any]
Job = Callable[[StreamEnvironment], None]


def upgraded(first: Job, second: Job) -> list[Row]:
    """Runs the first version up to its first epoch, and the second one at another parallelism to its end."""
    before = run(first, until=lambda started: started.epochs >= 1)
    return run(second, after=before, parallelism=3).rows("out")


def records(*items: Row) -> ListSource:
    """The first version reads the first record; what comes behind the checkpoint is read by the second."""
    first, *rest = items
    return ListSource([first, Checkpoint(), *rest])


# --- state per key ---


class Profile(KeyedProcessFunction):
    """Keeps the last record of each key, as far as its state has fields for it, and emits the one before."""

    def __init__(self, kind: str, **defaults: Any) -> None:
        self._descriptor = ValueStateDescriptor("profile", kind, defaults=defaults)
        self._names = [field.name for field in self._descriptor.type]

    def open(self, context: RuntimeContext) -> None:
        self._profile = context.get_state(self._descriptor)

    def process_element(self, value: Row, context: ProcessContext) -> Iterable[Row]:
        held = self._profile.value()
        self._profile.update({name: value.get(name) for name in self._names})
        if held is not None:
            yield {"held": str(sorted(held.items()))}


def profiles(source: ListSource, kind: str, **defaults: Any) -> Job:
    def job(env: StreamEnvironment) -> None:
        stream = env.from_source(source, "user string, n int", uid="users").key_by("user")
        stream.process(Profile(kind, **defaults), uid="profile", schema="held string").sink_to(
            TableSink("out"), uid="out"
        )

    return job


@pytest.mark.promise("D8", "C1")
def test_a_value_per_key_gains_loses_and_widens_fields() -> None:
    source = records({"user": "a", "n": 1}, {"user": "a", "n": 2})
    rows = upgraded(
        profiles(source, "struct<user: string, n: int>"),
        profiles(source, "struct<n: long, plan: string, since: long>", plan="free"),
    )
    assert rows == [{"held": "[('n', 1), ('plan', 'free'), ('since', None)]"}]


@pytest.mark.promise("D8")
def test_a_type_that_would_change_the_value_ends_the_job_with_the_name_of_the_state() -> None:
    source = records({"user": "a", "n": 1}, {"user": "a", "n": 2})
    with pytest.raises(JobFailed, match=r"state 'profile' was saved as .*\(n was int32, is string\)"):
        upgraded(profiles(source, "struct<n: int>"), profiles(source, "struct<n: string>"))


def test_a_default_that_is_no_value_of_its_field_is_refused_where_it_is_written() -> None:
    with pytest.raises(ValueError, match="state 'p': the default 'x' of 'n' is not a int64"):
        ValueStateDescriptor("p", "struct<n: long>", defaults={"n": "x"})
    with pytest.raises(ValueError, match="state 'p' has a default for 'm', which is no field of its type"):
        ListStateDescriptor("p", "struct<n: long>", defaults={"m": 1})


@pytest.mark.promise("D8", "A2")
def test_a_running_value_gains_and_loses_columns() -> None:
    source = records({"user": "a", "n": 1}, {"user": "a", "n": 5})

    def job(schema: str, add: Row) -> Job:
        def define(env: StreamEnvironment) -> None:
            stream = env.from_source(source, "user string, n int", uid="users")
            mapped = stream.map(lambda row: {**row, **add}, schema=schema)
            summed = mapped.key_by("user").sum("n", uid="sum")
            summed.select("user", "n", *(["more"] if "more" in add else [])).sink_to(TableSink("out"), uid="out")

        return define

    rows = upgraded(
        job("user string, n int, old string", {"old": "x"}), job("user string, n int, more long", {"more": 3})
    )
    assert rows == [{"user": "a", "n": 1, "more": None}, {"user": "a", "n": 6, "more": 3}]


# --- windows ---


def windows(source: ListSource, **aggregates: Aggregate) -> Job:
    def job(env: StreamEnvironment) -> None:
        stream = env.from_source(source, "user string, n int, ts timestamp", uid="users")
        timed = stream.assign_timestamps_and_watermarks(
            WatermarkStrategy.for_monotonous_timestamps().with_timestamps("ts")
        )
        windowed = timed.key_by("user").window(TumblingEventTimeWindows.of("10 s"))
        shown = [name for name in aggregates if name != "gone"]
        windowed.aggregate(uid="sums", **aggregates).select("user", *shown).sink_to(TableSink("out"), uid="out")

    return job


def at(second: int) -> datetime:
    return datetime.fromtimestamp(1_000 + second, UTC)


@pytest.mark.promise("D8", "B4")
def test_open_windows_keep_their_aggregates_and_get_new_ones_for_later_records() -> None:
    source = records(
        {"user": "a", "n": 1, "ts": at(1)}, {"user": "a", "n": 5, "ts": at(2)}, {"user": "a", "n": 9, "ts": at(12)}
    )
    rows = upgraded(
        windows(source, rows=count(), low=minimum("n"), gone=total("n")),
        windows(source, rows=count(), low=minimum("n"), high=maximum("n"), users=count("user")),
    )
    figures = [(row["rows"], row["low"], row["high"], row["users"]) for row in rows]
    assert figures == [(2, 1, 5, 1), (1, 9, 9, 1)]


@pytest.mark.promise("D8", "B4")
def test_a_window_that_no_later_record_reaches_has_an_empty_new_aggregate() -> None:
    source = records({"user": "a", "n": 1, "ts": at(1)}, {"user": "b", "n": 9, "ts": at(12)})
    rows = upgraded(windows(source, rows=count()), windows(source, rows=count(), sum=total("n"), n=count("n")))
    assert [(row["user"], row["rows"], row["sum"], row["n"]) for row in rows] == [("a", 1, None, 0), ("b", 1, 9, 1)]


# --- operator and broadcast state ---


class Held(FlatMapFunction):
    """Holds back the records that were read before the checkpoint."""

    def __init__(self, kind: str, **defaults: Any) -> None:
        self._descriptor = ListStateDescriptor("held", kind, defaults=defaults)

    def open(self, context: RuntimeContext) -> None:
        self._state = context.get_operator_state_store().get_list_state(self._descriptor)
        self._restored = self._state.get()

    def flat_map(self, value: Row) -> Iterable[Row]:
        if value["n"] == 1:
            self._state.add({"n": 1})
        for item in self._restored:
            yield {"held": str(sorted(item.items()))}
        self._restored = []


@pytest.mark.promise("D8", "C1")
def test_items_of_an_operator_list_are_adapted() -> None:
    source = records({"n": 1}, {"n": 2})

    def job(kind: str, **defaults: Any) -> Job:
        def define(env: StreamEnvironment) -> None:
            stream = env.from_source(source, "n int", uid="numbers")
            stream.flat_map(Held(kind, **defaults), schema="held string", uid="held").sink_to(
                TableSink("out"), uid="out"
            )

        return define

    before = run(job("struct<n: int>"), until=lambda started: started.epochs >= 1)
    rows = run(job("struct<n: long, why: string>", why="unknown"), after=before).rows("out")
    assert rows == [{"held": "[('n', 1), ('why', 'unknown')]"}]


class Limits(KeyedBroadcastProcessFunction):
    def __init__(self, descriptor: MapStateDescriptor) -> None:
        self._descriptor = descriptor

    def process_element(self, value: Row, context: ReadOnlyBroadcastContext) -> Iterable[Row]:
        yield {"limit": str(context.get_broadcast_state(self._descriptor).get("a"))}

    def process_broadcast_element(self, value: Row, context: BroadcastContext) -> Iterable[Row]:
        context.get_broadcast_state(self._descriptor).put("a", {"max": 3})
        return ()


@pytest.mark.promise("D8", "C1")
def test_values_of_broadcast_state_are_adapted_and_their_keys_may_not_change() -> None:
    rules = ListSource([{"rule": 1}, Checkpoint()])
    events = ListSource([Checkpoint(), Checkpoint(), {"user": "x"}])

    def job(key: str, kind: str, **defaults: Any) -> Job:
        descriptor = MapStateDescriptor("limits", key, kind, defaults=defaults)

        def define(env: StreamEnvironment) -> None:
            ruled = env.from_source(rules, "rule long", uid="rules").broadcast(descriptor)
            stream = env.from_source(events, "user string", uid="events").key_by("user").connect(ruled)
            stream.process(Limits(descriptor), uid="limit", schema="limit string").sink_to(TableSink("out"), uid="out")

        return define

    def has_rules(started: LocalRun) -> bool:
        return started.epochs >= 2

    before = run(job("string", "struct<max: int>"), until=has_rules)
    with pytest.raises(JobFailed, match=r"broadcast state 'limits': was string to .*, is int64 to"):
        run(job("long", "struct<max: int>"), after=before)
    rows = run(job("string", "struct<max: long, min: long>", min=0), after=before, parallelism=2).rows("out")
    assert rows == [{"limit": "{'max': 3, 'min': 0}"}]


def test_types_of_state_are_arrow_types_too() -> None:
    assert ValueStateDescriptor("p", pa.int64()).defaults == {}
