"""Page views and bytes per app, every ten seconds of event time."""

from assets.pageviews.source import PageViews
from engine.api import StreamEnvironment, TumblingEventTimeWindows, WatermarkStrategy, count, total
from engine.connectors.table import TableSink


def job(env: StreamEnvironment) -> None:
    rows = env.params.get("rows", 0, "page views in all; 0: no end")
    rate = env.params.get("rate", 200_000, "page views per second; 0: as fast as possible")
    interval = env.params.get("interval", "1 s", "time between checkpoints")
    env.enable_checkpointing(interval=interval)
    views = env.from_source(
        PageViews(splits=2, rows=rows or None, rate=rate or None),
        schema="app_id string, user_id long, bytes long, ts timestamp",
        uid="views",
    )
    (
        views.assign_timestamps_and_watermarks(
            WatermarkStrategy.for_bounded_out_of_orderness("2 s").with_timestamps("ts")
        )
        .key_by("app_id")
        .window(TumblingEventTimeWindows.of("10 s"))
        .aggregate(pv=count(), bytes=total("bytes"), uid="pv")
        .sink_to(TableSink("pv"), uid="out")
    )
