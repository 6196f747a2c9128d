"""A store in memory, for tests of jobs (`engine.testing`) and for benchmarks."""

from __future__ import annotations

from collections.abc import Iterable

from engine.core.errors import StoreError
from engine.core.paths import check_store_path
from engine.core.ports import Data, Store
from engine.protocol.epoch_records import Created
from engine.store.below import Below
from engine.store.reading import content


class MemoryStore:
    """Keeps files in a dict; they are lost when the process ends."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def write(self, path: str, data: Data) -> None:
        check_store_path(path)
        self.files[path] = bytes(data)

    def sync(self, paths: list[str]) -> None:
        for path in paths:
            if path not in self.files:
                raise StoreError(f"can't sync {path}: it does not exist")

    def create(self, path: str, data: bytes) -> Created:
        check_store_path(path)
        if path in self.files:
            return Created.EXISTS
        self.files[path] = data
        return Created.CREATED

    def read(self, path: str) -> bytes:
        check_store_path(path)
        try:
            return self.files[path]
        except KeyError:
            raise FileNotFoundError(f"{path} does not exist") from None

    def read_all(self, paths: list[str]) -> list[bytes | None]:
        return [content(self, path) for path in paths]

    def sizes(self, paths: list[str]) -> list[int | None]:
        for path in paths:
            check_store_path(path)
        return [len(self.files[path]) if path in self.files else None for path in paths]

    def list(self, prefix: str) -> list[str]:
        return listed(self.files, prefix)

    def delete(self, path: str) -> None:
        check_store_path(path)
        self.files = {p: d for p, d in self.files.items() if p != path and not p.startswith(path + "/")}

    def copy_from(self, path: str, source: Store, source_path: str) -> bool:
        return False

    def uri(self, path: str) -> str:
        return f"memory:/{path}"

    def below(self, path: str) -> Below:
        return Below(self, path)


def listed(paths: Iterable[str], prefix: str) -> list[str]:
    """Returns what `Store.list` has to return if these are the paths of all files."""
    if prefix:
        check_store_path(prefix)
    start = f"{prefix}/" if prefix else ""
    return sorted(p for p in paths if p.startswith(start) and not p.rsplit("/", 1)[-1].startswith("."))
