"""Rows and digests per epoch, as numpy arrays, and how they are read from a Parquet file.

The digest of rows is that of the ledger (`engine/state/digests.py`): a sum, so rows may be in any order and any file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from engine.state.digests import digested
from engine.state.key_hash import Hashes, hash_columns
from engine.state.state_digest import flat

Ints = npt.NDArray[np.int64]

BATCH_ROWS = 131_072
DICTIONARY_BYTES = 4
"""Texts with fewer bytes per row than this are read as dictionaries: so few values are hashed once each."""
SHIFT = 32
"""Rows by which the spans of a file that was changed are looked for beside their places."""
NO_EPOCH = 0
"""The epoch of rows that no epoch published."""
_CODEC = pa.Codec("zstd")


@dataclass(frozen=True)
class Spans:
    """Rows and digest of some epochs. In the spans of a file, an epoch may be there twice."""

    epochs: Ints
    rows: Ints
    digests: Hashes

    @staticmethod
    def of(values: Iterable[tuple[int, int, int]] = ()) -> Spans:
        columns = list(zip(*values, strict=True)) or [(), (), ()]
        return Spans(np.array(columns[0], np.int64), np.array(columns[1], np.int64), np.array(columns[2], np.uint64))

    def __len__(self) -> int:
        return len(self.epochs)

    @property
    def total(self) -> tuple[int, int]:
        return int(self.rows.sum()), int(np.add.reduce(self.digests)) if len(self) else 0

    def within(self, first: int, last: int) -> Spans:
        return self.where((self.epochs >= first) & (self.epochs <= last))

    def where(self, chosen: npt.NDArray[np.bool_]) -> Spans:
        return Spans(self.epochs[chosen], self.rows[chosen], self.digests[chosen])

    def of_epochs(self, epochs: Ints) -> Spans:
        return self.where(np.isin(self.epochs, epochs))

    def at(self, epochs: Ints) -> tuple[Ints, Hashes]:
        """Returns rows and digest of each of these epochs, 0 where there is none. These spans are `summed`."""
        if not len(self):
            return np.zeros(len(epochs), np.int64), np.zeros(len(epochs), np.uint64)
        place = np.minimum(np.searchsorted(self.epochs, epochs), len(self) - 1)
        there = self.epochs[place] == epochs
        return np.where(there, self.rows[place], 0), np.where(there, self.digests[place], np.uint64(0))

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        return zip(self.epochs.tolist(), self.rows.tolist(), self.digests.tolist(), strict=True)


def summed(spans: Iterable[Spans]) -> Spans:
    """Returns the sums of each epoch, oldest first."""
    parts = [one for one in spans if len(one)]
    if not parts:
        return Spans.of()
    epochs = np.concatenate([one.epochs for one in parts])
    order = np.argsort(epochs, kind="stable")
    epochs = epochs[order]
    starts = np.flatnonzero(np.concatenate([[True], epochs[1:] != epochs[:-1]]))
    rows = np.concatenate([one.rows for one in parts])[order]
    digests = np.concatenate([one.digests for one in parts])[order]
    return Spans(epochs[starts], np.add.reduceat(rows, starts), np.add.reduceat(digests, starts))


def encoded(spans: Spans) -> bytes:
    """Returns the spans in about ten bytes each. They are `summed`."""
    columns = (np.diff(spans.epochs, prepend=0), spans.rows, spans.digests)
    plain = b"".join(column.tobytes() for column in columns)
    return len(spans).to_bytes(4, "little") + bytes(_CODEC.compress(plain, asbytes=True))


def decoded(data: bytes) -> Spans:
    count = int.from_bytes(data[:4], "little")
    plain = _CODEC.decompress(data[4:], decompressed_size=24 * count, asbytes=True)
    steps, rows = (np.frombuffer(plain, np.int64, count, 8 * count * place) for place in (0, 1))
    return Spans(np.cumsum(steps), rows, np.frombuffer(plain, np.uint64, count, 16 * count))


Layout = Sequence[tuple[int, int | None]]
"""Which rows of a file belong to which epoch: the epoch and its rows, in the order of the file. None: all rows."""


def opened(data: bytes) -> pq.ParquetFile:
    """Raises ArrowException or OSError if this is no Parquet file."""
    metadata = pq.read_metadata(pa.BufferReader(data))
    few = [name for name in _texts(metadata.schema.to_arrow_schema()) if _has_few_values(metadata, name)]
    return pq.ParquetFile(pa.BufferReader(data), metadata=metadata, read_dictionary=few)


def spans_of(file: pq.ParquetFile, layout: Layout) -> Spans:
    """Reads a file, and returns rows and digest of each span of its layout.

    Rows behind the last span belong to no epoch. Raises ArrowException or OSError if the file can't be read.
    """
    epochs, rows = _spread(layout, file.metadata.num_rows)
    ends, sums, at = np.cumsum(rows), np.zeros(len(rows), np.uint64), 0
    for hashes in row_hashes(file):
        first, last = np.searchsorted(ends, [at, at + len(hashes) - 1], side="right")
        starts = np.concatenate([[0], ends[first:last] - at])
        sums[first : last + 1] += np.add.reduceat(hashes, starts)
        at += len(hashes)
    return Spans(epochs, rows, sums)


def realigned(file: pq.ParquetFile, layout: Layout, expected: Spans) -> Layout:
    """Returns the layout of a file that lost rows, or got some, so that all spans but the changed ones are as expected.

    Each span is looked for near its place. What lies between two that were found belongs to those that were not.
    """
    sums = np.concatenate([np.zeros(1, np.uint64), *row_hashes(file)]).cumsum(dtype=np.uint64)
    total, at, place = len(sums) - 1, 0, 0
    found: list[tuple[int, int, int]] = []  # number of the span, its first row, the row behind it
    wanted = {epoch: (rows, digest) for epoch, rows, digest in expected}
    for number, (epoch, count) in enumerate(layout):
        rows = count if count is not None else total
        for first in sorted(range(max(at, place - SHIFT), place + SHIFT + 1), key=lambda first: abs(first - place)):
            behind = first + rows
            if behind <= total and wanted.get(epoch) == (rows, (int(sums[behind]) - int(sums[first])) % (1 << 64)):
                found.append((number, first, behind))
                at = place = behind
                break
        else:
            place += rows
    lengths = [count if count is not None else total for _, count in layout]
    for (before, _, end), (after, begin, _) in pairwise([(-1, 0, 0), *found, (len(layout), total, total)]):
        left = begin - end
        for number in range(before + 1, after):
            lengths[number] = left if number == after - 1 else min(left, lengths[number])
            left -= lengths[number]
    return [(epoch, length) for (epoch, _), length in zip(layout, lengths, strict=True)]


def row_hashes(file: pq.ParquetFile) -> Iterator[Hashes]:
    """Yields the hashes of a file's rows, in batches that are not empty."""
    names = digested(file.schema_arrow)
    for batch in file.iter_batches(BATCH_ROWS, use_threads=False):
        if batch.num_rows:
            yield (
                hash_columns([flat(batch.column(name)) for name in names])
                if names
                else np.zeros(batch.num_rows, np.uint64)
            )


def _spread(layout: Layout, total: int) -> tuple[Ints, Ints]:
    """Returns epochs and rows of the spans that a file with this number of rows really has."""
    epochs = np.array([epoch for epoch, _ in layout] + [NO_EPOCH], np.int64)
    rows = np.array([total if rows is None else rows for _, rows in layout] + [total], np.int64)
    ends = np.minimum(np.cumsum(rows), total)
    rows = np.diff(ends, prepend=0)
    return epochs[rows > 0], rows[rows > 0]


def _texts(schema: pa.Schema) -> list[str]:
    return [field.name for field in schema if pa.types.is_string(field.type) or pa.types.is_binary(field.type)]


def _has_few_values(metadata: pq.FileMetaData, name: str) -> bool:
    size = 0
    for group in range(metadata.num_row_groups):
        of = metadata.row_group(group)
        for index in range(of.num_columns):
            column = of.column(index)
            if column.path_in_schema == name:
                size += column.total_uncompressed_size
                if not column.has_dictionary_page:
                    return False
    return bool(size < DICTIONARY_BYTES * metadata.num_rows)
