"""Reads the types of state that a `JobDescription` holds as text, so that two versions of a state can be compared.

    app string, n int64            the columns of a running value
    count(*) int64, sum(n) int64   the partial aggregates of windows
    string to int64                a map

Text that is none of these, such as the size of windows, has no type: it has to stay as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pyarrow as pa

_OPEN, _CLOSE = "<[(", ">])"
_NOT_NULL = " not null"
_ZONED = re.compile(r"timestamp\[(s|ms|us|ns), tz=(.+)\]")
_DECIMAL = re.compile(r"decimal(128|256)\((\d+), (-?\d+)\)")


def read_state_type(text: str) -> pa.DataType | None:
    """Returns the type of a state; None: the text describes none. Columns become the fields of a struct."""
    key, to, value = text.partition(" to ")
    if to and (key_type := read_type(key)) is not None and (value_type := read_type(value)) is not None:
        return pa.map_(key_type, value_type)
    fields = [_column(part) for part in _parts(text)]
    return pa.struct([field for field in fields if field is not None]) if all(fields) else None


def read_type(text: str) -> pa.DataType | None:
    """Returns the Arrow type whose text this is; None: it is not known."""
    outer, angle, rest = text.partition("<")
    if angle and rest.endswith(">"):
        return _nested(outer, rest[:-1])
    if zoned := _ZONED.fullmatch(text):
        return pa.timestamp(zoned[1], tz=zoned[2])
    if decimal := _DECIMAL.fullmatch(text):
        make = pa.decimal128 if decimal[1] == "128" else pa.decimal256
        return make(int(decimal[2]), int(decimal[3]))
    try:
        return pa.type_for_alias(text)
    except ValueError:
        return None


def _nested(outer: str, inner: str) -> pa.DataType | None:
    parts = list(_parts(inner))
    if outer == "map" and len(parts) == 2:
        key, value = read_type(parts[0]), read_type(parts[1])
        return pa.map_(key, value) if key is not None and value is not None else None
    fields = [_field(*part.partition(": ")[::2]) for part in parts]
    if not all(fields):
        return None
    match outer, fields:
        case "struct", _:
            return pa.struct([field for field in fields if field is not None])
        case "list", [pa.Field() as item]:
            return pa.list_(item)
        case "large_list", [pa.Field() as item]:
            return pa.large_list(item)
    return None


def _column(text: str) -> pa.Field | None:
    """Reads a name and a type. A name may hold spaces: it ends where what is left is a type."""
    words = text.split(" ")
    splits = ((" ".join(words[:n]), " ".join(words[n:])) for n in range(1, len(words)))
    return next((field for name, kind in splits if (field := _field(name, kind)) is not None), None)


def _field(name: str, text: str) -> pa.Field | None:
    kind = read_type(text.removesuffix(_NOT_NULL))
    return pa.field(name, kind, nullable=not text.endswith(_NOT_NULL)) if kind is not None else None


def _parts(text: str) -> Iterator[str]:
    """Splits a list at its commas, and not at those inside of brackets."""
    depth = begin = 0
    for place, letter in enumerate(text):
        depth += (letter in _OPEN) - (letter in _CLOSE)
        if depth == 0 and text.startswith(", ", place):
            yield text[begin:place]
            begin = place + 2
    if text:
        yield text[begin:]
