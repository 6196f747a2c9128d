"""Declared JSON fields that no record has: they read as null, so a misspelled name is told in the log."""

from pathlib import Path

import pyarrow as pa
import pytest

from engine.api.schema import parse_schema
from engine.connectors.files.jsonlines import JsonSource

LINES = b'{"app": "a", "price": 1}\n\n{"app": "b", "price": null, "note": null}\n'


def warnings(source: JsonSource, schema: str, caplog: pytest.LogCaptureFixture, lines: bytes = LINES) -> list[str]:
    caplog.clear()
    parsed: pa.Schema = parse_schema(schema)
    form = source.format(Path("views.jsonl"), lines, parsed)
    form.parse(lines)
    form.parse(lines)
    return [record.getMessage() for record in caplog.records]


def test_a_misspelled_field_is_told_once_with_the_fields_that_occur(caplog: pytest.LogCaptureFixture) -> None:
    source = JsonSource("/views")
    assert warnings(source, "app string, prise long", caplog) == [
        "views.jsonl: no record at its beginning has the declared field 'prise', which is null then; the records have "
        "'app', 'price', 'note'"
    ]
    assert warnings(source, "app string, prise long", caplog) == []


def test_a_field_that_occurs_or_is_only_null_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    assert warnings(JsonSource("/views"), "app string, price long, note string", caplog) == []
