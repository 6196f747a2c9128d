"""Turns batches into records (dicts) and back. The row lane spends most of its time here, so loops run in C code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from engine.core.errors import SchemaMismatch
from engine.core.event_time import described
from engine.core.functions import Row
from engine.core.nearest import nearest
from engine.runtime.operators.base import EVENT_TIME
from engine.state.values import objects_of

_EPOCH = datetime(1970, 1, 1)
_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)


def columns_of(batch: pa.RecordBatch, names: Sequence[str]) -> list[list[Any]]:
    return [_values(batch.column(name)) for name in names]


def records_of(batch: pa.RecordBatch) -> list[Row]:
    names = tuple(name for name in batch.schema.names if name != EVENT_TIME)
    return _maker(names)(*columns_of(batch, names))


def batch_of(rows: Sequence[Row], schema: pa.Schema, operator: str, times: pa.Array | None) -> pa.RecordBatch:
    """Returns a batch of these records and event times. `operator` names it in messages.

    Raises if a value does not fit its field exactly, or if a record has a field that the schema does not have.
    """
    arrays = []
    _check_no_more(rows, schema, operator)
    for name, field in zip(schema.names, schema, strict=True):
        if name == EVENT_TIME:
            arrays.append(times)
            continue
        try:
            arrays.append(_array(list(map(itemgetter(name), rows)), field))
        except (KeyError, TypeError, ValueError, OverflowError, pa.ArrowNotImplementedError) as error:
            _check_records(rows, schema, operator)
            lacking = next((row for row in rows if name not in row), None)
            if lacking is not None:
                raise SchemaMismatch(
                    f"{operator}: its function returned {short(lacking)}, which has no field {name!r}: add it, or "
                    "declare the fields that its results have"
                ) from error
            raise SchemaMismatch(
                f"{operator} declares the field {name!r} as {field.type}, but its function "
                f"returned records such as {short(rows[0])}: {type(error).__name__}: {error}"
            ) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _check_records(rows: Sequence[Any], schema: pa.Schema, operator: str) -> None:
    wrong = next((row for row in rows if not isinstance(row, Mapping)), rows[0])
    if not isinstance(wrong, Mapping):
        names = ", ".join(f"{name!r}: …" for name in schema.names if name != EVENT_TIME)
        raise SchemaMismatch(
            f"{operator}: its function returned {short(wrong)} as a record; return a dict: {{{names}}}"
        )


def _check_no_more(rows: Sequence[Any], schema: pa.Schema, operator: str) -> None:
    """Refuses fields that the schema does not have: they would be lost."""
    _check_records(rows[:1], schema, operator)
    try:
        most = max(map(len, rows))
    except TypeError:
        _check_records(rows, schema, operator)
        raise
    if most > len(schema) - (EVENT_TIME in schema.names):
        more = next(name for row in rows for name in row if name not in schema.names)
        raise SchemaMismatch(
            f"{operator}: its function returned the field {more!r}, which its results do not have "
            f"({described(schema)}){nearest(more, schema.names)}: declare all fields of its results with schema=..., "
            f"or leave {more!r} out"
        )


def short(record: object) -> str:
    text = repr(record)
    return text if len(text) <= 200 else text[:197] + "..."


@lru_cache(maxsize=256)
def _maker(names: tuple[str, ...]) -> Callable[..., list[Row]]:
    """Compiles a function from columns to records for these names: a dict display is faster than `dict(zip())`."""
    values = [f"v{number}" for number in range(len(names))]
    pairs = ", ".join(f"{name!r}: {value}" for name, value in zip(names, values, strict=True))
    columns = [f"c{number}" for number in range(len(names))]
    source = f"lambda {', '.join(columns)}: [{{{pairs}}} for {', '.join(values)}, in zip({', '.join(columns)})]"
    made: Callable[..., list[Row]] = eval(source, {})
    return made


def _values(column: pa.Array) -> list[Any]:
    """Does what `objects_of` does, but converts timestamps with numpy: `objects_of` is ten times slower on them."""
    kind = column.type
    if pa.types.is_timestamp(kind) and kind.unit in ("us", "ms", "s") and kind.tz in (None, "UTC"):
        micros = column if kind.unit == "us" else column.cast(pa.timestamp("us", kind.tz))
        stamps = micros.to_numpy(zero_copy_only=False)
        since = (stamps - np.datetime64(0, "us")).tolist()  # NaT becomes None
        epoch = _EPOCH if kind.tz is None else _EPOCH_UTC
        return [None if passed is None else epoch + passed for passed in since]
    return objects_of(column)


def _array(values: list[Any], field: pa.Field) -> pa.Array:
    """Returns exactly these values or raises: Arrow alone would cut off fractions and ignore `nullable`."""
    if pa.types.is_integer(field.type) and any(issubclass(kind, float) for kind in set(map(type, values))):
        for value in values:
            if isinstance(value, float) and not value.is_integer():
                raise ValueError(f"{value} is not an integer")
    array = pa.array(values, field.type)
    if array.null_count and not field.nullable:
        raise ValueError(f"{array.null_count} nulls in a field declared not null")
    return array
