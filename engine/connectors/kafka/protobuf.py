"""Protobuf values. The messages of a batch are parsed, and then taken apart column by column."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import pyarrow as pa

from engine.connectors.kafka.client import KafkaError
from engine.connectors.kafka.registry import ByRegistry, Registry
from engine.connectors.kafka.values import Decoder, ValueFormat
from engine.core.errors import JobError


class Protobuf(ValueFormat):
    """Protobuf messages. `message`: the generated class of all values; or a `Registry`, where values name theirs.

    Fields are found by name; those that are not declared are ignored. A field that can be absent and is, is null.
    """

    def __init__(self, message: Any) -> None:
        if not isinstance(message, Registry) and not hasattr(message, "DESCRIPTOR"):
            raise ValueError(f"Protobuf({message!r}): give the generated class of a message, or a Registry")
        self._registry = message if isinstance(message, Registry) else None
        self._message = None if isinstance(message, Registry) else message

    def check(self, schema: pa.Schema) -> None:
        _library()
        if self._message is not None:
            _check(self._message.DESCRIPTOR, schema)

    def decoder(self, schema: pa.Schema) -> Decoder:
        registry = self._registry
        if registry is not None:
            return ByRegistry(lambda id: _Indexed(registry.protobuf(id), schema))
        return _Messages(self._message, schema)


def _library() -> Any:
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory
    except ModuleNotFoundError as error:
        raise JobError(
            f"Protobuf needs the module {error.name!r}, which is not installed: pip install 'weir[kafka]'"
        ) from error
    return descriptor_pb2, descriptor_pool, message, message_factory


def _check(descriptor: Any, schema: pa.Schema) -> None:
    for name in schema.names:
        if name not in descriptor.fields_by_name:
            raise KafkaError(
                f"the message {descriptor.full_name} has no field {name!r}, which is declared; it has "
                f"{list(descriptor.fields_by_name)}"
            )


class _Messages:
    """Decodes messages of one class."""

    def __init__(self, message: Any, schema: pa.Schema) -> None:
        _, _, errors, _ = _library()
        self._parse: Callable[[bytes], Any] = message.FromString
        self._error = errors.DecodeError
        self._schema = schema
        fields = message.DESCRIPTOR.fields_by_name
        self._takes = [_taken(fields[field.name]) if field.name in fields else None for field in schema]

    def decode(self, values: Sequence[bytes]) -> pa.RecordBatch:
        try:
            found = list(map(self._parse, values))
        except self._error as error:
            raise ValueError(f"it is not what its Protobuf message says ({error})") from error
        columns = [
            pa.nulls(len(found), field.type) if take is None else _column(take(found), field)
            for field, take in zip(self._schema, self._takes, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _column(values: list[Any], field: pa.Field) -> pa.Array:
    try:
        return pa.array(values, field.type)
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise ValueError(f"column {field.name!r} is not of type {field.type}: {error}") from error


def _taken(field: Any) -> Callable[[list[Any]], list[Any]]:
    """Returns what takes the values of a field out of many messages."""
    get, name = attrgetter(field.name), field.name
    each = _each(field)
    if field.has_presence:
        return lambda found: [each(get(one)) if one.HasField(name) else None for one in found]
    return lambda found: [each(value) for value in map(get, found)] if each is not _same else list(map(get, found))


def _same(value: Any) -> Any:
    return value


def _each(field: Any) -> Callable[[Any], Any]:
    """Returns what makes Arrow's value of a field's: lists, structs, names of enums, datetimes."""
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        value = _one(message.fields_by_name["value"])
        return lambda entries: [(key, value(entries[key])) for key in entries]
    one = _one(field)
    return (lambda values: list(map(one, values))) if field.is_repeated else one


def _one(field: Any) -> Callable[[Any], Any]:
    if field.enum_type is not None:
        names = field.enum_type.values_by_number
        return lambda number: names[number].name if number in names else str(number)
    message = field.message_type
    if message is None:
        return _same
    if message.full_name == "google.protobuf.Timestamp":
        from datetime import UTC

        return lambda value: value.ToDatetime(tzinfo=UTC)
    inner = [(of.name, of.has_presence, _each(of)) for of in message.fields]
    return lambda value: {
        name: each(getattr(value, name)) if not optional or value.HasField(name) else None
        for name, optional, each in inner
    }


class _Indexed:
    """Decodes values of a registry's schema: a path to the message in its file comes before the message."""

    def __init__(self, file: bytes, schema: pa.Schema) -> None:
        descriptor_pb2, descriptor_pool, _, _ = _library()
        parsed = descriptor_pb2.FileDescriptorProto.FromString(file)
        parsed.name = parsed.name or "value.proto"
        pool = descriptor_pool.DescriptorPool()
        for dependency in parsed.dependency:
            _add_well_known(pool, dependency)
        pool.Add(parsed)
        self._file = pool.FindFileByName(parsed.name)
        self._order = [message.name for message in parsed.message_type]
        self._schema = schema
        self._known: dict[tuple[int, ...], _Messages] = {}

    def decode(self, values: Sequence[bytes]) -> pa.RecordBatch:
        paths = [_path(value) for value in values]
        batches = []
        first = 0
        for at in range(1, len(paths) + 1):
            if at == len(paths) or paths[at][0] != paths[first][0]:
                bodies = [value[start:] for value, (_, start) in zip(values[first:at], paths[first:at], strict=True)]
                batches.append(self._of(paths[first][0]).decode(bodies))
                first = at
        return pa.concat_batches(batches)

    def _of(self, path: tuple[int, ...]) -> _Messages:
        if path not in self._known:
            _, _, _, message_factory = _library()
            try:
                found = self._file.message_types_by_name[self._order[path[0]]]
                for index in path[1:]:
                    found = found.nested_types[index]
            except IndexError as error:
                raise ValueError(f"its schema has no message at {list(path)}") from error
            self._known[path] = _Messages(message_factory.GetMessageClass(found), self._schema)
        return self._known[path]


def _add_well_known(pool: Any, name: str) -> None:
    descriptor_pb2, descriptor_pool, _, _ = _library()
    if name == "google/protobuf/timestamp.proto":
        from google.protobuf import timestamp_pb2  # noqa: F401 (adds it to the default pool)
    try:
        known = descriptor_pool.Default().FindFileByName(name)
    except KeyError as error:
        raise KafkaError(
            f"the Protobuf schema imports {name!r}, which is not known here: give the generated class, as in "
            "Protobuf(Order)"
        ) from error
    file = descriptor_pb2.FileDescriptorProto()
    known.CopyToProto(file)
    pool.Add(file)


def _path(value: bytes) -> tuple[tuple[int, ...], int]:
    """Returns the path before a message, and where the message begins. A single zero stands for the first message."""
    count, at = _varint(value, 0)
    path = []
    for _ in range(count):
        index, at = _varint(value, at)
        path.append(index)
    return tuple(path) or (0,), at


def _varint(value: bytes, at: int) -> tuple[int, int]:
    """Returns a zigzag number, and where it ends."""
    number, shift = 0, 0
    while True:
        if at >= len(value) or shift > 28:
            raise ValueError("it does not say which message it is")
        byte = value[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
