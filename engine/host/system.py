"""The ports outside of the simulator: the machine's clock, and threads for work that would block."""

from __future__ import annotations

import contextvars
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

Done = Callable[[Any, BaseException | None], None]


class SystemClock:
    def now_ms(self) -> float:
        return time.monotonic() * 1000

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


@dataclass(frozen=True)
class UnderWay:
    """Work that a thread began at this time."""

    queue: str
    thread: int
    since_ms: float


class QueueOffload:
    """Runs work on threads; the work of a queue runs in order. `deliver` brings results to the deciding thread."""

    def __init__(self, deliver: Callable[[Callable[[], None]], None], threads: int) -> None:
        self._deliver = deliver
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="offload")
        self._queues: dict[str, deque[tuple[Callable[[], Any], Done]]] = {}
        self._under_way: dict[str, UnderWay] = {}
        self._lock = threading.Lock()

    def oldest(self) -> UnderWay | None:
        """Returns the work that has been under way for longest. Any thread may ask."""
        with self._lock:
            return min(self._under_way.values(), key=lambda work: work.since_ms, default=None)

    def submit(self, queue: str, work: Callable[[], Any], done: Done) -> None:
        work = partial(contextvars.copy_context().run, work)
        with self._lock:
            waiting = self._queues.get(queue)
            if waiting is not None:
                waiting.append((work, done))
                return
            self._queues[queue] = deque([(work, done)])
        self._pool.submit(self._run, queue)

    def _run(self, queue: str) -> None:
        while True:
            with self._lock:
                waiting = self._queues[queue]
                self._under_way.pop(queue, None)
                if not waiting:
                    del self._queues[queue]
                    return
                work, done = waiting.popleft()
                self._under_way[queue] = UnderWay(queue, threading.get_ident(), time.monotonic() * 1000)
            result, error = None, None
            try:
                result = work()
            except BaseException as raised:
                error = raised
            self._deliver(_bind(done, result, error))


def _bind(done: Done, result: Any, error: BaseException | None) -> Callable[[], None]:
    return lambda: done(result, error)
