"""The three items with the most views of the last hour, every five minutes.

A window of the last hour ends every five minutes. All of its counts have the same event time, just before its end, so
they meet again in one window of five minutes.
"""

from typing import Any

import polars as pl

from assets.hot_items.source import VIEWS
from engine.api import SlidingEventTimeWindows, StreamEnvironment, TumblingEventTimeWindows, count, top_n
from engine.connectors.table import TableSink

EVERY = "5 min"


def job(env: StreamEnvironment) -> None:
    hours = VIEWS.read(env).key_by("item").window(SlidingEventTimeWindows.of("1 h", EVERY))
    counted = hours.aggregate(views=count(), uid="views per item")
    ending = counted.select("item", "views", hour_end=pl.col("window_end")).key_by("hour_end")
    hottest = ending.window(TumblingEventTimeWindows.of(EVERY)).aggregate(top=top_n("item", 3, by="views"), uid="top")
    ranked = hottest.flat_map(by_rank, schema="hour_end timestamp, rank long, item long, views long")
    ranked.sink_to(TableSink("hottest"), uid="out")


def by_rank(hour: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"hour_end": hour["hour_end"], "rank": rank, **item} for rank, item in enumerate(hour["top"], 1)]
