"""Values of a state as an Arrow array, exactly as they were given, and the checks on the way back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa


def frozen(name: str, kind: pa.DataType, held: list[Any]) -> Callable[[], pa.Array]:
    """How to make the array later. Nested values, which a user may change in place, are turned into Arrow at once."""
    if pa.types.is_nested(kind):
        array = _array(name, kind, held)
        return lambda: array
    return partial(_array, name, kind, held)


def thawed(name: str, kind: pa.DataType, saved: pa.ChunkedArray) -> list[Any]:
    if saved.type != kind:
        raise ValueError(
            f"state {name!r} was saved as {saved.type}, but the job now declares {kind}: declare the type it had, or a "
            "new state under another name"
        )
    return objects_of(saved)


def objects_of(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """What a function sees: a map is a dict. Arrow makes those the long way round, thirty times as slowly as others."""
    return column.to_pylist(maps_as_pydicts="lossy" if _holds_maps(column.type) else None)  # type: ignore[no-any-return]


def _holds_maps(kind: pa.DataType) -> bool:
    return pa.types.is_map(kind) or any(_holds_maps(kind.field(place).type) for place in range(kind.num_fields))


def _array(name: str, kind: pa.DataType, held: list[Any]) -> pa.Array:
    try:
        if pa.types.is_integer(kind):
            for value in held:
                if isinstance(value, float) and not value.is_integer():
                    raise ValueError(f"{value} (Arrow would cut it off without a word)")
        return pa.array(held, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"state {name!r} is declared as {kind}, but holds: {error}") from error
