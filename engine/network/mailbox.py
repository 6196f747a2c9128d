"""`Mailbox`: how threads talk to the one thread that decides. Many put, one takes."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    def __init__(self) -> None:
        self._items: deque[T] = deque()  # append and popleft are atomic
        self._wake = threading.Event()

    def put(self, item: T) -> None:
        self._items.append(item)
        if not self._wake.is_set():
            self._wake.set()

    def take(self) -> T | None:
        try:
            return self._items.popleft()
        except IndexError:
            return None

    def wait(self, timeout_s: float) -> None:
        """Until something was put since the last wait, or the time is over."""
        if not self._items:
            self._wake.wait(timeout_s)
        self._wake.clear()
