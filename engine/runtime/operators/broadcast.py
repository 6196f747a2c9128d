"""Operators on a stream connected with a broadcast stream, which is their second input."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from engine.core.authors import defined_at
from engine.core.broadcast_functions import BroadcastProcessFunction, KeyedBroadcastProcessFunction
from engine.core.errors import SchemaMismatch
from engine.core.functions import OnTimerContext, Row
from engine.core.state_types import MapStateDescriptor
from engine.core.timers import TimerService
from engine.runtime.broadcast_contexts import BroadcastStates, ReadingContext, TimerReadingContext, WritingContext
from engine.runtime.operators.base import EVENT_TIME, OperatorContext, Output, RestoredState
from engine.runtime.operators.rows import KeyedRowOperator, RowOperator, several_of, stamps_of
from engine.runtime.timers import NoTimers
from engine.state.keyed.backend import NO_KEY


class BroadcastProcess(RowOperator):
    emits_aside = True

    def __init__(
        self, function: BroadcastProcessFunction, descriptors: Sequence[MapStateDescriptor], schema: pa.Schema
    ) -> None:
        super().__init__(function, schema)
        self._function = function
        self._line = defined_at(function.process_element)
        self._descriptors = descriptors

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        self._time = NoTimers(context.clock)
        super().open(context, restored)

    def _open_states(self) -> None:
        self._states = BroadcastStates(self._operator_state, self._descriptors)
        self._reading = ReadingContext(self._states, self._timer_service())
        self._writing = WritingContext(self._states, self._backend())

    def _timer_service(self) -> TimerService:
        return self._time

    def on_watermark(self, timestamp_ms: int, out: Output) -> None:
        self._time.watermark_ms = timestamp_ms
        self._reading.current_watermark_ms = self._writing.current_watermark_ms = timestamp_ms
        out.watermark(timestamp_ms)

    def _apply(self, batch: pa.RecordBatch, records: Sequence[Row], done: list[Any]) -> pa.RecordBatch | None:
        return self._any_number(batch, self._processed(batch, records), done)

    def _processed(self, batch: pa.RecordBatch, records: Sequence[Row]) -> Iterator[Iterable[Any]]:
        context, call = self._reading, self._each(self._function.process_element)
        for record, stamp in zip(records, stamps_of(batch), strict=True):
            context.timestamp_ms = stamp
            yield call(record, context) or ()

    def process_second(self, batch: pa.RecordBatch, out: Output) -> None:
        self._run(self._apply_second, batch, out)

    def _apply_second(self, batch: pa.RecordBatch, records: Sequence[Row], done: list[Any]) -> pa.RecordBatch | None:
        return self._any_number(batch, self._processed_second(batch, records), done)

    def _processed_second(self, batch: pa.RecordBatch, records: Sequence[Row]) -> Iterator[Iterable[Any]]:
        context, call = self._writing, self._function.process_broadcast_element
        timeless = EVENT_TIME in self._schema.names and EVENT_TIME not in batch.schema.names
        for record, stamp in zip(records, stamps_of(batch), strict=True):
            context.timestamp_ms = stamp
            results = list(several_of(call(record, context) or ()))
            if results and timeless:
                raise SchemaMismatch(
                    f"process_broadcast_element of {self.context.uid!r} emits records, which need an event time as "
                    "the other stream has one: call assign_timestamps_and_watermarks(...) on the broadcast stream too"
                )
            yield results


class KeyedBroadcastProcess(BroadcastProcess, KeyedRowOperator):
    """Sets the current key for `process_element`; a broadcast record has no key."""

    def __init__(
        self,
        function: KeyedBroadcastProcessFunction,
        descriptors: Sequence[MapStateDescriptor],
        keys: Sequence[str],
        input_schema: pa.Schema,
        schema: pa.Schema,
    ) -> None:
        KeyedRowOperator.__init__(self, function, keys, input_schema, schema)
        self._function = function
        self._line = defined_at(function.process_element)
        self._descriptors = descriptors

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        super().open(context, restored)
        self._writing.current_watermark_ms = self._clock.now_ms

    def _timer_service(self) -> TimerService:
        return self._timers

    def _make_timer_context(self) -> OnTimerContext:
        return TimerReadingContext(self._states, self._timers)

    def on_watermark(self, timestamp_ms: int, out: Output) -> None:
        KeyedRowOperator.on_watermark(self, timestamp_ms, out)
        self._writing.current_watermark_ms = self._clock.now_ms

    def _processed(self, batch: pa.RecordBatch, records: Sequence[Row]) -> Iterator[Iterable[Any]]:
        return self._per_key(batch, records, self._function.process_element, self._reading)

    def _processed_second(self, batch: pa.RecordBatch, records: Sequence[Row]) -> Iterator[Iterable[Any]]:
        self._keyed.key = NO_KEY
        return super()._processed_second(batch, records)
