"""Which files there are, and what they were when they were listed.

Invariant: a split is read only from the very file that was listed: same size, same time of change.
"""

from __future__ import annotations

import glob
from dataclasses import dataclass
from pathlib import Path

import msgspec

from engine.connectors.table import published
from engine.core.errors import WeirError
from engine.store.directory import DirectoryStore


class FileError(WeirError):
    """A file can't be read as the job declares it."""


class FileSplit(msgspec.Struct, frozen=True, array_like=True):
    """Part of a file: row groups or bytes from `start` to `end` (None: all of them). `path` is relative.

    Its id says all of it, so a snapshot of positions knows its files without any listing.
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
    """A file, a folder or a glob; names that begin with `_` or `.` and `*.tmp` are not there yet.

    `own`: in the job's own store, where nobody changes files; a fork has copies of them, made later.
    """

    path: str
    own: bool = False

    def __post_init__(self) -> None:
        if not Path(self.path).is_absolute():
            raise ValueError(f"{self.path!r} is no absolute path: slots run in folders of their own")

    @property
    def base(self) -> Path:
        """What the paths of splits are relative to, so that a folder may move with its files."""
        path = Path(self.path)
        if glob.has_magic(self.path):
            return next(parent for parent in path.parents if not glob.has_magic(str(parent)))
        return path if path.is_dir() else path.parent

    def files(self) -> list[FileSplit]:
        """Whole files, by name."""
        base = self.base
        found = []
        for path in self._paths(base):
            try:
                stat = path.stat()
            except FileNotFoundError:
                continue  # gone since it was listed
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
        elif (path / "_spark_metadata").is_dir():  # a Weir table: only what an epoch has published
            return [path / name for name in published(DirectoryStore(path.parent), path.name) or []]
        else:
            paths = path.iterdir()
        return [p for p in paths if not _hidden(p.relative_to(base)) and p.is_file()]

    def checked(self, split: FileSplit) -> Path:
        """The file of a split, if it is still what was listed."""
        path = self.base / split.path
        try:
            stat = path.stat()
        except OSError as error:
            raise FileError(
                f"{path} can't be read any more ({error.strerror or error}), but was there when it was listed, "
                "and not all of it has been read: put it back"
            ) from error
        if stat.st_size != split.size or (stat.st_mtime_ns != split.mtime_ns and not self.own):
            raise FileError(
                f"{path} has changed since it was listed ({split.size} bytes then, {stat.st_size} now): files must "
                "appear whole, by a rename, and stay as they are. Put the old one back, or start a job of another name"
            )
        return path


def _hidden(path: Path) -> bool:
    return any(part.startswith(("_", ".")) for part in path.parts) or path.name.endswith(".tmp")
