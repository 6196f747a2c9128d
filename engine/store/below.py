"""A part of a store, as a store of its own."""

from __future__ import annotations

from engine.core.paths import check_store_path
from engine.core.ports import Data, Store
from engine.protocol.epoch_records import Created


class Below:
    """The part of a store below one of its directories."""

    def __init__(self, store: Store, path: str) -> None:
        check_store_path(path)
        self._store = store
        self._path = path

    def write(self, path: str, data: Data) -> None:
        self._store.write(self._full(path), data)

    def sync(self, paths: list[str]) -> None:
        self._store.sync([self._full(path) for path in paths])

    def create(self, path: str, data: bytes) -> Created:
        return self._store.create(self._full(path), data)

    def read(self, path: str) -> bytes:
        return self._store.read(self._full(path))

    def read_all(self, paths: list[str]) -> list[bytes | None]:
        return self._store.read_all([self._full(path) for path in paths])

    def sizes(self, paths: list[str]) -> list[int | None]:
        return self._store.sizes([self._full(path) for path in paths])

    def list(self, prefix: str) -> list[str]:
        found = self._store.list(self._full(prefix) if prefix else self._path)
        return [path.removeprefix(f"{self._path}/") for path in found]

    def delete(self, path: str) -> None:
        self._store.delete(self._full(path))

    def copy_from(self, path: str, source: Store, source_path: str) -> bool:
        return self._store.copy_from(self._full(path), source, source_path)

    def whole(self, path: str) -> tuple[Store, str]:
        """Returns the store that this is a part of, and the path of the file there."""
        return self._store, self._full(path)

    def part(self, store: Store, path: str) -> str | None:
        """Returns the path here of a file of the whole store; None if it lies elsewhere."""
        inside = store is self._store and path.startswith(f"{self._path}/")
        return path.removeprefix(f"{self._path}/") if inside else None

    def uri(self, path: str) -> str:
        return self._store.uri(self._full(path) if path else self._path)

    def below(self, path: str) -> Below:
        return Below(self._store, self._full(path))

    def _full(self, path: str) -> str:
        check_store_path(path)
        return f"{self._path}/{path}"
