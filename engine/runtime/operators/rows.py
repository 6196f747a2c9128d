"""The row lane: calls a Python function for each record, a dict. The author declares the output schema."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from engine.core.authors import defined_at, short_line
from engine.core.errors import SchemaMismatch, StateUnclaimed, UserFunctionError
from engine.core.event_time import without_event_times
from engine.core.functions import Function, OnTimerContext, ProcessContext, Row, TimerFunction
from engine.core.state_types import ValueStateDescriptor
from engine.core.timers import TimeDomain
from engine.runtime.functions import SubtaskContext
from engine.runtime.operators.aside import Aside
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
from engine.runtime.operators.failed_records import FailedRecords, ResultCheck, record_is_to_blame
from engine.runtime.operators.records import batch_of, columns_of, records_of, short
from engine.runtime.timers import TIMERS, KeyTimers
from engine.state.copies import as_it_is, copier
from engine.state.group_clock import GroupClock
from engine.state.key_hash import hash_columns
from engine.state.keyed.backend import Key, KeyedBackend
from engine.state.keyed.heap import HeapBackend
from engine.state.operator import OperatorBackend

_Apply = Callable[[pa.RecordBatch, Sequence[Row], list[Any]], pa.RecordBatch | None]


class RowOperator(Operator):
    """Turns batches into records and back, and reports the record at which a user function failed."""

    emits_aside = False
    """True if its function may emit to side outputs: `yield tag, record`."""

    def __init__(self, function: Any, schema: pa.Schema) -> None:
        self._lifecycle = function if isinstance(function, Function) else None
        self._schema = schema
        self._records = 0
        self._done: list[Any] = []  # one item per record of this batch that is done
        self._operator_state = OperatorBackend()
        self._line = defined_at(function)
        self._aside = Aside(schema)
        self._failed: FailedRecords | None = None
        self._batch_now: pa.RecordBatch | None = None

    def leave_out(self, failed: FailedRecords) -> None:
        self._failed = failed
        self._own_asides, self.emits_aside = self.emits_aside, True

    @property
    def _named(self) -> str:
        at = f" ({short_line(self._line)})" if self._line else ""
        return f"operator {self.context.uid!r}{at}"

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        super().open(context, restored)
        if self._failed is not None:
            self._failed.open(context)
            self._check = ResultCheck(self._schema, self._named)
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
        unclaimed = [*self._unclaimed_keyed(), *self._operator_state.unclaimed]
        if unclaimed:
            raise StateUnclaimed(
                f"operator {self.context.uid!r}: the state {unclaimed[0]!r} is in the snapshot, but open() does not "
                "ask for it: ask for it under this name, and clear it if it is no longer needed"
            )

    def _unclaimed_keyed(self) -> list[str]:
        keyed = self._backend()
        return keyed.unclaimed if keyed else []

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
        self._batch_now = batch
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
        self._done, self._batch_now = [], None
        self._emit(result, out)

    def _emit(self, result: pa.RecordBatch | None, out: Output) -> None:
        if result is not None and result.num_rows:
            out.emit(result)
        for tag, batch in self._aside.take():
            out.emit_side(self.context.uid, tag, batch)

    def _apply(self, batch: pa.RecordBatch, records: Sequence[Row], done: list[Any]) -> pa.RecordBatch | None:
        """Calls the user function and returns its results. Appends one item to `done` after each record."""
        raise NotImplementedError

    # --- records that are left out ---

    def _each(self, call: Callable[..., Any], none: bool = True) -> Callable[..., Any]:
        """Returns a call for a record whose failure leaves the record out, if the author asked for that.

        `none`: it may return None for no results.
        """
        if self._failed is None:
            return call

        def guarded(record: Row, *context: Any) -> Iterable[Any]:
            results = call(record, *context)
            several = list(self._as_they_are(several_of((results or ()) if none else results)))
            self._check(several, self._own_asides)
            return several

        return lambda *arguments: self._tried(guarded, *arguments)

    def _tried(self, call: Callable[..., Iterable[Any]], *arguments: Any) -> Iterable[Any]:
        """Calls for a record; if that fails, undoes what it did and returns what is emitted in its place."""
        assert self._failed is not None
        self._begin_record()
        try:
            results = call(*arguments)
        except Exception as error:
            self._undo_record()
            if not record_is_to_blame(error):
                raise
            return self._failed.left_out(error, self._record_now, self._line)
        self._end_record()
        return results

    def _record_now(self) -> Row:
        """Returns the current record as it came: the function may have changed its own."""
        assert self._batch_now is not None
        return records_of(self._batch_now.slice(len(self._done), 1))[0]

    def _begin_record(self) -> None:
        """Begins to note what a record does to the state."""

    def _end_record(self) -> None:
        """What the record did to the state stays."""

    def _undo_record(self) -> None:
        """Undoes what the record did to the state."""

    def _one_each(self, batch: pa.RecordBatch, results: Iterable[Row], done: list[Any]) -> pa.RecordBatch:
        for result in results:
            done.append(result)
        return batch_of(done, self._schema, self._named, times_of(batch))

    def _any_number(
        self, batch: pa.RecordBatch, results: Iterable[Iterable[Any]], done: list[Any]
    ) -> pa.RecordBatch | None:
        """Builds a batch of any number of results per record; takes a generator's results before the next call."""
        rows: list[Any] = []
        for several in results:
            rows.extend(self._as_they_are(several_of(several)))
            done.append(len(rows))
        if not rows:
            return None
        times = times_of(batch)
        if times is not None:
            times = times.take(pa.array(np.repeat(np.arange(len(done)), np.diff(done, prepend=0))))
        return self._batch(rows, times)

    def _as_they_are(self, results: Iterable[Any]) -> Iterable[Any]:
        """Returns the results of one call so that later calls can't change them: a batch is built of many."""
        return results

    def _batch(self, rows: list[Any], times: pa.Array | None) -> pa.RecordBatch | None:
        """Builds the batch of the main output, and puts what goes to side outputs aside."""
        if self.emits_aside and self._aside.wanted(rows):
            rows, times = self._aside.put(rows, times, self._named)
        return self._made(rows, times) if rows else None

    def _made(self, rows: list[Any], times: pa.Array | None) -> pa.RecordBatch:
        """Makes the batch of results that go to the main output."""
        return batch_of(rows, self._schema, self._named, times)


def several_of(results: Iterable[Any] | None) -> Iterable[Any]:
    if results is None or isinstance(results, Mapping | str):
        raise TypeError(f"it returned {short(results)}: return a list of records, [] for none, or yield them")
    return results


def times_of(batch: pa.RecordBatch) -> pa.Array | None:
    return batch.column(EVENT_TIME) if EVENT_TIME in batch.schema.names else None


def stamps_of(batch: pa.RecordBatch) -> list[int | None]:
    times = times_of(batch)
    return [None] * batch.num_rows if times is None else times.to_pylist()


class RowMap(RowOperator):
    def __init__(self, function: Any, call: Callable[[Row], Row], schema: pa.Schema) -> None:
        super().__init__(function, schema)
        self._call = call
        self._line = defined_at(call)

    def _apply(self, batch: pa.RecordBatch, records: Sequence[Row], done: list[Any]) -> pa.RecordBatch | None:
        if self._failed is not None:
            return self._any_number(batch, map(self._each(lambda record: (self._call(record),)), records), done)
        return self._one_each(batch, map(self._call, records), done)


class RowFlatMap(RowOperator):
    def __init__(self, function: Any, call: Callable[[Row], Iterable[Row]], schema: pa.Schema) -> None:
        super().__init__(function, schema)
        self._call = call
        self._line = defined_at(call)

    def _apply(self, batch: pa.RecordBatch, records: Sequence[Row], done: list[Any]) -> pa.RecordBatch | None:
        return self._any_number(batch, map(self._each(self._call, none=False), records), done)


class RowFilter(RowOperator):
    def __init__(self, function: Any, call: Callable[[Row], bool], schema: pa.Schema) -> None:
        super().__init__(function, schema)
        self._call = call

    def _apply(self, batch: pa.RecordBatch, records: Sequence[Row], done: list[Any]) -> pa.RecordBatch | None:
        if self._failed is not None:
            self._ask_each(batch, records, done)
        else:
            done.extend(map(bool, map(self._call, records)))
        return without_event_times(batch, self._schema).filter(pa.array(done, pa.bool_()))

    def _ask_each(self, batch: pa.RecordBatch, records: Sequence[Row], done: list[Any]) -> None:
        """Asks for each record, and puts those aside that become dead letters."""
        letters: list[Any] = []
        places: list[int] = []
        for place, record in enumerate(records):
            answers = list(self._tried(lambda record: (bool(self._call(record)),), record))
            kept = answers == [True]
            if answers and type(answers[0]) is not bool:
                letters += answers
                places.append(place)
            done.append(kept)
        if letters:
            times = times_of(batch)
            self._aside.put(letters, None if times is None else times.take(pa.array(places)), self._named)


class KeyedRowOperator(RowOperator):
    """Adds a current key, state and timers per key, and a watermark per key group.

    Invariant: a watermark goes on only after the timers that it fires are done (B3). While it waits, the subtask takes
    nothing else.
    """

    _timer_call = "on_timer"
    """What is called when a timer fires, for messages."""

    def __init__(self, function: Any, keys: Sequence[str], input_schema: pa.Schema, schema: pa.Schema) -> None:
        super().__init__(function, schema)
        self._keys = tuple(keys)
        self._fields = [input_schema.field(key) for key in keys]
        self._timed = function if isinstance(function, TimerFunction) and function.has_timers else None
        self._waiting_ms: int | None = None
        self._fired = 0

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        self._clock = self._make_clock(context, restored)
        self._keyed: KeyedBackend = HeapBackend(self._fields, context.clock.wall_ms, self._failed is not None)
        self._timers = self._make_timers(context)
        for name, table in restored.tables if restored else []:
            self._restore_part(context, name, table)
        super().open(context, restored)
        self._timer_context = self._make_timer_context()

    def _make_clock(self, context: OperatorContext, restored: RestoredState | None) -> GroupClock:
        return context.group_clock(restored)

    def _make_timers(self, context: OperatorContext) -> KeyTimers:
        return KeyTimers(self._keyed, self._fields, context.clock, self._clock, self._has_timers)

    @property
    def _has_timers(self) -> bool:
        return self._timed is not None

    def _restore_part(self, context: OperatorContext, name: str, table: pa.Table) -> None:
        """Takes part of a saved state, before the function asks for it."""
        if name not in TIMERS:
            self._keyed.restore(name, table)
        elif not self._has_timers:
            raise StateUnclaimed(
                f"operator {context.uid!r}: its snapshot holds {table.num_rows} {name}, but the function has no "
                "on_timer(timestamp, context) any more: put it back, and let it do nothing if they are not needed"
            )
        else:
            self._timers.load(name, table)

    def _make_timer_context(self) -> OnTimerContext:
        return OnTimerContext(self._timers)

    def _backend(self) -> KeyedBackend | None:
        return self._keyed

    @property
    def records_done(self) -> int:
        return super().records_done + self._fired

    def _begin_record(self) -> None:
        self._keyed.begin_record()
        self._timers.begin_record()

    def _end_record(self) -> None:
        self._keyed.end_record()
        self._timers.end_record()

    def _undo_record(self) -> None:
        self._keyed.undo_record()
        self._timers.undo_record()

    def _as_they_are(self, results: Iterable[Any]) -> Iterable[Any]:
        """A result may be a value of the state, which the next record of the key changes in place."""
        return map(as_it_is, results) if self._keyed.holds_changeable else results

    def _keys_of(self, batch: pa.RecordBatch, keys: Sequence[str]) -> Iterator[Key]:
        return self._keyed.canonical(zip(*columns_of(batch, keys), strict=True))

    def _per_key(
        self,
        batch: pa.RecordBatch,
        records: Sequence[Row],
        call: Callable[..., Iterable[Any]],
        context: ProcessContext,
        columns: Sequence[str] | None = None,
    ) -> Iterator[Iterable[Any]]:
        """Calls a function with each record, its key set. `columns`: the key columns, if they have other names."""
        keyed, of, call = self._keyed, columns or self._keys, self._each(call)
        keys, stamps, watermarks = self._keys_of(batch, of), stamps_of(batch), self._watermarks_of(batch, of)
        for key, record, stamp, watermark in zip(keys, records, stamps, watermarks, strict=True):
            keyed.key = context.current_key = key
            context.timestamp_ms = stamp
            context.current_watermark_ms = watermark
            yield call(record, context) or ()

    def _watermarks_of(self, batch: pa.RecordBatch, keys: Sequence[str], clock: GroupClock | None = None) -> list[int]:
        """Returns the watermark of each record's key group, or its time of another clock."""
        clock = clock or self._clock
        if not clock.uneven:
            return [clock.now_ms] * batch.num_rows
        watermarks: list[int] = clock.of_rows(hash_columns([batch.column(k) for k in keys])).tolist()
        return watermarks

    # --- timers ---

    def on_watermark(self, timestamp_ms: int, out: Output) -> None:
        assert self._waiting_ms is None, "a watermark came before the timers of the last one were done"
        self._clock.advance(timestamp_ms)
        if self._timers.event_due:
            self._waiting_ms = timestamp_ms
        else:
            out.watermark(timestamp_ms)

    @property
    def firing(self) -> bool:
        return self._waiting_ms is not None

    def work(self, max_rows: int, out: Output) -> bool:
        """Fires some of the timers that are due, and passes the watermark on after the last one."""
        if self._waiting_ms is None:
            fired = self._fire(TimeDomain.PROCESSING_TIME, max_rows, out)
            return fired > 0
        self._fire(TimeDomain.EVENT_TIME, max_rows, out)
        if not self._timers.event_due:
            waiting_ms, self._waiting_ms = self._waiting_ms, None
            out.watermark(waiting_ms)
        return True

    @property
    def due_ms(self) -> float | None:
        return self._timers.processing_due_ms

    def _fire(self, domain: TimeDomain, most: int, out: Output) -> int:
        """Fires at most so many timers, and returns how many."""
        rows: list[Any] = []
        times: list[int | None] = []
        context, fired = self._timer_context, 0
        while fired < most and (due := self._timers.pop(domain)) is not None:
            timestamp_ms, key = due
            self._keyed.key = context.current_key = key
            context.timestamp_ms = timestamp_ms
            context.current_watermark_ms = self._timers.current_watermark()
            context.domain = domain
            try:
                rows.extend(self._as_they_are(several_of(self._on_timer(timestamp_ms, context))))
            except SchemaMismatch:
                raise
            except Exception as error:
                where = f"{self._timer_call}({timestamp_ms}) of {domain.value} for the key {short(key)}"
                raise UserFunctionError(self.context.uid, self.context.subtask.index, where, error) from error
            times += [timestamp_ms if domain is TimeDomain.EVENT_TIME else None] * (len(rows) - len(times))
            fired += 1
            self._fired += 1
        if rows:
            self._emit(self._batch(rows, pa.array(times, pa.int64())), out)
        return fired

    def _on_timer(self, timestamp_ms: int, context: OnTimerContext) -> Iterable[Any]:
        """Does what is to be done at this time for the current key; returns the results."""
        assert self._timed is not None
        return self._timed.on_timer(timestamp_ms, context) or ()

    def _inline(self) -> dict[str, Any]:
        return {WATERMARKS: self._clock.snapshot()}

    def _keyed_parts(self) -> Iterable[StatePart]:
        assert self._waiting_ms is None, "a snapshot while a watermark waits for its timers"
        parts = [*self._keyed.snapshot(), *self._timers.snapshot()]
        return [StatePart(name, table, self._keys) for name, table in parts]


class KeyedReduce(KeyedRowOperator):
    """Emits the reduced value after each record (A2)."""

    def __init__(self, function: Any, call: Callable[[Row, Row], Row], keys: Sequence[str], schema: pa.Schema) -> None:
        super().__init__(function, keys, schema, schema)
        self._call = call
        self._line = defined_at(call)
        self._record_type = pa.struct([field for field in schema if field.name != EVENT_TIME])
        self._copy = copier(self._record_type)

    def _open_states(self) -> None:
        self._state = self._keyed.state(ValueStateDescriptor("reduced", self._record_type))

    def _apply(self, batch: pa.RecordBatch, records: Sequence[Row], done: list[Any]) -> pa.RecordBatch | None:
        if self._failed is not None:
            one = self._each(lambda record: (self._reduce(record),))
            return self._any_number(batch, self._reduced(batch, records, one), done)
        return self._one_each(batch, self._reduced(batch, records, self._reduce), done)

    def _reduced(self, batch: pa.RecordBatch, records: Sequence[Row], reduce: Callable[[Row], Any]) -> Iterator[Any]:
        keyed = self._keyed
        for key, record in zip(self._keys_of(batch, self._keys), records, strict=True):
            keyed.key = key
            yield reduce(record)

    def _reduce(self, record: Row) -> Row:
        """Reduces a record into the value of its key, and returns the new value."""
        held = self._state.value()
        # A copy: a function may change its first argument in place, and the row emitted before must not change.
        value: Row = record if held is None else self._call(self._copy(held), record)
        self._state.update(value)
        return value
