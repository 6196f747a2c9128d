"""Sensors whose temperature rises for a second: each reading is above the one before, from `since` to `until`.

A rise that is found is over: the next one begins with a later reading.
"""

from datetime import timedelta
from typing import Any

from assets.rising_temperature.source import READINGS
from engine.api import CEP, AfterMatchSkipStrategy, ConditionContext, Match, Pattern, StreamEnvironment
from engine.connectors.table import TableSink

Reading = dict[str, Any]


def rising(reading: Reading, context: ConditionContext) -> bool:
    before = context.events_for_pattern("first") + context.events_for_pattern("rising")
    return bool(reading["celsius"] > before[-1]["celsius"])


def for_a_second(reading: Reading, context: ConditionContext) -> bool:
    first = context.events_for_pattern("first")[0]
    return reading["ts"] - first["ts"] >= timedelta(seconds=1) and rising(reading, context)


WARMER = (
    Pattern.begin("first", AfterMatchSkipStrategy.skip_past_last_event())
    .next("rising")
    .where(rising)
    .one_or_more()
    .consecutive()
    .next("last")
    .where(for_a_second)
    .within("2 s")
)


def rise(match: Match) -> Reading:
    first, last = match["first"][0], match["last"][0]
    return {
        "sensor": first["sensor"],
        "since": first["ts"],
        "until": last["ts"],
        "by": last["celsius"] - first["celsius"],
    }


def job(env: StreamEnvironment) -> None:
    found = CEP.pattern(READINGS.read(env).key_by("sensor"), WARMER)
    rises = found.select(rise, uid="rises", schema="sensor long, since timestamp, until timestamp, by double")
    rises.sink_to(TableSink("rises"), uid="out")
