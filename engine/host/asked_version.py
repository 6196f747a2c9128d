"""`AskedVersion`: what requests over HTTP that bring a new version of a job have in common."""

from __future__ import annotations

from typing import Annotated

import msgspec


class AskedVersion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The options of `weir upgrade` that say which version, with the same meanings and defaults."""

    to: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    params: dict[str, str] = {}
    parallelism: Annotated[int, msgspec.Meta(ge=1)] | None = None
    allow_non_restored_state: bool = False
