"""Avro values. The bodies of a batch become the one block of a container file, which Polars decodes by the column.

Invariant: each body is followed by a number of its own. If a body is longer or shorter than its schema says, the number
behind it is read wrongly. So a bad value is found, and never shifts its neighbours.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from engine.connectors.extras import needs_extra
from engine.connectors.files.text import conform
from engine.connectors.kafka.client import KafkaError
from engine.connectors.kafka.registry import ByRegistry, Registry
from engine.connectors.kafka.values import Decoder, ValueFormat

_NUMBER = "weir_number"
_PRIMITIVE = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_SYNC = b"weir-avro-block."


class Avro(ValueFormat):
    """Avro records. `schema`: that of all values, as text or as a dict; or a `Registry`, where values name theirs.

    Fields are found by name. Those that a schema lacks are null; those that are not declared are ignored.
    """

    def __init__(self, schema: str | Mapping[str, Any] | Registry) -> None:
        self._registry = schema if isinstance(schema, Registry) else None
        self._schema = None if isinstance(schema, Registry) else _parsed(schema)

    def check(self, schema: pa.Schema) -> None:
        if self._schema is None:
            return
        names = [field["name"] for field in self._schema["fields"]]
        for name in schema.names:
            if name not in names:
                raise KafkaError(f"the Avro schema has no field {name!r}, which is declared; it has {names}")

    def decoder(self, schema: pa.Schema) -> Decoder:
        registry = self._registry
        if registry is None:
            assert self._schema is not None
            return _AvroValues(self._schema, schema)
        return ByRegistry(lambda id: _AvroValues(_of_registry(registry, id), schema))


def _of_registry(registry: Registry, id: int) -> dict[str, Any]:
    answer = registry.avro(id)
    named: dict[str, Any] = {}

    def load(references: Sequence[Mapping[str, Any]]) -> None:
        for one in references:
            version = registry.version(one["subject"], one["version"])
            load(version.get("references", ()))
            _parse(json.loads(version["schema"]), named)

    load(answer.get("references", ()))
    return _parsed(answer["schema"], named)


def _parse(schema: Any, named: dict[str, Any]) -> Any:
    needs_extra("fastavro", "kafka", "Avro")
    import fastavro.schema

    try:
        return fastavro.schema.parse_schema(schema, named_schemas=named, expand=True)
    except (fastavro.schema.SchemaParseException, fastavro.schema.UnknownType) as error:
        raise KafkaError(f"the Avro schema can't be read: {error}") from error


def _parsed(schema: str | Mapping[str, Any], named: dict[str, Any] | None = None) -> dict[str, Any]:
    """Returns a record's schema with all names expanded. Raises a KafkaError for what is not decoded by the column."""
    try:
        given = json.loads(schema) if isinstance(schema, str) else dict(schema)
    except ValueError as error:
        raise KafkaError(f"the Avro schema is no JSON: {error}") from error
    found = _parse(given, {} if named is None else named)
    if not isinstance(found, dict) or found.get("type") != "record":
        raise KafkaError("the Avro schema is no record: a stream has named columns")
    for field in found["fields"]:
        _check(field["type"], field["name"])
    return found


def _check(of: Any, name: str) -> None:
    match of:
        case list():
            if len(of) != 2 or "null" not in of:
                raise KafkaError(f"the Avro field {name!r} is a union of {of}: only one type and null can be read")
            for one in of:
                _check(one, name)
        case {"type": "map"}:
            raise KafkaError(f"the Avro field {name!r} is a map, which can't be read: make it an array of records")
        case {"type": "array", "items": items}:
            _check(items, name)
        case {"type": "record", "fields": fields}:
            for field in fields:
                _check(field["type"], f"{name}.{field['name']}")
        case {"type": inner} if not isinstance(inner, str):
            _check(inner, name)
        case str() if of not in _PRIMITIVE:
            raise KafkaError(f"the Avro field {name!r} is of type {of}, which contains itself and can't be a column")


class _AvroValues:
    def __init__(self, written: Mapping[str, Any], schema: pa.Schema) -> None:
        self._schema = schema
        fields = [*written["fields"], {"name": _NUMBER, "type": "double"}]
        text = json.dumps({"type": "record", "name": "weir_row", "fields": [_plain(field) for field in fields]})
        entries = _bytes(b"avro.schema") + _bytes(text.encode()) + _bytes(b"avro.codec") + _bytes(b"null")
        self._head = b"Obj\x01" + _long(2) + entries + _long(0) + _SYNC

    def decode(self, values: Sequence[bytes]) -> pa.RecordBatch:
        numbers = np.frombuffer(os.urandom(4), np.uint32)[0] + np.arange(len(values), dtype="<f8")
        tails = numbers.tobytes()
        body = b"".join(part for at, value in enumerate(values) for part in (value, tails[at * 8 : at * 8 + 8]))
        data = self._head + _long(len(values)) + _long(len(body)) + body + _SYNC
        try:
            table = pl.read_avro(io.BytesIO(data)).to_arrow()
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, EOFError) as error:
            raise ValueError("it is not what its Avro schema says") from error
        if not np.array_equal(table.column(_NUMBER).to_numpy(), numbers):
            raise ValueError("it is longer or shorter than its Avro schema says")
        return conform(_with_all(table, self._schema), self._schema)


def _with_all(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Adds the declared columns that are missing, as nulls."""
    for field in schema:
        if field.name not in table.schema.names:
            table = table.append_column(field.name, pa.nulls(table.num_rows, field.type))
        elif pa.types.is_dictionary(table.schema.field(field.name).type):
            place = table.schema.get_field_index(field.name)
            table = table.set_column(place, field.name, table.column(place).combine_chunks().dictionary_decode())
    return table


def _plain(of: Any) -> Any:
    """Leaves out what the parser has added, and the names of inner records: an expanded schema repeats them."""
    if isinstance(of, list):
        return [_plain(one) for one in of]
    if not isinstance(of, Mapping):
        return of
    return {name: _plain(value) for name, value in of.items() if not name.startswith("__") and name != "default"}


def _long(number: int) -> bytes:
    """Returns an Avro long: zigzag, seven bits a byte."""
    left, out = (number << 1) ^ (number >> 63), bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*out, left])


def _bytes(data: bytes) -> bytes:
    return _long(len(data)) + data
