"""`Mailbox`: how threads talk to the one thread that decides. Many put, one takes."""

from __future__ import annotations

from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """A queue in C: waking its thread costs half of what an Event does, and records wait for that."""

    def __init__(self) -> None:
        self._items: SimpleQueue[T] = SimpleQueue()
        self.put = self._items.put

    def take(self, patience_s: float = 0.0) -> T | None:
        """The next item, waiting this long for it; None: there is none."""
        try:
            return self._items.get(patience_s > 0, patience_s)
        except Empty:
            return None
