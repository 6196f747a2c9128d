"""Fibers: offloaded work that pauses at a store call and goes on later, so that other events can happen in between.

Invariant: a fiber is a thread that runs only while the scheduler waits for it. Two never run at once, so the seed still
decides the order of everything.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class _Worker(threading.Thread):
    """A thread that runs one fiber after another, because starting a thread for each is costly."""

    def __init__(self) -> None:
        super().__init__(daemon=True, name="fiber")
        self.go = threading.Lock()
        self.back = threading.Lock()
        self.go.acquire()
        self.back.acquire()
        self.job: Callable[[], None] | None = None
        self.start()

    def run(self) -> None:
        while True:
            self.go.acquire()
            assert self.job is not None
            self.job()
            self.back.release()


_IDLE: list[_Worker] = []


class Fiber:
    """`resume` runs `work` until it suspends itself or ends."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.finished = False
        self.result: Any = None
        self.raised: BaseException | None = None
        self.wait_ms = 0.0
        self._work = work
        self._unwind: type[BaseException] | None = None
        self._worker = _IDLE.pop() if _IDLE else _Worker()
        self._worker.job = self._run

    def _run(self) -> None:
        try:
            self.result = self._work()
        except BaseException as error:
            self.raised = error
        self.finished = True

    def resume(self) -> bool:
        self._worker.go.release()
        self._worker.back.acquire()
        if self.finished:
            self._worker.job = None
            _IDLE.append(self._worker)
        return self.finished

    def suspend(self, wait_ms: float) -> None:
        """Pauses the fiber; called by its own work."""
        self.wait_ms = wait_ms
        self._worker.back.release()
        self._worker.go.acquire()
        if self._unwind is not None:
            raise self._unwind

    def unwind(self, reason: type[BaseException]) -> None:
        """Ends the work where it is paused, because its process has died."""
        self._unwind = reason
        finished = self.resume()
        assert finished
