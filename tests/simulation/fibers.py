"""Offloaded work that stops at a call of the store and goes on later, so that anything can happen in between.

A fiber is a thread that runs only while the scheduler waits for it: never two at once, so the seed still decides all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class _Worker(threading.Thread):
    """Used again and again: starting a thread costs more than handing over to one."""

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
        """Called by the work itself."""
        self.wait_ms = wait_ms
        self._worker.back.release()
        self._worker.go.acquire()
        if self._unwind is not None:
            raise self._unwind

    def unwind(self, reason: type[BaseException]) -> None:
        """Its process is gone: the work ends where it stands."""
        self._unwind = reason
        finished = self.resume()
        assert finished
