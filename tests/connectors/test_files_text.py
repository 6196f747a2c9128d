"""CSV and JSON lines: byte ranges as splits, positions inside chunks, and every bad line found, wherever chunks end."""

import csv
import datetime as dt
import errno
import gzip
import io
import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api import JobError, StreamEnvironment
from engine.api.schema import parse_schema
from engine.connectors.files import CsvSource, JsonSource, text
from engine.connectors.files.listing import FileError, unreadable
from engine.core.errors import fault_of
from engine.protocol.failures import Fault
from tests.connectors.reading import Reading

SCHEMA = parse_schema("n long, name string")

LINES = st.lists(st.tuples(st.booleans(), st.text("abc ,é", max_size=12), st.sampled_from(["", "\n"])), max_size=40)
"""Whether a record is good, its name, and whether a blank line follows."""


def written(form: str, n: int, good: bool, name: str) -> str:
    value = n if good else "bad"
    return json.dumps({"n": value, "name": name}) if form == "json" else f'{value},"{name}"'


def source(form: str, path: Path, malformed: Any = "skip") -> CsvSource | JsonSource:
    return JsonSource(str(path), malformed=malformed) if form == "json" else CsvSource(str(path), malformed=malformed)


@pytest.mark.promise("G1", "D7")
@pytest.mark.parametrize("form", ["csv", "json"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@given(lines=LINES, split=st.integers(1, 400), chunk=st.integers(1, 400), cuts=st.lists(st.integers(1, 9), max_size=6))
def test_all_splits_from_any_position_on_give_each_record_once_and_each_bad_line_with_its_number(
    tmp_path_factory: pytest.TempPathFactory, form: str, newline: str, lines: Any, split: int, chunk: int, cuts: Any
) -> None:
    path = tmp_path_factory.mktemp("text") / f"a.{form}"
    content = ["n,name"] if form == "csv" else []
    good, bad = [], []
    for n, (fits, name, blank) in enumerate(lines):
        content.append(written(form, n, fits, name))
        if fits:
            good.append({"n": n, "name": name})
        else:
            bad.append((len(content), content[-1]))
        content += [""] * len(blank)
    path.write_bytes(newline.join(content).encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "SPLIT_BYTES", split)
        patch.setattr(text, "CHUNK_BYTES", chunk)
        reading = Reading(source(form, path), SCHEMA)
        assert [row for one in reading.splits for row in reading.in_pieces(one, cuts)] == good
    assert [(record["line"], record["text"]) for record in reading.malformed] == bad
    assert {record["file"] for record in reading.malformed} <= {str(path)}


@pytest.mark.promise("G1")
@given(
    st.lists(st.text('ab"\n,', max_size=8), min_size=1, max_size=20), st.integers(1, 40), st.lists(st.integers(1, 5))
)
def test_quoted_values_may_have_newlines_if_the_file_is_one_split(values: list[str], chunk: int, cuts: Any) -> None:
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerows([("n", "name"), *enumerate(values)])
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "CHUNK_BYTES", chunk)
        patch.setattr(text, "SPLIT_BYTES", 10)
        (Path(folder) / "a.csv").write_text(out.getvalue())
        reading = Reading(CsvSource(folder, multiline=True), SCHEMA)
        (split,) = reading.splits
        assert [row["name"] for row in reading.in_pieces(split, cuts)] == values


def test_a_compressed_file_is_one_split_and_resumes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "CHUNK_BYTES", 50)
    monkeypatch.setattr(text, "SPLIT_BYTES", 20)
    members = [b"n,name\n1,a\n", b"".join(b"%d,b\n" % n for n in range(2, 90)), b"x,c\n"]
    (tmp_path / "a.csv.gz").write_bytes(b"".join(map(gzip.compress, members)))
    reading = Reading(CsvSource(str(tmp_path), malformed="skip"), SCHEMA)
    (split,) = reading.splits
    assert [row["n"] for row in reading.in_pieces(split, [3, 40])] == list(range(1, 90))
    assert [record["line"] for record in reading.malformed] == [91]


# --- what a record may look like ---


def csv_rows(tmp_path: Path, content: str | bytes, schema: str, **options: Any) -> list[dict[str, Any]]:
    data = content.encode() if isinstance(content, str) else content
    (tmp_path / "a.csv").write_bytes(data)
    reading = Reading(CsvSource(str(tmp_path / "a.csv"), **options), parse_schema(schema))
    return [row for split in reading.splits for row in reading.all(split)]


def test_csv_columns_are_found_by_name_in_any_order_and_others_ignored(tmp_path: Path) -> None:
    assert csv_rows(tmp_path, "x,b,a\n1,2,3\n", "a long, b long") == [{"a": 3, "b": 2}]


def test_without_a_header_columns_are_those_declared(tmp_path: Path) -> None:
    assert csv_rows(tmp_path, "1;'2;3'\n", "a long, b string", header=False, delimiter=";", quote="'") == [
        {"a": 1, "b": "2;3"}
    ]


def test_a_byte_order_mark_is_no_part_of_the_header(tmp_path: Path) -> None:
    assert csv_rows(tmp_path, b"\xef\xbb\xbfa\n1\n", "a long") == [{"a": 1}]
    assert csv_rows(tmp_path, b"\xef\xbb\xbf1\n", "a long", header=False) == [{"a": 1}]


def test_a_file_without_quotes_is_read_with_a_quote_that_no_value_has(tmp_path: Path) -> None:
    """The message for quote=None says so."""
    assert csv_rows(tmp_path, '1,5" pipe\n', "a long, b string", header=False, quote="\x01") == [
        {"a": 1, "b": '5" pipe'}
    ]


def test_an_empty_value_is_null_unless_it_is_quoted(tmp_path: Path) -> None:
    assert csv_rows(tmp_path, 'a,b\n,1\n"",2\n', "a string, b long") == [{"a": None, "b": 1}, {"a": "", "b": 2}]
    assert csv_rows(tmp_path, "a,b\n-,1\n", "a long, b long", null="-") == [{"a": None, "b": 1}]


@pytest.mark.parametrize("content", ["", "a", "a\n", "a\n\n\n"])
def test_a_file_without_records_has_no_rows(tmp_path: Path, content: str) -> None:
    assert csv_rows(tmp_path, content, "a long") == []


def test_timestamps_are_iso_8601_with_a_zone_or_in_utc_also_mixed(tmp_path: Path) -> None:
    noon = dt.datetime(2026, 5, 1, 12, 0, tzinfo=dt.UTC)
    forms = ["2026-05-01T12:00:00Z", "2026-05-01 12:00:00", "2026-05-01T14:00:00.000+02:00", "2026-05-01T12:00"]
    for mixed in ([forms[0], forms[2]], [forms[1], forms[3]], forms):
        rows = csv_rows(
            tmp_path, "t,u\n" + "".join(f"{form},{forms[0]}\n" for form in mixed), "t timestamp, u timestamp"
        )
        assert rows == [{"t": noon, "u": noon}] * len(mixed)


def test_json_fields_have_their_types_nested_too(tmp_path: Path) -> None:
    schema = "t timestamp, d date, s struct<x: array<int>, at: timestamp>, p decimal(6,2), missing string"
    row = {"t": "2026-05-01 12:00:00", "d": "2026-05-01", "s": {"x": [1, 2], "at": "2026-05-01T12:00:00Z"}, "p": 1.25}
    (tmp_path / "a.json").write_text(json.dumps({**row, "other": {"ignored": 1}}))
    reading = Reading(JsonSource(str(tmp_path)), parse_schema(schema))
    noon = dt.datetime(2026, 5, 1, 12, 0, tzinfo=dt.UTC)
    (found,) = reading.all(reading.splits[0])
    assert found["t"] == found["s"]["at"] == noon
    assert (found["d"], found["s"]["x"], str(found["p"]), found["missing"]) == (
        dt.date(2026, 5, 1),
        [1, 2],
        "1.25",
        None,
    )


# --- what it may not ---


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("x,a", "column 'n' is not of type int64: invalid value 'x'"),
        ("1", "expected 2 columns, got 1"),
        ("1,a,b", "expected 2 columns, got 3"),
        ('1,"a', "a quote is not closed"),
        (",a", "column 'n' has no value, but is declared not null"),
        ("99999999999999999999,a", "column 'n' is not of type int64: invalid value '99999999999999999999'"),
    ],
)
def test_a_bad_csv_line_says_why(tmp_path: Path, line: str, reason: str) -> None:
    for place in range(3):
        lines = ["1,a", '2,"b"']
        lines.insert(place, line)
        (tmp_path / "a.csv").write_text("\n".join(["n,name", *lines]))
        reading = Reading(CsvSource(str(tmp_path), malformed="skip"), parse_schema("n long not null, name string"))
        assert [row["n"] for row in reading.all(reading.splits[0])] == [1, 2]
        assert reading.malformed == [
            {"file": f"{tmp_path}/a.csv", "line": place + 2, "text": line, "reason": reason},
        ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"n": "x"}', "/n has the type string, not number"),
        ('{"n": 1.5}', "Failed to convert JSON to int64, couldn't parse:1.5"),
        ("[1]", "the record has the type array, not object"),
        ('{"n": ', "Invalid value."),
        ('{"n": 1}{"n": 2}', "2 records, expected 1"),
    ],
)
def test_a_bad_json_line_says_why(tmp_path: Path, line: str, reason: str) -> None:
    (tmp_path / "a.json").write_text('{"n": 1}\n' + line + '\n{"n": 2}\n')
    reading = Reading(JsonSource(str(tmp_path), malformed="dead_letter"), SCHEMA)
    assert [row["n"] for row in reading.all(reading.splits[0])] == [1, 2]
    assert reading.malformed == [{"file": f"{tmp_path}/a.json", "line": 2, "text": line, "reason": reason}]


@pytest.mark.promise("G1")
def test_a_job_that_fails_on_bad_records_says_file_line_reason_and_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(FileError) as error:
        csv_rows(tmp_path, "n\n1\n" + "x" * 300 + "\n", "n long")
    said = str(error.value)
    assert said.startswith(f"{tmp_path}/a.csv, line 3: column 'n' is not of type int64: invalid value 'xxx")
    assert "the line is '" + "x" * 197 + "...'" in said
    assert said.endswith('or give the source malformed="skip" or malformed="dead_letter"')


def test_a_header_without_a_declared_column_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"a.csv has no column 'b'; its header is 'a,c'"):
        csv_rows(tmp_path, "a,c\n1,2\n", "a long, b long")
    with pytest.raises(FileError, match=r"a.csv has 2 columns 'a'; its header is 'a,a'"):
        csv_rows(tmp_path, "a,a\n1,2\n", "a long")


@pytest.mark.parametrize(
    ("made", "schema", "said"),
    [
        (
            CsvSource("/x"),
            "a array<int>",
            r"source 'in': CSV can't be read as list<.*> \(column 'a'\): declare a string",
        ),
        (JsonSource("/x"), "a map<string,int>", "JSON can't be read as map<.*>: declare a struct or a string"),
        (JsonSource("/x"), "a struct<b: binary>", "JSON can't be read as binary"),
    ],
)
def test_a_type_that_the_format_does_not_have_is_told_when_the_job_is_built(made: Any, schema: str, said: str) -> None:
    with pytest.raises(JobError, match=said):
        StreamEnvironment().from_source(made, schema, uid="in")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"malformed": "ignore"}, "malformed='ignore': write 'fail', 'skip' or 'dead_letter'"),
        ({"delimiter": "::"}, "delimiter='::': it has to be one ASCII character"),
        ({"watch": 0}, "watch=0: looking without a pause"),
    ],
)
def test_an_option_that_makes_no_sense_is_told(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        CsvSource("/x", **options)


def test_a_relative_path_is_refused() -> None:
    with pytest.raises(ValueError, match="'data' is not an absolute path"):
        JsonSource("data")


def test_columns_are_never_wider_than_declared(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"n": 300}\n')
    reading = Reading(JsonSource(str(tmp_path), malformed="skip"), pa.schema([("n", pa.int8())]))
    assert reading.all(reading.splits[0]) == []


@pytest.mark.parametrize(
    ("error", "whose"),
    [
        (OSError(errno.EIO, "Input/output error"), Fault.OUTSIDE),
        (OSError(errno.ESTALE, "Stale file handle"), Fault.OUTSIDE),
        (FileNotFoundError(errno.ENOENT, "No such file"), Fault.OUTSIDE),  # it was listed
        (OSError(errno.EISDIR, "Is a directory"), Fault.JOB),
        (OSError("zlib inflate failed"), Fault.JOB),
    ],
)
def test_a_file_system_that_fails_is_not_the_job_s_fault(error: OSError, whose: Fault) -> None:
    assert fault_of(unreadable("views.csv", error)) is whose
