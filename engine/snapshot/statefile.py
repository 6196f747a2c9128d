"""State files in Arrow IPC. Keyed state is sorted and indexed by key group, so that any parallelism can read its part.

Invariant: restoring never unpickles anything. The caller compares a file with the checksum in the manifest first.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from engine.core.errors import CorruptSnapshot
from engine.state.key_groups import KeyGroupRange, key_groups
from engine.state.key_hash import KEY_HASH_VERSION, hash_columns

_INDEX = b"weir.key_groups"


class _Index(msgspec.Struct):
    hash_version: int
    max_parallelism: int
    first_group: int
    offsets: list[int]


def checksum(data: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(data)


def encode(table: pa.Table, keys: Sequence[str], groups: KeyGroupRange, max_parallelism: int) -> bytes:
    """Sorts keyed state by key group and writes the index into the schema's metadata."""
    table = table.combine_chunks()
    if table.num_rows:
        of_row = key_groups(hash_columns([table.column(key).combine_chunks() for key in keys]), max_parallelism)
        assert of_row.min() >= groups.start and of_row.max() < groups.end, "state outside the subtask's key groups"
        order = np.argsort(of_row, kind="stable")
        table = table.take(pa.array(order))
        offsets = np.searchsorted(of_row[order], np.arange(groups.start, groups.end + 1)).tolist()
    else:
        offsets = [0] * (len(groups) + 1)
    index = _Index(KEY_HASH_VERSION, max_parallelism, groups.start, offsets)
    return encode_plain(table.replace_schema_metadata({_INDEX: msgspec.json.encode(index)}))


def encode_plain(table: pa.Table) -> bytes:
    """Encodes state without keys."""
    out = pa.BufferOutputStream()
    with pa.ipc.new_file(out, table.schema) as writer:
        writer.write_table(table)
    data: bytes = out.getvalue().to_pybytes()
    return data


def decode(data: bytes, wanted: KeyGroupRange) -> pa.Table:
    """Returns the rows of the wanted key groups."""
    table = decode_plain(data)
    index = msgspec.json.decode(table.schema.metadata[_INDEX], type=_Index)
    if index.hash_version != KEY_HASH_VERSION:
        raise CorruptSnapshot(
            f"written with key hash {index.hash_version}, but this Weir uses {KEY_HASH_VERSION}: "
            "restore it with the version of Weir that wrote it"
        )
    start = min(max(wanted.start - index.first_group, 0), len(index.offsets) - 1)
    end = min(max(wanted.end - index.first_group, 0), len(index.offsets) - 1)
    rows = index.offsets[end] - index.offsets[start]
    return table.slice(index.offsets[start], rows).replace_schema_metadata(None)


def decode_plain(data: bytes) -> pa.Table:
    return pa.ipc.open_file(pa.BufferReader(data)).read_all()
