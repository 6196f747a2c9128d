"""Event times, and the watermark that is computed from them: max seen timestamp - bound - 1 ms (B1)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

EVENT_TIME = "_event_time"
"""The hidden column that holds the event time of each record, from where it is assigned.

A record whose timestamp is null has no event time: it moves no watermark, and windows leave it out, as in Spark.
"""


@dataclass(frozen=True)
class EventTimeStrategy:
    """Says which column holds the event time, and how far the watermark stays behind the latest event time seen."""

    column: str
    bound_ms: int

    def watermark(self, max_seen_ms: int) -> int:
        return max_seen_ms - self.bound_ms - 1


def event_times(batch: pa.RecordBatch, column: str) -> pa.Array:
    """Returns a column as milliseconds since 1970; null where it is null.

    It holds timestamps of any unit, or integers in milliseconds.
    """
    values = batch.column(column)
    if pa.types.is_timestamp(values.type):
        ticks, unit = values.view(pa.int64()), values.type.unit
    else:
        ticks, unit = pc.cast(values, pa.int64()), "ms"
    if unit == "ms":
        return ticks
    missing = ticks.is_null().to_numpy(zero_copy_only=False) if ticks.null_count else None
    numbers: np.ndarray = (ticks.fill_null(0) if ticks.null_count else ticks).to_numpy()
    times = numbers * 1000 if unit == "s" else numbers // (1000 if unit == "us" else 1_000_000)
    return pa.array(times, mask=missing)


def latest(times: pa.Array) -> int | None:
    """Returns the highest event time; None if there is none."""
    if not times.null_count:
        return int(times.to_numpy().max()) if len(times) else None
    highest: int | None = pc.max(times).as_py()
    return highest


def with_event_times(batch: pa.RecordBatch, times: pa.Array) -> pa.RecordBatch:
    names = [name for name in batch.schema.names if name != EVENT_TIME]
    return batch.select(names).append_column(EVENT_TIME, times)


def described(schema: pa.Schema) -> str:
    """Writes a schema for messages, without the hidden event time column."""
    return ", ".join(f"{field.name} {field.type}" for field in schema if field.name != EVENT_TIME)
