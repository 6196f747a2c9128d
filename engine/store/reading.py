"""Reads a file that may not be there."""

from __future__ import annotations

from engine.core.ports import Store


def content(store: Store, path: str) -> bytes | None:
    """Returns the content of a file; None if there is none of this name."""
    try:
        return store.read(path)
    except FileNotFoundError:
        return None
