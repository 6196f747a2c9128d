"""State files in Arrow IPC. Keyed state is sorted and indexed by key group, so that any parallelism can read its part.

Invariant: restoring never unpickles anything. The caller compares a file with the checksum in the manifest first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import pyarrow as pa
import xxhash

from engine.core.errors import CorruptSnapshot
from engine.core.pieces import Pieces, pieces_of
from engine.core.ports import Data
from engine.state.group_order import filed, groups_of_rows
from engine.state.key_groups import KeyGroupRange
from engine.state.key_hash import KEY_HASH_VERSION

LEAST_BATCH = 1 << 20
"""Smaller record batches are put together."""
_INDEX = b"weir.key_groups"


class _Index(msgspec.Struct):
    hash_version: int
    max_parallelism: int
    first_group: int
    offsets: list[int]
    keys: list[str] = []
    """The key columns; files of older versions do not name them."""


def checksum(data: Data) -> str:
    hashed = xxhash.xxh3_128()
    for piece in pieces_of(data):
        hashed.update(piece)
    return hashed.hexdigest()


def encode(table: pa.Table, keys: Sequence[str], groups: KeyGroupRange, max_parallelism: int) -> Pieces:
    """Files keyed state by key group and writes the index into the schema's metadata."""
    found = groups_of_rows(table, keys, max_parallelism)
    assert found.within(groups), "state outside the subtask's key groups"
    index = _Index(KEY_HASH_VERSION, max_parallelism, groups.start, found.offsets(groups), list(keys))
    return encode_plain(filed(table, found).replace_schema_metadata({_INDEX: msgspec.json.encode(index)}))


def encode_plain(table: pa.Table) -> Pieces:
    """Encodes state without keys. The result refers to the table's own memory: state of any size fills it once."""
    collected = _Collected()
    with pa.ipc.new_file(pa.PythonFile(collected, "w"), table.schema) as writer:
        for batch in _batches(table):
            writer.write_batch(batch)
    return collected.pieces()


def _batches(table: pa.Table) -> Iterator[pa.RecordBatch]:
    """Yields the rows in batches of some size: small ones are put together, so a file does not consist of crumbs."""
    if any(_has_dictionary(field.type) for field in table.schema):
        table = table.combine_chunks()  # all batches of a file share one dictionary
    small: list[pa.RecordBatch] = []
    size = 0
    for batch in table.to_batches():
        if batch.nbytes < LEAST_BATCH:
            small.append(batch)
            size += batch.nbytes
        if small and (batch.nbytes >= LEAST_BATCH or size >= LEAST_BATCH):
            yield pa.concat_batches(small)
            small, size = [], 0
        if batch.nbytes >= LEAST_BATCH:
            yield batch
    if small:
        yield pa.concat_batches(small)


def _has_dictionary(of: pa.DataType) -> bool:
    return pa.types.is_dictionary(of) or any(_has_dictionary(of.field(place).type) for place in range(of.num_fields))


class _Collected:
    """A file that keeps references to what is written to it. Arrow hands over the memory of tables as it is."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes | memoryview] = []
        self._small = bytearray()

    def write(self, data: bytes | pa.Buffer) -> int:
        if isinstance(data, bytes):
            self._small += data
        else:
            self._flush()
            self._parts.append(memoryview(data))
        return len(data)

    def pieces(self) -> Pieces:
        self._flush()
        return Pieces(self._parts)

    def _flush(self) -> None:
        if self._small:
            self._parts.append(bytes(self._small))
            self._small.clear()

    def flush(self) -> None: ...

    def close(self) -> None: ...


def decode(data: Data, wanted: KeyGroupRange) -> pa.Table:
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


def key_columns(data: Data) -> list[str]:
    """Returns the key columns of keyed state; none if an older version wrote the file."""
    return msgspec.json.decode(decode_plain(data).schema.metadata[_INDEX], type=_Index).keys


def decode_plain(data: Data) -> pa.Table:
    whole = bytes(data) if isinstance(data, Pieces) else data
    return pa.ipc.open_file(pa.BufferReader(whole)).read_all()
