"""The simulated world: one seeded source of chance, virtual time, a heap of events, and processes that can die.

Invariant: no code in a run depends on the wall clock, on hash randomisation or on another seed, so the same seed gives
the same trace, event by event.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections.abc import Callable
from typing import Any

from engine.core.errors import SyncFailed
from tests.simulation.fibers import Fiber

WALL_START_MS = 1_700_000_000_000


class Crashed(BaseException):
    """Kills the process that runs this code. No engine code may catch it."""


class Violation(BaseException):
    """An invariant does not hold. Not an Exception, so the engine does not handle it as a failure of its own."""

    def __init__(self, invariant: str, message: str) -> None:
        super().__init__(f"{invariant}: {message}")
        self.invariant = invariant
        self.message = message


class Process:
    """A process that can crash at any call of a port, or be paused and go on later as a zombie."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.alive = True
        self.paused_until_ms = 0.0
        self.fuse: int | None = None  # the number of calls of ports before it dies
        self.doom = ""  # the fuse counts only calls of this port; empty: of all
        self.fibers: list[Fiber] = []  # its offloaded work that is under way
        self.wall_skew_ms = world.random.randrange(-50, 50)

    def touch(self, port: str) -> None:
        """Every port calls this first, so that a process can die in the middle of a step."""
        if self.fuse is not None and self.doom in ("", port):
            self.fuse -= 1
            if self.fuse < 0:
                raise Crashed(self.name)

    def now_ms(self) -> float:
        return self.world.now_ms

    def wall_ms(self) -> int:
        return WALL_START_MS + int(self.world.now_ms) + self.wall_skew_ms

    def sleep(self, duration_ms: float) -> None:
        """Pauses the process. A second, shorter pause does not wake it earlier: events would arrive out of order."""
        self.paused_until_ms = max(self.paused_until_ms, self.world.now_ms + duration_ms)

    def crashed(self) -> None:
        """Called once, after the process died."""


class World:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.now_ms = 0.0
        self.pauses = 0.0  # the share of offloaded work that runs with pauses
        self.calm_ms = 0.0  # no fault begins after this
        self.events = 0
        self.trace: list[str] = []
        self.hits: set[str] = set()  # the transitions of the protocol that this run took
        self._heap: list[tuple[float, int, Process | None, str, Callable[[], None]]] = []
        self._sequence = 0
        self._fiber: Fiber | None = None
        self._owners: dict[Process, None] = {}

    @property
    def stormy(self) -> bool:
        return self.now_ms < self.calm_ms

    def chance(self, probability: float) -> bool:
        """Draws whether a fault happens now; never after the storm, so that the job must finish."""
        return probability > 0.0 and self.stormy and self.random.random() < probability

    def delay(self, typical_ms: float) -> float:
        """Draws a delay: mostly short, sometimes ten or forty times longer; after the storm always short."""
        draw = self.random.random()
        if not self.stormy:
            return 0.15 * typical_ms * draw
        if draw < 0.02:
            return typical_ms * 40 * self.random.random()
        if draw < 0.1:
            return typical_ms * 10 * self.random.random()
        return typical_ms * self.random.random()

    def after(self, delay_ms: float, process: Process | None, label: str, action: Callable[[], None]) -> None:
        self.at(self.now_ms + delay_ms, process, label, action)

    def at(self, time_ms: float, process: Process | None, label: str, action: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (time_ms, self._sequence, process, label, action))

    def log(self, line: str) -> None:
        self.trace.append(line)

    def run(self, until: Callable[[], bool], limit_ms: float, limit_events: int) -> bool:
        """Runs events until `until` returns True; returns False if it did not within the limits."""
        while self._heap:
            if until():
                return True
            time_ms, sequence, process, label, action = heapq.heappop(self._heap)
            if process is not None:
                if not process.alive:
                    continue
                if process.paused_until_ms > time_ms:
                    heapq.heappush(self._heap, (process.paused_until_ms, sequence, process, label, action))
                    continue
            if time_ms > limit_ms or self.events >= limit_events:
                return False
            self.now_ms = max(self.now_ms, time_ms)
            self.events += 1
            self.trace.append(f"{time_ms:.3f} {process.name if process else '-'} {label}")
            self.execute(process, action)
        return until()

    def execute(self, process: Process | None, action: Callable[[], None]) -> None:
        try:
            action()
        except Crashed:
            assert process is not None
            self.hits.add("crash: in the middle of a step")
            self.kill(process, "fuse")
        except SyncFailed:
            assert process is not None
            self.hits.add("store: a failed fsync ends the process")
            self.kill(process, "fsync failed")

    def kill(self, process: Process, why: str) -> None:
        if process.alive:
            process.alive = False
            self.trace.append(f"{self.now_ms:.3f} {process.name} dies: {why}")
            self._unwind(process)
            process.crashed()

    # --- offloaded work ---

    def off_loop(self, process: Process, label: str, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Runs `work`, at once or with pauses at its store calls, and then calls `then` with its result."""
        if self.random.random() >= self.pauses:
            then(work())
            return
        fiber = Fiber(work)
        process.fibers.append(fiber)
        self._owners[process] = None
        self._advance(process, label, fiber, then)

    def breathe(self) -> None:
        """Called at each store call: offloaded work may pause here while other processes go on."""
        if self._fiber is not None and self.random.random() < 0.3:
            self._fiber.suspend(self.delay(1.0))

    def _advance(self, process: Process, label: str, fiber: Fiber, then: Callable[[Any], None]) -> None:
        self._fiber = fiber
        finished = fiber.resume()
        self._fiber = None
        if not finished:
            self.hits.add("work: goes on after a pause")
            self.after(fiber.wait_ms, process, f"{label} goes on", lambda: self._advance(process, label, fiber, then))
            return
        process.fibers.remove(fiber)
        if fiber.raised is not None:
            raise fiber.raised
        then(fiber.result)

    @property
    def fiber(self) -> Fiber | None:
        """The offloaded work that runs now, if it is one that may pause."""
        return self._fiber

    def under_way(self) -> set[Fiber]:
        """Returns the offloaded work that has begun and is paused."""
        return {fiber for process in self._owners for fiber in process.fibers}

    def _unwind(self, process: Process) -> None:
        fibers, process.fibers = process.fibers, []
        for fiber in fibers:
            fiber.unwind(Crashed)

    def close(self) -> None:
        """Ends the run: unwinds every fiber, so that no thread is left waiting."""
        for process in self._owners:
            self._unwind(process)

    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()
