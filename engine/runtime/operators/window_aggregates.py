"""Built-in aggregates in windows that only the row lane has: any assigner, trigger and evictor (B4 to B6).

The contents of a window are an accumulator of a `RecordPlan`. A window that fires gives its accumulator; the results of
all windows that fire together are computed as one batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from engine.core.functions import Row
from engine.runtime.operators.base import EVENT_TIME
from engine.runtime.operators.window_contents import Folding, Items
from engine.runtime.operators.windowed_functions import WindowOperator, WindowPlan
from engine.state.windows.record_plan import RecordPlan


class Accumulated(Folding):
    """Keeps an accumulator of the aggregates. `by_clock`: `first` and `last` go by the clock, not by event time."""

    def __init__(self, plan: RecordPlan, by_clock: bool) -> None:
        self.plan = plan
        self.type = plan.type
        self.by_clock = by_clock

    def first(self, record: Row, at_ms: int | None) -> Any:
        return self.plan.add(self.plan.empty(), record, at_ms)

    def more(self, item: Any, record: Row, at_ms: int | None) -> Any:
        return self.plan.add(item, record, at_ms)

    def combined(self, items: Sequence[Any]) -> Any:
        return self.plan.combined(items)

    def copied(self, item: Any) -> Any:
        return self.plan.copied(item)

    def elements(self, items: Items, kept: bool) -> list[Any]:
        return [self.copied(item) for item in items] if kept else items

    def folded(self, records: list[Row], times: Sequence[int | None]) -> list[Any]:
        """An evictor leaves records in the order in which they came: that order is the clock."""
        return [self.plan.of_records(records, range(len(records)) if self.by_clock else times)]


class AggregateWindowOperator(WindowOperator):
    """`aggregates` makes the results: the key columns, the bounds of the window if it has some, and the aggregates."""

    def __init__(
        self,
        aggregates: RecordPlan,
        plan: WindowPlan,
        keys: Sequence[str],
        input_schema: pa.Schema,
        schema: pa.Schema,
    ) -> None:
        super().__init__(plan, keys, input_schema, schema)
        self._aggregates = aggregates

    def _open_states(self) -> None:
        super()._open_states()
        self._compute = self._of_window

    def _of_window(self, elements: list[Any]) -> list[Any]:
        """Returns the accumulator of the current window, with its key and its span."""
        return [{"of": self._current.windowed.key, "accumulator": one} for one in elements]

    def _check_results(self, rows: list[Any]) -> None:
        """Accumulators have no results yet, and these always fit."""

    def _made(self, rows: list[Any], times: pa.Array | None) -> pa.RecordBatch:
        results = self._aggregates.finish([row["accumulator"] for row in rows])
        columns: dict[str, Any] = dict(zip(results.column_names, results.columns, strict=True))
        *keys, starts, ends = zip(*(row["of"] for row in rows), strict=True)
        for name, values in zip(self._keys, keys, strict=True):
            if name in self._schema.names:  # not if it is hidden
                columns[name] = pa.array(values, self._schema.field(name).type)
        for name, bounds in (("window_start", starts), ("window_end", ends)):
            if name not in columns:
                columns[name] = pc.multiply(pa.array(bounds, pa.int64()), 1000).cast(pa.timestamp("us", tz="UTC"))
        columns[EVENT_TIME] = times
        table = pa.table([columns[name] for name in self._schema.names], schema=self._schema)
        (batch,) = table.combine_chunks().to_batches()
        return batch
