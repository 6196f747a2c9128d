"""The built-in aggregates of windows, as the author of a job names them: what each keeps, and its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from engine.core.errors import JobError
from engine.state.windows import sketches
from engine.state.windows.held import Distinct, Ends, Moments, State, Top, Weighed


@dataclass(frozen=True)
class Aggregate:
    """One aggregate of a window. `parts` are the Arrow kernels whose partial values it is computed from.

    An aggregate with a `state` is computed from that instead: `result` makes the column of results from it.
    """

    kind: str
    column: str | None
    parts: tuple[str, ...] = ()
    state: State | None = None
    result: Callable[[pa.Array], pa.Array] | None = None
    more: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it reads."""
        if self.state is not None:
            return self.state.columns
        return () if self.column is None else (self.column,)

    def __str__(self) -> str:
        return f"{self.kind}({self.column or '*'}{self.more})"


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


def first(column: str) -> Aggregate:
    """Takes the value with the least event time that is not null. Of several at that time it takes the least."""
    return Aggregate("first", column, state=Ends(column, latest=False), result=_value)


def last(column: str) -> Aggregate:
    """Takes the value with the greatest event time that is not null. Of several at that time it takes the greatest."""
    return Aggregate("last", column, state=Ends(column, latest=True), result=_value)


def count_distinct(column: str) -> Aggregate:
    """Counts the distinct values that are not null, exactly: the window keeps each of them."""
    return Aggregate("count_distinct", column, state=Distinct(column), result=_length)


def approx_count_distinct(column: str) -> Aggregate:
    """Estimates the number of distinct values that are not null, with a standard error of 1.6 %.

    A window keeps at most 4,096 small numbers per key for it.
    """
    state = Weighed(column, "registers", "max", sketches.registers)
    return Aggregate("approx_count_distinct", column, state=state, result=sketches.distinct_estimate)


def top_n(column: str, n: int, by: str | None = None) -> Aggregate:
    """Takes the n greatest values that are not null, greatest first, as a list.

    With `by` it takes the n records with the greatest `by`, as a list of structs of `by` and `column`; of records that
    are equal in `by` those with the greatest `column`. Records in which either is null are left out.
    """
    more = f", {n!r}" + (f", by={by}" if by is not None else "")
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        given: tuple[Any, Any] = (column, n)
        swapped = isinstance(given[0], int) and isinstance(given[1], str)
        example = f"top_n({n!r}, {column})" if swapped else f"top_n({column!r}, 3)"
        raise JobError(f"top_n({column}{more}): n is a whole number from 1 on, as in {example}")
    if by == column:
        raise JobError(f"top_n({column}{more}): leave out by={by!r}, the column itself")
    return Aggregate("top_n", column, state=Top(column, n, by), result=lambda held: held, more=more)


def quantile(column: str, q: float) -> Aggregate:
    """Computes a quantile of the values that are not null: 0.5 is the median. It interpolates, as Spark's percentile.

    It is exact: the window keeps each distinct value with its count.
    """
    return _quantile_of("quantile", column, [q], False)


def quantiles(column: str, qs: Sequence[float]) -> Aggregate:
    """Computes several quantiles, as a list in the order given; see `quantile`."""
    return _quantile_of("quantiles", column, qs, False)


def approx_quantile(column: str, q: float) -> Aggregate:
    """Estimates a quantile: the result is within 1 % of the value at its rank, rounded down.

    The window keeps one count per bucket of values that differ by at most 2 %.
    """
    return _quantile_of("approx_quantile", column, [q], True)


def approx_quantiles(column: str, qs: Sequence[float]) -> Aggregate:
    """Estimates several quantiles, as a list in the order given; see `approx_quantile`."""
    return _quantile_of("approx_quantiles", column, qs, True)


def variance(column: str) -> Aggregate:
    """Computes the sample variance of the values that are not null; null if there are fewer than two."""
    return Aggregate("variance", column, state=Moments(column), result=_variance)


def stddev(column: str) -> Aggregate:
    """Computes the sample standard deviation of the values that are not null; null if there are fewer than two."""
    return Aggregate("stddev", column, state=Moments(column), result=lambda held: pc.sqrt(_variance(held)))


def _quantile_of(kind: str, column: str, qs: Sequence[float], approximate: bool) -> Aggregate:
    several = kind.endswith("s")
    more = f", {list(qs) if several else qs[0]}"
    if not qs:
        raise JobError(f"{kind}({column}{more}): write which, as in {kind}({column!r}, [0.5, 0.99])")
    for q in qs:
        if isinstance(q, bool) or not isinstance(q, int | float) or not 0 <= q <= 1:
            raise JobError(f"{kind}({column}{more}): {q!r} is not a number from 0 to 1, such as 0.5 for the median")
    if approximate:
        state, compute = Weighed(column, "buckets", "sum", sketches.buckets), sketches.approx_quantiles
    else:
        state, compute = Weighed(column, "values", "sum", sketches.values_of), sketches.exact_quantiles

    def result(held: pa.Array) -> pa.Array:
        columns = compute(held, qs)
        return _lists_of(columns) if several else columns[0]

    return Aggregate(kind, column, state=state, result=result, more=more)


def _value(held: pa.Array) -> pa.Array:
    return pc.struct_field(held, "value")


def _length(held: pa.Array) -> pa.Array:
    return pc.list_value_length(held).fill_null(0).cast(pa.int64())


def _variance(held: pa.Array) -> pa.Array:
    n, squares = pc.struct_field(held, "n"), pc.struct_field(held, "squares")
    degrees = pc.if_else(pc.greater(n, 1), pc.cast(pc.subtract(n, 1), pa.float64()), pa.scalar(None, pa.float64()))
    return pc.divide(squares, degrees)


def _lists_of(columns: Sequence[pa.Array]) -> pa.Array:
    """Returns for each row the list of its values in these columns; null if they are null."""
    rows, width = len(columns[0]), len(columns)
    values = pa.concat_arrays(columns).take(pa.array(np.arange(rows * width).reshape(width, rows).T.reshape(-1)))
    offsets = pa.array(np.arange(rows + 1, dtype=np.int32) * width)
    kind = pa.list_(pa.field("element", pa.float64()))
    return pc.if_else(columns[0].is_valid(), pa.ListArray.from_arrays(offsets, values, kind), pa.scalar(None, kind))
