"""States of aggregates that no single Arrow kernel merges. Each is one column: a struct or a list per key and window.

A state lifts each row to a state of its own, and merges the states of a group into one. Invariant: merging is
associative and commutative, as `engine/state/windows/aggregates.py` says. Null values are left out everywhere; -0.0 is
0.0, and NaN is one value, greater than any number. A null state is one that has seen nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from engine.core.event_time import EVENT_TIME
from engine.state.key_columns import Column, as_doubles, canonical, plain
from engine.state.windows.grouping import Groups, Ints, grouped, one_array


@dataclass(frozen=True)
class State(ABC):
    column: str

    @property
    @abstractmethod
    def name(self) -> str:
        """What is kept, as a snapshot's description tells it; aggregates with equal names share one state."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it reads."""
        return (self.column,)

    @abstractmethod
    def lift(self, rows: pa.RecordBatch | pa.Table) -> pa.Array:
        """Returns the state of each row alone."""

    @abstractmethod
    def combine(self, held: pa.Array, of: Ints, count: int) -> pa.Array:
        """Merges states into one for each of `count` groups. `of` is the group of each state, ascending."""

    def merge(self, held: Column, groups: Groups) -> pa.Array:
        return self.combine(one_array(held).take(pa.array(groups.order)), groups.of, groups.count)


@dataclass(frozen=True)
class Ends(State):
    """The value with the least or greatest event time. Of several at that time the least, or the greatest."""

    latest: bool

    @property
    def name(self) -> str:
        return f"{'last' if self.latest else 'first'}({self.column})"

    def lift(self, rows: pa.RecordBatch | pa.Table) -> pa.Array:
        values, times = _values(rows, self.column), one_array(rows.column(EVENT_TIME))
        mask = values.is_null()
        if times.null_count:  # windows that are not of event time may hold records that have none
            mask = pc.or_(mask, times.is_null())
        return pa.StructArray.from_arrays([times, values], ["time", "value"], mask=mask)

    def combine(self, held: pa.Array, of: Ints, count: int) -> pa.Array:
        held, of = _without_nulls(held, of)
        if not len(held):
            return pa.nulls(count, held.type)
        kernel, extreme = ("max", np.maximum) if self.latest else ("min", np.minimum)
        times, starts = held.field("time").to_numpy(), _starts(of)
        at_end = times == np.repeat(extreme.reduceat(times, starts), np.diff([*starts, len(of)]))
        (found,), (values, when) = grouped(
            [pa.array(of[at_end])],
            [(held.field("value").filter(pa.array(at_end)), kernel), (pa.array(times[at_end]), "min")],
        )
        ends = pa.StructArray.from_arrays([one_array(when), one_array(values)], ["time", "value"])
        return _scattered(ends, found.to_numpy(), count)


@dataclass(frozen=True)
class Distinct(State):
    """A list of the distinct values."""

    @property
    def name(self) -> str:
        return f"distinct({self.column})"

    def lift(self, rows: pa.RecordBatch | pa.Table) -> pa.Array:
        return _single(_values(rows, self.column))

    def combine(self, held: pa.Array, of: Ints, count: int) -> pa.Array:
        values, of = _flattened(held, of)
        (groups, distinct), _ = grouped([pa.array(of), values], [])
        return _listed(one_array(distinct), groups.to_numpy(), count)


@dataclass(frozen=True)
class Weighed(State):
    """A list of distinct codes of the values, each with a weight; weights of one code are merged by a kernel."""

    kind: str
    kernel: str
    encode: Callable[[pa.Array], tuple[pa.Array, pa.Array]]

    @property
    def name(self) -> str:
        return f"{self.kind}({self.column})"

    def lift(self, rows: pa.RecordBatch | pa.Table) -> pa.Array:
        values = _values(rows, self.column)
        codes, weights = self.encode(values.drop_null())
        pairs = pa.StructArray.from_arrays([codes, weights], ["value", "weight"])
        return _listed(pairs, np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False)), len(values))

    def combine(self, held: pa.Array, of: Ints, count: int) -> pa.Array:
        pairs, of = _flattened(held, of)
        (groups, codes), (weights,) = grouped(
            [pa.array(of), pairs.field("value")], [(pairs.field("weight"), self.kernel)]
        )
        merged = [one_array(codes), one_array(weights).cast(pairs.type.field("weight").type)]
        return _listed(pa.StructArray.from_arrays(merged, ["value", "weight"]), groups.to_numpy(), count)


@dataclass(frozen=True)
class Top(State):
    """The n greatest values, or the values of the n records with the greatest `by`, greatest first."""

    n: int
    by: str | None

    @property
    def name(self) -> str:
        return f"top_{self.n}({self.column}{f' by {self.by}' if self.by is not None else ''})"

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column, *([] if self.by is None else [self.by]))

    def lift(self, rows: pa.RecordBatch | pa.Table) -> pa.Array:
        values = _values(rows, self.column)
        if self.by is None:
            return _single(values)
        by = _values(rows, self.by)
        either = pc.or_(values.is_null(), by.is_null())
        return _single(pa.StructArray.from_arrays([by, values], [self.by, self.column], mask=either))

    def combine(self, held: pa.Array, of: Ints, count: int) -> pa.Array:
        values, of = _flattened(held, of)
        keys = values.flatten() if pa.types.is_struct(values.type) else [values]
        names = [f"v{place}" for place in range(len(keys))]
        table = pa.table([pa.array(of), *keys], ["g", *names])
        order = pc.sort_indices(table, [(name, "ascending") for name in table.column_names]).to_numpy()[::-1]
        order = order[np.argsort(of[order], kind="stable")]  # by group, and in it the greatest first
        of = of[order]
        kept = np.arange(len(of)) - _starts(of).repeat(_lengths(of)) < self.n
        return _listed(values.take(pa.array(order[kept])), of[kept], count)


@dataclass(frozen=True)
class Moments(State):
    """The number of values, their mean, and the sum of squared distances from it, merged as Chan et al. do."""

    @property
    def name(self) -> str:
        return f"moments({self.column})"

    def lift(self, rows: pa.RecordBatch | pa.Table) -> pa.Array:
        values = as_doubles(_values(rows, self.column))
        ones, zeros = np.ones(len(values), np.int64), np.zeros(len(values))
        arrays = [pa.array(ones), values, pa.array(zeros)]
        return pa.StructArray.from_arrays(arrays, ["n", "mean", "squares"], mask=values.is_null())

    def combine(self, held: pa.Array, of: Ints, count: int) -> pa.Array:
        held, of = _without_nulls(held, of)
        n, mean, squares = (held.field(name).to_numpy() for name in ("n", "mean", "squares"))
        total = np.bincount(of, n, count)
        with np.errstate(invalid="ignore", divide="ignore"):
            centre = np.bincount(of, n * mean, count) / total
            squares = np.bincount(of, squares + n * (mean - centre[of]) ** 2, count)
        arrays = [pa.array(total.astype(np.int64)), pa.array(centre, pa.float64()), pa.array(squares, pa.float64())]
        return pa.StructArray.from_arrays(arrays, ["n", "mean", "squares"], mask=pa.array(total == 0))


def _values(rows: pa.RecordBatch | pa.Table, column: str) -> pa.Array:
    return one_array(canonical(plain(rows.column(column))))


def _without_nulls(held: pa.Array, of: Ints) -> tuple[pa.Array, Ints]:
    if not held.null_count:
        return held, of
    return held.drop_null(), of[held.is_valid().to_numpy(zero_copy_only=False)]


def _lengths(of: Ints) -> Ints:
    """Returns how many rows each group has that has any."""
    return np.diff([*_starts(of), len(of)])


def _starts(of: Ints) -> Ints:
    """Returns the place of the first row of each group that has any."""
    return np.flatnonzero(np.diff(of, prepend=-1))


def _scattered(values: pa.Array, places: Ints, count: int) -> pa.Array:
    """Returns an array with the values in these places, and nulls elsewhere."""
    index = np.full(count, -1)
    index[places] = np.arange(len(places))
    return values.take(pa.array(index, mask=index < 0))


def _single(values: pa.Array) -> pa.Array:
    """Returns each value as a list of one; a null as an empty list."""
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    return _listed(values.drop_null(), np.flatnonzero(valid), len(values))


def _listed(values: pa.Array, of: Ints, count: int) -> pa.Array:
    """Returns the values of each group as a list."""
    order = np.argsort(of, kind="stable")
    offsets = np.concatenate([[0], np.cumsum(np.bincount(of, minlength=count))]).astype(np.int32)
    kind = pa.list_(pa.field("element", values.type))
    return pa.ListArray.from_arrays(pa.array(offsets), values.take(pa.array(order)), kind)


def _flattened(held: pa.Array, of: Ints) -> tuple[pa.Array, Ints]:
    """Returns the elements of all lists, and the group of each."""
    lengths = pc.list_value_length(held).fill_null(0).to_numpy()
    return held.flatten(), np.repeat(of, lengths)
