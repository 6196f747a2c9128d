"""Operators on two connected streams (A7), with keys or without. The second stream is their second input."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from engine.core.authors import defined_at
from engine.core.connected_functions import (
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    KeyedCoProcessFunction,
)
from engine.core.functions import ProcessContext, Row
from engine.runtime.operators.base import OperatorContext, Output, RestoredState
from engine.runtime.operators.process import Call, UnkeyedProcess
from engine.runtime.operators.records import short
from engine.runtime.operators.rows import KeyedRowOperator

CoFunction: TypeAlias = CoMapFunction | CoFlatMapFunction | CoProcessFunction | KeyedCoProcessFunction


def calls_of(function: CoFunction) -> tuple[Call, Call]:
    """Returns what is called for a record of the first and of the second stream; each returns any number of results."""
    match function:
        case CoMapFunction():
            return _single(function.map1), _single(function.map2)
        case CoFlatMapFunction():
            return _without_context(function.flat_map1), _without_context(function.flat_map2)
        case _:
            return function.process_element1, function.process_element2


def _single(call: Callable[[Row], Row]) -> Call:
    def one(value: Row, context: ProcessContext) -> Iterable[Row]:
        result = call(value)
        if result is None:
            raise TypeError(f"it returned {short(result)}: return one record; flat_map may return none")
        return (result,)

    return one


def _without_context(call: Callable[[Row], Iterable[Row]]) -> Call:
    return lambda value, context: call(value)


class CoProcess(UnkeyedProcess):
    """Two streams without keys."""

    def __init__(self, function: CoFunction, schema: pa.Schema) -> None:
        super().__init__(function, schema)
        self.emits_aside = isinstance(function, CoProcessFunction)
        self._first, self._second = calls_of(function)
        self._line = defined_at(self._first)

    def _apply(self, batch: pa.RecordBatch, records: Sequence[Row], done: list[Any]) -> pa.RecordBatch | None:
        return self._any_number(batch, self._processed(batch, records, self._first), done)

    def process_second(self, batch: pa.RecordBatch, out: Output) -> None:
        self._run(self._apply_second, batch, out)

    def _apply_second(self, batch: pa.RecordBatch, records: Sequence[Row], done: list[Any]) -> pa.RecordBatch | None:
        return self._any_number(batch, self._processed(batch, records, self._second), done)


class KeyedCoProcess(KeyedRowOperator):
    """Two keyed streams. A snapshot has the names of the first stream's key columns."""

    def __init__(
        self,
        function: CoFunction,
        keys: Sequence[str],
        second_keys: Sequence[str],
        input_schema: pa.Schema,
        schema: pa.Schema,
    ) -> None:
        super().__init__(function, keys, input_schema, schema)
        self.emits_aside = isinstance(function, KeyedCoProcessFunction)
        self._second_keys = tuple(second_keys)
        self._first, self._second = calls_of(function)
        self._line = defined_at(self._first)

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        super().open(context, restored)
        self._process_context = ProcessContext(self._timers)

    def _apply(self, batch: pa.RecordBatch, records: Sequence[Row], done: list[Any]) -> pa.RecordBatch | None:
        return self._any_number(batch, self._per_key(batch, records, self._first, self._process_context), done)

    def process_second(self, batch: pa.RecordBatch, out: Output) -> None:
        self._run(self._apply_second, batch, out)

    def _apply_second(self, batch: pa.RecordBatch, records: Sequence[Row], done: list[Any]) -> pa.RecordBatch | None:
        results = self._per_key(batch, records, self._second, self._process_context, self._second_keys)
        return self._any_number(batch, results, done)
