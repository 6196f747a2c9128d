"""The texts of state types in a manifest are read back as the types that they were written from."""

from __future__ import annotations

import pyarrow as pa
import pytest

from engine.graph.state_types import read_state_type, read_type


@pytest.mark.parametrize(
    "kind",
    [
        pa.int64(),
        pa.float32(),
        pa.bool_(),
        pa.date32(),
        pa.timestamp("us", tz="UTC"),
        pa.timestamp("ms"),
        pa.decimal128(38, 2),
        pa.list_(pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))])),
        pa.map_(pa.string(), pa.struct([("t", pa.timestamp("us", tz="UTC")), ("d", pa.decimal128(9, 1))])),
        pa.struct([pa.field("n", pa.int64(), nullable=False), pa.field("m", pa.map_(pa.string(), pa.int32()))]),
    ],
)
def test_types_are_read_back(kind: pa.DataType) -> None:
    assert read_type(str(kind)) == kind


def test_columns_aggregates_and_maps_have_types() -> None:
    assert read_state_type("my app string, n int64 not null") == pa.struct(
        [("my app", pa.string()), pa.field("n", pa.int64(), nullable=False)]
    )
    assert read_state_type("count(*) int64, sum(a, b) double") == pa.struct(
        [("count(*)", pa.int64()), ("sum(a, b)", pa.float64())]
    )
    assert read_state_type("string to struct<a: int64>") == pa.map_(pa.string(), pa.struct([("a", pa.int64())]))


@pytest.mark.parametrize("text", ["tumbling by 10000 ms of event time", "column ts", "", "x dictionary<values=string>"])
def test_other_texts_have_none(text: str) -> None:
    assert read_state_type(text) in (None, pa.struct([]))
