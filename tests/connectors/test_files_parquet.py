"""Parquet files: row groups as splits, positions inside them, and schemas that fit or are told what does not."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.connectors.files import ParquetSource, parquet
from engine.connectors.files.listing import FileError
from tests.connectors.reading import Reading

SCHEMA = pa.schema([("n", pa.int64()), ("name", pa.string())])


def table(rows: int) -> pa.Table:
    return pa.table({"n": list(range(rows)), "name": [f"r{n}" for n in range(rows)]}, schema=SCHEMA)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("parquet")
    pq.write_table(table(100), made / "a.parquet", row_group_size=13)
    return made


@pytest.mark.promise("G1")
@pytest.mark.parametrize(("split_bytes", "splits"), [(1, 8), (10**9, 1), (600, 4)])
def test_row_groups_that_follow_each_other_are_a_split(
    folder: Path, monkeypatch: pytest.MonkeyPatch, split_bytes: int, splits: int
) -> None:
    monkeypatch.setattr(parquet, "SPLIT_BYTES", split_bytes)
    reading = Reading(ParquetSource(str(folder)), SCHEMA)
    assert len(reading.splits) == splits
    assert [row for split in reading.splits for row in reading.all(split)] == table(100).to_pylist()


@pytest.mark.promise("G1", "D7")
@given(cuts=st.lists(st.integers(1, 30), max_size=8), chunk=st.integers(1, 20))
def test_going_on_from_any_position_gives_exactly_the_rest(folder: Path, cuts: list[int], chunk: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet, "CHUNK_ROWS", chunk)
        reading = Reading(ParquetSource(str(folder)), SCHEMA)
        (split,) = reading.splits
        assert reading.in_pieces(split, cuts) == table(100).to_pylist()


@pytest.mark.promise("G1", "D7")
@pytest.mark.parametrize("polls", range(8))
def test_a_position_taken_while_chunks_are_still_being_dropped_is_right_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch, polls: int
) -> None:
    """Restored in the middle of a row group, and snapshotted before it has caught up with that place."""
    monkeypatch.setattr(parquet, "CHUNK_ROWS", 3)
    reading = Reading(ParquetSource(str(folder)), SCHEMA)
    (split,) = reading.splits
    reader = reading.source.reader(split, [1, 11], reading.context)
    given = []
    for _ in range(polls):
        batch = reader.poll(1)
        given += batch.to_pylist() if batch is not None else []
        reading.offload.run()
    assert given + reading.all(split, reader.position) == table(100).to_pylist()[13 + 11 :]


def test_a_file_without_rows_has_none(tmp_path: Path) -> None:
    pq.write_table(table(0), tmp_path / "empty.parquet")
    pq.write_table(table(2), tmp_path / "full.parquet")
    reading = Reading(ParquetSource(str(tmp_path)), SCHEMA)
    assert [row["n"] for split in reading.splits for row in reading.all(split)] == [0, 1]


@pytest.mark.parametrize(
    ("found", "declared"),
    [
        (pa.int16(), pa.int64()),
        (pa.int32(), pa.float64()),
        (pa.float32(), pa.float64()),
        (pa.dictionary(pa.int32(), pa.string()), pa.string()),
        (pa.string(), pa.dictionary(pa.int8(), pa.string())),
        (pa.large_binary(), pa.dictionary(pa.int32(), pa.binary())),
        (pa.timestamp("ms", tz="UTC"), pa.timestamp("us", tz="UTC")),
        (pa.decimal128(5, 2), pa.decimal128(10, 3)),
        (pa.list_(pa.int32()), pa.list_(pa.field("element", pa.int64()))),
        (pa.struct([("x", pa.int8())]), pa.struct([("x", pa.int32())])),
    ],
)
def test_a_column_of_a_narrower_type_is_widened(tmp_path: Path, found: pa.DataType, declared: pa.DataType) -> None:
    pq.write_table(pa.table({"c": pa.array([None], found), "more": [1]}), tmp_path / "a.parquet")
    reading = Reading(ParquetSource(str(tmp_path)), pa.schema([("c", declared)]))
    assert reading.all(reading.splits[0]) == [{"c": None}]


@pytest.mark.parametrize(
    ("found", "declared"),
    [
        (pa.int64(), pa.int32()),
        (pa.string(), pa.int64()),
        (pa.int64(), pa.float64()),
        (pa.timestamp("us"), pa.timestamp("us", tz="UTC")),
        (pa.decimal128(5, 2), pa.decimal128(5, 3)),
        (pa.struct([("x", pa.int8())]), pa.struct([("y", pa.int8())])),
        (pa.list_(pa.string()), pa.list_(pa.int64())),
        (pa.int64(), pa.dictionary(pa.int32(), pa.int64())),
        (pa.int64(), pa.dictionary(pa.int32(), pa.string())),
    ],
)
def test_a_column_of_another_type_is_told_with_file_and_both_types(
    tmp_path: Path, found: pa.DataType, declared: pa.DataType
) -> None:
    pq.write_table(pa.table({"c": pa.array([None], found)}), tmp_path / "a.parquet")
    reading = Reading(ParquetSource(str(tmp_path)), pa.schema([("c", declared)]))
    with pytest.raises(FileError) as error:
        reading.all(reading.splits[0])
    in_file = pq.read_schema(tmp_path / "a.parquet").field("c").type
    assert str(error.value) == f"{tmp_path}/a.parquet: column 'c' is {in_file}, but the job declares {declared}"


@given(cuts=st.lists(st.integers(1, 30), max_size=8), chunk=st.integers(1, 20))
def test_text_declared_as_a_dictionary_is_read_as_one_from_any_position(
    folder: Path, cuts: list[int], chunk: int
) -> None:
    declared = SCHEMA.set(1, pa.field("name", pa.dictionary(pa.int32(), pa.string())))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet, "CHUNK_ROWS", chunk)
        reading = Reading(ParquetSource(str(folder)), declared)
        (split,) = reading.splits
        assert reading.in_pieces(split, cuts) == table(100).to_pylist()


def test_more_values_than_a_dictionary_can_number_are_told(tmp_path: Path) -> None:
    pq.write_table(table(200), tmp_path / "a.parquet")
    reading = Reading(ParquetSource(str(tmp_path)), pa.schema([("name", pa.dictionary(pa.int8(), pa.string()))]))
    with pytest.raises(FileError, match=r"a.parquet, row group 0: .*Integer value 128 not in range"):
        reading.all(reading.splits[0])


def test_a_missing_column_is_told_with_those_there_are(folder: Path) -> None:
    reading = Reading(ParquetSource(str(folder)), pa.schema([("other", pa.int64())]))
    with pytest.raises(FileError, match=r"a.parquet has no column 'other'; it has: n, name"):
        reading.all(reading.splits[0])


def test_a_null_where_none_is_declared_is_told(tmp_path: Path) -> None:
    pq.write_table(pa.table({"c": pa.array([1, None])}), tmp_path / "a.parquet")
    reading = Reading(ParquetSource(str(tmp_path)), pa.schema([pa.field("c", pa.int64(), nullable=False)]))
    with pytest.raises(FileError, match="column 'c' has nulls, but the job declares it not null"):
        reading.all(reading.splits[0])


def test_a_file_that_is_no_parquet_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_text("no")
    with pytest.raises(FileError, match=r"a.parquet is not a Parquet file that can be read"):
        Reading(ParquetSource(str(tmp_path)), SCHEMA)


KINDS = {"few": True, "many": True, "plain": False}


def _texts(path: Path, kind: str) -> list[str | None]:
    """Writes 1,000 texts: few different ones, many, or few without a dictionary in the file."""
    texts = [None if n % 50 == 0 else f"user-{n % (7 if kind != 'many' else 997):09d}@example.org" for n in range(1000)]
    written = pa.table({"n": list(range(1000)), "name": texts}, schema=SCHEMA)
    pq.write_table(written, path, row_group_size=400, use_dictionary=KINDS[kind])
    return texts


@pytest.mark.promise("G1", "A2")
@pytest.mark.parametrize("wanted", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_texts_come_as_dictionaries_if_that_is_wanted_and_the_file_has_them_so(
    tmp_path: Path, kind: str, wanted: bool
) -> None:
    texts = _texts(tmp_path / "a.parquet", kind)
    reading = Reading(ParquetSource(str(tmp_path)), SCHEMA)
    if wanted:
        reading.context = replace(reading.context, dictionaries=frozenset({"name", "n", "gone"}))
    (split,) = reading.splits
    reader = reading.source.reader(split, None, reading.context)
    while (batch := reader.poll(300)) is None:
        reading.offload.run()
    coded = wanted and kind == "few"
    assert pa.types.is_dictionary(batch.column("name").type) == coded and batch.column("n").type == pa.int64()
    assert [row["name"] for row in reading.in_pieces(split, [7, 300, 401, 11])] == texts
