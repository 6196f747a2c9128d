"""Event times, and the watermark that is computed from them: max seen timestamp - bound - 1 ms (B1)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from engine.core.errors import BadEventTime
from engine.core.watermark_generators import MakesGenerator
from engine.protocol.watermark_alignment import WatermarkAlignment

EVENT_TIME = "_event_time"
"""The hidden column that holds the event time of each record, from where it is assigned.

A record whose timestamp is null has no event time: it moves no watermark, and windows leave it out, as in Spark.
"""

EVENT_TIME_FIELD = pa.field(EVENT_TIME, pa.int64())


def side_schema(declared: pa.Schema, timed: bool) -> pa.Schema:
    """Returns the schema of a side output: its records keep event time if those of the main output have it."""
    return declared.append(EVENT_TIME_FIELD) if timed else declared


@dataclass(frozen=True)
class EventTimeStrategy:
    """Says which column holds the event time, and how far the watermark stays behind the latest event time seen.

    `alignment`: how far the splits of a source may drift apart, also from those of other sources; None: any far.
    `idle_ms`: a split of a source that gives no rows for so long does not hold the others back; None: it always does.
    `generator`: makes what says how far event time has come, in place of the bound; it is asked at least every
    `emit_interval_ms`.
    """

    column: str
    bound_ms: int
    alignment: WatermarkAlignment | None = None
    idle_ms: int | None = None
    generator: MakesGenerator | None = None
    emit_interval_ms: int = 200

    def __str__(self) -> str:
        aligned = f", aligned ({self.alignment})" if self.alignment is not None else ""
        idle = f", idle after {self.idle_ms} ms" if self.idle_ms is not None else ""
        made = f"a bound of {self.bound_ms} ms" if self.generator is None else "a generator of its own"
        return f"from {self.column!r} with {made}{aligned}{idle}"

    def watermark(self, max_seen_ms: int) -> int:
        assert self.generator is None, "the generator says how far event time has come"
        return max_seen_ms - self.bound_ms - 1


_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_EARLIEST_S, _LATEST_S = -62_135_596_800, 253_402_300_800
"""The beginning of the year 1 and the end of the year 9999: what Python and Spark can show as a time."""

EARLIEST_MS, LATEST_MS = _EARLIEST_S * 1000, _LATEST_S * 1000


def event_times(batch: pa.RecordBatch, column: str, where: str) -> pa.Array:
    """Returns a column as milliseconds since 1970; null where it is null.

    It holds timestamps of any unit, or integers in milliseconds. A time outside of the years 1 to 9999 is refused: one
    such record would move the watermark to where no time is left. `where` names the operator in the message.
    """
    values = batch.column(column)
    if pa.types.is_timestamp(values.type):
        ticks, unit = values.view(pa.int64()), values.type.unit
    else:
        ticks, unit = _signed(values), "ms"
    missing = ticks.is_null().to_numpy(zero_copy_only=False) if ticks.null_count else None
    numbers: np.ndarray = (ticks.fill_null(0) if ticks.null_count else ticks).to_numpy()
    _check_range(batch, column, numbers, _PER_SECOND[unit], where)
    if unit == "ms":
        return ticks
    times = numbers * 1000 if unit == "s" else numbers // (1000 if unit == "us" else 1_000_000)
    return pa.array(times, mask=missing)


def _signed(values: pa.Array) -> pa.Array:
    """Casts to 64 bits with a sign; what is too large becomes the largest number, which is refused as out of range."""
    if pa.types.is_uint64(values.type):
        values = pc.min_element_wise(values, pa.scalar(_MAX, pa.uint64()), skip_nulls=False)
    return pc.cast(values, pa.int64())


def _check_range(batch: pa.RecordBatch, column: str, numbers: np.ndarray, per_second: int, where: str) -> None:
    if not len(numbers) or per_second == _PER_SECOND["ns"]:  # 64 bits of nanoseconds end in the year 2262
        return
    low, high = _EARLIEST_S * per_second, _LATEST_S * per_second
    if numbers.min() >= low and numbers.max() < high:
        return
    row = int(np.flatnonzero((numbers < low) | (numbers >= high))[0])
    kind = batch.schema.field(column).type
    given = batch.column(column).view(pa.int64()) if pa.types.is_timestamp(kind) else batch.column(column)
    value = given[row].as_py()
    if pa.types.is_timestamp(kind):
        advice = "correct or filter such records before they reach the source"
    else:
        unit = "nanoseconds" if abs(value) >= _NANOSECONDS else "microseconds"
        advice = f"is it in {unit}? Event time is in milliseconds since 1970: divide it, or declare a timestamp column"
    raise BadEventTime(
        f"{where}: the event time column {column!r} ({kind}) holds {value}, which is not between the years 1 and 9999; "
        f"{advice}"
    )


_MAX = 2**63 - 1
_NANOSECONDS = 10**17
"""From this size on a number is more likely to be nanoseconds than microseconds since 1970."""


def latest(times: pa.Array) -> int | None:
    """Returns the highest event time; None if there is none."""
    if not times.null_count:
        return int(times.to_numpy().max()) if len(times) else None
    highest: int | None = pc.max(times).as_py()
    return highest


def with_event_times(batch: pa.RecordBatch, times: pa.Array) -> pa.RecordBatch:
    names = [name for name in batch.schema.names if name != EVENT_TIME]
    return batch.select(names).append_column(EVENT_TIME, times)


def without_event_times(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Removes the event times if `schema` has none.

    A source has them as soon as one of the streams behind it does; the operators of the other streams get them too.
    """
    if EVENT_TIME in schema.names or EVENT_TIME not in batch.schema.names:
        return batch
    return batch.select([name for name in batch.schema.names if name != EVENT_TIME])


def described(schema: pa.Schema) -> str:
    """Writes a schema for messages, without the hidden event time column."""
    fields = [field for field in schema if field.name != EVENT_TIME]
    return ", ".join(f"{field.name} {field.type}{'' if field.nullable else ' not null'}" for field in fields)
