"""Jobs that look for patterns (A11): the examples of the seeds, time, late records, and what a snapshot holds.

Topology: a list → key_by → pattern → table. Where it matters a job runs three ways: undisturbed at parallelism 1; at 2
with checkpoints; at 2, stopped after an epoch, restored at 3 and crashed. All must write the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa
import pytest

from engine.api import (
    CEP,
    AfterMatchSkipStrategy,
    ConditionContext,
    KeyedProcessFunction,
    KeyedStream,
    Match,
    MatchContext,
    OutputTag,
    Pattern,
    PatternProcessFunction,
    ProcessContext,
    RuntimeContext,
    StreamEnvironment,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from engine.connectors.table import TableSink
from engine.core.errors import UserFunctionError
from engine.core.event_time import EVENT_TIME
from engine.state.partial_matches import PATTERN_PARTS
from engine.testing import Checkpoint, JobFailed, ListSource, LocalRun, run
from tests.api.streams.building import operator
from tests.fakes import Collected, FakeClock
from tests.three_ways import three_ways

pytestmark = pytest.mark.promise("A11")

Row = dict[str, Any]


def keyed(env: StreamEnvironment, source: ListSource, schema: str, by: str, bound_ms: int = 0) -> KeyedStream:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(bound_ms).with_timestamps("at")
    return env.from_source(source, f"{schema}, at long", uid="in").assign_timestamps_and_watermarks(strategy).key_by(by)


def spread(rows: Iterable[Row], users: int = 7) -> list[Any]:
    """Gives every user the same records, with the users in turn, so that state is on all subtasks."""
    return [{**row, "user": f"u{user}"} for row in rows for user in range(users)]


def is_(what: str) -> Callable[[Row], bool]:
    return lambda record: record["what"] == what


# --- the examples of the seeds ---


def test_three_failed_logins_in_a_row_are_found() -> None:
    """A success between them begins a new row; failures go on to count, so a fourth in a row is a second match."""
    outcomes = [False, False, True, False, False, False, False, True, False]
    logins = spread({"ok": ok, "at": 1000 * n} for n, ok in enumerate(outcomes))
    pattern = Pattern.begin("failed").where(lambda r: not r["ok"]).times(3).consecutive().within("1 min")

    def alert(match: Match) -> Row:
        return {
            "user": match["failed"][0]["user"],
            "first": match["failed"][0]["at"],
            "last": match["failed"][-1]["at"],
        }

    def define(env: StreamEnvironment, source: ListSource) -> None:
        stream = CEP.pattern(keyed(env, source, "user string, ok boolean", "user"), pattern)
        stream.select(alert, uid="alerts", schema="user string, first long, last long").sink_to(
            TableSink("out"), uid="o"
        )

    rows = three_ways(define, logins)["out"]
    assert [(row["first"], row["last"]) for row in rows if row["user"] == "u0"] == [(3000, 5000), (4000, 6000)]
    assert len(rows) == 2 * 7


def test_a_small_payment_directly_before_a_large_one_is_found() -> None:
    amounts = [0.5, 600.0, 20.0, 0.9, 3.0, 700.0, 0.1, 501.0]
    payments = spread({"amount": amount, "at": 1000 * n} for n, amount in enumerate(amounts))
    pattern = Pattern.begin("small").where(lambda r: r["amount"] < 1).next("large").where(lambda r: r["amount"] > 500)

    def define(env: StreamEnvironment, source: ListSource) -> None:
        stream = CEP.pattern(keyed(env, source, "user string, amount double", "user"), pattern)
        frauds = stream.flat_select(
            lambda match: match["large"], uid="fraud", schema="user string, amount double, at long"
        )
        frauds.sink_to(TableSink("out"), uid="o")

    rows = three_ways(define, payments)["out"]
    assert {row["amount"] for row in rows if row["user"] == "u3"} == {600.0, 501.0}
    assert len(rows) == 2 * 7


def test_login_then_order_then_pay_are_found_in_a_row() -> None:
    what = ["login", "order", "pay", "login", "look", "order", "pay", "order", "pay", "login", "order", "pay"]
    events = spread({"what": one, "at": 1000 * n} for n, one in enumerate(what))
    pattern = Pattern.begin("login").where(is_("login")).next("order").where(is_("order")).next("pay").where(is_("pay"))

    def define(env: StreamEnvironment, source: ListSource) -> None:
        stream = CEP.pattern(keyed(env, source, "user string, what string", "user"), pattern)
        found = stream.flat_select(
            lambda match: match["pay"], uid="brushing", schema="user string, what string, at long"
        )
        found.sink_to(TableSink("out"), uid="o")

    rows = three_ways(define, events)["out"]
    assert sorted(row["at"] for row in rows if row["user"] == "u6") == [2000, 11000]


UNPAID = OutputTag("unpaid", "order long, due long")


class Paid(PatternProcessFunction):
    def process_match(self, match: Match, context: MatchContext) -> Iterable[Any]:
        yield {"order": context.get_current_key(), "paid": context.timestamp()}

    def process_timed_out_match(self, match: Match, context: MatchContext) -> Iterable[Any]:
        yield UNPAID, {"order": match["order"][0]["order"], "due": context.timestamp()}


def define_unpaid(env: StreamEnvironment, source: ListSource) -> None:
    pattern = Pattern.begin("order").where(is_("order")).followed_by("pay").where(is_("pay")).within("15 min")
    paid = CEP.pattern(keyed(env, source, "order long, what string", "order"), pattern)
    paid_stream = paid.process(Paid(), uid="paid", schema="order long, paid long")
    paid_stream.sink_to(TableSink("paid"), uid="o")
    paid_stream.get_side_output(UNPAID).sink_to(TableSink("unpaid"), uid="u")


MINUTE = 60_000


def orders(pays_after: Sequence[int | None]) -> list[Any]:
    """Order n is made in minute n, and paid so many minutes later."""
    made = [{"order": n, "what": "order", "at": n * MINUTE} for n in range(len(pays_after))]
    paid = [
        {"order": n, "what": "pay", "at": (n + after) * MINUTE}
        for n, after in enumerate(pays_after)
        if after is not None
    ]
    return sorted([*made, *paid], key=lambda row: row["at"])


def test_orders_that_are_not_paid_in_fifteen_minutes_go_to_a_side_output() -> None:
    """Order 1 is paid in the last minute, order 2 when its time is just over, order 3 never."""
    tables = three_ways(define_unpaid, orders([3, 14, 15, None, 0, 40]), tables=("paid", "unpaid"))
    assert {row["order"]: row["paid"] // MINUTE for row in tables["paid"]} == {0: 3, 1: 15, 4: 4}
    assert {row["order"]: row["due"] // MINUTE for row in tables["unpaid"]} == {2: 17, 3: 18, 5: 20}


def rising(record: Row, context: ConditionContext) -> bool:
    """Warmer than the one before in the same partial match."""
    before = [*context.events_for_pattern("first"), *context.events_for_pattern("rising")]
    return bool(record["celsius"] > before[-1]["celsius"])


def a_second(record: Row, context: ConditionContext) -> bool:
    (first,) = context.events_for_pattern("first")
    return bool(rising(record, context) and record["at"] - first["at"] >= 1000)


def test_a_temperature_that_rises_for_a_second_is_found() -> None:
    """Readings come every 250 ms. Skipping past the last one finds each second once."""
    celsius = [20, 21, 22, 23, 24, 23, 24, 25, 26, 25, 26, 27, 28, 29]
    readings = spread({"celsius": float(value), "at": 250 * n} for n, value in enumerate(celsius))
    skip = AfterMatchSkipStrategy.skip_past_last_event()
    pattern = Pattern.begin("first", skip).next("rising").where(rising).one_or_more().consecutive()
    pattern = pattern.next("second").where(a_second).within("2 s")

    def define(env: StreamEnvironment, source: ListSource) -> None:
        stream = CEP.pattern(keyed(env, source, "user string, celsius double", "user"), pattern)
        warned = stream.select(
            lambda match: {"user": match["first"][0]["user"], "since": match["first"][0]["at"]},
            uid="warm",
            schema="user string, since long",
        )
        warned.sink_to(TableSink("out"), uid="o")

    rows = three_ways(define, readings)["out"]
    assert [row["since"] for row in rows if row["user"] == "u2"] == [0, 9 * 250]


class EvenZeros(KeyedProcessFunction):
    """The seeds' machine with two states: are the zeros of a text so far an even number?"""

    def open(self, context: RuntimeContext) -> None:
        self._odd = context.get_state(ValueStateDescriptor("odd", "boolean"))

    def process_element(self, value: Row, context: ProcessContext) -> list[Row]:
        odd = bool(self._odd.value()) != (value["digit"] == "0")
        self._odd.update(odd)
        return [{"user": value["user"], "at": value["at"], "even": not odd}]


def test_the_machine_that_counts_zeros_is_a_process_function_with_one_bit_of_state() -> None:
    digits = spread({"digit": digit, "at": n} for n, digit in enumerate("1001010"))

    def define(env: StreamEnvironment, source: ListSource) -> None:
        texts = keyed(env, source, "user string, digit string", "user")
        even = texts.process(EvenZeros(), uid="zeros", schema="user string, at long, even boolean")
        even.sink_to(TableSink("out"), uid="o")

    rows = three_ways(define, digits)["out"]
    assert [row["even"] for row in rows if row["user"] == "u5"] == [True, False, True, True, False, False, True]


# --- time ---

LATE = OutputTag("late", "user string, what string, at long")


def pairs(comparator: Any = None) -> Callable[[StreamEnvironment, ListSource], None]:
    """A job that looks for a directly followed by b, with late records aside."""

    def define(env: StreamEnvironment, source: ListSource) -> None:
        pattern = Pattern.begin("a").where(is_("a")).next("b").where(is_("b"))
        stream = CEP.pattern(keyed(env, source, "user string, what string", "user", 10), pattern, comparator)
        found = stream.side_output_late_data(LATE).select(
            lambda match: {"first": match["a"][0]["at"], "last": match["b"][0]["at"]}, "pairs", "first long, last long"
        )
        found.sink_to(TableSink("out"), uid="o")
        found.get_side_output(LATE).sink_to(TableSink("late"), uid="l")

    return define


def events(text: str) -> list[Any]:
    """Returns the records of a text such as "a@3 b@1"."""
    found = (one.partition("@") for one in text.split())
    return [{"user": "u", "what": what, "at": int(at)} for what, _, at in found]


def out(define: Callable[[StreamEnvironment, ListSource], None], items: Sequence[Any], table: str = "out") -> list[Any]:
    return run(lambda env: define(env, ListSource(items))).rows(table)


def test_records_are_taken_in_the_order_of_event_time() -> None:
    """b arrives before a and is later: it is found. x arrives between them and is earlier: it does no harm."""
    assert out(pairs(), events("b@5 x@3 a@4")) == [{"first": 4, "last": 5}]


def test_a_late_record_goes_to_the_side_output_and_is_in_no_match() -> None:
    """The bound is 10 ms, and a watermark is sent with each batch: a record at the watermark is late."""
    result = run(lambda env: pairs()(env, ListSource([*events("a@5 x@100"), Checkpoint(), *events("b@6 a@101 b@102")])))
    assert result.rows("out") == [{"first": 101, "last": 102}]
    assert [row["at"] for row in result.rows("late")] == [6]


def test_a_record_at_the_watermark_is_late_and_one_directly_after_it_is_not() -> None:
    """The watermark is 100 - 10 - 1 ms."""
    items = [*events("x@100"), Checkpoint(), *events("b@89 a@90 b@91")]
    result = run(lambda env: pairs()(env, ListSource(items)))
    assert result.rows("out") == [{"first": 90, "last": 91}]
    assert [row["at"] for row in result.rows("late")] == [89]


class Times(PatternProcessFunction):
    def process_match(self, match: Match, context: MatchContext) -> Iterable[Any]:
        yield {"event": context.timestamp(), "clock": context.current_processing_time()}


def test_a_condition_and_a_match_function_are_told_event_time_and_processing_time() -> None:
    """Event time is that of the record in question, and not of the first one of the match; the clock is far ahead."""
    asked: list[tuple[int, int, int]] = []

    def second(record: Row, context: ConditionContext) -> bool:
        asked.append((record["at"], context.timestamp(), context.current_processing_time()))
        return bool(record["what"] == "b")

    pattern = Pattern.begin("a").where(is_("a")).followed_by("b").where(second).within(100)
    stream = keyed(StreamEnvironment(), ListSource([]), "user string, what string", "user")
    found = operator(CEP.pattern(stream, pattern).process(Times(), uid="found", schema="event long, clock long"))
    clock, collected = found.context.clock, Collected()
    assert isinstance(clock, FakeClock)
    began_ms = clock.wall_ms()
    rows = [{**row, EVENT_TIME: row["at"]} for row in events("a@1 x@5 b@9")]
    found.process(pa.RecordBatch.from_pylist(rows), collected)
    for watermark_ms in (1, 5, 9):
        clock.pass_ms(1_000)
        found.on_watermark(watermark_ms, collected)
        while found.work(1, collected):
            pass
    assert asked == [(5, 5, began_ms + 2_000), (9, 9, began_ms + 3_000)]
    assert [(row["event"], row["clock"]) for row in collected.rows] == [(9, began_ms + 3_000)]


def test_ties_are_taken_as_they_arrive_or_as_the_comparator_says() -> None:
    items = events("b@5 a@5")
    assert out(pairs(), items) == []
    assert out(pairs(lambda left, right: (left["what"] > right["what"]) - (left["what"] < right["what"])), items) == [
        {"first": 5, "last": 5}
    ]


def test_records_that_are_late_or_without_a_time_are_counted_if_nobody_wants_them() -> None:
    def define(env: StreamEnvironment) -> None:
        rows = [*events("a@5 x@100"), Checkpoint(), *events("b@6"), {"user": "u", "what": "a", "at": None}]
        stream = keyed(env, ListSource(rows), "user string, what string", "user")
        pattern = Pattern.begin("b").where(is_("b"))
        found = CEP.pattern(stream, pattern).flat_select(
            lambda match: match["b"], "only", "user string, what string, at long"
        )
        found.sink_to(TableSink("out"), uid="o")

    result = run(define)
    assert result.rows("out") == []
    assert result.master.ledger["late:only"] == 1
    assert result.master.ledger["untimed:only"] == 1


# --- what a snapshot holds, and changed jobs ---


def stopped_within(text: str, pattern: Pattern, schema: str = "user string, what string") -> LocalRun:
    """Runs a job over these records, one batch each, until a checkpoint behind them; the stream does not end there."""
    return run(job_of(text, pattern, schema), until=lambda so_far: so_far.epochs == 1)


def job_of(
    text: str, pattern: Pattern, schema: str = "user string, what string"
) -> Callable[[StreamEnvironment], None]:
    before, _, after = text.partition("|")
    source = ListSource([*events(before), Checkpoint(), *events(after)])

    def define(env: StreamEnvironment) -> None:
        stream = CEP.pattern(keyed(env, source, schema, "user"), pattern)
        found = stream.select(
            lambda match: {"match": " ".join(str(row["at"]) for rows in match.values() for row in rows)},
            uid="found",
            schema="match string",
        )
        found.sink_to(TableSink("out"), uid="o")

    return define


ABC = (
    Pattern.begin("a").where(is_("a")).followed_by_any("b").where(is_("b")).times(1, 3).allow_combinations()
    .followed_by("c").where(is_("c")).within(100)
)  # fmt: skip


def test_a_snapshot_holds_each_record_once_however_many_partial_matches_share_it() -> None:
    """Of 1 a and 3 b there are 8 partial matches. The record at 50 has not been reached by the watermark."""
    stopped = stopped_within("a@1 b@2 b@3 b@4 x@50 | c@60", ABC)
    taken = stopped.state("found", "pattern: taken")
    assert sorted((row["_time_ms"], row["_record"]["what"]) for row in taken) == [
        (1, "a"),
        (2, "b"),
        (3, "b"),
        (4, "b"),
    ]
    assert len(stopped.state("found", "pattern: matches")) == 8
    assert [row["_record"]["at"] for row in stopped.state("found", "pattern: waiting")] == [50]
    rows = run(job_of("a@1 b@2 b@3 b@4 x@50 | c@60", ABC), parallelism=3, after=stopped).rows("out")
    assert sorted(row["match"] for row in rows) == sorted(
        ["1 2 60", "1 3 60", "1 4 60", "1 2 3 60", "1 2 4 60", "1 3 4 60", "1 2 3 4 60"]
    )


def test_records_are_numbered_on_after_a_restore() -> None:
    """Of five records two are in the snapshot. Two b with the same number would be one match."""
    pattern = Pattern.begin("a").where(is_("a")).followed_by_any("b").where(is_("b")).followed_by("c").where(is_("c"))
    text = "a@1 x@2 x@3 x@4 b@5 x@6 | x@7 b@8 c@9"
    rows = run(job_of(text, pattern), after=stopped_within(text, pattern)).rows("out")
    assert sorted(row["match"] for row in rows) == ["1 5 9", "1 8 9"]


def test_the_record_directly_after_a_restore_is_the_next_one() -> None:
    """The snapshot holds a as the newest record: b, which waits for the watermark, comes directly after it.

    In the last one x has come between them before the snapshot.
    """
    pattern = Pattern.begin("a").where(is_("a")).not_next("b").where(is_("b")).followed_by("c").where(is_("c"))
    for text, wanted in (("a@1 b@2 | c@3", []), ("a@1 x@2 | b@3 c@4", ["1 4"]), ("a@1 x@2 b@3 | c@4", ["1 4"])):
        rows = run(job_of(text, pattern), after=stopped_within(text, pattern)).rows("out")
        assert [row["match"] for row in rows] == wanted


@pytest.mark.parametrize("key", ["_number", "_time_ms", "_record", "_link", "_open"])
def test_a_key_may_be_called_as_a_column_of_the_snapshot_is(key: str) -> None:
    before, after = (
        [{key: 7, "what": row["what"], "at": row["at"]} for row in events(text)] for text in ("a@1 b@2 x@50", "c@60")
    )
    source = ListSource([*before, Checkpoint(), *after])

    def job(env: StreamEnvironment) -> None:
        found = CEP.pattern(keyed(env, source, f"{key} long, what string", key), ABC)
        ends = found.flat_select(lambda match: match["c"], "found", f"{key} long, what string, at long")
        ends.sink_to(TableSink("out"), uid="o")

    stopped = run(job, until=lambda so_far: so_far.epochs == 1)
    assert {row[key] for part in PATTERN_PARTS for row in stopped.state("found", part)} == {7}
    assert run(job, after=stopped).rows("out") == [{key: 7, "what": "c", "at": 60}]


@pytest.mark.promise("C3")
def test_a_snapshot_of_waiting_records_does_not_change_with_those_that_come_later() -> None:
    schema = pa.schema([("user", pa.string()), ("what", pa.string()), ("at", pa.int64()), (EVENT_TIME, pa.int64())])
    stream = keyed(StreamEnvironment(), ListSource([]), "user string, what string", "user")
    built = operator(CEP.pattern(stream, Pattern.begin("a")).select(lambda match: match["a"][0], uid="found"))
    collected = Collected()
    batch = pa.RecordBatch.from_pylist([{**row, EVENT_TIME: row["at"]} for row in events("a@5")], schema=schema)
    built.process(batch, collected)
    snapshot = built.snapshot(1)
    assert snapshot is not None
    built.process(batch, collected)
    (waiting,) = [part for part in snapshot.parts if part.name == "pattern: waiting"]
    assert waiting.table().num_rows == 1


def test_what_no_partial_match_needs_is_dropped() -> None:
    """The time of a and b is over at 101. The pattern without a limit keeps a, and drops each b behind it."""
    over = stopped_within("a@1 b@2 x@101 x@102 |", ABC)
    assert over.state("found", "pattern: taken") == over.state("found", "pattern: matches") == []
    pair = Pattern.begin("a").where(is_("a")).followed_by_any("b").where(is_("b"))
    kept = stopped_within("a@1 b@2 x@3 b@4 x@5 x@6 |", pair)
    assert [row["_record"]["at"] for row in kept.state("found", "pattern: taken")] == [1]


def test_each_partial_match_has_a_timer_for_the_end_of_its_time() -> None:
    pair = Pattern.begin("a").where(is_("a")).followed_by("b").where(is_("b")).within(10)
    stopped = stopped_within("a@1 a@5 x@6 |", pair)
    assert sorted(row["_timer_ms"] for row in stopped.state("found", "event-time timers")) == [6, 11, 15]


def test_a_match_that_was_held_back_is_emitted_at_the_end() -> None:
    """The match of 2 and 3 waits for what the partial match that began with 1 becomes; after a restore as well."""

    def larger(record: Row, context: ConditionContext) -> bool:
        return bool(record["what"] > context.events_for_pattern("first")[0]["what"])

    skip = AfterMatchSkipStrategy.skip_past_last_event()
    pattern = Pattern.begin("first", skip).followed_by("larger").where(larger)
    text = "m@1 a@2 b@3 x@4 | y@5"
    stopped = run(job_of("m@1 a@2 b@3 c@4 c@5 | c@6", pattern), until=lambda so_far: so_far.epochs == 1)
    assert any(row["_held"] for row in stopped.state("found", "pattern: matches"))
    assert run(job_of("m@1 a@2 b@3 c@4 c@5 | c@6", pattern), after=stopped).rows("out") == [{"match": "2 3"}]
    assert run(job_of(text, pattern)).rows("out") == [{"match": "1 4"}], "the match of 2 and 3 is discarded"
    over = stopped_within("m@1 a@2 b@3 x@4 w@5 w@6 |", pattern)
    assert [row["_timer_ms"] for row in over.state("found", "event-time timers")] == [6], "none for the end of time"


def test_a_changed_pattern_is_refused_and_a_changed_condition_is_not() -> None:
    text = "a@1 b@2 x@50 | c@60"
    stopped = stopped_within(text, ABC)
    with pytest.raises(JobFailed) as refused:
        run(job_of(text, ABC.within(90)), after=stopped)
    assert "found: pattern: was begin('a') followed_by_any('b').times(1, 3).allow_combinations" in str(refused.value)
    assert "within 90 ms" in str(refused.value) and "set it back, or give it a uid of its own" in str(refused.value)
    other = (
        Pattern.begin("a").where(is_("a")).followed_by_any("b").where(is_("b")).times(1, 3).allow_combinations()
        .followed_by("c").where(is_("nothing")).within(100)
    )  # fmt: skip
    assert run(job_of(text, other), after=stopped).rows("out") == []


def test_records_in_the_state_are_adapted_to_a_new_column() -> None:
    stopped = stopped_within("a@1 b@2 x@50 | c@60", ABC)
    wider = job_of("a@1 b@2 x@50 | c@60", ABC, "user string, what string, more long")
    assert [row["match"] for row in run(wider, after=stopped).rows("out")] == ["1 2 60"]


def test_an_error_in_a_condition_names_the_author_s_line() -> None:
    rows = events("a@1")
    env = StreamEnvironment()
    pattern = Pattern.begin("a").where(lambda record: record["missing"] > 1)
    stream = CEP.pattern(keyed(env, ListSource(rows), "user string, what string", "user"), pattern)
    found = operator(stream.select(lambda match: {}, "found", "match string"))
    found.process(pa.RecordBatch.from_pylist([{**row, EVENT_TIME: row["at"]} for row in rows]), Collected())
    found.on_watermark(5, Collected())
    with pytest.raises(UserFunctionError, match=r"the pattern at\(1\) of event time.*KeyError: 'missing'") as failed:
        found.work(1, Collected())
    assert "test_patterns.py:" in failed.value.raised.line
    assert 'record["missing"] > 1' in failed.value.raised.traceback


@pytest.mark.promise("A11")
def test_a_function_may_change_lists_in_the_records_of_a_match_though_other_matches_share_them() -> None:
    rows = [{"k": "a", "xs": [n], "ts": n} for n in range(3)]

    def both(match: Match) -> dict[str, Any]:
        match["one"][0]["xs"].extend(match["two"][0]["xs"])
        return match["one"][0]

    def job(env: StreamEnvironment) -> None:
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("ts")
        stream = env.from_source(ListSource(rows), "k string, xs array<long>, ts long", uid="in")
        keyed = stream.assign_timestamps_and_watermarks(strategy).key_by("k")
        pairs = Pattern.begin("one").followed_by_any("two")
        CEP.pattern(keyed, pairs).select(both, uid="pairs").sink_to(TableSink("out"), uid="out")

    assert sorted(row["xs"] for row in run(job).rows("out")) == [[0, 1], [0, 2], [1, 2]]
