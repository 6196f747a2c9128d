"""The columnar lane: Arrow processes whole batches; Python code runs once per batch."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from engine.core.errors import SchemaMismatch, UserFunctionError
from engine.core.event_time import (
    EventTimeStrategy,
    described,
    event_times,
    latest,
    with_event_times,
    without_event_times,
)
from engine.protocol.signals import MAX_WATERMARK, MIN_WATERMARK
from engine.runtime.generated_watermarks import GeneratedWatermark
from engine.runtime.operators.base import EVENT_TIME, Operator, OperatorContext, OperatorSnapshot, Output, RestoredState


class MapBatches(Operator):
    """Applies a function from batch to batch. Event times are kept if the function returns as many rows as it got."""

    def __init__(self, function: Callable[[pa.RecordBatch], pa.RecordBatch], schema: pa.Schema) -> None:
        self._function = function
        self._schema = schema
        self._batches = 0

    def process(self, batch: pa.RecordBatch, out: Output) -> None:
        self._batches += 1
        batch = without_event_times(batch, self._schema)
        try:
            result = self._function(batch)
        except Exception as error:
            where = f"batch {self._batches} ({batch.num_rows} records)"
            raise UserFunctionError(self.context.uid, self.context.subtask.index, where, error) from error
        if result.num_rows:
            out.emit(self._conform(result, batch))

    def _conform(self, result: pa.RecordBatch, batch: pa.RecordBatch) -> pa.RecordBatch:
        carries_time = EVENT_TIME in self._schema.names
        if carries_time and EVENT_TIME not in result.schema.names:
            if result.num_rows != batch.num_rows:
                raise SchemaMismatch(
                    f"operator {self.context.uid!r}: the function returned {result.num_rows} records for "
                    f"{batch.num_rows}, so it has to keep the column {EVENT_TIME!r} itself"
                )
            result = result.append_column(EVENT_TIME, batch.column(EVENT_TIME))
        try:
            return result.select(self._schema.names).cast(self._schema)
        except (KeyError, ValueError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise SchemaMismatch(
                f"operator {self.context.uid!r} declares the schema ({described(self._schema)}), "
                f"but its function returned ({described(result.schema)}): {error}"
            ) from error


class AssignTimestamps(Operator):
    """Assigns event times and watermarks downstream of the source: one watermark per subtask, over all its input."""

    def __init__(self, strategy: EventTimeStrategy) -> None:
        self._strategy = strategy
        self._reached_ms = MIN_WATERMARK
        self._emitted_ms = MIN_WATERMARK

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        super().open(context, restored)
        held = restored.inline_of(context) if restored else []
        self._reached_ms = min((inline["watermark"] for inline in held), default=MIN_WATERMARK)

    def process(self, batch: pa.RecordBatch, out: Output) -> None:
        if not batch.num_rows:
            return
        times = event_times(batch, self._strategy.column, f"operator {self.context.uid!r}")
        out.emit(with_event_times(batch, times))
        self._look_at(batch, times)
        self._advance(out)

    def _look_at(self, batch: pa.RecordBatch, times: pa.Array) -> None:
        """Notes how far a batch moves event time."""
        highest = latest(times)
        if highest is not None:
            self._reached_ms = max(self._reached_ms, self._strategy.watermark(highest))

    def _advance(self, out: Output) -> None:
        if self._reached_ms > self._emitted_ms:
            self._emitted_ms = self._reached_ms
            out.watermark(self._emitted_ms)

    def on_watermark(self, timestamp_ms: int, out: Output) -> None:
        if timestamp_ms == MAX_WATERMARK:  # the end of the input ends event time, also behind this operator
            self._emitted_ms = timestamp_ms
            out.watermark(timestamp_ms)

    def snapshot(self, checkpoint: int) -> OperatorSnapshot:
        return OperatorSnapshot(inline={"watermark": self._reached_ms})


class AssignGenerated(AssignTimestamps):
    """The same with a generator of the job's author: one per subtask. It begins anew after a restore, its clock not."""

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        super().open(context, restored)
        self._generated = GeneratedWatermark(self._strategy, context, None, self._reached_ms)

    def _look_at(self, batch: pa.RecordBatch, times: pa.Array) -> None:
        self._generated.on_batch(batch, times)
        self._reached_ms = self._generated.reached_ms

    def work(self, max_rows: int, out: Output) -> bool:
        if not self._generated.on_time():
            return False
        self._reached_ms = self._generated.reached_ms
        self._advance(out)
        return True

    @property
    def due_ms(self) -> float | None:
        return self._generated.due_ms
