"""`AggregatePlan`: computes aggregates by Arrow kernels: partials per batch, merged partials, results.

Invariant: merging is associative and commutative. So partials may be merged in any grouping (before the exchange, in a
pane, on restore) and give the same result; sums of floats are equal up to rounding. No Python per row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from engine.core.evolution import adapted
from engine.state.key_columns import Column, as_doubles, canonical, plain
from engine.state.key_hash import hash_columns
from engine.state.windows.aggregates import Aggregate
from engine.state.windows.grouping import Groups, grouped, one_array
from engine.state.windows.held import State

ROWS = "_rows"
WINDOW = "_window"

SMALL = 200_000
"""So few rows are merged without asking whether it is worth it."""
WORTH = 0.7
"""A merge has to leave less than this share of the rows."""
_SAMPLE, _BITS = np.uint64(64), np.uint64(24)
"""One of so many keys is looked at, by these bits of its hash. Others have chosen the subtask of the key."""

_MERGE = {"sum": "sum", "count": "sum", "min": "min", "max": "max"}


class AggregatePlan:
    """Computes the named aggregates of one window operator for an input schema.

    Kernels run over columns that are named by position, so a user's column name never clashes with a kernel's result.
    Partials have no dictionary columns: the dictionaries of two batches could differ.
    """

    def __init__(
        self,
        keys: Sequence[str],
        aggregates: Mapping[str, Aggregate],
        schema: pa.Schema,
        apart: Sequence[str] = (),
    ) -> None:
        """`apart`: the names of other columns beside the partials."""
        self.keys = list(keys)
        self._apart = set(apart)
        self.aggregates = dict(aggregates)
        self._partial_of: dict[tuple[str, str], str] = {}
        self._states: dict[str, tuple[State, str]] = {}
        for aggregate in self.aggregates.values():
            for part in aggregate.parts:
                assert aggregate.column is not None
                self._partial_of.setdefault((aggregate.column, part), self._free_name(f"{aggregate.column}${part}"))
        for state in (aggregate.state for aggregate in self.aggregates.values() if aggregate.state is not None):
            if state.name not in self._states:
                self._states[state.name] = (state, self._free_name(f"{state.column}${state.name.partition('(')[0]}"))
        self._names = [*self.keys, WINDOW, *self.kept]
        assert len(set(self._names)) == len(self._names), f"a key column has a reserved name: {self.keys}"
        self.partial_schema = self.partial(schema.empty_table(), 0).schema
        self.result_schema = self.finish(self.partial_schema.empty_table()).schema

    @property
    def only_keys(self) -> frozenset[str]:
        """The key columns that no aggregate reads: they may come as dictionaries."""
        read = {aggregate.column for aggregate in self.aggregates.values()}
        states = {column for state, _ in self._states.values() for column in state.columns}
        return frozenset(self.keys) - read - states

    @property
    def columns(self) -> list[str]:
        """The columns that partials are made from, each once."""
        read = [column for column, _ in self._partial_of]
        read += [column for state, _ in self._states.values() for column in state.columns]
        return list(dict.fromkeys([*self.keys, *read]))

    def partial(self, rows: pa.RecordBatch | pa.Table, windows: pa.Array | int) -> pa.Table:
        """Groups rows by key and window. `windows` is one window start for all rows, or one per row.

        The chunks of a column of dictionaries have one dictionary.
        """
        keys = [rows.column(key) for key in self.keys]
        codes = [coded(key) for key in keys]
        per_row = not isinstance(windows, int)
        if per_row:
            codes.append(windows)
        values = [(plain(rows.column(column)), part) for column, part in self._partial_of]
        groups, (counts, *partials) = self._grouped(codes, [(None, "count_all"), *values])
        starts = groups.pop() if per_row else _repeat(windows, len(counts))
        distinct = [_decoded(code, key) for code, key in zip(groups, keys, strict=True)]
        if self._states:
            of = Groups.from_lists(partials.pop())
            partials += [state.merge(state.lift(rows), of) for state, _ in self._states.values()]
        return pa.table([*distinct, starts, counts, *partials], names=self._names)

    def partials_of(self, rows: pa.RecordBatch | pa.Table, groups: Groups) -> pa.Table:
        """Returns the partials of groups that are known already, one row each, without keys and window."""
        values = [groups.kernel(plain(rows.column(column)), part) for column, part in self._partial_of]
        values += [state.merge(state.lift(rows), groups) for state, _ in self._states.values()]
        return pa.table([pa.array(groups.lengths), *values], names=self.kept)

    def merged_of(self, partials: pa.Table, groups: Groups) -> pa.Table:
        """Merges the partials of groups that are known already."""
        values = [groups.kernel(partials.column(ROWS), "sum")]
        values += [groups.kernel(partials.column(name), _MERGE[part]) for (_, part), name in self._partial_of.items()]
        values += [state.merge(partials.column(name), groups) for state, name in self._states.values()]
        return pa.table(values, names=self.kept)

    @property
    def kept(self) -> list[str]:
        """The names of what is kept beside keys and window."""
        return [ROWS, *self._partial_of.values(), *(name for _, name in self._states.values())]

    def ungrouped(self, rows: pa.RecordBatch, windows: pa.Array | int) -> pa.RecordBatch:
        """Turns each row into a partial of its own."""
        starts = _repeat(windows, rows.num_rows) if isinstance(windows, int) else windows
        keys = [canonical(plain(rows.column(key))) for key in self.keys]
        values = [_of_one(plain(rows.column(column)), part) for column, part in self._partial_of]
        values += [state.lift(rows) for state, _ in self._states.values()]
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
                column = adapted(saved.column(field.name), field.type)
                columns.append(column.fill_null(0) if field.name in counts else column)
            else:
                unseen = pa.scalar(0 if field.name in counts else None, field.type)
                columns.append(pa.chunked_array([pa.repeat(unseen, saved.num_rows)]))
        return pa.table(columns, schema=self.partial_schema)

    def merge(self, partials: Sequence[pa.Table]) -> pa.Table:
        """Merges partials of one window into one, with one row per key."""
        joined = pa.concat_tables(partials)
        start = joined.column(WINDOW)[0].as_py() if joined.num_rows else 0
        values = [(joined.column(name), _MERGE[part]) for (_, part), name in self._partial_of.items()]
        codes = [joined.column(key) for key in self.keys]
        keys, merged = self._grouped(codes, [(joined.column(ROWS), "sum"), *values])
        if self._states:
            of = Groups.from_lists(merged.pop())
            merged += [state.merge(joined.column(name), of) for state, name in self._states.values()]
        return pa.table([*keys, _repeat(start, len(merged[0])), *merged], names=self._names)

    def put_together(self, partials: Sequence[pa.Table]) -> pa.Table:
        """Merges partials of one window if that leaves clearly fewer rows; otherwise they are only concatenated."""
        joined = pa.concat_tables(partials)
        if joined.num_rows < SMALL or self._share_left(joined) < WORTH:
            return self.merge(partials)
        return joined.combine_chunks()

    def _share_left(self, joined: pa.Table) -> float:
        """Estimates which share of the rows a merge leaves, from all rows of the keys with certain hashes."""
        hashes = hash_columns([joined.column(key).combine_chunks() for key in self.keys])
        some = hashes[(hashes >> _BITS) % _SAMPLE == 0]
        return len(np.unique(some)) / len(some) if len(some) else 0.0

    def of_keys(self, merged: pa.Table, wanted: pa.Table) -> pa.Table:
        """Returns the rows of merged partials whose keys occur in `wanted`. Null keys are equal to each other."""
        both = pa.concat_tables([merged.select(self.keys), wanted.select(self.keys)])
        rows = np.arange(both.num_rows)
        kernels = [(pa.array(rows), "min"), (pa.array(rows >= merged.num_rows), "max")]
        _, (places, asked) = grouped([both.column(key) for key in self.keys], kernels)
        return merged.take(places.filter(asked))

    def finish(self, merged: pa.Table) -> pa.Table:
        columns = {name: merged.column(name) for name in self.keys}
        for name, aggregate in self.aggregates.items():
            if aggregate.state is not None and aggregate.result is not None:
                columns[name] = aggregate.result(one_array(merged.column(self._states[aggregate.state.name][1])))
            else:
                columns[name] = _FINISH[aggregate.kind](merged, self._partials(aggregate))
        return pa.table(columns)

    def described(self) -> str:
        """Writes down which partials are kept, in any order: saved ones can be used by a plan with the same."""
        types = {part: self.partial_schema.field(name).type for part, name in self._partial_of.items()}
        parts = [f"{kernel}({column}) {types[column, kernel]}" for column, kernel in types]
        parts += [f"{state.name} {self.partial_schema.field(name).type}" for state, name in self._states.values()]
        return ", ".join(["count(*) int64", *sorted(parts)])

    def _grouped(
        self, codes: list[Column], kernels: list[tuple[Column | None, str]]
    ) -> tuple[list[pa.ChunkedArray], list[pa.ChunkedArray]]:
        """Returns distinct keys and the value of each kernel; if the plan has states, the rows of each key, too."""
        if self._states:
            kernels = [*kernels, (pa.array(np.arange(len(codes[0]))), "list")]
        return grouped(codes, kernels)

    def _partials(self, aggregate: Aggregate) -> list[str]:
        return [self._partial_of[aggregate.column, part] for part in aggregate.parts if aggregate.column is not None]

    def _free_name(self, name: str) -> str:
        taken = {*self.keys, *self._apart, *self._partial_of.values(), *(other for _, other in self._states.values())}
        while name in taken:
            name += "$"
        return name


def _of_one(column: pa.Array, kernel: str) -> pa.Array:
    """Returns the kernel's value for each row alone; its type may still differ."""
    return column.is_valid() if kernel == "count" else column


def coded(key: Column) -> Column:
    """Returns the column to group by. It is the indices of a dictionary, so that values are not compared per row."""
    if not pa.types.is_dictionary(key.type):
        return canonical(plain(key))
    return pa.chunked_array([chunk.indices for chunk in _chunks(key)], key.type.index_type)


def _decoded(code: pa.ChunkedArray, key: Column) -> pa.ChunkedArray:
    """Returns the keys of grouped `coded` values. If a dictionary holds a value twice, so does the partial."""
    if not pa.types.is_dictionary(key.type):
        return code
    values = [chunk.dictionary for chunk in _chunks(key)[:1]] or [pa.array([], key.type.value_type)]
    return canonical(plain(values[0])).take(code)


def _chunks(column: Column) -> list[pa.Array]:
    return column.chunks if isinstance(column, pa.ChunkedArray) else [column]


def _repeat(value: int, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, pa.int64()), rows)


def _mean(merged: pa.Table, names: list[str]) -> pa.ChunkedArray:
    total_, count_ = (merged.column(name) for name in names)
    nonzero = pc.if_else(pc.equal(count_, 0), pa.scalar(None, count_.type), count_)
    return pc.divide(as_doubles(total_), as_doubles(nonzero))


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
