"""Which subtask of the next vertex gets which rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from engine.state.keygroups import key_groups, subtask_of
from engine.state.keyhash import hash_columns

Parts = Iterator[tuple[int, pa.RecordBatch]]


class Partitioner(Protocol):
    def split(self, batch: pa.RecordBatch) -> Parts:
        """(target, rows) pairs; every row goes to one target, rows keep their order per target."""


class HashPartitioner:
    """Same key, same subtask, always (A3)."""

    def __init__(self, keys: Sequence[str], targets: int, max_parallelism: int) -> None:
        self._keys = list(keys)
        self._targets = targets
        self._max_parallelism = max_parallelism

    def split(self, batch: pa.RecordBatch) -> Parts:
        if self._targets == 1:
            yield 0, batch
            return
        groups = key_groups(hash_columns([batch.column(key) for key in self._keys]), self._max_parallelism)
        targets = subtask_of(groups, self._targets, self._max_parallelism)
        for target in range(self._targets):
            rows = np.flatnonzero(targets == target)
            if len(rows) == batch.num_rows:
                yield target, batch
            elif len(rows):
                yield target, batch.take(pa.array(rows))


class RoundRobinPartitioner:
    """Whole batches in turn: between vertices of different parallelism."""

    def __init__(self, targets: int, first: int) -> None:
        self._targets = targets
        self._next = first % targets

    def split(self, batch: pa.RecordBatch) -> Parts:
        yield self._next, batch
        self._next = (self._next + 1) % self._targets


class ForwardPartitioner:
    """Everything to the one channel there is: to the subtask of the same index."""

    def split(self, batch: pa.RecordBatch) -> Parts:
        yield 0, batch
