"""Lists the files of a source, with their sizes and modification times.

Invariants: a split is read only from the file that was listed, with the same size and modification time. A folder that
can't be listed is an error, never an empty one: its rows would be lost for good.
Whose fault a missing file is: the job's if nobody has seen it yet, or else the world's, because it may come back.
"""

from __future__ import annotations

import errno
import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from engine.connectors.table import published
from engine.connectors.table.folds import FoldLog
from engine.core.errors import WeirError
from engine.protocol.failures import Fault
from engine.store.directory import DirectoryStore


class FileError(WeirError):
    """A file can't be read as the job declares it."""


class FileMissing(FileError):
    """There is no such file or folder, and the job has not seen it before."""


class FileUnavailable(FileError):
    """A file can't be read now: the file system failed, or what was there is away. Another attempt may succeed."""

    fault = Fault.OUTSIDE


def unreadable(message: str, error: Exception) -> FileError:
    """Returns the error for a file that could not be read: the file system's fault, or the file's."""
    number = error.errno if isinstance(error, OSError) else None  # Arrow sets none if the content is wrong
    of_file = number in (None, errno.EISDIR, errno.ENOTDIR)
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
class PublishedTable:
    """What a Weir table shows at one moment. Folds are read after `names`: a fold exists before a record names it."""

    folder: Path
    names: list[str]

    @classmethod
    def at(cls, folder: Path) -> PublishedTable | None:
        """Returns the table in this folder, None if there is none."""
        if not (folder / "_spark_metadata").is_dir():
            return None
        return cls(folder, published(DirectoryStore(folder.parent), folder.name) or [])

    def folds(self) -> dict[str, list[str]]:
        """Returns by folded file which files it replaces, as far as the table still tells."""
        return FoldLog(DirectoryStore(self.folder.parent), self.folder.name).replaced()

    def files(self) -> list[FileSplit]:
        """Returns the files that the table shows, sorted by name."""
        return sorted(map(self.file, self.names), key=FileSplit.order)

    def file(self, name: str) -> FileSplit:
        """Returns a file of the table: one that it shows, or one that is inside of a folded file."""
        try:
            stat = (self.folder / name).stat()
        except FileNotFoundError as error:
            path = self.folder / name
            if name not in self.names:
                raise deleted(path) from error
            raise FileUnavailable(f"{path} is missing, but the table names it: put it back") from error
        return FileSplit(name, stat.st_size, stat.st_mtime_ns)


WHEN_TOO_LATE = (
    "This job was stopped, or behind, for longer than that. Write the table with a longer TableSink(…, "
    "keep_replaced=…), or with fold_mb=None, and start a job with another name, which reads the whole table"
)


def deleted(path: Path) -> FileError:
    """Returns the error for a file of a table that is deleted before its rows were read. It does not come back."""
    return FileError(
        f"{path} is gone, and not all of its rows were read: the table folds its small files, and deletes them after "
        f"keep_replaced. {WHEN_TOO_LATE}"
    )


def untold(path: Path) -> FileError:
    """Returns the error for a folded file of which nobody can tell any more whether its rows were read."""
    return FileError(
        f"{path} holds rows of files that the table has folded and, after keep_replaced, deleted, and this job can't "
        f"tell which of them it has read. {WHEN_TOO_LATE}"
    )


@dataclass(frozen=True)
class Location:
    """A file, a folder or a glob. Names that begin with `_` or `.`, and `*.tmp`, are ignored as unfinished.

    `own`: the files are in the job's own store. They never change there, but a fork's copies have later modification
    times, so those are not compared.
    """

    path: str
    own: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.path, str):
            raise ValueError(f"the path of files is a text, as in '/data/events', not {self.path!r}")
        if not Path(self.path).is_absolute():
            raise ValueError(f"{self.path!r} is not an absolute path: write one, because slots run in other folders")

    @property
    def base(self) -> Path:
        """The folder that the paths of splits are relative to, so that it may move with its files."""
        path = Path(self.path)
        if glob.has_magic(self.path):
            return next(parent for parent in path.parents if not glob.has_magic(str(parent)))
        return path if path.is_dir() else path.parent

    def table(self) -> PublishedTable | None:
        """Returns the Weir table that this is, None if it is something else."""
        return None if glob.has_magic(self.path) else PublishedTable.at(Path(self.path))

    def look(self) -> PublishedTable | list[FileSplit]:
        """Returns what is there now: a table, or files, unsplit and sorted by name."""
        return self.table() or self._files()

    def files(self) -> list[FileSplit]:
        """Returns the files, unsplit, sorted by name; of a Weir table those of published epochs."""
        table = self.table()
        return table.files() if table is not None else self._files()

    def _files(self) -> list[FileSplit]:
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
            return sorted({p for p in _matching(base, path.relative_to(base).parts) if _finished(p)})
        if path.is_file():
            return [path]
        return [p for p in _entries(path) if _finished(p)]

    def checked(self, split: FileSplit) -> Path:
        """Returns the file of a split; raises if it is not the one that was listed."""
        path = self.base / split.path
        try:
            stat = path.stat()
        except OSError as error:
            table = self.table() if isinstance(error, FileNotFoundError) else None
            if table is not None and split.path not in table.names:
                raise deleted(path) from error
            raise FileUnavailable(
                f"{path} can't be read any more ({error.strerror or error}), but was there when it was listed, "
                "and its records have not all been read: put it back"
            ) from error
        if stat.st_size != split.size or (stat.st_mtime_ns != split.mtime_ns and not self.own):
            raise FileError(
                f"{path} has changed since it was listed ({split.size} bytes then, {stat.st_size} now): files must "
                "appear whole, by a rename, and never change. Put the old one back, or start a job with another name"
            )
        return path


def _matching(folder: Path, parts: Sequence[str], *, found: bool = False) -> Iterator[Path]:
    """Yields what a glob matches below a folder; `found`: the folder was listed, and may be deleted since."""
    first, *rest = parts
    entries = _entries(folder, found=found)
    if first == "**":
        if rest:
            yield from _matching(folder, rest, found=True)
        below = [path for path in entries if path.is_dir() and not path.is_symlink()]
        for path in below:
            yield from _matching(path, parts, found=True)
        return
    for path in entries:
        if fnmatchcase(path.name, first):
            if not rest:
                yield path
            elif path.is_dir():
                yield from _matching(path, rest, found=True)


def _entries(folder: Path, *, found: bool = False) -> list[Path]:
    """Returns the files and folders in a folder, without those that are hidden."""
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError) as error:
        if found:
            return []
        raise FileMissing(
            f"there is no file or folder {folder}: correct the path, or mount it on every machine that runs a slot"
        ) from error
    except OSError as error:
        raise FileUnavailable(
            f"the folder {folder} can't be listed ({error.strerror or error}), and its files would be passed over: let "
            "the user of the job read it, or leave it out of the path"
        ) from error
    return [folder / name for name in names if not name.startswith(("_", "."))]


def _finished(path: Path) -> bool:
    return not path.name.endswith(".tmp") and path.is_file()
