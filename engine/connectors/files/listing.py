"""Lists the files of a source, with their sizes and modification times.

Invariant: a split is read only from the file that was listed, with the same size and modification time.
"""

from __future__ import annotations

import errno
import glob
from dataclasses import dataclass
from pathlib import Path

import msgspec

from engine.connectors.table import published
from engine.core.errors import WeirError
from engine.protocol.failures import Fault
from engine.store.directory import DirectoryStore


class FileError(WeirError):
    """A file can't be read as the job declares it."""


class FileUnavailable(FileError):
    """The file system failed to read a file. Another attempt may succeed."""

    fault = Fault.OUTSIDE


def unreadable(message: str, error: Exception) -> FileError:
    """Returns the error for a file that could not be read: the file system's fault, or the file's."""
    number = error.errno if isinstance(error, OSError) else None  # Arrow sets none if the content is wrong
    of_file = number in (None, errno.ENOENT, errno.EISDIR, errno.ENOTDIR)
    return FileError(message) if of_file else FileUnavailable(message)


class FileSplit(msgspec.Struct, frozen=True, array_like=True):
    """Part of a file: row groups or bytes from `start` to `end` (None: to the end). `path` is relative.

    The id contains all fields, so a snapshot of positions names its files without a listing.
    """

    path: str
    size: int
    mtime_ns: int
    start: int = 0
    end: int | None = None

    def order(self) -> tuple[str, int]:
        return self.path, self.start

    @property
    def id(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def of(cls, split_id: str) -> FileSplit:
        return msgspec.json.decode(split_id, type=cls)


@dataclass(frozen=True)
class Location:
    """A file, a folder or a glob. Names that begin with `_` or `.`, and `*.tmp`, are ignored as unfinished.

    `own`: the files are in the job's own store. They never change there, but a fork's copies have later modification
    times, so those are not compared.
    """

    path: str
    own: bool = False

    def __post_init__(self) -> None:
        if not Path(self.path).is_absolute():
            raise ValueError(f"{self.path!r} is not an absolute path: write one, because slots run in other folders")

    @property
    def base(self) -> Path:
        """The folder that the paths of splits are relative to, so that it may move with its files."""
        path = Path(self.path)
        if glob.has_magic(self.path):
            return next(parent for parent in path.parents if not glob.has_magic(str(parent)))
        return path if path.is_dir() else path.parent

    def files(self) -> list[FileSplit]:
        """Returns the files, unsplit, sorted by name."""
        base = self.base
        found = []
        for path in self._paths(base):
            try:
                stat = path.stat()
            except FileNotFoundError:
                continue  # deleted since it was listed
            found.append(FileSplit(path.relative_to(base).as_posix(), stat.st_size, stat.st_mtime_ns))
        return sorted(found, key=FileSplit.order)

    def _paths(self, base: Path) -> list[Path]:
        path = Path(self.path)
        if glob.has_magic(self.path):
            paths = base.glob(path.relative_to(base).as_posix())
        elif path.is_file():
            return [path]
        elif not path.is_dir():
            raise FileError(f"there is no file or folder {self.path}")
        elif (path / "_spark_metadata").is_dir():  # a Weir table: only published files
            return [path / name for name in published(DirectoryStore(path.parent), path.name) or []]
        else:
            paths = path.iterdir()
        return [p for p in paths if not _hidden(p.relative_to(base)) and p.is_file()]

    def checked(self, split: FileSplit) -> Path:
        """Returns the file of a split; raises if it is not the one that was listed."""
        path = self.base / split.path
        try:
            stat = path.stat()
        except OSError as error:
            raise unreadable(
                f"{path} can't be read any more ({error.strerror or error}), but was there when it was listed, "
                "and its records have not all been read: put it back",
                error,
            ) from error
        if stat.st_size != split.size or (stat.st_mtime_ns != split.mtime_ns and not self.own):
            raise FileError(
                f"{path} has changed since it was listed ({split.size} bytes then, {stat.st_size} now): files must "
                "appear whole, by a rename, and never change. Put the old one back, or start a job with another name"
            )
        return path


def _hidden(path: Path) -> bool:
    return any(part.startswith(("_", ".")) for part in path.parts) or path.name.endswith(".tmp")
