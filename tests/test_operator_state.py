"""Operator state and broadcast state in whole jobs: through crashes, and restored at another parallelism (C1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
import pytest

from engine.api import (
    BroadcastContext,
    BroadcastProcessFunction,
    DataStream,
    FixedDelay,
    FlatMapFunction,
    JobError,
    KeyedBroadcastProcessFunction,
    ListStateDescriptor,
    MapFunction,
    MapStateDescriptor,
    ReadOnlyBroadcastContext,
    RuntimeContext,
    StreamEnvironment,
    TumblingEventTimeWindows,
    ValueState,
    ValueStateDescriptor,
    WatermarkStrategy,
    count,
)
from engine.connectors.table import TableSink
from engine.testing import Checkpoint, Crash, Item, JobFailed, ListSource, LocalRun, run

Row = dict[str, Any]
Job = Callable[[StreamEnvironment], None]
RULES = MapStateDescriptor("rules", pa.string(), pa.int64())
SEEN = ValueStateDescriptor("seen", pa.int64())


def numbered(*numbers: int) -> list[Item]:
    return [{"n": n} for n in numbers]


def published(started: LocalRun) -> list[Row]:
    try:
        return started.rows("out")
    except FileNotFoundError:  # nothing yet
        return []


def until_epoch(epoch: int) -> Callable[[LocalRun], bool]:
    return lambda started: started.epochs >= epoch


# --- lists ---


class PairUp(FlatMapFunction):
    """Emits records two by two; the odd one is operator state."""

    def open(self, context: RuntimeContext) -> None:
        self._state = context.get_operator_state_store().get_list_state(ListStateDescriptor("odd", pa.int64()))
        self._held = self._state.get()

    def flat_map(self, value: Row) -> Iterable[Row]:
        self._held.append(value["n"])
        if len(self._held) >= 2:
            yield {"first": self._held.pop(0), "second": self._held.pop(0)}

    def snapshot_state(self, checkpoint: int) -> None:
        self._state.update(self._held)


def pairs(*splits: list[Item]) -> Job:
    source = ListSource(*splits)

    def job(env: StreamEnvironment) -> None:
        env.set_restart_strategy(FixedDelay(attempts=5, delay_ms=10))
        stream = env.from_source(source, "n long", uid="numbers").set_parallelism(len(splits))
        paired = stream.rebalance().flat_map(PairUp(), schema="first long, second long", uid="pair")
        paired.sink_to(TableSink("out"), uid="out")

    return job


def all_of(rows: list[Row]) -> list[int]:
    return sorted(value for row in rows for value in row.values())


@pytest.mark.promise("C1", "A5")
def test_a_buffer_in_operator_state_survives_a_crash() -> None:
    result = run(pairs([*numbered(1, 2, 3), Checkpoint(), *numbered(4, 5), Crash(), *numbered(6)]))
    assert result.restarts == 1
    assert all_of(result.rows("out")) == [1, 2, 3, 4, 5, 6]


@pytest.mark.promise("C1", "D7")
@pytest.mark.parametrize(("before", "after"), [(3, 1), (1, 3), (2, 3), (3, 2)])
def test_split_lists_are_dealt_out_to_another_parallelism(before: int, after: int) -> None:
    """Three subtasks hold an odd record each, then one holds all of them; and the other way round."""
    items = [*numbered(*range(before)), Checkpoint(), *numbered(*range(before, 24)), Checkpoint()]
    job = pairs(items)
    first = run(job, parallelism=before, until=until_epoch(1))
    assert published(first) == []
    result = run(job, parallelism=after, after=first)
    emitted = all_of(result.rows("out"))
    assert len(emitted) == len(set(emitted))
    assert len(emitted) >= 24 - after  # what is missing is held, at most one in each subtask


class Announce(MapFunction):
    """Tells which items of the union it found when it was opened; each subtask adds one for itself."""

    def open(self, context: RuntimeContext) -> None:
        store = context.get_operator_state_store()
        union = store.get_union_list_state(ListStateDescriptor("who", pa.string()))
        self._found = sorted(union.get())
        self._restored = context.is_restored
        union.update([f"subtask {context.subtask_index}"])

    def map(self, value: Row) -> Row:
        return {"n": value["n"], "found": ",".join(self._found), "restored": self._restored}


@pytest.mark.promise("C1", "D7")
def test_a_union_list_is_whole_in_every_subtask_that_is_restored() -> None:
    source = ListSource([*numbered(1, 2, 3), Checkpoint(), *numbered(4, 5)])

    def job(env: StreamEnvironment) -> None:
        stream = env.from_source(source, "n long", uid="numbers").set_parallelism(1)
        announced = stream.rebalance().map(Announce(), schema="n long, found string, restored boolean", uid="announce")
        announced.sink_to(TableSink("out"), uid="out")

    first = run(job, parallelism=3, until=until_epoch(1))
    result = run(job, parallelism=2, after=first)
    found = {row["n"]: (row["found"], row["restored"]) for row in result.rows("out")}
    everyone = "subtask 0,subtask 1,subtask 2"
    assert found == {1: ("", False), 2: ("", False), 3: ("", False), 4: (everyone, True), 5: (everyone, True)}


def test_operator_state_needs_a_uid_to_be_found_again() -> None:
    def job(env: StreamEnvironment) -> None:
        stream = env.from_source(ListSource(numbered(1)), "n long", uid="numbers")
        stream.map(Announce(), schema="n long, found string, restored boolean").print()

    with pytest.raises(JobFailed, match=r"'map-1' keeps the state 'who', which a restart finds by the uid"):
        run(job)


# --- broadcast ---


class ApplyRules(KeyedBroadcastProcessFunction):
    """Each event with the value of its rule, and how many events its key has had."""

    def open(self, context: RuntimeContext) -> None:
        self._seen = context.get_state(SEEN)

    def process_element(self, value: Row, context: ReadOnlyBroadcastContext) -> Iterable[Row]:
        seen = (self._seen.value() or 0) + 1
        self._seen.update(seen)
        rule = context.get_broadcast_state(RULES).get(value["app"])
        yield {"what": value["app"], "n": seen, "rule": rule}

    def process_broadcast_element(self, value: Row, context: BroadcastContext) -> Iterable[Row]:
        rules = context.get_broadcast_state(RULES)
        rules.put(value["app"], value["limit"])
        yield {"what": "rule", "n": len(rules), "rule": value["limit"]}


def event(app: str) -> Item:
    return {"app": app}


def rule(app: str, limit: int) -> Item:
    return {"app": app, "limit": limit}


def ruled(events: ListSource, rules: ListSource, function: KeyedBroadcastProcessFunction | None = None) -> Job:
    def job(env: StreamEnvironment) -> None:
        env.set_restart_strategy(FixedDelay(attempts=5, delay_ms=10))
        stream = env.from_source(events, "app string", uid="events").set_parallelism(1)
        broadcast = env.from_source(rules, "app string, limit long", uid="rules").set_parallelism(1).broadcast(RULES)
        applied = (
            stream.key_by("app")
            .connect(broadcast)
            .process(function or ApplyRules(), uid="apply", schema="what string, n long, rule long")
        )
        applied.sink_to(TableSink("out"), uid="out")

    return job


def shown(result: LocalRun) -> Counter[tuple[str, int, int | None]]:
    return Counter((row["what"], row["n"], row["rule"]) for row in result.rows("out"))


@pytest.mark.promise("C1", "A7", "A6")
def test_broadcast_state_and_keyed_state_survive_a_crash_in_every_subtask() -> None:
    """The rules are all read before the checkpoint; the crash comes after it, and nobody reads them again."""
    events = ListSource(
        [Checkpoint(), event("a"), event("b"), Checkpoint(), event("a"), Crash(), event("b"), event("c")]
    )
    result = run(ruled(events, ListSource([rule("a", 1), rule("b", 2)])), parallelism=2)
    assert result.restarts == 1
    assert shown(result) == {
        ("rule", 1, 1): 2,
        ("rule", 2, 2): 2,
        ("a", 1, 1): 1,
        ("b", 1, 2): 1,
        ("a", 2, 1): 1,
        ("b", 2, 2): 1,
        ("c", 1, None): 1,
    }


@pytest.mark.promise("C1", "D7", "A7")
@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 2), (2, 5)])
def test_every_subtask_of_another_parallelism_has_the_whole_broadcast_state(before: int, after: int) -> None:
    apps = [f"app {number}" for number in range(12)]
    events = ListSource([Checkpoint(), *(event(app) for app in apps)])
    job = ruled(events, ListSource([rule(app, number) for number, app in enumerate(apps)]))
    first = run(job, parallelism=before, until=until_epoch(1))
    result = run(job, parallelism=after, after=first)
    found = {row["what"]: row["rule"] for row in result.rows("out") if row["what"] != "rule"}
    assert found == {app: number for number, app in enumerate(apps)}


class SameName(ApplyRules):
    """A keyed state and a broadcast state of one name: two states."""

    def open(self, context: RuntimeContext) -> None:
        self._seen = context.get_state(ValueStateDescriptor("rules", pa.int64()))


@pytest.mark.promise("C1")
def test_keyed_and_broadcast_state_of_one_name_are_two_states() -> None:
    events = ListSource([Checkpoint(), event("a"), Checkpoint(), Crash(), event("a"), event("a")])
    found = shown(run(ruled(events, ListSource([rule("a", 7)]), SameName())))
    assert found == {("rule", 1, 7): 1, ("a", 1, 7): 1, ("a", 2, 7): 1, ("a", 3, 7): 1}


class Forget(ApplyRules):
    """A rule sets the count of every key back."""

    def process_broadcast_element(self, value: Row, context: BroadcastContext) -> Iterable[Row]:
        touched: list[str] = []

        def forget(key: tuple[Any, ...], seen: ValueState[int]) -> None:
            touched.append(key[0])
            seen.clear()

        context.apply_to_keyed_state(SEEN, forget)
        yield {"what": "forgot " + ",".join(sorted(touched)), "n": 0, "rule": value["limit"]}


@pytest.mark.promise("A7")
def test_a_broadcast_record_can_go_through_the_state_of_all_keys() -> None:
    rules = ListSource([Checkpoint(), rule("", 0)])
    events = ListSource([event("a"), event("b"), event("a"), Checkpoint()])
    assert shown(run(ruled(events, rules, Forget()))) == {
        ("a", 1, None): 1,
        ("b", 1, None): 1,
        ("a", 2, None): 1,
        ("forgot a,b", 0, 0): 1,
    }


class TouchesKeyedState(ApplyRules):
    def process_broadcast_element(self, value: Row, context: BroadcastContext) -> Iterable[Row]:
        self._seen.update(1)
        return []


def test_a_broadcast_record_has_no_key_and_is_told_so() -> None:
    with pytest.raises(JobFailed, match=r"a broadcast record has no key.*apply_to_keyed_state"):
        run(ruled(ListSource([event("a")]), ListSource([rule("a", 1)]), TouchesKeyedState()))


class AsksForAnother(ApplyRules):
    def process_element(self, value: Row, context: ReadOnlyBroadcastContext) -> Iterable[Row]:
        context.get_broadcast_state(MapStateDescriptor("other", pa.string(), pa.int64()))
        return []


def test_a_broadcast_state_that_was_not_declared_is_refused() -> None:
    message = (
        r"'other' \(string to int64\) is not one that its stream was broadcast with: broadcast\(...\) names 'rules'"
    )
    with pytest.raises(JobFailed, match=message):
        run(ruled(ListSource([event("a")]), ListSource([rule("a", 1)]), AsksForAnother()))


class Enrich(BroadcastProcessFunction):
    def process_element(self, value: Row, context: ReadOnlyBroadcastContext) -> Iterable[Row]:
        rules = context.get_broadcast_state(RULES)
        yield {"app": value["app"], "rules": len(rules)}

    def process_broadcast_element(self, value: Row, context: BroadcastContext) -> Iterable[Row]:
        context.get_broadcast_state(RULES).put(value["app"], value["limit"])
        return ()


def with_time(stream: DataStream) -> DataStream:
    return stream.assign_timestamps_and_watermarks(WatermarkStrategy.for_monotonous_timestamps().with_timestamps("ts"))


def windows_of(events: ListSource, rules: DataStream, env: StreamEnvironment, function: Any = None) -> None:
    stream = with_time(env.from_source(events, "app string, ts long", uid="events"))
    enriched = stream.connect(rules.broadcast(RULES)).process(
        function or Enrich(), uid="enrich", schema="app string, rules long"
    )
    counted = enriched.key_by("rules").window(TumblingEventTimeWindows.of("10 s")).aggregate(pv=count(), uid="pv")
    counted.sink_to(TableSink("out"), uid="out")


@pytest.mark.promise("B2", "A7")
def test_a_broadcast_stream_without_event_time_does_not_hold_the_clock_back() -> None:
    """The rules never end: the window is published while they go on."""
    rules = ListSource([rule("a", 1), rule("b", 2), Checkpoint(), Checkpoint()])
    events = ListSource([Checkpoint(), {"app": "a", "ts": 1000}, {"app": "b", "ts": 11_000}, Checkpoint()])

    def job(env: StreamEnvironment) -> None:
        windows_of(events, env.from_source(rules, "app string, limit long", uid="rules"), env)

    first = run(job, until=lambda started: len(published(started)) > 0)
    assert [(row["rules"], row["pv"]) for row in first.rows("out")] == [(2, 1)]


@pytest.mark.promise("B2")
def test_with_event_time_on_both_sides_the_clock_is_the_lower_of_the_two() -> None:
    rules = ListSource([{**rule("a", 1), "ts": 5000}, Checkpoint(), Checkpoint()])
    events = ListSource([{"app": "a", "ts": 1000}, {"app": "a", "ts": 60_000}, Checkpoint(), Checkpoint()])

    def job(env: StreamEnvironment) -> None:
        windows_of(events, with_time(env.from_source(rules, "app string, limit long, ts long", uid="rules")), env)

    held = run(job, until=until_epoch(1))
    assert published(held) == []
    assert sum(row["pv"] for row in held.run().rows("out")) == 2


class Announces(Enrich):
    def process_broadcast_element(self, value: Row, context: BroadcastContext) -> Iterable[Row]:
        yield {"app": value["app"], "rules": 0}


def test_records_that_would_have_no_event_time_are_refused_with_advice() -> None:
    def job(env: StreamEnvironment) -> None:
        rules = env.from_source(ListSource([rule("a", 1)]), "app string, limit long", uid="rules")
        windows_of(ListSource([]), rules, env, Announces())

    with pytest.raises(JobFailed, match=r"call assign_timestamps_and_watermarks\(...\) on the broadcast stream too"):
        run(job)


@pytest.mark.promise("A7")
def test_a_stream_may_be_connected_with_itself() -> None:
    class Both(BroadcastProcessFunction):
        def process_element(self, value: Row, context: ReadOnlyBroadcastContext) -> Iterable[Row]:
            yield {"n": value["n"]}

        def process_broadcast_element(self, value: Row, context: BroadcastContext) -> Iterable[Row]:
            yield {"n": -value["n"]}

    def job(env: StreamEnvironment) -> None:
        stream = env.from_source(ListSource(numbered(1, 2)), "n long", uid="numbers").set_parallelism(1)
        both = stream.rebalance().connect(stream.broadcast(RULES)).process(Both(), uid="both")
        both.sink_to(TableSink("out"), uid="out")

    assert sorted(row["n"] for row in run(job, parallelism=2).rows("out")) == [-2, -2, -1, -1, 1, 2]


def test_a_broadcast_stream_that_nobody_connects_with_is_an_error() -> None:
    def job(env: StreamEnvironment) -> None:
        env.from_source(ListSource(numbered(1)), "n long", uid="numbers").print()
        env.from_source(ListSource([]), "app string", uid="rules").broadcast(RULES)

    with pytest.raises(JobError, match="nothing follows 'rules'"):
        run(job)
