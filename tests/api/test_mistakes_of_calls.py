"""More mistakes of a newcomer who knows PyFlink and Spark: each message says what to write instead."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import polars as pl
import pytest

from engine.api import (
    CEP,
    FAILED,
    ExponentialDelay,
    FailureRate,
    FixedDelay,
    JobError,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapFunction,
    MapStateDescriptor,
    OutputTag,
    Pattern,
    ProcessContext,
    StateTtlConfig,
    StreamEnvironment,
    WatermarkStrategy,
    count,
    top_n,
)
from engine.connectors.table import TableSink
from engine.core.ddl import ddl_of, parse_ddl
from engine.process.loading import find_job
from engine.testing import JobFailed, ListSource, run
from tests.api.streams.building import TEN_SECONDS, timed, views


class Misspelled(MapFunction):
    def mapp(self, value: dict[str, Any]) -> dict[str, Any]:
        return value


class Camel(KeyedProcessFunction):
    def processElement(self, value: dict[str, Any], context: ProcessContext) -> Iterable[Any]:
        return [value]


class OnlyFirst(KeyedCoProcessFunction):
    def process_element1(self, value: dict[str, Any], context: ProcessContext) -> Iterable[Any]:
        return [value]


def _any(value: Any) -> Any:
    """What mypy would refuse."""
    return value


def _keyed() -> Any:
    return _any(timed().key_by("app_id"))


def _pattern() -> Any:
    return _any(Pattern.begin("a").where(lambda row: True))


RULES = MapStateDescriptor("rules", "string", "long")
LATE = OutputTag("late", "n long")
MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "a function without its method": (
        lambda: views().map(Misspelled()),
        "Misspelled has no map: write def map(self, value)",
    ),
    "a method in camel case": (
        lambda: _keyed().process(Camel(), uid="p"),
        "Camel has no process_element: write def process_element(self, value, context)",
    ),
    "one method of two": (
        lambda: (keyed := _keyed()).connect(keyed).process(OnlyFirst(), uid="c"),
        "OnlyFirst has no process_element2: write def process_element2(self, value, context)",
    ),
    "a column by number": (lambda: _keyed().sum(1, uid="s"), "sum takes the name of a column, not 1"),
    "columns in a list": (
        lambda: views().select(_any(["app_id", "bytes"])),
        "not a list: write its columns one by one, as in select('app_id', 'bytes')",
    ),
    "keys in a list": (
        lambda: views().key_by(_any(["app_id", "bytes"])),
        "not a list: write its columns one by one, as in key_by('app_id', 'bytes')",
    ),
    "a key as an expression": (lambda: views().key_by(_any(pl.col("app_id"))), "key_by('key')"),
    "where with a function": (
        lambda: views().where(_any(lambda row: True)),
        "not a lambda; for a function of a record write filter(function)",
    ),
    "top_n the wrong way round": (lambda: top_n(_any(3), _any("bytes")), "as in top_n('bytes', 3)"),
    "a tag that is a text": (
        lambda: _keyed().window(TEN_SECONDS).side_output_late_data("late"),
        'OutputTag("late", "app_id string, user_id long, bytes long, ts timestamp")',
    ),
    "late records that are not asked for": (
        lambda: _keyed().window(TEN_SECONDS).aggregate(n=count(), uid="w").get_side_output(LATE),
        "call side_output_late_data(TAG) before aggregate, reduce or process",
    ),
    "dead letters that are not asked for": (
        lambda: views().map(lambda row: row).get_side_output(FAILED),
        'call on_error("dead_letter") behind map(...), and get_side_output on what it returns',
    ),
    "on_error behind key_by": (lambda: _keyed().on_error("skip"), "call on_error before key_by"),
    "lateness behind the window": (
        lambda: _any(_keyed().window(TEN_SECONDS).aggregate(n=count(), uid="w")).allowed_lateness("1 s"),
        "call allowed_lateness before aggregate, as in window(...).allowed_lateness(...)",
    ),
    "a restart strategy with texts": (lambda: FixedDelay(_any("3")), "FixedDelay: attempts is a number, not '3'"),
    "a restart strategy with durations": (
        lambda: FixedDelay(3, _any("1 s")),
        "FixedDelay: delay_ms is a number of milliseconds, not '1 s', as in 10_000",
    ),
    "a rate with durations": (
        lambda: FailureRate(3, _any("5 min")),
        "FailureRate: interval_ms is a number of milliseconds, not '5 min', as in 10_000",
    ),
    "growing delays with durations": (
        lambda: ExponentialDelay(_any("1 s")),
        "ExponentialDelay: initial_ms is a number of milliseconds, not '1 s', as in 10_000",
    ),
    "a time to live without its builder": (
        lambda: StateTtlConfig(_any("1 h")),
        "write StateTtlConfig.new_builder('1 h').build()",
    ),
    "a pattern in camel case": (lambda: _pattern().followedBy("b"), "it is called followed_by"),
    "a pattern as a sink": (
        lambda: _any(CEP.pattern(_keyed(), _pattern().within("1 s"))).sink_to(TableSink("t"), uid="t"),
        "end the pattern with select(function, uid=...), as in CEP.pattern(...).select(...).sink_to(...)",
    ),
    "a broadcast as a sink": (
        lambda: (stream := _any(timed())).key_by("app_id").connect(stream.broadcast(RULES)).sink_to(TableSink("t")),
        "end it with process(function, uid=...), as in connect(...).process(...).sink_to(...)",
    ),
    "a job in a package": (lambda: find_job("assets.pageviews:job"), "write assets.pageviews.job:job"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_message_says_what_to_write(mistake: str) -> None:
    do, text = MISTAKES[mistake]
    with pytest.raises((JobError, ValueError)) as caught:
        do()
    assert text in str(caught.value)


def _run(job: Callable[[StreamEnvironment], object]) -> str:
    with pytest.raises((JobFailed, JobError)) as caught:
        run(_any(job))
    return str(caught.value)


def test_classes_that_have_makers_say_which() -> None:
    assert "write WatermarkStrategy.for_bounded_out_of_orderness(" in _run(lambda env: _any(WatermarkStrategy)())
    assert 'write Pattern.begin("name")' in _run(lambda env: _any(Pattern)("a"))


def test_a_field_that_a_list_source_does_not_declare_is_an_error() -> None:
    def job(env: StreamEnvironment) -> None:
        env.from_source(ListSource([{"m": 1}]), "n long", uid="numbers").print()

    assert "item 0 has the field 'm', which the schema (n int64) does not have" in _run(job)


def test_a_select_of_a_pattern_names_the_authors_line() -> None:
    def job(env: StreamEnvironment) -> None:
        numbers = env.from_elements([{"n": 1, "at": 1000}], "n long, at long")
        keyed = numbers.assign_timestamps_and_watermarks(
            WatermarkStrategy.for_monotonous_timestamps().with_timestamps("at")
        ).key_by("n")
        CEP.pattern(keyed, _pattern().within("1 s")).select(lambda match: {"m": 1}, uid="c").print()

    assert "operator 'c' (test_mistakes_of_calls.py, line" in _run(job)


@pytest.mark.parametrize(
    "ddl", ["a long, b string not null", "a array<struct<x int, y decimal(3,1)>>, m map<string, timestamp_ntz>"]
)
def test_a_schema_that_a_message_shows_can_be_declared(ddl: str) -> None:
    assert parse_ddl(ddl_of(parse_ddl(ddl))) == parse_ddl(ddl)
