"""`RotatedFile`: lines in a file that is bounded: once it is full it becomes `NAME.1`, that one `NAME.2`, and so on.
`rotate_open`: the same for a file into which other processes write what they print.

Invariants: lines keep their order; a line that a crash tore is one line by itself and takes no other with it; whoever
reads on behind a `Position` misses nothing that is still kept.
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


class Position(msgspec.Struct, frozen=True):
    """Behind a line. A file is known by its first line, which it keeps under all its names; inodes come again."""

    first: int = 0
    offset: int = 0


BEGIN = Position()


class RotatedFile:
    """One thread appends; anybody reads."""

    def __init__(self, path: Path, file_bytes: int, files: int) -> None:
        self.path = path
        self._file_bytes = file_bytes
        self._names = _names(path, files)
        self._file: IO[bytes] | None = None
        self._size = 0

    def append(self, line: bytes) -> None:
        """In one write, so that the lines of two processes, one of them replaced, don't mix."""
        if self._file is None or self._size >= self._file_bytes:
            self._file = self._open()
        try:
            self._file.write(line + b"\n")
        except OSError:
            self.close()  # part of it may be there
            raise
        self._size += len(line) + 1

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> IO[bytes]:
        self.close()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists() and self.path.stat().st_size >= self._file_bytes:
            _shift(self._names)
        file = self.path.open("a+b", buffering=0)
        self._size = file.seek(0, os.SEEK_END)
        if self._size:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
        return file

    def end(self) -> Position:
        """Behind all that is there."""
        try:
            with self.path.open("rb") as file:
                return Position(zlib.crc32(file.readline()), file.seek(0, os.SEEK_END))
        except FileNotFoundError:
            return BEGIN

    def after(self, position: Position) -> Iterator[tuple[bytes, Position]]:
        """The lines behind it, oldest first, each with its own position; all, where nobody knows it any more."""
        with ExitStack() as stack:
            files: dict[int, IO[bytes]] = {}
            for path in self._names:  # newest first: what is renamed meanwhile is met twice, not never
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
                        break  # it is still being written
                    yield line[:-1], Position(first, files[first].tell())


def rotate_open(path: Path, file_bytes: int, files: int) -> None:
    """Once it is full. Those who append to it keep their descriptors, so it is copied and emptied, not renamed.

    They wait for nobody: what is written between copy and emptying is lost.
    """
    if not path.exists() or path.stat().st_size < file_bytes:
        return
    names = _names(path, files)
    _shift(names[1:])
    with contextlib.suppress(OSError), path.open("rb") as file:  # a full disk: the more reason to empty it
        file.seek(-file_bytes, os.SEEK_END)
        names[1].write_bytes(file.read(file_bytes))
    os.truncate(path, 0)


def _names(path: Path, files: int) -> list[Path]:
    return [path, *(path.with_name(f"{path.name}.{number}") for number in range(1, files))]


def _shift(names: list[Path]) -> None:
    for newer, older in reversed(list(pairwise(names))):
        if newer.exists():
            newer.replace(older)
