"""Settles requests whose process has died: they would seem to go on for ever."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, Self, TypeVar

from engine.host.locks import held


class Request(Protocol):
    @property
    def under_way(self) -> bool:
        """True until its process has written how it ended."""

    def refused(self, why: str) -> Self: ...


R = TypeVar("R", bound=Request)


def settled(lock: Path, read: Callable[[], R | None], write: Callable[[R], None], died: str) -> R | None:
    """Returns the request. If it is under way and its process does not hold the lock any more, writes that it died."""
    request = read()
    if request is None or not request.under_way:
        return request
    with held(lock) as free:
        if not free:
            return request
        request = read()  # it may have ended right before
        if request is not None and request.under_way:
            request = request.refused(died)
            write(request)
        return request
