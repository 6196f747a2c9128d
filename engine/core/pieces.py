"""`Pieces`: the content of a file to write that lies in several places of memory. Writing it copies none of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


class Pieces:
    """A sequence of buffers that are one content. Nobody may change a buffer while it is written."""

    __slots__ = ("_parts", "_size")

    def __init__(self, parts: Iterable[bytes | memoryview]) -> None:
        self._parts = [memoryview(part).cast("B") for part in parts]
        self._size = sum(part.nbytes for part in self._parts)

    def __len__(self) -> int:
        """Returns the number of bytes."""
        return self._size

    def __iter__(self) -> Iterator[memoryview]:
        return iter(self._parts)

    def __bytes__(self) -> bytes:
        return b"".join(self._parts)


class PiecesReader:
    """Reads a content from its beginning to its end, for clients that send what they read from a file."""

    def __init__(self, data: bytes | memoryview | Pieces) -> None:
        self._parts = iter(pieces_of(data))
        self._part = memoryview(b"")

    def read(self, size: int) -> bytes:
        """Returns this many bytes, or fewer at the end."""
        taken: list[memoryview] = []
        while size > 0:
            if not self._part:
                following = next(self._parts, None)
                if following is None:
                    break
                self._part = following
            taken.append(self._part[:size])
            self._part = self._part[size:]
            size -= taken[-1].nbytes
        return b"".join(taken)


def pieces_of(data: bytes | memoryview | Pieces) -> Pieces:
    return data if isinstance(data, Pieces) else Pieces([data])
