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

    lane: str
    thread: int
    since_ms: float


class LaneOffload:
    """Runs work on threads; work of one lane runs in order. `deliver` brings the result back to the deciding thread."""

    def __init__(self, deliver: Callable[[Callable[[], None]], None], threads: int) -> None:
        self._deliver = deliver
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="offload")
        self._lanes: dict[str, deque[tuple[Callable[[], Any], Done]]] = {}
        self._under_way: dict[str, UnderWay] = {}
        self._lock = threading.Lock()

    def oldest(self) -> UnderWay | None:
        """Returns the work that has been under way for longest. Any thread may ask."""
        with self._lock:
            return min(self._under_way.values(), key=lambda work: work.since_ms, default=None)

    def submit(self, lane: str, work: Callable[[], Any], done: Done) -> None:
        work = partial(contextvars.copy_context().run, work)
        with self._lock:
            queue = self._lanes.get(lane)
            if queue is not None:
                queue.append((work, done))
                return
            self._lanes[lane] = deque([(work, done)])
        self._pool.submit(self._run, lane)

    def _run(self, lane: str) -> None:
        while True:
            with self._lock:
                queue = self._lanes[lane]
                self._under_way.pop(lane, None)
                if not queue:
                    del self._lanes[lane]
                    return
                work, done = queue.popleft()
                self._under_way[lane] = UnderWay(lane, threading.get_ident(), time.monotonic() * 1000)
            result, error = None, None
            try:
                result = work()
            except BaseException as raised:
                error = raised
            self._deliver(_bind(done, result, error))


def _bind(done: Done, result: Any, error: BaseException | None) -> Callable[[], None]:
    return lambda: done(result, error)
