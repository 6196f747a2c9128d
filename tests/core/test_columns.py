"""A file that was written from records has the columns of these records, whatever their encoding."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from engine.core.columns import stored_columns
from engine.core.event_time import EVENT_TIME


@pytest.mark.parametrize(
    "kind",
    [
        pa.int8(),
        pa.uint32(),
        pa.float32(),
        pa.bool_(),
        pa.string(),
        pa.large_string(),
        pa.dictionary(pa.int32(), pa.string()),
        pa.binary(),
        pa.date32(),
        pa.date64(),
        pa.timestamp("s"),
        pa.timestamp("ns", "UTC"),
        pa.time64("us"),
        pa.decimal128(20, 2),
        pa.list_(pa.int64()),
        pa.large_list(pa.large_string()),
        pa.map_(pa.string(), pa.timestamp("ms")),
        pa.struct([("a", pa.list_(pa.int64())), ("b", pa.struct([("c", pa.date64())]))]),
    ],
    ids=str,
)
def test_the_columns_of_a_file_are_those_of_its_records(kind: pa.DataType) -> None:
    schema = pa.schema([("x", kind)])
    out = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), out, coerce_timestamps="us", allow_truncated_timestamps=True)
    assert stored_columns(pq.read_schema(pa.BufferReader(out.getvalue()))) == stored_columns(schema)


def test_the_hidden_event_time_is_no_column() -> None:
    assert stored_columns(pa.schema([(EVENT_TIME, pa.int64())])) == []
