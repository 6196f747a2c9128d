"""Reads the bodies of requests whose fields are the options of a command."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from starlette.exceptions import HTTPException

LARGEST_BODY = 64_000

T = TypeVar("T")


def decoded(body: bytes, kind: type[T], form: str) -> T:
    """Returns what was asked for; nothing is all defaults. `form`: an example, for who sent something else."""
    try:
        if len(body) > LARGEST_BODY:
            raise msgspec.DecodeError(f"it has {len(body)} bytes")
        return msgspec.json.decode(body or b"{}", type=kind)
    except msgspec.DecodeError as error:
        raise HTTPException(400, f"the body is not like {form}: {error}") from error
