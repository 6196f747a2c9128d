"""A store in a directory of a local or network file system.

Invariant: `create` makes a file visible under its name only when its content is durable.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

from engine.core.errors import StoreError, SyncFailed, WeirError
from engine.core.paths import check_store_path
from engine.core.pieces import pieces_of
from engine.core.ports import Data, Store
from engine.protocol.epoch_records import Created
from engine.store.failpoints import Point, failpoint
from engine.store.reading import content

DIRECTORY_MODE, FILE_MODE = 0o750, 0o640
"""Members of the group can read a table. All else in a store lies below the folder of a job, which is private."""

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)
"""How file systems say that they have no hard links. Nothing was made then."""

_NO_LINK_BETWEEN = (*_NO_LINKS, errno.EXDEV, errno.EMLINK, errno.EACCES)
"""How they say that these two places, or this user, can't have one: the file can still be copied."""

_TRIES = 3
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}")
_LEFT_AFTER_S = 600.0
"""A file of `create` that is so much older than another one was left by a process that was killed."""


def no_links(root: Path, error: OSError) -> str:
    return (
        f"the file system of {root} makes no hard links ({error.strerror}), but Weir commits epochs with them: choose "
        "a store on a local disk or on NFS"
    )


def make_folder(folder: Path, within: Path | None = None) -> None:
    """Makes a folder and its missing parents, none of which others can write to, whatever the umask.

    `within`: the modes of folders above this one are left to the umask.
    """
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for place in missing:
        if within is None or place == within or within in place.parents:
            place.chmod(DIRECTORY_MODE)


def check_directory(root: str | Path) -> None:
    """Makes the directory if it does not exist. Raises an error that says what to do if it can't be a store."""
    folder = Path(root).absolute()
    try:
        make_folder(folder)
        with tempfile.TemporaryDirectory(prefix=".probe-", dir=folder) as made:
            probe = Path(made, "probe")
            probe.write_bytes(b"weir")
            try:
                os.link(probe, Path(made, "link"))
            except OSError as error:
                raise WeirError(no_links(folder, error)) from error
    except FileExistsError as error:
        raise WeirError(f"the store {folder} is a file: name a folder with --store or WEIR_STORE") from error
    except OSError as error:
        raise WeirError(
            f"the store {folder} can't be written: {error.strerror}; mend that, or choose another with --store"
        ) from error


class DirectoryStore:
    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).absolute()
        self._swept: set[Path] = set()

    def _inside(self, path: str) -> Path:
        """Returns the place of a path, which must lie below the root, also when its links are followed."""
        check_store_path(path)
        target = self.root / path
        root, real = os.path.realpath(self.root), os.path.realpath(target)
        if os.path.commonpath([root, real]) != root:
            raise StoreError(f"{path!r} leaves the store {self.root}: Weir uses nothing outside of it")
        return target

    def write(self, path: str, data: Data) -> None:
        target = self._inside(path)
        try:
            self._in_its_folder(target, lambda: _write(target, data))
        except OSError as error:
            raise StoreError(f"can't write {target}: {error.strerror or error}") from error

    def _in_its_folder(self, target: Path, work: Callable[[], None]) -> None:
        """Makes the folder of a file if it is missing. Somebody may remove it as long as it is empty: then again."""
        for _ in range(_TRIES):
            try:
                work()
                return
            except FileNotFoundError:
                make_folder(target.parent, within=self.root)
        work()

    def sync(self, paths: list[str]) -> None:
        for path in paths:
            self._fsync(self._inside(path))
        self._sync_directories({(self.root / path).parent for path in paths})

    def _sync_directories(self, lowest: set[Path]) -> None:
        """Syncs these directories and their parents up to the root: a new directory's name is part of its parent."""
        directories: set[Path] = set()
        for directory in lowest:
            while directory not in directories and directory != self.root.parent:
                directories.add(directory)
                directory = directory.parent
        for directory in sorted(directories, key=lambda d: (-len(d.parts), d)):
            self._fsync(directory)

    def create(self, path: str, data: bytes) -> Created:
        target = self._inside(path)
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
        outcome = Created.CREATED
        try:
            self.write(str(temporary.relative_to(self.root)), data)
            self._fsync(temporary)
            self._sweep(temporary)
            try:
                os.link(temporary, target)
            except FileExistsError as error:
                if target.is_dir():
                    raise StoreError(f"can't create {target}: a folder is in its place: move it away") from error
                outcome = Created.EXISTS
            except OSError as error:
                if error.errno in _NO_LINKS:
                    raise StoreError(f"can't create {target}: {no_links(self.root, error)}") from error
                return Created.UNKNOWN  # a network file system may have made the link but lost the answer
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
        try:
            # Needed even if the file exists: its writer may have died before the name was durable.
            self._sync_directories({target.parent})
        except SyncFailed:
            raise
        except StoreError:
            return Created.UNKNOWN
        return outcome

    def _sweep(self, temporary: Path) -> None:
        """Deletes, once per directory, what killed processes left there that were about to create a file.

        One that was only stopped finds its file gone, does not know then what it has created, and tries again. Ages are
        compared with a file that was made now, by the clock of the file system.
        """
        folder = temporary.parent
        if folder in self._swept:
            return
        self._swept.add(folder)
        with contextlib.suppress(OSError), os.scandir(folder) as entries:  # it can wait for the next process
            now_s = temporary.stat().st_mtime
            for entry in entries:
                if _TEMPORARY.fullmatch(entry.name) and now_s - entry.stat().st_mtime > _LEFT_AFTER_S:
                    os.unlink(entry.path)

    def read(self, path: str) -> bytes:
        try:
            return self._inside(path).read_bytes()
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
            raise FileNotFoundError(f"{self.root / path} does not exist") from error
        except OSError as error:
            raise StoreError(f"can't read {self.root / path}: {error.strerror or error}") from error

    def read_all(self, paths: list[str]) -> list[bytes | None]:
        return [content(self, path) for path in paths]

    def sizes(self, paths: list[str]) -> list[int | None]:
        return [self._size(self._inside(path)) for path in paths]

    @staticmethod
    def _size(target: Path) -> int | None:
        try:
            found = target.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise StoreError(f"can't look at {target}: {error.strerror or error}") from error
        return found.st_size if stat.S_ISREG(found.st_mode) else None

    def list(self, prefix: str) -> list[str]:
        def unreadable(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError | NotADirectoryError):
                raise StoreError(f"can't list {error.filename}: {error.strerror or error}") from error

        base = self._inside(prefix) if prefix else self.root
        return sorted(
            str((Path(folder) / name).relative_to(self.root))
            for folder, _, names in os.walk(base, onerror=unreadable)
            for name in names
            if not name.startswith(".")
        )

    def delete(self, path: str) -> None:
        target = self._inside(path)
        try:
            if target.is_dir() and not target.is_symlink():
                self._delete_tree(target)
            else:
                target.unlink(missing_ok=True)
        except NotADirectoryError:
            pass  # a part of the path is a file, so there is nothing of this name
        except OSError as error:
            raise StoreError(f"can't delete {error.filename or target}: {error.strerror or error}") from error

    @staticmethod
    def _delete_tree(target: Path) -> None:
        for folder, folders, names in os.walk(target, topdown=False):
            for name in names:
                (Path(folder) / name).unlink(missing_ok=True)
            for name in folders:
                entry = Path(folder) / name
                if entry.is_symlink():
                    entry.unlink(missing_ok=True)
                    continue
                with contextlib.suppress(OSError):  # an old attempt may still write there; retention tries again
                    entry.rmdir()
        with contextlib.suppress(OSError):
            target.rmdir()

    def copy_from(self, path: str, source: Store, source_path: str) -> bool:
        """Makes a hard link. Only `create` and `write` change files, and both leave other links of a file alone."""
        if not isinstance(source, DirectoryStore):
            return False
        origin, target = source._inside(source_path), self._inside(path)

        def link() -> None:
            target.unlink(missing_ok=True)
            os.link(origin, target)

        try:
            self._in_its_folder(target, link)
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{origin} does not exist") from error
        except OSError as error:
            if error.errno in _NO_LINK_BETWEEN:
                return False
            raise StoreError(f"can't link {target} to {origin}: {error.strerror or error}") from error
        return True

    def uri(self, path: str) -> str:
        return (self.root / path).as_uri()

    def below(self, path: str) -> DirectoryStore:
        return DirectoryStore(self._inside(path))

    @staticmethod
    @failpoint(before=Point.FILE_SYNC)
    def _fsync(path: Path) -> None:
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise StoreError(f"can't open {path} to sync it: {error.strerror or error}") from error
        try:
            os.fsync(descriptor)
        except OSError as error:
            raise SyncFailed(f"fsync of {path} failed: {error.strerror or error}") from error
        finally:
            os.close(descriptor)


@failpoint(before=Point.FILE_WRITE)
def _write(path: Path, data: Data) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, FILE_MODE)
    if os.fstat(descriptor).st_nlink > 1:  # a copy: the original stays as it is
        os.close(descriptor)
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, FILE_MODE)
    try:
        os.ftruncate(descriptor, 0)
        with contextlib.suppress(PermissionError):  # in a shared store the file may be another user's
            os.fchmod(descriptor, FILE_MODE)
        for piece in pieces_of(data):
            while piece:  # Linux writes at most 2 GB at once
                piece = piece[os.write(descriptor, piece) :]
    finally:
        os.close(descriptor)
