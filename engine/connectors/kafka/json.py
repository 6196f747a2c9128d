"""JSON values: one object a record, fields by name. All values of a batch are parsed as one text."""

from __future__ import annotations

import io
from collections.abc import Sequence

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from engine.connectors.files.jsonlines import check_utf8, parsed_as, reason_of
from engine.connectors.files.text import conform, out_of_range, overflowed
from engine.connectors.kafka.values import Decoder, Encoder, ValueFormat


class Json(ValueFormat):
    """Fields that are missing are null; those that are not declared are ignored."""

    def check(self, schema: pa.Schema) -> None:
        for field in schema:
            parsed_as(field.type)

    def decoder(self, schema: pa.Schema) -> Decoder:
        return _JsonValues(schema)

    def encoder(self, schema: pa.Schema) -> Encoder:
        return _JsonTexts()


class _JsonValues:
    """Parses each value as the field `v` of an object of its own: so none can run over into the next one.

    A value that is no single JSON value breaks its own object, or makes more than one row of it. Both are found.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        as_parsed = pa.struct([pa.field(field.name, parsed_as(field.type)) for field in schema])
        self._options = pyarrow.json.ParseOptions(
            explicit_schema=pa.schema([("v", as_parsed)]),
            unexpected_field_behavior="ignore",
            newlines_in_values=True,
        )

    def decode(self, values: Sequence[bytes]) -> pa.RecordBatch:
        text = b'{"v":' + b'}\n{"v":'.join(values) + b"}\n"
        check_utf8(text)
        whole = pyarrow.json.ReadOptions(use_threads=False, block_size=len(text) + 1)
        try:
            parsed = pyarrow.json.read_json(pa.BufferReader(text), whole, self._options)
        except pa.ArrowInvalid as error:
            raise ValueError(reason_of(error).replace("/v/", "/")) from error
        objects = parsed.column("v").combine_chunks()
        if objects.null_count:
            raise ValueError("it is null, not an object")
        rows = conform(pa.Table.from_arrays(objects.flatten(), [field.name for field in objects.type]), self._schema)
        for column in overflowed(rows):  # JSON has no infinity
            raise out_of_range(column, self._schema)
        return rows


class _JsonTexts:
    def encode(self, rows: pa.RecordBatch) -> pa.Array:
        out = io.BytesIO()
        frame = pl.from_arrow(pa.Table.from_batches([rows]))
        assert isinstance(frame, pl.DataFrame)
        frame.write_ndjson(out)
        lines = pa.array([out.getvalue()], pa.large_binary())
        texts = pc.split_pattern(lines, b"\n")[0].values.slice(0, rows.num_rows)
        return texts.cast(pa.binary())
