"""Digests of rows: the sum of the hashes of all rows, so it depends neither on their order nor on batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from engine.state.key_hash import hash_columns


def digested(schema: pa.Schema) -> list[str]:
    """Returns the columns that a digest covers: those whose values can be hashed."""
    return [field.name for field in schema if not pa.types.is_nested(field.type)]


def digest(columns: Sequence[pa.Array]) -> int:
    """Returns the digest of the rows of these columns; add it modulo 2**64 to that of other rows."""
    return int(np.add.reduce(hash_columns(columns))) if columns else 0
