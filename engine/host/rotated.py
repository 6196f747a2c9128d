"""`RotatedFile` keeps lines in files of bounded size: a full file becomes `NAME.1`, that one `NAME.2`, and so on.
`rotate_open` does the same to a file that other processes print to.

Invariants: lines keep their order; a line cut short by a crash stays a line of its own and damages no other; a reader
that goes on from a `Position` misses no line that is still kept.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import IO

import msgspec

from engine.store.directory import DIRECTORY_MODE, FILE_MODE


class Position(msgspec.Struct, frozen=True):
    """The position after a line. A file is known by its first line, which it keeps when renamed; inodes are reused."""

    first: int = 0
    offset: int = 0


BEGIN = Position()


class RotatedFile:
    """One thread appends; any number of processes may read meanwhile."""

    def __init__(self, path: Path, file_bytes: int, files: int) -> None:
        self.path = path
        self._file_bytes = file_bytes
        self._names = _names(path, files)
        self._file: IO[bytes] | None = None
        self._size = 0

    def append(self, line: bytes) -> None:
        """Appends a line in one write, so that lines of a process and of its replacement don't mix."""
        if self._file is None or self._size >= self._file_bytes:
            self._file = self._open()
        try:
            self._file.write(line + b"\n")
        except OSError:
            self.close()  # part of the line may be written; `_open` then ends that line
            raise
        self._size += len(line) + 1

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> IO[bytes]:
        self.close()
        self.path.parent.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
        if self.path.exists() and self.path.stat().st_size >= self._file_bytes:
            _shift(self._names)
        self.path.touch(FILE_MODE)
        file = self.path.open("a+b", buffering=0)
        self._size = file.seek(0, os.SEEK_END)
        if self._size:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
        return file

    def end(self) -> Position:
        """Returns the position after everything that is written."""
        try:
            with self.path.open("rb") as file:
                return Position(zlib.crc32(file.readline()), file.seek(0, os.SEEK_END))
        except FileNotFoundError:
            return BEGIN

    def after(self, position: Position) -> Iterator[tuple[bytes, Position]]:
        """Yields the lines after a position, oldest first, each with its own; all lines if it was rotated away."""
        with ExitStack() as stack:
            files: dict[int, IO[bytes]] = {}
            for path in self._names:  # newest first: a file renamed meanwhile is seen twice rather than missed
                with contextlib.suppress(FileNotFoundError):
                    file = stack.enter_context(path.open("rb"))
                    files[zlib.crc32(file.readline())] = file
            firsts = list(reversed(files))
            begin_at = 0
            if position.first in files and position.offset <= os.fstat(files[position.first].fileno()).st_size:
                firsts = firsts[firsts.index(position.first) :]
                begin_at = position.offset
            for first in firsts:
                files[first].seek(begin_at)
                begin_at = 0
                for line in files[first]:
                    if not line.endswith(b"\n"):
                        break  # the line is still being written
                    yield line[:-1], Position(first, files[first].tell())


def rotate_open(path: Path, file_bytes: int, files: int) -> None:
    """Rotates a file once it is full. The file is copied and emptied, not renamed: its writers keep their descriptors.

    The writers do not wait: what they write between the copy and the emptying is lost.
    """
    if not path.exists() or path.stat().st_size < file_bytes:
        return
    names = _names(path, files)
    _shift(names[1:])
    # The copy may fail on a full disk; then the file is emptied all the same.
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(-file_bytes, os.SEEK_END)
        names[1].write_bytes(file.read(file_bytes))
    os.truncate(path, 0)


def _names(path: Path, files: int) -> list[Path]:
    return [path, *(path.with_name(f"{path.name}.{number}") for number in range(1, files))]


def _shift(names: list[Path]) -> None:
    for newer, older in reversed(list(pairwise(names))):
        if newer.exists():
            newer.replace(older)
