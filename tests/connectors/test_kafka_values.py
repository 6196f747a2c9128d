"""Values of Kafka records in each format, without a broker: Avro, Protobuf and JSON, given or from a registry.

Checks: rows are what other people's libraries encoded; a bad value is found, alone, and shifts no neighbour.
"""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from hypothesis import given
from hypothesis import strategies as st

from engine.api.schema import parse_schema
from engine.connectors.kafka import Avro, Json, Protobuf, Registry
from engine.connectors.kafka.client import KafkaAway, KafkaError
from engine.connectors.kafka.values import Decoded, ValueFormat, decoded
from tests.servers.registry import SchemaRegistry

pytestmark = pytest.mark.promise("G2")

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "who", "type": ["null", "string"], "default": None},
        {"name": "price", "type": "double"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}]},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]}},
        {"name": "cost", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "from", "type": {"type": "record", "name": "Place", "fields": [{"name": "city", "type": "string"}]}},
        {"name": "to", "type": ["null", "Place"]},
    ],
}
DECLARED = (
    "id long, who string, price double, tags array<string>, at timestamp, day date, kind string, cost decimal(10,2), "
    "`from` struct<city: string>, `to` struct<city: string>, missing long"
)


def order(n: int) -> dict[str, Any]:
    return {
        "id": n,
        "who": None if n % 3 == 0 else f"w{n}",
        "price": n / 4,
        "tags": [str(n)] * (n % 3),
        "at": datetime(2023, 11, 14, 22, 13, n % 60, tzinfo=UTC),
        "day": None if n % 2 else date(2023, 11, 14),
        "kind": "OLD" if n % 2 else "NEW",
        "cost": Decimal(n) / 100,
        "from": {"city": f"c{n}"},
        "to": None if n % 5 else {"city": "x"},
    }


def avro(record: Any, schema: Any = ORDER) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), record)
    return out.getvalue()


def declared(text: str) -> pa.Schema:
    return parse_schema(text)


def read(form: ValueFormat, values: list[bytes | None], schema: str) -> Decoded:
    parsed = declared(schema)
    form.check(parsed)
    return decoded(form.decoder(parsed), values, parsed)


@pytest.fixture
def registry() -> SchemaRegistry:
    return SchemaRegistry()


@pytest.fixture
def url(registry: SchemaRegistry) -> Iterator[str]:
    with registry.running() as address:
        yield address


def named(id: int, body: bytes) -> bytes:
    return b"\x00" + id.to_bytes(4, "big") + body


# --- Avro ---


def test_avro_values_are_what_another_library_has_written() -> None:
    fields = DECLARED.removesuffix(", missing long")
    done = read(Avro(json.dumps(ORDER)), [avro(order(n)) for n in range(100)], fields)
    assert done.rows.to_pylist() == [order(n) for n in range(100)]
    assert not done.bad


def test_an_avro_value_that_is_cut_or_too_long_is_found_and_shifts_no_neighbour() -> None:
    fields = DECLARED.removesuffix(", missing long")
    values: list[bytes | None] = [avro(order(n)) for n in range(50)]
    values[7], values[20], values[21] = values[7][:-1], values[20] + b"\x00", b""  # type: ignore[index, operator]
    done = read(Avro(ORDER), values, fields)
    assert [place for place, _ in done.bad] == [7, 20, 21]
    assert done.rows.to_pylist() == [order(n) for n in range(50) if n not in (7, 20, 21)]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_whatever_is_wrong_with_some_avro_values_the_others_are_right(kinds: list[int], chance: random.Random) -> None:
    """Bytes move from the end of one value to the beginning of the next, so that their sum stays the same, too."""
    good = [avro(order(n)) for n in range(len(kinds))]
    values = list(good)
    for at, kind in enumerate(kinds):
        cut = chance.randint(1, 3)
        if kind == 1:
            values[at] = values[at][:-cut]
        elif kind == 2:
            values[at] += bytes(chance.randint(0, 255) for _ in range(cut))
        elif kind == 3 and at + 1 < len(values):
            values[at + 1] = values[at][-cut:] + values[at + 1]
            values[at] = values[at][:-cut]
    done = read(Avro(ORDER), list(values), "id long, tags array<string>")
    expected = [at for at, value in enumerate(values) if value == good[at]]
    rows = dict(zip(done.places.tolist(), done.rows.column("id").to_pylist(), strict=True))
    assert [rows.get(at) for at in expected] == expected


def test_each_value_is_decoded_with_the_schema_that_it_names(registry: SchemaRegistry, url: str) -> None:
    newer = {**ORDER, "fields": [*ORDER["fields"], {"name": "missing", "type": "long"}]}
    registry.avro(1, ORDER)
    registry.avro(258, newer)
    values: list[bytes | None] = [
        named(1, avro(order(1))),
        named(1, avro(order(2))),
        named(258, avro({**order(3), "missing": 5}, newer)),
        named(1, avro(order(4))),
        None,
    ]
    done = read(Avro(Registry(url)), values, DECLARED)
    assert done.rows.column("missing").to_pylist() == [None, None, 5, None, None]
    assert done.rows.column("id").to_pylist() == [1, 2, 3, 4, None]
    assert registry.requests == ["/schemas/ids/1", "/schemas/ids/258"]


def test_schemas_that_refer_to_others_are_fetched_with_them(registry: SchemaRegistry, url: str) -> None:
    place = {"type": "record", "name": "Place", "fields": [{"name": "city", "type": "string"}]}
    trip = {
        "type": "record",
        "name": "Trip",
        "fields": [{"name": "a", "type": "Place"}, {"name": "b", "type": "Place"}],
    }
    registry.subjects["place", 3] = {"subject": "place", "version": 3, "schema": json.dumps(place)}
    registry.avro(9, trip, [{"name": "Place", "subject": "place", "version": 3}])
    whole = {**trip, "fields": [{"name": "a", "type": place}, {"name": "b", "type": "Place"}]}
    value = named(9, avro({"a": {"city": "x"}, "b": {"city": "y"}}, whole))
    done = read(Avro(Registry(url)), [value], "a struct<city: string>, b struct<city: string>")
    assert done.rows.to_pylist() == [{"a": {"city": "x"}, "b": {"city": "y"}}]


def test_a_value_of_an_unknown_schema_is_malformed_and_asked_for_once(registry: SchemaRegistry, url: str) -> None:
    registry.avro(1, ORDER)
    values: list[bytes | None] = [named(1, avro(order(1))), *[named(7, b"x")] * 20, b"{}", named(1, avro(order(2)))]
    done = read(Avro(Registry(url)), values, "id long")
    assert done.rows.column("id").to_pylist() == [1, 2]
    assert next(why for _, why in done.bad) == "the schema registry has no /schemas/ids/7"
    assert [why for _, why in done.bad][-1] == "it does not begin with a zero byte and the id of a schema"
    assert registry.requests.count("/schemas/ids/7") == 1


def test_a_registry_that_does_not_answer_is_away_and_one_that_refuses_says_what_to_do(
    registry: SchemaRegistry, url: str
) -> None:
    registry.avro(1, ORDER)
    registry.away = 1
    with pytest.raises(KafkaAway, match=r"the schema registry at .* answers 503"):
        read(Avro(Registry(url)), [named(1, avro(order(1)))], "id long")
    registry.password = "secret"
    with pytest.raises(KafkaError, match=r"refuses the credentials: .* Registry\(url, auth="):
        read(Avro(Registry(url)), [named(1, avro(order(1)))], "id long")
    done = read(Avro(Registry(url, ("weir", "secret"))), [named(1, avro(order(1)))], "id long")
    assert done.rows.num_rows == 1
    with pytest.raises(KafkaAway, match=r"the schema registry at http://127.0.0.1:1 does not answer"):
        read(Avro(Registry("http://127.0.0.1:1")), [named(1, avro(order(1)))], "id long")


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("{", "the Avro schema is no JSON"),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": "strin"}]}, "the Avro schema can't be read"),
        ("long", "the Avro schema is no JSON"),
        ('"long"', "the Avro schema is no record"),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": ["long", "string"]}]}, "'a' is a union"),
        (
            {"type": "record", "name": "R", "fields": [{"name": "a", "type": {"type": "map", "values": "long"}}]},
            "'a' is a map",
        ),
        (
            {"type": "record", "name": "R", "fields": [{"name": "a", "type": ["null", "R"]}]},
            "'a' is of type R, which contains itself",
        ),
    ],
)
def test_an_avro_schema_that_can_not_be_read_by_the_column_is_refused(schema: Any, said: str) -> None:
    with pytest.raises(KafkaError, match=said):
        Avro(schema)


def test_a_declared_field_that_the_given_schema_lacks_is_an_error_before_the_job_starts() -> None:
    with pytest.raises(KafkaError, match="the Avro schema has no field 'idd', which is declared; it has"):
        Avro(ORDER).check(declared("idd long"))


# --- Protobuf ---


def proto() -> tuple[Any, bytes]:
    """A message with each kind of field, and its serialized file."""
    file = descriptor_pb2.FileDescriptorProto(name="orders.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    file.message_type.add(name="Other").field.add(name="x", number=1, label=1, type=3)
    order = file.message_type.add(name="Order")
    order.nested_type.add(name="Place").field.add(name="city", number=1, label=1, type=9)
    file.enum_type.add(name="Kind").value.add(name="NEW", number=0)
    file.enum_type[0].value.add(name="OLD", number=1)
    field = order.field.add
    field(name="id", number=1, label=1, type=3)
    order.oneof_decl.add(name="_who")
    field(name="who", number=2, label=1, type=9, proto3_optional=True, oneof_index=0)
    field(name="tags", number=3, label=3, type=9)
    field(name="kind", number=4, label=1, type=14, type_name=".shop.Kind")
    field(name="to", number=5, label=1, type=11, type_name=".shop.Order.Place")
    field(name="at", number=6, label=1, type=11, type_name=".google.protobuf.Timestamp")
    field(name="stops", number=7, label=3, type=11, type_name=".shop.Order.Place")
    pool = descriptor_pool.DescriptorPool()
    stamps = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(stamps)
    pool.Add(stamps)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order")), file.SerializeToString()


PROTO = (
    "id long, who string, tags array<string>, kind string, `to` struct<city: string>, at timestamp, "
    "stops array<struct<city: string>>"
)


def messages() -> tuple[list[bytes], list[dict[str, Any]]]:
    kind, _ = proto()
    full = kind(id=5, who="", tags=["a", "b"], kind=1, to={"city": "c"}, stops=[{"city": "d"}])
    full.at.FromSeconds(1_700_000_000)
    rows = [
        {
            "id": 5,
            "who": "",
            "tags": ["a", "b"],
            "kind": "OLD",
            "to": {"city": "c"},
            "at": datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
            "stops": [{"city": "d"}],
        },
        {"id": 0, "who": None, "tags": [], "kind": "NEW", "to": None, "at": None, "stops": []},
    ]
    return [full.SerializeToString(), kind().SerializeToString()], rows


def test_protobuf_values_of_a_given_class_become_columns() -> None:
    values, rows = messages()
    done = read(Protobuf(proto()[0]), [*values, b"\xff"], PROTO)
    assert done.rows.to_pylist() == rows
    assert [place for place, _ in done.bad] == [2]


def test_protobuf_values_name_their_schema_and_their_message(registry: SchemaRegistry, url: str) -> None:
    registry.protobuf(4, proto()[1])
    values, rows = messages()
    second = b"\x02\x02"  # a path of one step: the second message of the file
    done = read(Protobuf(Registry(url)), [named(4, second + value) for value in values], PROTO)
    assert done.rows.to_pylist() == rows
    first = read(Protobuf(Registry(url)), [named(4, b"\x00" + b"\x08\x07")], "x long")
    assert first.rows.to_pylist() == [{"x": 7}]


def test_a_declared_field_that_the_message_lacks_is_an_error_before_the_job_starts() -> None:
    with pytest.raises(KafkaError, match=r"the message shop.Order has no field 'idd', which is declared"):
        Protobuf(proto()[0]).check(declared("idd long"))


# --- JSON ---


def test_json_values_may_have_newlines_and_more_fields_than_are_declared() -> None:
    values: list[bytes | None] = [b'{\n "a": 1,\n "b": {"c": [1, 2]}\n}', b' {"a": 2, "z": 5} ', b'{"a": null}', b"{}"]
    done = read(Json(), values, "a long, b struct<c: array<int>>")
    assert done.rows.column("a").to_pylist() == [1, 2, None, None]
    assert not done.bad


BAD_JSON = [b"", b" ", b"{", b"}", b'{"a": 1} {"a": 2}', b'{"a": 1}}\n{"v":{"a":2}', b"[1]", b"5", b'{"a": "x', b"null"]


@given(st.lists(st.sampled_from([b'{"a": 1}', *BAD_JSON]), max_size=12))
def test_whatever_is_wrong_with_some_json_values_the_others_are_right(values: list[bytes]) -> None:
    done = read(Json(), list(values), "a long")
    good = [at for at, value in enumerate(values) if value == b'{"a": 1}']
    assert done.places.tolist() == good
    assert done.rows.column("a").to_pylist() == [1] * len(good)
    assert sorted(place for place, _ in done.bad) == [at for at in range(len(values)) if at not in good]
