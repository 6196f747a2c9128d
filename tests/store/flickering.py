"""A store that is away for a moment."""

from __future__ import annotations

from tests.fakes import MemoryStore


class Flickering(MemoryStore):
    """A store whose calls of the numbers in `gone` find nothing, as in the folder of a mount that is away."""

    def __init__(self) -> None:
        super().__init__()
        self.gone = range(0)
        self.calls = 0

    def _away(self) -> bool:
        self.calls += 1
        return self.calls in self.gone

    def read(self, path: str) -> bytes:
        if self._away():
            raise FileNotFoundError(path)
        return super().read(path)

    def list(self, prefix: str) -> list[str]:
        return [] if self._away() else super().list(prefix)
