"""Decides whether saved values fit a type that has changed since, and adapts them (D8). Pure.

Fields of a struct may come and go, and numbers may be widened: integers to longer ones, floats to doubles. This also
holds inside lists and in the values of maps. Anything else would change what a saved value means.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

Defaults = Mapping[str, Any]
"""The value of each field that an older snapshot lacks; a field without one is null."""

_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_FLOATS = (pa.float16(), pa.float32(), pa.float64())


class Unfit(ValueError):
    """Saved values can't be read as the type that is asked for."""


def adaptations(was: pa.DataType, now: pa.DataType, defaults: Defaults | None = None) -> list[str]:
    """Returns what is done to values of type `was` that are read as `now`, one text for each change; none if equal.

    Raises Unfit if they can't be.
    """
    return list(_adaptations(was, now, defaults or {}, ""))


def adapted(saved: pa.ChunkedArray, now: pa.DataType, defaults: Defaults | None = None) -> pa.ChunkedArray:
    """Returns saved values as the type `now`. Raises Unfit if they can't be read so."""
    adaptations(saved.type, now, defaults)
    if saved.type == now:
        return saved
    chunks = [_adapted(chunk, now, defaults or {}) for chunk in saved.chunks]
    return pa.chunked_array(chunks, now)


def _adaptations(was: pa.DataType, now: pa.DataType, defaults: Defaults, at: str) -> Iterator[str]:
    if was == now:
        return
    if _wider(was, now):
        yield f"{at or 'it'} is widened from {was} to {now}"
    elif pa.types.is_struct(was) and pa.types.is_struct(now):
        yield from _of_fields(was, now, defaults, at)
    elif _is_list(was) and _is_list(now):
        yield from _adaptations(was.value_type, now.value_type, {}, f"{at}[]")
    elif pa.types.is_map(was) and pa.types.is_map(now) and was.key_type == now.key_type:
        yield from _adaptations(was.item_type, now.item_type, {}, f"{at}[]")
    else:
        raise Unfit(f"{at or 'it'} was {was}, is {now}")


def _of_fields(was: pa.DataType, now: pa.DataType, defaults: Defaults, at: str) -> Iterator[str]:
    before, after = _fields(was), _fields(now)
    for name, field in after.items():
        path = f"{at}.{name}" if at else name
        if name in before:
            yield from _adaptations(before[name].type, field.type, {}, path)
        elif name in defaults:
            yield f"{path} {field.type} is new, and {defaults[name]!r} where it is missing"
        elif field.nullable:
            yield f"{path} {field.type} is new, and null where it is missing"
        else:
            raise Unfit(f"{path} {field.type} is new and NOT NULL, and there is no default for it")
    for name, field in before.items():
        if name not in after:
            yield f"{at}.{name} {field.type} is dropped" if at else f"{name} {field.type} is dropped"


def _adapted(saved: pa.Array, now: pa.DataType, defaults: Defaults) -> pa.Array:
    if saved.type == now:
        return saved
    if pa.types.is_struct(now):
        return _adapted_struct(saved, now, defaults)
    if saved.null_count and pa.types.is_nested(now):
        saved = saved.take(pa.array(range(len(saved))))  # a copy in which nothing lies behind a null item
    if pa.types.is_map(now):
        keys, items = saved.keys, _adapted(saved.items, now.item_type, {})
        return pa.MapArray.from_arrays(_offsets(saved), keys, items, now)
    if _is_list(now):
        kind = pa.LargeListArray if pa.types.is_large_list(now) else pa.ListArray
        return kind.from_arrays(_offsets(saved), _adapted(saved.values, now.value_type, {}), now)
    return saved.cast(now)


def _adapted_struct(saved: pa.StructArray, now: pa.DataType, defaults: Defaults) -> pa.Array:
    before = _fields(saved.type)
    children = []
    for name, field in _fields(now).items():
        if name in before:
            # `field` leaves out the struct's own nulls, which the mask below brings back.
            children.append(_adapted(saved.field(name), field.type, {}))
        else:
            children.append(pa.repeat(pa.scalar(defaults.get(name), field.type), len(saved)))
    mask = saved.is_null() if saved.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(_fields(now).values()), mask=mask)


def _offsets(saved: Any) -> pa.Array:
    """Returns the offsets of a list; those of null items are null, so that they stay null.

    An item before a null one then ends where that one ends, so nothing may lie behind a null item.
    """
    if not saved.null_count:
        return saved.offsets
    valid = saved.is_valid().to_pylist()
    offsets = saved.offsets.to_pylist()
    kind = saved.offsets.type
    return pa.array([o if ok else None for o, ok in zip(offsets, [*valid, True], strict=True)], kind)


def _fields(kind: pa.DataType) -> dict[str, pa.Field]:
    return {kind.field(place).name: kind.field(place) for place in range(kind.num_fields)}


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _wider(was: pa.DataType, now: pa.DataType) -> bool:
    return any(
        was in family and now in family and family.index(was) < family.index(now) for family in (_INTEGERS, _FLOATS)
    )
