"""`RecordPlan`: computes built-in aggregates of records that come one by one, with the kernels of an `AggregatePlan`.

An accumulator holds the number of its records, one row of partials, and the values of its last records as they came.
When these are many, kernels fold them into the partials. So a record costs an append, and each aggregate has one
definition, whichever lane computes it. Results are computed for many accumulators at once.

Invariant: partials are never changed in place, so copies of an accumulator share them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from engine.core.event_time import EVENT_TIME, EVENT_TIME_FIELD
from engine.core.functions import Row
from engine.state.key_columns import plain_type
from engine.state.windows.aggregates import Aggregate
from engine.state.windows.grouping import Ints
from engine.state.windows.held import Ends
from engine.state.windows.plan import ROWS, WINDOW, AggregatePlan

PENDING = 64
"""Values are folded when they are so many; or as many as a list in the partials, so that folding stays linear."""

_NUMBER = f"{EVENT_TIME}.number"  # no column of a stream can have this name

Accumulator = dict[str, Any]


class RecordPlan:
    """`type` is the type of an accumulator; `kept` says whether it holds more than the number of its records."""

    def __init__(self, aggregates: Mapping[str, Aggregate], schema: pa.Schema) -> None:
        columns = dict.fromkeys(column for aggregate in aggregates.values() for column in aggregate.columns)
        types = {column: plain_type(schema.field(column).type) for column in columns}
        self._counted = tuple(column for column, kind in types.items() if pa.types.is_nested(kind))
        self._valued = tuple(column for column in types if column not in self._counted)
        self._timed = any(isinstance(aggregate.state, Ends) for aggregate in aggregates.values())
        # Nested values are only counted, so it is enough to keep whether they are null.
        fields = [pa.field(column, pa.bool_() if column in self._counted else kind) for column, kind in types.items()]
        self._fields = [*fields, EVENT_TIME_FIELD] if self._timed else fields
        self._plan = AggregatePlan([_NUMBER], aggregates, pa.schema([*self._fields, pa.field(_NUMBER, pa.int64())]))
        self._partials = [field for field in self._plan.partial_schema if field.name not in (_NUMBER, WINDOW, ROWS)]
        self._lists = [field.name for field in self._partials if pa.types.is_list(field.type)]
        self._partial = pa.struct(self._partials)
        pending = pa.struct([pa.field(field.name, pa.list_(field.type)) for field in self._fields])
        kept = [pa.field("partial", self._partial), pa.field("pending", pending)] if fields else []
        self.type = pa.struct([pa.field("rows", pa.int64()), *kept])
        self.kept = bool(kept)
        self.result_schema = pa.schema([field for field in self._plan.result_schema if field.name != _NUMBER])

    def described(self) -> str:
        """Writes down which partials are kept."""
        return self._plan.described()

    # --- accumulators ---

    def empty(self) -> Accumulator:
        return {"rows": 0, "partial": None, "pending": self._no_values()} if self.kept else {"rows": 0}

    def add(self, accumulator: Accumulator, record: Row, at_ms: int | None) -> Accumulator:
        """Adds a record with this time to the accumulator, in place."""
        accumulator["rows"] += 1
        if self.kept:
            pending = self._add_values(accumulator, record, at_ms)
            many = len(pending[self._fields[0].name])
            if many >= PENDING and many >= self._held(accumulator["partial"]):
                return self._folded([accumulator])
        return accumulator

    def of_records(self, records: Sequence[Row], times: Sequence[int | None]) -> Accumulator:
        """Returns the accumulator of all of these."""
        accumulator = self.empty()
        for record, at_ms in zip(records, times, strict=True):
            accumulator["rows"] += 1
            if self.kept:
                self._add_values(accumulator, record, at_ms)
        return accumulator

    def combined(self, accumulators: Sequence[Accumulator]) -> Accumulator:
        """Returns the accumulator of what all of these hold."""
        if self.kept:
            return accumulators[0] if len(accumulators) == 1 else self._folded(accumulators)
        return {"rows": sum(accumulator["rows"] for accumulator in accumulators)}

    def copied(self, accumulator: Accumulator) -> Accumulator:
        """Returns a copy to which records may be added."""
        if not self.kept:
            return dict(accumulator)
        pending = self._pending(accumulator)
        return {**accumulator, "pending": {name: values.copy() for name, values in pending.items()}}

    def finish(self, accumulators: Sequence[Accumulator]) -> pa.Table:
        """Returns the results of each accumulator, in a row of its own."""
        merged = self._merged(accumulators, np.arange(len(accumulators)))
        return self._plan.finish(merged).select(self.result_schema.names)

    # --- values that wait to be folded ---

    def _add_values(self, accumulator: Accumulator, record: Row, at_ms: int | None) -> dict[str, list[Any]]:
        pending = self._pending(accumulator)
        for name in self._valued:
            pending[name].append(record[name])
        for name in self._counted:
            pending[name].append(None if record[name] is None else True)
        if self._timed:
            pending[EVENT_TIME].append(at_ms)
        return pending

    def _pending(self, accumulator: Accumulator) -> dict[str, list[Any]]:
        """Returns the values by column. A restored accumulator may lack those that a new aggregate reads."""
        pending: dict[str, list[Any]] | None = accumulator["pending"]
        if pending is None or None in pending.values():
            held = {name: values for name, values in (pending or {}).items() if values is not None}
            many = max(map(len, held.values()), default=0)
            pending = {field.name: held.get(field.name, [None] * many) for field in self._fields}
            accumulator["pending"] = pending
        return pending

    def _no_values(self) -> dict[str, list[Any]]:
        return {field.name: [] for field in self._fields}

    def _held(self, partial: dict[str, Any] | None) -> int:
        """Returns the length of the longest list in the partials."""
        return max((len(partial[name] or ()) for name in self._lists), default=0) if partial is not None else 0

    # --- folding ---

    def _folded(self, accumulators: Sequence[Accumulator]) -> Accumulator:
        """Folds all values of these accumulators, and merges them into one."""
        merged = self._merged(accumulators, np.zeros(len(accumulators), np.int64))
        (partial,) = merged.select([field.name for field in self._partials]).to_pylist()
        return {"rows": merged.column(ROWS)[0].as_py(), "partial": partial, "pending": self._no_values()}

    def _merged(self, accumulators: Sequence[Accumulator], numbers: Ints) -> pa.Table:
        """Returns the partials of what accumulators of one number hold, in the order of the numbers."""
        if not self.kept:
            return self._saved(accumulators, numbers, np.zeros(len(accumulators), np.int64))
        pending = [self._pending(accumulator) for accumulator in accumulators]
        many = np.array([len(values[self._fields[0].name]) for values in pending], np.int64)
        partials = [self._saved(accumulators, numbers, many)]
        if many.any():
            values = {
                field.name: pa.array(list(chain.from_iterable(of[field.name] for of in pending)), field.type)
                for field in self._fields
            }
            partials.append(self._plan.partial(pa.table({**values, _NUMBER: np.repeat(numbers, many)}), 0))
        merged = self._plan.merge(partials)
        return merged.take(pa.array(np.argsort(merged.column(_NUMBER).to_numpy())))

    def _saved(self, accumulators: Sequence[Accumulator], numbers: Ints, pending: Ints) -> pa.Table:
        """Returns the partials that accumulators hold, and how many records were folded into them."""
        rows = np.array([accumulator["rows"] for accumulator in accumulators], np.int64) - pending
        columns = {_NUMBER: pa.array(numbers), WINDOW: pa.array(np.zeros(len(rows), np.int64)), ROWS: pa.array(rows)}
        if self.kept:
            held = pa.array([accumulator["partial"] for accumulator in accumulators], self._partial)
            columns.update(zip([field.name for field in self._partials], held.flatten(), strict=True))
        return self._plan.adopted(pa.table(columns))
