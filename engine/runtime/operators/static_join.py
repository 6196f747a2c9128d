"""Joins a stream with a static table that every subtask holds as a whole; finds keys by hash, then compares them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from engine.core.errors import WeirError
from engine.runtime.operators.base import Operator, OperatorContext, OperatorSnapshot, Output, RestoredState
from engine.runtime.static_table import StaticTable
from engine.state.key_hash import hash_columns


class JoinIndex:
    """Finds the rows of a table by their keys, in a sorted array of key hashes. As in SQL, null equals nothing."""

    def __init__(self, table: pa.Table, keys: Sequence[str]) -> None:
        self._batch = _one_batch(table)
        self._keys = [self._batch.column(key) for key in keys]
        rows = np.flatnonzero(_complete(self._keys, self._batch.num_rows))
        hashes = hash_columns(self._keys)[rows] if len(rows) else np.zeros(0, dtype=np.uint64)
        order = np.argsort(hashes, kind="stable")
        self._hashes, self._rows = hashes[order], rows[order]

    def matches(self, keys: Sequence[pa.Array], rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the matching rows of the batch and of the table, pairwise, in the order of the batch."""
        hashes = hash_columns(list(keys))
        first = np.searchsorted(self._hashes, hashes, side="left")
        counts = np.searchsorted(self._hashes, hashes, side="right") - first
        counts[~_complete(keys, rows)] = 0
        left = np.repeat(np.arange(rows), counts)
        within = np.arange(len(left)) - np.repeat(np.cumsum(counts) - counts, counts)
        right = self._rows[np.repeat(first, counts) + within]
        same = np.ones(len(left), dtype=bool)
        for ours, theirs in zip(keys, self._keys, strict=True):  # different keys may have the same hash
            equal = pc.equal(ours.take(pa.array(left)), theirs.take(pa.array(right)))
            same &= equal.to_numpy(zero_copy_only=False)
        return left[same], right[same]

    def take(self, column: str, rows: pa.Array) -> pa.Array:
        return self._batch.column(column).take(rows)


class StaticJoin(Operator):
    """Joins with one version of the table; the snapshot names it. `outer`: keeps unmatched records, with nulls."""

    def __init__(self, static: StaticTable, keys: Sequence[str], outer: bool, schema: pa.Schema) -> None:
        self._static = static
        self._keys = list(keys)
        self._outer = outer
        self._schema = schema
        self._looking = False

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        super().open(context, restored)
        versions = self._static.versions(context.uid, context.store, context.paths)
        if not versions:
            raise WeirError(
                f"the static table of {context.uid!r} was not written: a job that joins with a DataFrame needs Spark, "
                "so run it with weir run, weir submit or env.execute"
            )
        taken = max((inline["version"] for inline in restored.inline_of(context)), default=None) if restored else None
        self._version = taken if taken in versions else versions[-1]
        self._index = self._load(self._version)
        self._look_at_ms = self._next_look_ms()

    def _load(self, version: int) -> JoinIndex:
        context = self.context
        return JoinIndex(self._static.read(context.uid, version, context.store, context.paths), self._keys)

    def process(self, batch: pa.RecordBatch, out: Output) -> None:
        if self._look_at_ms is not None and not self._looking and self.context.clock.now_ms() >= self._look_at_ms:
            self._look()
        left, right = self._index.matches([batch.column(key) for key in self._keys], batch.num_rows)
        found = pa.array(right)
        if self._outer:
            left, found = _with_unmatched(left, right, batch.num_rows)
        if not len(left):
            return
        rows = batch.take(pa.array(left))
        arrays = [
            rows.column(field.name) if field.name in rows.schema.names else self._index.take(field.name, found)
            for field in self._schema
        ]
        out.emit(pa.RecordBatch.from_arrays(arrays, schema=self._schema))

    def _look(self) -> None:
        """Loads a newer version off the task thread; the join switches to it between two batches."""
        self._looking = True

        def work() -> tuple[int, JoinIndex] | None:
            context = self.context
            newest = self._static.versions(context.uid, context.store, context.paths)[-1]
            return (newest, self._load(newest)) if newest > self._version else None

        def done(found: tuple[int, JoinIndex] | None, error: BaseException | None) -> None:
            self._looking = False
            self._look_at_ms = self._next_look_ms()
            if found is not None:  # after an error the join keeps its version and looks again later
                self._version, self._index = found

        self.context.offload.submit(f"{self.context.queue} static", work, done)

    def _next_look_ms(self) -> float | None:
        refresh_ms = self._static.refresh_ms
        return None if refresh_ms is None else self.context.clock.now_ms() + refresh_ms

    def snapshot(self, checkpoint: int) -> OperatorSnapshot:
        return OperatorSnapshot(inline={"version": self._version})


def _with_unmatched(left: np.ndarray, right: np.ndarray, rows: int) -> tuple[np.ndarray, pa.Array]:
    """Adds the rows of the batch without a match, each with a null as its row of the table."""
    missing = np.flatnonzero(np.bincount(left, minlength=rows) == 0)
    both = np.concatenate([left, missing])
    order = np.argsort(both, kind="stable")
    nothing = np.concatenate([np.zeros(len(left), dtype=bool), np.ones(len(missing), dtype=bool)])
    found = np.concatenate([right, np.zeros(len(missing), dtype=right.dtype)])
    return both[order], pa.array(found[order], mask=nothing[order])


def _complete(keys: Sequence[pa.Array], rows: int) -> np.ndarray:
    """Returns a mask of the rows that have no null among their keys."""
    complete = np.ones(rows, dtype=bool)
    for key in keys:
        if key.null_count:
            complete &= key.is_valid().to_numpy(zero_copy_only=False)
    return complete


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)
