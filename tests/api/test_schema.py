"""Schemas that a job declares, as Arrow schemas or as DDL strings (more of those in test_ddl.py)."""

import pyarrow as pa
import pytest

from engine.api.schema import parse_schema
from engine.core.schema_rules import SchemaError


def test_a_string_is_parsed_as_ddl() -> None:
    assert parse_schema("a int, b string") == pa.schema([("a", pa.int32()), ("b", pa.string())])


def test_an_arrow_schema_is_itself() -> None:
    schema = pa.schema([("a", pa.dictionary(pa.int8(), pa.string()))], metadata={"k": "v"})
    assert parse_schema(schema) is schema


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        (pa.schema([]), "no columns"),
        (pa.schema([("_event_time", pa.int64())]), "reserved"),
        (pa.schema([("a", pa.int64()), ("a", pa.int64())]), "occurs more than once"),
    ],
)
def test_an_arrow_schema_obeys_the_same_rules(schema: pa.Schema, problem: str) -> None:
    with pytest.raises(SchemaError, match=problem):
        parse_schema(schema)


def test_something_that_is_no_schema_is_refused_by_its_type() -> None:
    with pytest.raises(SchemaError, match=r"a pyarrow.Schema or a Spark DDL string such as .*, not a dict"):
        parse_schema({"a": "int"})  # type: ignore[arg-type]
