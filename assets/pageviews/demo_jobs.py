"""The three jobs of the demo: exactly once, at least once with a slow source, and without checkpoints."""

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from assets.pageviews.source import page_views
from engine.api import (
    CheckpointingMode,
    DataStream,
    FixedDelay,
    StreamEnvironment,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    count,
    total,
)
from engine.connectors.generator import Columns, GeneratorSource
from engine.connectors.table import TableSink
from engine.core.sources import SourceContext, SplitReader

SCHEMA = "app_id string, user_id long, bytes long, ts timestamp"
EVENT_RATE = 20_000
WINDOW = "10 s"


@dataclass(frozen=True)
class Views:
    """Makes page views. Each batch of the second split takes `slow_ms`, so that its barriers come late."""

    slow_ms: int = 0

    def __call__(self, n: np.ndarray) -> Columns:
        if self.slow_ms and n[0] % 2:
            time.sleep(self.slow_ms / 1000)
        return page_views(n, EVENT_RATE)


class Feed(GeneratorSource):
    """A live feed of page views: it begins when it is first opened, and its rate does not wait for readers."""

    def __init__(self, started: Path, rows: int, rate: float) -> None:
        super().__init__(Views(), 2, rows, rate, live_since_ms=0)
        self._started = started

    def reader(self, split: str, position: Any, context: SourceContext) -> SplitReader:
        with contextlib.suppress(FileExistsError):
            self._started.touch(exist_ok=False)
        self._live_since_ms = self._started.stat().st_mtime_ns // 1_000_000
        return super().reader(split, position, context)


def _views(env: StreamEnvironment, slow_ms: int = 0, live: bool = False) -> DataStream:
    rows = env.params.get("rows", 1_500_000, "page views in all")
    rate = env.params.get("rate", 150_000, "page views per second")
    feed = Path(env.params.get("feed", ".weir/feed", "a file that remembers when the feed began"))
    source = Feed(feed, rows, rate) if live else GeneratorSource(Views(slow_ms), 2, rows, rate)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("2 s").with_timestamps("ts")
    return env.from_source(source, SCHEMA, uid="views").assign_timestamps_and_watermarks(strategy)


def _count(views: DataStream) -> None:
    windows = views.key_by("app_id").window(TumblingEventTimeWindows.of(WINDOW))
    windows.aggregate(pv=count(), bytes=total("bytes"), uid="pv").sink_to(TableSink("pv"), uid="out")


def exactly_once(env: StreamEnvironment) -> None:
    env.enable_checkpointing("1 s")
    _count(_views(env))


def at_least_once(env: StreamEnvironment) -> None:
    """Counts twice after a crash: records between the two barriers are in the snapshot, and are read again (D1)."""
    env.enable_checkpointing("1 s", mode=CheckpointingMode.AT_LEAST_ONCE)
    _count(_views(env, slow_ms=100))


def no_checkpoints(env: StreamEnvironment) -> None:
    """Loses rows at a crash: there is no snapshot to restore, and the live feed does not repeat records."""
    env.set_restart_strategy(FixedDelay(attempts=3, delay_ms=500))
    _count(_views(env, live=True))
