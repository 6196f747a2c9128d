"""Partitioners decide which channel of an output gate gets which rows; there is one per kind of exchange (A4).

Invariant: a row's target depends only on the row and on the rows that this sender sent before, never on chance, so that
the simulator can repeat a run.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from engine.core.errors import UserFunctionError
from engine.state.key_groups import key_groups, subtask_of
from engine.state.key_hash import hash_columns

Parts = Iterator[tuple[int, pa.RecordBatch]]
Targets = npt.NDArray[np.integer[Any]]

_SENDER_BITS = 44
"""The row numbers of one sender in one attempt fit into this many bits."""


class Partitioner(Protocol):
    def split(self, batch: pa.RecordBatch) -> Parts:
        """Yields (target, rows): the target is an index into the gate's channels; its rows keep their order."""


class HashPartitioner:
    """Sends rows of the same key to the same subtask, always (A3)."""

    def __init__(self, keys: Sequence[str], targets: int, max_parallelism: int) -> None:
        self._keys = list(keys)
        self._targets = targets
        self._max_parallelism = max_parallelism

    def split(self, batch: pa.RecordBatch) -> Parts:
        if self._targets == 1:
            return iter([(0, batch)])
        groups = key_groups(hash_columns([batch.column(key) for key in self._keys]), self._max_parallelism)
        return _by_target(batch, subtask_of(groups, self._targets, self._max_parallelism), self._targets)


class CustomPartitioner:
    """Sends rows where the user's function says; calls it once per distinct key of a batch.

    A key is the column's value, or a tuple of the columns' values. `uid` and `subtask` name the sender in errors.
    """

    def __init__(
        self, function: Callable[[Any, int], int], columns: Sequence[str], targets: int, uid: str, subtask: int
    ) -> None:
        self._function = function
        self._columns = list(columns)
        self._targets = targets
        self._uid = uid
        self._subtask = subtask

    def split(self, batch: pa.RecordBatch) -> Parts:
        if not batch.num_rows:
            return iter(())
        columns = [batch.column(name) for name in self._columns]
        codes, distinct = _codes(columns)
        example = np.empty(distinct, np.int64)
        example[codes] = np.arange(batch.num_rows)  # some row of each key
        keys = [column.take(pa.array(example)).to_pylist() for column in columns]
        chosen = [self._ask(key) for key in (keys[0] if len(keys) == 1 else zip(*keys, strict=True))]
        return _by_target(batch, np.array(chosen)[codes], self._targets)

    def _ask(self, key: Any) -> int:
        try:
            target = operator.index(self._function(key, self._targets))
            if not 0 <= target < self._targets:
                raise ValueError(f"the function returned {target}; partitions are 0 to {self._targets - 1}")
        except Exception as error:
            raise UserFunctionError(self._uid, self._subtask, f"partition_custom of the key {key!r}", error) from error
        return target


def _codes(columns: Sequence[pa.Array]) -> tuple[npt.NDArray[np.int64], int]:
    """Returns a code per row, equal for equal keys and counted from 0, and the number of distinct codes."""
    codes, distinct = _encode(columns[0])
    for column in columns[1:]:
        more, count = _encode(column)
        codes, distinct = _encode(pa.array(codes * count + more))
    return codes, distinct


def _encode(column: pa.Array) -> tuple[npt.NDArray[np.int64], int]:
    plain = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    encoded = pc.dictionary_encode(plain, null_encoding="encode")
    return encoded.indices.to_numpy().astype(np.int64), len(encoded.dictionary)


class ShufflePartitioner:
    """Spreads rows evenly at random: the hash of the sender and the row's number gives the target."""

    def __init__(self, targets: int, sender: int) -> None:
        self._targets = targets
        self._next = sender << _SENDER_BITS

    def split(self, batch: pa.RecordBatch) -> Parts:
        numbers = np.arange(self._next, self._next + batch.num_rows)
        self._next += batch.num_rows
        return _by_target(batch, hash_columns([pa.array(numbers)]) % np.uint64(self._targets), self._targets)


class RebalancePartitioner:
    """Deals out contiguous slices in turn, without a copy. Remainders rotate, so totals differ by at most one row."""

    def __init__(self, targets: int, first: int) -> None:
        self._targets = targets
        self._next = first % targets

    def split(self, batch: pa.RecordBatch) -> Parts:
        share, more = divmod(batch.num_rows, self._targets)
        first, start = self._next, 0
        self._next = (first + more) % self._targets
        for turn in range(self._targets if share else more):
            rows = share + (turn < more)
            yield (first + turn) % self._targets, batch.slice(start, rows)
            start += rows


class BroadcastPartitioner:
    """Sends every row to every channel."""

    def __init__(self, targets: int) -> None:
        self._targets = targets

    def split(self, batch: pa.RecordBatch) -> Parts:
        for target in range(self._targets):
            yield target, batch


class FirstPartitioner:
    """Sends all rows to the first channel: the only one (forward), or that of subtask 0 (global)."""

    def split(self, batch: pa.RecordBatch) -> Parts:
        yield 0, batch


def _by_target(batch: pa.RecordBatch, targets: Targets, count: int) -> Parts:
    for target in range(count):
        rows = np.flatnonzero(targets == target)
        if len(rows) == batch.num_rows:
            yield target, batch
        elif len(rows):
            yield target, batch.take(pa.array(rows))
