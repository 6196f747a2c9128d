"""Counts the clicks on each page in windows of ten seconds. Clicks that come too late are dropped."""

import polars as pl

from engine.api import StreamEnvironment, TumblingEventTimeWindows, WatermarkStrategy, count
from engine.connectors.table import TableSink
from tests.ports.source import OneByOne

BEGIN = 1_700_000_000
BATCHES = [
    [("home", 1), ("cart", 5)],
    [("home", 12), ("cart", 4)],
    [("home", 25)],
    [("home", 38)],
    [("cart", 3), ("home", 33)],
    [("cart", 45)],
]


def job(env: StreamEnvironment) -> None:
    source = OneByOne([{"page": page, "at": 1000 * (BEGIN + at)} for batch in BATCHES for page, at in batch])
    clicks = env.from_source(source, "page string, at long", uid="clicks")
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("5 seconds").with_timestamps("at")
    counts = (
        clicks.assign_timestamps_and_watermarks(strategy)
        .key_by("page")
        .window(TumblingEventTimeWindows.of("10 seconds"))
        .aggregate(clicks=count(), uid="counts")
        .select("page", "clicks", start=pl.col("window_start").dt.epoch("ms"))
    )
    counts.sink_to(TableSink("counts"), uid="out")
