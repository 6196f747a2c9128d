"""`SlotPool` holds the Spark tasks that have registered. Any of them can fill any slot."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class SlotInfo:
    session: str
    address: str
    pid: int
    task_attempt: int
    heard_ms: float
    partition: int
    index: int | None = None


class SlotPool:
    def __init__(self, needed: int) -> None:
        self.needed = needed
        self._slots: dict[str, SlotInfo] = {}

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
        return len(self._slots) >= self.needed

    def get(self, session: str) -> SlotInfo | None:
        return self._slots.get(session)

    def add(self, slot: SlotInfo) -> None:
        self._slots.setdefault(slot.session, slot)

    def remove(self, session: str) -> None:
        self._slots.pop(session, None)

    def assign(self) -> list[SlotInfo]:
        """Fills the slots in the order of the tasks' partitions: a task keeps its slot through restarts if it can."""
        assert self.enough
        chosen = sorted(self.all[: self.needed], key=lambda slot: slot.partition)
        for index, slot in enumerate(chosen):
            slot.index = index
        return chosen

    def release(self) -> None:
        for slot in self._slots.values():
            slot.index = None

    def silent_since(self, limit_ms: float) -> list[SlotInfo]:
        return [slot for slot in self._slots.values() if slot.heard_ms < limit_ms]
