"""Joins advertisements that were shown with the clicks on them within one minute."""

import polars as pl

from engine.api import StreamEnvironment, WatermarkStrategy
from engine.connectors.table import TableSink

BEGIN = 1_700_000_000
SHOWN = [(1, "shoes", 0), (2, "books", 10), (3, "tea", 20), (4, "books", 100)]
CLICKS = [(1, 15), (2, 5), (1, 61), (3, 80), (2, 30), (5, 40), (4, 101)]


def job(env: StreamEnvironment) -> None:
    ads = [{"ad": ad, "what": what, "at": 1000 * (BEGIN + at)} for ad, what, at in SHOWN]
    clicked = [{"ad": ad, "at": 1000 * (BEGIN + at)} for ad, at in CLICKS]
    shown = env.from_elements(ads, "ad long, what string, at long", uid="shown")
    clicks = env.from_elements(clicked, "ad long, at long", uid="clicks")
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("2 minutes").with_timestamps("at")
    shown = shown.assign_timestamps_and_watermarks(strategy)
    clicks = clicks.assign_timestamps_and_watermarks(strategy)
    joined = (
        shown.key_by("ad")
        .interval_join(clicks.key_by("ad"))
        .between(0, "1 minute")
        .select("ad", "what", "at", "at_right", uid="joined")
        .select("ad", "what", shown=pl.col("at"), clicked=pl.col("at_right"))
    )
    joined.sink_to(TableSink("joined"), uid="out")
