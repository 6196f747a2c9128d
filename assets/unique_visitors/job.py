"""Unique visitors and visits of each site, every hour."""

from assets.unique_visitors.source import VISITS
from engine.api import StreamEnvironment, TumblingEventTimeWindows, count, count_distinct
from engine.connectors.table import TableSink


def job(env: StreamEnvironment) -> None:
    hours = VISITS.read(env).key_by("site").window(TumblingEventTimeWindows.of("1 h"))
    visitors = hours.aggregate(visitors=count_distinct("user_id"), visits=count(), uid="visitors")
    visitors.sink_to(TableSink("visitors"), uid="out")
