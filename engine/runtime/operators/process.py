"""Process functions of one stream: with keys, state and timers, or without."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from engine.core.authors import defined_at
from engine.core.functions import KeyedProcessFunction, ProcessContext, ProcessFunction, Row
from engine.runtime.operators.base import OperatorContext, Output, RestoredState
from engine.runtime.operators.rows import KeyedRowOperator, RowOperator, stamps_of
from engine.runtime.timers import NoTimers

Call: TypeAlias = Callable[[Row, ProcessContext], Iterable[Any]]
"""Called for a record; returns any number of results."""


class UnkeyedProcess(RowOperator):
    """Calls functions with a context: the time of the record and the watermark. There are no keys, and no timers."""

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        self._time = NoTimers(context.clock)
        self._process_context = ProcessContext(self._time)
        super().open(context, restored)

    def on_watermark(self, timestamp_ms: int, out: Output) -> None:
        self._time.watermark_ms = self._process_context.current_watermark_ms = timestamp_ms
        out.watermark(timestamp_ms)

    def _processed(self, batch: pa.RecordBatch, records: Sequence[Row], call: Call) -> Iterator[Iterable[Any]]:
        context, call = self._process_context, self._each(call)
        for record, stamp in zip(records, stamps_of(batch), strict=True):
            context.timestamp_ms = stamp
            yield call(record, context) or ()


class Process(UnkeyedProcess):
    emits_aside = True

    def __init__(self, function: ProcessFunction, schema: pa.Schema) -> None:
        super().__init__(function, schema)
        self._function = function
        self._line = defined_at(function.process_element)

    def _apply(self, batch: pa.RecordBatch, records: Sequence[Row], done: list[Any]) -> pa.RecordBatch | None:
        return self._any_number(batch, self._processed(batch, records, self._function.process_element), done)


class KeyedProcess(KeyedRowOperator):
    emits_aside = True

    def __init__(
        self, function: KeyedProcessFunction, keys: Sequence[str], input_schema: pa.Schema, schema: pa.Schema
    ) -> None:
        super().__init__(function, keys, input_schema, schema)
        self._function = function
        self._line = defined_at(function.process_element)

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        super().open(context, restored)
        self._process_context = ProcessContext(self._timers)

    def _apply(self, batch: pa.RecordBatch, records: Sequence[Row], done: list[Any]) -> pa.RecordBatch | None:
        results = self._per_key(batch, records, self._function.process_element, self._process_context)
        return self._any_number(batch, results, done)
