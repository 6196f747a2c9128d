"""Records on their way out: rows are encoded by the column, where they are made, and wait in files of the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from engine.connectors.kafka.client import KafkaError
from engine.connectors.kafka.rows import HEADERS, PARTITION, TIMESTAMP, check_columns, split_schema
from engine.connectors.kafka.values import Bytes, Encoder, ValueFormat
from engine.core.errors import RecordTooLarge

OVERHEAD_BYTES = 128
"""What a record costs in a request besides its key, value and headers, and more than that."""

SLICE_BYTES = 4 << 20
"""A producer holds at most two slices of about this size at a time."""

SLICE_ROWS = 20_000

_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("timestamp", pa.int64()),
        ("partition", pa.int32()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)


@dataclass(frozen=True)
class Records:
    """Encoded records of one topic. Columns that the job does not give are missing."""

    rows: pa.RecordBatch

    @property
    def bytes(self) -> int:
        return int(pc.sum(self.sizes).as_py() or 0)

    @property
    def sizes(self) -> pa.Array:
        """The number of bytes of each record, at most."""
        total = pa.repeat(pa.scalar(OVERHEAD_BYTES, pa.int64()), self.rows.num_rows)
        for name in ("key", "value"):
            if name in self.rows.schema.names:
                total = pc.add(total, pc.fill_null(pc.binary_length(self.rows.column(name)), 0).cast(pa.int64()))
        if "headers" in self.rows.schema.names:
            total = pc.add(total, _header_bytes(self.rows.column("headers")))
        return total

    def slices(self) -> list[pa.RecordBatch]:
        """Cuts the records into pieces of about `SLICE_BYTES`."""
        count = self.rows.num_rows
        each = max(1, min(SLICE_ROWS, int(count * SLICE_BYTES / max(1, self.bytes))))
        return [self.rows.slice(first, each) for first in range(0, count, each)]


def _header_bytes(headers: pa.Array) -> pa.Array:
    """Returns the number of bytes of each record's headers."""
    flat = pc.list_flatten(headers)
    keys, values = flat.field("key"), flat.field("value")
    each = pc.add(pc.binary_length(keys), pc.fill_null(pc.binary_length(values), 0))
    parents = pc.list_parent_indices(headers)
    table = pa.table({"row": parents, "bytes": pc.add(each, 10).cast(pa.int64())})
    sums = table.group_by("row").aggregate([("bytes", "sum")])
    rows = pa.array(range(len(headers)), parents.type)
    return pc.fill_null(sums["bytes_sum"].combine_chunks().take(pc.index_in(rows, sums["row"].combine_chunks())), 0)


class RecordEncoder:
    """Makes records of rows. `key`: the column with the keys, which stays in the value; None: there are no keys."""

    def __init__(self, schema: pa.Schema, form: ValueFormat, key: str | None) -> None:
        check_columns(schema)
        if key is not None and key not in schema.names:
            raise KafkaError(f"key={key!r} is no column of the sink's stream, which has {schema.names}")
        values, self._known = split_schema(schema)
        if isinstance(form, Bytes):
            values = pa.schema([field for field in values if field.name != key])
        form.check(values)
        self._names = values.names
        self._encoder: Encoder = form.encoder(values)
        self._key = key

    def encode(self, rows: pa.RecordBatch) -> Records:
        columns = {"value": self._encoder.encode(rows.select(self._names))}
        if self._key is not None:
            columns["key"] = _as_key(rows.column(self._key))
        for field in self._known:
            column = rows.column(field.name)
            if field.name == TIMESTAMP:
                columns["timestamp"] = (
                    column.cast(pa.timestamp("ms"), safe=False).cast(pa.int64())
                    if (pa.types.is_timestamp(field.type))
                    else column
                )
            elif field.name == PARTITION:
                columns["partition"] = column.cast(pa.int32())
            elif field.name == HEADERS:
                columns["headers"] = column.cast(_SCHEMA.field("headers").type)
        schema = pa.schema([field for field in _SCHEMA if field.name in columns])
        return Records(pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema))


def _as_key(column: pa.Array) -> pa.Array:
    """Returns keys as binary: texts and bytes as they are, anything else as its text."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_binary(column.type):
        return column
    return (column if pa.types.is_string(column.type) else column.cast(pa.string())).cast(pa.binary())


def packed(records: Sequence[Records]) -> bytes:
    """Returns records as the content of a file."""
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, records[0].rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        for one in records:
            writer.write_batch(one.rows)
    data: bytes = out.getvalue().to_pybytes()
    return data


def unpacked(data: bytes) -> list[Records]:
    with pa.ipc.open_stream(pa.BufferReader(data)) as reader:
        return [Records(batch) for batch in reader]


def largest(records: Sequence[Records]) -> int:
    return max((int(pc.max(one.sizes).as_py()) for one in records if one.rows.num_rows), default=0)


def check_sizes(records: Sequence[Records], limit: int, topic: str) -> None:
    """Raises RecordTooLarge if the topic would refuse a record."""
    for one in records:
        sizes = one.sizes
        most = pc.max(sizes).as_py() if len(sizes) else 0
        if most is not None and most > limit:
            at = pc.index(sizes, most).as_py()
            key = one.rows.column("key")[at].as_py() if "key" in one.rows.schema.names else None
            raise RecordTooLarge(
                f"topic {topic!r} takes records of {limit} bytes at most (max.message.bytes), and one has {most}; its "
                f"key is {(key or b'')[:40]!r}. Raise the topic's limit, or make the job emit smaller records"
            )


def messages(rows: pa.RecordBatch) -> list[dict[str, Any]]:
    """Returns records as a producer takes them; what is null is left to it."""
    found: list[dict[str, Any]] = rows.to_pylist()
    if "timestamp" in rows.schema.names or "partition" in rows.schema.names:
        for message in found:
            for name in ("timestamp", "partition"):
                if message.get(name, 0) is None:
                    del message[name]
    return found
