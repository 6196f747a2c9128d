"""A store in memory, for tests of jobs (`engine.testing`) and for benchmarks."""

from __future__ import annotations

from engine.protocol.epoch_records import Created


class MemoryStore:
    """Keeps files in a dict; they are lost when the process ends."""

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}

    def write(self, path: str, data: bytes) -> None:
        self._files[path] = data

    def sync(self, paths: list[str]) -> None: ...

    def create(self, path: str, data: bytes) -> Created:
        if path in self._files:
            return Created.EXISTS
        self._files[path] = data
        return Created.CREATED

    def read(self, path: str) -> bytes:
        try:
            return self._files[path]
        except KeyError:
            raise FileNotFoundError(path) from None

    def list(self, prefix: str) -> list[str]:
        return sorted(path for path in self._files if path.startswith(prefix + "/"))

    def delete(self, path: str) -> None:
        self._files = {p: d for p, d in self._files.items() if p != path and not p.startswith(path + "/")}

    def uri(self, path: str) -> str:
        return f"memory:/{path}"
