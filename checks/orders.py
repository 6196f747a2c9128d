"""Orders to those who reach a failpoint of the engine: the drill writes them, its victims carry them out themselves."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from engine.store.failpoints import Does, Point

_POLL_S = 0.005


@dataclass(frozen=True)
class Met:
    """A process that has met an order, and when."""

    pid: int
    at_ms: int


class Orders:
    """The orders in one folder, which the processes of the job know."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def give(self, point: Point, does: Does) -> None:
        """Gives an order. What was met before at the same moment is forgotten."""
        self.folder.mkdir(exist_ok=True)
        for met in self.folder.glob(f"{point.value}.met-*"):
            met.unlink()
        draft = self.folder / f".{point.value}"
        draft.write_text(does.value)
        draft.rename(self.folder / point.value)

    def take_back(self, point: Point) -> None:
        (self.folder / point.value).unlink(missing_ok=True)

    def met(self, point: Point) -> list[Met]:
        """Returns who has met the order, the first one first."""
        found = [path.name.rpartition(".met-")[2].split("-") for path in self.folder.glob(f"{point.value}.met-*")]
        return sorted((Met(int(pid), int(at_ms)) for pid, at_ms in found), key=lambda met: met.at_ms)

    def wait(self, point: Point, patience_s: float) -> Met | None:
        """Waits until somebody has met the order. Returns None if nobody does."""
        deadline_s = time.monotonic() + patience_s
        while not (met := self.met(point)):
            if time.monotonic() > deadline_s:
                return None
            time.sleep(_POLL_S)
        return met[0]
