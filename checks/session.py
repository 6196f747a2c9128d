"""The Spark session of an audit or a comparison: the caller's, that of this process, or one for this purpose alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextlib.contextmanager
def session(given: SparkSession | None, log: Path, *, compiled: bool) -> Iterator[SparkSession]:
    """A session that is started here is stopped at the end. `log` gets Java's output."""
    from pyspark.sql import SparkSession

    from checks.spark import reading_session

    running = given or SparkSession.getActiveSession()
    if running is not None:
        yield running
        return
    started = reading_session("weir audit", compiled=compiled, log=log)
    try:
        yield started
    finally:
        started.stop()
