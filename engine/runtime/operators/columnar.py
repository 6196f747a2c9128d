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
from engine.runtime.operators.aside import Aside
from engine.runtime.operators.base import EVENT_TIME, Operator, OperatorContext, OperatorSnapshot, Output, RestoredState
from engine.runtime.operators.failed_records import FailedRecords, record_is_to_blame
from engine.runtime.operators.records import records_of
from engine.runtime.operators.rows import times_of


class MapBatches(Operator):
    """Applies a function from batch to batch. Event times are kept if the function returns as many rows as it got."""

    def __init__(self, function: Callable[[pa.RecordBatch], pa.RecordBatch], schema: pa.Schema) -> None:
        self._function = function
        self._schema = schema
        self._batches = 0
        self._failed: FailedRecords | None = None

    def leave_out(self, failed: FailedRecords) -> None:
        self._failed = failed

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        super().open(context, restored)
        if self._failed is not None:
            self._failed.open(context)
            self._aside = Aside(self._schema)

    def process(self, batch: pa.RecordBatch, out: Output) -> None:
        self._batches += 1
        if self._failed is None:
            self._pass_on(self._result(batch), out)
        else:
            self._without_failed(self._failed, batch, out)

    def _pass_on(self, result: pa.RecordBatch | None, out: Output) -> None:
        if result is not None:
            out.emit(result)

    def _result(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        kept = without_event_times(batch, self._schema)
        try:
            result = self._function(kept)
        except Exception as error:
            where = f"batch {self._batches} ({batch.num_rows} records)"
            raise UserFunctionError(self.context.uid, self.context.subtask.index, where, error) from error
        if not isinstance(result, pa.RecordBatch):
            named = "None" if result is None else f"an object of {type(result).__name__}"
            raise SchemaMismatch(
                f"operator {self.context.uid!r}: its function returned {named}: return a pyarrow.RecordBatch, such as "
                "batch.slice(0, 0) for no records, or pa.RecordBatch.from_pandas(frame)"
            )
        return self._conform(result, kept) if result.num_rows else None

    def _without_failed(self, failed: FailedRecords, batch: pa.RecordBatch, out: Output) -> None:
        """Computes a batch, and halves it for as long as it fails, until the records that fail are alone."""
        try:
            result = self._result(batch)
        except Exception as error:
            cause = error.__cause__ if isinstance(error, UserFunctionError) else error
            if not isinstance(cause, Exception) or not record_is_to_blame(cause):
                raise
            if batch.num_rows > 1:
                half = batch.num_rows // 2
                self._without_failed(failed, batch.slice(0, half), out)
                self._without_failed(failed, batch.slice(half), out)
                return
            letters = failed.left_out(cause, lambda: records_of(batch)[0])
            self._aside.put(letters, times_of(batch), self.context.uid)
            for tag, letter in self._aside.take():
                out.emit_side(self.context.uid, tag, letter)
        else:
            self._pass_on(result, out)

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


class Select(MapBatches):
    """Computes columns. `read`: the columns that it computes them from; None: it may read all."""

    def __init__(
        self, apply: Callable[[pa.RecordBatch], pa.RecordBatch], schema: pa.Schema, read: frozenset[str] | None
    ) -> None:
        super().__init__(apply, schema)
        self._read = read

    def reads(self, behind: frozenset[str] | None) -> frozenset[str] | None:
        return self._read if self._failed is None else None  # a dead letter has the whole record


class Where(Select):
    """Keeps the rows for which a condition is true, with the columns that they have."""

    def reads(self, behind: frozenset[str] | None) -> frozenset[str] | None:
        read = super().reads(behind)
        return None if read is None or behind is None else read | behind

    def _conform(self, result: pa.RecordBatch, batch: pa.RecordBatch) -> pa.RecordBatch:
        return result


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

    def reads(self, behind: frozenset[str] | None) -> frozenset[str] | None:
        return None if behind is None else behind | {self._strategy.column}

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

    def reads(self, behind: frozenset[str] | None) -> frozenset[str] | None:
        return None  # the generator gets whole records

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
