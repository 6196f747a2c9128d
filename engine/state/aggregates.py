"""Built-in aggregates as Arrow kernels: partial per batch, merge of partials, finish. No Python per row.

Invariant: merging is associative and commutative, so partials may be merged in any grouping (before the exchange, in a
run of a pane, at restore) and give the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

ROWS = "_rows"
WINDOW = "_window"

_MERGE = {"sum": "sum", "count": "sum", "min": "min", "max": "max"}


@dataclass(frozen=True)
class Aggregate:
    """One named result. `parts`: the Arrow kernels whose partial values it is made of."""

    kind: str
    column: str | None
    parts: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.kind}({self.column or '*'})"


def count() -> Aggregate:
    """The number of records."""
    return Aggregate("count", None, ())


def total(column: str) -> Aggregate:
    """The sum of a column; null if all values are null."""
    return Aggregate("total", column, ("sum",))


def minimum(column: str) -> Aggregate:
    return Aggregate("minimum", column, ("min",))


def maximum(column: str) -> Aggregate:
    return Aggregate("maximum", column, ("max",))


def mean(column: str) -> Aggregate:
    """The mean of the values that are not null."""
    return Aggregate("mean", column, ("sum", "count"))


class AggregatePlan:
    """How the named aggregates of one window operator are computed from an input schema."""

    def __init__(self, keys: Sequence[str], aggregates: Mapping[str, Aggregate], schema: pa.Schema) -> None:
        self.keys = list(keys)
        self.aggregates = dict(aggregates)
        self._partial_of: dict[tuple[str, str], str] = {}
        for aggregate in self.aggregates.values():
            for part in aggregate.parts:
                assert aggregate.column is not None
                self._partial_of.setdefault((aggregate.column, part), f"{aggregate.column}${part}")
        self._first = [(column, part) for column, part in self._partial_of]
        self._merge = [(name, _MERGE[part]) for (_, part), name in self._partial_of.items()]
        empty = pa.Table.from_batches([], schema)
        self.partial_schema = self._with_window(self._group_rows(empty, self.keys), 0).schema
        self.result_schema = self.finish(self.partial_schema.empty_table()).schema

    def partial(self, batch: pa.RecordBatch, windows: pa.Array | int) -> pa.Table:
        """Group a batch's rows by key and window; `windows` is one start for all rows, or one per row."""
        table = pa.Table.from_batches([batch])
        if isinstance(windows, int):
            return self._with_window(self._group_rows(table, self.keys), windows)
        grouped = self._group_rows(table.append_column(WINDOW, windows), [*self.keys, WINDOW])
        return grouped.select(self.partial_schema.names)

    def merge(self, partials: Sequence[pa.Table]) -> pa.Table:
        """Partials of one window into one, a row per key."""
        joined = pa.concat_tables(partials)
        start = joined.column(WINDOW)[0].as_py() if joined.num_rows else 0
        grouped = joined.group_by(self.keys, use_threads=False).aggregate([(ROWS, "sum"), *self._merge])
        grouped = self._named(grouped, [(ROWS, "sum"), *self._merge], [ROWS, *self._partial_of.values()])
        return self._with_window(grouped, start)

    def finish(self, merged: pa.Table) -> pa.Table:
        columns = {name: merged.column(name) for name in self.keys}
        for name, aggregate in self.aggregates.items():
            columns[name] = _FINISH[aggregate.kind](merged, self._partials(aggregate))
        return pa.table(columns)

    def _partials(self, aggregate: Aggregate) -> list[str]:
        return [self._partial_of[aggregate.column, part] for part in aggregate.parts if aggregate.column is not None]

    def _group_rows(self, table: pa.Table, keys: list[str]) -> pa.Table:
        grouped = table.group_by(keys, use_threads=False).aggregate([([], "count_all"), *self._first])
        return self._named(grouped, [("", "count_all"), *self._first], [ROWS, *self._partial_of.values()])

    def _named(self, grouped: pa.Table, kernels: list[tuple[str, str]], names: list[str]) -> pa.Table:
        made = {
            f"{column}_{kernel}" if column else kernel: name
            for (column, kernel), name in zip(kernels, names, strict=True)
        }
        return grouped.rename_columns([made.get(name, name) for name in grouped.column_names])

    def _with_window(self, grouped: pa.Table, start_ms: int) -> pa.Table:
        windows = pa.repeat(pa.scalar(start_ms, pa.int64()), grouped.num_rows)
        return grouped.append_column(WINDOW, windows).select([*self.keys, WINDOW, ROWS, *self._partial_of.values()])


def _mean(merged: pa.Table, names: list[str]) -> pa.ChunkedArray:
    total_, count_ = (merged.column(name) for name in names)
    nonzero = pc.if_else(pc.equal(count_, 0), pa.scalar(None, count_.type), count_)
    return pc.divide(pc.cast(total_, pa.float64()), pc.cast(nonzero, pa.float64()))


def _only(merged: pa.Table, names: list[str]) -> pa.ChunkedArray:
    (name,) = names
    return merged.column(name)


_FINISH: dict[str, Callable[[pa.Table, list[str]], pa.ChunkedArray]] = {
    "count": lambda merged, _: merged.column(ROWS),
    "total": _only,
    "minimum": _only,
    "maximum": _only,
    "mean": _mean,
}
