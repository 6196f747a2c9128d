"""Computes built-in aggregates by Arrow kernels: partials per batch, merged partials, results. No Python per row.

Invariant: merging is associative and commutative. So partials may be merged in any grouping (before the exchange, in a
pane, on restore) and give the same result; sums of floats are equal up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from engine.core.evolution import adapted

ROWS = "_rows"
WINDOW = "_window"

_MERGE = {"sum": "sum", "count": "sum", "min": "min", "max": "max"}

Column: TypeAlias = "pa.Array | pa.ChunkedArray"


@dataclass(frozen=True)
class Aggregate:
    """One aggregate of a window. `parts` are the Arrow kernels whose partial values it is computed from."""

    kind: str
    column: str | None
    parts: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.kind}({self.column or '*'})"


def count(column: str | None = None) -> Aggregate:
    """Counts the records, or the values of a column that are not null."""
    return Aggregate("count", column, () if column is None else ("count",))


def total(column: str) -> Aggregate:
    """Sums the values that are not null; null if all are. Integer sums have 64 bits and wrap round, as in Java."""
    return Aggregate("total", column, ("sum",))


def minimum(column: str) -> Aggregate:
    """Takes the least value that is not null; null if all are."""
    return Aggregate("minimum", column, ("min",))


def maximum(column: str) -> Aggregate:
    """Takes the greatest value that is not null; null if all are."""
    return Aggregate("maximum", column, ("max",))


def mean(column: str) -> Aggregate:
    """Averages the values that are not null; null if all are."""
    return Aggregate("mean", column, ("sum", "count"))


class AggregatePlan:
    """Computes the named aggregates of one window operator for an input schema.

    Kernels run over columns that are named by position, so a user's column name never clashes with a kernel's result.
    Partials have no dictionary columns: the dictionaries of two batches could differ.
    """

    def __init__(self, keys: Sequence[str], aggregates: Mapping[str, Aggregate], schema: pa.Schema) -> None:
        self.keys = list(keys)
        self.aggregates = dict(aggregates)
        self._partial_of: dict[tuple[str, str], str] = {}
        for aggregate in self.aggregates.values():
            for part in aggregate.parts:
                assert aggregate.column is not None
                self._partial_of.setdefault((aggregate.column, part), self._free_name(f"{aggregate.column}${part}"))
        self._names = [*self.keys, WINDOW, ROWS, *self._partial_of.values()]
        assert len(set(self._names)) == len(self._names), f"a key column has a reserved name: {self.keys}"
        self.partial_schema = self.partial(schema.empty_table(), 0).schema
        self.result_schema = self.finish(self.partial_schema.empty_table()).schema

    def partial(self, rows: pa.RecordBatch | pa.Table, windows: pa.Array | int) -> pa.Table:
        """Groups rows by key and window. `windows` is one window start for all rows, or one per row."""
        keys = [rows.column(key) for key in self.keys]
        codes = [_coded(key) for key in keys]
        per_row = not isinstance(windows, int)
        if per_row:
            codes.append(windows)
        values = [(_plain(rows.column(column)), part) for column, part in self._partial_of]
        grouped, (counts, *partials) = _group(codes, [(None, "count_all"), *values])
        starts = grouped.pop() if per_row else _repeat(windows, len(counts))
        distinct = [_decoded(code, key) for code, key in zip(grouped, keys, strict=True)]
        return pa.table([*distinct, starts, counts, *partials], names=self._names)

    def ungrouped(self, rows: pa.RecordBatch, windows: pa.Array | int) -> pa.RecordBatch:
        """Turns each row into a partial of its own."""
        starts = _repeat(windows, rows.num_rows) if isinstance(windows, int) else windows
        keys = [_canonical(_plain(rows.column(key))) for key in self.keys]
        values = [_of_one(_plain(rows.column(column)), part) for column, part in self._partial_of]
        arrays = [*keys, starts, _repeat(1, rows.num_rows), *values]
        typed = [array.cast(field.type) for array, field in zip(arrays, self.partial_schema, strict=True)]
        return pa.RecordBatch.from_arrays(typed, schema=self.partial_schema)

    def adopted(self, saved: pa.Table) -> pa.Table:
        """Returns the partials of an earlier version of this plan in the form of this one.

        An aggregate that is new has seen no record of them: its partials are null, and counts are 0.
        """
        counts = {name for (_, part), name in self._partial_of.items() if part == "count"}
        columns = []
        for field in self.partial_schema:
            if field.name in saved.column_names:
                columns.append(adapted(saved.column(field.name), field.type))
            else:
                unseen = pa.scalar(0 if field.name in counts else None, field.type)
                columns.append(pa.chunked_array([pa.repeat(unseen, saved.num_rows)]))
        return pa.table(columns, schema=self.partial_schema)

    def merge(self, partials: Sequence[pa.Table]) -> pa.Table:
        """Merges partials of one window into one, with one row per key."""
        joined = pa.concat_tables(partials)
        start = joined.column(WINDOW)[0].as_py() if joined.num_rows else 0
        values = [(joined.column(name), _MERGE[part]) for (_, part), name in self._partial_of.items()]
        keys, merged = _group([joined.column(key) for key in self.keys], [(joined.column(ROWS), "sum"), *values])
        return pa.table([*keys, _repeat(start, len(merged[0])), *merged], names=self._names)

    def finish(self, merged: pa.Table) -> pa.Table:
        columns = {name: merged.column(name) for name in self.keys}
        for name, aggregate in self.aggregates.items():
            columns[name] = _FINISH[aggregate.kind](merged, self._partials(aggregate))
        return pa.table(columns)

    def described(self) -> str:
        """Writes down which partials are kept, in any order: saved ones can be used by a plan with the same."""
        types = {part: self.partial_schema.field(name).type for part, name in self._partial_of.items()}
        parts = [f"{kernel}({column}) {types[column, kernel]}" for column, kernel in types]
        return ", ".join(["count(*) int64", *sorted(parts)])

    def _partials(self, aggregate: Aggregate) -> list[str]:
        return [self._partial_of[aggregate.column, part] for part in aggregate.parts if aggregate.column is not None]

    def _free_name(self, name: str) -> str:
        while name in self.keys or name in self._partial_of.values():
            name += "$"
        return name


def _group(
    keys: Sequence[Column], kernels: Sequence[tuple[Column | None, str]]
) -> tuple[list[pa.ChunkedArray], list[pa.ChunkedArray]]:
    """Returns the distinct keys, and for each kernel its value per key. A kernel without a column counts rows."""
    key_names = [f"k{position}" for position in range(len(keys))]
    columns = dict(zip(key_names, keys, strict=True))
    wanted: list[tuple[str | list[str], str]] = []
    made: list[str] = []
    for position, (column, kernel) in enumerate(kernels):
        if column is None:
            wanted.append(([], kernel))
            made.append(kernel)
        else:
            columns[f"v{position}"] = column
            wanted.append((f"v{position}", kernel))
            made.append(f"v{position}_{kernel}")
    grouped = pa.table(columns).group_by(key_names, use_threads=False).aggregate(wanted)
    return [grouped.column(name) for name in key_names], [grouped.column(name) for name in made]


def _of_one(column: pa.Array, kernel: str) -> pa.Array:
    """Returns the kernel's value for each row alone; its type may still differ."""
    return column.is_valid() if kernel == "count" else column


def _coded(key: Column) -> Column:
    """Returns the column to group by. It is the indices of a dictionary, so that values are not compared per row."""
    return key.indices if isinstance(key, pa.DictionaryArray) else _canonical(_plain(key))


def _decoded(code: pa.ChunkedArray, key: Column) -> pa.ChunkedArray:
    """Returns the keys of grouped `_coded` values. If a dictionary holds a value twice, so does the partial."""
    return _canonical(_plain(key.dictionary)).take(code) if isinstance(key, pa.DictionaryArray) else code


def _plain(column: Column) -> Column:
    if pa.types.is_dictionary(column.type):
        return _plain(column.cast(column.type.value_type))
    if pa.types.is_string_view(column.type):
        return column.cast(pa.string())
    if pa.types.is_binary_view(column.type):
        return column.cast(pa.binary())
    return column


def _canonical(key: Column) -> Column:
    """Makes -0.0 and 0.0 one key, and all NaNs, as the key hash does. Arrow would group them by their bits."""
    if not (pa.types.is_float32(key.type) or pa.types.is_float64(key.type)):
        return key
    return pc.if_else(pc.is_nan(key), pa.scalar(float("nan"), key.type), pc.add(key, pa.scalar(0.0, key.type)))


def _repeat(value: int, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, pa.int64()), rows)


def _mean(merged: pa.Table, names: list[str]) -> pa.ChunkedArray:
    total_, count_ = (merged.column(name) for name in names)
    nonzero = pc.if_else(pc.equal(count_, 0), pa.scalar(None, count_.type), count_)
    return pc.divide(pc.cast(total_, pa.float64()), pc.cast(nonzero, pa.float64()))


def _only(merged: pa.Table, names: list[str]) -> pa.ChunkedArray:
    (name,) = names
    return merged.column(name)


_FINISH: dict[str, Callable[[pa.Table, list[str]], pa.ChunkedArray]] = {
    "count": lambda merged, names: merged.column(names[0] if names else ROWS),
    "total": _only,
    "minimum": _only,
    "maximum": _only,
    "mean": _mean,
}
