"""Converts values of a state to Arrow and back. Invariant: a value that Arrow would change raises an error."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa

from engine.core.errors import SchemaMismatch
from engine.core.evolution import Defaults, Unfit, adapted

_PLAIN: dict[pa.DataType, type] = {pa.string(): str, pa.bool_(): bool, pa.float64(): float, pa.binary(): bytes}
_MAX = 2**63 - 1


def fits(kind: pa.DataType) -> Callable[[Any], bool]:
    """Returns a cheap check whether a value can be held by a state of this type.

    Values of nested types are not looked at: that costs as much as to convert them, which a snapshot does.
    """
    if pa.types.is_nested(kind):
        return lambda value: True
    if pa.types.is_int64(kind):
        return lambda value: (type(value) is int and -_MAX <= value <= _MAX) or value is None or _converts(kind, value)
    plain = _PLAIN.get(kind, type(None))
    return lambda value: type(value) is plain or value is None or _converts(kind, value)


def _converts(kind: pa.DataType, value: Any) -> bool:
    try:
        _array("", kind, [value])
    except SchemaMismatch:
        return False
    return True


def frozen(name: str, kind: pa.DataType, held: list[Any]) -> Callable[[], pa.Array]:
    """Returns a function that makes the array. Nested values are converted at once: a user may change them in place."""
    if pa.types.is_nested(kind):
        array = _array(name, kind, held)
        return lambda: array
    return partial(_array, name, kind, held)


def thawed(name: str, kind: pa.DataType, saved: pa.ChunkedArray, defaults: Defaults | None = None) -> list[Any]:
    """Returns saved values as the type that the job declares now, adapted if that has changed."""
    try:
        return objects_of(adapted(saved, kind, defaults))
    except Unfit as error:
        raise ValueError(
            f"state {name!r} was saved as {saved.type}, but the job now declares {kind}: declare the type it had, or a "
            f"new state under another name ({error})"
        ) from error


def thawed_keys(name: str, kind: pa.DataType, saved: pa.ChunkedArray) -> list[Any]:
    """Returns the saved keys of a map. Their type may not change: equal keys have to stay equal."""
    if saved.type != kind:
        raise ValueError(
            f"state {name!r} was saved with keys of type {saved.type}, but the job now declares {kind}: declare the "
            "type they had, or a new state under another name"
        )
    return objects_of(saved)


def objects_of(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Returns values as functions see them; a map is a dict. Only maps need Arrow's way that is 30 times slower."""
    return column.to_pylist(maps_as_pydicts="lossy" if _holds_maps(column.type) else None)  # type: ignore[no-any-return]


def _holds_maps(kind: pa.DataType) -> bool:
    return pa.types.is_map(kind) or any(_holds_maps(kind.field(place).type) for place in range(kind.num_fields))


def _array(name: str, kind: pa.DataType, held: list[Any]) -> pa.Array:
    try:
        if pa.types.is_integer(kind):
            for value in held:
                if isinstance(value, float) and not value.is_integer():
                    raise ValueError(f"{value}, which is not an integer")
        return pa.array(held, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise SchemaMismatch(f"state {name!r} is declared as {kind}, but holds: {error}") from error
