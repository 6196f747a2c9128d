"""Event times, and the watermark that is computed from them: max seen timestamp - bound - 1 ms (B1)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from engine.core.errors import SchemaMismatch

EVENT_TIME = "_event_time"
"""The hidden column that holds the event time of each record, from where it is assigned."""


@dataclass(frozen=True)
class EventTimeStrategy:
    """Says which column holds the event time, and how far the watermark stays behind the latest event time seen."""

    column: str
    bound_ms: int

    def watermark(self, max_seen_ms: int) -> int:
        return max_seen_ms - self.bound_ms - 1


def event_times(batch: pa.RecordBatch, column: str, uid: str) -> np.ndarray:
    """Returns a column as milliseconds since 1970. It holds timestamps of any unit, or integers in milliseconds."""
    values = batch.column(column)
    if values.null_count:
        raise SchemaMismatch(f"operator {uid!r}: {values.null_count} records have no value in {column!r}")
    if pa.types.is_timestamp(values.type):
        ticks: np.ndarray = values.view(pa.int64()).to_numpy()
        unit = values.type.unit
        if unit == "ms":
            return ticks
        if unit == "s":
            return ticks * 1000
        return ticks // (1000 if unit == "us" else 1_000_000)
    times: np.ndarray = pc.cast(values, pa.int64()).to_numpy()
    return times


def with_event_times(batch: pa.RecordBatch, times: np.ndarray) -> pa.RecordBatch:
    names = [name for name in batch.schema.names if name != EVENT_TIME]
    return batch.select(names).append_column(EVENT_TIME, pa.array(times))


def described(schema: pa.Schema) -> str:
    """Writes a schema for messages, without the hidden event time column."""
    return ", ".join(f"{field.name} {field.type}" for field in schema if field.name != EVENT_TIME)
