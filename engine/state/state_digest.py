"""The digest of a table of state: the sum of the hashes of its rows, over all columns, nested ones included.

The hash of a row is a function of the logical values, as the key hash is: chunks, slices and encodings do not change
it. A list hashes as its elements in their order, a struct as its fields, a map as the list of its entries.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types as pat

from engine.protocol.redistribution import Distribution
from engine.protocol.state_proof import StateDigest
from engine.state.key_hash import NULL_HASH, Hashes, hash_columns


def digest_of(uid: str, name: str, distribution: Distribution, table: pa.Table) -> StateDigest:
    return StateDigest(uid, name, distribution, table.num_rows, table_digest(table))


def table_digest(table: pa.Table) -> int:
    """Returns the digest of the rows; add it modulo 2**64 to that of other rows of the same state."""
    columns = [flat(table.column(name).combine_chunks()) for name in sorted(table.column_names)]
    return int(np.add.reduce(hash_columns(columns))) if columns and table.num_rows else 0


def flat(array: pa.Array) -> pa.Array:
    """Returns the array, or the hashes of its values if they are nested."""
    return pa.array(_hashes(array)) if pat.is_nested(array.type) else array


def _hashes(array: pa.Array) -> Hashes:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pat.is_struct(array.type):
        fields = [flat(array.field(index)) for index in range(array.type.num_fields)]
        hashes = hash_columns(fields) if fields else np.zeros(len(array), np.uint64)
    elif pat.is_union(array.type) or pat.is_run_end_encoded(array.type):
        raise TypeError(f"state of type {array.type} has no digest")
    else:
        hashes = _of_lists(array)
    if array.null_count:
        hashes[np.asarray(array.is_null())] = NULL_HASH
    return hashes


def _of_lists(array: pa.Array) -> Hashes:
    """Hashes each list as its length and the sum over its elements, each mixed with its place in the list."""
    starts, lengths, elements = _parts(array)
    places = np.arange(len(elements), dtype=np.int64) - np.repeat(starts, lengths)
    mixed = hash_columns([flat(elements), pa.array(places)]) if len(elements) else np.zeros(0, np.uint64)
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed, dtype=np.uint64)])
    return hash_columns([pa.array(lengths), pa.array(sums[starts + lengths] - sums[starts])])


def _parts(array: Any) -> tuple[np.ndarray, np.ndarray, pa.Array]:
    """Returns where each list starts in the array of all elements, its length, and that array."""
    if pat.is_fixed_size_list(array.type):
        array = array.cast(pa.list_(array.type.value_type))
    elif pat.is_map(array.type):
        array = array.cast(pa.list_(pa.struct([("key", array.type.key_type), ("value", array.type.item_type)])))
    lengths = np.diff(np.asarray(array.offsets, dtype=np.int64))
    if array.null_count:
        lengths[np.asarray(array.is_null())] = 0
    elements = array.flatten()
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])[:-1]
    assert int(lengths.sum()) == len(elements)
    return starts, lengths, elements
