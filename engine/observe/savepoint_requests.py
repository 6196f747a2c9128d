"""Reads what somebody asks for: the name of a savepoint, and the folder that it is put into."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from engine.core.errors import WeirError
from engine.core.names import check_name
from engine.protocol.savepoint import SavepointRequest


def default_name() -> str:
    """Returns a name by date and time, so that names sort as savepoints were taken."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H-%M-%S.%f}"[:23] + "Z"


def requested(asked: Mapping[str, Any], default: str) -> SavepointRequest:
    """Returns the request in `{"name": …, "to": …}`. Both may be null or missing."""
    name, to = asked.get("name"), asked.get("to")
    for field, value in (("name", name), ("to", to)):
        if value is not None and not isinstance(value, str):
            raise WeirError(f'"{field}" of a savepoint is a text, or null')
    if to == "":
        raise WeirError('"to" of a savepoint is empty: write a whole path or an address such as s3://bucket/prefix')
    chosen = check_name("savepoint", default if name is None else name)
    if to is not None and "://" not in to and not to.startswith("/"):
        raise WeirError(f"--to {to}: write a whole path or an address such as s3://bucket/prefix")
    return SavepointRequest(chosen, f"{to.rstrip('/')}/{chosen}" if to else "")
