"""Digests of rows: the sum of the hashes of all rows, so it depends neither on their order nor on batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from engine.state.key_hash import hash_columns
from engine.state.state_digest import flat


def digested(schema: pa.Schema) -> list[str]:
    """Returns the columns that a digest covers: those whose values can be hashed, nested ones too."""
    return [field.name for field in schema if not pa.types.is_nested(field.type) or _hashable(field.type)]


def plain(schema: pa.Schema) -> list[str]:
    """Returns the columns that are not nested. The indexes of folded files have their digests, also in older stores."""
    return [field.name for field in schema if not pa.types.is_nested(field.type)]


def digest(columns: Sequence[pa.Array]) -> int:
    """Returns the digest of the rows of these columns; add it modulo 2**64 to that of other rows."""
    return int(np.add.reduce(hash_columns([flat(column) for column in columns]))) if columns else 0


def _hashable(kind: pa.DataType) -> bool:
    """Says whether the values of a type, and all that is inside them, can be hashed."""
    if pa.types.is_union(kind) or pa.types.is_run_end_encoded(kind):
        return False
    if pa.types.is_nested(kind):
        return all(_hashable(kind.field(index).type) for index in range(kind.num_fields))
    try:
        hash_columns([pa.nulls(0, kind)])
    except TypeError:
        return False
    return True
