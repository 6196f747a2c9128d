"""`RotatedObjects` keeps lines in objects of a bucket, as `RotatedFile` keeps them in files. The oldest are deleted.

An object can't be appended to, so the newest one is written again, with more lines, at each `flush`; when it is full
the next one begins. Invariants: lines keep their order; a flush that fails loses nothing, the next one writes the same
lines; a reader that goes on from a `Position` misses no line that is still kept. A process that is killed loses the
lines since its last flush.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from engine.core.ports import Store
from engine.host.rotated import Position


class RotatedObjects:
    """One thread appends; any number of processes may read meanwhile. `objects`: how many are kept."""

    def __init__(self, store: Store, folder: str, object_bytes: int, objects: int) -> None:
        self._store = store
        self._folder = folder
        self._object_bytes = object_bytes
        self._objects = objects
        self._path: str | None = None
        self._content = b""
        self._written = 0

    def append(self, line: bytes) -> None:
        """Keeps a line for the next `flush`."""
        if len(self._content) >= self._object_bytes and self._written == len(self._content):
            self._path, self._content, self._written = None, b"", 0
        self._content += line + b"\n"

    def flush(self) -> None:
        if self._written == len(self._content):
            return
        if self._path is None:
            self._path = self._next()
        content = self._content
        self._store.write(self._path, content)
        self._written = len(content)

    def after(self, position: Position) -> Iterator[tuple[bytes, Position]]:
        """Yields the lines after a position, oldest first, each with its own; all lines if it was deleted."""
        paths, offset = self._paths(), 0
        known = [number for number, path in enumerate(paths) if _first(path) == position.first]
        if known:
            paths, offset = paths[known[-1] :], position.offset
        for path, content in zip(paths, self._store.read_all(paths), strict=True):
            for line in (content or b"")[offset:].splitlines(keepends=True):  # it may be deleted since it was listed
                offset += len(line)
                yield line[:-1], Position(_first(path), offset)
            offset = 0

    def _next(self) -> str:
        """Returns the path of a new object, and deletes the oldest if there are too many.

        The number comes from the list and not from a clock: the next JobMaster may run on another machine. Of two that
        take the same number both objects are kept, since the name also holds the checksum of the first line.
        """
        paths = self._paths()
        for old in paths[: max(0, len(paths) + 1 - self._objects)]:
            self._store.delete(old)
        number = _number(paths[-1]) + 1 if paths else 1
        return f"{self._folder}/{number:010d}-{zlib.crc32(self._content.splitlines(keepends=True)[0]):08x}.jsonl"

    def _paths(self) -> list[str]:
        return [path for path in self._store.list(self._folder) if path.endswith(".jsonl")]


def _number(path: str) -> int:
    return int(path.rpartition("/")[2].partition("-")[0])


def _first(path: str) -> int:
    """Returns what a `Position` calls the object: the checksum of its first line."""
    return int(path.rpartition("-")[2].removesuffix(".jsonl"), 16)
