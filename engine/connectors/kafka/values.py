"""Values of records: many are decoded at once, by the column. Bad ones are searched for only if that fails."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from engine.connectors.kafka.client import KafkaError


class Decoder(Protocol):
    def decode(self, values: Sequence[bytes]) -> pa.RecordBatch:
        """Returns a row for each value; raises a ValueError (Arrow's is a subclass) if one does not fit."""


class Encoder(Protocol):
    def encode(self, rows: pa.RecordBatch) -> pa.Array:
        """Returns a value for each row, as binary."""


class ValueFormat(ABC):
    """How records are written as the values of Kafka's."""

    @abstractmethod
    def check(self, schema: pa.Schema) -> None:
        """Raises a WeirError if records of this schema can't be read in this format."""

    @abstractmethod
    def decoder(self, schema: pa.Schema) -> Decoder: ...

    def encoder(self, schema: pa.Schema) -> Encoder:
        raise KafkaError(f"a Kafka sink can't write {type(self).__name__}: give it value=Json() or value=Bytes()")


@dataclass(frozen=True)
class Decoded:
    """Rows, the place of each among the values, and for each value that does not fit its place and why."""

    rows: pa.RecordBatch
    places: np.ndarray
    bad: list[tuple[int, str]]


def decoded(decoder: Decoder, values: Sequence[bytes | None], schema: pa.Schema) -> Decoded:
    """Decodes all values at once; if that fails, halves of them, down to the single bad ones.

    A record without a value, such as one that deletes a key, is a row of nulls.
    """
    present = [place for place, value in enumerate(values) if value is not None]
    given = [value for value in values if value is not None]
    good: list[pa.RecordBatch] = []
    fitting: list[int] = []
    bad: list[tuple[int, str]] = []
    todo = [(0, len(given))] if given else []
    while todo:
        first, last = todo.pop()
        rows = _tried(decoder, given[first:last])
        if isinstance(rows, pa.RecordBatch):
            good.append(rows)
            fitting += present[first:last]
        elif last - first == 1:
            bad.append((present[first], str(rows)))
        else:
            middle = (first + last) // 2
            todo += [(middle, last), (first, middle)]
    rows = pa.concat_batches(good) if good else pa.RecordBatch.from_pylist([], schema=schema)
    if len(given) == len(values):
        return Decoded(rows, np.array(fitting, np.int64), bad)
    wrong = {place for place, _ in bad}
    row_of = {place: row for row, place in enumerate(fitting)}
    places = [place for place in range(len(values)) if place not in wrong]
    rows = rows.take(pa.array([row_of.get(place) for place in places], pa.int64()))
    return Decoded(rows, np.array(places, np.int64), bad)


def _tried(decoder: Decoder, values: Sequence[bytes]) -> pa.RecordBatch | ValueError:
    try:
        rows = decoder.decode(values)
    except ValueError as error:
        return error
    if rows.num_rows != len(values):
        return ValueError(f"it has {rows.num_rows} records" if len(values) == 1 else "not one record a value")
    return rows


class Bytes(ValueFormat):
    """The value as it is: one column `value` of binary or string."""

    def check(self, schema: pa.Schema) -> None:
        self._field(schema)

    def decoder(self, schema: pa.Schema) -> Decoder:
        return _Plain(schema)

    def encoder(self, schema: pa.Schema) -> Encoder:
        return _PlainValue(self._field(schema).name)

    @staticmethod
    def _field(schema: pa.Schema) -> pa.Field:
        if len(schema) != 1 or schema.names != ["value"] or not _is_text(schema.field(0).type):
            raise KafkaError(
                f"values as bytes are one column 'value' of binary or string, and the schema has {schema.names}: "
                "declare 'value binary', or give value=Json()"
            )
        return schema.field(0)


def _is_text(of: pa.DataType) -> bool:
    return bool(pa.types.is_binary(of) or pa.types.is_string(of))


def texts(values: Sequence[bytes | None], of: pa.DataType) -> pa.Array:
    """Returns bytes as an array of binary or string. Raises a ValueError if they are not UTF-8."""
    array = pa.array(values, pa.binary())
    try:
        return array.cast(of)
    except pa.ArrowInvalid as error:
        raise ValueError("it is not UTF-8") from error


class _Plain:
    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def decode(self, values: Sequence[bytes]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([texts(values, self._schema.field(0).type)], schema=self._schema)


class _PlainValue:
    def __init__(self, name: str) -> None:
        self._name = name

    def encode(self, rows: pa.RecordBatch) -> pa.Array:
        return rows.column(self._name).cast(pa.binary())
