"""`SlotPool` holds the Spark tasks that have registered. Any of them can fill any slot.

Each Spark task has a number, which its replacement keeps: `SlotInfo.partition`. A rescale asks for more tasks, under
new numbers, and releases those that the job no longer needs. Invariant: a released task is never deployed to.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from engine.protocol.ids import AttemptId
from engine.protocol.messages import LongStep


@dataclass(frozen=True)
class Leaving:
    """A slot was told at this time to leave this attempt, and has not answered yet."""

    attempt: AttemptId
    since_ms: float


@dataclass
class SlotInfo:
    session: str
    address: str
    pid: int
    task_attempt: int
    heard_ms: float
    partition: int
    index: int | None = None
    leaving: Leaving | None = None
    step: LongStep | None = None
    io: LongStep | None = None
    slow_reported: bool = False


class SlotPool:
    def __init__(self, needed: int) -> None:
        self.needed = needed
        self.tasks = set(range(needed))
        """The numbers of the tasks that Spark keeps running for the job, registered or not."""
        self.released: set[int] = set()
        """The numbers of the tasks that the job needs no more. They are told to end whenever they register."""
        self._slots: dict[str, SlotInfo] = {}
        self._leaving: set[str] = set()

    @property
    def all(self) -> list[SlotInfo]:
        return list(self._slots.values())

    @property
    def assigned(self) -> list[SlotInfo]:
        return [slot for slot in self._slots.values() if slot.index is not None]

    def __len__(self) -> int:
        """Returns the number of tasks that have registered."""
        return len(self._slots)

    @property
    def enough(self) -> bool:
        return self.free_count >= self.needed

    @property
    def free_count(self) -> int:
        return len(self._slots) - len(self._leaving)

    @property
    def free(self) -> list[SlotInfo]:
        """The slots that have left their last attempt, so that they can be deployed to."""
        return [slot for slot in self._slots.values() if slot.leaving is None]

    def get(self, session: str) -> SlotInfo | None:
        return self._slots.get(session)

    def add(self, slot: SlotInfo) -> None:
        self._slots.setdefault(slot.session, slot)

    def remove(self, session: str) -> None:
        self._slots.pop(session, None)
        self._leaving.discard(session)

    def assign(self) -> list[SlotInfo]:
        """Fills the slots in the order of the tasks' partitions: a task keeps its slot through restarts if it can."""
        assert self.enough
        chosen = sorted(self.free[: self.needed], key=lambda slot: slot.partition)
        for index, slot in enumerate(chosen):
            slot.index = index
        return chosen

    def ask(self, tasks: int) -> list[int]:
        """Returns the numbers of the tasks that Spark has to start, so that there are this many."""
        first = max(self.tasks | self.released) + 1
        new = list(range(first, first + tasks - len(self.tasks)))
        self.tasks |= set(new)
        return new

    def release_surplus(self) -> tuple[list[int], list[SlotInfo]]:
        """Releases the tasks that no slot needs, the newest first.

        Returns their numbers, and those of them that have registered.
        """
        used = {slot.partition for slot in self.assigned}
        numbers = sorted(self.tasks - used, reverse=True)[: max(0, len(self.tasks) - self.needed)]
        self.tasks -= set(numbers)
        self.released |= set(numbers)
        gone = [slot for slot in self._slots.values() if slot.partition in numbers]
        for slot in gone:
            self.remove(slot.session)
        return numbers, gone

    def release(self, attempt: AttemptId, now_ms: float) -> None:
        """Frees all slots of an attempt that is over; each has to say that it has left it."""
        for slot in self.assigned:
            slot.index = None
            slot.leaving = Leaving(attempt, now_ms)
            self._leaving.add(slot.session)

    def left(self, slot: SlotInfo, attempt: AttemptId) -> None:
        """Takes the answer of a slot that was told to leave an attempt. A late or repeated answer changes nothing."""
        if slot.leaving is not None and attempt >= slot.leaving.attempt:
            slot.leaving = None
            self._leaving.discard(slot.session)

    def forgive(self, asleep_ms: float, now_ms: float) -> None:
        """Does not count the time in which the JobMaster itself was asleep and heard nobody.

        A slot may have been heard since it woke, so nothing is moved beyond now.
        """
        for slot in self._slots.values():
            slot.heard_ms = min(slot.heard_ms + asleep_ms, now_ms)
            if slot.leaving is not None:
                slot.leaving = replace(slot.leaving, since_ms=min(slot.leaving.since_ms + asleep_ms, now_ms))
