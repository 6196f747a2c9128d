"""The row lane: calls a Python function for each record, a dict. The author declares the output schema."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import msgspec
import numpy as np
import pyarrow as pa

from engine.core.authors import defined_at, short_line
from engine.core.errors import SchemaMismatch, StateUnclaimed, UserFunctionError
from engine.core.event_time import without_event_times
from engine.core.functions import Function, KeyedProcessFunction, ProcessContext, Row
from engine.core.state_types import ValueStateDescriptor
from engine.runtime.functions import SubtaskContext
from engine.runtime.operators.base import (
    EVENT_TIME,
    WATERMARKS,
    Operator,
    OperatorContext,
    OperatorSnapshot,
    Output,
    RestoredState,
    StatePart,
)
from engine.runtime.operators.records import batch_of, columns_of, records_of, short
from engine.state.key_hash import hash_columns
from engine.state.keyed.backend import Key, KeyedBackend
from engine.state.keyed.heap import HeapBackend
from engine.state.operator import OperatorBackend

_Apply = Callable[[pa.RecordBatch, Sequence[Row], list[Any]], pa.RecordBatch | None]


class RowOperator(Operator):
    """Turns batches into records and back, and reports the record at which a user function failed."""

    def __init__(self, function: Any, schema: pa.Schema) -> None:
        self._lifecycle = function if isinstance(function, Function) else None
        self._schema = schema
        self._records = 0
        self._done: list[Any] = []  # one item per record of this batch that is done
        self._operator_state = OperatorBackend()
        self._exact = False
        self._line = defined_at(function)

    def exactly(self, exact: bool) -> Self:
        """Refuses fields that the schema does not have: the author declared no schema, so they would be lost."""
        self._exact = exact
        return self

    @property
    def _named(self) -> str:
        at = f" ({short_line(self._line)})" if self._line else ""
        return f"operator {self.context.uid!r}{at}"

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        super().open(context, restored)
        for name, distribution, table in restored.operator if restored else []:
            self._operator_state.restore(name, distribution, table)
        self._call_lifecycle(
            "open", SubtaskContext(context, self._backend(), self._operator_state, restored is not None)
        )
        self._open_states()
        self._check_claimed()

    def _open_states(self) -> None:
        """Asks for the states that the operator has besides those that its function asked for."""

    def _check_claimed(self) -> None:
        """Refuses state that nobody asks for any more: under another name a function would start empty in silence."""
        keyed = self._backend()
        unclaimed = [*(keyed.unclaimed if keyed else []), *self._operator_state.unclaimed]
        if unclaimed:
            raise StateUnclaimed(
                f"operator {self.context.uid!r}: the state {unclaimed[0]!r} is in the snapshot, but open() does not "
                "ask for it: ask for it under this name, and clear it if it is no longer needed"
            )

    def _backend(self) -> KeyedBackend | None:
        return None

    @property
    def records_done(self) -> int:
        return self._records + len(self._done)

    def snapshot(self, checkpoint: int) -> OperatorSnapshot | None:
        self._call_lifecycle("snapshot_state", checkpoint)
        try:
            states = self._operator_state.snapshot()
            parts = [*self._keyed_parts(), *(StatePart(n, table, (), d) for n, d, table in states)]
        except SchemaMismatch as error:
            raise SchemaMismatch(f"{self._named}: {error}") from error
        inline = self._inline()
        return OperatorSnapshot(inline, tuple(parts)) if parts or inline else None

    def _inline(self) -> dict[str, Any]:
        return {}

    def _keyed_parts(self) -> Iterable[StatePart]:
        return ()

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
        self._run(self._apply, batch, out)

    def _run(self, apply: _Apply, batch: pa.RecordBatch, out: Output) -> None:
        records = records_of(batch)
        done = self._done
        try:
            result = apply(batch, records, done)
        except SchemaMismatch:
            raise
        except Exception as error:
            where, record = f"record {self._records + len(done) + 1} of this attempt", short(records[len(done)])
            failed = UserFunctionError(self.context.uid, self.context.subtask.index, where, error, record)
            if not failed.raised.line:  # it returned something wrong
                failed.raised = msgspec.structs.replace(failed.raised, line=self._line)
            raise failed from error
        self._records += len(records)
        self._done = []
        if result is not None and result.num_rows:
            out.emit(result)

    def _apply(self, batch: pa.RecordBatch, records: Sequence[Row], done: list[Any]) -> pa.RecordBatch | None:
        """Calls the user function and returns its results. Appends one item to `done` after each record."""
        raise NotImplementedError

    def _one_each(self, batch: pa.RecordBatch, results: Iterable[Row], done: list[Any]) -> pa.RecordBatch:
        for result in results:
            done.append(result)
        return batch_of(done, self._schema, self._named, _times(batch), exact=self._exact)

    def _any_number(
        self, batch: pa.RecordBatch, results: Iterable[Iterable[Row]], done: list[Any]
    ) -> pa.RecordBatch | None:
        """Builds a batch of any number of results per record; takes a generator's results before the next call."""
        rows: list[Row] = []
        for several in results:
            if several is None or isinstance(several, Mapping | str):
                raise TypeError(f"it returned {short(several)}: return a list of records, [] for none, or yield them")
            rows.extend(several)
            done.append(len(rows))
        if not rows:
            return None
        times = _times(batch)
        if times is not None:
            times = times.take(pa.array(np.repeat(np.arange(len(done)), np.diff(done, prepend=0))))
        return batch_of(rows, self._schema, self._named, times, exact=self._exact)


def _times(batch: pa.RecordBatch) -> pa.Array | None:
    return batch.column(EVENT_TIME) if EVENT_TIME in batch.schema.names else None


def stamps_of(batch: pa.RecordBatch) -> list[int | None]:
    times = _times(batch)
    return [None] * batch.num_rows if times is None else times.to_pylist()


class RowMap(RowOperator):
    def __init__(self, function: Any, call: Callable[[Row], Row], schema: pa.Schema) -> None:
        super().__init__(function, schema)
        self._call = call
        self._line = defined_at(call)

    def _apply(self, batch: pa.RecordBatch, records: Sequence[Row], done: list[Any]) -> pa.RecordBatch | None:
        return self._one_each(batch, map(self._call, records), done)


class RowFlatMap(RowOperator):
    def __init__(self, function: Any, call: Callable[[Row], Iterable[Row]], schema: pa.Schema) -> None:
        super().__init__(function, schema)
        self._call = call
        self._line = defined_at(call)

    def _apply(self, batch: pa.RecordBatch, records: Sequence[Row], done: list[Any]) -> pa.RecordBatch | None:
        return self._any_number(batch, map(self._call, records), done)


class RowFilter(RowOperator):
    def __init__(self, function: Any, call: Callable[[Row], bool], schema: pa.Schema) -> None:
        super().__init__(function, schema)
        self._call = call

    def _apply(self, batch: pa.RecordBatch, records: Sequence[Row], done: list[Any]) -> pa.RecordBatch | None:
        for kept in map(self._call, records):
            done.append(bool(kept))
        return without_event_times(batch, self._schema).filter(pa.array(done, pa.bool_()))


class KeyedRowOperator(RowOperator):
    """Adds a current key, state per key and a watermark per key group."""

    def __init__(self, function: Any, keys: Sequence[str], input_schema: pa.Schema, schema: pa.Schema) -> None:
        super().__init__(function, schema)
        self._keys = tuple(keys)
        self._keyed: KeyedBackend = HeapBackend([input_schema.field(key) for key in keys])

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        self._clock = context.group_clock(restored)
        for name, table in restored.tables if restored else []:
            self._keyed.restore(name, table)
        super().open(context, restored)

    def _backend(self) -> KeyedBackend | None:
        return self._keyed

    def _keys_of(self, batch: pa.RecordBatch) -> Iterator[Key]:
        return self._keyed.canonical(zip(*columns_of(batch, self._keys), strict=True))

    def _per_key(
        self, batch: pa.RecordBatch, records: Sequence[Row], call: Callable[..., Iterable[Row]], context: ProcessContext
    ) -> Iterator[Iterable[Row]]:
        keyed = self._keyed
        keys, stamps, watermarks = self._keys_of(batch), stamps_of(batch), self._watermarks_of(batch)
        for key, record, stamp, watermark in zip(keys, records, stamps, watermarks, strict=True):
            keyed.key = context.current_key = key
            context.timestamp_ms = stamp
            context.current_watermark_ms = watermark
            yield call(record, context) or ()

    def _watermarks_of(self, batch: pa.RecordBatch) -> list[int]:
        """Returns the watermark of each record's key group."""
        if not self._clock.uneven:
            return [self._clock.now_ms] * batch.num_rows
        watermarks: list[int] = self._clock.of_rows(hash_columns([batch.column(k) for k in self._keys])).tolist()
        return watermarks

    def on_watermark(self, timestamp_ms: int, out: Output) -> None:
        self._clock.advance(timestamp_ms)
        out.watermark(timestamp_ms)

    def _inline(self) -> dict[str, Any]:
        return {WATERMARKS: self._clock.snapshot()}

    def _keyed_parts(self) -> Iterable[StatePart]:
        return [StatePart(name, table, self._keys) for name, table in self._keyed.snapshot()]


class KeyedReduce(KeyedRowOperator):
    """Emits the reduced value after each record (A2)."""

    def __init__(self, function: Any, call: Callable[[Row, Row], Row], keys: Sequence[str], schema: pa.Schema) -> None:
        super().__init__(function, keys, schema, schema)
        self._call = call
        self._line = defined_at(call)
        self._exact = True

    def _open_states(self) -> None:
        fields = [field for field in self._schema if field.name != EVENT_TIME]
        self._state = self._keyed.value_state(ValueStateDescriptor("reduced", pa.struct(fields)))

    def _apply(self, batch: pa.RecordBatch, records: Sequence[Row], done: list[Any]) -> pa.RecordBatch | None:
        return self._one_each(batch, self._reduced(batch, records), done)

    def _reduced(self, batch: pa.RecordBatch, records: Sequence[Row]) -> Iterator[Row]:
        keyed, state, call = self._keyed, self._state, self._call
        for key, record in zip(self._keys_of(batch), records, strict=True):
            keyed.key = key
            held = state.value()
            # A copy: a function may change its first argument in place, and the row emitted before must not change.
            value = record if held is None else call(dict(held), record)
            state.update(value)
            yield value


class KeyedProcess(KeyedRowOperator):
    def __init__(
        self, function: KeyedProcessFunction, keys: Sequence[str], input_schema: pa.Schema, schema: pa.Schema
    ) -> None:
        super().__init__(function, keys, input_schema, schema)
        self._function = function
        self._line = defined_at(function.process_element)
        self._process_context = ProcessContext()

    def _apply(self, batch: pa.RecordBatch, records: Sequence[Row], done: list[Any]) -> pa.RecordBatch | None:
        results = self._per_key(batch, records, self._function.process_element, self._process_context)
        return self._any_number(batch, results, done)
