"""Copies of values of a declared type: as deep as a function could change them, and no deeper."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pyarrow as pa

from engine.core.functions import Row


def copier(record: pa.DataType) -> Callable[[Row], Row]:
    """Returns what copies records of this type, so that a function may change a copy, and lists in it as well."""
    return deepcopy if any(pa.types.is_nested(field.type) for field in record) else dict


def value_copier(kind: pa.DataType) -> Callable[[Any], Any]:
    """Returns what copies values of this type, so that a function may change a copy."""
    if _unchangeable(kind):
        return _same
    flat = not pa.types.is_map(kind) and all(_unchangeable(kind.field(place).type) for place in range(kind.num_fields))
    return _shallow if flat else deepcopy


def changeable(kind: pa.DataType) -> bool:
    """Says whether a function could change a value of this type in place, and with it what else holds the value."""
    return not _unchangeable(kind)


def as_it_is(result: Any) -> Any:
    """Returns a copy of the dicts, lists and tuples of a result, as deep as they are. Anything else is shared."""
    kind = type(result)
    if kind is dict:
        return {name: as_it_is(value) if type(value) in _NESTED else value for name, value in result.items()}
    if kind is list:
        return [as_it_is(value) if type(value) in _NESTED else value for value in result]
    return tuple(map(as_it_is, result)) if kind is tuple else result


_NESTED = frozenset((dict, list, tuple))


def _unchangeable(kind: pa.DataType) -> bool:
    """Says whether all values of a type are objects that can't change. Binary values may be bytearrays."""
    binary = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view)
    return not pa.types.is_nested(kind) and not any(is_one(kind) for is_one in binary)


def _same(value: Any) -> Any:
    return value


def _shallow(value: Any) -> Any:
    return value.copy() if type(value) in (dict, list) else deepcopy(value)
