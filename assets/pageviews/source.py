"""Page views that can be replayed: record n is a pure function of n."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from engine.connectors.generator import BUFFER_TIMEOUT_MS, Columns, GeneratorSource

START_US = 1_700_000_000_000_000
APPS = 20
EVENT_RATE = 10_000
_NAMES = pa.array([f"app{n + 1}" for n in range(APPS)])


class PageViews(GeneratorSource):
    """A source of page views. `event_rate` is their number per second of event time, at any speed of reading.

    The timestamp of every thirteenth view is up to two seconds earlier than its place in the stream.
    """

    def __init__(
        self,
        splits: int = 2,
        rows: int | None = None,
        rate: float | None = None,
        event_rate: int = EVENT_RATE,
        live_since_ms: int | None = None,
        buffer_timeout_ms: float = BUFFER_TIMEOUT_MS,
    ) -> None:
        super().__init__(
            lambda n: page_views(n, event_rate), splits, rows, rate, live_since_ms, buffer_timeout_ms=buffer_timeout_ms
        )


def page_views(n: np.ndarray, event_rate: int) -> Columns:
    """Returns the views with the numbers n. A job gets `view_id`, that number, if its schema has the column."""
    mixed = (n * 2654435761) & 0x7FFFFFFF
    late_us = np.where(n % 13 == 0, mixed % 2_000_000, 0)
    # Views are not spread evenly: low-numbered apps get more.
    app = np.minimum(mixed % APPS, (mixed >> 8) % APPS)
    return {
        "view_id": n,
        "app_id": _NAMES.take(pa.array(app)),
        "user_id": mixed % 100_003,
        "bytes": mixed % 1500 + 40,
        "ts": START_US + n * 1_000_000 // event_rate - late_us,
    }
