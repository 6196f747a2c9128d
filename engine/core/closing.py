"""Closing several things: one that raises does not keep the others open."""

from __future__ import annotations

from collections.abc import Callable, Iterable


def close_all(closers: Iterable[Callable[[], None]]) -> None:
    """Call every one; then raise what the first of them raised, if any did."""
    first: Exception | None = None
    for close in closers:
        try:
            close()
        except Exception as error:
            first = first or error
    if first is not None:
        raise first
