"""Closes several things. Invariant: all of them are closed, even if one raises."""

from __future__ import annotations

from collections.abc import Callable, Iterable


def close_all(closers: Iterable[Callable[[], None]]) -> None:
    """Calls all closers, then raises the first error if there was one."""
    first: Exception | None = None
    for close in closers:
        try:
            close()
        except Exception as error:
            first = first or error
    if first is not None:
        raise first
