"""Groups rows by key with Arrow: kernels per group, and which rows are in which group. No Python per row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from engine.state.key_columns import Column

Ints: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Groups:
    """`order` are the rows, those of a group together; `of` is the group of each of them, ascending."""

    order: Ints
    of: Ints
    count: int

    @classmethod
    def from_lists(cls, rows: pa.ChunkedArray) -> Groups:
        """Makes groups from the list of rows of each."""
        lists = rows.combine_chunks()
        lengths = np.diff(lists.offsets.to_numpy())
        return cls(lists.flatten().to_numpy(), np.repeat(np.arange(len(lists)), lengths), len(lists))

    @cached_property
    def begins(self) -> Ints:
        """The places in the order at which groups begin."""
        return np.flatnonzero(np.diff(self.of, prepend=-1))

    @property
    def lengths(self) -> Ints:
        return np.bincount(self.of, minlength=self.count)

    def kernel(self, column: Column, kernel: str) -> Column:
        """Returns the value of a kernel per group. Whole numbers need no hash table: their groups lie together."""
        ufunc = _UFUNCS.get(kernel)
        if ufunc is not None and not column.null_count and pa.types.is_integer(column.type):
            values = one_array(column).to_numpy()[self.order]
            if kernel == "sum":
                values = values.astype(np.int64 if pa.types.is_signed_integer(column.type) else np.uint64)
            return pa.array(ufunc.reduceat(values, self.begins))
        _, (value,) = grouped([pa.array(self.of)], [(column.take(pa.array(self.order)), kernel)])
        return value  # in the order of the groups: Arrow gives them in the order in which they come first


def grouped(
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
    table = pa.table(columns).group_by(key_names, use_threads=False).aggregate(wanted)
    return [table.column(name) for name in key_names], [table.column(name) for name in made]


_UFUNCS = {"sum": np.add, "min": np.minimum, "max": np.maximum}


def one_array(column: Column) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
