"""The rows of one side of a join: in which form they are kept, and which of them have a key that can be equal.

Invariant: kept rows have plain columns (no dictionaries), so that tables of different batches can be put together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from engine.core.evolution import adapted
from engine.state.key_columns import canonical, plain, plain_type
from engine.state.key_hash import Hashes, hash_columns

Mask = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class JoinInput:
    """One side of a join: its name in snapshots, the columns that are kept, event time among them, and its keys."""

    name: str
    schema: pa.Schema
    keys: tuple[str, ...]

    @classmethod
    def of(cls, name: str, schema: pa.Schema, keys: Sequence[str]) -> JoinInput:
        return cls(name, pa.schema([field.with_type(plain_type(field.type)) for field in schema]), tuple(keys))

    def kept(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the rows of a batch in the form in which they are kept."""
        return pa.RecordBatch.from_arrays([plain(batch.column(name)) for name in self.schema.names], schema=self.schema)

    def adopted(self, saved: pa.Table) -> pa.RecordBatch:
        """Returns rows that an earlier version of this side has saved in the form of this one; new columns are null."""
        columns = [
            adapted(saved.column(field.name), field.type)
            if field.name in saved.column_names
            else pa.nulls(saved.num_rows, field.type)
            for field in self.schema
        ]
        return one_batch(pa.table(columns, schema=self.schema))

    def keys_of(self, rows: pa.RecordBatch) -> list[pa.Array]:
        return [rows.column(key) for key in self.keys]

    def hashes(self, rows: pa.RecordBatch) -> Hashes:
        return hash_columns(self.keys_of(rows))

    def complete(self, rows: pa.RecordBatch) -> Mask:
        """Returns a mask of the rows without a null in their key. As in SQL, null equals nothing, not even null."""
        complete = np.ones(rows.num_rows, dtype=bool)
        for key in self.keys_of(rows):
            if key.null_count:
                complete &= key.is_valid().to_numpy(zero_copy_only=False)
        return complete


def same_keys(left: Sequence[pa.Array], right: Sequence[pa.Array]) -> Mask:
    """Returns a mask of the places at which both sides have the same key; no key may be null.

    Equal floats are those that Spark's joins take for equal: NaN equals NaN, and 0.0 equals -0.0.
    """
    same = np.ones(len(left[0]), dtype=bool)
    for ours, theirs in zip(left, right, strict=True):
        same &= pc.equal(bits(ours), bits(theirs)).to_numpy(zero_copy_only=False)
    return same


def bits(key: pa.Array) -> pa.Array:
    """Returns a key column as values that are equal, to Arrow as well, if and only if the keys are."""
    if not pa.types.is_floating(key.type):
        return key
    return canonical(key).view(pa.int64() if pa.types.is_float64(key.type) else pa.int32())


def one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    assert len(batches) < 2, "the rows of a join do not fit into one batch"
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)
