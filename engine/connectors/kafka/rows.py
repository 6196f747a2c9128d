"""Makes rows of records: values by their format, and what Kafka knows about a record in columns named `kafka_...`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from engine.connectors.kafka.client import KafkaError
from engine.connectors.kafka.values import Decoder, ValueFormat, decoded, texts

KEY, TIMESTAMP, HEADERS, TOPIC, PARTITION, OFFSET = (
    f"kafka_{name}" for name in ("key", "timestamp", "headers", "topic", "partition", "offset")
)


@dataclass(frozen=True)
class BadRecord:
    """A record whose value does not fit."""

    offset: int
    text: str
    reason: str


@dataclass(frozen=True)
class Chunk:
    """Records of a partition that were fetched at once: good rows with their offsets, and bad ones.

    `after`: the offset after the last of them.
    """

    rows: pa.RecordBatch
    offsets: np.ndarray
    bad: Sequence[BadRecord]
    after: int

    @staticmethod
    def empty(schema: pa.Schema, after: int) -> Chunk:
        return Chunk(pa.RecordBatch.from_pylist([], schema=schema), np.array([], np.int64), (), after)


def split_schema(schema: pa.Schema) -> tuple[pa.Schema, pa.Schema]:
    """Returns the columns that come from values, and those that Kafka knows."""
    known = [field for field in schema if field.name in _MAKERS]
    return pa.schema([field for field in schema if field.name not in _MAKERS]), pa.schema(known)


def check_columns(schema: pa.Schema) -> None:
    """Raises a KafkaError if a column named `kafka_...` has a type that it can't have."""
    for column in schema:
        if column.name in _MAKERS and not _TYPES[column.name](column.type):
            raise KafkaError(f"column {column.name!r} can't be {column.type}: it is {_SHOWN[column.name]}")


class RowMaker:
    """Makes chunks of fetched records. `fail`: a bad record ends the job."""

    def __init__(self, schema: pa.Schema, form: ValueFormat, fail: bool, uid: str) -> None:
        self.schema = schema
        self._values, self._known = split_schema(schema)
        self._decoder: Decoder = form.decoder(self._values)
        self._fail = fail
        self._uid = uid

    def chunk(self, topic: str, partition: int, messages: list[Any], offsets: np.ndarray) -> Chunk:
        values = [message.value() for message in messages]
        done = decoded(self._decoder, values, self._values)
        bad = [BadRecord(int(offsets[at]), (values[at] or b"").decode("utf-8", "replace"), why) for at, why in done.bad]
        if bad and self._fail:
            self._raise(f"{topic}[{partition}]", bad[0])
        good = messages if not bad else [messages[place] for place in done.places]
        kept = offsets[done.places]
        columns = {field.name: done.rows.column(field.name) for field in self._values}
        for field in self._known:
            try:
                columns[field.name] = _MAKERS[field.name](good, field.type, topic, kept)
            except ValueError as error:
                raise KafkaError(f"source {self._uid!r}, {topic}[{partition}]: {field.name}: {error}") from error
        rows = pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)
        return Chunk(rows, kept, bad, int(offsets[-1]) + 1)

    def _raise(self, place: str, bad: BadRecord) -> None:
        shown = bad.text if len(bad.text) <= 200 else bad.text[:197] + "..."
        raise KafkaError(
            f"source {self._uid!r}: {place}, offset {bad.offset}: {bad.reason}; the value is {shown!r}. Mend the "
            'declared schema or the producer, or give the source malformed="skip" or malformed="dead_letter"'
        )


def _headers(messages: list[Any]) -> pa.Array:
    found = [[{"key": key, "value": value} for key, value in message.headers() or ()] for message in messages]
    return pa.array(found, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))


_Maker = Callable[[list[Any], pa.DataType, str, np.ndarray], pa.Array]

_MAKERS: dict[str, _Maker] = {
    KEY: lambda messages, of, topic, offsets: texts([message.key() for message in messages], of),
    TIMESTAMP: lambda messages, of, topic, offsets: _times([message.timestamp()[1] for message in messages], of),
    HEADERS: lambda messages, of, topic, offsets: _headers(messages).cast(of),
    TOPIC: lambda messages, of, topic, offsets: pa.repeat(pa.scalar(topic), len(messages)).cast(of),
    PARTITION: lambda messages, of, topic, offsets: pa.array([m.partition() for m in messages], pa.int32()).cast(of),
    OFFSET: lambda messages, of, topic, offsets: pa.array(offsets).cast(of),
}


def _times(times_ms: list[int], of: pa.DataType) -> pa.Array:
    times = pa.array(times_ms, pa.int64())
    return times if pa.types.is_int64(of) else times.view(pa.timestamp("ms")).cast(of)


def _is_headers(of: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(of)
        and pa.types.is_struct(of.value_type)
        and [(field.name, field.type) for field in of.value_type] == [("key", pa.string()), ("value", pa.binary())]
    )


def _is_text(of: pa.DataType) -> bool:
    return bool(pa.types.is_binary(of) or pa.types.is_string(of))


_TYPES: dict[str, Callable[[pa.DataType], bool]] = {
    KEY: _is_text,
    TIMESTAMP: lambda of: bool(pa.types.is_timestamp(of) or pa.types.is_int64(of)),
    HEADERS: _is_headers,
    TOPIC: lambda of: bool(pa.types.is_string(of)),
    PARTITION: lambda of: bool(pa.types.is_integer(of)),
    OFFSET: lambda of: bool(pa.types.is_int64(of)),
}

_SHOWN = {
    KEY: "binary or string",
    TIMESTAMP: "a timestamp, or a long of milliseconds",
    HEADERS: "array<struct<key: string, value: binary>>",
    TOPIC: "a string",
    PARTITION: "an int",
    OFFSET: "a long",
}
