"""The row lane: plain Python functions per record. Records are dicts; the output schema is declared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from engine.protocol.signals import MIN_WATERMARK
from engine.runtime.errors import SchemaMismatch, UserFunctionError
from engine.runtime.functions import Function, KeyedProcessFunction, ProcessContext, Row, RuntimeContext
from engine.runtime.operators.base import (
    EVENT_TIME,
    Operator,
    OperatorContext,
    OperatorSnapshot,
    Output,
    RestoredState,
    StatePart,
)
from engine.state.heap import HeapBackend, Key, ValueStateDescriptor


class RowOperator(Operator):
    """Turns batches into records and back, and says where a user's function failed."""

    def __init__(self, function: Any, schema: pa.Schema) -> None:
        self._lifecycle = function if isinstance(function, Function) else None
        self._schema = schema
        self._names = [name for name in schema.names if name != EVENT_TIME]
        self._has_time = EVENT_TIME in schema.names
        self._records = 0

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        super().open(context, restored)
        self._call_lifecycle("open", RuntimeContext(context, self._backend()))

    def _backend(self) -> HeapBackend | None:
        return None

    def close(self) -> None:
        self._call_lifecycle("close")

    def _call_lifecycle(self, method: str, *arguments: Any) -> None:
        if self._lifecycle is None:
            return
        try:
            getattr(self._lifecycle, method)(*arguments)
        except Exception as error:
            raise UserFunctionError(self.context.uid, self.context.subtask.index, f"{method}()", error) from error

    def process(self, batch: pa.RecordBatch, out: Output) -> None:
        times = batch.column(EVENT_TIME).to_pylist() if EVENT_TIME in batch.schema.names else None
        rows: list[Row] = []
        stamps: list[int | None] = []
        record: Row = {}
        try:
            for position, record in enumerate(_records(batch)):
                stamp = times[position] if times else None
                for result in self._apply(record, stamp):
                    rows.append(result)
                    stamps.append(stamp)
                self._records += 1
        except Exception as error:
            where = f"record {self._records + 1} of this attempt, {_short(record)}"
            raise UserFunctionError(self.context.uid, self.context.subtask.index, where, error) from error
        if rows:
            out.emit(self._batch(rows, stamps))

    def _apply(self, record: Row, stamp: int | None) -> Iterable[Row]:
        raise NotImplementedError

    def _batch(self, rows: list[Row], stamps: list[int | None]) -> pa.RecordBatch:
        arrays = []
        for name in self._names:
            field = self._schema.field(name)
            try:
                arrays.append(_array([row[name] for row in rows], field))
            except (KeyError, TypeError, ValueError, OverflowError, pa.ArrowNotImplementedError) as error:
                raise SchemaMismatch(
                    f"operator {self.context.uid!r} declares the field {name!r} as {field.type}, but its function "
                    f"returned records such as {_short(rows[0])}: {type(error).__name__}: {error}"
                ) from error
        if self._has_time:
            arrays.append(pa.array(stamps, pa.int64()))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _array(values: list[Any], field: pa.Field) -> pa.Array:
    """Exactly these values: Arrow by itself cuts fractions off and does not look at `nullable`."""
    if pa.types.is_integer(field.type):
        for value in values:
            if isinstance(value, float) and not value.is_integer():
                raise ValueError(f"{value} is no integer")
    array = pa.array(values, field.type)
    if array.null_count and not field.nullable:
        raise ValueError(f"{array.null_count} nulls in a field declared not null")
    return array


def _records(batch: pa.RecordBatch) -> Iterator[Row]:
    names = [name for name in batch.schema.names if name != EVENT_TIME]
    columns = [batch.column(name).to_pylist(maps_as_pydicts="lossy") for name in names]
    return (dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True))


def _short(record: Row) -> str:
    text = repr(record)
    return text if len(text) <= 200 else text[:197] + "..."


class RowMap(RowOperator):
    def __init__(self, function: Any, call: Callable[[Row], Row], schema: pa.Schema) -> None:
        super().__init__(function, schema)
        self._call = call

    def _apply(self, record: Row, stamp: int | None) -> Iterable[Row]:
        return (self._call(record),)


class RowFlatMap(RowOperator):
    def __init__(self, function: Any, call: Callable[[Row], Iterable[Row]], schema: pa.Schema) -> None:
        super().__init__(function, schema)
        self._call = call

    def _apply(self, record: Row, stamp: int | None) -> Iterable[Row]:
        return self._call(record)


class RowFilter(RowOperator):
    def __init__(self, function: Any, call: Callable[[Row], bool], schema: pa.Schema) -> None:
        super().__init__(function, schema)
        self._call = call

    def _apply(self, record: Row, stamp: int | None) -> Iterable[Row]:
        return (record,) if self._call(record) else ()


class KeyedRowOperator(RowOperator):
    """With a current key and heap state per key."""

    def __init__(self, function: Any, keys: Sequence[str], input_schema: pa.Schema, schema: pa.Schema) -> None:
        super().__init__(function, schema)
        self._keys = tuple(keys)
        self._heap = HeapBackend([input_schema.field(key) for key in keys])

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        for name, table in restored.tables if restored else []:
            self._heap.restore(name, table)
        super().open(context, restored)

    def _backend(self) -> HeapBackend | None:
        return self._heap

    def _apply(self, record: Row, stamp: int | None) -> Iterable[Row]:
        key = tuple([record[name] for name in self._keys])
        self._heap.key = key
        return self._apply_keyed(key, record, stamp)

    def _apply_keyed(self, key: Key, record: Row, stamp: int | None) -> Iterable[Row]:
        raise NotImplementedError

    def snapshot(self, checkpoint: int) -> OperatorSnapshot:
        return OperatorSnapshot(parts=tuple(StatePart(n, table, self._keys) for n, table in self._heap.snapshot()))


class KeyedReduce(KeyedRowOperator):
    """Emits the running value per record (A2)."""

    def __init__(self, function: Any, call: Callable[[Row, Row], Row], keys: Sequence[str], schema: pa.Schema) -> None:
        super().__init__(function, keys, schema, schema)
        self._call = call

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        super().open(context, restored)
        fields = [field for field in self._schema if field.name != EVENT_TIME]
        self._state = self._heap.value_state(ValueStateDescriptor("reduced", pa.struct(fields)))

    def _apply_keyed(self, key: Key, record: Row, stamp: int | None) -> Iterable[Row]:
        held = self._state.value()
        # A copy: a function may change its left side in place, and what was emitted before must stay as it was.
        value = record if held is None else self._call(dict(held), record)
        self._state.update(value)
        return (value,)


class KeyedProcess(KeyedRowOperator):
    def __init__(
        self, function: KeyedProcessFunction, keys: Sequence[str], input_schema: pa.Schema, schema: pa.Schema
    ) -> None:
        super().__init__(function, keys, input_schema, schema)
        self._function = function
        self._process_context = ProcessContext()
        self._process_context.current_watermark_ms = MIN_WATERMARK

    def on_watermark(self, timestamp_ms: int, out: Output) -> None:
        self._process_context.current_watermark_ms = timestamp_ms
        out.watermark(timestamp_ms)

    def _apply_keyed(self, key: Key, record: Row, stamp: int | None) -> Iterable[Row]:
        self._process_context.current_key = key
        self._process_context.timestamp_ms = stamp
        return self._function.process_element(record, self._process_context) or ()
