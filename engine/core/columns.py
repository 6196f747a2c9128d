"""The columns of a sink's target as its readers see them."""

from __future__ import annotations

import pyarrow as pa

from engine.core.event_time import EVENT_TIME
from engine.protocol.job_description import Column


def stored_columns(schema: pa.Schema) -> list[Column]:
    """Returns the columns of records, or of a file that was written from them: both give the same."""
    return [Column(field.name, str(_stored(field.type))) for field in schema if field.name != EVENT_TIME]


def _stored(kind: pa.DataType) -> pa.DataType:
    """Returns the type as readers see it: encodings of the same values, and units of time, are no difference."""
    if pa.types.is_dictionary(kind):
        return _stored(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pa.types.is_date(kind):
        return pa.date32()
    if pa.types.is_map(kind):
        return pa.map_(_stored(kind.key_type), _stored(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _stored(field.type)) for field in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(_stored(kind.value_type))
    return kind
