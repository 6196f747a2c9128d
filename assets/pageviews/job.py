"""Page views and bytes per app, every ten seconds of event time."""

from assets.pageviews.source import PageViews
from engine.api import Aggregate, StreamEnvironment, TumblingEventTimeWindows, WatermarkStrategy, count, maximum, total
from engine.connectors.generator import BUFFER_TIMEOUT_MS
from engine.connectors.table import TableSink

VIEW = "app_id string, user_id long, bytes long, ts timestamp"
NUMBERED_VIEW = f"view_id long, {VIEW}"


def job(env: StreamEnvironment) -> None:
    _count_views(env, pv=count(), bytes=total("bytes"))


def job_v2(env: StreamEnvironment) -> None:
    """The next version, to try an upgrade with: the table also gets the size of the largest view."""
    _count_views(env, pv=count(), bytes=total("bytes"), largest=maximum("bytes"))


def _count_views(env: StreamEnvironment, **aggregates: Aggregate) -> None:
    rows = env.params.get("rows", 0, "page views in all; 0: no end")
    rate = env.params.get("rate", 200_000, "page views per second; 0: as fast as possible")
    interval = env.params.get("interval", "1 s", "time between checkpoints")
    buffer_ms = env.params.get("buffer_ms", BUFFER_TIMEOUT_MS, "how long views are gathered into one batch")
    raw = env.params.get("raw", False, "also write every view, with its number, to the table 'views' (for drills)")
    env.enable_checkpointing(interval=interval)
    views = env.from_source(
        PageViews(splits=2, rows=rows or None, rate=rate or None, buffer_timeout_ms=buffer_ms),
        schema=NUMBERED_VIEW if raw else VIEW,
        uid="views",
        digest=raw,
    ).assign_timestamps_and_watermarks(WatermarkStrategy.for_bounded_out_of_orderness("2 s").with_timestamps("ts"))
    if raw:
        views.sink_to(TableSink("views"), uid="raw")
    (
        views.key_by("app_id")
        .window(TumblingEventTimeWindows.of("10 s"))
        .aggregate(**aggregates, uid="pv")
        .sink_to(TableSink("pv"), uid="out")
    )
